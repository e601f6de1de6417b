"""The dashboard in a real browser: live numbers without a reload, stop, deep links, no console errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, expect, sync_playwright

from api.client import Client
from api.settings import Settings
from bench.served import serving
from db.models import Attempt
from tests.api.served import ApiServer, free_port
from tests.hub import Hub
from tests.ui.story import Story
from ui import palette
from ui.palette import BUCKETS

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SHOTS = os.environ.get("PILOT_SHOTS")
BEYOND = "(m => m.scrollWidth - m.clientWidth)(document.querySelector('[data-testid=\"stMain\"]'))"

# What is cut off, or scrolls sideways, within the page.
CUT = "[...document.querySelectorAll('.pc-row, .pc-scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
expect.set_options(timeout=30_000)  # test machines are slow at times


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    assert CHROMIUM, "this test needs Chromium on the PATH (Debian/Ubuntu: apt-get install chromium)"
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
    yield browser
    browser.close()


class Process(NamedTuple):
    url: str
    pid: int
    api_port: int
    token: Path


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The dashboard in a process of its own, as `pilot up` starts it. All tests share it; each has an API of its own
    at the address that it was told."""
    port, api_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    folder = tmp_path_factory.mktemp("dashboard")
    log, token = folder / "dashboard.log", folder / "token"
    command = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(port)]
    told = {"PILOT_API_URL": f"http://127.0.0.1:{api_port}", "PILOT_TOKEN_FILE": str(token)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | told, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.1)
        yield Process(url, process.pid, api_port, token)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture
def api(process: Process, database_url: str, broker_url: str, tmp_path: Path) -> Iterator[ApiServer]:
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=tmp_path / "home")
    with ApiServer(settings, process.api_port) as server:
        process.token.write_text(server.token)
        yield server


