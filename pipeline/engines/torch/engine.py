"""The torch engine: one process on the CPU or one GPU that samples on a prefix tree and trains on packed groups."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.allocation import Batch, Group, Plan, Rollouts, TrainGroup
from pipeline.config import RunConfig, TorchEngine, UpdateConfig, resolve
from pipeline.engines.torch.model import load, save
from pipeline.engines.torch.packing import microbatches, packed_logprobs
from pipeline.engines.torch.sampler import Sample, sample
from pipeline.evaluation import Answer
from pipeline.prompts import ChatTokenizer, FileFault, Prompt
from pipeline.rewards import Response, Score, Scorer

TOKENIZER_FILES = ("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
                   "chat_template*", "generation_config.json")  # fmt: skip

PHASES = ("generate", "reward", "update")


@dataclass(frozen=True, slots=True)
class Term:
    """One distinct response of a group in the loss: `count` rollouts said it and have the same advantage.

    behaviour_T: log-probs under the policy that sampled it; stale when that was an earlier step's policy.
    """

    tokens: npt.NDArray[np.int32]
    behaviour_T: npt.NDArray[np.float32]
    advantage: float
    count: int
    stale: bool


@dataclass(frozen=True, slots=True)
class Lesson:
    """A group as the loss sees it. n_tokens counts all its rollouts; terms is empty when no advantage differs."""

    prompt: int
    terms: list[Term]
    n_tokens: int


class Engine:
    """Owns the policy, the optimiser and the tokenizer. All randomness comes from (seed, step, round)."""

    def __init__(self, config: RunConfig, settings: TorchEngine, prompts: Sequence[Prompt]) -> None:
        """Raises FileNotFoundError or ValueError that names the model folder when it cannot be used, and
        ValueError for a missing GPU or a prompt without tokens."""
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("engine.device is 'cuda' but no CUDA device is available; set engine.device to 'cpu'")
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.config = config
        self.token_budget = settings.token_budget
        self.folder = resolve(config.model.path)
        self.model = load(self.folder, settings.device)
        try:
            self.tokenizer = ChatTokenizer(self.folder)
        except FileFault as error:
            raise ValueError(f"model.path {self.folder}: {error}") from error
        if self.tokenizer.eos is None:
            raise ValueError(f"the tokenizer in {self.folder} has no eos token; set eos_token")
        self.eos: int = self.tokenizer.eos
        self.prompts = prompts
        self._tokens_of: dict[str, list[int]] = {}
        self._text_of: dict[bytes, str] = {}
        self.scorer = Scorer(config.reward, named=config.rewards)
        update = config.update
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=update.lr, betas=(0.9, 0.999), weight_decay=update.weight_decay
        )
        self.updates = 0  # optimiser updates so far; decides the warm-up
        self.seconds = dict.fromkeys(PHASES, 0.0)  # of the training step under way

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    # --- sampling ----------------------------------------------------------------------------------------------

    def generate(self, plan: Plan) -> list[Group]:
        """The plan's groups, in order. Data of each rollout: text, logprob, tokens (int32 [T]), logprobs (float32 [T]),
        verdicts (JSON)."""
        if plan.round == 1:
            self.seconds = dict.fromkeys(PHASES, 0.0)
        if not plan.requests:
            return []
        start = time.perf_counter()
        answers = sample(
            self.model,
            [self.encode(self.prompts[r.prompt]) for r in plan.requests],
            [r.n for r in plan.requests],
            max_new_tokens=self.config.sampling.max_new_tokens,
            temperature=self.config.sampling.temperature,
            top_p=1.0,
            eos_id=self.eos,
            generator=self._generator(plan.step, plan.round),
        )
        sampled = time.perf_counter()
        asked = [self.prompts[request.prompt] for request in plan.requests]
        scores = iter(self._score(asked, answers))
        groups = []
        for request, samples in zip(plan.requests, answers, strict=True):
            own = list(itertools.islice(scores, len(samples)))
            data = [
                {
                    "text": self.decode(s.tokens),
                    "logprob": float(s.logprobs.sum()),
                    "tokens": s.tokens,
                    "logprobs": s.logprobs,
                    "verdicts": score.told,
                }
                for s, score in zip(samples, own, strict=True)
            ]
            rollouts = Rollouts(
                rewards=np.array([score.reward for score in own]),
                success=np.array([score.accuracy for score in own]),
                n_tokens=np.array([len(s.tokens) for s in samples]),
                steps=np.full(len(samples), plan.step),
                data=data,
            )
            groups.append(Group(request, rollouts))
        self.seconds["generate"] += sampled - start
        self.seconds["reward"] += time.perf_counter() - sampled
        return groups

    def _score(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Sample]], scorer: Scorer | None = None
    ) -> list[Score]:
        """Of all samples of all prompts, in order. scorer: judges them all; None means the run's, which has the rewards
        that prompts name."""
        return (scorer or self.scorer).score(
            [
                Response(
                    self.decode(s.tokens), prompt.answer, prompt.text, len(s.tokens), None if scorer else prompt.reward
                )
                for prompt, samples in zip(prompts, answers, strict=True)
                for s in samples
            ]
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt in the chat template, ready for the answer. Kept, for prompts come again."""
        tokens = self._tokens_of.get(prompt.id)
        if tokens is None:
            (tokens,) = self.tokenizer.encode([prompt])
            if not tokens:
                raise ValueError(f"prompt {prompt.id} has no tokens under this tokenizer")
            self._tokens_of[prompt.id] = tokens
        return tokens

    def decode(self, tokens_T: npt.NDArray[np.int32]) -> str:
        """The response's text without special tokens. Kept: short answers repeat all the time."""
        key = tokens_T.tobytes()
        text = self._text_of.get(key)
        if text is None:
            if len(self._text_of) > 200_000:
                self._text_of.clear()
            text = self._text_of[key] = self.tokenizer.decode(tokens_T.tolist())
        return text

    def _generator(self, step: int, round: int, stream: str = "") -> torch.Generator:
        entropy = [self.config.seed, step, round, *stream.encode()]
        seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
        return torch.Generator().manual_seed(seed & (2**63 - 1))

    def answers(
        self,
        prompts: Sequence[Prompt],
        samples: int,
        *,
        temperature: float,
        top_p: float,
        greedy: bool,
        step: int,
        stream: str,
        scorer: Scorer | None,
    ) -> list[list[Answer]]:
        """pipeline.evaluation.Answering says what these mean."""
        found = sample(
            self.model,
            [self.encode(p) for p in prompts],
            [samples] * len(prompts),
            max_new_tokens=self.config.sampling.max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            eos_id=self.eos,
            generator=self._generator(step, 0, stream),  # training rounds count from 1
            greedy=greedy,
        )
        scores = iter(self._score(prompts, found, scorer))
        return [
            [
                Answer(self.decode(s.tokens), len(s.tokens), score.reward, score.accuracy, score.extracted, score.told)
                for s, score in zip(group, itertools.islice(scores, len(group)), strict=True)
            ]
            for group in found
        ]

    # --- learning ----------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> dict[str, float | None]:
        """`mini_batches` optimiser updates on the batch, for every method the same number.

        Per token, with r = pi_new / pi_now (pi_now: the policy at the start of this update), A the advantage,
        w = min(cap, pi_now / pi_behaviour) for stored pilots and 1 for rollouts of this step:

            loss = -mean over all tokens of w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

        (PPO, arXiv 1707.06347 eq. 7; asymmetric clip and token mean: DAPO, arXiv 2503.14476 eq. 8; truncated
        importance sampling as in verl's rollout correction.) Groups with equal rewards add exactly nothing to the
        gradient and only count in the mean's denominator; equal responses are run once, with their count.
        """
        start = time.perf_counter()
        settings = self.config.update
        lessons = [lesson(group, batch.step) for group in batch.groups]
        order = np.random.default_rng([self.config.seed, batch.step]).permutation(len(lessons))
        # pi_now must be taken before the first update changes the policy.
        stale = [i for i, lesson in enumerate(lessons) if any(t.stale for t in lesson.terms)]
        now = dict(zip(stale, self._now([lessons[i] for i in stale]), strict=True))
        totals = {
            "loss": 0.0,
            "clipped": 0.0,
            "entropy": 0.0,
            "tokens": 0.0,
            "grad_norm": 0.0,
            "updates": 0.0,
        }
        for part in np.array_split(order, settings.mini_batches):
            self._learn([(lessons[i], now.get(int(i))) for i in part], settings, totals)
        self.seconds["update"] += time.perf_counter() - start
        tokens, updates = totals["tokens"], totals["updates"]
        return {
            "loss": totals["loss"] / updates if updates else None,
            "grad_norm": totals["grad_norm"] / updates if updates else None,
            "entropy": totals["entropy"] / tokens if tokens else None,
            "clip_fraction": totals["clipped"] / tokens if tokens else None,
            "learning_rate": self._lr(settings),
            **{f"seconds_{phase}": seconds for phase, seconds in self.seconds.items()},
        }

    def _lr(self, settings: UpdateConfig) -> float:
        """Of update number `updates`, the first being 1: linear warm-up, then constant."""
        return settings.lr * min(1.0, self.updates / (settings.warmup_updates + 1))

    def _now(self, lessons: list[Lesson]) -> list[Tensor]:
        """Log-probs under the current policy, per lesson of all its terms' tokens, float32 [T], without gradient."""
        responses = [[t.tokens.tolist() for t in lesson.terms] for lesson in lessons]
        if not lessons:
            return []
        with torch.no_grad():
            prompts = [self.encode(self.prompts[lesson.prompt]) for lesson in lessons]
            temperature = self.config.sampling.temperature
            flat_T = packed_logprobs(self.model, prompts, responses, temperature, self.token_budget).logprobs
        return list(torch.split_with_sizes(flat_T, [sum(map(len, group)) for group in responses]))

    def _learn(
        self, part: list[tuple[Lesson, Tensor | None]], settings: UpdateConfig, totals: dict[str, float]
    ) -> None:
        """One optimiser update. A part without any advantage still counts as an update: it moves nothing."""
        n_tokens = sum(lesson.n_tokens for lesson, _ in part)
        part = [(lesson, now) for lesson, now in part if lesson.terms]
        self.updates += 1
        if not part:
            return
        device = self.model.device
        prompts = [self.encode(self.prompts[lesson.prompt]) for lesson, _ in part]
        responses = [[t.tokens.tolist() for t in lesson.terms] for lesson, _ in part]
        self.optimiser.zero_grad(set_to_none=True)
        for chunk in microbatches(prompts, responses, self.token_budget):
            stats = packed_logprobs(
                self.model,
                [prompts[g] for g in chunk],
                [responses[g] for g in chunk],
                self.config.sampling.temperature,
                self.token_budget,
            )
            terms = [t for g in chunk for t in part[g][0].terms]
            lengths = torch.tensor([len(t.tokens) for t in terms], device=device)
            behaviour_T = torch.from_numpy(np.concatenate([t.behaviour_T for t in terms])).to(device)
            stale_T = torch.tensor([t.stale for t in terms], device=device).repeat_interleave(lengths)
            advantage_T = torch.tensor([t.advantage for t in terms], device=device).repeat_interleave(lengths)
            count_T = torch.tensor([float(t.count) for t in terms], device=device).repeat_interleave(lengths)
            now_T = behaviour_T
            if stale_T.any():
                pieces, start = [], 0
                for g in chunk:
                    size = sum(len(t.tokens) for t in part[g][0].terms)
                    known = part[g][1]
                    pieces.append(behaviour_T[start : start + size] if known is None else known)
                    start += size
                # A rollout of this step was sampled by the current policy: its own log-probs are pi_now.
                now_T = torch.where(stale_T, torch.cat(pieces), behaviour_T)
            weight_T = count_T
            if settings.off_policy_cap is not None:
                correction_T = (now_T - behaviour_T).exp().clamp(max=settings.off_policy_cap)
                weight_T = count_T * torch.where(stale_T, correction_T, 1.0)
            ratio_T = (stats.logprobs - now_T).exp()
            clipped_T = ratio_T.clamp(1 - settings.clip_low, 1 + settings.clip_high)
            gain_T = torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
            loss = -(weight_T * gain_T).sum() / n_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                totals["loss"] += float(loss)
                totals["tokens"] += float(count_T.sum())
                totals["entropy"] += float((stats.entropy * count_T).sum())
                totals["clipped"] += float(((clipped_T * advantage_T < ratio_T * advantage_T) * count_T).sum())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"the gradient is not finite in optimiser update {self.updates}; lower update.lr or update.grad_clip"
            )
        for group in self.optimiser.param_groups:
            group["lr"] = self._lr(settings)
        self.optimiser.step()
        totals["grad_norm"] += float(norm)
        totals["updates"] += 1

    # --- checkpoints -------------------------------------------------------------------------------------------

    def keep(self, waiting: Iterable[Rollouts]) -> None:
        """Nothing to do: a rollout's tokens are in its `data`, and go when that goes."""

    def save(self, folder: Path) -> None:
        """Writes `policy/` (a Hugging Face folder that any tool loads) and `optimiser.safetensors` into `folder`."""
        policy = folder / "policy"
        save(self.model, policy)
        for pattern in TOKENIZER_FILES:
            for file in self.folder.glob(pattern):
                shutil.copy(file, policy / file.name)
        state = self.optimiser.state_dict()["state"]
        tensors = {f"{i}.{name}": value.contiguous() for i, of in state.items() for name, value in of.items()}
        save_file(tensors, folder / "optimiser.safetensors", metadata={"updates": str(self.updates)})

    def load(self, folder: Path) -> None:
        """Takes up what `save` wrote. Raises FileNotFoundError or ValueError when it is not whole."""
        file = folder / "optimiser.safetensors"
        state: dict[int, dict[str, Tensor]] = {}
        try:
            weights = load(folder / "policy", self.model.device).state_dict()
            with safe_open(file, framework="pt") as header:
                self.updates = int(header.metadata()["updates"])
            for key, value in load_file(file).items():
                i, name = key.split(".", 1)
                state.setdefault(int(i), {})[name] = value
        except SafetensorError as error:
            raise ValueError(f"the checkpoint {folder} is not whole: {error}") from error
        self.model.load_state_dict(weights)
        # Hyperparameters are the config's, and lr is set before each update.
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})

    def record(self, metrics: Mapping[str, float | None], step: int) -> None:
        """This engine has no loggers of its own."""

    def close(self) -> None:
        """It started no process."""


def lesson(group: TrainGroup, step: int) -> Lesson:
    """The group's distinct responses with advantages; without terms when no advantage differs from zero."""
    n_tokens = int(group.rollouts.n_tokens.sum())
    if not group.advantages.any():
        return Lesson(group.prompt, [], n_tokens)
    terms: dict[tuple[bytes, float, int], Term] = {}
    for data, advantage, sampled_at in zip(
        group.rollouts.data, group.advantages.tolist(), group.rollouts.steps.tolist(), strict=True
    ):
        key = (data["tokens"].tobytes(), advantage, sampled_at)
        count = terms[key].count + 1 if key in terms else 1
        terms[key] = Term(data["tokens"], data["logprobs"], advantage, count, stale=sampled_at < step)
    return Lesson(group.prompt, list(terms.values()), n_tokens)
