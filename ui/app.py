"""The dashboard: see in five seconds whether a run is healthy, what it spends and which prompts teach it.

Start: python -m streamlit run ui/app.py   (PILOT_API_URL tells where the API is)

A page is opened with one line more than Streamlit puts in: its client would look for the server below the page's own
path first, get two 404s, and wait 0.1 s before it looks where the server is (streamlit/streamlit#7074). A client that
no longer reads the line does that again.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

# The server is where the page's own scripts come from, whatever proxy is in between: one step up from the page.
SERVER = '<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", document.baseURI).href}</script>'
INDEX = Path(st.__file__).with_name("static") / "index.html"
DOCUMENT = INDEX.read_text().replace("<head>", f"<head>{SERVER}", 1)


class PageName(StringConvertor):
    """One word, so that Streamlit's own files (favicon.png) stay its own."""

    regex = "[a-z]+"


async def page(_: Request) -> HTMLResponse:
    return HTMLResponse(DOCUMENT, headers={"Cache-Control": "no-cache"})


register_url_convertor("page", PageName())
below = str(st.get_option("server.baseUrlPath")).strip("/")
app = st.App("dashboard.py", routes=[Route(f"/{below}/{{name:page}}".replace("//", "/"), page)])