@pytest.fixture
def dashboard(process: Process, api: ApiServer) -> str:
    return process.url


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.foreign: list[str] = []
        self.loads = 0
        self.frames = 0  # messages from the dashboard's server
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)
        page.on("load", lambda _: self._loaded())
        page.on("websocket", lambda socket: socket.on("framereceived", lambda _: self._received()))

    def _loaded(self) -> None:
        self.loads += 1

    def _received(self) -> None:
        self.frames += 1

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location}")
        elif "WARN" in message.text:  # Vega's
            self.warnings.append(f"{message.text} {message.location}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.foreign.append(request.url)


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(30_000)
    watched = Watched(context.new_page())
    yield watched
    context.close()
    assert watched.errors == []
    assert watched.foreign == [], "the dashboard asks no other machine for anything"


def counts(page: Page) -> dict[str, int]:
    """What the six tiles say."""
    tiles = {name: page.locator(f".st-key-bucket-{name} .pc-tile-value") for name in BUCKETS}
    return {name: int(tile.get_attribute("data-count") or -1) for name, tile in tiles.items()}


def expect_counts(page: Page, story: Story) -> None:
    for name, count in story.now().buckets.items():
        expect(page.locator(f".st-key-bucket-{name} .pc-tile-value")).to_have_attribute("data-count", str(count))


def test_buckets_move_without_a_reload(dashboard: str, watched: Watched, running: Story) -> None:
    page = watched.page
    page.goto(f"{dashboard}/run?run={running.id}")
    expect_counts(page, running)
    expect(page).to_have_title("demo · Pilot-Commit")
    before = counts(page)
    assert sum(before.values()) == 200
    expect(page.locator(".stVegaLiteChart svg.marks")).to_have_count(6)
    page.evaluate(
        """() => {
            window.never_reloaded = true;
            document.querySelector('.st-key-chart-buckets svg.marks').marked = true;
            document.querySelector('[data-testid="stMain"]').scrollTo(0, 300);
        }"""
    )
    for _ in range(3):
        running.train(1)
        expect_counts(page, running)
    assert counts(page) != before
    expect(page.locator(".pc-meters")).to_contain_text("15")
    assert page.evaluate("window.never_reloaded") is True and watched.loads == 1
    assert page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollTop") == 300, "no scroll jump"
    assert page.evaluate("document.querySelector('.st-key-chart-buckets svg.marks').marked"), (
        "the chart is updated, not drawn anew"
    )


def test_a_dashboard_below_a_path_is_opened_without_errors(watched: Watched, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/rl"
    command = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(port)]
    with serving([*command, "--server.baseUrlPath=rl"], {}, f"{url}/_stcore/health", tmp_path / "log"):
        for path in ("", "/compare?of=1"):  # the first is sent on to "/rl/"
            watched.page.goto(url + path)
            expect(watched.page.get_by_role("link", name="Compare")).to_be_visible()


def test_stop_finish_and_the_end_of_polling(dashboard: str, watched: Watched, running: Story) -> None:
    page = watched.page
    page.goto(f"{dashboard}/run?run={running.id}")
    expect_counts(page, running)
    polled = watched.frames
    page.wait_for_timeout(5000)
    assert watched.frames > polled, "a running run is polled"
    page.locator(".st-key-stop-run button:visible").click()
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("stopping")
    expect(page.locator(".st-key-stop-run button:visible")).to_be_disabled()
    assert running.now().state == "stopping"
    running.finish("stopped", "Stopped by request after step 12.")
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("stopped")
    expect(page.locator(".st-key-run-header")).to_contain_text("Stopped by request after step 12.")
    expect(page.locator(".st-key-resume-run button:visible")).to_be_enabled()
    frames = -1
    deadline = time.monotonic() + 60
    while frames != watched.frames:  # a poll every two seconds would never let this end
        assert time.monotonic() < deadline, "a finished run is still polled"
        frames = watched.frames
        page.wait_for_timeout(5000)


def test_the_api_goes_away_and_comes_back(dashboard: str, watched: Watched, api: ApiServer, running: Story) -> None:
    page = watched.page
    page.goto(f"{dashboard}/run?run={running.id}")
    expect_counts(page, running)
    api.stop()
    expect(page.get_by_role("alert")).to_contain_text("The API does not answer")
    expect_counts(page, running)
    running.train(1)
    api.start()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect_counts(page, running)
    assert watched.loads == 1


def test_from_the_list_to_a_prompt_and_its_deep_link(
    dashboard: str, watched: Watched, browser: Browser, api: ApiServer, running: Story
) -> None:
    page = watched.page
    page.goto(dashboard)
    page.locator(f".st-key-run-row-{running.id} a").click()
    expect(page.locator(".st-key-run-header h1")).to_have_text("demo")
    assert f"run={running.id}" in page.url
    page.locator(".st-key-open-prompts button").click()
    page.locator(".st-key-bucket button", has_text="committed").click()
    expect(page.locator(".st-key-prompts-table .pc-bucket").first).to_have_text("committed")
    row = page.locator('[class*="st-key-prompt-row-"] a').first
    name = row.inner_text()
    row.click()
    expect(page.locator("pre.pc-text").first).to_contain_text(name.split("?")[0])
    expect(page.locator(".st-key-chart-visits svg.marks")).to_be_visible()
    with Client(api.url, api.token) as client:
        first = client.prompts(running.id, bucket="committed", limit=1).prompts[0]
    assert watched.loads == 1, "walking through the dashboard loads nothing anew"
    page.goto(f"{dashboard}/prompt?run={running.id}&prompt={first.id}")
    expect(page.locator("pre.pc-text").first).to_have_text(first.text)
    expect(page.locator("pre.pc-text").nth(1)).to_have_text(first.answer)


COUNTS = """() => [...document.querySelectorAll('.st-key-bucket button')].map(
    b => getComputedStyle(b, '::after').content.replaceAll('"', ''))"""


def test_the_prompts_follow_a_run_without_a_reload(
    dashboard: str, watched: Watched, api: ApiServer, running: Story, tmp_path: Path
) -> None:
    page = watched.page
    with Client(api.url, api.token) as client:
        client.mark_prompts(running.id, "exclude", bucket="committed")
    page.goto(f"{dashboard}/prompts?run={running.id}&marked=in+any+way")
    rows = page.locator('[class*="st-key-prompt-row-"] a')
    expect(rows.nth(2)).to_contain_text("to be excluded")
    running.apply_marks().train(2)
    expect(rows.nth(2)).to_have_text(re.compile("excluded ·(?<!to be excluded ·)"))
    page.wait_for_function(
        f"words => JSON.stringify(({COUNTS})()) === words",
        arg=json.dumps(
            [str(running.now().buckets.get(bucket, 0)) for bucket in palette.BUCKETS], separators=(",", ":")
        ),
    )
    page.screenshot(path=tmp_path / "prompts.png", full_page=True)
    assert watched.loads == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits(dashboard: str, browser: Browser, running: Story, tmp_path: Path, scheme: Any) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    watched = Watched(page)
    pages = {  # with what comes last on each; the first of a new process is a deep link
        "new": ".st-key-group-engine input",
        "workers": ".pc-empty",
        "settings": ".st-key-tokens",
        "audit": ".st-key-audit-go button",
        "": ".st-key-runs-table .pc-sparkline",
        f"run?run={running.id}": ".st-key-below ~ * .pc-table, .pc-table",
        f"prompts?run={running.id}": '[data-testid="stCaptionContainer"]',
        f"prompt?run={running.id}&prompt=p0000": ".pc-table",
    }
    for path, last in pages.items():
        page.goto(f"{dashboard}/{path}")
        page.locator(last).last.wait_for(timeout=30_000)
        if path.startswith("run?"):
            expect(page.locator(".stVegaLiteChart svg.marks")).to_have_count(6)
        expect(page.get_by_text("Page not found")).to_have_count(0)
        for width in (1440, 1024, 420, 390):
            page.set_viewport_size({"width": width, "height": 900})
            deadline = time.monotonic() + 15
            while (wide := page.evaluate(BEYOND)) > 0:  # charts take their new width a moment later
                assert time.monotonic() < deadline, f"/{path} is {wide} px wider than a screen of {width}"
                page.wait_for_timeout(100)
            assert width < 1000 or page.evaluate(CUT) == 0, f"rows or tables of /{path} are cut off at {width} px"
            page.screenshot(path=tmp_path / f"{path.partition('?')[0] or 'runs'}-{scheme}-{width}.png")
        page.set_viewport_size({"width": 1440, "height": 900})
    background = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 380) == (scheme == "light")
    assert watched.errors + watched.warnings == [], "no chart is drawn without rows"
    context.close()


