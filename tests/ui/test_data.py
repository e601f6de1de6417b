"""The Data page against the real API."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from api.client import Client
from pipeline.config import ROOT
from tests.api.served import ApiServer
from tests.ui.test_pages import checked, click, html, open_page

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "tags": ["<b>add</b>"]} for n in range(30)]


@pytest.fixture(autouse=True)
def _home(home: Path) -> None: ...


def test_no_sets_yet(api: ApiServer) -> None:
    page = html(open_page("data"))
    assert "No prompt sets yet" in page and "set:NAME@VERSION" in page


def test_what_the_page_takes_is_told(api: ApiServer) -> None:
    app = open_page("data")
    assert app.file_uploader[0].proto.max_upload_size_mb == 64
    assert "A larger one, up to 256 MiB: `./pilot data upload FILE`" in said(app)


def test_over_long_prompts_are_found_by_a_model(api: ApiServer, tmp_path: Path) -> None:
    policy = shutil.copytree(ROOT / "pipeline" / "bundled" / "policy", tmp_path / "policy")
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200}))
    rows = [{"prompt": "short", "answer": "1"}, {"prompt": "long " * 300, "answer": "caf\ufffd"}]
    app = open_page("data")
    app.file_uploader[0].set_value(("a.jsonl", "\n".join(map(json.dumps, rows)).encode(), "text/plain"))
    app = checked(app.run())
    assert "Length: not counted, no model given" in said(app)
    assert [e.label for e in app.expander] == [
        "Prompts with replacement characters (U+FFFD): their text was broken before: 1"
    ]
    app = checked(app.text_input(key="data.model").set_value(str(policy)).run())
    assert "Longest prompt: 1," in said(app) and "no model given" not in said(app)
    assert app.expander[0].label == "Prompts that are too long for the model: 1"
    click(app, "add-set")
    with Client(api.url, api.token) as client:
        (stored,) = client.list_prompt_sets().prompt_sets
        assert (client.get_prompt_set(stored.name, stored.version).report.longest or 0) > 1000


def test_one_prompt_is_no_prompts(api: ApiServer) -> None:
    app = open_page("data")
    app.file_uploader[0].set_value(("a.jsonl", json.dumps(ROWS[0]).encode(), "text/plain"))
    assert [s.value for s in checked(app.run()).success] == ["1 prompt, it can be used"]


def said(app: AppTest) -> str:
    return "\n".join(caption.value for caption in app.caption)


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
