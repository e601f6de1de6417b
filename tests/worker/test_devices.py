"""What a host announces: by its settings, by what its scheduler left it, or by what nvidia-smi finds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from db.slots import Device, Use
from worker import devices
from worker.settings import Settings
from worker.use import Sampler


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PILOT_SLOTS", "PILOT_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    devices._asked_gpus.cache_clear()
    monkeypatch.setattr(devices, "_ask_again_at", 0.0)


def nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def names(kind: str) -> list[str]:
    return [d.name for d in devices.devices(Settings.from_environment()) if d.kind == kind]


def test_without_gpus_there_are_cpu_slots() -> None:
    assert (names("cpu"), names("cuda")) == (["0", "1"], [])


def test_gpus_that_nvidia_smi_finds(tmp_path: Path) -> None:
    nvidia_smi(tmp_path, "echo '0, NVIDIA H200, 143771'; echo '1, NVIDIA H200, 143771'")
    found = devices.devices(Settings.from_environment())
    assert found[2:] == [Device("cuda", str(i), "NVIDIA H200, 140 GiB") for i in range(2)]


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'"])
def test_a_broken_driver_is_no_gpu(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, script)
    assert names("cuda") == []
    nvidia_smi(tmp_path, "echo '0, NVIDIA H200, 143771'")
    assert names("cuda") == [], "it is not asked all the time"
    monkeypatch.setattr(devices, "_ask_again_at", 0.0)
    assert names("cuda") == ["0"], "a driver may come late"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"PILOT_SLOTS": "0", "PILOT_GPUS": "3, 1"}, ([], ["3", "1"])),
        ({"PILOT_SLOTS": "1", "PILOT_GPUS": "none"}, (["0"], [])),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, (["0", "1"], ["4", "5"])),
        ({"CUDA_VISIBLE_DEVICES": ""}, (["0", "1"], [])),
        ({"CUDA_VISIBLE_DEVICES": "4", "PILOT_GPUS": "GPU-8a-5"}, (["0", "1"], ["GPU-8a-5"])),
        ({"CUDA_VISIBLE_DEVICES": "4", "PILOT_GPUS": "auto"}, (["0", "1"], ["4"])),
    ],
)
def test_settings_go_before_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: tuple[list[str], list[str]]
) -> None:
    nvidia_smi(tmp_path, "echo '0, NVIDIA H200, 143771'")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (names("cpu"), names("cuda")) == expected


@pytest.mark.parametrize(
    ("name", "value"), [("PILOT_SLOTS", "two"), ("PILOT_SLOTS", "-1"), ("PILOT_GPUS", "0,0"), ("PILOT_GPUS", "first")]
)
def test_what_is_not_accepted_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        Settings.from_environment()


def test_a_trainer_sees_what_it_holds() -> None:
    held = [Device("cuda", "3", ""), Device("cuda", "MIG-1", "")]
    assert devices.environment(held)["CUDA_VISIBLE_DEVICES"] == "3,MIG-1"
    assert devices.environment([Device("cpu", "0", "")])["CUDA_VISIBLE_DEVICES"] == ""


def test_how_busy_devices_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo '0, 94'; echo '1, [N/A]'")
    sampler = Sampler()
    assert sampler.use() == Use(None, {"0": 0.94}), "a MIG device tells nothing, and the CPU nothing yet"
    nvidia_smi(tmp_path, "echo '0, 7'")
    assert sampler.use().gpus == {"0": 0.94}, "it is not asked all the time"
    later = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later)
    cpu, gpus = sampler.use()
    assert gpus == {"0": 0.07} and cpu is not None and 0 <= cpu <= 1
    nvidia_smi(tmp_path, "exit 9")
    monkeypatch.setattr(time, "monotonic", lambda: later + 11)
    assert sampler.use().gpus == {}