def test_the_step_under_way_fits_a_phone(dashboard: str, watched: Watched, engine: sa.Engine, running: Story) -> None:
    """In words and as a bar."""
    with engine.begin() as connection:
        connection.execute(sa.update(Attempt).values(open_rollouts=1360))
    watched.page.set_viewport_size({"width": 390, "height": 900})
    watched.page.goto(f"{dashboard}/run?run={running.id}")
    line = watched.page.locator(".pc-under-way")
    expect(line).to_contain_text("up to 1,360 rollouts")
    assert line.evaluate("e => e.scrollWidth <= e.clientWidth") and watched.page.evaluate(BEYOND) <= 0
    assert line.locator(".pc-bar").evaluate("e => e.clientWidth") > 200


def test_the_reference_of_the_api_needs_no_network(watched: Watched, api: ApiServer, tmp_path: Path) -> None:
    page = watched.page
    answer = page.goto(f"{api.url}/docs")
    assert answer is not None and "default-src 'none'" in answer.headers["content-security-policy"]
    expect(page.locator(".opblock").first).to_be_visible()
    page.locator("#operations-runs-list_runs button.opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute", exact=True).click()
    expect(page.locator(".live-responses-table .response .response-col_status")).to_contain_text("401")
    page.screenshot(path=tmp_path / "reference.png")
    (refused,) = (error for error in watched.errors if "/api/v1/runs" in error and "401" in error)
    watched.errors.remove(refused)


def test_the_dashboard_is_small(process: Process, dashboard: str, watched: Watched, running: Story) -> None:
    """Resident memory after pages were used; the whole idle platform has 700 MB."""
    watched.page.goto(f"{dashboard}/run?run={running.id}")
    expect_counts(watched.page, running)
    resident = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert resident and int(resident[1]) < 250_000, resident
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_a_log_is_audited_in_the_browser(dashboard: str, watched: Watched, tmp_path: Path) -> None:
    """A file with a bad row is refused by name; left out, the report is there, and to be downloaded."""
    rows = [f"{step},{step}+{i}=,{int(j < 4 * (i % 3))}" for step in (1, 2, 3) for i in range(6) for j in range(8)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["step,prompt,reward", *rows, "4,5+5=,much"]))
    page = watched.page
    page.goto(f"{dashboard}/audit")
    expect(page.locator(".st-key-audit-go button:visible")).to_be_disabled()
    page.locator('[data-testid="stFileUploaderDropzoneInput"]').set_input_files(log)
    page.locator(".st-key-audit-go button:visible").click()
    expect(page.get_by_role("alert")).to_contain_text("1 bad row: log.csv, row 145: 'reward' is 'much', not a number")
    page.get_by_test_id("stExpander").get_by_text("Settings").click()
    page.get_by_text("Leave bad rows out").click()
    page.locator(".st-key-audit-go button:visible").click()
    report = page.frame_locator(".st-key-audit-report iframe")
    expect(report.locator("body")).to_contain_text("66.7%")
    expect(report.locator("body")).to_contain_text("Bad rows left out: 1")
    expect(report.locator("svg.a-chart")).to_have_count(4)
    expect(report.locator("svg.a-chart polygon").first).to_be_visible()
    page.screenshot(path=tmp_path / "audit.png", full_page=True)
    with page.expect_download() as download:
        page.locator(".st-key-audit-html button:visible").click()
    assert "66.7%" in Path(download.value.path()).read_text()


