"""Before the engine starts: what can be checked in seconds, and the environment that verl reads when it is imported."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.config import ROOT, RunConfig, VerlEngine
from pipeline.engines.build import Engine
from pipeline.engines.verl.checks import check, check_packages
from pipeline.engines.verl.compose import compose
from pipeline.prompts import PromptSet


def start(
    config: RunConfig, settings: VerlEngine, train: PromptSet, held_out: Sequence[PromptSet], run_dir: Path
) -> Engine:
    """The running engine. Raises ValueError or OSError that says what to change when it cannot run."""
    if "verl" in sys.modules and "pipeline.engines.verl.plugin" not in sys.modules:
        raise RuntimeError("verl was imported before its environment was set: its platform would be another one")
    check_packages(settings)
    from omegaconf import OmegaConf

    scratch = make_scratch(run_dir)
    env = environment(settings, run_dir, scratch)
    os.environ.update(env)
    try:
        # Ray takes SIGTERM for itself when it is imported. It is ours, also if it comes meanwhile.
        handler = signal.getsignal(signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            n_parameters = check(config, settings, tuple(p for s in (train, *held_out) for p in s.prompts))
            verl = compose(config, run_dir)
            OmegaConf.save(verl, run_dir / "verl_config.yaml")
            from pipeline.engines.verl.engine import Engine as Verl
        finally:
            signal.signal(signal.SIGTERM, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return Verl(config, settings, verl, train.prompts, n_parameters, env, scratch)


def scratch_of(run_dir: Path) -> Path:
    """The run's folder for what runs on this machine; always the same, so that a killed attempt leaves one at most.

    Ray's sockets are in it, and the system allows a socket's path 107 bytes, of which Ray needs about 65.
    """
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 16 else "/tmp"
    name = hashlib.sha256(f"{os.getuid()}:{run_dir.resolve()}".encode()).hexdigest()[:10]
    return Path(parent) / f"pilot-verl-{name}"


def make_scratch(run_dir: Path) -> Path:
    """That folder, empty and ours while this process lives. Those that killed processes left behind are removed."""
    scratch = scratch_of(run_dir)
    for left in scratch.parent.glob("pilot-verl-*"):
        if left.stat().st_uid == os.getuid() and (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    try:
        scratch.mkdir(mode=0o700)
    except FileExistsError:
        raise ValueError(f"{scratch} is in use: another process trains in {run_dir}") from None
    _lock(scratch)  # the descriptor stays open until this process ends
    return scratch


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder for this process; None when another one does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def environment(settings: VerlEngine, run_dir: Path, scratch: Path) -> dict[str, str]:
    """For this process and all that it starts, on whatever machine."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {
        "VERL_USE_EXTERNAL_MODULES": "pipeline.engines.verl.plugin",
        "TENSORBOARD_DIR": str(run_dir / "tensorboard"),
        "VERL_FILE_LOGGER_PATH": str(run_dir / "metrics.jsonl"),
        "WANDB_DIR": str(run_dir),
        # The model is a folder: nobody has to ask a hub for it.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if settings.device == "cpu":
        env |= {
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",  # see cpu.py
            "CUDA_VISIBLE_DEVICES": "-1",  # the one GPU of cpu.py: Ray counts the name, and no GPU has it
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        path.append(str(vllm_by_its_name(scratch)))
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def vllm_by_its_name(scratch: Path) -> Path:
    """A folder for the Python path in which the package "vllm" has a version.

    The CPU build of vLLM brings the same modules as the package "vllm-cpu", and verl asks for the version of "vllm".
    vLLM itself then reads from it as well, and takes "+cpu" in it to mean that it runs on the CPU.
    """
    folder = scratch / "packages"
    try:
        version("vllm")
    except PackageNotFoundError:
        number = f"{version('vllm-cpu')}+cpu"
        info = folder / f"vllm-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
        sys.path.append(str(folder))  # for this process, which has read PYTHONPATH already
    return folder
