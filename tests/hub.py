"""A hub on loopback, in the protocol of the Hugging Face hub's."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Hub(dict[str, bytes]):
    """Files by data set and path: `OWNER/NAME:PATH`. commit: what `main` is at. sizes: what it tells of files,
    where that is not their size. refusals: (status, code) of data sets, or of files, that it does not give. asked: the
    paths of GET requests. before: called before a file is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.commit = "a" * 40
        self.sizes: dict[str, int | None] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def of(self, repo: str) -> dict[str, bytes]:
        return {key.removeprefix(f"{repo}:"): content for key, content in self.items() if key.startswith(f"{repo}:")}

    def told(self, repo: str) -> list[dict[str, Any]]:
        files = [(n, c, self.sizes.get(f"{repo}:{n}", len(c))) for n, c in self.of(repo).items()]
        return [
            {
                "rfilename": n,
                "size": size,
                "lfs": {"sha256": hashlib.sha256(c).hexdigest(), "size": size, "pointerSize": 1},
            }
            for n, c, size in files
        ]

    @property
    def downloads(self) -> list[str]:
        return [path for path in self.asked if "/resolve/" in path]


@contextmanager
def serve() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path.split("?")[0])
            if self.command == "GET":
                hub.asked.append(path)
            _, kind, *rest = path.split("/")
            repo = "/".join(rest[1:3] if kind == "api" else rest[:2])
            if repo in hub.refusals or not hub.of(repo):
                return self.answer(None, *hub.refusals.get(repo, (404, "RepoNotFound")))
            if kind == "api" and "tree" in rest:
                tree = [{"type": "file", "path": n, "size": 1, "oid": "0" * 40} for n in hub.of(repo)]
                return self.answer(json.dumps(tree).encode())
            if kind == "api":
                if rest[3:4] == ["revision"] and rest[4:] not in (["main"], [hub.commit]):
                    return self.answer(None, 404, "RevisionNotFound")
                info = {"id": repo, "sha": hub.commit, "siblings": hub.told(repo)}
                return self.answer(json.dumps(info).encode())
            name = "/".join(rest[4:])
            if refusal := hub.refusals.get(f"{repo}:{name}"):
                return self.answer(None, *refusal)
            if self.command == "GET":
                hub.before()
            self.answer(hub.of(repo).get(name), 404, "EntryNotFound")

        do_HEAD = do_GET

        def answer(self, body: bytes | None, status: int = 404, code: str = "") -> None:
            self.send_response(status if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.send_header("ETag", '"e"')
            self.send_header("X-Repo-Commit", hub.commit)
            if body is None:
                self.send_header("X-Error-Code", code)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
