"""Rollouts per second: our prefix-tree sampler against transformers' `generate`, same model, same prompts, one run.

    python bench/sampling.py [--quick] [--json] [--model FOLDER] [--prompts FILE]

Both sample temperature 1 without truncation, the same number of rollouts of the same prompts, up to the same length,
on the same device and threads, in alternation. `generate` gets its best reasonable setting: batched, left padded,
KV cache, num_return_sequences, and the fastest of a few batch sizes is its score. Exits 1 naming the bound if ours is
not at least 5 times as fast. The ratio belongs to this model and to groups like these: prefixes are shared more by
a policy that is sure of its first tokens, and a small model makes the price of each extra call weigh more.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.verdict import finish
from pipeline.engines.torch.model import load
from pipeline.engines.torch.sampler import sample

BUNDLED = Path(__file__).resolve().parents[1] / "pipeline" / "bundled"
LEAST_RATIO = 5.0


def rate(run: Callable[[], int]) -> float:
    """Rollouts per second of one call; `run` returns how many it sampled."""
    begin = time.perf_counter()
    rollouts = run()
    return rollouts / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of ten, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--model", type=Path, default=BUNDLED / "policy")
    parser.add_argument("--prompts", type=Path, default=BUNDLED / "prompts.train.jsonl")
    parser.add_argument("--n", type=int, default=16, help="rollouts per prompt")
    parser.add_argument("--max-new-tokens", type=int, default=12)
    args = parser.parse_args()
    n, limit = args.n, args.max_new_tokens

    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    lines = args.prompts.read_text().splitlines()
    chats = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines[:: len(lines) // 64][:64]]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    ours = load(args.model)
    theirs = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)

    def tree() -> int:
        groups = sample(ours, prompts, [n] * len(prompts), limit, 1.0, 1.0, tokenizer.eos_token_id, generator)
        return sum(map(len, groups))

    def generate(batch: int) -> int:
        rollouts = 0
        for i in range(0, len(prompts), batch):
            rows = tokenizer.pad({"input_ids": prompts[i : i + batch]}, return_tensors="pt")
            out = theirs.generate(
                **rows, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=limit,
                num_return_sequences=n, use_cache=True, eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
            rollouts += len(out)
        return rollouts

    batches = [16, 32, 64]
    tree(), generate(batches[0])  # the first call of each pays for lazy set-up
    batch = max(batches, key=lambda b: max(rate(lambda: generate(b)) for _ in range(2)))
    pairs = [(rate(tree), rate(lambda: generate(batch))) for _ in range(3 if args.quick else 10)]
    ratio = statistics.median(a / b for a, b in pairs)
    result = {
        "prompts": len(prompts),
        "rollouts_per_prompt": n,
        "max_new_tokens": limit,
        "threads": torch.get_num_threads(),
        "tree_rollouts_per_s": round(statistics.median(a for a, _ in pairs), 1),
        "generate_rollouts_per_s": round(statistics.median(b for _, b in pairs), 1),
        "generate_prompts_per_batch": batch,
        "ratio": round(ratio, 2),
        "least_ratio": LEAST_RATIO,
        "passed": ratio >= LEAST_RATIO,
    }
    print(f"{len(prompts)} prompts x {n} rollouts, up to {limit} tokens, {result['threads']} threads")
    print(f"prefix tree            {result['tree_rollouts_per_s']:>9} rollouts/s")
    print(f"transformers generate  {result['generate_rollouts_per_s']:>9} rollouts/s ({batch} prompts a batch)")
    print(f"ratio                  {result['ratio']:>9}")
    missed = [] if result["passed"] else [f"ratio {ratio:.2f} < {LEAST_RATIO}"]
    return finish(result, missed, args.json)


if __name__ == "__main__":
    sys.exit(main())
