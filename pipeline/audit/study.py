"""An audit from end to end: read, count, replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from pipeline.audit.figures import (
    Groups,
    bucket_shares,
    dead_prompts,
    difficulty_map,
    groups_of,
    over_steps,
    prompts_of,
    shares,
)
from pipeline.audit.log import Log, read_log
from pipeline.audit.replay import methods, replays
from pipeline.audit.report import AuditSettings, Report
from pipeline.audit.rows import BadLog

GROUPS_REPLAYED = 60_000
"""By default so many logged groups are replayed, all replays together: about a minute's work."""


def study(path: Path, settings: AuditSettings, tell: Callable[[int, int], None] = lambda done, of: None) -> Report:
    """As `pipeline.audit.audit` says."""
    log = read_log(path, settings)
    groups = groups_of(log)
    known = np.flatnonzero(groups.n > 0)
    if groups.n.max() < 2:
        raise BadLog(
            f"{path}: no prompt has more than one rollout in a step, so there are no groups to look at. Is 'step' the "
            "training step, and 'prompt' the same for all its rollouts?"
        )
    settings = _filled(settings, groups)
    try:
        methods(settings)
    except ValidationError as error:
        raise BadLog("; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())) from None
    prompts = prompts_of(groups, len(log.texts))
    dead, dead_rollouts, dearest = dead_prompts(prompts, log.texts)
    told, certainty = replays(log, settings, tell)
    share = shares(groups, known)
    mixed = int(groups.mixed.sum())
    return Report(
        source=log.source,
        format=log.format,
        reward=log.reward,
        steps=len(np.unique(log.step)),
        first_step=int(log.step[0]),
        last_step=int(log.step[-1]),
        prompts=len(log.texts),
        groups=len(log.step),
        rollouts=len(log.rewards),
        failed=int(groups.n_failed.sum()),
        tokens=None if log.tokens is None else int(log.tokens.sum()),
        group_size=_most_common(np.diff(log.start)),
        batch_prompts=settings.batch_prompts or 1,
        zero_variance=share["all_right"] + share["all_wrong"],
        per_mixed=len(log.rewards) / mixed if mixed else None,
        over_steps=over_steps(groups),
        map=difficulty_map(prompts),
        buckets=bucket_shares(prompts, settings),
        dead_prompts=dead,
        dead_rollouts=dead_rollouts,
        dead=dearest,
        methods=told,
        certainty=certainty,
        settings=settings,
        assumptions=_assumptions(log, settings),
        bad_rows=log.bad_rows,
        bad=log.bad,
        **share,
    )


def _filled(given: AuditSettings, groups: Groups) -> AuditSettings:
    """The settings with what follows the log."""
    n = given.n or max(2, _most_common(groups.n + groups.n_failed))
    # Of a single pilot the variance is zero whatever the prompt, and none would be committed.
    n_pilot = given.n_pilot or max(2, n - given.n_commit if given.n_commit else round(n / 4))
    batch = int(np.median(np.unique(groups.step, return_counts=True)[1]))
    return given.model_copy(
        update={
            "n": n,
            "n_pilot": n_pilot,
            "n_commit": given.n_commit or max(1, n - n_pilot),
            "keep": given.keep or (max(2, round(n / 4)) if n > 2 else None),  # of two it can leave none out
            "batch_prompts": given.batch_prompts or batch,
            "replays": given.replays or max(3, min(20, GROUPS_REPLAYED // len(groups.n))),
        }
    )


def _most_common(sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    return int(np.bincount(sizes).argmax())


def _assumptions(log: Log, settings: AuditSettings) -> list[str]:
    size = np.diff(log.start)
    found = [
        "The policy's learning curve is taken as logged: step k of a replay is the k-th logged step, whatever a "
        "method trained on before. What a method would have learned more or less is not in these figures.",
        "A prompt answers with the rewards of its logged visit nearest to the step, dealt without replacement; a "
        "method that wants more than were logged gets them shuffled again.",
        "Intervals hold the middle 95% of the replays. Each has another order of prompts, other shuffles, and a pool "
        "of prompts drawn with replacement; they say nothing about other seeds of the training itself.",
        f"Every method trains on {settings.batch_prompts} prompts a step for as many steps as were logged, and its "
        "remaining settings are this platform's defaults.",
    ]
    uneven = float(np.mean(size != _most_common(size)))
    if uneven > 0.05:
        found.append(
            f"{uneven:.0%} of the groups have another size than {_most_common(size)}: the log does not look like one "
            "of uniform sampling. Prompts that its method avoided are missing in the replays, too."
        )
    if (settings.n or 0) > _most_common(size):
        found.append(
            f"Groups of {settings.n} are replayed from logged ones of {_most_common(size)}: rollouts are drawn again, "
            "and groups look more alike than they would."
        )
    return found + log.notes
