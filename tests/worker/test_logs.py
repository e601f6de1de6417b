"""The trainer's log: bounded, whole while it is within its bound, and honest about what could not be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline import rundir
from worker.logs import Log, Pump


def read(run_dir: Path, offset: int | None = 0) -> bytes:
    return rundir.read_log(run_dir, 1, offset, 1 << 20).data


def test_segments_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    log = Log(rundir.log_folder(tmp_path, 1), segment_bytes=10, segments=3)
    text = bytes(i % 251 for i in range(97))
    for start in range(0, 97, 7):
        log.write(text[start : start + 7])
        size = sum(path.stat().st_size for _, path in rundir.log_segments(rundir.log_folder(tmp_path, 1)))
        assert size <= 30
    part = rundir.read_log(tmp_path, 1, 0, 1000)
    assert (part.start, part.data, part.size) == (70, text[70:], 97)
    assert rundir.read_log(tmp_path, 1, None, 5) == (92, text[92:], 97, 97)


def test_what_could_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(rundir.log_folder(tmp_path, 1))
    log.write(b"before")
    really = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write(b"lost")
    monkeypatch.setattr(os, "write", really)
    log.write(b"after")
    assert read(tmp_path) == b"before\n[4 bytes of this log could not be written]\nafter"


def test_a_pump_moves_everything_until_the_pipe_ends(tmp_path: Path) -> None:
    out, into = os.pipe()
    pump = Pump(out, Log(rundir.log_folder(tmp_path, 1)))
    pump.start()
    text = b"".join(b"line %d\n" % i for i in range(20_000))
    with os.fdopen(into, "wb") as file:
        file.write(text)
    pump.join(20)
    assert read(tmp_path) == text
    assert pump.last_lines(2) == "line 19998\nline 19999"
    os.close(out)
