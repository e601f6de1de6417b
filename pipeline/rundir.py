"""A run directory as others read it: checkpoints, the trainer's log, and files to download. No torch, no NumPy.

config.json                         the RunConfig
marks.json                          marks of prompts that are wished for (pipeline.marks); the supervisor writes it
attempts/<n>/events.jsonl           what the trainer told (pipeline.events)
attempts/<n>/log/<offset>.log       what it printed, in segments named by the offset of their first byte
checkpoints/step_000042/            whole checkpoints (pipeline.checkpoint)
rollouts/step_000042.parquet        every rollout of a step (pipeline.rollouts)
evaluations/step_000042/<benchmark>.parquet    every response of an evaluation (pipeline.evaluation)
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

MARKS = "marks.json"
_CHECKPOINT = re.compile(r"step_(\d{6,})")
_SEGMENT = re.compile(r"(\d{15})\.log")


class File(NamedTuple):
    """path: relative to the run directory, with forward slashes."""

    path: str
    n_bytes: int


class Checkpoint(NamedTuple):
    """A whole checkpoint. accuracy: the sampled one on the held-out set after its step; None: not evaluated then.

    saved_at: Unix seconds.
    """

    step: int
    path: Path
    accuracy: float | None
    saved_at: float
    files: list[File]

    @property
    def n_bytes(self) -> int:
        """Of all its files."""
        return sum(file.n_bytes for file in self.files)


class LogPart(NamedTuple):
    """Bytes of a log from `start` on; `end` is the offset to go on from, `size` where the log ends now."""

    start: int
    data: bytes
    end: int
    size: int


def checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every whole checkpoint, oldest first."""
    found = [(m, p) for p in (run_dir / "checkpoints").glob("step_*") if (m := _CHECKPOINT.fullmatch(p.name))]
    return sorted((int(m[1]), p) for m, p in found)


def saved(run_dir: Path) -> list[Checkpoint]:
    """Every whole checkpoint, oldest first. One that is being deleted meanwhile is left out."""
    found = []
    for step, folder in checkpoints(run_dir):
        try:
            inside = files(run_dir, f"checkpoints/{folder.name}")
            found.append(Checkpoint(step, folder, accuracy(folder), folder.stat().st_mtime, inside))
        except FileNotFoundError:
            continue
    return found


def accuracy(checkpoint: Path) -> float | None:
    """What `save_checkpoint` was told; None when it was told nothing."""
    try:
        value = json.loads((checkpoint / "accuracy.json").read_text(encoding="utf-8"))["sampled_accuracy"]
    except FileNotFoundError:
        return None
    return None if value is None else float(value)


def most_accurate(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the whole checkpoints that were evaluated, the most accurate first; of equal ones the later."""
    known = [(found, step, path) for step, path in checkpoints(run_dir) if (found := accuracy(path)) is not None]
    return [(step, path) for _, step, path in sorted(known, reverse=True)]


def files(run_dir: Path, under: str) -> list[File]:
    """Every regular file below a folder of the run directory, by path; links are left out, and not followed.

    Raises FileNotFoundError when there is no such folder, also for a path that leads out of the run directory.
    """
    root = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        top = _descend(root, _parts(under), os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(root)
    try:
        found = []
        for folder, _, names, descriptor in os.fwalk(".", dir_fd=top):
            for name in names:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(File(os.path.normpath(f"{under}/{folder}/{name}"), status.st_size))
        return sorted(found)
    finally:
        os.close(top)


def open_file(run_dir: Path, path: str) -> BinaryIO:
    """A regular file of the run directory, by its path relative to it. Its size: os.fstat(file.fileno()).st_size.

    Each part is opened from the folder before it and no link is followed, so that nothing outside the run directory can
    be read, whatever the path says and whatever is exchanged meanwhile. Raises FileNotFoundError for everything else.
    """
    root = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Not to hang on a pipe that somebody put there.
        descriptor = _descend(root, _parts(path), os.O_RDONLY | os.O_NONBLOCK)
    finally:
        os.close(root)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path!r} is not a file of this run")
    return os.fdopen(descriptor, "rb")


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if "\x00" in path or any(part in ("", ".", "..") for part in parts):
        raise FileNotFoundError(f"{path!r} is not a path within a run directory")
    return parts


def _descend(root: int, parts: list[str], flags: int) -> int:
    """A descriptor of the last part, opened with `flags`. Raises FileNotFoundError."""
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:  # a link (ELOOP), a file where a folder should be, a name that is too long
        raise FileNotFoundError(f"{'/'.join(parts)!r} is not there: {error.strerror}") from None
    finally:
        os.close(here)


def rollouts_of(run_dir: Path, step: int, prompt_id: str) -> list[dict[str, Any]]:
    """A prompt's rollouts of one step, in the order in which they were sampled, as rows of pipeline.rollouts.SCHEMA.

    Of the file's row groups only the prompt ids are read, and the rest of those that hold the prompt. Raises
    FileNotFoundError.
    """
    from pyarrow import parquet  # large, and of all that reads run directories only this needs it

    with open_file(run_dir, f"rollouts/step_{step:06d}.parquet") as opened:
        file = parquet.ParquetFile(opened)
        found: list[dict[str, Any]] = []
        for group in range(file.num_row_groups):
            ids = file.read_row_group(group, columns=["prompt_id"]).column(0).to_pylist()
            at = [i for i, id in enumerate(ids) if id == prompt_id]
            if at:
                found += file.read_row_group(group).take(at).to_pylist()
        return found


def evaluation_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "evaluations" / f"step_{step:06d}"


def log_folder(run_dir: Path, attempt: int) -> Path:
    return run_dir / "attempts" / str(attempt) / "log"


def log_segments(folder: Path) -> list[tuple[int, Path]]:
    """(offset of its first byte, path) of every segment of a log, in order."""
    return sorted((int(m[1]), p) for p in folder.glob("*.log") if (m := _SEGMENT.fullmatch(p.name)))


def segment_path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:015d}.log"


def read_log(run_dir: Path, attempt: int, offset: int | None = None, limit: int = 65_536) -> LogPart:
    """Up to `limit` bytes of an attempt's log from `offset` on; None: its end.

    Offsets count from the attempt's first byte. Where that part has been rotated away, the oldest that is left comes
    instead; beyond the end there is nothing yet. An attempt without a log has an empty one.
    """
    while True:
        segments = log_segments(log_folder(run_dir, attempt))
        if not segments:
            return LogPart(0, b"", 0, 0)
        try:
            size = segments[-1][0] + segments[-1][1].stat().st_size
            start = max(size - limit if offset is None else offset, segments[0][0])
            data = b""
            for first, path in segments:
                with path.open("rb") as file:
                    if 0 <= start + len(data) - first <= path.stat().st_size:
                        file.seek(start + len(data) - first)
                        data += file.read(limit - len(data))
            return LogPart(start, data, start + len(data), max(size, start + len(data)) if data else size)
        except FileNotFoundError:
            continue  # rotated away since it was listed
