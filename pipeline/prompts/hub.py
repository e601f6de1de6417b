"""Data sets of the Hugging Face hub, fetched once and then read from disk: `hub:OWNER/NAME[@REVISION][:SPLIT]`.

Nothing is fetched behind anybody's back: `pilot data fetch` and the Data page do it where there is a network, and tell
the reference with the commit in place of a branch. A run reads what was fetched, at exactly that commit, with or
without a network.

A split is the name of its files without their numbering and ending: `train` is train.jsonl, or all of
data/train-00000-of-00010.parquet and so on. Where folders have files of the same split, it is written `FOLDER/train`.
Kept are $PILOT_HOME/hub/OWNER--NAME/COMMIT/, and in it a list of the split's files, written last. The files appear
there when all of them have come, each whole: a fetch that fails leaves nothing, and two of the same split do not
disturb each other.

`huggingface_hub` fetches, and takes no bound of time and no word to stop: so it does in a process of its own
(download.py), which can be killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.config import pilot_home
from pipeline.prompts.types import FileFault
from pipeline.sandbox import ROOT

HUB_WORDS: Final = "hub:OWNER/NAME, hub:OWNER/NAME@REVISION, hub:OWNER/NAME:SPLIT or hub:OWNER/NAME@REVISION:SPLIT"
HUB_PATTERN: Final = (
    r"^hub:([A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})(@([A-Za-z0-9_./-]{1,100}))?"
    r"(:([A-Za-z0-9_.-]{1,100}(/[A-Za-z0-9_.-]{1,100}){0,4}))?$"
)
_REF = re.compile(HUB_PATTERN)
COMMIT = re.compile(r"[0-9a-f]{40}")
_ABANDONED_S: Final = 86400.0
_ASK_S: Final = 0.1  # how often `ending` is asked


class HubAway(FileFault):
    """The hub did not answer, or broke off: the same may work another time, or where there is a network."""


class HubRef(NamedTuple):
    """revision: a branch, a tag or a commit."""

    repo: str
    revision: str = "main"
    split: str = "train"

    def __str__(self) -> str:
        return f"hub:{self.repo}@{self.revision}:{self.split}"

    @property
    def folder(self) -> Path:
        """Of its files; only a commit has one."""
        return _root() / self.repo.replace("/", "--") / self.revision

    @property
    def listing(self) -> Path:
        return self.folder / f".{self.split.replace('/', '%2F')}.json"  # no split's name has a %


class Bounds(NamedTuple):
    """The most that a fetch may take. n_bytes: of the split's files together. ending: asked now and then; true stops
    the fetch. beyond: what can be done about a split that takes more, in words."""

    n_bytes: int = 8 << 30
    n_files: int = 10_000
    seconds: float = float("inf")
    ending: Callable[[], bool] = lambda: False
    beyond: str = ""

    def check(self, split: str, sizes: Sequence[int]) -> None:
        """sizes: of its files. Raises FileFault."""
        if len(sizes) > self.n_files:
            raise self.refusal(f"{len(sizes):,} files in the split {split!r}", self.n_files)
        if sum(sizes) > self.n_bytes:
            raise self.refusal(f"{sum(sizes):,} bytes in the split {split!r}", self.n_bytes)

    def refusal(self, what: str, most: int) -> FileFault:
        return FileFault(f"has {what}; at most {most:,} are taken here{self.way_out}")

    @property
    def way_out(self) -> str:
        return self.beyond and f". {self.beyond}"


_WIDE: Final = Bounds()


class Fetched(NamedTuple):
    """ref: with the commit. new: its files were downloaded."""

    ref: HubRef
    files: list[Path]
    new: bool


def hub_ref(source: str) -> HubRef | None:
    """The data set that a config's source names; None when it names something else. Raises FileFault."""
    if not source.startswith("hub:"):
        return None
    match = _REF.fullmatch(source)
    if match is None or ".." in source or "--" in match[1]:  # the hub has no such names
        raise FileFault(f"is not {HUB_WORDS}")
    return HubRef(match[1], match[3] or "main", match[5] or "train")


def fetched(ref: HubRef) -> list[Path]:
    """The split's files on disk. Raises FileFault that says how to fetch them."""
    if not COMMIT.fullmatch(ref.revision):
        raise FileFault(
            f"names no commit, so that it could change under a run: `pilot data fetch {ref}` tells the reference to use"
        )
    try:
        files = [ref.folder / name for name in json.loads(ref.listing.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        files = []
    if not files or not all(file.is_file() for file in files):
        raise FileFault(f"has not been fetched here: `pilot data fetch {ref}`, where there is a network")
    return files


def fetch(ref: HubRef, bounds: Bounds = _WIDE) -> Fetched:
    """The split, downloaded unless it is here. Raises FileFault: no such data set or split, or beyond the bounds;
    HubAway; OSError of the disk."""
    new = False
    try:
        files = fetched(ref)  # a commit does not change
    except FileFault:
        ref, new = _bring(ref, bounds)
        files = fetched(ref)
    bounds.check(ref.split, [file.stat().st_size for file in files])
    return Fetched(ref, files, new)


def _bring(ref: HubRef, bounds: Bounds) -> tuple[HubRef, bool]:
    """The reference with the commit, whose files are here; whether they were downloaded."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".fetching-*"):  # by a process that was killed
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as scratch:
        told = _downloaded(ref, bounds, scratch)
        if "errno" in told:
            raise OSError(told["errno"], told["fault"])
        if "fault" in told:
            raise (HubAway if told["away"] else FileFault)(told["fault"])
        pinned = ref._replace(revision=told["commit"])
        if names := told["files"]:
            listing = Path(scratch, ".listing")  # no file of the split is hidden
            listing.write_text(json.dumps(names), encoding="utf-8")
            for name in names:
                place = pinned.folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, name).replace(place)
            listing.replace(pinned.listing)
    return pinned, bool(names)


def _root() -> Path:
    return pilot_home() / "hub"


def _downloaded(ref: HubRef, bounds: Bounds, scratch: str) -> dict[str, Any]:
    """What the child tells (download.main). It is gone when this returns, and dies with us. Raises HubAway."""
    until = time.monotonic() + bounds.seconds
    most = {"n_bytes": bounds.n_bytes, "n_files": bounds.n_files, "beyond": bounds.beyond}
    ask = json.dumps({"ref": ref, "bounds": most, "scratch": scratch, "parent": os.getpid()})
    # -I: neither the current folder nor PYTHONPATH decide what it imports.
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.prompts.download import main; main()"
    settings = dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
    settings |= {"HF_HUB_VERBOSITY": "error", "HF_XET_CACHE": f"{scratch}/.xet", "PILOT_HOME": str(pilot_home())}
    # It talks to the outside, and knows no credentials of the platform.
    given = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL") and k[:6] != "PILOT_"}
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", start, ask], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        env=given | settings, start_new_session=True,
    )  # fmt: skip
    try:
        while True:
            if bounds.ending():
                raise HubAway("was not fetched to its end: the process that fetches was told to stop")
            with suppress(subprocess.TimeoutExpired):
                told, _ = child.communicate(timeout=max(0.0, min(_ASK_S, until - time.monotonic())))
                break
            if time.monotonic() >= until:
                raise HubAway(f"takes over {bounds.seconds:g} s to fetch{bounds.way_out}")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode != 0:
        raise HubAway(f"could not be fetched: the process that fetches broke off (exit status {child.returncode})")
    return dict(json.loads(told))
