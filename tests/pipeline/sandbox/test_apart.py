"""Readers of files from outside see these files and nothing else of ours, in bubblewrap and behind the fence."""

from __future__ import annotations

import ctypes
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from pipeline.sandbox import ROOT, apart
from pipeline.sandbox.limits import Limits

LIMITS = Limits(memory_mb=1024, processes=64, files_mb=1, open_files=256, cpu_s=60)
MODULE = "tests.pipeline.sandbox.prober"


@pytest.fixture(params=["bubblewrap", "fence"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse() -> None:
        raise ValueError("not here")

    if request.param == "fence":
        monkeypatch.setattr(apart, "bubblewrap_keeps", refuse)
    return str(request.param)


def run(told: dict[str, Any], readable: list[Path], out: Path | None = None, seconds: float = 60) -> str:
    return apart.read_apart(MODULE, json.dumps(told), [ROOT / "tests", *readable], LIMITS, seconds, out)


def test_a_reader_reaches_nothing_of_ours(way: str, tmp_path: Path, told: dict[str, Any]) -> None:
    beside, readable = tmp_path / "upload" / "other", tmp_path / "upload" / "file"
    readable.parent.mkdir()
    for path in (beside, readable):
        path.write_text("secret-of-ours")
    told["secrets"].append(str(beside))
    told["folders"].append(str(readable.parent))

    def reached(out: Path | None = None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads(run(told, [readable], out))
        # Bubblewrap's /tmp is its own: an ordinary user may write there, and it is gone with the reader.
        own = f"wrote to {tmp_path}" if way == "bubblewrap" else "none"
        return {who: [what for what in did if not what.startswith(own)] for who, did in found.items()}

    assert reached(tmp_path / "out") == {"self": [], "child": []}
    assert (tmp_path / "out").read_text() == "written" and not list(tmp_path.rglob("mark"))
    told["secrets"] = [str(readable)]
    found = {"self": [f"read {readable}"], "child": [f"read {readable}"]}
    assert reached() == found, "the same question finds what may be read"
    assert not list(tmp_path.rglob("mark"))


def test_one_that_hangs_or_dies_is_told(way: str) -> None:
    with pytest.raises(apart.ReaderFailed) as caught:
        run({"end": "hang"}, [], seconds=2)
    assert caught.value.seconds == 2
    with pytest.raises(apart.ReaderFailed) as caught:
        run({"end": "exit"}, [])
    assert caught.value.seconds is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a machine of two names")
def test_where_neither_holds_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ValueError("no bubblewrap")

    monkeypatch.setattr(apart, "bubblewrap_keeps", refuse)
    libc = ctypes.CDLL(None)
    before = libc.personality(0x0008)  # the kernel calls its machine by another name, here and in our children
    try:
        with pytest.raises(apart.NoSandbox, match="no bubblewrap; and no fence: no Landlock and seccomp for"):
            run({}, [])
    finally:
        libc.personality(before)
