"""Training on packed groups: the log-probs of a prompt's rollouts from one row per group, gradients included.

A plain trainer runs one row per rollout: prompt and response, 16 times the same prompt. Here a group is one row: the
prompt once, then each distinct response prefix once. The attention mask lets a token see the prompt and its own
earlier tokens only, and its position is its place in its own rollout, so every log-prob and every gradient equals
the plain computation's (a shared token's gradient is the sum of its rollouts'). Rows are padded and batched.

Shape suffixes: B rows, L tokens in a row (padded), N predictions (distinct response prefixes with their next token),
T tokens of all responses together, D hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engines.torch.model import Qwen2


class TokenStats(NamedTuple):
    """Per response token, responses one after the other: float32 [T] each.

    logprobs: natural log under softmax(logits / temperature), with gradient. entropy: of that softmax where the token
    was drawn, in nats, without gradient.
    """

    logprobs: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Row:
    """A packed group, or a part of one that was too long for a row.

    tokens, positions: int64 [L]. see: bool [L, L], see[i, j] = token i attends to token j.
    at, next: int64 [N], prediction n asks at token at[n] of the row for the log-prob of token next[n].
    index: one array per response, which of the N predictions are its tokens.
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    see: npt.NDArray[np.bool_]
    at: npt.NDArray[np.int64]
    next: npt.NDArray[np.int64]
    index: list[npt.NDArray[np.int64]]


def pack(prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> Row:
    """Packs a prompt with its responses (token ids); a response's last token is predicted, never run."""
    n_prompt = len(prompt)
    tokens, parents = [int(t) for t in prompt], list(range(-1, n_prompt - 1))
    positions = list(range(n_prompt))
    # (place in the row of a prefix's last token, next token) -> prediction; and -> place of that next token if run.
    prediction: dict[tuple[int, int], int] = {}
    place: dict[tuple[int, int], int] = {}
    index = []
    for response in responses:
        here, mine = n_prompt - 1, []
        for t, token in enumerate(map(int, response)):
            edge = (here, token)
            mine.append(prediction.setdefault(edge, len(prediction)))
            if t + 1 < len(response):
                if edge not in place:
                    place[edge] = len(tokens)
                    tokens.append(token)
                    parents.append(here)
                    positions.append(positions[here] + 1)
                here = place[edge]
        index.append(np.array(mine, np.int64))
    see = np.eye(len(tokens), dtype=np.bool_)
    for i, parent in enumerate(parents):
        if parent >= 0:
            see[i] |= see[parent]
    edges = np.array(list(prediction), np.int64).reshape(-1, 2)
    return Row(np.array(tokens), np.array(positions), see, edges[:, 0], edges[:, 1], index)


def microbatches(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Sequence[int]]], token_budget: int
) -> list[list[int]]:
    """Splits groups, in order, into lists of group numbers whose unpacked tokens stay within `token_budget`.

    For a trainer that runs backward after each: the activations of one micro-batch live at a time. A group that
    exceeds the budget alone is its own micro-batch.
    """
    batches: list[list[int]] = []
    tokens = 0
    for g, (prompt, group) in enumerate(zip(prompts, responses, strict=True)):
        size = len(prompt) + sum(map(len, group))
        if not batches or tokens + size > token_budget:
            batches.append([])
            tokens = 0
        batches[-1].append(g)
        tokens += size
    return batches


def packed_logprobs(
    model: Qwen2,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[Sequence[int]]],
    temperature: float = 1.0,
    token_budget: int = 16384,
    row_tokens: int = 2048,
) -> TokenStats:
    """Log-probs, with gradient, of `responses[g]` after `prompts[g]` for many groups at once.

    Rows run together as long as rows x longest row stays within `token_budget`. A group longer than `row_tokens`
    (unpacked) is spread over several rows, because attention inside a row is quadratic; the result is the same.
    """
    rows: list[Row] = []
    for prompt, group in zip(prompts, responses, strict=True):
        if not len(prompt):
            raise ValueError("an empty prompt has no next token")
        part: list[Sequence[int]] = []
        size = len(prompt)
        for response in group:
            if part and size + len(response) > row_tokens:
                rows.append(pack(prompt, part))
                part, size = [], len(prompt)
            part.append(response)
            size += len(response)
        rows.append(pack(prompt, part))
    # Rows of like length together, which keeps padding small; results go back to the order of the caller.
    by_length = sorted(range(len(rows)), key=lambda r: len(rows[r].tokens))
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    start_of_row = np.zeros(len(rows), np.int64)
    predictions = 0
    batch: list[Row] = []
    for place, r in enumerate(by_length):
        start_of_row[r] = predictions
        predictions += len(rows[r].at)
        batch.append(rows[r])
        last = place + 1 == len(by_length)
        if last or (len(batch) + 1) * len(rows[by_length[place + 1]].tokens) > token_budget:
            stats = run_rows(model, batch, temperature)
            logprobs.append(stats.logprobs)
            entropies.append(stats.entropy)
            batch = []
    index = [start_of_row[r] + mine for r, row in enumerate(rows) for mine in row.index]
    if not index:
        return TokenStats(torch.zeros(0, device=model.device), torch.zeros(0, device=model.device))
    index_T = torch.from_numpy(np.concatenate(index)).to(model.device)
    return TokenStats(torch.cat(logprobs)[index_T], torch.cat(entropies)[index_T])


def run_rows(model: Qwen2, rows: Sequence[Row], temperature: float) -> TokenStats:
    """One forward over rows padded to the longest; one entry per prediction [N], row after row."""
    device, length = model.device, max(len(row.tokens) for row in rows)
    tokens_B_L = np.zeros((len(rows), length), np.int64)
    positions_B_L = np.zeros((len(rows), length), np.int64)
    see_B_L_L = np.zeros((len(rows), length, length), np.bool_)
    see_B_L_L[:, :, 0] = True  # padding looks at the first token: a row that sees nothing would be NaN
    for b, row in enumerate(rows):
        n = len(row.tokens)
        tokens_B_L[b, :n], positions_B_L[b, :n], see_B_L_L[b, :n, :n] = row.tokens, row.positions, row.see
    at_N = torch.from_numpy(np.concatenate([b * length + row.at for b, row in enumerate(rows)])).to(device)
    next_N = torch.from_numpy(np.concatenate([row.next for row in rows])).to(device)
    see_B_1_L_L = torch.from_numpy(see_B_L_L).to(device)[:, None]

    def attend(layer: int, q_B_L_H_E: Tensor, k_B_L_K_E: Tensor, v_B_L_K_E: Tensor) -> Tensor:
        q, k, v = q_B_L_H_E.transpose(1, 2), k_B_L_K_E.transpose(1, 2), v_B_L_K_E.transpose(1, 2)
        gqa = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=see_B_1_L_L, enable_gqa=gqa)
        return out.transpose(1, 2)

    tokens, positions = torch.from_numpy(tokens_B_L).to(device), torch.from_numpy(positions_B_L).to(device)
    hidden_BL_D = model.hidden(tokens, positions, attend).flatten(0, 1)
    # Logits once per distinct prefix, then one pick per prediction.
    prefix_U, prefix_N = torch.unique(at_N, return_inverse=True)
    logprobs_U_V = F.log_softmax(model.unembed(hidden_BL_D[prefix_U]).float() / temperature, dim=-1)
    with torch.no_grad():
        entropy_U = -(logprobs_U_V.exp() * logprobs_U_V).sum(-1)
    return TokenStats(logprobs_U_V[prefix_N, next_N], entropy_U[prefix_N])
