"""Logs with known answers through the real allocators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.allocation import Fate
from pipeline.audit import AuditSettings, BadLog, Report, audit
from pipeline.audit.log import read_log
from pipeline.audit.replay import Stream, Visits, methods, replay
from tests.pipeline.audit import logs

SETTINGS = AuditSettings(replays=5)


def audited(tmp_path: Path, rolled: list[logs.Rolled], settings: AuditSettings = SETTINGS) -> Report:
    return audit(logs.table(tmp_path / "log.csv", rolled), settings)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of four prompts one is never right, one always, and two are right four times of eight."""
    return audited(tmp_path_factory.mktemp("half"), logs.stream(30, 8, 8, (0, 4, 8, 4)))


def test_half_of_the_groups_have_no_variance(half: Report) -> None:
    assert (half.zero_variance, half.all_right, half.all_wrong, half.success_rate) == (0.5, 0.25, 0.25, 0.5)
    assert half.reward_variance == 0.125 and half.per_mixed == 16.0
    assert (half.prompts, half.groups, half.rollouts, half.group_size, half.batch_prompts) == (240, 240, 1920, 8, 8)
    assert {b.bucket: b.prompts for b in half.buckets} == {"deferred": 60, "ready": 120, "skipped": 0, "evicted": 60}
    assert sum(c.prompts for c in half.map) == 240 and {(c.p_from, c.visits_from) for c in half.map} == {
        (0.0, 1), (0.5, 1), (0.95, 1),
    }  # fmt: skip
    assert (half.dead_prompts, half.dead_rollouts, len(half.dead)) == (120, 960, 10)
    assert [(s.all_right, s.all_wrong) for s in half.over_steps] == [(0.25, 0.25)] * 30


def test_grpo_replayed_is_grpo_logged(half: Report) -> None:
    """Dealt without replacement a group is the logged one; only the bootstrap of prompts moves the rate."""
    grpo = half.methods[0]
    assert grpo.rollouts.low == grpo.rollouts.high == 1920 and grpo.fates == {"trained": 1.0}
    assert grpo.per_mixed and grpo.per_mixed.low < 16 < grpo.per_mixed.high and grpo.saved is None
    pods = half.methods[1]
    assert pods.per_mixed == grpo.per_mixed and pods.fates == {"trained": 0.25, "downsampled": 0.75}
    assert pods.saved and pods.saved_signal and (pods.saved.median, pods.saved_signal.median) == (0.0, 0.0), "p is 1/2"


def test_what_each_method_pays_for_a_mixed_group(half: Report) -> None:
    by_name = {m.name: m for m in half.methods}
    kept = by_name["DAPO, surplus kept"]
    assert kept.mixed_groups.median == 240 and kept.per_mixed and kept.per_mixed.median == pytest.approx(16, rel=0.12)
    dapo = by_name["DAPO"]  # 24 prompts a pass, of which 8 train
    assert dapo.fates == pytest.approx({"trained": 1 / 3, "discarded": 2 / 3}, abs=0.02) and dapo.short_by.high == 0
    pilot_commit = by_name["Pilot-Commit"]  # 2 pilots of a prompt of 4 in 8: both right or both wrong with 3/7
    assert pilot_commit.saved and 0 < pilot_commit.saved.low <= pilot_commit.saved.high < 0.5
    assert set(pilot_commit.fates) >= {"trained", "pilot_deferred", "pilot_evicted"}
    for method in half.methods:
        assert sum(method.fates.values()) == pytest.approx(1.0)


def test_nothing_to_save_where_every_group_is_mixed(tmp_path: Path) -> None:
    report = audited(tmp_path, logs.stream(12, 4, 16, (8,)))
    assert report.zero_variance == 0.0 and report.dead == [] and report.methods[0].per_mixed
    assert report.methods[0].per_mixed.median == 16.0
    pilot_commit = report.methods[-1]
    assert pilot_commit.saved and pilot_commit.saved.median <= 0, "pilots cost, and there is nothing to avoid"


