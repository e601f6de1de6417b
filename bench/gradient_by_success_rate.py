"""Proposition 3.1 of Pilot-Commit (arXiv 2605.26606) with real gradients: a group teaches most at p = 1/2.

    python -m bench.gradient_by_success_rate [--quick] [--json] [--plot docs/gradient_by_success_rate.png]

For prompts of the bundled task n rollouts are sampled from the bundled policy, and the gradient of the group's policy
objective, mean of A_i log pi(o_i), is taken through the whole network. With rewards 0 and 1 and advantages r - p its
expectation is p(1 - p)(mu_right - mu_wrong), where mu is the mean score of right and of wrong rollouts; divided by the
standard deviation, sqrt(p(1 - p)) times that. Both factors are greatest at 1/2. Exits 1 when the mean norm of the
middle third of success rates is not above that of both outer thirds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from bench.verdict import finish
from pipeline.allocation import Plan, Request, Stage, group_advantages
from pipeline.config import parse_config, presets
from pipeline.engines.torch import Engine
from pipeline.engines.torch.packing import packed_logprobs
from pipeline.prompts import load_run_prompts


def norms(engine: Engine, prompts: list[int], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Success rate [P], and the gradient's norm [P, 2] with advantages r - p and (r - p) / std."""
    rates, found = [], []
    plan = Plan(1, 1, tuple(Request(p, Stage.COMMIT, n) for p in prompts))
    for group in engine.generate(plan):
        rollouts = group.rollouts
        rates.append(float(rollouts.rewards.mean()))
        tokens = [data["tokens"].tolist() for data in rollouts.data]
        flat = packed_logprobs(engine.model, [engine.encode(engine.prompts[group.request.prompt])], [tokens]).logprobs
        per_rollout = torch.stack([t.sum() for t in torch.split_with_sizes(flat, [len(t) for t in tokens])])
        row = []
        for normalise in (False, True):
            advantages = torch.from_numpy(group_advantages(rollouts.rewards, normalise)).float()
            engine.optimiser.zero_grad()
            (advantages * per_rollout).mean().backward(retain_graph=not normalise)
            row.append(
                float(torch.sqrt(sum((p.grad**2).sum() for p in engine.model.parameters() if p.grad is not None)))
            )
        found.append(row)
    return np.array(rates), np.array(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="120 prompts instead of 900")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    parser.add_argument("--plot", type=Path, help="write the plot to this PNG file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = parse_config(next(p["config"] for p in presets() if p["name"] == "demo"))
    train, _ = load_run_prompts(config)
    engine = Engine(config, config.engine, train.prompts)
    count = 120 if arguments.quick else 900
    chosen = np.random.default_rng(0).permutation(len(train))[:count].tolist()
    rates, found = norms(engine, chosen, n=128)
    edges = np.linspace(0, 1, 11)
    place = np.clip(np.digitize(rates, edges) - 1, 0, 9)
    figures: dict[str, list[float]] = {}
    missed = []
    print("success rate   prompts   |gradient|, A = r - p   |gradient|, A = (r - p) / std")
    for b in range(10):
        inside = found[place == b]
        if len(inside):
            means = inside.mean(0)
            print(f"{edges[b]:.1f} - {edges[b + 1]:.1f}      {len(inside):>5}   {means[0]:>20.4f}   {means[1]:>20.4f}")
    for column, name in enumerate(("r - p", "(r - p) / std")):
        thirds = [
            float(found[(rates >= low) & (rates <= high), column].mean())
            for low, high in ((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1))
        ]
        figures[name] = thirds
        if not thirds[1] > max(thirds[0], thirds[2]):
            missed.append(
                f"advantages {name}: mean norm by thirds of p is {thirds}; the middle one must be the greatest"
            )
    if arguments.plot:
        plot(rates, found, arguments.plot)
    return finish(figures, missed, arguments.json)


def plot(rates: np.ndarray, found: np.ndarray, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(10, 4), dpi=150)
    p = np.linspace(0, 1, 200)
    for axes, column, title, shape in (
        (both[0], 0, "advantages r - p", p * (1 - p)),
        (both[1], 1, "advantages (r - p) / std", np.sqrt(p * (1 - p))),
    ):
        norms = found[:, column]
        bins = np.clip((rates * 10).astype(int), 0, 9)
        means = [(rates[bins == b].mean(), norms[bins == b].mean()) for b in range(10) if (bins == b).any()]
        axes.scatter(rates, norms, s=6, alpha=0.3, color="#0072b2", label="one prompt, 128 rollouts", linewidths=0)
        axes.plot(*zip(*means, strict=True), "o-", color="#d55e00", label="mean of a tenth")
        axes.plot(
            p, shape * max(m for _, m in means) / shape.max(), "--", color="gray", label="the factor of p, scaled"
        )
        axes.set(xlabel="success rate p of the group", ylabel="norm of the group's gradient", title=title)
        axes.set_ylim(0, float(np.quantile(norms, 0.995)) * 1.1)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
