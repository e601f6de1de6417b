"""The fence: what a process can give up by itself, where no bubblewrap may start, as in most containers.

Landlock (Linux 5.13) takes away all files but those named, and looking into other processes; a seccomp filter takes
away new sockets, of any kind. Both hold for all children, for good, and need no rights.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence

from pipeline.sandbox import ROOT, SYSTEM, ours

_WRITE_FILE, _READ_FILE, _LIST = 1 << 1, 1 << 2, 1 << 3
_READ = 1 << 0 | _READ_FILE | _LIST  # and execute
_FILES = ((5, 1 << 16), (3, 1 << 15), (2, 1 << 14), (1, 1 << 13))  # Landlock version -> its rights on files end below
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_DEVICES = ("/dev/null", "/dev/urandom")
_IO_URING = 425  # it could make sockets, too
_SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # the kernel's name of the architecture, socket()
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13  # EACCES


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def fence(readable: Sequence[str]) -> None:
    """From here on: reads only the system's programs and libraries, this Python, pipeline/ and what is `readable`;
    writes only what is open already; opens no socket. From Linux 6.12 on it signals no other process, either.

    Raises OSError where the kernel cannot keep that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1 or platform.machine() not in _SOCKET or sys.byteorder != "little":
        raise OSError(f"no Landlock and seccomp for {platform.machine()} on Linux {platform.release()}")
    files = next(end for since, end in _FILES if version >= since) - 1
    network, scoped = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    ruleset = _Ruleset(files, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _done(libc.syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), 0))
    for path in (*SYSTEM, *map(str, ours()), *readable):
        _allow(libc, rules, path, _READ)
    _allow(libc, rules, str(ROOT), _LIST)  # to import pipeline; it tells names of files, not what is in them
    for path in _DEVICES:
        _allow(libc, rules, path, _READ_FILE | _WRITE_FILE)
    _done(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _done(libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)
    machine, socket = _SOCKET[platform.machine()]
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06
    words = [
        (load, 0, 0, 4), (equal, 0, 5, machine),
        (load, 0, 0, 0), (above, 3, 0, 0x40000000),  # x86's other set of numbers
        (equal, 2, 0, socket), (equal, 1, 0, _IO_URING),
        (give, 0, 0, _ALLOW), (give, 0, 0, _REFUSE),
    ]  # fmt: skip
    instructions = (_Instruction * len(words))(*(_Instruction(*word) for word in words))
    _done(libc.prctl(_SECCOMP, _FILTER, ctypes.byref(_Program(len(words), instructions)), 0, 0))


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights &= rights if os.path.isdir(path) else ~_LIST
        _done(libc.syscall(_ADD, rules, 1, ctypes.byref(_Beneath(rights, place)), 0))
    finally:
        os.close(place)


def _done(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the kernel refused: {os.strerror(ctypes.get_errno())}")
    return result
