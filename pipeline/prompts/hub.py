"""Data sets of the Hugging Face hub, fetched once and then read from disk: `hub:OWNER/NAME[@REVISION][:SPLIT]`.

Nothing is fetched behind anybody's back: `pilot data fetch` and the Data page do it where there is a network, and tell
the reference with the commit in place of a branch. A run reads what was fetched, at exactly that commit, with or
without a network.

A split is the name of its files without their numbering and ending: `train` is train.jsonl, or all of
data/train-00000-of-00010.parquet and so on. Where folders have files of the same split, it is written `FOLDER/train`.
Kept are $PILOT_HOME/hub/OWNER--NAME/COMMIT/, and in it a list of the split's files, written last. Each file appears in
its place whole, so that fetches of the same split do not disturb each other, and one that broke off is gone on with.

The hub is asked over plain HTTP, which takes a bound and can be stopped; `huggingface_hub` downloads to the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from pipeline.config import pilot_home
from pipeline.prompts.files import MAX_BYTES, READERS
from pipeline.prompts.types import FileFault

if TYPE_CHECKING:
    import httpx

HUB_WORDS: Final = "hub:OWNER/NAME, hub:OWNER/NAME@REVISION or hub:OWNER/NAME@REVISION:SPLIT"
HUB_PATTERN: Final = (
    r"^hub:([A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})(@([A-Za-z0-9_./-]{1,100}))?"
    r"(:([A-Za-z0-9_.-]{1,100}(/[A-Za-z0-9_.-]{1,100}){0,4}))?$"
)
_REF = re.compile(HUB_PATTERN)
_NUMBERING = re.compile(r"-\d+-of-\d+$")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENDPOINT: Final = "https://huggingface.co"
_SILENCE_S: Final = 20.0
_MAX_LISTING: Final = 1 << 26  # bytes of what the hub tells about a data set
_ABANDONED_S: Final = 86400.0


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
        return self.folder / f".{self.split.replace('/', '--')}.json"


class Bounds(NamedTuple):
    """The most that a fetch may take. n_bytes: of the split's files together. ending: asked now and then; true stops
    the fetch. beyond: what can be done about a larger split, in words."""

    n_bytes: int = 8 << 30
    n_files: int = 10_000
    seconds: float = float("inf")
    ending: Callable[[], bool] = lambda: False
    beyond: str = ""

    def refusal(self, what: str, most: int) -> FileFault:
        return FileFault(f"has {what}; at most {most:,} are taken here{self.beyond and f'. {self.beyond}'}")


_WIDE: Final = Bounds()


class Fetched(NamedTuple):
    """ref: with the commit. new: it was not here before."""

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
    if not _COMMIT.fullmatch(ref.revision):
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
    with suppress(FileFault):  # a commit does not change
        if len(files := fetched(ref)) <= bounds.n_files:
            return Fetched(ref, files, new=False)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise HubAway("could not be fetched: HF_HUB_OFFLINE is set")
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".fetching-*"):  # by a process that was killed
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)
    with _Hub(ref, bounds) as hub, tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as scratch:
        commit, there = hub.told()
        pinned = ref._replace(revision=commit)
        names = _files_of(ref, there)
        _check(ref, [there[name] for name in names], bounds)
        part = Path(scratch) / "part"
        for name in names:
            place = pinned.folder / name
            if place.is_file() and there[name].n_bytes in (None, place.stat().st_size):
                continue
            hub.download(commit, name, there[name], part)
            place.parent.mkdir(parents=True, exist_ok=True)
            part.replace(place)
        part.write_text(json.dumps(names), encoding="utf-8")
        part.replace(pinned.listing)
    return Fetched(pinned, fetched(pinned), new=True)


def _root() -> Path:
    return pilot_home() / "hub"


class _There(NamedTuple):
    """A file as the hub tells of it; None: it does not tell."""

    n_bytes: int | None
    sha256: str | None


def _files_of(ref: HubRef, there: dict[str, _There]) -> list[str]:
    """The files of the split, in order. Raises FileFault."""
    splits: dict[str, list[str]] = {}
    for path in map(PurePosixPath, there):
        # Nothing hidden: neither `..` nor what could pass for our own listing.
        if path.suffix in READERS and not path.is_absolute() and not any(part.startswith(".") for part in path.parts):
            name = _NUMBERING.sub("", path.stem)
            splits.setdefault(str(path.parent / name), []).append(str(path))
    found = [s for s in splits if s == ref.split or s.endswith(f"/{ref.split}")]
    if len(found) == 1:
        return sorted(splits[found[0]])
    told = sorted(found or splits)
    more = f" and {len(told) - 20} more" if len(told) > 20 else ""
    names = ", ".join(told[:20]) + more or f"none; files that can be read end in {', '.join(READERS)}"
    raise FileFault(f"has {'several splits' if found else 'no split'} {ref.split!r}; there are: {names}")


def _check(ref: HubRef, files: list[_There], bounds: Bounds) -> None:
    sizes = [file.n_bytes or 0 for file in files]
    if len(files) > bounds.n_files:
        raise bounds.refusal(f"{len(files):,} files in the split {ref.split!r}", bounds.n_files)
    if sum(sizes) > bounds.n_bytes:
        raise bounds.refusal(f"{sum(sizes):,} bytes in the split {ref.split!r}", bounds.n_bytes)
    if max(sizes) > MAX_BYTES:
        raise FileFault(
            f"has a file of {max(sizes):,} bytes in the split {ref.split!r}; at most {MAX_BYTES:,} are read"
        )


class _Hub:
    """Asked about one data set, within the bounds. Every method raises FileFault and HubAway."""

    def __init__(self, ref: HubRef, bounds: Bounds) -> None:
        import httpx

        self.ref, self.bounds = ref, bounds
        self.endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        self.until = time.monotonic() + bounds.seconds
        self.left = bounds.n_bytes
        token = _token()
        # What redirects to another host leaves the token behind.
        self.http = httpx.Client(
            timeout=_SILENCE_S,
            follow_redirects=True,
            headers={b"Authorization": f"Bearer {token}".encode()} if token else None,
        )

    def __enter__(self) -> _Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def told(self) -> tuple[str, dict[str, _There]]:
        """(commit, files by their paths)."""
        listing = bytearray()
        for piece in self._pieces(f"/api/datasets/{self.ref.repo}/revision/{quote(self.ref.revision, '')}?blobs=true"):
            listing += piece
            if len(listing) > _MAX_LISTING:
                raise FileFault(f"has too many files: the hub's list of them takes over {_MAX_LISTING:,} bytes")
        try:
            info = json.loads(listing)
            files = {str(file["rfilename"]): _there(file) for file in info["siblings"]}
            commit = str(info["sha"])
        except (ValueError, TypeError, KeyError, AttributeError):
            commit = ""
        if not _COMMIT.fullmatch(commit):
            raise HubAway(f"could not be looked up: what {self.endpoint} answers is not an answer of a hub")
        return commit, files

    def download(self, commit: str, name: str, there: _There, to: Path) -> None:
        digest, n = hashlib.sha256(), 0
        with to.open("wb") as out:
            for piece in self._pieces(f"/datasets/{self.ref.repo}/resolve/{commit}/{quote(name)}"):
                n += len(piece)
                self.left -= len(piece)
                if self.left < 0:
                    raise self.bounds.refusal(f"more bytes in the split {self.ref.split!r}", self.bounds.n_bytes)
                if n > MAX_BYTES:
                    raise FileFault(f"has over {MAX_BYTES:,} bytes in {name}; that is the most that is read of a file")
                digest.update(piece)
                out.write(piece)
        if n != (n if there.n_bytes is None else there.n_bytes) or there.sha256 not in (None, digest.hexdigest()):
            raise HubAway(f"could not be fetched: what came of {name} is not what the hub tells of it; try again")

    def _pieces(self, path: str) -> Iterator[bytes]:
        import httpx

        try:
            with self.http.stream("GET", self.endpoint + path) as answer:
                if answer.status_code != 200:
                    raise self._refused(answer)
                for piece in answer.iter_bytes():
                    if time.monotonic() > self.until:
                        raise HubAway(f"takes over {self.bounds.seconds:g} s to fetch")
                    if self.bounds.ending():
                        raise HubAway("was not fetched to its end: the process that fetches was told to stop")
                    yield piece
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise HubAway(f"could not be fetched: no answer from the hub at {self.endpoint} ({why})") from None

    def _refused(self, answer: httpx.Response) -> FileFault:
        code = answer.headers.get("x-error-code", "")
        if code == "GatedRepo":
            return FileFault("is gated: ask its owners for access, and give whoever fetches it a token in HF_TOKEN")
        if code == "RevisionNotFound":
            return FileFault(f"has no revision {self.ref.revision!r}")
        if answer.status_code in (401, 403, 404):
            return FileFault("is not on the hub, or is private: then whoever fetches it needs a token in HF_TOKEN")
        return HubAway(f"could not be fetched: the hub at {self.endpoint} answered {answer.status_code}")


def _there(file: dict[str, Any]) -> _There:
    size, sha256 = file.get("size"), (file.get("lfs") or {}).get("sha256")
    return _There(size if isinstance(size, int) else None, sha256 if isinstance(sha256, str) else None)


def _token() -> str | None:
    """As `huggingface_hub` finds it: of the environment, or of `hf auth login`."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.environ.get("HF_TOKEN_PATH") or Path(os.environ.get("HF_HOME") or Path(cache, "huggingface"), "token")
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError, RuntimeError):
        return None
