"""The HTML report: one file, nothing fetched, and what a log says is never markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.audit import AuditSettings, BadLog, Bounds, Interval, Report, audit, bounded, page
from pipeline.audit.html import ACCENT, BUCKETS, FATES
from tests.pipeline.audit import logs
from ui import palette

EVIL = '\x1b[31m</style></svg><script>alert(1)</script><img src="http://x.invalid/y" onerror=alert(1)>&"\''


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("log") / "a<b>.csv"
    rolled = [r._replace(prompt=EVIL + r.prompt) for r in logs.stream(6, 4, 8, (0, 3, 8, 8))]
    return audit(logs.table(path, rolled), AuditSettings(replays=2))


def test_a_page_of_its_own(report: Report) -> None:
    html = page(report)
    tags: list[tuple[str, dict[str, str | None]]] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Parser().feed(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in tags}
    assert not any(name in ("src", "href") or name.startswith("on") for _, attrs in tags for name in attrs)
    assert "url(" not in html and "default-src 'none'" in html and "light-dark(" in html
    assert "\x1b" not in html + report.model_dump_json(), "nor is it a command to a terminal"
    assert report.dead and "&lt;script&gt;alert(1)" in html and "width=device-width" in html
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        drawn = ET.fromstring(chart)
        assert drawn.attrib["role"] == "img" and drawn.attrib["aria-label"]
        words = {element.text for element in drawn.iter("text")}
        assert words & {"step", "success rate over the whole log"}, "axes have titles"
        places = [float(v) for e in drawn.iter() for k, v in e.attrib.items() if k in ("x", "y", "cx", "cy")]
        assert places and all(0 <= place <= 440 for place in places)


@pytest.mark.parametrize(
    ("low", "median", "high", "words"),
    [
        (-0.41, 0.02, 0.10, "cannot tell from this log"),
        (0.12, 0.30, 0.42, "12% to 42% fewer"),
        (-0.30, -0.20, -0.05, "5% to 30% more"),
        (0.43, 0.43, 0.43, "43% fewer"),
    ],
)
def test_the_headline_is_as_sure_as_the_replays(
    report: Report, low: float, median: float, high: float, words: str
) -> None:
    saved = Interval(low=low, median=median, high=high)
    last = report.methods[-1].model_copy(update={"saved": saved, "saved_signal": saved})
    html = page(report.model_copy(update={"methods": [*report.methods[:-1], last]}))
    assert f'<div class="a-big">{words}</div>' in html and f"For as much signal: {words}, " in html
    assert "2% fewer" not in html or low > 0, "a median of both signs is no finding"


def test_colours_are_those_of_the_dashboard() -> None:
    assert all(palette.BUCKETS[name].colour == colour for name, colour in BUCKETS.items())
    assert {name: (f.colour, f.label) for name, f in palette.FATES.items() if name in FATES} == FATES
    assert palette.ACCENT == ACCENT


def test_a_page_of_one_step(tmp_path: Path) -> None:
    one = audit(logs.table(tmp_path / "log.csv", logs.stream(1, 1, 2, (1,))), AuditSettings(replays=1))
    assert "Every prompt had a mixed group" in page(one)


def test_a_bounded_audit_is_the_same(report: Report, tmp_path: Path) -> None:
    path = Path(report.source)
    assert bounded(path, AuditSettings(replays=2)) == report
    with pytest.raises(BadLog, match="No such file"):
        bounded(tmp_path / "nothing.csv", AuditSettings())
    with pytest.raises(BadLog, match="takes more than 1 s|ended without an answer"):
        bounded(path, AuditSettings(replays=500), Bounds(seconds=1))


def test_a_file_that_unpacks_to_gigabytes_ends_its_own_process_only(tmp_path: Path) -> None:
    prompt = pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), ["x" * 5_000_000])
    columns = {"step": [1] * 600, "prompt": prompt, "completion": [""] * 600, "r": [0.0, 1.0] * 300}
    path = tmp_path / "completions_1.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(BadLog, match="the memory does not suffice|takes more than 1,500 MiB|ended without"):
        bounded(path, AuditSettings(replays=1), Bounds(seconds=60, memory_mb=1500))
