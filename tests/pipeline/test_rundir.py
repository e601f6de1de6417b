"""What others read of a run directory: nothing outside it, and logs by offset."""

from __future__ import annotations

import os

import pytest

from pipeline import rundir


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "run"
    (folder / "checkpoints/step_000001/policy").mkdir(parents=True)
    (folder / "checkpoints/step_000001/policy/model").write_bytes(b"weights")
    (folder / "checkpoints/step_000001/link").symlink_to(tmp_path / "secret")
    (folder / "checkpoints/step_000001/out").symlink_to(tmp_path)
    (folder / "checkpoints/step_000002").symlink_to(tmp_path)
    os.mkfifo(folder / "checkpoints/step_000001/pipe")
    return folder


def test_a_file_is_read(run_dir):
    with rundir.open_file(run_dir, "checkpoints/step_000001/policy/model") as file:
        assert file.read() == b"weights"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "checkpoints/../../secret",
        "/etc/passwd",
        "checkpoints/step_000001/link",
        "checkpoints/step_000001/out/secret",
        "checkpoints/step_000002/secret",
        "checkpoints/step_000001/pipe",
        "checkpoints/step_000001",
        "checkpoints/step_000001/policy/model/more",
        "checkpoints//step_000001/policy/model",
        "./checkpoints/step_000001/policy/model",
        "checkpoints/step_000001/policy/model\x00",
        "nothing",
        "x" * 5000,
        "",
    ],
)
def test_nothing_else_is(run_dir, path):
    with pytest.raises(FileNotFoundError):
        rundir.open_file(run_dir, path)


def test_files_of_a_folder_without_its_links(run_dir):
    assert rundir.files(run_dir, "checkpoints/step_000001") == [("checkpoints/step_000001/policy/model", 7)]
    for path in ("..", "checkpoints/step_000002", "checkpoints/step_000001/out", "nothing"):
        with pytest.raises(FileNotFoundError):
            rundir.files(run_dir, path)


def test_a_log_by_offset(run_dir):
    assert rundir.read_log(run_dir, 1) == (0, b"", 0, 0)
    folder = rundir.log_folder(run_dir, 1)
    folder.mkdir(parents=True)
    text = bytes(range(65, 65 + 26))
    for first in (5, 10, 20):  # 0 to 4 are rotated away
        rundir.segment_path(folder, first).write_bytes(text[first : {5: 10, 10: 20, 20: 26}[first]])
    for offset in range(5, 27):
        for limit in (1, 3, 12, 100):
            expected = text[offset : offset + limit]
            assert rundir.read_log(run_dir, 1, offset, limit) == (offset, expected, offset + len(expected), 26)
    assert rundir.read_log(run_dir, 1, 0, 4) == (5, text[5:9], 9, 26)
    assert rundir.read_log(run_dir, 1, None, 8) == (18, text[18:], 26, 26)
    assert rundir.read_log(run_dir, 1, 99, 8) == (99, b"", 99, 26)
