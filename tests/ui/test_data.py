"""The Data page against the real API; a file is chosen, refused, mended and added in a real browser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from streamlit.testing.v1 import AppTest

from api.client import Client
from tests.api.served import ApiServer
from tests.ui.test_browser import browser, dashboard, playwright, process  # noqa: F401
from tests.ui.test_pages import checked, click, html, open_page

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "tags": ["<b>add</b>"]} for n in range(30)]
SHOTS = os.environ.get("PILOT_SHOTS")


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


@pytest.mark.browser
def test_a_file_is_refused_mended_and_added(
    api: ApiServer,
    dashboard: str,  # noqa: F811
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    bad, good = tmp_path / "Bad file.jsonl", tmp_path / "good.jsonl"
    bad.write_text("\n".join(map(json.dumps, [*ROWS, {"prompt": "?"}, ROWS[0]])))
    good.write_text("\n".join(map(json.dumps, ROWS)))
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(f"{dashboard}/data")
    page.locator('input[type="file"]').set_input_files(bad)
    expect(page.get_by_text("Not accepted")).to_be_visible()
    expect(page.get_by_text("has no text in 'answer'")).to_be_visible()
    expect(page.get_by_text("is in row 1, too, with the same answer")).to_be_visible()
    expect(page.get_by_role("button", name="Add this set")).to_be_disabled()
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/data-bad.png", full_page=True)
    page.locator('input[type="file"]').set_input_files(good)
    expect(page.get_by_text("30 prompts, all of them can be used")).to_be_visible()
    page.get_by_role("button", name="Add this set").click()
    expect(page.get_by_text("All prompt sets")).to_be_visible()
    expect(page.get_by_text("set:good@")).to_be_visible()
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/data-one.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 400, "height": 900})
        page.goto(f"{dashboard}/data")
        expect(page.get_by_text("good.jsonl, plain")).to_be_visible()
        page.screenshot(path=f"{SHOTS}/data-narrow-dark.png", full_page=True)
