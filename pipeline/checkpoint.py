"""Atomic, complete checkpoints: weights, optimiser, allocator, counters. Nothing of ours is a pickle, which could run
code when it is loaded; verl's own files, which its engine saves and loads, are.

A checkpoint is written into a hidden folder, made durable, and renamed to `checkpoints/step_000042`. So a folder of
that name is whole, whenever the process or the machine dies. Arrays of the allocator's state go into one safetensors
file, everything else into JSON.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from pipeline import rundir
from pipeline.rundir import checkpoints

_FULL = 1 << 20  # bytes free: some file systems refuse the last ones


def save_checkpoint(
    run_dir: Path,
    step: int,
    state: dict[str, Any],
    save_engine: Callable[[Path], None],
    keep: int,
    keep_best: int = 0,
    accuracy: float | None = None,
) -> Path:
    """Writes the checkpoint of `step`; then deletes all but the newest `keep` and the `keep_best` most accurate ones.

    accuracy: of the policy in it, None when it was not evaluated. Returns its folder.

    Raises OSError when it cannot be written (disk full); the earlier checkpoints are then untouched.
    """
    root = run_dir / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"step_{step:06d}"
    if final.exists():
        return final
    for left in root.glob(".*_*"):  # by a process that was killed while it wrote or deleted
        shutil.rmtree(left)
    draft = root / f".writing_{step:06d}"
    draft.mkdir()
    try:
        save_engine(draft)
        _save_tree(draft, state)
        (draft / "accuracy.json").write_text(json.dumps({"sampled_accuracy": accuracy}) + "\n", encoding="utf-8")
        for path in (*draft.rglob("*"), draft):
            _fsync(path)
    except BaseException as error:
        full = shutil.disk_usage(root).free < _FULL  # not every library says so
        shutil.rmtree(draft, ignore_errors=True)
        if full and not isinstance(error, OSError):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft)) from error
        raise
    draft.rename(final)
    _fsync(root)
    older = checkpoints(run_dir)[:-keep]
    best = {folder for _, folder in rundir.most_accurate(run_dir)[:keep_best]}
    for _, old in older:
        if old in best:
            continue
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
