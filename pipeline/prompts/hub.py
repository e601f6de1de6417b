"""Data sets of the Hugging Face hub, fetched once and then read from disk: `hub:OWNER/NAME[@REVISION][:SPLIT]`.

Nothing is fetched behind anybody's back: `pilot data fetch` does it where there is a network, and tells the reference
with the commit in place of a branch. A run reads what was fetched, at exactly that commit, with or without a network.

A split is the name of its files without their numbering and ending: `train` is train.jsonl, or all of
data/train-00000-of-00010.parquet and so on. Where folders have files of the same split, it is written `FOLDER/train`.
Kept are $PILOT_HOME/hub/OWNER--NAME/COMMIT/, and in it a list of the split's files, written last.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pipeline.config import pilot_home
from pipeline.prompts.files import MAX_BYTES, READERS
from pipeline.prompts.types import FileFault

MAX_TOTAL = 8 << 30  # bytes of a split
_REF = re.compile(
    r"hub:(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]{1,100}))?"
    r"(:(?P<split>[\w.-]{1,100}(/[\w.-]{1,100}){0,4}))?",
    re.ASCII,
)
_NUMBERING = re.compile(r"-\d+-of-\d+$")
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
        return pilot_home() / "hub" / self.repo.replace("/", "--") / self.revision

    @property
    def listing(self) -> Path:
        return self.folder / f".{self.split.replace('/', '--')}.json"


def hub_ref(source: str) -> HubRef | None:
    """The data set that a config's source names; None when it names something else. Raises FileFault."""
    if not source.startswith("hub:"):
        return None
    match = _REF.fullmatch(source)
    if match is None or ".." in source:
        raise FileFault("is not hub:OWNER/NAME, hub:OWNER/NAME@REVISION or hub:OWNER/NAME@REVISION:SPLIT")
    return HubRef(match["repo"], match["revision"] or "main", match["split"] or "train")


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


def fetch(ref: HubRef) -> HubRef:
    """Download the split. Returns its reference with the commit. Raises FileFault: no network, no such data set or
    split, too large."""
    from huggingface_hub import HfApi, snapshot_download

    endpoint = os.environ.get("HF_ENDPOINT")
    try:
        info = HfApi(endpoint=endpoint).dataset_info(ref.repo, revision=ref.revision, files_metadata=True)
    except Exception as error:  # whatever the library and its HTTP client raise, the network or the hub said no
        raise FileFault(f"the hub has not told about {ref.repo}: {_first_line(error)}") from None
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    names = _files_of(ref, list(sizes))
    total = sum(sizes[name] for name in names)
    if total > MAX_TOTAL or max(sizes[name] for name in names) > MAX_BYTES:
        raise FileFault(
            f"split {ref.split} has {total:,} bytes; at most {MAX_BYTES:,} a file and {MAX_TOTAL:,} together"
        )
    pinned = ref._replace(revision=str(info.sha))
    try:
        snapshot_download(
            ref.repo, repo_type="dataset", revision=pinned.revision, allow_patterns=names, local_dir=pinned.folder,
            endpoint=endpoint,
        )  # fmt: skip
    except Exception as error:
        raise FileFault(f"{ref.repo} could not be fetched: {_first_line(error)}") from None
    draft = pinned.listing.with_suffix(".writing")
    draft.write_text(json.dumps(names), encoding="utf-8")
    draft.replace(pinned.listing)
    fetched(pinned)
    return pinned


def fetch_hub(source: str) -> HubRef:
    """`pilot data fetch`. Raises FileFault."""
    ref = hub_ref(source)
    if ref is None:
        raise FileFault("is not hub:OWNER/NAME, hub:OWNER/NAME@REVISION or hub:OWNER/NAME@REVISION:SPLIT")
    return fetch(ref)


def _files_of(ref: HubRef, names: list[str]) -> list[str]:
    """The files of the split, in order. Raises FileFault."""
    splits: dict[str, list[str]] = {}
    for path in map(PurePosixPath, names):
        if path.suffix in READERS and ".." not in path.parts and not path.is_absolute():
            name = _NUMBERING.sub("", path.stem)
            splits.setdefault(str(path.parent / name), []).append(str(path))
    found = [s for s in splits if s == ref.split or s.endswith(f"/{ref.split}")]
    if len(found) == 1:
        return sorted(splits[found[0]])
    there = ", ".join(sorted(found or splits)) or "none in a format that can be read"
    raise FileFault(f"{ref.repo} has {'several splits' if found else 'no split'} {ref.split!r}; there are: {there}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
