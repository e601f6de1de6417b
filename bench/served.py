"""Servers in processes of their own, for measurements that ask them as a client would."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from pipeline.config import ROOT


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], environment: dict[str, str], url: str, log: Path) -> Iterator[None]:
    """A server that runs until the block ends. Raises SystemExit with the end of its log when it does not answer."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    if httpx.get(url, timeout=2, trust_env=False).is_success:
                        break
                except httpx.HTTPError:
                    pass
                if time.monotonic() > deadline or child.poll() is not None:
                    raise SystemExit(f"{url} does not answer; the log ends:\n{log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            child.terminate()
            child.wait(30)
