"""The Data page against the real API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from api.client import Client
from tests.api.served import ApiServer
from tests.ui.test_pages import checked, click, html, open_page

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "tags": ["<b>add</b>"]} for n in range(30)]


@pytest.fixture(autouse=True)
def _home(home: Path) -> None: ...


def test_no_sets_yet(api: ApiServer) -> None:
    page = html(open_page("data"))
    assert "No prompt sets yet" in page and "set:NAME@VERSION" in page


def test_sets_and_one_of_them(api: ApiServer) -> None:
    with Client(api.url, api.token) as client:
        stored = client.upload_prompts("sums", "a.jsonl", "\n".join(map(json.dumps, ROWS)).encode())
    page = html(open_page("data"))
    assert stored.version in page and 'href="data?set=sums@' in page and "a.jsonl, plain" in page
    app: AppTest = open_page("data", set=f"sums@{stored.version}")
    assert app.code[0].value == stored.ref
    assert "&lt;b&gt;add&lt;/b&gt;" in html(app) and "<b>add" not in html(app)
    (after,) = (b for b in app.button if b.label == "After")
    assert "Prompts 21 to 30" in "".join(c.value for c in checked(after.click().run()).caption)
    app = click(app, "delete-set")
    with Client(api.url, api.token) as client:
        assert client.list_prompt_sets().prompt_sets == []
    assert "There is no such prompt set" in html(open_page("data", set=f"sums@{stored.version}"))
