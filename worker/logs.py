"""The trainer's output on its way to the run directory: in segments, the oldest of which go when there are too many.

`pipeline.rundir` has the layout and reads it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from pipeline import rundir

SEGMENT_BYTES: Final = 8 << 20
SEGMENTS: Final = 8
TAIL_BYTES: Final = 16_384


class Log:
    """Appends bytes. A disk that is full, or any other failure to write, loses bytes and says so in their place."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> None:
        """Raises OSError when the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._segment_bytes, self._segments = folder, segment_bytes, segments
        self._file: int | None = None
        self._start = self._size = 0  # of the segment that is open
        self._lost = 0

    def write(self, data: bytes) -> None:
        if self._lost:
            data = f"\n[{self._lost} bytes of this log could not be written]\n".encode() + data
        try:
            while data:
                if self._file is None or self._size >= self._segment_bytes:
                    self._next_segment()
                assert self._file is not None
                written = os.write(self._file, data[: self._segment_bytes - self._size])
                self._size += written
                self._lost, data = 0, data[written:]
        except OSError:
            self._lost += len(data)

    def _next_segment(self) -> None:
        start = self._start + self._size
        file = os.open(rundir.segment_path(self._folder, start), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.close()
        self._file, self._start, self._size = file, start, 0
        for _, old in rundir.log_segments(self._folder)[: -self._segments]:
            old.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Pump(threading.Thread):
    """Moves everything that comes out of a pipe into a log, until nobody holds its other end any more.

    tail: the last bytes, whether or not they could be written.
    """

    def __init__(self, pipe: int, log: Log) -> None:
        super().__init__(name="log", daemon=True)
        self._pipe, self._log = pipe, log
        self.tail = b""

    def run(self) -> None:
        while data := os.read(self._pipe, 65_536):
            self.tail = (self.tail + data)[-TAIL_BYTES:]
            self._log.write(data)
        self._log.close()

    def last_lines(self, lines: int = 20) -> str:
        """At most 4000 characters."""
        return "\n".join(self.tail.decode(errors="replace").strip().splitlines()[-lines:])[-4000:]
