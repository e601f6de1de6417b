"""How heavy the dashboard is: time on the server and bytes to the browser, for each page, in a full platform.

    python -m bench.dashboard [--quick] [--json] [--only PAGE ...]

A private Postgres holds 1,000 runs, one of them with 10,000 steps over 100,000 prompts that is still running. The API
and the dashboard run as `pilot up` starts them. A client speaks Streamlit's own protocol, with what a browser keeps in
its cache, so that only the browser's drawing is left out. For each page:

- opened: a browser session that nobody has used yet, and
- refreshed: each timed part of the page, right after the run has made another step.

Time is from the request to the last message of the answer, the API's part included, on two cores that have nothing else
to do; the CPU time of all servers, which a busy machine changes little, is told beside it. Bytes are those of the
messages before compression. Each is the median of several. Bounds: a page opened <= 300 ms and <= 400 KB; a refresh
<= 60 ms and <= 30 KB.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import psutil
import sqlalchemy as sa
from sqlalchemy.orm import Session
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

import db
from bench.served import free_port, serving
from bench.verdict import finish
from cli import services
from db import tokens
from pipeline.config import parse_config

ROOT = Path(__file__).resolve().parents[1]
RUNS, STEPS, PROMPTS = 1000, 10_000, 100_000
VISITS_PER_STEP = 100
OPEN_MS, OPEN_KB = 300.0, 400.0
REFRESH_MS, REFRESH_KB = 60.0, 30.0

# The run's numbers are smooth curves with noise; what is drawn from them is not looked at here.
_FILL = (
    """
    INSERT INTO runs (id, name, config, config_digest, method, model, state, created_at, started_at, finished_at,
        attempt, step, rollouts, tokens, first_accuracy, accuracy, best_accuracy, buckets)
    SELECT gen_random_uuid(), 'run ' || i, CAST(:config AS jsonb), md5(i::text), 'pilot_commit', 'models/policy',
        CASE i % 4 WHEN 0 THEN 'failed' WHEN 1 THEN 'stopped' ELSE 'succeeded' END,
        now() - i * interval '1 hour', now() - i * interval '1 hour', now() - i * interval '50 minutes',
        1, 200, 200000, 40000000, 0.3, 0.3 + i % 40 * 0.01, 0.3 + i % 40 * 0.01, CAST(:buckets AS jsonb)
    FROM generate_series(1, CAST(:runs AS int) - 1) AS i
    """,
    """
    INSERT INTO evaluations (run_id, step, attempt, greedy_accuracy, sampled_accuracy, stderr, samples, n_prompts,
        rollouts_spent, eval_rollouts, eval_tokens, seconds, finished_at)
    SELECT id, s, 1, 0.3 + 0.01 * s, 0.3 + 0.01 * s, 0.01, 4, 200, s * 1000, 1000, 200000, 5, now()
    FROM runs, generate_series(0, 20) AS s
    """,
    """
    INSERT INTO attempts (run_id, attempt, fence, host, from_step, started_at, finished_at, seconds)
    SELECT id, 1, 1, 'gpu-node-1', 0, started_at, finished_at, 600 FROM runs
    """,
    "INSERT INTO datasets (id, name) VALUES ('bench', 'train')",
    """
    INSERT INTO prompts (dataset_id, id, text, answer, tags)
    SELECT 'bench', md5(i::text), 'What is ' || i || ' + ' || i * 7 || '? ' || repeat('Explain. ', 20), (i * 8)::text,
        ARRAY['add', 'digits' || length(i::text)] FROM generate_series(1, CAST(:prompts AS int)) AS i
    """,
    """
    INSERT INTO runs (id, name, config, config_digest, method, model, state, started_at, attempt, dataset_id, step,
        rollouts, tokens, first_accuracy, accuracy, best_accuracy, buckets)
    VALUES (:run, 'long', CAST(:config AS jsonb), 'd', 'pilot_commit', 'models/policy', 'running',
        now() - interval '20 hours', 1, 'bench', 0, 0, 0, 0.3, 0.6, 0.6, '{}')
    """,
    """
    INSERT INTO attempts (run_id, attempt, fence, host, from_step, started_at)
    VALUES (:run, 1, 1, 'gpu-node-1', 0, now() - interval '20 hours')
    """,
    """
    INSERT INTO evaluations (run_id, step, attempt, greedy_accuracy, sampled_accuracy, stderr, samples, n_prompts,
        rollouts_spent, eval_rollouts, eval_tokens, seconds, finished_at)
    SELECT CAST(:run AS uuid), s, 1, 0.3 + 0.3 * s / 1e4, 0.3 + 0.3 * s / 1e4, 0.01, 4, 200, s * 800, 1000, 200000, 5,
        now()
    FROM generate_series(0, CAST(:steps AS int), 100) AS s
    """,
)  # fmt: skip

# One range of steps of the long run, as ingest would leave them.
_STEPS = (
    """
    INSERT INTO step_metrics (run_id, step, attempt, epoch, rollouts, tokens, metrics, buckets, finished_at)
    SELECT CAST(:run AS uuid), s, 1, s / 1000, s * 800, s * 160000::bigint, jsonb_build_object(
            'trained_prompts', 32, 'trained_rollouts', 512, 'short_by', 0, 'rounds', 1, 'buffer_size', 40 + s % 9,
            'reward_variance', 0.2 + 0.02 * sin(s / 90.0) + 0.02 * random(),
            'uniform_reward_variance', 0.09 + 0.02 * random(), 'success_rate', 0.5 + 0.1 * random(),
            'loss', 0.01 * random(), 'grad_norm', 0.6 + random() * 0.1, 'entropy', 0.8 + 0.1 * random(),
            'clip_fraction', 0.02 * random(), 'response_tokens', 200 + 20 * random(), 'age_mean', 0.8 + 0.1 * random(),
            'seconds_generate', 4.4 + random(), 'seconds_reward', 0.2, 'seconds_update', 2.3 + random() * 0.2),
        jsonb_build_object('unseen', n - 40 - s % 9 - n / 5 - n / 8 - n / 4 - n / 10 - s, 'ready', 40 + s % 9,
            'committed', n / 5, 'skipped', n / 8, 'deferred', n / 4, 'evicted', n / 10 + s),
        now() - (CAST(:last AS int) - s) * interval '7.2 seconds'
    FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS s, (SELECT CAST(:prompts AS int) AS n) AS pool
    """,
    """
    INSERT INTO ledger (run_id, attempt, step, fate, rollouts, tokens)
    SELECT CAST(:run AS uuid), 1, s, fate, n, n * 200::bigint
    FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS s,
        (VALUES ('trained', 512), ('pilot_skipped', 100), ('pilot_deferred', 120), ('pilot_evicted', 60),
            ('buffered', 8)) AS f (fate, n)
    """,
    """
    INSERT INTO prompt_visits (run_id, step, position, prompt_id, stage, attempt, n, n_failed, success_rate,
        reward_variance, tokens, bucket)
    SELECT CAST(:run AS uuid), s, at, md5((1 + floor(random() * CAST(:prompts AS int)))::int::text),
        CASE WHEN at % 4 = 0 THEN 'commit' ELSE 'pilot' END, 1, 8, 0, rate, rate * (1 - rate), 1600,
        CASE WHEN at % 4 = 0 THEN 'committed' WHEN rate = 1 THEN 'evicted' WHEN rate > 0.75 THEN 'skipped'
            WHEN rate < 0.125 THEN 'deferred' ELSE 'ready' END
    FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS s,
        generate_series(0, CAST(:visits AS int) - 1) AS at,
        LATERAL (SELECT floor(random() * 9 + at * 0 + s * 0) / 8 AS rate) AS sampled
    """,
    """
    INSERT INTO prompt_states AS known (run_id, prompt_id, bucket, step, success_rate, visits, rollouts, tokens)
    SELECT run_id, prompt_id, (array_agg(bucket ORDER BY step DESC, position DESC))[1], max(step),
        (array_agg(success_rate ORDER BY step DESC, position DESC))[1], count(*), sum(n), sum(tokens)
    FROM prompt_visits WHERE run_id = :run AND step BETWEEN :first AND :last GROUP BY run_id, prompt_id
    ON CONFLICT (run_id, prompt_id) DO UPDATE SET bucket = excluded.bucket, step = excluded.step,
        success_rate = excluded.success_rate, visits = known.visits + excluded.visits,
        rollouts = known.rollouts + excluded.rollouts, tokens = known.tokens + excluded.tokens
    """,
    """
    UPDATE runs SET step = :last, rollouts = m.rollouts, tokens = m.tokens, buckets = m.buckets,
        fates = jsonb_build_object('trained', jsonb_build_array(m.rollouts, m.tokens))
    FROM step_metrics AS m WHERE runs.id = :run AND m.run_id = :run AND m.step = :last
    """,
)  # fmt: skip


class Answer(NamedTuple):
    """ms: until its last message. cpu_ms: of all the servers' processes until then, to some 10 ms. kb: of all messages,
    before compression. wire_kb: what travelled.
    """

    ms: float
    cpu_ms: float
    kb: float
    wire_kb: float


@dataclass
class CountingSocket:
    """Counts what a socket receives; everything else is the socket's own."""

    inner: socket.socket
    received: int = 0

    def recv(self, size: int) -> bytes:
        data = self.inner.recv(size)
        self.received += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Visitor:
    """One browser session. It answers as Streamlit's own client does, and keeps what that one keeps."""

    def __init__(self, connection: ClientConnection, wire: CountingSocket) -> None:
        self.connection, self.wire = connection, wire
        self.cached: set[str] = set()
        self.fragments: dict[str, float] = {}  # id -> seconds between its refreshes
        self.problems: list[str] = []
        self.drawn: list[Element] = []  # by the last answer, in order
        self.query = self.page = self.page_hash = ""

    def open(self, page: str, query: Mapping[str, str | list[str]]) -> Answer:
        self.page, self.query = page, urlencode(query, doseq=True)
        return self._ask()

    def refresh(self, fragment: str) -> Answer:
        return self._ask(fragment)

    def _ask(self, fragment: str = "") -> Answer:
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_name = self.query, self.page
        state.cached_message_hashes.extend(self.cached)
        if fragment:
            state.fragment_id, state.is_auto_rerun, state.page_script_hash = fragment, True, self.page_hash
        self.drawn = []
        n_bytes, before, spent, start = 0, self.wire.received, cpu_seconds(), time.perf_counter()
        self.connection.send(message.SerializeToString())
        while True:
            data = self.connection.recv(timeout=60)
            assert isinstance(data, bytes)
            n_bytes += len(data)
            got = ForwardMsg()
            got.ParseFromString(data)
            kind = got.WhichOneof("type")
            if got.metadata.cacheable:
                self.cached.add(got.hash)
            if kind == "navigation":
                self.page_hash = got.navigation.page_script_hash
            if kind == "auto_rerun":
                self.fragments[got.auto_rerun.fragment_id] = got.auto_rerun.interval
            if kind == "delta":
                element = got.delta.new_element
                self.drawn.append(element)
                if element.HasField("exception"):
                    self.problems.append(element.exception.message)
                if element.HasField("html") and 'role="alert"' in element.html.body:
                    self.problems.append(re.sub("<[^>]*>", " ", element.html.body))
            if kind == "script_finished" and got.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                break
        ms = 1000 * (time.perf_counter() - start)
        return Answer(ms, 1000 * (cpu_seconds() - spent), n_bytes / 1000, (self.wire.received - before) / 1000)


