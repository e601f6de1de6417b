"""Start a run: from a preset, another run or nothing; in a form made from the config's schema, and as YAML beside it.

The draft is one config. The form edits it field by field, the YAML as a whole, and each shows what the other did. The
API checks every change and forecasts what the run would take; what it finds wrong is told at the field.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from html import escape
from typing import Any, NamedTuple, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from api.client import ApiError, ApiUnreachable
from api.schemas import FieldProblem, Forecast, Preset, PromptSetOut, RunDetail, RunSummary
from ui import outlook, text
from ui.connection import answers, api_errors, client, in_words, lacks, schema_and_presets, show_lost, show_refused
from ui.draft import YAML_KEY, Draft
from ui.form import Field, Group, about, groups, lookup, name_in_words, place_of

RECENT = 10
ANSWER_S = 10.0  # how long a forecast and a verdict hold
AGAIN_S = 5.0  # after so long the page looks whether an API that gave no answer is back
LOST_KEY = "new.lost"  # how it gave none
PROMPT_SETS = 100  # uploaded ones to choose from, the newest
PROMPT_FIELDS = ("data.train", "data.eval")
_T = TypeVar("_T")


def render() -> None:
    st.title("New run", anchor=False)
    notice, presets_at = st.container(), st.container()
    at = _places()
    asked = Asked()
    if asked.failed is None:  # until the answer is there, that to the config before must not stand here
        at.verdict.info("Checking …", icon=":material/hourglass_empty:")
    if known := asked("schema", schema_and_presets):
        schema, presets = known
        presets = sorted(presets, key=lambda p: lookup(p.config, "method.name") != "pilot_commit")
        draft = _draft(presets, asked)
        form = groups(schema, draft.choice)
        config = draft.config(form)
        with presets_at:
            _presets(draft, presets, asked)
        _editor(draft, form, config, asked, at)
    else:
        at.verdict.empty()
    if isinstance(asked.failed, ApiUnreachable):
        with notice:
            show_lost(asked.failed)
        st.fragment(_ask_again, run_every=AGAIN_S)()
    elif asked.failed is not None:
        with notice, api_errors():
            raise asked.failed


class Places(NamedTuple):
    """Of the editor. verdict is the first thing in above, and above in side."""

    form: DeltaGenerator
    side: DeltaGenerator
    above: DeltaGenerator
    verdict: DeltaGenerator


def _places() -> Places:
    form, right = st.columns([9, 5], gap="medium")
    side = right.container(key="yaml-side")
    above = side.container()
    return Places(form, side, above, above.empty())


def _ask_again() -> None:
    if answers():
        del st.session_state[LOST_KEY]
        st.rerun()


class Asked:
    """What one run of the page asks the API; the last known answer where it gives none.

    The form is drawn in any case: Streamlit forgets what was typed into a widget that is not. After one failure no more
    is asked, for each call may wait until its time is up; when the API gave no answer, not until it answers again.
    """

    def __init__(self) -> None:
        self.failed: ApiError | ApiUnreachable | None = st.session_state.get(LOST_KEY)

    def __call__(self, what: str, ask: Callable[[], _T]) -> _T | None:
        known: dict[str, Any] = st.session_state.setdefault("new.known", {})
        if self.failed is None:
            try:
                known[what] = ask()
            except ApiError as error:
                self.failed = error
            except ApiUnreachable as error:
                self.failed = st.session_state[LOST_KEY] = error
        answer: _T | None = known.get(what)
        return answer


class Answer(NamedTuple):
    """What the API says of a config: what the run would take, or what is wrong."""

    forecast: Forecast | None
    problems: list[FieldProblem]


def _draft(presets: list[Preset], asked: Asked) -> Draft:
    """The session's draft, or what the address names, once."""
    draft = st.session_state.get("new.draft")
    if not isinstance(draft, Draft):
        draft = st.session_state["new.draft"] = Draft()
        if presets:
            draft.load(presets[0].config, f"preset {presets[0].name}", f"preset {presets[0].title}")
    draft.recover()
    origin = st.query_params.get("clone") or st.query_params.get("from")
    wanted = st.query_params.get("preset")
    if origin and draft.source != f"run {origin}":
        match asked(f"run {origin}", lambda: _run_or_refusal(origin)):
            case RunDetail() as run:
                draft.load(run.config, f"run {origin}", f"clone of {run.name}")
            case ApiError() as error:
                st.warning(
                    text.markdown(f"Run {origin} cannot be cloned: {in_words(error.problem).detail} Choose below.")
                )
    elif wanted and not origin and draft.source != f"preset {wanted}":
        found = next((p for p in presets if p.name == wanted), None)
        if found is None:
            st.warning(f"There is no preset {wanted!r}. Choose one below.")
        else:
            draft.load(found.config, f"preset {found.name}", f"preset {found.title}")
    elif not origin and not wanted and presets and draft.source != f"preset {presets[0].name}":
        _put_in_address(draft)  # back from another page, whose address this was not
    return draft


