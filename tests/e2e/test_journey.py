"""From the first look to a finished run, in a real browser on the real platform; and the screenshots of the docs.

PILOT_SHOTS=docs make test-ui writes new.png, run.png, prompts.png and runs.png there anew from these runs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from api.client import Client
from tests.e2e.test_path import stack  # noqa: F401
from tests.ui.test_browser import Watched, browser, playwright, watched  # noqa: F401

pytestmark = pytest.mark.browser
RUN_ID = re.compile(r"run=([0-9a-f-]{36})")


def test_a_first_run(
    stack: Client,  # noqa: F811
    watched: Watched,  # noqa: F811
    home: Path,
    tmp_path: Path,
) -> None:
    shots = Path(os.environ.get("PILOT_SHOTS") or tmp_path)
    address = re.search(r"Dashboard\s+(\S+)", (home / "up.log").read_text())
    assert address
    page = watched.page
    page.set_viewport_size({"width": 1400, "height": 1240})
    page.goto(address[1])
    expect(page.get_by_text("No runs yet")).to_be_visible()

    page.goto(f"{address[1]}/new?preset=demo")
    start = page.locator(".st-key-start-run button:visible")
    expect(start).to_be_enabled()
    expect(page.locator(".st-key-forecast")).to_contain_text("rollouts")
    text = page.get_by_label("Config as YAML")
    expect(text).to_have_value(re.compile("steps: 150"))
    text.fill(text.input_value().replace("steps: 150", "steps: 90"))
    text.press("Control+Enter")
    expect(page.locator(".st-key-group-budget input").first).to_have_value("90")
    page.screenshot(path=shots / "new.png")
    start.click()
    page.wait_for_url(RUN_ID, timeout=30_000)
    found = RUN_ID.search(page.url)
    assert found
    run_id = found[1]
    page.goto(f"{address[1]}/run?run={run_id}&target=56")

    def step() -> int:
        return stack.get_run(run_id).step  # type: ignore[arg-type]

    def wait(until: int) -> None:
        for _ in range(240):
            if step() >= until:
                return
            page.wait_for_timeout(500)
        raise AssertionError(f"step {step()} after two minutes, not {until}")

    wait(60)
    teaching = page.locator(".st-key-bucket-committed .pc-tile-value")
    before = int(teaching.get_attribute("data-count") or -1)
    assert before > 0
    expect(page.locator(".stVegaLiteChart svg.marks")).to_have_count(6)
    page.screenshot(path=shots / "run.png")
    expect(teaching).not_to_have_attribute("data-count", str(before))

    page.locator(".st-key-stop-run button:visible").click()
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("stopped", timeout=60_000)
    stopped = step()
    page.goto(f"{address[1]}/prompts?run={run_id}")
    page.locator('[class*="st-key-prompt-row-"] a').first.wait_for()
    expect(page.locator(".stVegaLiteChart svg.marks").first).to_be_visible()
    page.screenshot(path=shots / "prompts.png")
    page.locator('[class*="st-key-prompt-row-"] a').first.click()
    expect(page.locator(".st-key-chart-visits svg.marks")).to_be_visible()

    page.goto(f"{address[1]}/run?run={run_id}")
    page.locator(".st-key-resume-run button:visible").click()
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("running", timeout=60_000)
    wait(90)
    expect(page.locator(".st-key-run-header .pc-chip")).to_have_text("succeeded", timeout=60_000)
    run = stack.get_run(run_id)  # type: ignore[arg-type]
    assert [a.from_step for a in run.attempts] == [0, stopped]
    assert run.steps_budget == run.step == 90
    assert run.accuracy is not None and run.first_accuracy is not None
    assert run.accuracy > run.first_accuracy + 0.08, "the demo learns"
    page.goto(address[1])
    expect(page.locator(".st-key-runs-table .pc-sparkline")).to_be_visible()
    page.screenshot(path=shots / "runs.png")
