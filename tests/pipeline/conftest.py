"""What code of others must not reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.sandbox import ROOT


@pytest.fixture
def told(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """For tests.pipeline.sandbox.prober: secrets in files and in the environment, folders of ours, two servers, us."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret-of-ours")
    secret, token = tmp_path / "secret", home / "token"
    for path in (secret, token):
        path.write_text("secret-of-ours")
    (tmp_path / "link").symlink_to(secret)
    secrets = (secret, token, tmp_path / "link", ROOT / "pyproject.toml")
    folders = (tmp_path, home, ROOT, ROOT / "pipeline", "/", "/usr", "/dev/shm")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        yield {
            "secrets": [str(path) for path in secrets],
            "folders": [str(path) for path in folders],
            "port": server.getsockname()[1],
            "unix": str(tmp_path / "socket"),
            "parent": os.getpid(),
            "memory_mb": 1024,
        }