def _run_or_refusal(run_id: str) -> RunDetail | ApiError:
    try:
        return client().get_run(run_id)
    except ApiError as error:
        return error


def _put_in_address(draft: Draft) -> None:
    kind, _, name = draft.source.partition(" ")
    if name:
        st.query_params.from_dict({"clone" if kind == "run" else "preset": name})


def _presets(draft: Draft, presets: list[Preset], asked: Asked) -> None:
    if not presets:
        return
    with st.container(key="presets", horizontal=True, gap="small"):
        for preset in (p for p in presets if not p.group):
            chosen = draft.source == f"preset {preset.name}"
            with st.container(border=True, key=f"preset-{preset.name}{'-chosen' if chosen else ''}", gap="small"):
                st.markdown(f"**{text.markdown(preset.title)}**")
                st.caption(text.markdown(preset.description))
                _use_button(draft, chosen, f"use-{preset.name}", _use, preset)

    with st.container(border=True, key="more-presets"):
        papers = {p.name: p for p in presets if p.group}
        left, right = st.columns(2)
        with left:
            _paper_presets(draft, papers)
        with right:
            _recent_runs(draft, asked)


def _use_button(draft: Draft, chosen: bool, key: str, use: Callable[[Draft, Any], None], what: Preset | str) -> None:
    """Says what pressing it does to what was edited by hand."""
    if draft.is_edited():
        label = "Drop my edits" if chosen else "Replace my edits"
    else:
        label = "Chosen" if chosen else "Use this"
    st.button(label, key=key, icon=":material/check:" if chosen else None, on_click=use, args=(draft, what))


def _paper_presets(draft: Draft, papers: dict[str, Preset]) -> None:
    """Too many for cards: one list, with what the chosen one needs."""
    _point("paper-preset", draft, "preset", papers)
    name = st.selectbox(
        "Experiments of the papers, for GPU nodes", list(papers), index=None, key="paper-preset",
        format_func=lambda n: f"{papers[n].group}: {papers[n].title}", placeholder="Choose one",
        on_change=_chosen, args=("paper-preset", draft, lambda n: _use(draft, papers[n])),
    )  # fmt: skip
    if name is None:
        return
    st.caption(text.markdown(papers[name].description))
    chosen = draft.source == f"preset {name}"
    _still(draft, chosen)
    _use_button(draft, chosen, "use-paper-preset", _use, papers[name])


def _recent_runs(draft: Draft, asked: Asked) -> None:
    runs = {str(run.id): run for run in asked("runs", lambda: client().list_runs(limit=RECENT).runs) or ()}
    _point("recent-run", draft, "run", runs)
    run_id = st.selectbox(
        "Clone a recent run", list(runs), index=None, key="recent-run", format_func=lambda i: _run_words(runs[i]),
        placeholder="Choose one" if runs else "None yet", disabled=not runs,
        on_change=_chosen, args=("recent-run", draft, lambda i: _use_run(draft, i)),
    )  # fmt: skip
    if run_id is None:
        return
    chosen = draft.source == f"run {run_id}"
    _still(draft, chosen)
    _use_button(draft, chosen, "use-recent-run", _use_run, run_id)


