"""What a reward says about a response, over HTTP: explained, bounded, and harmless for the API."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.test_problems import problem


def tried(api: TestClient, reward: dict[str, Any], *responses: str, **more: Any) -> list[dict[str, Any]]:
    answer = api.post("/api/v1/rewards/test", json={"reward": reward, "responses": responses, **more})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


def test_every_reward_is_listed_with_its_parameters(api: TestClient) -> None:
    rewards = {r["name"]: r for r in api.get("/api/v1/rewards").json()["rewards"]}
    assert {"exact", "math", "numeric", "gsm8k", "choice", "format", "code", "judge", "overlong", "sum"} <= set(rewards)
    assert rewards["math"]["parameters"]["properties"]["timeout_s"]["default"] == 5.0
    assert rewards["math"]["elsewhere"] is None and "sandbox" in rewards["code"]["elsewhere"]


def test_what_was_extracted_and_compared(api: TestClient) -> None:
    right, wrong, process = tried(
        api, {"name": "math"}, "So \\boxed{\\frac{2}{4}}.", "\\boxed{3}", "\\boxed{x<1}", answer="0.5"
    )
    assert (right["reward"], right["accuracy"], right["why"]) == (1.0, 1.0, "the numbers are equal")
    (part,) = right["parts"]
    assert (part["extracted"], part["expected"], part["judges"]) == ("\\frac{2}{4}", "0.5", True)
    assert (wrong["reward"], wrong["failed"]) == (0.0, False) and process["why"] == "not equal by math-verify"
    parts = [{"reward": {"name": "exact"}}, {"weight": 0.5, "reward": {"name": "format", "shape": "boxed"}}]
    (summed,) = tried(api, {"name": "sum", "parts": parts}, "\\boxed{1}", answer="1")
    assert (summed["reward"], summed["accuracy"]) == (0.5, 0.0)
    assert [(p["name"], p["weight"], p["value"], p["judges"]) for p in summed["parts"]] == [
        ("exact", 1.0, 0.0, True),
        ("format", 0.5, 1.0, False),
    ]


def test_hostile_answers_get_a_verdict_in_time_and_come_back_printable(api: TestClient) -> None:
    began = time.monotonic()
    hostile = [
        "\\boxed{5^{5^{5^{5^5}}}}",
        "\x1b[2J\x00<script>",
        "9" * 300_000,
        "\\boxed{" * 20_000,
        "\\frac{" * 40_000,
    ]
    results = tried(api, {"name": "math", "timeout_s": 2}, *hostile, answer="7")
    assert results[0]["failed"] and results[0]["reward"] is None and "2 s" in results[0]["why"]
    for result in results:
        told = [text for part in result["parts"] for text in (part["why"], part["extracted"], part["expected"]) if text]
        assert all(text.isprintable() and len(text) < 3000 for text in told)
    (exact,) = tried(api, {"name": "exact"}, "\x1b[31m\x00" + "x" * 9999, answer="a")
    assert exact["parts"][0]["extracted"].startswith("\\x1b[31m\\x00x")
    assert time.monotonic() - began < 60
    assert api.get("/api/v1/rewards").status_code == 200


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"reward": {"name": "code"}, "responses": ["x"]}, "reward-elsewhere", "`./pilot reward test code`"),
        ({"reward": {"name": "function", "folder": "/", "path": "os:system"}, "responses": ["x"]}, "reward-elsewhere",
         "`./pilot reward test function`"),
        ({"reward": {"name": "sum", "parts": [{"reward": {"name": "exact"}}, {"reward": {"name": "code"}}]},
          "responses": ["x"]}, "reward-elsewhere", "'code'"),
        ({"reward": {"name": "math", "timeout_s": 300}, "responses": ["x"]}, "invalid-reward", "reward.timeout_s"),
        ({"reward": {"name": "maths"}, "responses": ["x"]}, "invalid-reward", "known: exact"),
        ({"reward": {"name": "numeric", "tol": 1}, "responses": ["x"]}, "invalid-reward", "unknown field 'tol'"),
        ({"reward": {"name": "exact"}, "responses": []}, "invalid-request", "body.responses"),
        ({"reward": {"name": "exact"}, "responses": ["x"] * 17}, "invalid-request", "body.responses"),
        ({"reward": {"name": "exact"}, "responses": ["x" * 300_001]}, "invalid-request", "body.responses.0"),
    ],
)  # fmt: skip
def test_what_is_refused(api: TestClient, body: dict[str, Any], kind: str, words: str) -> None:
    answer = api.post("/api/v1/rewards/test", json=body)
    assert problem(answer)["type"] == f"/problems/{kind}" and answer.status_code == 422
    assert words in answer.text
