"""The one typed HTTP client of API v1, for the dashboard and the command line.

It imports neither the server nor the database, so that whoever uses it stays small. Every method raises
`ApiError` when the API answers with a problem, and `ApiUnreachable` when no answer of the API comes back.
"""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from api.schemas import (
    Alert,
    Alerts,
    Audit,
    AuditPage,
    Buckets,
    CheckpointEvaluation,
    CheckpointEvaluations,
    Checkpoints,
    Comparison,
    ConfigCheck,
    DeliveryOut,
    DeliveryPage,
    Difficulty,
    EvaluationFiles,
    Flows,
    Forecast,
    Health,
    Ledger,
    LogPart,
    Metrics,
    Preset,
    Problem,
    PromptCheck,
    PromptHistory,
    PromptPage,
    PromptRollouts,
    PromptSetDetail,
    PromptSetOut,
    PromptSetPage,
    PromptSetRows,
    PromptsMarked,
    PromptTags,
    RewardOut,
    RewardResult,
    Rewards,
    RewardTested,
    RolloutPage,
    RunDetail,
    RunFacets,
    RunPage,
    SettingsOut,
    TokenMade,
    TokenOut,
    TokenPage,
    WebhookMade,
    WebhookOut,
    Webhooks,
    Workers,
)

_AUDIT_S = 330.0  # longer than the API gives an audit
_READ_S = 320.0  # longer than the API reads a file of prompts
_FETCH_S = 320.0  # longer than it fetches a data set of the hub
_SETS = "/api/v1/prompt-sets"
_Body = TypeVar("_Body", bound=BaseModel)
_T = TypeVar("_T")
_presets: TypeAdapter[list[Preset]] = TypeAdapter(list[Preset])
_schema: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class ApiError(Exception):
    """The API refused the request; `problem` is its answer. The message is ready to be shown to a person."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        lines = [f"{problem.title}: {problem.detail}"]
        lines += [f"  {e.field}: {e.message} (given {e.value!r})" for e in problem.errors]
        super().__init__("\n".join(lines))


class ApiUnreachable(Exception):
    """No answer of the API came back from `url`; `why` tells a person what happened."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        self.why = why
        super().__init__(
            f"The API at {url} cannot be reached: {why}. Start the platform with `./pilot up`, or check the address."
        )


