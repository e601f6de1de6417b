"""The Data page against the real API."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from api.client import Client
from pipeline.config import ROOT
from tests.api.served import ApiServer, make_token
from tests.hub import Hub
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


def test_a_file_with_other_columns_is_led_to_the_boxes_above(api: ApiServer) -> None:
    app = open_page("data")
    app.file_uploader[0].set_value(("a.csv", b"question,reply\n1+1=,2\n2+2=,4\n", "text/csv"))
    app = checked(app.run())
    (error,) = (e.value.replace("\\", "") for e in app.error)
    assert error == (
        "Not accepted: the file has no column 'prompt'; columns there: question, reply. Name its columns above."
    )
    app.text_input(key="data.prompt_key").set_value("question")
    app = checked(app.text_input(key="data.answer_key").set_value("reply").run())
    assert [s.value for s in app.success] == ["2 prompts, all of them can be used"] and not app.error

    app = open_page("data")
    app.file_uploader[0].set_value(("a.json", b"{", "text/plain"))
    (fault,) = checked(app.run()).error
    assert "the file is not JSON" in fault.value and "rows" not in fault.value and "columns" not in fault.value


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
    (after,) = (b for b in app.button if b.label == "Next")
    assert "Prompts 21 to 30" in "".join(c.value for c in checked(after.click().run()).caption)
    app = click(app, "delete-set")
    with Client(api.url, api.token) as client:
        assert client.list_prompt_sets().prompt_sets == []
    assert "There is no such prompt set" in html(open_page("data", set=f"sums@{stored.version}"))


def from_hub(app: AppTest, typed: str, mapping: str | None = "gsm8k") -> AppTest:
    app = checked(app.segmented_control(key="data.source").set_value("Hub data set").run())
    app.text_input(key="data.hub").set_value(typed)
    app = checked(look_at_it(app).click().run())
    return app if mapping is None else checked(app.selectbox(key="data.mapping").set_value(mapping).run())


def look_at_it(app: AppTest) -> Any:
    (button,) = (b for b in app.button if b.label == "Look at it")
    return button


@pytest.fixture
def gsm8k(hub: Hub) -> Hub:
    for shard in range(2):
        row = {"question": f"<b>{shard}</b> and {shard}?", "answer": f"so\n#### {2 * shard}"}
        hub[f"openai/gsm8k:main/train-0000{shard}-of-00002.jsonl"] = json.dumps(row).encode()
    hub["openai/gsm8k:socratic/train.jsonl"] = b""
    return hub


def test_a_data_set_of_the_hub_is_looked_at_and_added(api: ApiServer, gsm8k: Hub) -> None:
    app = open_page("data")
    assert "or a data set of the Hugging Face hub" in html(app)
    app = from_hub(app, "openai/gsm8k:main/train", None)
    pinned = f"hub:openai/gsm8k@{'a' * 40}:main/train"
    assert app.code[0].value == pinned and len(gsm8k.downloads) == 2
    assert "the data set has no text" not in app.error[0].value and "choose other columns" in app.error[0].value
    assert app.button(key="add-set").disabled

    asked = len(gsm8k.asked)
    gsm8k.commit = "b" * 40  # whatever the branch is now
    app = checked(app.selectbox(key="data.mapping").set_value("gsm8k").run())
    assert [s.value for s in app.success] == ["2 prompts, all of them can be used"] and not app.error
    assert "&lt;b&gt;0&lt;/b&gt; and 0?" in html(app) and "<b>0" not in html(app)
    assert app.text_input(key=f"data.name.{pinned}").value == "gsm8k-main-train"
    app = click(app, "add-set")
    assert len(gsm8k.asked) == asked, "what was looked at is added"
    with Client(api.url, api.token) as client:
        (stored,) = client.list_prompt_sets().prompt_sets
    assert (stored.name, stored.file, stored.mapping) == ("gsm8k-main-train", pinned, "gsm8k")
    assert app.code[0].value == stored.ref and "read as gsm8k" in said(app)
    assert "hub:openai/gsm8k@aaaaaaa:main/train, gsm8k" in html(open_page("data"))


def test_a_data_set_that_does_not_come_is_told_in_words(
    api: ApiServer, gsm8k: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = from_hub(open_page("data"), "https://huggingface.co/datasets/openai/gsm8k", None)
    assert "several splits &#x27;train&#x27;; there are: main/train, socratic/train" in html(app)
    assert not app.selectbox, "of what did not come there are no columns to choose"
    n = len(gsm8k.asked)
    app = checked(app.run())
    assert len(gsm8k.asked) == n and "several splits" not in html(app), "only the button asks again"
    app = checked(look_at_it(app).click().run())
    assert len(gsm8k.asked) == n + 1 and "several splits" in html(app)
    page = html(from_hub(app, "gsm8k", None))
    assert "<b>This is not accepted.</b>" in page and "<code>hub</code>: accepted: hub:OWNER/NAME, " in page
    assert ", hub:OWNER/NAME:SPLIT or " in page and "query" not in page and "see errors" not in page
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    away = html(from_hub(app, "hub:openai/gsm8k:main/train", None))
    assert "The hub does not answer." in away and "upload the data set&#x27;s file" in away
    assert gsm8k.downloads == []


def test_whoever_may_only_read_fetches_nothing(
    api: ApiServer, hub: Hub, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read", "looking"))
    app = checked(open_page("data").segmented_control(key="data.source").set_value("Hub data set").run())
    assert look_at_it(app).disabled and "'looking', has 'read'" in look_at_it(app).help