@contextmanager
def visiting(port: int) -> Iterator[Visitor]:
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = CountingSocket(raw)
    address = f"ws://127.0.0.1:{port}/_stcore/stream"
    with connect(address, sock=wire, subprotocols=["streamlit"], max_size=None) as connection:  # type: ignore[arg-type, list-item]
        yield Visitor(connection, wire)


def cpu_seconds() -> float:
    """Of the dashboard, the API and Postgres so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def fill(engine: sa.Engine, config: Mapping[str, Any], n_runs: int, n_steps: int, n_prompts: int) -> uuid.UUID:
    """The rows of a platform that has been used for long. Returns the id of the long run."""
    run = uuid.uuid4()
    given = {
        "run": run, "runs": n_runs, "steps": n_steps, "prompts": n_prompts,
        "config": json.dumps(config), "buckets": json.dumps({"unseen": 5000, "committed": 3000, "evicted": 2000}),
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(
            sa.text("SET LOCAL statement_timeout = 0")
        )  # 100,000 prompts at once, each with its search index
        for statement in _FILL:
            connection.execute(sa.text(statement), given)
    for first in range(1, n_steps + 1, 1000):
        add_steps(engine, run, first, min(n_steps, first + 999), n_prompts)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))
    return run


def add_steps(engine: sa.Engine, run: uuid.UUID, first: int, last: int, n_prompts: int) -> None:
    given = {"run": run, "first": first, "last": last, "prompts": n_prompts, "visits": VISITS_PER_STEP}
    with engine.begin() as connection:
        for statement in _STEPS:
            connection.execute(sa.text(statement), given)


@contextmanager
def served(home: Path, running: services.Services, token: str) -> Iterator[int]:
    """The API and the dashboard in processes of their own. Gives the dashboard's port."""
    api_port, ui_port = free_port(), free_port()
    environment = {
        "DATABASE_URL": running.database_url, "REDIS_URL": running.broker_url, "PILOT_HOME": str(home),
        "PILOT_API_URL": f"http://127.0.0.1:{api_port}", "PILOT_TOKEN": token,
    }  # fmt: skip
    api = [sys.executable, "-m", "api", "--port", str(api_port)]
    ui = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(ui_port)]
    with (
        serving(api, environment, f"http://127.0.0.1:{api_port}/healthz", home / "api.log"),
        serving(ui, environment, f"http://127.0.0.1:{ui_port}/_stcore/health", home / "ui.log"),
    ):
        yield ui_port


