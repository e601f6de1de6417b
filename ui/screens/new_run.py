"""Start a run: from a preset, another run or nothing; in a form made from the config's schema, or as YAML.

The draft is one config. The form edits it field by field; the YAML switch edits it as a whole. Either way the API
checks every change, and what it finds is told at the field.
"""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st
import yaml

from api.client import ApiError, ApiUnreachable
from api.schemas import ConfigCheck, Preset
from ui import text
from ui.connection import api_errors, client, show_refused
from ui.draft import Draft
from ui.form import Field, Group, about, config_of, groups, lookup, name_in_words


def render() -> None:
    st.title("New run", anchor=False)
    with api_errors():
        schema, presets = _schema_and_presets()
        draft = _draft(presets)
        _presets(draft, presets)
        _editor(draft, schema)


def _schema_and_presets() -> tuple[dict[str, Any], list[Preset]]:
    """Both are constant while the API runs, so a session asks once."""
    if "new.schema" not in st.session_state:
        st.session_state["new.schema"] = (client().config_schema(), client().presets())
    schema, presets = st.session_state["new.schema"]
    return schema, sorted(presets, key=lambda p: lookup(p.config, "method.name") != "pilot_commit")


def _draft(presets: list[Preset]) -> Draft:
    draft = st.session_state.get("new.draft")
    if not isinstance(draft, Draft):
        draft = st.session_state["new.draft"] = Draft()
        if presets:
            draft.load(presets[0].config, f"preset {presets[0].name}")
    origin = st.query_params.get("from")
    if origin and draft.source != f"run {origin}":
        run = client().get_run(origin)
        draft.load(run.config, f"run {origin}")
    return draft


def _presets(draft: Draft, presets: list[Preset]) -> None:
    if not presets:
        return
    with st.container(key="presets", horizontal=True, gap="small"):
        for preset in (p for p in presets if not p.group):
            chosen = draft.source == f"preset {preset.name}"
            with st.container(border=True, key=f"preset-{preset.name}{'-chosen' if chosen else ''}", gap="small"):
                st.markdown(f"**{text.markdown(preset.title)}**")
                st.caption(text.markdown(preset.description))
                st.button(
                    "Chosen" if chosen else "Use this",
                    key=f"use-{preset.name}",
                    icon=":material/check:" if chosen else None,
                    on_click=_use,
                    args=(draft, preset),
                )

    papers = {p.name: p for p in presets if p.group}
    if papers:
        _paper_presets(draft, papers)


def _paper_presets(draft: Draft, papers: dict[str, Preset]) -> None:
    """Too many for cards: one list, with what the chosen one needs and a button."""
    with st.container(border=True, key="paper-presets", horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Experiments of the papers, for GPU nodes", list(papers), index=None, key="paper-preset",
            format_func=lambda n: f"{papers[n].group}: {papers[n].title}", placeholder="Choose one",
        )  # fmt: skip
        if name is None:
            return
        preset = papers[name]
        chosen = draft.source == f"preset {name}"
        st.button(
            "Chosen" if chosen else "Use this",
            key="use-paper-preset",
            icon=":material/check:" if chosen else None,
            on_click=_use,
            args=(draft, preset),
        )
    st.caption(text.markdown(preset.description))


def _use(draft: Draft, preset: Preset) -> None:
    if "from" in st.query_params:
        del st.query_params["from"]
    draft.load(preset.config, f"preset {preset.name}")
    st.session_state["new.as_yaml"] = False


