"""What this dashboard may do, and what an administrator sets: price, tokens, webhooks; and who changed what."""

from __future__ import annotations

import json
from html import escape

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import AuditRow, DeliveryOut, TokenOut, WebhookOut
from ui import blocks, text
from ui.connection import SCOPES, api_errors, client, has_own_token, lacks, show_refused, token_form

SECTIONS = ("Access", "Price", "Webhooks", "Audit log")
MAY = {
    "read": "see runs, prompts and workers",
    "run": "also start, stop, change and delete runs",
    "admin": "also make tokens, set the price and webhooks, and read the audit log",
}
PAGE_SIZE = 25


def render() -> None:
    st.title("Settings", anchor=False)
    section = st.segmented_control(
        "Section", SECTIONS, default=SECTIONS[0], key="section", bind="query-params", label_visibility="collapsed"
    )
    with api_errors():
        missing = lacks("admin", f"{SECTIONS[0]} takes another one")
        match section:
            case "Price":
                _price(missing)
            case "Webhooks":
                _webhooks(missing)
            case "Audit log":
                _audit(missing)
            case _:
                _access(missing)


def _heading(title: str, words: str = "") -> None:
    st.html(f'<div class="pc-heading"><h2>{title}</h2><span>{words}</span></div>')


# Access: this dashboard's token, and all others


def _access(missing: str | None) -> None:
    me = client().me()
    with st.container(border=True, key="own-token"):
        _heading("What this dashboard may do")
        reached = SCOPES.index(me.scope)
        lines = [f"{'✓' if i <= reached else '✗'} **{scope}**: {MAY[scope]}" for i, scope in enumerate(SCOPES)]
        until = f"until {text.moment(me.expires_at)}" if me.expires_at else "without an end"
        st.markdown(f"It uses the token **{text.markdown(me.name)}** with the scope `{me.scope}`, {until}.")
        st.markdown("  \n".join(lines))
        if st.session_state.get("token"):
            own = "Use the dashboard's own token again" if has_own_token() else "Sign out"
            st.button(own, icon=":material/logout:", key="sign-out", on_click=_sign_out)
        with st.expander("Use another token in this browser session"):
            token_form("admin" if missing else "run")
    if missing:
        blocks.empty("Tokens are for administrators", escape(missing))
        return
    _made()
    _new_token()
    _tokens(me)


def _sign_out() -> None:
    st.session_state.pop("token", None)
    _forget_secret()


def _forget_secret() -> None:
    st.session_state.pop("settings.secret", None)


def _made() -> None:
    """A secret that was just made: shown until it is put away, and nowhere ever again."""
    made: tuple[str, str] | None = st.session_state.get("settings.secret")
    if made is None:
        return
    what, secret = made
    with st.container(border=True, key="secret"):
        st.success(f"{what} Copy its secret now: it is shown this once, and never again.", icon=":material/key:")
        st.code(secret, language=None)
        st.button(
            "I have copied it", key="secret-copied", on_click=lambda: st.session_state.pop("settings.secret", None)
        )


def _new_token() -> None:
    with st.form("new-token", clear_on_submit=True):
        _heading("New token", "for a person, a CI system or a script")
        name_column, scope_column, days_column = st.columns([2, 2, 1])
        name = name_column.text_input("Name", max_chars=100, placeholder="ci of the maths team")
        scope = scope_column.selectbox("Scope", SCOPES, format_func=lambda s: f"{s}: {MAY[s]}")
        days = days_column.number_input("Days", 1, 3650, 90, help="Until it expires. Empty: never.")
        sent = st.form_submit_button("Make token", icon=":material/add:")
    if not sent:
        return
    if not name.strip():
        st.error("Name: a token needs one, so that the audit log can tell who it was.")
        return
    try:
        made = client().create_token(name.strip(), scope, None if days is None else int(days))
    except ApiError as error:
        show_refused(error)
    else:
        st.session_state["settings.secret"] = (f"The token {text.markdown(made.name)} is made.", made.secret)
        st.rerun()


