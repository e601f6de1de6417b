"""Sampling on an exact prefix tree: rollouts of a prompt that have said the same so far share one forward pass.

A group of rollouts starts from one prompt, and with short or confident answers most of them share their first
tokens. Here a prompt is run once however many rollouts it has (and however often it occurs in the call: a pilot
and a commit of one prompt share their tree too), and each distinct response prefix is one node, run once. The
linear layers see the nodes only. It is exact: a rollout's distribution and log-probs are those of sampling it alone.

Nodes of one depth are decoded together. Keys and values lie in one flat pool per layer, a slot per token; a node
knows the slots of its ancestors, and attention gathers them. Nothing is copied when the tree branches.

Shape suffixes: R rollouts still running, M nodes at this depth, P distinct prompts, L prompt length (padded),
S slots that a node sees (prompt, ancestors, itself), V vocabulary, H query heads, K key/value heads, E head size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engines.torch.model import Qwen2, causal


class Sample(NamedTuple):
    """One rollout.

    tokens: int32 [T], ends with eos if the model emitted it. logprobs: float32 [T], natural log, of each token under
    softmax(logits / temperature) over the whole vocabulary; that is the policy which training differentiates, so
    with top_p < 1 it is not renormalised to the truncated set. finished: eos was emitted within max_new_tokens.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finished: bool


class Pool:
    """Keys and values of every token run so far: per layer one [slots, 2, K, E] tensor that doubles as it fills."""

    def __init__(self, model: Qwen2, slots: int) -> None:
        c = model.config
        shape, weight = (slots, 2, c.num_key_value_heads, c.head_dim), model.model.embed_tokens.weight
        self.layers = [weight.new_empty(shape) for _ in range(c.num_hidden_layers)]
        self.used = 0

    def reserve(self, n: int) -> Tensor:
        """The next n slots, int64 [n]."""
        if self.used + n > len(self.layers[0]):
            grown = [kv.new_empty((2 * (self.used + n), *kv.shape[1:])) for kv in self.layers]
            for old, new in zip(self.layers, grown, strict=True):
                new[: self.used] = old[: self.used]
            self.layers = grown
        self.used += n
        return torch.arange(self.used - n, self.used, device=self.layers[0].device)


