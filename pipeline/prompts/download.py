"""A split of a data set is downloaded, by `huggingface_hub`: the child of hub.fetch, which kills it after its time.

What the library keeps beside the files that it downloads stays in a folder that hub.fetch throws away.
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import httpx
from huggingface_hub import HfApi, errors

from pipeline.lifeline import die_with
from pipeline.prompts.files import MAX_BYTES, READERS
from pipeline.prompts.hub import COMMIT, Bounds, HubAway, HubRef
from pipeline.prompts.types import FileFault

_ENDPOINT: Final = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
_NUMBERING = re.compile(r"-\d+-of-\d+$")
_ANSWER_S: Final = 20.0
_BESIDE: Final = 1 << 20  # bytes, at most, of what the library notes in a file of its own


def main() -> None:
    """Tells {commit}, or {fault, away}, or {fault, errno} of the disk."""
    ask = json.loads(sys.argv[1])
    die_with(ask["parent"])
    ref, bounds = HubRef(*ask["ref"]), Bounds(**ask["bounds"])
    # Where the hub does not tell a file's size, or another one. It holds for each file by itself.
    most = min(bounds.n_bytes, MAX_BYTES) + _BESIDE
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        told: dict[str, object] = {"commit": _download(ref, bounds, Path(ask["scratch"]))}
    except Exception as error:  # whatever the library, its HTTP client and its storage client raise
        fault = _fault(error, ref, bounds)
        told = {"fault": str(fault), "away": isinstance(fault, HubAway)}
        if isinstance(fault, OSError):
            told = {"fault": fault.strerror, "errno": fault.errno}
    json.dump(told, sys.stdout)


def _download(ref: HubRef, bounds: Bounds, scratch: Path) -> str:
    """The commit."""
    hub = HfApi(endpoint=_ENDPOINT)
    try:
        info = hub.dataset_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=_ANSWER_S)
        commit, sizes = str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}
    except (json.JSONDecodeError, TypeError, KeyError, AttributeError):
        commit, sizes = "", {}
    if not COMMIT.fullmatch(commit):  # it becomes a folder's name
        raise HubAway(f"could not be looked up: what {_ENDPOINT} answers is not an answer of a hub")
    pinned = ref._replace(revision=commit)
    names = _files_of(ref, sizes)
    _check(ref, [sizes[name] or 0 for name in names], bounds)
    n_bytes = 0
    for name in names:
        place = pinned.folder / name
        if not (place.is_file() and sizes[name] in (None, place.stat().st_size)):
            part = hub.hf_hub_download(ref.repo, name, repo_type="dataset", revision=commit, local_dir=scratch)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, place)
        n_bytes += place.stat().st_size
        if n_bytes > bounds.n_bytes:
            raise bounds.refusal(f"more bytes in the split {ref.split!r}", bounds.n_bytes)
    listing = scratch / "listing"
    listing.write_text(json.dumps(names), encoding="utf-8")
    listing.replace(pinned.listing)
    return commit


def _files_of(ref: HubRef, sizes: Mapping[str, int | None]) -> list[str]:
    """The files of the split, in order. Raises FileFault."""
    splits: dict[str, list[str]] = {}
    for file in sizes:
        path = PurePosixPath(file)
        # Nothing hidden: neither `..` nor what could pass for our own listing.
        if path.suffix in READERS and not path.is_absolute() and not any(part.startswith(".") for part in path.parts):
            name = _NUMBERING.sub("", path.stem)
            splits.setdefault(str(path.parent / name), []).append(file)
    found = [s for s in splits if s == ref.split or s.endswith(f"/{ref.split}")]
    if len(found) == 1:
        return sorted(splits[found[0]])
    told = sorted(found or splits)
    more = f" and {len(told) - 20} more" if len(told) > 20 else ""
    names = ", ".join(told[:20]) + more or f"none; files that can be read end in {', '.join(READERS)}"
    raise FileFault(f"has {'several splits' if found else 'no split'} {ref.split!r}; there are: {names}")


def _check(ref: HubRef, sizes: list[int], bounds: Bounds) -> None:
    if len(sizes) > bounds.n_files:
        raise bounds.refusal(f"{len(sizes):,} files in the split {ref.split!r}", bounds.n_files)
    if sum(sizes) > bounds.n_bytes:
        raise bounds.refusal(f"{sum(sizes):,} bytes in the split {ref.split!r}", bounds.n_bytes)
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
        return HubAway(f"could not be fetched: the hub at {_ENDPOINT} answered {status}")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return bounds.refusal(f"more bytes in a file of the split {ref.split!r}", min(bounds.n_bytes, MAX_BYTES))
    if isinstance(error, OSError) and error.errno:
        return error
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
        return HubAway(f"could not be fetched: no answer from the hub at {_ENDPOINT} ({why})")
    return HubAway(f"could not be fetched: {why}")
