"""Ctrl-C, SIGTERM and SIGHUP as something that the launcher looks at, so that nothing is cut off halfway."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """While it is entered, the three signals are counted: the first asks to stop, the second to hurry.

    `impatient`: set while nothing can look at the count; a second signal then raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self.impatient = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.count > 0

    @property
    def hurried(self) -> bool:
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """What a shell calls a program that this signal ended."""
        return 128 + (self.first or signal.SIGINT)

    def pause(self, seconds: float) -> bool:
        """Sleep, at most until asked to stop; tells whether that was asked."""
        # Polled: setting a threading.Event from a signal handler can deadlock with its waiter.
        deadline = time.monotonic() + seconds
        while not self.requested and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup: whoever had SIGHUP ignored wants the launcher to outlive the terminal.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal.Signals(number)
        if self.impatient and self.hurried:
            raise KeyboardInterrupt
