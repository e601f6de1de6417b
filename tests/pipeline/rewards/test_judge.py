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
            self.wfile.write(json.dumps({"choices": [{"message": {"content": text}}]}).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.asked, server.says = [], ["Score: 1"]
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


@pytest.mark.parametrize("says", ["no idea", "Score: 7", "Score: -1", "", "Score: 10"])
def test_no_score_is_failed(endpoint, says):
    assert verdict(endpoint, [says]).failed


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
