"""A split of a data set is downloaded, by `huggingface_hub`: the child of hub.fetch, which kills it after its time.

It downloads into a folder that hub.fetch throws away with what the library keeps there, when the files are in place.
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import httpx
from huggingface_hub import HfApi, errors

from pipeline.lifeline import die_with
from pipeline.prompts.files import MAX_BYTES, READERS
from pipeline.prompts.hub import COMMIT, Bounds, HubAway, HubRef, fetched
from pipeline.prompts.types import FileFault

_ENDPOINT: Final = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
_USERINFO = re.compile(r"(\w+://)?\S*@")  # of HF_ENDPOINT: a password, maybe
_SHOWN: Final = _USERINFO.sub(r"\1", _ENDPOINT)
_FORMATS: Final = (".parquet", ".jsonl", ".json", ".csv")  # of a split in several, the first one is taken
_NUMBERING = re.compile(r"-\d+-of-\d+$")
_ANSWER_S: Final = 20.0
_BESIDE: Final = 1 << 20  # bytes, at most, of what the library notes in a file of its own


def main() -> None:
    """Tells {commit, files}, or {fault, away}, or {fault, errno} of the disk. files: those downloaded, in order; none
    when they were here."""
    ask = json.loads(sys.argv[1])
    die_with(ask["parent"])
    ref, bounds = HubRef(*ask["ref"]), Bounds(**ask["bounds"])
    # Where the hub does not tell a file's size, or another one. It holds for each file by itself.
    most = min(bounds.n_bytes, MAX_BYTES) + _BESIDE
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        commit, files = _download(ref, bounds, Path(ask["scratch"]))
        told: dict[str, object] = {"commit": commit, "files": files}
    except Exception as error:  # whatever the library, its HTTP client and its storage client raise
        fault = _fault(error, ref, bounds)
        told = {"fault": str(fault), "away": isinstance(fault, HubAway)}
        if isinstance(fault, OSError):
            told = {"fault": fault.strerror, "errno": fault.errno}
    json.dump(told, sys.stdout)


def _download(ref: HubRef, bounds: Bounds, scratch: Path) -> tuple[str, list[str]]:
    hub = HfApi(endpoint=_ENDPOINT)
    try:
        info = hub.dataset_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=_ANSWER_S)
        commit, sizes = str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}
    except (json.JSONDecodeError, TypeError, KeyError, AttributeError):
        commit, sizes = "", {}
    if not COMMIT.fullmatch(commit):  # it becomes a folder's name
        raise HubAway(f"could not be looked up: what {_SHOWN} answers is not an answer of a hub")
    names = _files_of(ref, sizes)
    _check(ref, [sizes[name] or 0 for name in names], bounds)
    with suppress(FileFault):
        fetched(ref._replace(revision=commit))
        return commit, []
    n_bytes = 0
    for name in names:
        file = hub.hf_hub_download(ref.repo, name, repo_type="dataset", revision=commit, local_dir=scratch)
        n_bytes += Path(file).stat().st_size
        if n_bytes > bounds.n_bytes:
            raise bounds.refusal(f"more bytes in the split {ref.split!r}", bounds.n_bytes)
    return commit, names


def _files_of(ref: HubRef, sizes: Mapping[str, int | None]) -> list[str]:
    """The files of the split, in order. Raises FileFault."""
    splits: dict[str, list[str]] = {}
    for file in sizes:
        path = PurePosixPath(file)
        # Nothing hidden: neither `..` nor what could pass for our own listing.
        if path.suffix in READERS and not path.is_absolute() and not any(part.startswith(".") for part in path.parts):
            name = _NUMBERING.sub("", path.stem)
            splits.setdefault(str(path.parent / name), []).append(file)
    found = [ref.split] if ref.split in splits else [s for s in splits if s.endswith(f"/{ref.split}")]
    if len(found) == 1:
        files = sorted(splits[found[0]])
        return next(of for suffix in _FORMATS if (of := [f for f in files if f.endswith(suffix)]))
    told = sorted(found or splits)
    more = f" and {len(told) - 20} more" if len(told) > 20 else ""
    names = ", ".join(told[:20]) + more or f"none; files that can be read end in {', '.join(READERS)}"
    raise FileFault(f"has {'several splits' if found else 'no split'} {ref.split!r}; there are: {names}")


def _check(ref: HubRef, sizes: list[int], bounds: Bounds) -> None:
    bounds.check(ref.split, sizes)
    if max(sizes) > MAX_BYTES:
        raise FileFault(
            f"has a file of {max(sizes):,} bytes in the split {ref.split!r}; at most {MAX_BYTES:,} are read"
        )


def _fault(error: BaseException, ref: HubRef, bounds: Bounds) -> FileFault | OSError:
    if isinstance(error, errors.LocalEntryNotFoundError):  # it looked here because of what the hub said
        error = error.__cause__ or error
    if isinstance(error, FileFault):
        return error
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubAway("could not be fetched: HF_HUB_OFFLINE is set")
    if isinstance(error, errors.GatedRepoError):
        return FileFault("is gated: ask its owners for access, and give whoever fetches it a token in HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return FileFault(f"has no revision {ref.revision!r}")
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in (401, 403, 404) or isinstance(error, errors.HFValidationError):
        return FileFault("is not on the hub, or is private: then whoever fetches it needs a token in HF_TOKEN")
    if status is not None:
        return HubAway(f"could not be fetched: the hub at {_SHOWN} answered {status}")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return bounds.refusal(f"more bytes in a file of the split {ref.split!r}", min(bounds.n_bytes, MAX_BYTES))
    if isinstance(error, OSError) and error.errno:
        return error
    if isinstance(error, httpx.InvalidURL):  # why would quote it
        return HubAway("could not be fetched: HF_ENDPOINT, or where it leads, is no address")
    why = _USERINFO.sub(r"\1", (str(error).strip().splitlines() or [type(error).__name__])[0])[:200]
    if isinstance(error, httpx.HTTPError):
        return HubAway(f"could not be fetched: no answer from the hub at {_SHOWN} ({why})")
    return HubAway(f"could not be fetched: {why}")
