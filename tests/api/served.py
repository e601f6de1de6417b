"""The API on a port of this machine, for tests that need a real server, and tokens for it."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn
from sqlalchemy.orm import Session

from api.app import create_app
from api.settings import Settings
from db import create_engine, tokens


def make_token(database_url: str, scope: str = "admin", name: str = "tests") -> str:
    """The secret of a new token, made in the database directly."""
    engine = create_engine(database_url)
    with Session(engine) as session, session.begin():
        _, secret = tokens.create(session, name, scope)
    engine.dispose()
    return secret


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class ApiServer:
    """The API in a thread. It can go away and come back at the same address."""

    def __init__(self, settings: Settings, port: int | None = None) -> None:
        self.settings = settings
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = make_token(settings.database_url)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        app = create_app(self.settings)
        server = self._server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="warning"))
        app.state.ending = lambda: server.should_exit
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the API did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._server and self._thread:
            self._server.should_exit = True
            self._thread.join(20)
            assert not self._thread.is_alive(), "the API did not stop"
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
