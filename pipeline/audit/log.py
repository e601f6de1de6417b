"""A log as columns: which format it has, its rows read one by one, and its groups.

Of each rollout 24 bytes are kept, and of each prompt its first 160 characters; no response is. So memory follows the
number of rollouts and not the size of the log.
"""

from __future__ import annotations

import csv
import hashlib
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.audit import ours, table, trl, verl
from pipeline.audit.report import AuditSettings, Format
from pipeline.audit.rows import EXCERPT, BadLog, Columns, Fault, Row, printable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_ROLLOUTS = 50_000_000
SHOWN_FAULTS = 5
_FILES: dict[Format, Callable[[Path], list[Path]]] = {
    "verl": verl.files, "trl": trl.files, "pilot": ours.files, "csv": table.files,
}  # fmt: skip
_LAYOUTS = (
    "verl's rollout_data_dir (1.jsonl, 2.jsonl, ...), TRL's completions (completions_00001.parquet, ...), the folder "
    "of a run of this platform (rollouts/step_000001.parquet, ...), or CSV files with the columns step, prompt, reward"
)


@dataclass(frozen=True, slots=True)
class Log:
    """G groups in the order of their steps, N rollouts group by group.

    step, prompt: int64 [G]; start: int64 [G + 1], where each group's rollouts begin. rewards, success: float64 [N], NaN
    where the reward failed. tokens: int64 [N] or None. texts: the beginning of each prompt.
    """

    source: str
    format: Format
    reward: str
    step: Ints
    prompt: Ints
    start: Ints
    rewards: Floats
    success: Floats
    tokens: Ints | None
    texts: list[str]
    notes: list[str]
    bad_rows: int
    bad: list[str]


def read_log(path: Path, settings: AuditSettings) -> Log:
    """Raises BadLog: nothing there, no known format, bad rows (unless settings.skip_bad), no reward, no success."""
    format, files = _found(path, settings.format)
    columns = Columns(settings.reward, settings.success)
    trl_reader, our_reader = trl.Reader(), ours.Reader()
    readers: dict[Format, Callable[[Path, Columns], Iterator[Row | Fault]]] = {
        "verl": verl.read, "trl": trl_reader.read, "pilot": our_reader.read, "csv": table.read,
    }  # fmt: skip
    rows = _rows(files, lambda file: readers[format](file, columns))
    collected = _Collected(rows, settings.skip_bad)
    notes = []
    if trl_reader.repeated:
        notes.append(
            f"{trl_reader.repeated} of {len(files)} files repeat the generation batch of the file before; "
            "each batch counts once."
        )
    names = {
        "verl": settings.reward or ["score"],
        "trl": settings.reward or trl_reader.rewards,
        "pilot": settings.reward or ["reward"],
        "csv": settings.reward or ["reward"],
    }
    return collected.log(printable(str(path)), format, " + ".join(names[format]), settings, notes)


def _found(path: Path, format: Format | None) -> tuple[Format, list[Path]]:
    """The format and its files, in order."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise BadLog(f"{path}: {getattr(error, 'strerror', None) or 'not a path'}") from None
    if stat.S_ISDIR(mode):
        found = {name: files for name, of in _FILES.items() if (files := of(path)) and format in (None, name)}
        if len(found) > 1:
            raise BadLog(f"{path} has files of several formats ({', '.join(found)}); name one with --format")
        if not found:
            wanted = "no files of this format" if format else "no log"
            raise BadLog(f"{path} has {wanted}. Give {_LAYOUTS}")
        return next(iter(found.items()))
    if not stat.S_ISREG(mode):
        raise BadLog(f"{path} is neither a file nor a folder")
    guessed = _format_of(path)
    if format is None and guessed is None:
        raise BadLog(f"{path} is of no known format; name it with --format, or give {_LAYOUTS}")
    return format or guessed or "csv", [path]


def _format_of(path: Path) -> Format | None:
    match path.suffix.lower():
        case ".jsonl":
            return "verl"
        case ".csv":
            return "csv"
        case ".parquet":
            try:
                names = pq.read_schema(path).names
            except (OSError, pa.ArrowException) as error:
                raise BadLog(f"{path.name}: {_first_line(error)}") from None
            return "pilot" if {"prompt_id", "stage"} <= set(names) else "trl" if "completion" in names else None
        case _:
            return None


def _rows(files: Iterable[Path], read: Callable[[Path], Iterator[Row | Fault]]) -> Iterator[Row | Fault]:
    """All files' rows; one that cannot be read is a fault of its own."""
    for file in files:
        try:
            yield from read(file)
        except MemoryError:  # Arrow's is one as well
            raise BadLog(f"{file.name}: the memory does not suffice to unpack it") from None
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            yield Fault(file, 0, _first_line(error))


