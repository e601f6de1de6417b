"""The one place where the dashboard meets the API: which address, with which token, and what a person sees when it
does not answer.

A dashboard that is started with a token (PILOT_TOKEN, or PILOT_TOKEN_FILE that names a file) lets everybody who can
open it do what the token may do. One without asks each visitor for a token and keeps it for the browser session. The
settings page takes another token for the session either way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, cast, get_args

import streamlit as st

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import Preset, Problem, Scope
from ui import text

SCOPES: tuple[Scope, ...] = get_args(Scope)  # each may do what those before it may
DEFAULT_URL = "http://127.0.0.1:8000"
PATIENCE_S = 5.0  # with every answer
PROBE_S = 1.0  # with one that is only to show that the API is back: while it is waited for, nothing on the page moves


LISTS = {  # kind of problem -> where the dashboard lists what there is; a program is told an address
    "run-not-found": "The page Runs lists the runs.",
    "prompt-not-found": "The run's page leads to its prompts.",
    "prompt-set-not-found": "The page Data lists the sets.",
    "evaluation-not-found": "The run's page lists its evaluations.",
    "token-not-found": "Settings lists the tokens.",
    "webhook-not-found": "Settings lists the webhooks.",
}
_LISTED = re.compile(r"GET /\S+ lists [^.]*\.")
_PART = re.compile(r"^(query|body|path|header)(\.|$)")  # of a request, where a field came in


def client() -> Client:
    """The API's client, one per address and token. PILOT_API_URL gives the address."""
    return _client(_url(), st.session_state.get("token") or _given_token(), PATIENCE_S)


def answers() -> bool:
    """Whether the API is there (again), and its database with it, which knows the token."""
    try:
        _client(_url(), st.session_state.get("token") or _given_token(), PROBE_S).me()
    except ApiUnreachable:
        return False
    except ApiError as error:
        return error.problem.status < 500  # what it refuses it says to whoever asks next
    return True


def lacks(scope: Scope, way_out: str = "see Settings") -> str | None:
    """Why what needs this scope cannot be done with the token in use, for a person; None when it can.

    None also when the API does not tell: then it is the API that refuses, in its own words.
    """
    try:
        name, has = _name_and_scope(_url(), st.session_state.get("token") or _given_token())
    except (ApiError, ApiUnreachable):
        return None
    if SCOPES.index(has) >= SCOPES.index(scope):
        return None
    return f"This needs a token with the scope {scope!r}; the one in use, {name!r}, has {has!r}; {way_out}."


@st.cache_data(show_spinner=False, max_entries=64, ttl=3600)  # no token ever changes its scope
def _name_and_scope(url: str, token: str | None) -> tuple[str, Scope]:
    me = _client(url, token, PATIENCE_S).me()
    return me.name, cast(Scope, me.scope)


@st.cache_resource(show_spinner=False, max_entries=64)
def _client(url: str, token: str | None, patience_s: float) -> Client:
    return Client(url, token, timeout=patience_s)


def schema_and_presets() -> tuple[dict[str, Any], list[Preset]]:
    """Of run configs. Both are constant while the API runs: all sessions share an answer, for a minute."""
    return _schema_and_presets(_url(), st.session_state.get("token") or _given_token())


@st.cache_resource(show_spinner=False, max_entries=64, ttl=60)
def _schema_and_presets(url: str, token: str | None) -> tuple[dict[str, Any], list[Preset]]:
    api = _client(url, token, PATIENCE_S)
    return api.config_schema(), api.presets()


def _url() -> str:
    return os.environ.get("PILOT_API_URL") or DEFAULT_URL


def _given_token() -> str | None:
    if token := os.environ.get("PILOT_TOKEN"):
        return token
    if path := os.environ.get("PILOT_TOKEN_FILE"):
        try:
            return Path(path).read_text().strip() or None
        except OSError:
            return None  # `pilot up` has not made it yet; the API will say that a token is needed
    return None