def prefill(model: Qwen2, prompts: Sequence[Sequence[int]], pool: Pool) -> tuple[Tensor, Tensor, Tensor]:
    """Runs each prompt once, rows padded on the right, and stores keys and values.

    Returns logits [P, V] after each prompt, its slots [P, L], and which of them are real rather than padding [P, L].
    """
    device = model.device
    lengths_P = torch.tensor([len(p) for p in prompts], device=device)
    n, length = len(prompts), max(map(len, prompts))
    padded = [[*prompt, *(0,) * (length - len(prompt))] for prompt in prompts]
    tokens_P_L = torch.tensor(padded, dtype=torch.int64, device=device)
    slots_P_L = pool.reserve(n * length).view(n, length)
    position_L = torch.arange(length, device=device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.layers[layer][pool.used - n * length : pool.used] = torch.stack((k, v), 2).flatten(0, 1)
        return causal(layer, q, k, v)

    hidden_P_L_D = model.hidden(tokens_P_L, position_L.expand(n, length), attend)
    logits_P_V = model.unembed(hidden_P_L_D[torch.arange(n, device=device), lengths_P - 1])
    return logits_P_V, slots_P_L, position_L < lengths_P[:, None]


def decode(
    model: Qwen2, pool: Pool, token_M: Tensor, position_M: Tensor, slots_M_S: Tensor, real_M_S: Tensor
) -> Tensor:
    """Runs one token per node; the last of its slots is its own. Returns the logits after it, [M, V]."""
    own = slice(int(slots_M_S[0, -1]), int(slots_M_S[-1, -1]) + 1)  # reserved together, in node order
    bias_M_1_1_S = torch.zeros(real_M_S.shape, device=real_M_S.device).masked_fill_(~real_M_S, float("-inf"))
    bias_M_1_1_S = bias_M_1_1_S[:, None, None, :]
    n, seen = slots_M_S.shape

    def attend(layer: int, q_M_H_E: Tensor, k_M_K_E: Tensor, v_M_K_E: Tensor) -> Tensor:
        kv = pool.layers[layer]
        kv[own] = torch.stack((k_M_K_E, v_M_K_E), 1)
        heads, e = k_M_K_E.shape[1:]
        seen_M_S_2_K_E = kv.index_select(0, slots_M_S.flatten()).view(n, seen, 2, heads, e)
        k_M_K_S_E, v_M_K_S_E = seen_M_S_2_K_E.permute(2, 0, 3, 1, 4)
        # The G query heads that share a key head are rows of one small matrix product: no key is repeated.
        q_M_K_G_E = q_M_H_E.view(n, heads, -1, e)
        weight_M_K_G_S = (q_M_K_G_E @ k_M_K_S_E.transpose(-1, -2) * e**-0.5 + bias_M_1_1_S).softmax(-1)
        out_M_H_E: Tensor = (weight_M_K_G_S @ v_M_K_S_E).flatten(1, 2)
        return out_M_H_E

    return model.unembed(model.hidden(token_M, position_M, attend))


def draw(
    logprobs_M_V: Tensor, node_R: Tensor, top_p: float, generator: torch.Generator, block_bytes: int = 1 << 27
) -> Tensor:
    """One token per rollout from its node's distribution, int64 [R]; one uniform number each, in rollout order.

    By inverse transform: the cumulative sum is taken once per node, however many rollouts draw from it, in double
    precision so that no token's share is lost to rounding. top_p keeps the smallest set of most likely tokens whose
    mass reaches it. The rows of a big vocabulary are treated in blocks of `block_bytes`.
    """
    nodes, vocabulary = logprobs_M_V.shape
    uniform_R = torch.rand(len(node_R), dtype=torch.float64, generator=generator, device=generator.device)
    uniform_R = uniform_R.to(node_R.device)
    # Rollouts side by side per node, so that one search serves all: [M, most rollouts of a node].
    order_R = node_R.argsort(stable=True)
    count_M = torch.bincount(node_R, minlength=nodes)
    column_R = torch.arange(len(node_R), device=node_R.device) - (count_M.cumsum(0) - count_M)[node_R[order_R]]
    cell_R = (node_R[order_R], column_R)
    uniform_M_C = uniform_R.new_zeros((nodes, int(count_M.max())))
    uniform_M_C[cell_R] = uniform_R[order_R]
    token_M_C = torch.empty(uniform_M_C.shape, dtype=torch.int64, device=node_R.device)
    block = max(1, block_bytes // (8 * vocabulary))
    for i in range(0, nodes, block):
        p_M_V = logprobs_M_V[i : i + block].double().exp()
        if top_p < 1.0:
            sorted_M_V, index_M_V = p_M_V.sort(dim=-1, descending=True, stable=True)
            before_M_V = sorted_M_V.cumsum(-1) - sorted_M_V
            p_M_V = torch.zeros_like(p_M_V).scatter_(-1, index_M_V, sorted_M_V.where(before_M_V < top_p, 0.0))
        cdf_M_V = p_M_V.cumsum(-1)
        # right=True: the token whose interval [cdf before, cdf) holds u, so one of zero probability is never drawn.
        u_M_C = uniform_M_C[i : i + block] * cdf_M_V[:, -1:]
        token_M_C[i : i + block] = torch.searchsorted(cdf_M_V, u_M_C, right=True)
    token_R = torch.empty_like(node_R)
    token_R[order_R] = token_M_C[cell_R]
    return token_R


@torch.inference_mode()
def sample(
    model: Qwen2,
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    eos_id: int,
    generator: torch.Generator,
    greedy: bool = False,
    token_budget: int = 1 << 18,
) -> list[list[Sample]]:
    """Samples `counts[i]` rollouts of `prompts[i]` (token ids); a prompt may occur more than once.

    Deterministic given the generator's state, the call and torch's thread count. `greedy` takes the most likely
    token and draws nothing (log-probs still at `temperature`). Prompts are treated in blocks whose tokens, if every
    rollout went its own way to the end, stay within `token_budget`: it bounds the key/value pool.

    Raises ValueError for an empty prompt, a temperature <= 0, top_p outside (0, 1], or unequal lengths of lists.
    """
    if len(prompts) != len(counts):
        raise ValueError(f"{len(prompts)} prompts but {len(counts)} counts")
    if not all(len(p) for p in prompts):
        raise ValueError("an empty prompt has no next token")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, not {temperature}: for the most likely token pass greedy=True")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], not {top_p}")
    if max_new_tokens < 1 or any(c < 0 for c in counts):
        raise ValueError(f"max_new_tokens must be >= 1 and counts >= 0, not {max_new_tokens} and {list(counts)}")
    # Blocks of whole distinct prompts, in order of first appearance.
    rollouts_of: dict[tuple[int, ...], list[int]] = {}
    owner = [i for i, count in enumerate(counts) for _ in range(count)]
    for rollout, i in enumerate(owner):
        rollouts_of.setdefault(tuple(prompts[i]), []).append(rollout)
    done: dict[int, Sample] = {}
    block: list[tuple[int, ...]] = []
    tokens = 0
    for prompt, rollouts in rollouts_of.items():
        size = len(prompt) + len(rollouts) * max_new_tokens
        if block and tokens + size > token_budget:
            done |= grow(model, block, rollouts_of, max_new_tokens, temperature, top_p, eos_id, generator, greedy)
            block, tokens = [], 0
        block.append(prompt)
        tokens += size
    if block:
        done |= grow(model, block, rollouts_of, max_new_tokens, temperature, top_p, eos_id, generator, greedy)
    groups: list[list[Sample]] = [[] for _ in prompts]
    for rollout, i in enumerate(owner):
        groups[i].append(done[rollout])
    return groups


def grow(
    model: Qwen2,
    prompts: Sequence[tuple[int, ...]],
    rollouts_of: dict[tuple[int, ...], list[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    eos_id: int,
    generator: torch.Generator,
    greedy: bool,
) -> dict[int, Sample]:
    """Grows the trees of distinct prompts to the end: rollout id -> what it sampled."""
    device = model.device
    ids = [r for p in prompts for r in rollouts_of[p]]
    node_R = torch.tensor([i for i, p in enumerate(prompts) for _ in rollouts_of[p]], device=device)
    pool = Pool(model, 2 * sum(map(len, prompts)) + 2 * len(ids))
    logits_M_V, slots_M_S, real_M_S = prefill(model, prompts, pool)
    position_M = real_M_S.sum(1)  # of the next token
    alive_R = torch.arange(len(ids), device=device)  # index into ids
    tokens = np.zeros((len(ids), max_new_tokens), np.int32)
    logprobs = np.zeros((len(ids), max_new_tokens), np.float32)
    length = np.full(len(ids), max_new_tokens)
    finished = np.zeros(len(ids), bool)
    for t in range(max_new_tokens):
        logprobs_M_V = F.log_softmax(logits_M_V.float() / temperature, dim=-1)
        token_R = logprobs_M_V.argmax(-1)[node_R] if greedy else draw(logprobs_M_V, node_R, top_p, generator)
        rows = alive_R.cpu().numpy()
        tokens[rows, t] = token_R.cpu().numpy()
        logprobs[rows, t] = logprobs_M_V[node_R, token_R].cpu().numpy()
        ended_R = token_R == eos_id
        ended = rows[ended_R.cpu().numpy()]
        finished[ended], length[ended] = True, t + 1
        alive_R, node_R, token_R = alive_R[~ended_R], node_R[~ended_R], token_R[~ended_R]
        if len(alive_R) == 0 or t + 1 == max_new_tokens:
            break
        # Children: one node per distinct (parent, token), sorted by parent, which keeps this reproducible.
        vocabulary = logits_M_V.shape[1]
        child_M, node_R = torch.unique(node_R * vocabulary + token_R, return_inverse=True)
        parent_M, token_M = child_M // vocabulary, child_M % vocabulary
        own_M_1 = pool.reserve(len(child_M))[:, None]
        slots_M_S = torch.cat((slots_M_S[parent_M], own_M_1), 1)
        real_M_S = torch.cat((real_M_S[parent_M], torch.ones_like(own_M_1, dtype=torch.bool)), 1)
        logits_M_V = decode(model, pool, token_M, position_M[parent_M], slots_M_S, real_M_S)
        position_M = position_M[parent_M] + 1
    return {
        r: Sample(tokens[i, :n].copy(), logprobs[i, :n].copy(), bool(f))
        for i, (r, n, f) in enumerate(zip(ids, length, finished, strict=True))
    }
