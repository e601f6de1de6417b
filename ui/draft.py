"""The config that the new-run page edits, kept in the browser session: as a form and as YAML, as it was touched last.

In a module of its own: a page's code runs anew every time, and a class in it would be a new class every time.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui.form import Field, Group, config_of, fits, lookup, with_unknown, written

YAML_KEY = "new.yaml"


class Draft:
    """The config being edited. A new `version` gives every widget a fresh start from `initial`.

    told: the config that the YAML text stands for; None: the text is new, and stands for what the form shows next.
    """

    def __init__(self) -> None:
        self.version = 0
        self.source = ""
        self.initial: dict[str, Any] = {}
        self.told: dict[str, Any] | None = {}
        self.yaml_problem = ""

    def load(self, config: dict[str, Any], source: str | None = None) -> None:
        self.version += 1
        self.initial = config
        self.source = self.source if source is None else source
        self.told = {}
        self.yaml_problem = ""

    def load_text(self, config: dict[str, Any]) -> None:
        """The same from YAML that a person wrote: their text stays as they wrote it."""
        self.load(config)
        self.told = None

    def config(self, form: list[Group]) -> dict[str, Any]:
        """What the form says, and what the loaded config says that no field of the form shows."""
        return with_unknown(form, config_of(form, self.value), self.initial)

    def tells_anew(self, config: dict[str, Any]) -> bool:
        """Whether the YAML text has to be written anew, for the form has changed since."""
        if self.told is None or self.yaml_problem:
            self.told = config if self.told is None else self.told
            return False
        changed, self.told = self.told != config, config
        return changed or YAML_KEY not in st.session_state

    def key(self, field_id: str) -> str:
        return f"draft{self.version}.{field_id}"

    def value(self, field: Field) -> Any:
        """What the field's widget holds; before it is drawn, what it will start with.

        A value that the widget cannot show stands until the widget is touched, so that the API names it.
        """
        start = self.start(field)
        held = st.session_state.get(self.key(field.id), start)
        given = lookup(self.initial, field.path, field.default)
        if held == start and self._is_chosen(field) and not fits(field, given):
            return given
        return written(field, held)

    def start(self, field: Field) -> Any:
        if not self._is_chosen(field):
            return field.default
        value = lookup(self.initial, field.path, field.default)
        if field.kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return value if fits(field, value) else field.default

    def _is_chosen(self, field: Field) -> bool:
        """Whether the field is of the member of the union that the loaded config chose."""
        member = lookup(self.initial, f"{field.path.rpartition('.')[0]}.name")
        return not field.variant or member is None or member == field.variant

    def choice(self, path: str, default: str) -> str:
        return str(st.session_state.get(self.key(path)) or lookup(self.initial, path) or default)