def sign_in() -> bool:
    """Whether there is a token. If not, shows the form that asks for one."""
    if _given_token() or os.environ.get("PILOT_TOKEN_FILE") or st.session_state.get("token"):
        return True
    with st.container(width=480):
        st.subheader("Sign in")
        token_form()
    return False


def has_own_token() -> bool:
    """Whether the dashboard was started with one."""
    return _given_token() is not None


def token_form(scope: Scope = "run") -> None:
    """Takes a token for this browser session. scope: what it should have."""
    with st.form("sign-in"):
        st.markdown(f"A token of this platform: `./pilot token create NAME --scope {scope}` makes one.")
        token = st.text_input("Token", type="password", autocomplete="current-password").strip()
        if refused := st.session_state.pop("sign-in-refused", None):
            st.warning(refused)
        sent = st.form_submit_button("Sign in", type="primary")
    if not sent or not token:
        return
    try:
        Client(_url(), token, timeout=PATIENCE_S).me()
    except ApiUnreachable as error:
        show_lost(error, "Try again.")
    except ApiError as error:
        show_refused(error)
    else:
        st.session_state["token"] = token
        st.rerun()


def show_lost(error: ApiUnreachable, again: str = "This page tries again by itself.") -> None:
    st.html(
        '<div class="pc-banner pc-bad" role="alert"><b>The API does not answer.</b> '
        f"{escape(text.sentence(error.why))}, at {escape(error.url)}. {escape(again)} "
        "Runs go on without the dashboard; nothing is lost. "
        "If it stays away, start the platform with <code>./pilot up</code> or set <code>PILOT_API_URL</code>.</div>"
    )


def show_refused(error: ApiError) -> None:
    problem = error.problem
    if problem.status == 401 and st.session_state.pop("token", None):  # revoked or expired while it was used
        st.session_state["sign-in-refused"] = problem.detail
        st.rerun()
    problem = in_words(problem)
    rows = "".join(
        f"<li>{f'<code>{escape(e.field)}</code>: ' if e.field else ''}{escape(e.message)}</li>" for e in problem.errors
    )
    st.html(
        f'<div class="pc-banner pc-bad" role="alert"><b>{escape(problem.title)}.</b> {escape(problem.detail)}'
        f"{f'<ul>{rows}</ul>' if rows else ''}</div>"
    )


def in_words(problem: Problem) -> Problem:
    """What the API tells a program, for a person at the dashboard: its own ways out, and no parts of requests."""
    if problem.status == 422 and problem.errors and all(e.field.startswith("path.") for e in problem.errors):
        detail = "No run, prompt or set can have this id; the link may have been cut off."
        return Problem(title="There is nothing at this address", status=404, detail=detail)
    kind = problem.type.removeprefix("/problems/")
    # What counts the errors is left out: they are listed.
    detail = "" if problem.errors and problem.detail.endswith("see errors.") else problem.detail
    return problem.model_copy(
        update={
            "title": "This is not accepted" if kind == "invalid-request" else problem.title,
            "detail": _LISTED.sub(LISTS.get(kind, ""), detail).strip(),
            "errors": [e.model_copy(update={"field": _PART.sub("", e.field)}) for e in problem.errors],
        }
    )


def in_a_line(error: ApiError) -> str:
    """For where there is no room for a list."""
    problem = in_words(error.problem)
    told = "; ".join(f"{e.field}: {e.message}".removeprefix(": ") for e in problem.errors)
    return " ".join(part for part in (f"{problem.title}.", problem.detail, told) if part)


@contextmanager
def api_errors() -> Iterator[None]:
    """Around a page's body: an API that is away or refuses becomes words, and the page comes back by itself."""
    try:
        yield
    except ApiUnreachable as error:
        show_lost(error)
        st.fragment(_come_back, run_every=2)()
    except ApiError as error:
        show_refused(error)
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")


def _come_back() -> None:
    if answers():
        st.rerun()
