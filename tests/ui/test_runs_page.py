"""The list of runs: none, few, many, archived; filters, ticks and what they are for; the API away."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa
from streamlit.testing.v1 import AppTest

from api.client import Client
from db.models import Run
from tests.api.served import ApiServer
from tests.ui.story import Story
from tests.ui.test_pages import APP, checked, click, html, labels, open_page


def opened(**query: Any) -> AppTest:
    """The list as a deep link opens it: it is the page that comes first."""
    app = AppTest.from_file(str(APP), default_timeout=30)
    for key, value in query.items():
        app.query_params[key] = value
    return checked(app.run())


def names(app: AppTest) -> list[str]:
    return [link.proto.label for link in app.get("page_link")]


def tick(app: AppTest, *stories: Story) -> AppTest:
    for story in stories:
        app = checked(app.checkbox(key=f"select-{story.id}").check().run())
    return app


@pytest.fixture
def four(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> dict[str, Story]:
    """One of each kind; `done` has tags, `broke` is somebody else's."""
    stories = {
        "waits": Story(engine, config | {"name": "waits"}),
        "works": Story(engine, config | {"name": "works"}).start().train(6),
        "done": Story(engine, config | {"name": "done", "method": {"name": "grpo", "n": 8}})
        .start().train(6).finish("succeeded", "All steps are done."),
        "broke": Story(engine, config | {"name": "broke"}).start().finish("failed", "Out of <memory>."),
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.update(Run).values(created_by="ada"))
        connection.execute(sa.update(Run).where(Run.name == "done").values(tags=["baseline", "x"]))
        connection.execute(sa.update(Run).where(Run.name == "broke").values(created_by="bob"))
    return stories


def test_no_runs_yet(api: ApiServer) -> None:
    page = html(open_page("runs"))
    assert "No runs yet" in page and "New run" in page, "an empty list tells what to do"
    assert "./pilot run start CONFIG.yaml" in page


def test_runs_of_every_kind(four: dict[str, Story]) -> None:
    app = open_page("runs")
    page = html(app)
    for state in ("queued", "running", "succeeded", "failed"):
        assert f"</i>{state}</span>" in page
    assert names(app) == ["broke", "done", "works", "waits"]
    assert "Pilot-Commit" in page and "40k" in page and "step 6 of 60" in page
    assert 'title="Out of &lt;memory&gt;. Read its log' in page, "the reason, escaped"
    assert '<span class="pc-tag">baseline</span>' in page and ">bob</span></span>" in page
    assert page.count("clip-path:polygon") == 2, "accuracy of those that were evaluated twice"
    assert "left</span>" in page and re.search(
        r"waits</span><small [^>]*>for <span [^>]*>[\d.]+ s</span></small>", page
    )


def test_a_budget_of_steps_alone_has_a_bar(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = Story(engine, config | {"budget": {"steps": 8}}).start().train(6)
    row = html(open_page("runs"))
    assert f'title="{run.rollouts:,}"' in row and row.count('class="pc-bar"') == 1
    assert '<i style="width:75.0%' in row and "step 6 of 8" in row


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": ["failed", "queued"]}, ["broke", "waits"]),
        ({"method": "GRPO"}, ["done"]),
        ({"tagged": "x"}, ["done"]),
        ({"owner": "bob"}, ["broke"]),
        ({"q": "WO"}, ["works"]),
        ({"order": "name"}, ["broke", "done", "waits", "works"]),
        ({"order": "state"}, ["waits", "works", "done", "broke"]),
        ({"order": "most variance", "state": ["running", "queued"]}, ["works", "waits"]),
        ({"order": "owner", "state": ["failed", "queued"]}, ["waits", "broke"]),
        ({"owner": "nobody"}, ["broke", "done", "works", "waits"]),  # not one of the choices: left out
    ],
)
def test_deep_links(four: dict[str, Story], query: dict[str, Any], expected: list[str]) -> None:
    assert names(opened(**query)) == expected


def test_nothing_matches_and_the_way_back(four: dict[str, Story]) -> None:
    app = opened(q="none of them")
    assert "No run matches" in html(app) and names(app) == []
    assert len(names(click(app, "clear-filters"))) == 4


def test_runs_are_paged(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    for number in range(27):
        Story(engine, config | {"name": f"run {number}"})
    app = open_page("runs")
    assert (len(names(app)), names(app)[0]) == (25, "run 26")
    assert app.caption[-1].value == "1–25 of 27 runs"
    ticked = app.checkbox[0].check().run()
    (following,) = (b for b in ticked.button if b.label == "Next")
    app = checked(following.click().run())
    assert names(app) == ["run 1", "run 0"] and app.caption[-1].value == "26–27 of 27 runs"
    assert "**1 run**" in [m.value for m in app.markdown], "still ticked"
    (back,) = (b for b in app.button if b.label == "Back")
    assert checked(back.click().run()).checkbox[0].value is True


def test_what_ticked_runs_are_for(api: ApiServer, four: dict[str, Story]) -> None:
    app = open_page("runs")
    assert labels(app) == ["New run"]
    app = tick(app, four["works"])
    assert labels(app)[1:] == ["Compare", "Clone", "Stop", "Save", "Untick"]
    app = tick(app, four["broke"], four["waits"])
    assert labels(app)[1:] == ["Compare", "Stop 2", "Resume", "Save", "Archive", "Untick"]
    app = click(app, "stop-selected")
    assert four["works"].now().state == "stopping" and four["waits"].now().state == "stopped"
    app = click(app, "resume-selected")
    assert four["broke"].now().state == "queued" and four["waits"].now().state == "queued"
    assert labels(click(app, "clear-selected")) == ["New run"]


def test_the_archive(api: ApiServer, four: dict[str, Story]) -> None:
    app = click(tick(open_page("runs"), four["done"]), "archive-selected")
    assert names(app) == ["broke", "works", "waits"]
    app = click(checked(app.selectbox(key="archived").select("archived").run()), "unarchive-selected")
    assert "No run matches" in html(app)
    assert len(names(checked(app.selectbox(key="archived").select("not archived").run()))) == 4


def test_all_runs_are_archived(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    Story(engine, config)
    with engine.begin() as connection:
        connection.execute(sa.update(Run).values(archived_at=sa.func.now()))
    assert "All runs are archived" in html(open_page("runs"))


def test_tags(api: ApiServer, four: dict[str, Story]) -> None:
    """Of several runs those that all have are changed; the others stay."""
    with Client(api.url, api.token) as client:
        client.change_run(four["broke"].id, tags=["x", "own"])
        app = tick(open_page("runs"), four["done"], four["broke"])
        (choice,) = (m for m in app.multiselect if m.label == "Tags of all 2 runs")
        assert choice.value == ["x"] and choice.options == ["baseline", "own", "x"]
        choice.set_value(["own"])
        (save,) = (b for b in app.button if b.label == "Save")
        checked(save.click().run())
        assert client.get_run(four["done"].id).tags == ["baseline", "own"]
        assert client.get_run(four["broke"].id).tags == ["own"]


def test_a_token_that_may_only_read_is_told(
    api: ApiServer, four: dict[str, Story], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.api.served import make_token

    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read"))
    stop = tick(open_page("runs"), four["works"]).button(key="stop-selected")
    assert stop.disabled and "needs a token with the scope 'run'" in stop.help