def typical(answers: list[Answer]) -> Answer:
    """Medians, and of the CPU time, which the kernel tells in steps, the mean."""
    medians = Answer(*(statistics.median(values) for values in zip(*answers, strict=True)))
    return medians._replace(cpu_ms=statistics.mean(answer.cpu_ms for answer in answers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, fewer repetitions")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object, last")
    parser.add_argument("--only", nargs="+", metavar="PAGE", help="these pages, such as runs and compare")
    arguments = parser.parse_args()
    part, repeats = (10, 3) if arguments.quick else (1, 7)
    n_runs, n_steps, n_prompts = RUNS // part, STEPS // part, PROMPTS // part
    config = parse_config(
        {
            "name": "long", "model": {"path": "pipeline/bundled/policy"},
            "data": {"train": "pipeline/bundled/prompts.train.jsonl", "eval": "pipeline/bundled/prompts.eval.jsonl"},
            "method": {"name": "pilot_commit", "n_pilot": 8, "n_commit": 8}, "budget": {"steps": 20_000},
        }
    ).model_dump(mode="json")  # fmt: skip
    figures: dict[str, Any] = {"runs": n_runs, "steps": n_steps, "prompts": n_prompts}
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pilot-bench-") as folder:
        home = Path(folder)
        home.chmod(0o711)  # as root the server runs under a uid of its own
        with services.start(home / "services", {}) as running:
            db.upgrade(running.database_url)
            engine = db.create_engine(running.database_url)
            run = fill(engine, config, n_runs, n_steps, n_prompts)
            with Session(engine) as session, session.begin():
                _, token = tokens.create(session, "bench", "admin")
                prompt = session.scalar(sa.text("SELECT prompt_id FROM prompt_states ORDER BY visits DESC LIMIT 1"))
                others = session.scalars(sa.text("SELECT id::text FROM runs ORDER BY created_at DESC LIMIT 20")).all()
            last = n_steps
            pages: dict[str, dict[str, str | list[str]]] = {
                "runs": {}, "new": {}, "run": {"run": str(run)}, "prompts": {"run": str(run)},
                "prompt": {"run": str(run), "prompt": str(prompt)}, "compare": {"run": list(others)},
            }  # fmt: skip
            if unknown := set(arguments.only or ()) - pages.keys():
                parser.error(f"--only: there is no page {unknown.pop()!r}; there are {', '.join(pages)}")
            pages = {page: query for page, query in pages.items() if not arguments.only or page in arguments.only}
            with served(home, running, token) as port:
                for page, query in pages.items():
                    opened: list[Answer] = []
                    refreshed: dict[int, list[Answer]] = {}
                    for attempt in range(repeats + 1):  # the first one also loads the page's code
                        with visiting(port) as visitor:
                            first = visitor.open("" if page == "runs" else page, query)
                            if attempt:
                                opened.append(first)
                            fragments = list(visitor.fragments)
                            for _ in range(2 if attempt else 0):
                                last += 1
                                add_steps(engine, run, last, last, n_prompts)
                                for at, fragment in enumerate(fragments):
                                    refreshed.setdefault(at, []).append(visitor.refresh(fragment))
                        if visitor.problems:
                            raise SystemExit(f"the page {page!r} failed: {visitor.problems[0]}")
                    _judge(figures, missed, f"{page} opened", typical(opened), OPEN_MS, OPEN_KB)
                    for at, answers in refreshed.items():
                        _judge(
                            figures, missed, f"{page} refreshed ({at + 1})", typical(answers), REFRESH_MS, REFRESH_KB
                        )
            engine.dispose()
    return finish(figures, missed, arguments.json)


def _judge(figures: dict[str, Any], missed: list[str], name: str, seen: Answer, most_ms: float, most_kb: float) -> None:
    figures[name] = {key: round(value, 1) for key, value in seen._asdict().items()}
    print(
        f"{name:20} {seen.ms:6.0f} ms (bound {most_ms:.0f}), {seen.cpu_ms:4.0f} ms of CPU; "
        f"{seen.kb:6.1f} KB (bound {most_kb:.0f}), {seen.wire_kb:.1f} KB compressed", flush=True,
    )  # fmt: skip
    if seen.ms > most_ms:
        missed.append(f"{name} takes {seen.ms:.0f} ms, the bound is {most_ms:.0f}")
    if seen.kb > most_kb:
        missed.append(f"{name} sends {seen.kb:.1f} KB, the bound is {most_kb:.0f}")


if __name__ == "__main__":
    sys.exit(main())