class _Collected:
    """Rows as columns, in the order in which they came."""

    def __init__(self, rows: Iterable[Row | Fault], skip_bad: bool) -> None:
        self.rewards, self.success = array("d"), array("d")
        self.tokens, self.group = array("i"), array("i")
        self.texts: list[str] = []
        self.keys: list[tuple[int, int]] = []  # (step, prompt) of each group
        self.bad_rows = 0
        self.bad: list[str] = []
        self._prompts: dict[bytes, int] = {}
        self._groups: dict[tuple[int, int], int] = {}
        some_row = False  # else what is wrong is whole files, and leaving rows out is no help
        for row in rows:
            if isinstance(row, Fault):
                self.bad_rows += 1
                some_row |= row.row > 0
                if len(self.bad) < SHOWN_FAULTS:
                    self.bad.append(str(row))
            else:
                self._add(row)
        if self.bad_rows and not skip_bad:
            more = f"; and {self.bad_rows - len(self.bad)} more" if self.bad_rows > len(self.bad) else ""
            named = "; ".join(self.bad) + more
            if not some_row:
                raise BadLog(named)
            count = "1 bad row" if self.bad_rows == 1 else f"{self.bad_rows:,} bad rows"
            hint = "--skip-bad (on the dashboard's page a box under Settings) leaves them out"
            raise BadLog(f"{count}: {named}. {hint}")

    def _add(self, row: Row) -> None:
        if len(self.rewards) == MOST_ROLLOUTS:
            raise BadLog(f"there are more than {MOST_ROLLOUTS:,} rollouts; give some of the files")
        digest = hashlib.blake2b(row.prompt.encode(errors="replace"), digest_size=12).digest()
        prompt = self._prompts.setdefault(digest, len(self.texts))
        if prompt == len(self.texts):
            self.texts.append(printable(" ".join(row.text[: 2 * EXCERPT].split())[:EXCERPT]))
        key = (row.step, prompt)
        group = self._groups.setdefault(key, len(self.keys))
        if group == len(self.keys):
            self.keys.append(key)
        self.rewards.append(row.reward)
        self.success.append(-1.0 if row.success is None else row.success)
        self.tokens.append(-1 if row.tokens is None else row.tokens)
        self.group.append(group)

    def log(self, source: str, format: Format, reward: str, settings: AuditSettings, notes: list[str]) -> Log:
        rewards = np.array(self.rewards)
        known = ~np.isnan(rewards)
        if not known.any():
            raise BadLog(f"{source}: no rollout has a reward" if len(rewards) else f"{source}: there are no rows")
        success, rule = _success(rewards, np.array(self.success), settings.success_at)
        rewards = np.where(np.isnan(success), np.nan, rewards)
        keys = np.array(self.keys, np.int64)
        order_G = np.lexsort((np.arange(len(keys)), keys[:, 0]))  # by step, then as logged
        place_G = np.empty(len(keys), np.int64)
        place_G[order_G] = np.arange(len(keys))
        group_N = place_G[np.array(self.group)]
        order_N = np.argsort(group_N, kind="stable")
        start = np.concatenate(([0], np.cumsum(np.bincount(group_N, minlength=len(keys)))))
        tokens = np.array(self.tokens, np.int64)
        return Log(
            source=source,
            format=format,
            reward=f"reward: {reward}; {rule}",
            step=keys[order_G, 0],
            prompt=keys[order_G, 1],
            start=start,
            rewards=rewards[order_N],
            success=success[order_N],
            tokens=None if (tokens < 0).any() else tokens[order_N],
            texts=self.texts,
            notes=notes,
            bad_rows=self.bad_rows,
            bad=self.bad,
        )


def _success(rewards: Floats, told: Floats, at: float | None) -> tuple[Floats, str]:
    """Success of each rollout, and in words where it comes from. told: -1 where the log says nothing."""
    known = rewards[~np.isnan(rewards)]
    failed = np.isnan(rewards)
    if at is not None:
        return np.where(failed, np.nan, (rewards >= at).astype(np.float64)), f"right when it is at least {at:g}"
    if not (told < 0).any():
        return np.where(failed, np.nan, told), "success as logged"
    if known.min() >= 0 and known.max() <= 1:
        return rewards, "it is the success as well"
    values = np.unique(known)
    if len(values) == 2:
        return np.where(failed, np.nan, (rewards == values[1]).astype(np.float64)), (
            f"two values, so right when it is {values[1]:g}"
        )
    raise BadLog(
        f"rewards go from {known.min():g} to {known.max():g}, so they do not tell right from wrong; name the reward "
        "from which on a rollout is right (--success-at), or a column that tells it (--success)"
    )


def _first_line(error: Exception) -> str:
    lines = str(getattr(error, "strerror", None) or error).splitlines()
    return lines[0] if lines else type(error).__name__