def _tokens(me: TokenOut) -> None:
    with st.container(border=True, key="tokens"):
        _heading("Tokens", "newest first")
        everything = st.toggle(
            "Show revoked and expired ones", key="all-tokens", on_change=_first_page, args=("tokens",)
        )
        cursors: list[str | None] = st.session_state.setdefault("tokens.cursors", [None])
        page = client().list_tokens(everything=everything, limit=PAGE_SIZE, cursor=cursors[-1])
        for token in page.tokens:
            with st.container(horizontal=True, vertical_alignment="center", key=f"token-{token.id}"):
                st.html(_token_line(token, mine=token.id == me.id), width="stretch")
                if token.revoked_at is None:
                    _revoke(token, me)
        _paging("tokens", page.next_cursor)


def _token_line(token: TokenOut, mine: bool) -> str:
    until = f"until {text.moment(token.expires_at)}" if token.expires_at else "no end"
    if token.expires_at and token.expires_at <= text.now():
        until = "expired"
    state = '<span class="pc-tag">revoked</span>' if token.revoked_at else until
    used = f"used {text.when(token.last_used_at)}" if token.last_used_at else "never used"
    maker = f"made by {escape(token.created_by)}" if token.created_by else "made in the database"
    in_use = ' <span class="pc-tag">in use here</span>' if mine else ""
    return (
        f'<b>{escape(token.name)}</b> <span class="pc-tag">{escape(token.scope)}</span>{in_use}'
        f'<div class="pc-facts">{state} · {used} · {maker} {text.when(token.created_at)}</div>'
    )


def _revoke(token: TokenOut, me: TokenOut) -> None:
    if token.id == me.id:
        st.button(
            "Revoke", key=f"revoke-{token.id}", disabled=True, help="It is the one in use: nothing would open then."
        )
        return
    with st.popover("Revoke"):
        st.markdown(f"From now on **{text.markdown(token.name)}** opens nothing. This cannot be undone.")
        if st.button("Revoke it", key=f"revoke-{token.id}", type="primary"):
            client().revoke_token(token.id)
            st.rerun()


# Price


def _price(missing: str | None) -> None:
    now = client().settings()
    with st.form("price", width=560):
        _heading("Price of a GPU-hour", "from it runs on GPUs and their forecasts show money; a CPU slot has no price")
        price_column, currency_column = st.columns([2, 1])
        price = price_column.number_input(
            "Price",
            0.0,
            1e6,
            now.price_per_gpu_hour,
            step=0.1,
            format="%g",
            placeholder="not set",
            disabled=bool(missing),
        )
        currency = currency_column.text_input(
            "Currency", now.currency, max_chars=3, help="ISO 4217, such as USD or EUR.", disabled=bool(missing)
        )
        sent = st.form_submit_button("Save", type="primary", disabled=bool(missing), help=missing)
        if now.changed_at:
            st.html(f'<div class="pc-facts">set by {escape(now.changed_by or "")} {text.when(now.changed_at)}</div>')
        else:
            st.caption("Not set yet: no run shows money.")
    if missing:
        st.info(missing, icon=":material/lock:")
    if sent:
        try:
            client().change_settings(price, currency.strip().upper())
        except ApiError as error:
            show_refused(error)
        else:
            st.rerun()


# Webhooks


def _webhooks(missing: str | None) -> None:
    if missing:
        blocks.empty("Webhooks are for administrators", escape(missing))
        return
    _made()
    with st.form("new-webhook", clear_on_submit=False):
        _heading("New webhook", "an address that is told when a run changes its state or something goes wrong in it")
        url_column, events_column = st.columns([3, 2])
        url = url_column.text_input("Address", max_chars=2000, placeholder="https://hooks.example.org/pilot")
        events = events_column.multiselect("Events", ["run.state", "run.alert"], default=["run.state", "run.alert"])
        sent = st.form_submit_button("Make webhook", icon=":material/add:")
    if sent:
        try:
            made = client().create_webhook(url.strip(), events)
        except ApiError as error:
            show_refused(error)
        else:
            st.session_state["settings.secret"] = (
                "The webhook is made; the secret signs what it is sent.",
                made.secret,
            )
            st.rerun()
    webhooks = client().list_webhooks()
    if not webhooks:
        blocks.empty("No webhooks", "Make one above. docs/api.md tells how a receiver checks the signature.")
    for webhook in webhooks:
        _webhook(webhook)