@pytest.mark.parametrize(("n", "pilots", "commits"), [(2, 2, 1), (3, 2, 1), (4, 2, 2), (16, 4, 12)])
def test_pilot_commit_can_tell_a_mixed_prompt_by_its_pilots(tmp_path: Path, n: int, pilots: int, commits: int) -> None:
    """A single pilot is always all right or all wrong."""
    report = audited(tmp_path, logs.stream(12, 4, n, (n // 2,)))
    assert (report.settings.n_pilot, report.settings.n_commit) == (pilots, commits)
    assert report.methods[-1].fates["trained"] > 0


def test_a_log_that_teaches_nothing(tmp_path: Path) -> None:
    report = audited(tmp_path, logs.stream(4, 2, 4, (0, 4)))
    assert report.zero_variance == 1.0 and report.per_mixed is None
    assert all(m.per_mixed is None and m.saved is None for m in report.methods)
    assert all(m.rollouts.median > 0 for m in report.methods)


@pytest.mark.parametrize("name", ["GRPO", "PODS", "DAPO", "DAPO, surplus kept", "Pilot-Commit"])
def test_every_rollout_has_one_fate(tmp_path: Path, name: str) -> None:
    rolled = logs.stream(9, 6, 8, (0, 1, 4, 7, 8))
    log = read_log(logs.table(tmp_path / "log.csv", rolled), AuditSettings())
    filled = AuditSettings(n=8, n_pilot=2, n_commit=6, keep=3, batch_prompts=6, replays=1)
    visits, rng = Visits(log), np.random.default_rng(0)
    dealt: list[int] = []

    class Counted(Stream):
        def _deal(self, prompt: int, n: int, step: int, now: int):  # type: ignore[no-untyped-def]
            dealt.append(n)
            return super()._deal(prompt, n, step, now)

    stream = Counted(visits, np.arange(len(log.texts)), visits.shuffled(rng), rng)
    spend = replay(len(log.texts), np.unique(log.step), methods(filled)[name][1], stream)
    assert spend.rollouts == sum(spend.fates.values()) == sum(dealt) > 0
    assert all(n >= 0 for n in spend.fates.values()) and spend.fates[Fate.TRAINED] > 0


def test_a_visit_is_dealt_whole_before_a_card_comes_again(tmp_path: Path) -> None:
    rolled = [logs.Rolled(1, "p", [0.1, 0.2, 0.3, 0.4]), logs.Rolled(9, "p", [0.5, 0.6, 0.7, 0.8])]
    log = read_log(logs.table(tmp_path / "log.csv", rolled), AuditSettings())
    rng = np.random.default_rng(1)
    visits = Visits(log)
    stream = Stream(visits, np.zeros(1, np.int64), visits.shuffled(rng), rng)
    pilots, commits, more = (stream._deal(0, n, step=4, now=1).rewards.tolist() for n in (1, 3, 6))
    assert sorted(pilots + commits) == [0.1, 0.2, 0.3, 0.4] and stream.n_again == 6
    assert sorted(more[:4]) == [0.1, 0.2, 0.3, 0.4] and set(more[4:]) < {0.1, 0.2, 0.3, 0.4}
    assert set(stream._deal(0, 4, step=6, now=1).rewards) == {0.5, 0.6, 0.7, 0.8}, "the nearest visit"
    assert stream.away == [3, 3, 3, 3]


def test_replays_repeat_with_a_seed_and_differ_without(tmp_path: Path) -> None:
    rolled = logs.stream(6, 4, 8, (0, 2, 5, 8))
    one, again = (audited(tmp_path, rolled, AuditSettings(replays=2, seed=3)) for _ in range(2))
    other = audited(tmp_path, rolled, AuditSettings(replays=2, seed=4))
    assert one == again and one.methods != other.methods and one.over_steps == other.over_steps


def test_settings_are_those_of_real_runs(tmp_path: Path) -> None:
    rolled = logs.stream(2, 2, 8, (4,))
    report = audited(tmp_path, rolled, AuditSettings(n_pilot=3, replays=1))
    assert (report.settings.n, report.settings.n_commit, report.settings.keep) == (8, 5, 2)
    with pytest.raises(BadLog, match="p_lower=0.9 is above p_upper=0.75: no prompt could ever be committed"):
        audited(tmp_path, rolled, AuditSettings(p_lower=0.9))
    larger = audited(tmp_path, rolled, AuditSettings(n=32, replays=1))
    assert any("rollouts are drawn again" in words for words in larger.assumptions)
