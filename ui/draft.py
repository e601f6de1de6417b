"""The config that the new-run page edits, kept in the browser session.

In a module of its own: a page's code runs anew every time, and a class in it would be a new class every time.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui.form import Field, fits, lookup, written


class Draft:
    """The config being edited. A new `version` gives every widget a fresh start from `initial`."""

    def __init__(self) -> None:
        self.version = 0
        self.source = ""
        self.initial: dict[str, Any] = {}
        self.yaml = ""
        self.yaml_problem = ""

    def load(self, config: dict[str, Any], source: str | None = None) -> None:
        self.version += 1
        self.initial = config
        self.source = self.source if source is None else source
        self.yaml_problem = ""

    def key(self, field_id: str) -> str:
        return f"draft{self.version}.{field_id}"

    def value(self, field: Field) -> Any:
        """What the field's widget holds; before it is drawn, what it will start with."""
        return written(field, st.session_state.get(self.key(field.id), self.start(field)))

    def start(self, field: Field) -> Any:
        member = lookup(self.initial, f"{field.path.rpartition('.')[0]}.name")
        if field.variant and member is not None and member != field.variant:
            return field.default  # of a member of the union that the draft did not choose
        value = lookup(self.initial, field.path, field.default)
        if field.kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return value if fits(field, value) else field.default

    def choice(self, path: str, default: str) -> str:
        return str(st.session_state.get(self.key(path)) or lookup(self.initial, path) or default)
