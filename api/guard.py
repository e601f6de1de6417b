"""What every request passes first: the host name, the web page that sent it, and the size of its body.

The host check stops a web page that points a name of its own at this machine (DNS rebinding); the origin
check stops one that makes its visitor's browser post here. Neither concerns clients that are not browsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import BODY_LIMIT, ApiProblem


class Guard:
    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str], body_limit: int = BODY_LIMIT) -> None:
        self.app = app
        self.allowed_hosts = allowed_hosts
        self.body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_names(scope)
            replay = await self._read_body(Headers(scope=scope), receive)
        except ApiProblem as problem:
            await problem.response(scope["path"])(scope, receive, send)
            return
        await self.app(scope, replay, send)

    def _check_names(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._allowed(f"//{host}"):
            raise ApiProblem(
                "unknown-host",
                f"The host name {host!r} is not one of {', '.join(self.allowed_hosts)}. "
                "Use one of these, or add it to PILOT_ALLOWED_HOSTS.",
            )
        origin = headers.get("origin")
        if scope["method"] not in ("GET", "HEAD") and origin is not None and not self._allowed(origin):
            raise ApiProblem(
                "foreign-origin", f"The web page at {origin!r} may not send {scope['method']} requests here."
            )

    def _allowed(self, url: str) -> bool:
        if "*" in self.allowed_hosts:
            return True
        try:
            return urlsplit(url).hostname in self.allowed_hosts
        except ValueError:
            return False

    async def _read_body(self, headers: Headers, receive: Receive) -> Receive:
        """Reads the whole body, so that one that is too large never reaches a route, however it is sent."""
        too_large = ApiProblem(
            "body-too-large",
            f"At most {self.body_limit // 1024} KiB are accepted. A config names its data; it does not contain it.",
            headers={"Connection": "close"},
        )
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self.body_limit:
            raise too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the client went away
                break
            body += message.get("body", b"")
            if len(body) > self.body_limit:
                raise too_large
            if not message.get("more_body", False):
                break
        pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return replay
