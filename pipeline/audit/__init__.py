"""Auditing somebody's rollouts: what of them was in vain, and what other methods would have spent on the same stream.

`audit(path, settings)` reads a log (verl, TRL, CSV, or a run of ours) and gives a `Report`; `page(report)` makes it a
web page that needs no network. `bounded(path, settings)` does both in the sandbox, with hard limits, for files that
strangers send. docs/audit.md says what the figures mean and how far to trust them.

Importing this loads neither NumPy nor Arrow: the API and the command line know the words without the work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.audit.child import Bounds, bounded
from pipeline.audit.html import page
from pipeline.audit.report import AuditSettings, Format, Interval, Report
from pipeline.audit.rows import BadLog
from pipeline.sandbox.apart import NoSandbox

__all__ = ["AuditSettings", "BadLog", "Bounds", "Format", "Interval", "NoSandbox", "Report", "audit", "bounded", "page"]


def audit(path: Path, settings: AuditSettings, tell: Callable[[int, int], None] = lambda done, of: None) -> Report:
    """Raises BadLog when the log cannot be read or replayed, or the settings contradict one another.

    tell: called after each replay with how many are done, and of how many.
    """
    from pipeline.audit.study import study

    return study(path, settings, tell)
