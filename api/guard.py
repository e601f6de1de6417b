"""What every request passes first: the host name, the web page that sent it, its token, how many of them came, and
the size of its body.

The host check stops a web page that points a name of its own at this machine (DNS rebinding); the origin
check stops one that makes its visitor's browser post here. Neither concerns clients that are not browsers.

Every answer carries `X-Request-ID`: the client's own, if it sent a sensible one, or a new one. Audit log and
process log name it.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import sqlalchemy as sa
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import OPEN, Caller, authenticate
from api.metrics import Metrics
from api.problems import BODY_LIMIT, HANDLED, ApiProblem, problem_of
from api.rates import Rates
from db.tokens import TokenRefused

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        engine: sa.Engine,
        sessions: anyio.Semaphore,
        metrics: Metrics,
        allowed_hosts: Sequence[str],
        allowed_origins: Sequence[str] = (),
        rate_per_s: float = 0,
        body_limit: int = BODY_LIMIT,
        uploads: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """uploads: addresses that take larger bodies, and how many bytes. Those are not read here."""
        self.app = app
        self.engine = engine
        self.sessions = sessions
        self.metrics = metrics
        self.allowed_origins = allowed_origins
        self.rates = Rates(rate_per_s, 10 * rate_per_s)
        self.refusals = Rates(rate_per_s / 5, 2 * rate_per_s)  # by address: guessing tokens is hopeless, and costs us
        self.allowed_hosts = allowed_hosts
        self.body_limit = body_limit
        self.uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex

        began = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
                self.metrics.answered(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            self._check_names(scope)
            if scope["path"] not in OPEN:
                scope.setdefault("state", {})["caller"] = await self._caller(scope, headers, request_id)
            largest = self.uploads.get(scope["path"]) if scope["method"] == "POST" else None
            if largest is None:
                replay = await self._read_body(headers, receive)
            else:
                _check_length(headers, largest)
                replay = receive
        except (ApiProblem, *HANDLED) as error:
            await problem_of(error).response(scope["path"])(scope, receive, send_with_id)
            return
        await self.app(scope, replay, send_with_id)

    async def _caller(self, scope: Scope, headers: Headers, request_id: str) -> Caller:
        given = headers.get("authorization")
        try:
            async with self.sessions:
                caller = await anyio.to_thread.run_sync(authenticate, self.engine, given, request_id)
        except (ApiProblem, TokenRefused):
            address, _ = scope.get("client") or ("", 0)
            _slow_down(self.refusals.wait_s(address))
            raise
        _slow_down(self.rates.wait_s(caller.id))
        return caller

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
        if scope["method"] not in ("GET", "HEAD") and origin is not None and not self._allowed_origin(origin):
            raise ApiProblem(
                "foreign-origin", f"The web page at {origin!r} may not send {scope['method']} requests here."
            )

    def _allowed_origin(self, origin: str) -> bool:
        return origin in self.allowed_origins or self._allowed(origin)

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


def _check_length(headers: Headers, largest: int) -> None:
    """Raises ApiProblem unless the body says beforehand that it is small enough; the server holds it to that."""
    declared = headers.get("content-length", "" if "transfer-encoding" in headers else "0")
    if not declared.isdecimal() or int(declared) > largest:
        raise ApiProblem(
            "body-too-large",
            f"At most {largest >> 20} MiB are accepted here, and only with a Content-Length. `./pilot audit` takes "
            "larger logs on your machine; a larger file of prompts is named by its path in a run config.",
            headers={"Connection": "close"},
        )


def _slow_down(wait_s: float) -> None:
    """Raises ApiProblem unless there is no need to wait."""
    if wait_s > 0:
        seconds = math.ceil(wait_s)
        raise ApiProblem(
            "too-many-requests",
            f"Wait {seconds} s. To follow a run, /events or /wait takes one request. PILOT_RATE_LIMIT sets the limit.",
            headers={"Retry-After": str(seconds)},
        )
