"""Runs side by side: none, one, several with seeds; alignment, target and baseline; what is exported."""

from __future__ import annotations

import csv
import io
import uuid
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
import sqlalchemy as sa
from streamlit.testing.v1 import AppTest

from api.client import Client
from api.schemas import AccuracyCurve
from tests.api.served import ApiServer
from tests.ui.story import Story
from tests.ui.test_pages import checked, html, open_page
from ui import compared, figure


@pytest.fixture
def five(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> list[Story]:
    """Pilot-Commit and GRPO with two seeds each, and a run that was not started."""
    methods = {"pilot": {"name": "pilot_commit", "n_pilot": 4, "n_commit": 12}, "grpo": {"name": "grpo", "n": 16}}
    stories = [
        Story(engine, config | {"name": f"{name} s{seed}", "seed": seed, "method": method}, seed=seed)
        .start().train(10).finish("succeeded", "done")
        for name, method in methods.items() for seed in (0, 1)
    ]  # fmt: skip
    return [*stories, Story(engine, config | {"name": "waits", "update": {"lr": 1e-4}})]


def ids(stories: list[Story]) -> list[str]:
    return [str(story.id) for story in stories]


def drawn(app: AppTest) -> dict[str, list[Any]]:
    """The table behind the chart."""
    (chart,) = app.get("vega_lite_chart") or app.get("arrow_vega_lite_chart")
    (dataset,) = chart.proto.datasets
    rows: dict[str, list[Any]] = pa.ipc.open_stream(dataset.data.data).read_all().to_pydict()
    return rows


def test_no_runs_chosen(api: ApiServer) -> None:
    assert "No runs chosen" in html(open_page("compare"))


def test_an_address_with_runs_that_are_not_there(api: ApiServer, five: list[Story]) -> None:
    unknown = str(uuid.uuid4())
    app = open_page("compare", run=[str(five[0].id).upper(), unknown, "<b>", str(five[2].id)])
    page = html(app)
    assert f"Left out: <code>{unknown}</code>, <code>&lt;b&gt;</code>." in page and "There is no such run" not in page
    assert {name for name in drawn(app)["group"] if name} == {"pilot s0", "grpo s0"}, "the others are compared"
    with Client(api.url, api.token) as client:
        client.delete_run(five[2].id)
    page = html(checked(app.run()))
    assert f"<code>{five[2].id}</code>" in page and "There is one run to compare" in page
    page = html(open_page("compare", run=[unknown]))
    assert f"Left out: <code>{unknown}</code>." in page and "No runs chosen" in page


def test_seeds_become_one_line(five: list[Story]) -> None:
    app = open_page("compare", run=ids(five[:4]))
    page = html(app)
    assert "2 of 2 reach it" in page and "seeds 0, 1" in page
    assert ">pilot</span>" in page and ">grpo</span>" in page, "what the names have in common"
    assert "baseline" in page and "(no interval: fewer than 3 seeds)" in page
    assert "<code>method.name</code>" in page and "<code>method.n</code>" in page and "<code>seed" not in page
    rows = drawn(app)
    assert {name for name in rows["group"] if name} == {"pilot", "grpo"}
    kinds = {kind: rows["kind"].count(kind) for kind in set(rows["kind"])}
    assert kinds == {"run": 4 * 3, "middle": 2 * compared.GRID, "target": 1}
    bands = zip(rows["low"], rows["accuracy"], rows["high"], strict=True)
    assert all(low <= middle <= high for low, middle, high in bands if low is not None)


def test_an_interval_over_three_seeds(engine: sa.Engine, config: dict[str, Any], five: list[Story]) -> None:
    for name, first in (("pilot", five[0]), ("grpo", five[2])):
        method = first.now().config["method"]
        five.append(
            Story(engine, config | {"name": f"{name} s2", "seed": 2, "method": method}, seed=2).start().train(10)
        )
    page = html(open_page("compare", run=ids([*five[:4], *five[5:]])))
    assert "seeds 0, 1, 2" in page and 'title="seeds paired">(' in page and "no interval" not in page


def test_alignment(five: list[Story]) -> None:
    app = open_page("compare", run=ids(five[:2]))
    spent = max(x for x in drawn(app)["x"] if x is not None)
    assert spent == max(story.rollouts for story in five[:2])
    app = checked(app.segmented_control(key="by").set_value("steps").run())
    assert max(x for x in drawn(app)["x"] if x is not None) == 10
    assert "times fewer steps than" in html(app)


def test_target_and_baseline(five: list[Story]) -> None:
    app = open_page("compare", run=ids(five), reach="99")
    page = html(app)
    assert "until 99% is reached" in page and page.count(">0 of 2 reach it<") == 2 and "never gets there" in page
    assert ">never</span>" in page
    app = open_page("compare", run=ids(five[:4]), baseline=str(five[2].id))
    assert "times fewer rollouts than grpo" in html(app)


def test_a_run_that_was_not_started(five: list[Story]) -> None:
    page = html(open_page("compare", run=ids(five[4:])))
    assert "None of these runs was evaluated yet" in page and "There is one run to compare" in page
    page = html(open_page("compare", run=ids(five[3:])))
    assert "no target yet" in page and "update.lr" in page


def test_what_is_exported(api: ApiServer, five: list[Story]) -> None:
    with Client(api.url, api.token) as client:
        found = client.compare(ids(five[:4]), target=0.45)
    rows = list(csv.DictReader(io.StringIO(compared.curves_csv(found))))
    assert len(rows) == 4 * 3 and {row["group"] for row in rows} == {"pilot", "grpo"}
    assert float(rows[0]["accuracy"]) == found.runs[0].evaluations.accuracy[0]
    pilot, grpo = csv.DictReader(io.StringIO(compared.table_csv(found)))
    assert (pilot["runs"], pilot["seeds"], pilot["low"]) == ("2", "0 1", "")
    assert float(grpo["times fewer rollouts than pilot"]) == found.groups[1].against.value  # type: ignore[union-attr]


def test_the_chart_as_a_file(api: ApiServer, five: list[Story]) -> None:
    with Client(api.url, api.token) as client:
        client.change_run(five[4].id, name="a + b")
        found = client.compare(ids(five), target=0.45)
    drawing = ElementTree.fromstring(figure.svg(found, "steps"))
    tags = [element.tag.rpartition("}")[2] for element in drawing.iter()]
    assert tags.count("polyline") == 2 + 1 and tags.count("polygon") == 2, "medians, the target, bands"
    words = {element.text for element in drawing.iter() if element.text}
    assert {"training steps", "a + b", "pilot, median and range of 2 seeds"} <= words
    for line in drawing.iter("{http://www.w3.org/2000/svg}polyline"):
        places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        assert all(figure.LEFT <= x <= figure.WIDTH - figure.RIGHT for x, _ in places)
        assert all(figure.TOP <= y <= figure.HEIGHT - figure.BOTTOM for _, y in places)
    nothing = found.model_copy(update={"runs": [], "groups": [], "target": None})
    assert ElementTree.fromstring(figure.svg(nothing, "hours")) is not None


def test_a_band_is_where_all_seeds_are_known() -> None:
    def curve(xs: list[int], ys: list[float]) -> AccuracyCurve:
        return AccuracyCurve(
            step=xs, rollouts=xs, tokens=xs, hours=xs, accuracy=ys, stderr=[0.0] * len(xs), greedy_accuracy=ys
        )

    places = compared.band([curve([0, 100], [0.0, 1.0]), curve([20, 40, 90], [0.5, 0.5, 0.1])], "rollouts")
    assert (places[0]["x"], places[-1]["x"]) == (20, 90)
    assert (places[0]["low"], places[0]["accuracy"], places[0]["high"]) == (0.2, 0.35, 0.5)
    assert places[-1]["low"] == pytest.approx(0.1) and places[-1]["high"] == pytest.approx(0.9)
    assert compared.band([curve([0, 10], [0, 1]), curve([10, 20], [0, 1])], "rollouts") == []


def test_the_api_is_away(api: ApiServer) -> None:
    api.stop()
    page = html(open_page("compare", run=[str(uuid.uuid4())]))
    assert "The API does not answer" in page and "Traceback" not in page
