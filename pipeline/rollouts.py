"""Rollouts on disk: one Parquet file per training step, `RUN_DIR/rollouts/step_000042.parquet`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.allocation import Group
from pipeline.prompts import PromptSet

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("prompt_id", pa.string()),
        ("stage", pa.string()),
        ("response", pa.string()),
        ("reward", pa.float64()),  # null when the reward failed
        ("success", pa.float64()),  # null when the reward failed
        # JSON: of each part of the reward its value (null when it failed), why, what was extracted and compared with
        ("verdicts", pa.string()),
        ("n_tokens", pa.int32()),
        ("logprob", pa.float64()),  # of the whole response under the policy that sampled it, nats
    ]
)

ROWS_READ_AT_ONCE = 1024  # long responses are a few KB each: who looks for one prompt holds a few MB of others


def write_rollouts(run_dir: Path, step: int, groups: list[Group], prompts: PromptSet) -> Path:
    """Writes a step's rollouts, appearing whole or not at all. A step that is repeated replaces its file."""
    rows = [
        {
            "step": step,
            "prompt_id": prompts.prompts[group.request.prompt].id,
            "stage": group.request.stage.value,
            "response": data["text"],
            "reward": None if failed else reward,
            "success": None if failed else success,
            "verdicts": data.get("verdicts"),
            "n_tokens": n_tokens,
            "logprob": data["logprob"],
        }
        for group in groups
        for reward, success, failed, n_tokens, data in zip(
            group.rollouts.rewards.tolist(),
            group.rollouts.success.tolist(),
            group.rollouts.failed.tolist(),
            group.rollouts.n_tokens.tolist(),
            group.rollouts.data,
            strict=True,
        )
    ]
    path = run_dir / "rollouts" / f"step_{step:06d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".writing")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), draft, compression="zstd", row_group_size=ROWS_READ_AT_ONCE)
    draft.rename(path)
    return path
