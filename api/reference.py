"""`/docs`: the whole API on a page that can be tried, Swagger UI. Its files are installed; it asks no other host."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse

PATH: Final = "/docs"
ASSETS: Final = ("swagger-ui.css", "swagger-ui-bundle.js")

_START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null})'
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pilot-Commit API</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    '<link rel="stylesheet" href="docs/swagger-ui.css"></head><body><div id="swagger-ui"></div>'
    f'<script src="docs/swagger-ui-bundle.js"></script><script>{_START}</script></body></html>'
)
# Swagger UI writes style attributes, and draws its icons as data.
_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"script-src 'self' 'sha256-{base64.b64encode(hashlib.sha256(_START.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_to(app: FastAPI) -> None:
    """The page, and the two files that it loads."""
    app.add_route(PATH, lambda _: HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY}))
    installed = files("fastapi_offline") / "static"
    for name in ASSETS:
        app.add_route(f"{PATH}/{name}", partial(_file, str(installed / name)))


def _file(path: str, _: Request) -> FileResponse:
    return FileResponse(path, headers={"Cache-Control": "max-age=86400"})