class Client:
    """One API, by its base URL (e.g. http://127.0.0.1:8000), and the token to use it with. Safe to use from several
    threads.

    timeout: seconds to wait for each answer. transport: replaces the network, for tests.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        timeout: float = 10,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as error:
            raise ApiUnreachable(base_url, f"this is not a URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ApiUnreachable(base_url, "this is not an http:// or https:// URL")
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ApiUnreachable(base_url, "the token is not one: it has characters that no token has")
        self._timeout = timeout
        # A proxy from the environment cannot reach this machine's loopback address.
        self._http = httpx.Client(
            base_url=url,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=timeout,
            transport=transport,
            trust_env=not _is_loopback(url.host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def create_run(self, config: dict[str, Any], key: str | None = None) -> RunDetail:
        """Starts a run. ApiError 422 names every faulty field of the config.

        key: the same call with the same key starts no second run.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._call(RunDetail, "POST", "/api/v1/runs", json={"config": config}, headers=headers)

    def list_runs(
        self,
        state: str | Sequence[str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        *,
        method: str | None = None,
        tag: str | None = None,
        owner: str | None = None,
        search: str | None = None,
        archived: str = "no",
        sort: str = "-created",
    ) -> RunPage:
        """A page of runs; `cursor` is the `next_cursor` of the page before.

        state: one or several. search: part of a name or of a model's path, a tag, or the beginning of an id.
        archived: no, only or any. sort: created, name, accuracy or rollouts; a leading '-' means largest first.
        """
        params = {
            "state": state, "method": method, "tag": tag, "owner": owner, "search": search, "archived": archived,
            "sort": sort, "limit": limit, "cursor": cursor,
        }  # fmt: skip
        return self._call(RunPage, "GET", "/api/v1/runs", params=params)

    def run_facets(self) -> RunFacets:
        """The methods, tags and owners that runs have."""
        return self._call(RunFacets, "GET", "/api/v1/runs/facets")

    def get_run(self, run_id: uuid.UUID | str) -> RunDetail:
        return self._call(RunDetail, "GET", _run(run_id))

    def wait_for_run(self, run_id: uuid.UUID | str, until: str = "finished", timeout: float = 30) -> RunDetail:
        """The run as soon as it has `finished` or `started`, or as it is after `timeout` seconds (at most 300)."""
        params = {"until": until, "timeout": timeout}
        return self._call(RunDetail, "GET", _run(run_id, "wait"), params=params, wait=timeout)

    def clone_run(
        self, run_id: uuid.UUID | str, config: dict[str, Any], priority: int = 0, key: str | None = None
    ) -> RunDetail:
        """Starts a run with the config of this one and some changes. ApiError 422 names every faulty field."""
        headers = {} if key is None else {"Idempotency-Key": key}
        body = {"config": config, "priority": priority}
        return self._call(RunDetail, "POST", _run(run_id, "clone"), json=body, headers=headers)

    def change_run(
        self,
        run_id: uuid.UUID | str,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        archived: bool | None = None,
        priority: int | None = None,
    ) -> RunDetail:
        """Changes what is given. tags: all of them. ApiError 409 when a run that has not ended is to be archived."""
        given = {"name": name, "tags": tags, "archived": archived, "priority": priority}
        return self._call(RunDetail, "PATCH", _run(run_id), json={k: v for k, v in given.items() if v is not None})

    def delete_run(self, run_id: uuid.UUID | str) -> RunDetail:
        """Deletes a run that has ended, with everything that it left. ApiError 409 otherwise."""
        return self._call(RunDetail, "DELETE", _run(run_id))

    def stop_run(self, run_id: uuid.UUID | str) -> RunDetail:
        """Asks the run to stop after its step. ApiError 409 when it has finished."""
        return self._call(RunDetail, "POST", _run(run_id, "stop"))

    def resume_run(self, run_id: uuid.UUID | str) -> RunDetail:
        """Queues a stopped or failed run again. ApiError 409 in every other state."""
        return self._call(RunDetail, "POST", _run(run_id, "resume"))

    def metrics(
        self,
        run_id: uuid.UUID | str,
        from_step: int = 0,
        to_step: int | None = None,
        points: int | None = None,
        metric: Sequence[str] = (),
        extremes: Sequence[str] = (),
    ) -> Metrics:
        """metric: only these; none: all. points: only about so many steps, those with the extremes of each metric in
        `extremes` (none: of `metric`), for a chart.
        """
        params = {
            "from_step": from_step, "to_step": to_step, "points": points, "metric": metric, "extremes": extremes,
        }  # fmt: skip
        return self._call(Metrics, "GET", _run(run_id, "metrics"), params=params)

    def buckets(self, run_id: uuid.UUID | str, from_step: int = 0, points: int | None = None) -> Buckets:
        """points: only of so many steps, evenly spread."""
        return self._call(Buckets, "GET", _run(run_id, "buckets"), params={"from_step": from_step, "points": points})

    def flows(self, run_id: uuid.UUID | str, from_step: int = 0, to_step: int | None = None) -> Flows:
        """How many prompts went from which bucket into which between two steps; to_step None: until now."""
        return self._call(Flows, "GET", _run(run_id, "flows"), params={"from_step": from_step, "to_step": to_step})

    def difficulty(self, run_id: uuid.UUID | str, parts: int = 40, bins: int = 10) -> Difficulty:
        """Success rates over the steps, and over prompts by what was spent on them."""
        return self._call(Difficulty, "GET", _run(run_id, "difficulty"), params={"parts": parts, "bins": bins})

    def ledger(self, run_id: uuid.UUID | str) -> Ledger:
        return self._call(Ledger, "GET", _run(run_id, "ledger"))

    def compare(
        self,
        run_ids: Sequence[uuid.UUID | str],
        points: int = 200,
        metrics: Sequence[str] = ("reward_variance",),
        *,
        target: float | None = None,
        by: str = "rollouts",
        baseline: uuid.UUID | str | None = None,
    ) -> Comparison:
        """Up to 20 runs in this order, each with all its evaluations and about `points` steps. ApiError 404 names a run
        that is unknown.

        target: the accuracy to reach; None: the highest that all groups reach. by: rollouts, tokens, steps or hours.
        baseline: the run whose group the others are compared with; None: the first.
        """
        params = {
            "run": [str(run_id) for run_id in run_ids], "points": points, "metric": list(metrics), "target": target,
            "by": by, "baseline": None if baseline is None else str(baseline),
        }  # fmt: skip
        return self._call(Comparison, "GET", "/api/v1/compare", params=params)

    def prompts(
        self,
        run_id: uuid.UUID | str,
        bucket: str | None = None,
        search: str | None = None,
        sort: str = "-visits",
        limit: int = 50,
        cursor: str | None = None,
        tag: str | None = None,
        min_rate: float | None = None,
        max_rate: float | None = None,
        marked: str | None = None,
    ) -> PromptPage:
        """sort: visits, rollouts, tokens, success_rate or step; a leading '-' means largest first. marked: with this
        mark, or `any`.
        """
        params: dict[str, Any] = {"bucket": bucket, "search": search, "sort": sort, "limit": limit, "cursor": cursor}
        params |= {"tag": tag, "min_rate": min_rate, "max_rate": max_rate, "marked": marked}
        return self._call(PromptPage, "GET", _run(run_id, "prompts"), params=params)

    def export_prompts(self, run_id: uuid.UUID | str, format: str = "jsonl", **which: str | float | None) -> bytes:
        """All prompts of a selection (bucket, search, tag, min_rate, max_rate, marked) as a file.

        format: jsonl or parquet.
        """
        params = which | {"format": format}
        return self._send("GET", _run(run_id, "prompts", "export"), params=params, wait=120).content

    def prompt_tags(self, run_id: uuid.UUID | str, limit: int = 50) -> PromptTags:
        """The most frequent tags of the run's prompts."""
        return self._call(PromptTags, "GET", _run(run_id, "prompts", "tags"), params={"limit": limit})

    def prompt_rollouts(
        self, run_id: uuid.UUID | str, prompt_id: str, before: int | None = None, steps: int = 4
    ) -> PromptRollouts:
        """A prompt's rollouts of the newest steps that visited it; before: only of earlier steps."""
        params = {"before": before, "steps": steps}
        return self._call(PromptRollouts, "GET", _run(run_id, "prompts", prompt_id, "rollouts"), params=params)

    def mark_prompts(
        self, run_id: uuid.UUID | str, mark: str, prompts: Sequence[str] | None = None, **which: str | float | None
    ) -> PromptsMarked:
        """Wishes a mark (pin, exclude, clear or retest) for prompts by their ids, or for all of a selection, as of
        `export_prompts`. ApiError 422 when one of them cannot have it: then none gets it; 409 when no step will come.
        """
        body: dict[str, Any] = {"mark": mark}
        body |= {"selection": which} if prompts is None else {"prompts": list(prompts)}
        return self._call(PromptsMarked, "POST", _run(run_id, "prompts", "marks"), json=body)

    def prompt(self, run_id: uuid.UUID | str, prompt_id: str) -> PromptHistory:
        return self._call(PromptHistory, "GET", _run(run_id, "prompts", prompt_id))

    def alerts(self, run_id: uuid.UUID | str) -> list[Alert]:
        """What goes wrong in the run now, worst first."""
        return self._call(Alerts, "GET", _run(run_id, "alerts")).alerts

    def log(
        self, run_id: uuid.UUID | str, attempt: int | None = None, offset: int | None = None, limit: int = 65_536
    ) -> LogPart:
        """A part of an attempt's log (default: of the newest one) from byte `offset` on; None: its end."""
        params = {"attempt": attempt, "offset": offset, "limit": limit}
        return self._call(LogPart, "GET", _run(run_id, "log"), params=params)

    def checkpoints(self, run_id: uuid.UUID | str) -> Checkpoints:
        return self._call(Checkpoints, "GET", _run(run_id, "checkpoints"))

    def download_checkpoint_file(self, run_id: uuid.UUID | str, step: int, path: str) -> bytes:
        """One file of a checkpoint, whole in memory."""
        return self._send("GET", _run(run_id, "checkpoints", str(step), *path.split("/")), wait=120).content

    def rollouts(self, run_id: uuid.UUID | str, from_step: int = 0, limit: int = 500) -> RolloutPage:
        """The files of rollouts, one a step, from a step on."""
        return self._call(RolloutPage, "GET", _run(run_id, "rollouts"), params={"from_step": from_step, "limit": limit})

    def download_rollouts(self, run_id: uuid.UUID | str, step: int) -> bytes:
        """A step's rollouts as a Parquet file."""
        return self._send("GET", _run(run_id, "rollouts", str(step))).content

    def audit_run(self, run_id: uuid.UUID | str, settings: dict[str, Any] | None = None) -> Audit:
        """Audits a run's rollouts; may take minutes. settings: those of AuditSettings. ApiError 422: it cannot."""
        return self._call(Audit, "POST", _run(run_id, "audit"), json=settings or {}, wait=_AUDIT_S)

    def audit_files(self, files: Sequence[tuple[str, bytes]], settings: dict[str, Any] | None = None) -> Audit:
        """The same for a log that is sent: names and contents. ApiError 413: too large."""
        sent = [("files", (name, content, "application/octet-stream")) for name, content in files]
        fields = {"settings": json.dumps(settings or {})}
        response = self._send("POST", "/api/v1/audits", files=sent, data=fields, wait=_AUDIT_S)
        return self._read(TypeAdapter(Audit), response)

    def evaluation_files(self, run_id: uuid.UUID | str, from_step: int = 0, limit: int = 500) -> EvaluationFiles:
        """The files of responses that evaluations gave, one a benchmark and step, from a step on."""
        params = {"from_step": from_step, "limit": limit}
        return self._call(EvaluationFiles, "GET", _run(run_id, "evaluations"), params=params)

    def download_evaluation(self, run_id: uuid.UUID | str, step: int, benchmark: str) -> bytes:
        """A benchmark's responses after a step as a Parquet file."""
        return self._send("GET", _run(run_id, "evaluations", str(step), benchmark)).content

    def evaluate(
        self, run_id: uuid.UUID | str, ask: dict[str, Any] | None = None, key: str | None = None
    ) -> CheckpointEvaluation:
        """Has a checkpoint of the run measured. ask: the fields of EvaluationAsk; none: the newest, as the run does.

        key: the same call with the same key asks for nothing more. ApiError 422 names what is not accepted.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._call(
            CheckpointEvaluation, "POST", _run(run_id, "evaluations"), json=ask or {}, headers=headers, wait=50
        )

    def evaluations(
        self,
        run_id: uuid.UUID | str | None = None,
        state: Sequence[str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> CheckpointEvaluations:
        """What was asked for, newest first; only of this run, and only in these states."""
        params = {"run": None if run_id is None else str(run_id), "state": state, "limit": limit, "cursor": cursor}
        return self._call(CheckpointEvaluations, "GET", "/api/v1/evaluations", params=params)

    def get_evaluation(self, evaluation_id: uuid.UUID | str) -> CheckpointEvaluation:
        return self._call(CheckpointEvaluation, "GET", _evaluation(evaluation_id))

    def stop_evaluation(self, evaluation_id: uuid.UUID | str) -> CheckpointEvaluation:
        """ApiError 409 when it has ended."""
        return self._call(CheckpointEvaluation, "POST", _evaluation(evaluation_id, "stop"))

    def evaluation_log(
        self, evaluation_id: uuid.UUID | str, attempt: int | None = None, offset: int | None = None, limit: int = 65_536
    ) -> LogPart:
        """As `log`, of what evaluates."""
        params = {"attempt": attempt, "offset": offset, "limit": limit}
        return self._call(LogPart, "GET", _evaluation(evaluation_id, "log"), params=params)

    def config_schema(self) -> dict[str, Any]:
        """The JSON schema of RunConfig."""
        return self._read(_schema, self._send("GET", "/api/v1/config/schema"))

    def validate_config(self, config: dict[str, Any]) -> ConfigCheck:
        """Checks a config as create_run would, and starts nothing."""
        return self._call(ConfigCheck, "POST", "/api/v1/config/validate", json={"config": config})

    def rewards(self) -> list[RewardOut]:
        """The rewards that a config can name."""
        return self._call(Rewards, "GET", "/api/v1/rewards").rewards

    def test_reward(
        self,
        reward: dict[str, Any],
        responses: Sequence[str],
        answer: str = "",
        prompt: str = "",
        n_tokens: int | None = None,
    ) -> list[RewardResult]:
        """What a reward says of each response, and why. ApiError 422 for one that the API does not run."""
        body = {
            "reward": reward, "responses": list(responses), "answer": answer, "prompt": prompt, "n_tokens": n_tokens,
        }  # fmt: skip
        return self._call(RewardTested, "POST", "/api/v1/rewards/test", json=body, wait=60).results

    def forecast_config(self, config: dict[str, Any]) -> Forecast:
        """What a run with it would sample and take. ApiError 422 names every faulty field."""
        return self._call(Forecast, "POST", "/api/v1/config/forecast", json={"config": config})

    def presets(self) -> list[Preset]:
        return self._read(_presets, self._send("GET", "/api/v1/presets"))

    def upload_prompts(
        self, name: str, file: str, content: bytes | BinaryIO, **query: str | list[str] | None
    ) -> PromptSetDetail:
        """Adds a file of prompts as a version of the set `name`. query: mapping, prompt_key and so on, reward, rewards,
        against, model. ApiError 422 counts every fault and names the first rows of each kind."""
        params = {"name": name, "file": file, **query}
        return self._call(PromptSetDetail, "POST", _SETS, params=params, content=content, wait=_READ_S)

    def check_prompts(self, file: str, content: bytes, **query: str | list[str] | None) -> PromptCheck:
        """What upload_prompts would find. Nothing is kept."""
        params = {"file": file, **query}
        return self._call(PromptCheck, "POST", f"{_SETS}/check", params=params, content=content, wait=_READ_S)

    def add_from_hub(self, name: str, hub: str, **query: str | list[str] | None) -> PromptSetDetail:
        """As upload_prompts, of `hub:OWNER/NAME[@REVISION][:SPLIT]`, which the API fetches: it may take minutes.
        ApiError 502: the hub does not answer; 422: it has no such data set or split, or one that is too large."""
        params = {"name": name, "hub": hub, **query}
        return self._call(PromptSetDetail, "POST", _SETS, params=params, wait=_FETCH_S + _READ_S)

    def check_hub(self, hub: str, **query: str | list[str] | None) -> PromptCheck:
        """What add_from_hub would find. Its `hub` names the commit: adding that adds what was looked at."""
        params = {"hub": hub, **query}
        return self._call(PromptCheck, "POST", f"{_SETS}/check", params=params, wait=_FETCH_S + _READ_S)

    def list_prompt_sets(self, name: str | None = None, limit: int = 50, cursor: str | None = None) -> PromptSetPage:
        """Versions of uploaded prompt sets, newest first; name: only of this set."""
        params = {"name": name, "limit": limit, "cursor": cursor}
        return self._call(PromptSetPage, "GET", _SETS, params=params)

    def get_prompt_set(self, name: str, version: str) -> PromptSetDetail:
        return self._call(PromptSetDetail, "GET", _prompt_set(name, version))

    def prompt_set_rows(self, name: str, version: str, offset: int = 0, limit: int = 20) -> PromptSetRows:
        params = {"offset": offset, "limit": limit}
        return self._call(PromptSetRows, "GET", _prompt_set(name, version, "rows"), params=params)

    def download_prompt_set(self, name: str, version: str) -> bytes:
        """JSONL, a prompt a line."""
        return self._send("GET", _prompt_set(name, version, "file")).content

    def delete_prompt_set(self, name: str, version: str) -> PromptSetOut:
        """ApiError 409 while a run uses it."""
        return self._call(PromptSetOut, "DELETE", _prompt_set(name, version))

    def me(self) -> TokenOut:
        """The token that this client uses. ApiError 401 when it opens nothing."""
        return self._call(TokenOut, "GET", "/api/v1/me")

    def create_token(self, name: str, scope: str = "read", days: int | None = 90) -> TokenMade:
        """A new token with its secret, which is never to be had again. days: until it expires; None: never."""
        return self._call(TokenMade, "POST", "/api/v1/tokens", json={"name": name, "scope": scope, "days": days})

    def list_tokens(self, everything: bool = False, limit: int = 50, cursor: str | None = None) -> TokenPage:
        """Newest first. everything: revoked and expired ones, too."""
        params = {"all": str(everything).lower(), "limit": limit, "cursor": cursor}
        return self._call(TokenPage, "GET", "/api/v1/tokens", params=params)

    def revoke_token(self, token_id: uuid.UUID | str) -> TokenOut:
        return self._call(TokenOut, "DELETE", f"/api/v1/tokens/{quote(str(token_id), safe='')}")

    def audit(self, target: str | None = None, limit: int = 50, cursor: str | None = None) -> AuditPage:
        """Every change, newest first; target: only of this id."""
        return self._call(
            AuditPage, "GET", "/api/v1/audit", params={"target": target, "limit": limit, "cursor": cursor}
        )

    def workers(self) -> Workers:
        """Hosts, what they offer, and which run holds what."""
        return self._call(Workers, "GET", "/api/v1/workers")

    def settings(self) -> SettingsOut:
        """What an administrator has set for everybody."""
        return self._call(SettingsOut, "GET", "/api/v1/settings")

    def change_settings(self, price_per_gpu_hour: float | None, currency: str) -> SettingsOut:
        body = {"price_per_gpu_hour": price_per_gpu_hour, "currency": currency}
        return self._call(SettingsOut, "PUT", "/api/v1/settings", json=body)

    def create_webhook(self, url: str, events: Sequence[str]) -> WebhookMade:
        """An address that is told of events, with the secret that signs them, which is never to be had again."""
        return self._call(WebhookMade, "POST", "/api/v1/webhooks", json={"url": url, "events": list(events)})

    def list_webhooks(self) -> list[WebhookOut]:
        """Oldest first."""
        return self._call(Webhooks, "GET", "/api/v1/webhooks").webhooks

    def delete_webhook(self, webhook_id: uuid.UUID | str) -> WebhookOut:
        return self._call(WebhookOut, "DELETE", _webhook(webhook_id))

    def test_webhook(self, webhook_id: uuid.UUID | str) -> DeliveryOut:
        """Delivers an event of the type `test`; `deliveries` tells what came of it."""
        return self._call(DeliveryOut, "POST", _webhook(webhook_id, "test"))

    def deliveries(self, webhook_id: uuid.UUID | str, limit: int = 50, cursor: str | None = None) -> DeliveryPage:
        """Newest first."""
        params = {"limit": limit, "cursor": cursor}
        return self._call(DeliveryPage, "GET", _webhook(webhook_id, "deliveries"), params=params)

    def healthz(self) -> Health:
        """Whether the API process answers."""
        return self._call(Health, "GET", "/healthz")

    def readyz(self) -> Health:
        """Whether everything the API needs is there. Also returned, not raised, when something is down."""
        try:
            return self._call(Health, "GET", "/readyz")
        except ApiError as error:
            if error.problem.checks is None:
                raise
            return Health(status="unavailable", checks=error.problem.checks)

    def _call(
        self,
        body: type[_Body],
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        json: Any = None,
        content: bytes | BinaryIO | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0,
    ) -> _Body:
        response = self._send(method, path, params=params, json=json, content=content, headers=headers, wait=wait)
        return self._read(TypeAdapter(body), response)

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        json: Any = None,
        data: dict[str, str] | None = None,
        files: Any = None,
        content: bytes | BinaryIO | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0,
    ) -> httpx.Response:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            timeout = self._timeout + wait
            response = self._http.request(
                method,
                path,
                params=given,
                json=json,
                content=content,
                data=data,
                files=files,
                headers=headers,
                timeout=timeout,
            )
        except httpx.TimeoutException:
            raise ApiUnreachable(self.base_url, "it did not answer in time") from None
        except httpx.ConnectError as error:
            raise ApiUnreachable(self.base_url, f"nothing accepts connections there ({error})") from None
        except httpx.HTTPError as error:
            raise ApiUnreachable(self.base_url, f"the connection failed ({error})") from None
        if response.is_success:
            return response
        raise ApiError(_problem(response))

    def _read(self, adapter: TypeAdapter[_T], response: httpx.Response) -> _T:
        try:
            return adapter.validate_json(response.content)
        except ValidationError:
            raise ApiUnreachable(
                self.base_url, f"the answer to {response.request.url.path} is not one of this API"
            ) from None


def proposed_name(source: str) -> str:
    """Of a set that is made of this file, or of this data set of the hub: the latter's NAME and SPLIT."""
    if source.startswith("hub:"):
        repo, _, split = source.removeprefix("hub:").partition(":")
        name = f"{repo.partition('@')[0].rpartition('/')[2]}-{split or 'train'}"
    else:
        name = PurePath(source).name.rpartition(".")[0]
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "prompts"


def _run(run_id: uuid.UUID | str, *rest: str) -> str:
    return "/".join(["/api/v1/runs", *(quote(str(part), safe="") for part in (run_id, *rest))])


def _evaluation(evaluation_id: uuid.UUID | str, *rest: str) -> str:
    return "/".join(["/api/v1/evaluations", quote(str(evaluation_id), safe=""), *rest])


def _webhook(webhook_id: uuid.UUID | str, *rest: str) -> str:
    return "/".join(["/api/v1/webhooks", quote(str(webhook_id), safe=""), *rest])


def _prompt_set(name: str, version: str, *rest: str) -> str:
    return "/".join([_SETS, *(quote(part, safe="") for part in (name, version, *rest))])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _problem(response: httpx.Response) -> Problem:
    """The problem in the answer, or one that tells of an answer that something in front of the API gave."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return Problem(
            title=f"HTTP {response.status_code} {response.reason_phrase}".strip(),
            status=response.status_code,
            detail=f"{response.request.url} answered {response.status_code} without saying why; "
            "something other than the API may be listening there.",
        )
