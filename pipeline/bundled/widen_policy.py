"""The bundled policy in a shape that vLLM runs on a CPU: `python -m pipeline.bundled.widen_policy FOLDER`.

vLLM's attention for CPUs has kernels for heads of 32, 64, 80 ... dimensions, and the bundled policy's have 24. Here the
policy is written with heads of 32 and a hidden size of 128, so that it computes the same function: what is added is
zero, and stays zero in training, for its gradient is zero as well. Three things make up for the new sizes:

- attention divides by the square root of the heads' dimension: queries grow by sqrt(32 / 24);
- rotary position i of E turns with frequency theta^(-2 i / E): theta becomes theta^(32 / 24), and the two halves of a
  head, which turn together, move to the starts of the new halves;
- a norm takes the mean over the hidden size: its weights shrink by sqrt(96 / 128), its epsilon by 96 / 128.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

POLICY = Path(__file__).parent / "policy"
HIDDEN, HEAD = 128, 32

Matrix = npt.NDArray[np.float32]


def widen(folder: Path) -> Path:
    """Writes the widened policy, tokenizer included, into `folder`, made if absent. Returns it."""
    config: dict[str, Any] = json.loads((POLICY / "config.json").read_text())
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = hidden // heads
    # Where the dimensions of all heads of a projection go.
    half = np.arange(head // 2)
    place = np.concatenate((half, half + HEAD // 2))

    def columns(w: Matrix) -> Matrix:
        return np.pad(w, ((0, 0), (0, HIDDEN - hidden)))

    def rows(w: Matrix) -> Matrix:
        return np.pad(w, ((0, HIDDEN - hidden), (0, 0)))

    def head_rows(w: Matrix) -> Matrix:
        """[heads * 24, ...] -> [heads * 32, ...]"""
        old = w.reshape(-1, head, *w.shape[1:])
        new = np.zeros((len(old), HEAD, *w.shape[1:]), np.float32)
        new[:, place] = old
        return new.reshape(-1, *w.shape[1:])

    wide: dict[str, Matrix] = {}
    for name, w in load_file(POLICY / "model.safetensors").items():
        match name.split(".")[-2:]:
            case [("q_proj" | "k_proj" | "v_proj") as projection, kind]:
                w = head_rows(columns(w) if kind == "weight" else w)
                w = w * np.float32(math.sqrt(HEAD / head)) if projection == "q_proj" else w
            case ["o_proj", _]:
                w = rows(head_rows(w.T).T)
            case ["down_proj", _]:
                w = rows(w)
            case [("gate_proj" | "up_proj" | "embed_tokens"), _]:
                w = columns(w)
            case _:  # a norm
                w = np.pad(w * np.float32(math.sqrt(hidden / HIDDEN)), (0, HIDDEN - hidden))
        wide[name] = np.ascontiguousarray(w)
    rope = config["rope_parameters"]
    config |= {
        "hidden_size": HIDDEN,
        "rms_norm_eps": config["rms_norm_eps"] * hidden / HIDDEN,
        "rope_parameters": rope | {"rope_theta": rope["rope_theta"] ** (HEAD / head)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file in POLICY.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(wide, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pipeline.bundled.widen_policy FOLDER")
    print(widen(Path(sys.argv[1])))
