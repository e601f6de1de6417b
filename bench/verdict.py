"""How every measurement ends: its figures, the bounds that it missed, and the exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def finish(figures: Mapping[str, Any], missed: Sequence[str], as_json: bool) -> int:
    """Print the figures as one JSON object if asked for, and each missed bound to stderr. Returns the exit status."""
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps(figures))
    return 1 if missed else 0