def _webhook(webhook: WebhookOut) -> None:
    with st.container(border=True, key=f"webhook-{webhook.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.html(
                f"<b>{escape(webhook.url)}</b>"
                f'<div class="pc-facts">{escape(", ".join(webhook.events))} · made by {escape(webhook.created_by)} '
                f"{text.when(webhook.created_at)}</div>",
                width="stretch",
            )
            if st.button("Send a test", key=f"test-{webhook.id}", icon=":material/send:"):
                client().test_webhook(webhook.id)
            with st.popover("Delete"):
                st.markdown("It is told nothing more, and what was not delivered yet never is.")
                if st.button("Delete it", key=f"delete-{webhook.id}", type="primary"):
                    client().delete_webhook(webhook.id)
                    st.rerun()
        st.fragment(_deliveries, run_every=5)(str(webhook.id))


def _deliveries(webhook_id: str) -> None:
    try:
        found = client().deliveries(webhook_id, limit=10).deliveries
    except (ApiError, ApiUnreachable):  # deleted meanwhile, or away: the page itself tells
        return
    if not found:
        st.caption("Nothing was sent yet.")
        return
    rows = [
        [
            escape(d.event),
            text.when(d.created_at),
            _outcome(d),
            str(d.attempts),
            escape(text.shorten(d.error or "", 160)),
        ]
        for d in found
    ]
    blocks.table(["event", "when", "outcome", "attempts", "what went wrong"], rows, right=(3,), caption="Deliveries")


def _outcome(delivery: DeliveryOut) -> str:
    status = f" ({delivery.status})" if delivery.status else ""
    if delivery.delivered_at:
        return f"delivered{status}"
    if delivery.given_up_at:
        return f"given up{status}"
    return "waiting" if not delivery.attempts else f"failed{status}, next try {text.moment(delivery.due_at)}"


# Audit log


def _audit(missing: str | None) -> None:
    if missing:
        blocks.empty("The audit log is for administrators", escape(missing))
        return
    target = st.text_input(
        "Only changes of", key="changed", bind="query-params",
        placeholder="id of a run, token or webhook; or: settings", on_change=_first_page, args=("audit",), width=480,
    ).strip()  # fmt: skip
    cursors: list[str | None] = st.session_state.setdefault("audit.cursors", [None])
    page = client().audit(target or None, limit=PAGE_SIZE, cursor=cursors[-1])
    if not page.entries:
        if target:
            blocks.empty("Nothing was changed there", "No change has this id as its target. Empty the field for all.")
        else:
            blocks.empty("Nothing was changed yet", "Every change that is made through the API is kept here.")
        return
    rows = [_audit_row(entry) for entry in page.entries]
    blocks.table(["when", "who", "what", "target", "before", "after"], rows, caption="Changes, newest first")
    _paging("audit", page.next_cursor)


def _audit_row(entry: AuditRow) -> list[str]:
    run = entry.action.startswith("run.") and entry.action != "run.delete"
    target = escape(entry.target[:8]) if len(entry.target) == 36 else escape(entry.target)
    if run:
        target = f'<a href="run?run={escape(entry.target)}" target="_self">{target}</a>'
    return [
        text.when(entry.at),
        escape(entry.token_name),
        escape(entry.action),
        f'<span title="{escape(entry.target)}">{target}</span>',
        _state(entry.before),
        _state(entry.after),
    ]


def _state(value: dict[str, object] | None) -> str:
    if not value:
        return ""
    words = ", ".join(f"{name}: {part if isinstance(part, str) else json.dumps(part)}" for name, part in value.items())
    return f'<span title="{escape(words)}">{escape(text.shorten(words, 90))}</span>'


def _first_page(name: str) -> None:
    st.session_state[f"{name}.cursors"] = [None]


def _paging(name: str, following: str | None) -> None:
    cursors: list[str | None] = st.session_state[f"{name}.cursors"]
    if len(cursors) == 1 and following is None:
        return
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"Page {len(cursors)}", width="content")
        if st.button("Newer", key=f"{name}-newer", icon=":material/chevron_left:", disabled=len(cursors) == 1):
            cursors.pop()
            st.rerun()
        if st.button("Older", key=f"{name}-older", icon=":material/chevron_right:", disabled=following is None):
            cursors.append(following)
            st.rerun()


render()
