from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from pipeline import sandbox
from pipeline.rewards.processes import Job, Processes
from pipeline.rewards.types import Question, Response, Reward, Verdict, failed, shown
from pipeline.sandbox import ROOT
from pipeline.sandbox.limits import Limits
from pipeline.section import FilePath, spelled

_OFFERED = ("response", "answer", "prompt", "n_tokens")


class FunctionReward(Reward):
    """A Python function of your own: `def score(response, answer)`, and `prompt` or `n_tokens` if it wants them.

    It returns a number in [0, 1] that trains and judges, or (reward, accuracy) with the accuracy in [0, 1]. Anything
    else, an exception or too long a wait is failed. It runs in a sandbox: it reads its own folder and the installed
    packages, writes to an empty /tmp, and has no network and none of our environment.
    """

    remembers: ClassVar[bool] = False

    name: Literal["function"] = "function"
    folder: FilePath = Field(
        description="Folder with the function's module; it is all of your files that the function can read.",
        examples=["rewards"],
    )
    path: str = Field(
        pattern=spelled(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", "package.module:function"),
        description="package.module:function, from that folder.",
        examples=["mine:score"],
    )
    timeout_s: float = Field(10.0, gt=0, le=3600, description="Seconds that one response may take.")
    memory_mb: int = Field(1024, ge=64, description="Memory of one process; each response has one.")

    def look(self, response: Response) -> Question:
        n_tokens = "" if response.n_tokens is None else str(response.n_tokens)
        return response.text, response.answer, response.prompt, n_tokens

    def faults(self) -> dict[str, str]:
        from pipeline.config import pilot_home  # which imports every reward

        folder = (ROOT / self.folder).resolve()
        if not os.path.isdir(folder):  # False also for a path that the system refuses to look at
            return {"folder": "is no folder; give the one with the module"}
        for ours in (ROOT, pilot_home()):
            if ours.is_relative_to(folder):  # with our tokens, and the secrets of whoever started us
                return {"folder": f"holds {ours}; give one with the module alone"}
        module = folder.joinpath(*self.path.partition(":")[0].split("."))
        files = [f"{start}{suffix}" for start in (module, module / "__init__") for suffix in all_suffixes()]
        if not any(map(os.path.isfile, files)):
            return {"path": f"has no module {module.relative_to(folder)}.py in the folder {self.folder!r}"}
        return {}

    def open_desk(self, workers: int) -> Processes:
        for field, why in self.faults().items():
            raise ValueError(f"reward 'function': {field} {getattr(self, field)!r} {why}")
        folder = (ROOT / self.folder).resolve()
        if os.geteuid() == 0 and folder.stat().st_mode & 0o005 != 0o005:
            raise ValueError(f"reward 'function': folder {self.folder!r} must be readable for everyone (chmod o+rx)")
        sandbox.check()
        limits = Limits(self.memory_mb, processes=64, files_mb=64, open_files=256)
        job = Job(self, self.timeout_s, limits, lambda: (sandbox.command(limits, [folder]), sandbox.new_user()))
        desk = Processes(job, workers)
        desk.start_one()
        return desk


def serve(settings: dict[str, Any]) -> Callable[[str, str, str, str], Verdict]:
    """In a reward process. Raises when the function can't be had, or does not take what it is given."""
    sys.path.insert(0, str((ROOT / Path(settings["folder"])).resolve()))
    module, _, name = settings["path"].partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if function is None:
        raise ValueError(f"module {module} has no {name}")
    wanted = check_signature(function, settings["path"])

    def score(response: str, answer: str, prompt: str, n_tokens: str) -> Verdict:
        offered = dict(zip(_OFFERED, (response, answer, prompt, int(n_tokens) if n_tokens else None), strict=True))
        given = function(**{key: offered[key] for key in wanted})
        reward, accuracy = given if isinstance(given, tuple | list) and len(given) == 2 else (given, given)
        if not all(isinstance(v, int | float) and math.isfinite(v) for v in (reward, accuracy)):
            return failed(f"{name} returned {shown(repr(given))}; give a number, or (reward, accuracy)")
        if not 0 <= accuracy <= 1:
            return failed(f"{name} returned the accuracy {accuracy:g}; give (reward, accuracy) with 0 <= accuracy <= 1")
        why = f"{settings['path']} returned {shown(repr(given))}"
        return Verdict(float(reward), why, shown(response), shown(answer), float(accuracy))

    return score


def check_signature(function: Any, path: str) -> list[str]:
    """The names of the arguments that the function wants. Raises ValueError saying what is accepted."""
    accepted = f"{path} must be a function (response, answer), with prompt and n_tokens as further arguments if wanted"
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"{accepted}; it is {'a coroutine function' if callable(function) else 'no function'}")
    wanted = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY or (name not in _OFFERED and needed):
            raise ValueError(f"{accepted}; it has the argument {name!r}")
        if name in _OFFERED:
            wanted.append(name)
    if missing := [name for name in ("response", "answer") if name not in wanted]:
        raise ValueError(f"{accepted}; it lacks {' and '.join(missing)}")
    return wanted
