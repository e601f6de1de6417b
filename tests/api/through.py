"""The typed client's way into an application under test, without a port."""

from __future__ import annotations

import httpx
from fastapi.testclient import TestClient


class Through(httpx.BaseTransport):
    """Starlette's TestClient brings a transport of httpx2 where that is installed; the client's is httpx's."""

    def __init__(self, application: TestClient) -> None:
        self.application = application

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self.application.request(
            request.method, str(request.url), headers=dict(request.headers), content=request.read()
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)
