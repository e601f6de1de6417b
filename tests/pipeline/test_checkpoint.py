from __future__ import annotations

import numpy as np
import pytest

from pipeline.checkpoint import load_state, save_checkpoint
from pipeline.rundir import checkpoints, saved

STATE = {
    "step": 3,
    "buffer": [{"data": {"tokens": np.arange(n, dtype=np.int32), "x": np.ones(n, np.float32)}} for n in range(5)],
    "none": None,
    "text": "\u00e4",
    "empty": np.zeros(0, np.uint32),
}


def engine(folder):
    (folder / "weights").write_bytes(b"w")


def test_round_trip_and_retention(tmp_path):
    for step in range(1, 5):
        save_checkpoint(tmp_path, step, {**STATE, "step": step}, engine, keep=2)
    assert [s for s, _ in checkpoints(tmp_path)] == [3, 4]
    step, folder = checkpoints(tmp_path)[-1]
    state = load_state(folder)
    assert state["step"] == step == 4 and state["text"] == "\u00e4" and state["none"] is None
    for n, entry in enumerate(state["buffer"]):
        assert entry["data"]["tokens"].dtype == np.int32 and (entry["data"]["tokens"] == np.arange(n)).all()
        assert entry["data"]["x"].dtype == np.float32 and len(entry["data"]["x"]) == n
    assert len(state["empty"]) == 0
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_000003", "step_000004"]


def test_a_failed_save_leaves_the_earlier_one(tmp_path):
    save_checkpoint(tmp_path, 1, STATE, engine, keep=1)

    def disk_full(folder):
        engine(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, 2, STATE, disk_full, keep=1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000001"]


def test_half_written_folders_are_no_checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    (root / ".writing_000009").mkdir(parents=True)
    (root / ".deleting_step_000001").mkdir()
    (root / "step_9").mkdir()
    assert checkpoints(tmp_path) == []
    save_checkpoint(tmp_path, 9, STATE, engine, keep=1)
    assert [s for s, _ in checkpoints(tmp_path)] == [9]


def test_the_most_accurate_are_kept_beside_the_newest(tmp_path):
    for step, accuracy in enumerate([0.3, 0.8, None, 0.5, 0.8, 0.1, None], 1):
        save_checkpoint(tmp_path, step, STATE, engine, keep=1, keep_best=1, accuracy=accuracy)
    assert [(c.step, c.accuracy) for c in saved(tmp_path)] == [(5, 0.8), (7, None)], "of equal ones the newer"
    save_checkpoint(tmp_path, 8, STATE, engine, keep=1, keep_best=0, accuracy=0.0)
    assert [c.step for c in saved(tmp_path)] == [8]


def test_what_a_killed_process_left_is_removed(tmp_path):
    root = tmp_path / "checkpoints"
    for name in (".writing_000002", ".deleting_step_000001"):
        (root / name).mkdir(parents=True)
        (root / name / "weights").write_bytes(b"w")
    save_checkpoint(tmp_path, 3, STATE, engine, keep=1)
    assert [p.name for p in root.iterdir()] == ["step_000003"]
