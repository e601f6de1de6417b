"""What a reader of files from outside could do if a file took it over: run apart by test_apart.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


def inside(work: str, out: IO[bytes]) -> str:
    told = json.loads(work)
    out.write(b"written")
    if told.get("end") == "hang":
        while True:
            pass
    if told.get("end") == "exit":
        os._exit(3)
    found = reached(told)
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from tests.pipeline.sandbox import prober; "
    code += "print(json.dumps(prober.reached(json.loads(sys.argv[2]))))"
    root = str(Path(__file__).parents[3])
    child = subprocess.run([sys.executable, "-I", "-c", code, root, work], capture_output=True, text=True, timeout=60)
    return json.dumps({"self": found, "child": json.loads(child.stdout)})


def reached(told: dict[str, Any]) -> list[str]:
    """Everything that should have been refused and was not."""
    found = [f"environment: {name}" for name, value in os.environ.items() if "secret-of-ours" in value]
    places = [*map(Path, told["secrets"]), *Path("/proc").glob("*/environ"), *Path("/proc").glob("*/cmdline")]
    for path in places:
        try:
            found += [f"read {path}"] if b"secret-of-ours" in path.read_bytes() or path.suffix == ".toml" else []
        except OSError:
            pass
    for folder in told["folders"]:
        try:
            Path(folder, "mark").write_text("x")
            found.append(f"wrote to {folder}")
        except OSError:
            pass
    for address, family in ((("127.0.0.1", told["port"]), socket.AF_INET), (told["unix"], socket.AF_UNIX)):
        try:
            with socket.socket(family) as connection:
                connection.connect(address)
            found.append(f"connected to {address}")
        except OSError:
            pass
    try:
        os.kill(told["parent"], 0)
        found.append("signals the process that asked")
    except OSError:
        pass
    try:
        bytearray(told["memory_mb"] << 20)
        found.append("memory")
    except MemoryError:
        pass
    return found