def _point(key: str, draft: Draft, kind: str, options: Collection[str]) -> None:
    """A list shows what the draft came from, until something else is chosen in it."""
    if key not in st.session_state or st.session_state.get(f"{key}.source") != draft.source:
        st.session_state[f"{key}.source"] = draft.source
        ours, _, name = draft.source.partition(" ")
        st.session_state[key] = name if ours == kind and name in options else None


def _chosen(key: str, draft: Draft, use: Callable[[str], None]) -> None:
    """What is chosen in a list is loaded at once, unless that would throw edits away: then a button asks."""
    name = st.session_state[key]
    if name is not None and not draft.is_edited():
        use(name)


def _still(draft: Draft, chosen: bool) -> None:
    if not chosen:
        st.warning(f"The draft is still {_named(draft)}.", icon=":material/edit:")


def _named(draft: Draft) -> str:
    """Which config Start would start, as Markdown."""
    words = text.markdown(draft.title or "your own")
    return f"**{words}**{', with your edits' if draft.is_edited() else ''}"


def _run_words(run: RunSummary) -> str:
    reached = f", {text.percent(run.accuracy)}" if run.accuracy is not None else ""
    return f"{run.name}: {text.method(run.method)}, step {run.step}, {run.state}{reached}, {text.ago(run.created_at)}"


def _use_run(draft: Draft, run_id: str) -> None:
    try:
        run = client().get_run(run_id)
    except (ApiError, ApiUnreachable) as error:
        st.toast(str(error))
        return
    draft.load(run.config, f"run {run_id}", f"clone of {run.name}")
    _put_in_address(draft)


def _use(draft: Draft, preset: Preset) -> None:
    draft.load(preset.config, f"preset {preset.name}", f"preset {preset.title}")
    _put_in_address(draft)


def _editor(draft: Draft, form: list[Group], config: dict[str, Any], asked: Asked, at: Places) -> None:
    # While the text is no YAML, the form shows the config before; changing it would throw the text away.
    broken = bool(draft.yaml_problem)
    answer = None if broken else asked("answer", lambda: _ask(config))
    if answer is None or asked.failed is not None:  # what is known is of another config
        answer = Answer(None, [])
    with at.form:
        untold = list(answer.problems)
        for group in form:
            mine = [p for p in untold if group.owns(p.field)]
            untold = [p for p in untold if p not in mine]
            _group(draft, group, {p.field: p.message for p in mine}, broken, asked)
    with at.side:
        draft.put_text(config)
        st.text_area("Config as YAML", key=YAML_KEY, height=520, on_change=_read_yaml, args=(draft,))
        draft.text_drawn = True
        st.caption("Edit either side: the form follows the text (Ctrl+Enter applies it), the text follows the form.")
        with at.verdict.container():
            _verdict(draft, answer, form)
        with at.above:
            _start(draft, answer, config, asked)
            if answer.forecast is not None:
                with st.container(border=True, key="forecast"):
                    outlook.show(answer.forecast, asked("price", _price))


def _ask(config: dict[str, Any]) -> Answer:
    """Asked again after a while only: a rerun that changed nothing costs nothing, a run that has finished counts."""
    asked = json.dumps(config, sort_keys=True, default=str)
    known: tuple[str, float, Answer] | None = st.session_state.get("new.answer")
    if known is not None and known[0] == asked and time.monotonic() < known[1] + ANSWER_S:
        return known[2]
    try:
        answer = Answer(client().forecast_config(config), [])
    except ApiError as error:
        if error.problem.type != "/problems/invalid-config":
            raise
        answer = Answer(None, error.problem.errors)
    st.session_state["new.answer"] = (asked, time.monotonic(), answer)
    return answer


