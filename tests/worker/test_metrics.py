"""A worker's numbers for Prometheus, from a worker that runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.worker.conftest import Stage


def test_a_worker_tells_its_numbers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PILOT_METRICS_PORT", str(port))
    stage.start("-m", "worker")
    run = stage.new_run()
    stage.wait_for_state(run, "succeeded")
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
        if found.get(("pilot_worker_sweeps_total", "done")) and found["pilot_worker_supervisors",] == 0:
            break  # the next sweep takes note of its end
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert found["pilot_worker_launches_total",] == 1
    assert abs(found["pilot_worker_last_sweep_timestamp_seconds",] - time.time()) < 60


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1"])
def test_a_port_that_is_none(stage: Stage, port: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker"],
        env=os.environ | {"PILOT_METRICS_PORT": port},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and f"PILOT_METRICS_PORT='{port}'" in done.stderr
