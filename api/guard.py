"""What every request passes first: the host name, the web page that sent it, its token, and the size of its body.

The host check stops a web page that points a name of its own at this machine (DNS rebinding); the origin
check stops one that makes its visitor's browser post here. Neither concerns clients that are not browsers.

Every answer carries `X-Request-ID`: the client's own, if it sent a sensible one, or a new one. Audit log and
process log name it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

import anyio.to_thread
import sqlalchemy as sa
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import OPEN, Caller, authenticate
from api.problems import BODY_LIMIT, HANDLED, ApiProblem, problem_of

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Guard:
    def __init__(
        self, app: ASGIApp, engine: sa.Engine, allowed_hosts: Sequence[str], body_limit: int = BODY_LIMIT
    ) -> None:
        self.app = app
        self.engine = engine
        self.allowed_hosts = allowed_hosts
        self.body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            self._check_names(scope)
            if scope["path"] not in OPEN:
                scope.setdefault("state", {})["caller"] = await self._caller(headers, request_id)
            replay = await self._read_body(headers, receive)
        except (ApiProblem, *HANDLED) as error:
            await problem_of(error).response(scope["path"])(scope, receive, send_with_id)
            return
        await self.app(scope, replay, send_with_id)

    async def _caller(self, headers: Headers, request_id: str) -> Caller:
        given = headers.get("authorization")
        return await anyio.to_thread.run_sync(authenticate, self.engine, given, request_id)

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