def _price() -> tuple[float, str] | None:
    """The price of a GPU-hour and its currency, when there is one."""
    settings = client().settings()
    return None if settings.price_per_gpu_hour is None else (settings.price_per_gpu_hour, settings.currency)


def _read_yaml(draft: Draft) -> None:
    draft.load_text(st.session_state[YAML_KEY])


def _back_to_form(draft: Draft) -> None:
    draft.yaml_problem = ""
    draft.told = {}


def _verdict(draft: Draft, answer: Answer, form: list[Group]) -> None:
    """Which draft it is, and whether it is ready; every problem by the form's words, its field and the text's line."""
    if draft.yaml_problem:
        st.error(text.markdown(draft.yaml_problem), icon=":material/error:")
        st.button("Drop the text, back to the form", key="back-to-form", on_click=_back_to_form, args=(draft,))
    elif answer.forecast is not None:
        st.success(f"Ready to start: {_named(draft)}", icon=":material/check_circle:")
    elif not answer.problems:
        st.warning(
            f"Not checked: {_named(draft)}. It is checked once the API answers. What you edit is kept.",
            icon=":material/cloud_off:",
        )
    else:
        count = len(answer.problems)
        lines = [f"Not ready: {_named(draft)}. {count} {'field is' if count == 1 else 'fields are'} not accepted"]
        for p in answer.problems:
            where = ", ".join(name_in_words(form, path) for path in about(form, p.field, p.message))
            place = place_of(draft.text, p.field)
            lines.append(f"- **{text.markdown(where)}**{text.markdown(place)}: {text.markdown(p.message)}")
        st.error("\n".join(lines), icon=":material/error:")
    kind, _, run_id = draft.source.partition(" ")
    if kind == "run":
        words = text.markdown(f"The run of this clone: {draft.title.removeprefix('clone of ')}")
        st.page_link("screens/run.py", label=words, query_params={"run": run_id}, icon=":material/content_copy:")


def _start(draft: Draft, answer: Answer, config: dict[str, Any], asked: Asked) -> None:
    missing = asked("scope", lambda: lacks("run"))
    ready = answer.forecast is not None and not draft.yaml_problem and missing is None
    pressed = st.button(
        "Start run", type="primary", icon=":material/play_arrow:", key="start-run", disabled=not ready, width="stretch",
        help=missing,
    )  # fmt: skip
    if missing:
        st.info(missing, icon=":material/lock:")
    if not pressed:
        return
    try:
        run = client().create_run(config)
    except ApiError as error:  # the world changed since the check
        show_refused(error)
    except ApiUnreachable as error:
        st.error(f"Not started: {error.why}. Press again when the API is back.")
    else:
        st.switch_page("screens/run.py", query_params={"run": str(run.id)})


def _group(draft: Draft, group: Group, problems: dict[str, str], disabled: bool, asked: Asked) -> None:
    own = {f.path for f in group.fields}
    with st.container(border=True, key=f"group-{group.title.lower()}"):
        st.html(f'<div class="pc-heading"><h2>{group.title}</h2><span>{group.words}</span></div>')
        for path, message in problems.items():
            if path not in own:  # about a whole section
                where = ", ".join(name_in_words([group], p) for p in about([group], path, message))
                _problem(f"{where}: {message}")
        wide = [f for f in group.fields if f.kind in ("text", "choices", "mapping")]
        choices = [f for f in group.fields if f.is_variant_choice]
        flags = [f for f in group.fields if f.kind == "flag"]
        rest = [f for f in group.fields if f not in wide and f not in choices and f not in flags]
        if len(wide) == len(rest) == 1:
            wide, rest = wide + rest, []
        sets = (asked("sets", _prompt_sets) if group.title == "Data" else None) or []
        for fields, columns in ((choices, 2), (wide, 2), (rest, 3), (flags, 3)):
            for start in range(0, len(fields), columns):
                for place, field in zip(st.columns(columns), fields[start : start + columns], strict=False):
                    with place:
                        if field.path in PROMPT_FIELDS:
                            _prompts(draft, field, sets, disabled)
                        else:
                            _field(draft, field, disabled)
                        if field.path in problems:
                            _problem(problems[field.path])
        if group.title == "Data":
            with st.container(horizontal=True):
                st.page_link("screens/data.py", label="Upload or look at prompt sets", icon=":material/database:")
                st.page_link("screens/rewards.py", label="Try a reward", icon=":material/science:")


