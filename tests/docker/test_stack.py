"""The stack of docker-compose.yml without Docker: what it says of itself, and its very commands run natively, until
their own health checks pass.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {"migrate", "api", "ui", "worker-cpu", "worker-gpu"}


def image(name: str) -> tuple[list[str], list[str], str]:
    """Of the last stage of a service's Dockerfile: its command, its health check, and its user."""
    text = (CHECKOUT / SERVICES[name]["build"]["dockerfile"]).read_text()
    last = text[text.rindex("\nFROM ") :]
    health, command = re.findall(r"^\s*CMD (\[.*\])$", last, flags=re.M)
    (user,) = re.findall(r"^USER (\w+)$", last, flags=re.M)
    return json.loads(command), json.loads(health), user


def test_the_file_keeps_to_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, CHECKOUT / "docker-compose.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_service_is_root_or_without_health_or_open_to_the_network(name: str) -> None:
    service = SERVICES[name]
    if name in OURS:
        assert image(name)[2] == "pilot"
    else:
        assert service["user"] not in ("root", "0") and service["healthcheck"]["test"]
        assert ":" in service["image"] and not service["image"].endswith(":latest")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert source.startswith("./") or source in COMPOSE["volumes"], volume
    for other in service.get("depends_on", ()):
        assert other in SERVICES


def test_no_secret_has_a_default() -> None:
    text = (CHECKOUT / "docker-compose.yml").read_text()
    named = re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|TOKEN)\w*)([^}]*)\}", text)
    assert {name for name, _ in named} == {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "PILOT_METRICS_TOKEN_FILE"}
    assert all(rest.startswith(":?") or name.endswith("_FILE") for name, rest in named)


def test_prometheus_is_started_on_request_and_finds_what_there_is() -> None:
    prometheus = SERVICES["prometheus"]
    assert prometheus["profiles"] == ["metrics"]
    (config,), (secret,) = prometheus["configs"], prometheus["secrets"]
    scrape = yaml.safe_load((CHECKOUT / COMPOSE["configs"][config["source"]]["file"]).read_text())["scrape_configs"]
    api, workers = scrape
    assert f"--config.file={config['target']}" in prometheus["command"]
    assert api["authorization"] == {"credentials_file": f"/run/secrets/{secret}"} and secret in COMPOSE["secrets"]
    ((target,),) = (each["targets"] for each in api["static_configs"])
    host, port = target.split(":")
    assert host in SERVICES and image(host)[0][-1] == port
    (found,) = workers["dns_sd_configs"]
    assert set(found["names"]) == {name for name in SERVICES if name.startswith("worker")}
    for name in found["names"]:
        environment = SERVICES[name]["environment"]
        assert (environment["PILOT_METRICS_HOST"], environment["PILOT_METRICS_PORT"]) == ("0.0.0.0", str(found["port"]))


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield
            assert child.poll() is None, log.read_text()[-2000:]
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)


def test_the_very_commands_run_until_their_health_checks_pass(
    bare_database: str, broker_url: str, home: Path, tmp_path: Path
) -> None:
    ports = {"8000": free_port(), "8501": free_port(), "9100": free_port()}

    def local(command: list[str]) -> list[str]:
        """The command with ports of this machine."""
        return [re.sub(r"\b(8000|8501|9100)\b", lambda found: str(ports[found[0]]), word) for word in command]

    environment = os.environ | {
        "DATABASE_URL": bare_database, "REDIS_URL": broker_url, "PILOT_HOME": str(home), "PILOT_GPUS": "none",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PILOT_API_URL": f"http://127.0.0.1:{ports['8000']}", "PILOT_ALLOWED_HOSTS": "127.0.0.1,localhost,api",
        "PILOT_METRICS_PORT": str(ports["9100"]), "PILOT_METRICS_HOST": "127.0.0.1",
    }  # fmt: skip
    known = {"DATABASE_URL", "REDIS_URL", "PILOT_HOME", "PILOT_API_URL", "PILOT_ALLOWED_HOSTS"}
    known |= {"PILOT_METRICS_PORT", "PILOT_METRICS_HOST", "HF_ENDPOINT", "HF_TOKEN"}
    for name in ("migrate", "api", "worker-cpu", "ui"):
        assert SERVICES[name]["environment"].keys() <= known, name
    for first in (True, False):
        migrated = subprocess.run(
            SERVICES["migrate"]["command"], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True
        )
        shown = re.findall(r"pilot_[\w-]{20,}", migrated.stdout)
        assert len(shown) == first, "the first start shows a token, this once"
    with ExitStack() as stack:
        for name in ("api", "worker-cpu", "ui"):
            stack.enter_context(running(local(image(name)[0]), environment, tmp_path / f"{name}.log"))
        for name in ("api", "worker-cpu", "ui"):
            deadline, check = time.monotonic() + 90, local(image(name)[1])
            while (seen := subprocess.run(check, cwd=CHECKOUT, env=environment, capture_output=True)).returncode:
                log = (tmp_path / f"{name}.log").read_text()[-2000:]
                assert time.monotonic() < deadline, f"{shlex.join(check)}: {seen.stderr.decode()}; {log}"
                time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
