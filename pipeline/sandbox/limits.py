"""What a reward process allows itself. It imports nothing else, for it is the first thing that runs in a sandbox."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """memory_mb: of each process, and of a sandbox's /tmp. processes: of the sandbox, threads included. files_mb: the
    largest file. None leaves what is there; processes, files and CPU time are for sandboxes."""

    memory_mb: int
    processes: int | None = None
    files_mb: int | None = None
    open_files: int | None = None
    cpu_s: int | None = None


def enter(limits: Limits, user: int = 0) -> None:
    """Limit this process and its children for good, and become `user` unless that is 0."""
    ours = 2  # processes of a sandbox that are not the guest's: bubblewrap's first, and ours
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_mb << 20),
        (resource.RLIMIT_NPROC, None if limits.processes is None else limits.processes + ours),
        (resource.RLIMIT_FSIZE, None if limits.files_mb is None else limits.files_mb << 20),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        if most is not None:
            resource.setrlimit(what, (most, most))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
