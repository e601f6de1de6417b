"""The one place where the dashboard meets the API: which address, and what a person sees when it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import streamlit as st

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import Problem

DEFAULT_URL = "http://127.0.0.1:8000"


def client() -> Client:
    """The API's client, one per address. PILOT_API_URL gives the address."""
    return _client(os.environ.get("PILOT_API_URL") or DEFAULT_URL)


@st.cache_resource(show_spinner=False)
def _client(url: str) -> Client:
    return Client(url, timeout=5)


def show_lost(error: ApiUnreachable, again: str = "This page tries again by itself.") -> None:
    st.html(
        '<div class="pc-banner pc-bad" role="alert"><b>The API does not answer.</b> '
        f"{escape(error.why)}, at {escape(error.url)}. {escape(again)} "
        "Runs go on without the dashboard; nothing is lost. "
        "If it stays away, start the platform with <code>./pilot up</code> or set <code>PILOT_API_URL</code>.</div>"
    )


def show_refused(error: ApiError) -> None:
    problem = error.problem
    if problem.status == 422 and problem.errors and all(e.field.startswith("path.") for e in problem.errors):
        problem = Problem(
            title="There is nothing at this address", status=404, detail="Its run or prompt id is broken."
        )
    rows = "".join(f"<li><code>{escape(e.field)}</code>: {escape(e.message)}</li>" for e in problem.errors)
    st.html(
        f'<div class="pc-banner pc-bad" role="alert"><b>{escape(problem.title)}.</b> {escape(problem.detail)}'
        f"{f'<ul>{rows}</ul>' if rows else ''}</div>"
    )


@contextmanager
def api_errors() -> Iterator[None]:
    """Around a page's body: an API that is away or refuses becomes words, and the page comes back by itself."""
    try:
        yield
    except ApiUnreachable as error:
        show_lost(error)
        st.fragment(_come_back, run_every=2)()
    except ApiError as error:
        show_refused(error)
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")


def _come_back() -> None:
    try:
        client().healthz()
    except (ApiUnreachable, ApiError):
        return
    st.rerun()
