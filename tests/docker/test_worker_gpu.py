"""What can be held to without Docker: the GPU image's lock file agrees with the platform's, and the stack is whole."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[2]


def pins(name: str) -> dict[str, str]:
    lines = (CHECKOUT / "requirements" / name).read_text().splitlines()
    pinned = [line.split(";")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\-\[\]]+==[\w.+!]+", line) for line in pinned), name
    return {re.sub(r"[-_.]+", "-", line.split("==")[0].lower()): line.split("==")[1] for line in pinned}


def test_the_gpu_lock_file_has_the_platform_and_verls_own_pins() -> None:
    gpu, platform = pins("verl-gpu.txt"), pins("platform.txt")
    assert {name: gpu.get(name) for name in platform} == platform
    assert (gpu["verl"], gpu["vllm"], gpu["torch"], gpu["transformers"]) == ("0.9.1", "0.24.0", "2.11.0", "5.9.0")
    assert "flash-attn" not in gpu, "it is compiled in the image"


def test_the_platforms_lock_file_is_complete() -> None:
    """Its images install nothing else, while a checkout has torch's packages beside it, and `pip check` sees both."""
    platform = pins("platform.txt")
    assert "huggingface-hub" in platform, "the API fetches data sets"
    for name in platform:
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed = canonicalize_name(requirement.name)
                assert needed in platform and platform[needed] in requirement.specifier, f"{name} needs {requirement}"


def test_the_image_does_not_run_as_root_and_tells_its_health() -> None:
    text = (CHECKOUT / "docker/worker-gpu.Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert "\nUSER pilot\n" in last and "\nHEALTHCHECK " in last and "--no-deps -r requirements/verl-gpu.txt" in last
    for folder in re.findall(r"^COPY (\w+) ", last, flags=re.M):
        assert (CHECKOUT / folder).is_dir(), folder


def test_the_gpu_worker_is_started_on_request_with_all_gpus() -> None:
    compose: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
    worker = compose["services"]["worker-gpu"]
    assert worker["profiles"] == ["gpu"] and worker["build"]["dockerfile"] == "docker/worker-gpu.Dockerfile"
    (devices,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    mounts = set(worker["volumes"]) - {"data:/data"}
    assert mounts <= set(compose["services"]["api"]["volumes"]), "the API checks what a run will read"
