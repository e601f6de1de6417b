"""`pilot compare`: the tables, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from api.client import Client
from cli.compare import compare, told_of
from cli.failure import Failure
from tests.api.served import ApiServer
from tests.ui.conftest import api, config  # noqa: F401 - fixtures
from tests.ui.story import Story


def test_compare(api: ApiServer, engine: sa.Engine, config: dict, tmp_path: Path) -> None:  # type: ignore[type-arg] # noqa: F811
    methods = {"pilot": {"name": "pilot_commit", "n_pilot": 4, "n_commit": 12}, "grpo": {"name": "grpo", "n": 16}}
    runs = [
        Story(engine, config | {"name": f"{name} s{seed}", "seed": seed, "method": method}, seed=seed).start().train(10)
        for name, method in methods.items() for seed in (0, 1, 2)
    ]  # fmt: skip
    ids = [str(run.id)[:13] for run in runs]
    with Client(api.url, api.token) as client:
        found = compare(client, ids, "rollouts", 0.45, None)
        words = told_of(found)
        assert [line.split()[:2] for line in words.split("\n")[1:3]] == [["pilot", "3/3"], ["grpo", "3/3"]]
        ratio = found.groups[1].against
        assert ratio and f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" in words
        two = told_of(compare(client, [*ids[:2], *ids[3:5]], "rollouts", 0.45, None)).split("\n")[2]
        assert "(" not in two, "two seeds have a ratio and no interval"
        assert "Target: 45%." in words and "method.n" in words and "seed " not in words
        assert "never" in told_of(compare(client, ids, "hours", 0.99, ids[3])).split("\n")[1]
        for wrong, words in (
            ((["zz"], "rollouts", None, None), "not a run's id"),
            ((ids, "days", None, None), "'rollouts', 'tokens', 'steps' or 'hours'"),
            ((ids[:2], "rollouts", None, ids[3]), "none of the runs"),
            ((ids[:1] * 2, "rollouts", None, None), "named twice"),
        ):
            with pytest.raises(Failure, match=words):
                compare(client, *wrong)  # type: ignore[arg-type]
