"""Atomic, complete checkpoints: weights, optimiser, allocator, counters. No pickle is ever loaded.

A checkpoint is written into a hidden folder, made durable, and renamed to `checkpoints/step_000042`. So a folder of
that name is whole, whenever the process or the machine dies. Arrays of the allocator's state go into one safetensors
file, everything else into JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

_NAME = re.compile(r"step_(\d{6,})")


def checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every whole checkpoint, oldest first."""
    found = [(m, p) for p in (run_dir / "checkpoints").glob("step_*") if (m := _NAME.fullmatch(p.name))]
    return sorted((int(m[1]), p) for m, p in found)


def save_checkpoint(
    run_dir: Path, step: int, state: dict[str, Any], save_engine: Callable[[Path], None], keep: int
) -> Path:
    """Writes the checkpoint of `step`, then deletes all but the newest `keep`. Returns its folder.

    Raises OSError when it cannot be written (disk full); the earlier checkpoints are then untouched.
    """
    root = run_dir / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"step_{step:06d}"
    if final.exists():
        return final
    draft = root / f".writing_{step:06d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        save_engine(draft)
        _save_tree(draft, state)
        for path in (*draft.rglob("*"), draft):
            _fsync(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    draft.rename(final)
    _fsync(root)
    for _, old in checkpoints(run_dir)[:-keep]:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        doomed = root / f".deleting_{old.name}"
        old.rename(doomed)
        shutil.rmtree(doomed)
    return final


def load_state(folder: Path) -> dict[str, Any]:
    """The `state` that save_checkpoint was given, arrays included."""
    tree = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    flat = load_file(folder / "state.safetensors") if (folder / "state.safetensors").exists() else {}
    return _unpack(tree, flat)  # type: ignore[no-any-return]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _save_tree(folder: Path, state: dict[str, Any]) -> None:
    arrays: dict[str, list[npt.NDArray[Any]]] = {}
    tree = _pack(state, arrays, {})
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")
    if arrays:
        save_file({kind: np.concatenate(parts) for kind, parts in arrays.items()}, folder / "state.safetensors")


def _pack(value: Any, arrays: dict[str, list[npt.NDArray[Any]]], ends: dict[str, int]) -> Any:
    """Replaces every array by {"@": dtype, start, end}: thousands of small ones become one long one per type."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise TypeError(f"only vectors can be saved, not shape {value.shape}")
        kind = str(value.dtype)
        start = ends.get(kind, 0)
        ends[kind] = start + len(value)
        arrays.setdefault(kind, []).append(value)
        return {"@": kind, "start": start, "end": ends[kind]}
    if isinstance(value, dict):
        return {key: _pack(item, arrays, ends) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, arrays, ends) for item in value]
    return value


def _unpack(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if "@" in value:
            return arrays[value["@"]][value["start"] : value["end"]]
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value
