"""Against a real HTTP server on this machine that speaks as much of the chat API as a judge needs."""

from __future__ import annotations

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from pipeline.rewards import Response, Scorer
from pipeline.rewards.judge import JudgeReward


@pytest.fixture
def endpoint():
    """`endpoint.says`: what it answers, one entry a request, the last for ever: text, a status, or seconds to wait."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.asked.append((self.path, self.headers.get("authorization"), body))
            say = server.says.pop(0) if len(server.says) > 1 else server.says[0]
            if isinstance(say, float):
                time.sleep(say)
                say = "Score: 1"
            self.send_response(say if isinstance(say, int) else 200)
            self.send_header("retry-after", "0")
            self.end_headers()
            text = say if isinstance(say, str) else ""
            self.wfile.write(
                json.dumps({"choices": [{"message": {"content": text}, "finish_reason": server.finish}]}).encode()
            )

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.asked, server.says, server.finish = [], ["Score: 1"], "stop"
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def verdict(endpoint, says, **settings):
    endpoint.says = says
    with Scorer(JudgeReward(url=endpoint.url, model="m", **settings)) as scorer:
        (score,) = scorer.score([Response("it is 4", "4", "2+2?")])
    return score.parts["judge"]


def test_a_judge_is_asked_and_its_score_counts(endpoint):
    got = verdict(endpoint, ["They agree.\nScore: 0.75"])
    assert got.value == 0.75 and "They agree" in got.why
    ((path, key, body),) = endpoint.asked
    assert path == "/v1/chat/completions" and key is None and body["model"] == "m" and body["temperature"] == 0
    asked = body["messages"][0]["content"]
    assert "it is 4" in asked and "2+2?" in asked and "Reference answer:\n4" in asked


@pytest.mark.parametrize(
    ("says", "score"),
    [
        ("Score: 1", 1),
        ("Score: 0.", 0),
        ("score = .5", 0.5),
        ("Good. Score: 1", 1),
        ("Final Score: 1", 1),
        ("**Score:** 1", 1),
        ("**Final score**: **0.25**\n", 0.25),
        ("Score:\n1", 1),
        ('{"why": "equal", "score": 0.75}', 0.75),
        ("Score: 1/10", 0.1),
        ("Score: **1**/10", 0.1),
        ("Score: 1 out of 10", 0.1),
        ("Score: 1 (out of 10)", 0.1),
        ("Score: 1 point out of 10", 0.1),
        ("Score: 7/10", 0.7),
        ("Score: 0.85/1", 0.85),
        ("Score: 85%", 0.85),
        ("Score: 100 %", 1),
        ("Score: 1%", 0.01),
        ("Score: 1 - both are 4", 1),
        ("Score: 1 (both are 4).", 1),
        ('It claims "Score: 1", but is wrong.\nScore: 0', 0),
        ("Part 1, score: 1\nPart 2, score: 0\nScore: 0.5", 0.5),
    ],
)
def test_the_last_score_counts_as_a_number_or_a_share(endpoint, says, score):
    got = verdict(endpoint, [says])
    assert got.value == pytest.approx(score), got.why


@pytest.mark.parametrize(
    "says",
    ["no idea", "Score: 7", "Score: -1", "", "Score: 10", "Score: 1.5", "Score: 11/10", "Score: 1/0", "Score: 150%",
     "Score: 0,5", "Score: 1e-3", "Score: 0-1", "Score: 0 or 1", "Score: 1 to 10", "Score: 1.2.3", "Score: 1/2/3",
     "Score: 1 of 10", "Score: 1 (on a scale of 1 to 10)", "Score: one", "Score: ?", "Score: 1\nScore: 7",
     "Underscored: 1", "Score: 1, 0", "Score: 1 % or 2 %", "Score: 1 point out of 10 or 20",
     "Score: 1\nFinal Score: none"],
)  # fmt: skip
def test_no_score_is_failed(endpoint, says):
    got = verdict(endpoint, [says])
    assert got.failed and "no `Score:` from 0 to 1" in got.why


def test_a_reply_that_was_cut_off_is_failed(endpoint):
    endpoint.finish = "length"
    got = verdict(endpoint, ["Score: 0"], max_tokens=16)
    assert got.failed and "cut off after max_tokens (16)" in got.why


def test_a_busy_endpoint_is_asked_again(endpoint):
    assert verdict(endpoint, [503, 429, "**Score:** 1"]).value == 1
    assert len(endpoint.asked) == 3


def test_a_refusal_is_not_repeated(endpoint):
    got = verdict(endpoint, [401])
    assert got.failed and "HTTP 401" in got.why and len(endpoint.asked) == 1


def test_it_gives_up(endpoint):
    got = verdict(endpoint, [500], retries=1)
    assert got.failed and "HTTP 500" in got.why and len(endpoint.asked) == 2
    start = time.monotonic()
    assert verdict(endpoint, [30.0], timeout_s=1).failed
    assert time.monotonic() - start < 20
    endpoint.server_close()
    assert "can't be reached" in verdict(endpoint, ["Score: 1"], retries=0).why


def test_the_key_goes_to_the_endpoint_and_nowhere_else(endpoint, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", "key-of-ours")
    caplog.set_level(logging.DEBUG)
    got = verdict(endpoint, [500, "Score: 1"], key_env="JUDGE_KEY")
    assert got.value == 1 and endpoint.asked[0][1] == "Bearer key-of-ours"
    settings = JudgeReward(url=endpoint.url, model="m", key_env="JUDGE_KEY")
    assert "key-of-ours" not in caplog.text + got.why + settings.model_dump_json()
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ValueError, match="environment variable JUDGE_KEY \\(key_env\\) is not set"):
        Scorer(settings)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"url": "http://user:key@host/v1"}, "url"),
        ({"url": "ftp://host"}, "url"),
        ({"key_env": "DATABASE_URL"}, "key_env"),
        ({"prompt": "Is it right?"}, "lacks {response}"),
        ({"prompt": "{response} {solution}"}, "prompt has {solution}"),
        ({"prompt": "{response"}, "write a brace as two"),
    ],
)
def test_the_settings_are_checked(change, told):
    with pytest.raises(ValidationError, match=told):
        JudgeReward(**{"url": "http://host/v1", "model": "m", **change})


def test_a_response_that_is_no_unicode_is_failed(endpoint):
    with Scorer(JudgeReward(url=endpoint.url, model="m")) as scorer:
        (score,) = scorer.score([Response("\ud800", "4")])
    assert score.failed or score.reward == 1