def test_a_run_is_started_in_the_browser(
    dashboard: str, watched: Watched, api: ApiServer, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [{"name": "small", "group": "", "title": "Small", "description": "A small run.", "config": config}]
    monkeypatch.setattr("api.routes.config.presets", lambda: given)
    page = watched.page
    page.goto(f"{dashboard}/new")
    expect(page.locator(".st-key-start-run button:visible")).to_be_enabled()
    steps = page.locator(".st-key-group-budget input").first
    steps.fill("0")
    steps.press("Enter")
    expect(page.locator(".st-key-group-budget .pc-field-problem")).to_contain_text("greater than or equal to 1")
    expect(page.locator(".st-key-start-run button:visible")).to_be_disabled()
    steps.fill("9")
    steps.press("Enter")
    expect(page.locator(".pc-field-problem")).to_have_count(0)
    page.locator(".st-key-start-run button:visible").click()
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("queued")
    with Client(api.url, api.token) as client:
        (made,) = client.list_runs().runs
    assert made.steps_budget == 9 and f"run={made.id}" in page.url


def test_what_is_typed_while_the_api_is_away_is_kept(
    dashboard: str, watched: Watched, api: ApiServer, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [{"name": "small", "group": "", "title": "Small", "description": "A small run.", "config": config}]
    monkeypatch.setattr("api.routes.config.presets", lambda: given)
    page = watched.page

    def field(label: str) -> Any:
        return page.get_by_label(label, exact=True)

    def type_in(label: str, words: str) -> None:
        field(label).fill(words)
        field(label).press("Enter")

    page.goto(f"{dashboard}/new")
    type_in("Name", "typed before")
    expect(field("Config as YAML")).to_have_value(re.compile("name: typed before"))
    api.stop()
    type_in("Seed", "3")
    expect(page.locator(".pc-banner")).to_contain_text("does not answer")
    expect(field("Config as YAML")).to_have_value(re.compile("seed: 3"))
    page.get_by_role("link", name="Data", exact=True).first.click()
    expect(page.locator(".pc-banner")).to_contain_text("does not answer")
    expect(field("Seed")).to_have_count(0)
    api.start()
    page.get_by_role("link", name="New run", exact=True).first.click()
    expect(page.locator(".st-key-start-run button:visible")).to_be_enabled()
    expect(page.locator(".pc-banner")).to_have_count(0)
    expect(field("Name")).to_have_value("typed before")
    expect(field("Seed")).to_have_value("3")
    expect(field("Config as YAML")).to_have_value(re.compile("name: typed before\nseed: 3"))
    type_in("Seed", "4")
    expect(field("Config as YAML")).to_have_value(re.compile("seed: 4"))


def test_runs_are_found_ticked_and_compared(
    dashboard: str, watched: Watched, engine: sa.Engine, config: Any, tmp_path: Path
) -> None:
    """Filter, tick two, compare, align otherwise, save the chart; every address opens the same again."""
    methods = ({"name": "pilot_commit", "n_pilot": 4, "n_commit": 12}, {"name": "grpo", "n": 16})
    stories = [
        Story(engine, config | {"name": f"sweep {method['name']}", "method": method}).start().train(10)
        .finish("succeeded", "done") for method in methods
    ]  # fmt: skip
    Story(engine, config | {"name": "other"})
    page = watched.page
    page.goto(dashboard)
    expect(page.locator('[class*="st-key-run-row-"]')).to_have_count(3)
    search = page.locator(".st-key-q input")
    search.fill("sweep")
    search.press("Enter")
    expect(page.locator('[class*="st-key-run-row-"]')).to_have_count(2)
    assert "q=sweep" in page.url
    for story, ticked in zip(stories, ("1 run", "2 runs"), strict=True):
        page.locator(f".st-key-select-{story.id} label").click()
        expect(page.locator(".st-key-run-actions-bar")).to_contain_text(ticked)
    page.reload()
    expect(page.locator('[class*="st-key-run-row-"]')).to_have_count(2)
    for story in stories:
        page.locator(f".st-key-select-{story.id} label").click()
        expect(page.locator(f".st-key-select-{story.id} input")).to_be_checked()
    expect(page.locator(".st-key-run-actions-bar")).to_contain_text("2 runs")
    page.locator(".st-key-tags-selected button:visible").click()
    page.get_by_label("Tags of all 2 runs").fill("first")
    page.get_by_label("Tags of all 2 runs").press("Enter")
    page.get_by_role("button", name="Save").click()  # whatever list the field still shows
    for story in stories:
        expect(page.locator(f".st-key-run-row-{story.id} .pc-tag")).to_have_text("first")
    page.keyboard.press("Escape")
    page.locator(".st-key-compare-selected button:visible").click()
    chart = page.locator(".st-key-chart-compare")
    expect(chart.locator("svg.marks")).to_contain_text("training rollouts spent")
    for story in stories:
        assert f"run={story.id}" in page.url
    page.locator(".st-key-by button", has_text="steps").click()
    expect(chart.locator("svg.marks")).to_contain_text("training steps")
    assert "by=steps" in page.url
    expect(page.get_by_text("times fewer steps than")).to_be_visible()
    page.goto(page.url)
    expect(page).to_have_title("Compare · Pilot-Commit")
    expect(chart.locator("svg.marks")).to_contain_text("training steps")
    for label, kind in (("SVG", "<svg xmlns="), ("Table", "group,runs,"), ("Curves", "group,run,")):
        with page.expect_download() as download:
            page.get_by_role("button", name=label, exact=True).click()
        assert download.value.path().read_text().startswith(kind)
    chart.hover()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    page.screenshot(path=tmp_path / "compare.png", full_page=True)


def test_a_file_is_refused_mended_and_added(dashboard: str, browser: Browser, home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "tags": ["<b>add</b>"]} for n in range(30)]
    bad, good = tmp_path / "Bad file.jsonl", tmp_path / "good.jsonl"
    bad.write_text("\n".join(map(json.dumps, [*rows, {"prompt": "?"}, rows[0]])))
    good.write_text("\n".join(map(json.dumps, rows)))
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


def test_a_data_set_of_the_hub_is_added_by_keyboard(dashboard: str, watched: Watched, home: Path, hub: Hub) -> None:
    for shard in range(2):
        rows = [
            {"question": f"Ada has {n} apples and buys {shard + 1} more. How many has she?",
             "answer": f"She has {n} + {shard + 1} = <<{n}+{shard + 1}={n + shard + 1}>>.\n#### {n + shard + 1}"}
            for n in range(20)
        ]  # fmt: skip
        hub[f"openai/gsm8k:main/train-0000{shard}-of-00002.jsonl"] = "\n".join(map(json.dumps, rows)).encode()
    page = watched.page
    page.set_viewport_size({"width": 1600, "height": 1000})
    page.goto(f"{dashboard}/data")
    page.get_by_role("radio", name="Hub data set").focus()
    page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name="Data set of the Hugging Face hub")
    field.fill("openai/gsm8k:main/train")
    field.blur()
    page.wait_for_timeout(500)
    assert hub.asked == [], "typing fetches nothing"
    field.press("Enter")
    expect(page.get_by_text("Not accepted")).to_be_visible()
    expect(page.get_by_text("has no text in 'prompt'").first).to_be_visible()
    page.get_by_role("combobox", name="Columns").click()
    page.get_by_role("option", name="gsm8k", exact=True).click()
    expect(page.get_by_text("40 prompts, all of them can be used")).to_be_visible()
    expect(page.get_by_text(f"hub:openai/gsm8k@{'a' * 40}:main/train")).to_be_visible()
    expect(page.get_by_role("textbox", name="Name of the set")).to_have_value("gsm8k-main-train")
    for scheme, width in (("light", 1600), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 2000})
        page.wait_for_timeout(500)
        assert page.evaluate(BEYOND) <= 0, f"wider than a screen of {width}"
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/data-hub-{scheme}.png", full_page=True)
    page.get_by_role("button", name="Add this set").click()
    expect(page.get_by_text("set:gsm8k-main-train@")).to_be_visible()
    assert len(hub.downloads) == 2, "once, however often it was read"
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/data-hub-one.png", full_page=True)
        page.set_viewport_size({"width": 1600, "height": 1000})
        page.emulate_media(color_scheme="light")
        page.goto(f"{dashboard}/data")
        page.get_by_role("radio", name="Hub data set").click()
        field.fill("openai/gsm8k:test")
        page.get_by_role("button", name="Look at it").click()
        expect(page.get_by_text("there are: main/train")).to_be_visible()
        page.screenshot(path=f"{SHOTS}/data-hub-refused.png", full_page=True)