def _prompt_sets() -> list[PromptSetOut]:
    return client().list_prompt_sets(limit=PROMPT_SETS).prompt_sets


def _problem(words: str) -> None:
    st.html(f'<div class="pc-field-problem" role="alert">{escape(words)}</div>')


def _prompts(draft: Draft, field: Field, sets: list[PromptSetOut], disabled: bool) -> None:
    """An uploaded set, or whatever else is typed: a path, or a data set of the hub."""
    words = {
        s.ref: f"{s.name} · {text.counted(s.n_prompts, 'prompt')}, {text.size(s.n_bytes)} · {s.version[:8]}"
        for s in sets
    }
    start = draft.start(field) or None
    typed = st.session_state.get(draft.key(field.id))
    options = list(dict.fromkeys(source for source in (start, typed, *words) if source))
    st.selectbox(
        field.label, options, index=0 if start else None, key=draft.key(field.id), accept_new_options=True,
        format_func=lambda source: words.get(source, source), disabled=disabled, placeholder=field.example,
        help=f"{_help(field)}\n\nChoose an uploaded set, or type a path or a data set of the hub and press Enter.",
    )  # fmt: skip


def _field(draft: Draft, field: Field, disabled: bool) -> None:
    key, start = draft.key(field.id), draft.start(field)
    label, help_words = field.label, _help(field)
    if field.kind == "choice":
        index = field.options.index(start) if start in field.options else 0
        disabled = disabled or len(field.options) == 1
        st.selectbox(
            label, field.options, index=index, key=key, help=help_words, disabled=disabled, format_func=_option
        )
    elif field.kind == "flag":
        st.toggle(label, value=bool(start), key=key, help=help_words, disabled=disabled)
    elif field.kind == "text":
        draw = st.text_area if "\n" in f"{start}{field.example}" else st.text_input  # one line would lose the others
        draw(label, value=start, key=key, help=help_words, disabled=disabled, placeholder=field.example)
    elif field.kind == "choices":
        st.multiselect(label, field.options, default=start, key=key, help=help_words, disabled=disabled)
    elif field.kind == "mapping":
        st.text_area(
            label, value=start, key=key, help=help_words, disabled=disabled, height=100, placeholder=field.example
        )  # fmt: skip
    elif field.kind == "integer":
        st.number_input(
            label, value=start, step=1, key=key, help=help_words, disabled=disabled, placeholder=_unset(field)
        )
    else:
        st.number_input(
            label, value=start, step=field.step, format="%g", key=key, help=help_words, disabled=disabled,
            placeholder=_unset(field),
        )  # fmt: skip


def _option(name: object) -> str:
    return {"all": "All rollouts", "pods": "PODS", "None": "unset"}.get(str(name)) or text.method(str(name))


def _unset(field: Field) -> str:
    return "no limit" if field.path.startswith("budget.") else "unset" if field.nullable else ""


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "unset" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _help(field: Field) -> str:
    parts = [text.markdown(field.help)] if field.help else []
    bounds = []
    if field.minimum is not None:
        bounds.append(f"from {_short(field.minimum)}")
    if field.maximum is not None:
        bounds.append(f"to {_short(field.maximum)}")
    if bounds:
        parts.append(" ".join(bounds).capitalize() + ".")
    if not field.required:
        parts.append(f"Default: {_short(field.default)}.")
    if field.paper is not None:
        parts.append(f"In the paper: {_short(field.paper)}.")
    parts.append(f"`{field.path}`")
    return "\n\n".join(parts)


render()
