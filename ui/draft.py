"""The config that the new-run page edits, kept in the browser session: as a form and as YAML, as it was touched last.

In a module of its own: a page's code runs anew every time, and a class in it would be a new class every time.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui.form import Field, Group, config_of, fits, lookup, read_yaml, with_unknown, written
from ui.text import yaml as to_yaml

YAML_KEY = "new.yaml"


class Draft:
    """The config being edited. A new `version` gives every widget a fresh start from `initial`.

    source, title: what it was loaded from, "preset NAME" or "run ID", and how a person calls that.
    said: what the form said last. loaded: what it said before anything was edited.
    told: the config that the YAML text stands for; None: the text is new, and stands for what the form says next.
    """

    def __init__(self) -> None:
        self.version = 0
        self.source = ""
        self.title = ""
        self.initial: dict[str, Any] = {}
        self.form: list[Group] = []
        self.said: dict[str, Any] | None = None
        self.loaded: dict[str, Any] | None = None
        self.text = ""
        self.text_drawn = False
        self.told: dict[str, Any] | None = {}
        self.yaml_problem = ""

    def load(self, config: dict[str, Any], source: str, title: str) -> None:
        self._start_from(config)
        self.source, self.title = source, title
        self.loaded = None

    def load_text(self, text: str) -> None:
        """The same from YAML that a person wrote: their text stays as they wrote it, and what was loaded is known."""
        self.text = text
        try:
            self._start_from(read_yaml(text))
        except ValueError as error:
            self.yaml_problem = str(error)
        else:
            self.told = None

    def _start_from(self, config: dict[str, Any]) -> None:
        self.version += 1
        self.initial = config
        self.said = None
        self.told = {}
        self.yaml_problem = ""

    def recover(self) -> None:
        """Once Streamlit has forgotten the widgets, for another page was drawn: they start from what was said last."""
        if self.said is not None and not any(str(key).startswith(self.key("")) for key in st.session_state):
            self.version += 1
            self.initial = self.said

    def config(self, form: list[Group]) -> dict[str, Any]:
        """What the form says, and what the loaded config says that no field of the form shows."""
        self.form = form
        self.said = self._now()
        self.loaded = self.said if self.loaded is None else self.loaded
        self.told = self.said if self.told is None else self.told
        return self.said

    def is_edited(self) -> bool:
        return bool(self.yaml_problem) or (self.loaded is not None and self._now() != self.loaded)

    def _now(self) -> dict[str, Any]:
        return with_unknown(self.form, config_of(self.form, self.value), self.initial)

    def put_text(self, config: dict[str, Any]) -> None:
        """Gives the text area, right before it is drawn, the YAML that it does not show yet.

        A run that ends before it has drawn the text area has shown nothing: hence `text_drawn`, set after.
        """
        if not self.yaml_problem and self.told != config:
            self.text, self.text_drawn, self.told = to_yaml(config), False, config
        if not self.text_drawn or YAML_KEY not in st.session_state:
            self.text_drawn = False
            st.session_state[YAML_KEY] = self.text

    def key(self, field_id: str) -> str:
        return f"draft{self.version}.{field_id}"

    def value(self, field: Field) -> Any:
        """What the field's widget holds. Until it is touched, what was loaded: as it was, and also what the widget
        cannot show, so that the API names it.
        """
        start = self.start(field)
        held = st.session_state.get(self.key(field.id), start)
        if held == start and self._is_chosen(field):
            return lookup(self.initial, field.path, field.default)
        return written(field, held)

    def start(self, field: Field) -> Any:
        """What the field's widget starts with: text where a person writes text."""
        value = lookup(self.initial, field.path, field.default) if self._is_chosen(field) else field.default
        if not fits(field, value):
            value = field.default
        if field.kind == "mapping" and not isinstance(value, str):
            return to_yaml(value) if value else ""
        if field.kind == "number" and value is not None:
            return float(value)
        return value or "" if field.kind == "text" else value

    def _is_chosen(self, field: Field) -> bool:
        """Whether the field is of the member of the union that the loaded config chose."""
        member = lookup(self.initial, f"{field.path.rpartition('.')[0]}.name")
        return not field.variant or member is None or member == field.variant

    def choice(self, path: str, default: str) -> str:
        return str(st.session_state.get(self.key(path)) or lookup(self.initial, path) or default)