def _editor(draft: Draft, schema: dict[str, Any]) -> None:
    as_yaml = bool(st.session_state.get("new.as_yaml"))
    form = groups(schema, draft.choice)
    config = draft.initial if as_yaml else config_of(form, draft.value)
    check = client().validate_config(config)
    if draft.yaml_problem:  # the problems of the last text that was YAML are not those of this one
        check = ConfigCheck(valid=False, config=None, problems=[])
    left, right = st.columns([2, 1], gap="medium")
    with left:
        untold = list(check.problems)
        for group in form:
            mine = [p for p in untold if group.owns(p.field)]
            untold = [p for p in untold if p not in mine]
            _group(draft, group, {p.field: p.message for p in mine}, disabled=as_yaml)
    with right, st.container(key="yaml-side"):
        _verdict(draft, check, form)
        _start(draft, check, config)
        st.toggle("Edit as YAML", key="new.as_yaml", on_change=_switch, args=(draft, config))
        if as_yaml:
            st.text_area(
                "Config as YAML", key="new.yaml", height=640, on_change=_read_yaml, args=(draft,),
                label_visibility="collapsed",
            )  # fmt: skip
            st.caption("Ctrl+Enter applies the text. The form shows it and can be edited after switching back.")
        else:
            st.code(text.yaml(config), language="yaml", height=640)


def _switch(draft: Draft, config: dict[str, Any]) -> None:
    draft.load(config)
    if st.session_state["new.as_yaml"]:
        st.session_state["new.yaml"] = text.yaml(config)


def _read_yaml(draft: Draft) -> None:
    try:
        config = yaml.safe_load(st.session_state["new.yaml"])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        draft.yaml_problem = f"This is not YAML{place}: {getattr(error, 'problem', None) or 'check the indentation'}."
        return
    if not isinstance(config, dict):
        draft.yaml_problem = "A config is a mapping of fields, such as `seed: 0`."
        return
    draft.load(config)


def _verdict(draft: Draft, check: ConfigCheck, form: list[Group]) -> None:
    """Ready or not; every problem by the form's words and the field's name, as the field may be out of sight."""
    if draft.yaml_problem:
        st.error(draft.yaml_problem, icon=":material/error:")
    elif check.valid:
        st.success("Ready to start", icon=":material/check_circle:")
    else:
        count = len(check.problems)
        lines = [f"{count} {'field is' if count == 1 else 'fields are'} not accepted"]
        for p in check.problems:
            where = ", ".join(name_in_words(form, path) for path in about(form, p.field, p.message))
            lines.append(f"- **{text.markdown(where)}**: {text.markdown(p.message)}")
        st.error("\n".join(lines), icon=":material/error:")


def _start(draft: Draft, check: ConfigCheck, config: dict[str, Any]) -> None:
    ready = check.valid and not draft.yaml_problem
    if not st.button(
        "Start run", type="primary", icon=":material/play_arrow:", key="start-run", disabled=not ready, width="stretch"
    ):
        return
    try:
        run = client().create_run(config)
    except ApiError as error:  # the world changed since the check
        show_refused(error)
    except ApiUnreachable as error:
        st.error(f"Not started: {error.why}. Press again when the API is back.")
    else:
        st.switch_page("screens/run.py", query_params={"run": str(run.id)})


def _group(draft: Draft, group: Group, problems: dict[str, str], disabled: bool) -> None:
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
        for fields, columns in ((choices, 2), (wide, 2), (rest, 3), (flags, 3)):
            for start in range(0, len(fields), columns):
                for place, field in zip(st.columns(columns), fields[start : start + columns], strict=False):
                    with place:
                        _field(draft, field, disabled)
                        if field.path in problems:
                            _problem(problems[field.path])


def _problem(words: str) -> None:
    st.html(f'<div class="pc-field-problem" role="alert">{escape(words)}</div>')


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
        st.text_input(label, value=start or "", key=key, help=help_words, disabled=disabled, placeholder=field.example)
    elif field.kind == "choices":
        st.multiselect(label, field.options, default=start, key=key, help=help_words, disabled=disabled)
    elif field.kind == "mapping":
        st.text_area(
            label, value=text.yaml(start) if start else "", key=key, help=help_words, disabled=disabled, height=100,
            placeholder=field.example,
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
    return {"all": "All rollouts", "pods": "PODS"}.get(str(name)) or text.method(str(name))


def _unset(field: Field) -> str:
    return "no limit" if field.path.startswith("budget.") else "unset" if field.nullable else ""


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return ", ".join(map(str, value)) or "none"
    return "unset" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


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
    parts.append(f"`{field.path}`")
    return "\n\n".join(parts)


render()
