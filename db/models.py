"""The tables. Every query on them lives in this package; nobody else writes SQL.

Who owns what: the API inserts runs, asks for stops and wishes for marks, and it alone knows tokens, the audit log,
idempotency keys and webhooks; a worker announces its host's slots and claims leases with them; the supervisor that
holds a run's lease writes attempts and everything ingested from events (datasets, prompts, step metrics, visits, moves,
prompt states, ledger, evaluations, when marks were applied). All times are the database's clock, in UTC, except the
times of steps and evaluations, which are the trainer's.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

RUN_STATES = ("queued", "starting", "running", "stopping", "stopped", "succeeded", "failed")
FINISHED_STATES = ("stopped", "succeeded", "failed")
BUCKETS = ("unseen", "evicted", "skipped", "deferred", "ready", "committed")
SCOPES = ("read", "run", "admin")  # each may do what those before it may
FATES = (
    "buffered", "trained", "pilot_skipped", "pilot_deferred", "pilot_evicted",
    "downsampled", "stale", "discarded", "failed", "lost",
)  # fmt: skip
DEVICES = ("cpu", "cuda")
MARKS = ("pin", "exclude", "clear", "retest")


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    allowed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=f"{column}_known")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        dt.datetime: DateTime(timezone=True),
        str: Text(),
        float: Double(),
        dict[str, Any]: JSONB(),
        list[dict[str, Any]]: JSONB(),
        list[str]: ARRAY(Text()),
    }


class Run(Base):
    """One run. The counters (step, rollouts, tokens, accuracies) are what has been ingested so far.

    device, n_devices: what it needs, one CPU slot or so many GPUs of one host. priority: higher ones start first.
    deleted_at: nobody sees it any more; a worker removes its files and rows. archived_at: lists leave it out, unless
    they are asked for it. evaluates: it is no training run but an evaluation of that run's checkpoint (db.evaluations).
    """

    __tablename__ = "runs"
    __table_args__ = (
        _one_of("state", RUN_STATES),
        _one_of("device", DEVICES),
        CheckConstraint("n_devices >= 1", name="n_devices_positive"),
        Index(None, "created_at", "id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str]
    config: Mapped[dict[str, Any]]
    config_digest: Mapped[str]
    method: Mapped[str]
    model: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="queued")
    reason: Mapped[str | None]  # why it is in this state, in words for a person
    priority: Mapped[int] = mapped_column(server_default="0")
    device: Mapped[str] = mapped_column(server_default="cpu")
    n_devices: Mapped[int] = mapped_column(server_default="1")
    cloned_from: Mapped[uuid.UUID | None]  # the run whose config it began with; that one may be gone
    created_by: Mapped[str | None]  # name of the token that created it
    evaluates: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id"), index=True)
    tags: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    archived_at: Mapped[dt.datetime | None]
    stop_requested_at: Mapped[dt.datetime | None]
    deleted_at: Mapped[dt.datetime | None]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[dt.datetime | None]
    finished_at: Mapped[dt.datetime | None]
    attempt: Mapped[int] = mapped_column(server_default="0")  # the newest attempt; 0 = none yet
    setbacks: Mapped[int] = mapped_column(server_default="0")  # times re-queued since its last checkpoint
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))
    step: Mapped[int] = mapped_column(server_default="0")
    rollouts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    eval_rollouts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    eval_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    eval_spend: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))  # of it, per benchmark
    # Which its own finished evaluations took of its attempts' time; those on demand have rows, and time, of their own.
    eval_seconds: Mapped[float] = mapped_column(server_default="0")
    first_accuracy: Mapped[float | None]  # sampled accuracy on the held-out set before training
    accuracy: Mapped[float | None]  # the newest one
    best_accuracy: Mapped[float | None]
    buckets: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))  # counts after `step`
    # The ledger's sums, {fate: [rollouts, tokens]}: a long run has a hundred thousand entries.
    fates: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))


class Attempt(Base):
    """One trainer process of a run. `last_seq` is the newest event that has been ingested.

    open_rollouts, open_tokens: at most what the step under way may have sampled, until it is finished.
    open_evaluation: what the one under way has spent at most, {benchmark: {"rollouts": , "tokens": }}.
    booked: all three, as they were booked when the attempt was taken for over.
    seconds: how long the trainer ran, by its supervisor's count; of a running one see its lease.
    """

    __tablename__ = "attempts"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger)
    host: Mapped[str]
    from_step: Mapped[int | None]
    saved_step: Mapped[int | None]  # of its newest checkpoint
    last_seq: Mapped[int] = mapped_column(server_default="0")
    open_rollouts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    open_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    open_evaluation: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    booked: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    seconds: Mapped[float] = mapped_column(server_default="0")
    started_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[dt.datetime | None]
    outcome: Mapped[str | None]  # succeeded, stopped, failed, lost
    reason: Mapped[str | None]
    exit_code: Mapped[int | None]


class Lease(Base):
    """Who may run a run. Expiry is judged on the database's clock; every claim takes a new, higher fence.

    seconds: how long the trainer of this fence has run. It is here, where each renewal writes anyway.
    """

    __tablename__ = "leases"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger)
    holder: Mapped[str]  # host:pid:process start time of the supervisor, for people and for clean-up
    expires_at: Mapped[dt.datetime]
    seconds: Mapped[float] = mapped_column(server_default="0")


class Host(Base):
    """A host that a worker speaks for. It announces itself again and again; an announcement that ran out is no host."""

    __tablename__ = "hosts"

    name: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[dt.datetime]
    cpu_use: Mapped[float | None]  # share of all its cores, lately; None: not known


class Slot(Base):
    """A CPU slot or one GPU of a host, and the lease that holds it: one, or none.

    device: what CUDA_VISIBLE_DEVICES calls the GPU; a CPU slot's number. offered: its host still announces it.
    A slot is given back when all processes of its run are gone, whatever became of the lease.
    """

    __tablename__ = "slots"
    __table_args__ = (_one_of("kind", DEVICES), Index(None, "run_id"))

    host: Mapped[str] = mapped_column(ForeignKey("hosts.name", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str]
    label: Mapped[str]  # for people, such as "NVIDIA H200, 139 GiB"
    offered: Mapped[bool]
    run_id: Mapped[uuid.UUID | None]  # no foreign key: the processes of a deleted run hold it, too
    fence: Mapped[int | None] = mapped_column(BigInteger)
    taken_at: Mapped[dt.datetime | None]
    use: Mapped[float | None]  # share of the time that the GPU computed, lately; None: not known


class Dataset(Base):
    """A prompt set by the hash of its content; two files with the same prompts are one data set."""

    __tablename__ = "datasets"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())


class Prompt(Base):
    __tablename__ = "prompts"
    __table_args__ = (
        # What a search for a part of the text (ILIKE) looks up.
        Index("ix_prompts_text", "text", postgresql_using="gin", postgresql_ops={"text": "gin_trgm_ops"}),
        Index("ix_prompts_tags", "tags", postgresql_using="gin"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)  # content hash
    text: Mapped[str]
    answer: Mapped[str]
    tags: Mapped[list[str]]


class StepMetrics(Base):
    """One training step: the numbers and the bucket counts after it."""

    __tablename__ = "step_metrics"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    epoch: Mapped[int]
    rollouts: Mapped[int] = mapped_column(BigInteger)  # cumulative
    tokens: Mapped[int] = mapped_column(BigInteger)  # cumulative
    metrics: Mapped[dict[str, Any]]
    buckets: Mapped[dict[str, Any]]
    finished_at: Mapped[dt.datetime]


class Evaluation(Base):
    """Accuracy after a step: of the held-out set, and in `benchmarks` of each benchmark, as
    pipeline.events.BenchmarkResult has it. Its own spend is kept apart from training's ledger.
    """

    __tablename__ = "evaluations"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    greedy_accuracy: Mapped[float]
    sampled_accuracy: Mapped[float]
    stderr: Mapped[float]
    samples: Mapped[int]
    n_prompts: Mapped[int]
    rollouts_spent: Mapped[int] = mapped_column(BigInteger)
    eval_rollouts: Mapped[int] = mapped_column(BigInteger)
    eval_tokens: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    benchmarks: Mapped[list[dict[str, Any]]] = mapped_column(server_default=text("'[]'::jsonb"))
    mean_accuracy: Mapped[float | None]  # over the benchmarks other than the held-out set
    mean_stderr: Mapped[float | None]
    finished_at: Mapped[dt.datetime]


class PromptVisit(Base):
    """One group: a prompt's rollouts of one stage in one step, and the bucket that it led to.

    `position` is its place among the step's visits: their order is kept, and a method may visit a prompt as
    often as it likes in one step. Without a foreign key, which would be looked up for each row: whoever writes visits
    holds the run's row locked, and `runs.purge` removes them before the run.
    """

    __tablename__ = "prompt_visits"
    __table_args__ = (_one_of("bucket", BUCKETS), Index(None, "run_id", "prompt_id", "step"))

    run_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    prompt_id: Mapped[str]
    stage: Mapped[str]
    attempt: Mapped[int] = mapped_column(SmallInteger)
    n: Mapped[int]
    n_failed: Mapped[int]
    success_rate: Mapped[float | None]
    reward_variance: Mapped[float | None]
    tokens: Mapped[int]
    bucket: Mapped[str]


class PromptMove(Base):
    """A prompt that changed its bucket without a visit: its pilots grew stale or a mark took them back."""

    __tablename__ = "prompt_moves"
    __table_args__ = (_one_of("bucket", BUCKETS), Index(None, "run_id", "prompt_id", "step"))

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    prompt_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(SmallInteger)
    bucket: Mapped[str]


class PromptMark(Base):
    """What somebody wishes for a prompt. applied_step: the step from which on the trainer honours it; None: not yet, or
    not again since it went on from an earlier checkpoint.
    """

    __tablename__ = "prompt_marks"
    __table_args__ = (
        _one_of("mark", MARKS),
        Index(None, "run_id", "prompt_id", "id"),
        Index("ix_prompt_marks_pending", "run_id", "id", postgresql_where=text("applied_step IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    prompt_id: Mapped[str]
    mark: Mapped[str]
    wished_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    wished_by: Mapped[str]  # name of the token
    applied_step: Mapped[int | None]


class PromptState(Base):
    """Where a prompt stands in a run now, and what it has cost. Rows exist for prompts that were touched.

    Each visit changes a row: pages have room for the new version, and no index has a column that changes.
    """

    __tablename__ = "prompt_states"
    __table_args__ = (_one_of("bucket", BUCKETS), {"postgresql_with": {"fillfactor": 70}})

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    prompt_id: Mapped[str] = mapped_column(primary_key=True)
    bucket: Mapped[str]
    step: Mapped[int]  # of the last change or visit
    success_rate: Mapped[float | None]  # of the last visit that had rewards
    visits: Mapped[int]
    rollouts: Mapped[int]
    tokens: Mapped[int] = mapped_column(BigInteger)


class LedgerEntry(Base):
    """Change of one fate in one step. A run's ledger is the sum; `buffered` may go down."""

    __tablename__ = "ledger"
    __table_args__ = (
        _one_of("fate", FATES),
        ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
    )

    run_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    fate: Mapped[str] = mapped_column(primary_key=True)
    rollouts: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)


class Token(Base):
    """Who may use the API. The secret itself is nowhere: `hash` is its SHA-256, and it is shown once, when made."""

    __tablename__ = "tokens"
    __table_args__ = (_one_of("scope", SCOPES),)

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str]
    scope: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    created_by: Mapped[str | None]  # name of the token that made it; None: it was made in the database directly
    expires_at: Mapped[dt.datetime | None]
    revoked_at: Mapped[dt.datetime | None]
    last_used_at: Mapped[dt.datetime | None]  # to the minute


class StoredPromptSet(Base):
    """An uploaded prompt set. Its prompts are a file in PILOT_HOME; equal content has one version, whatever its format.

    file: the name that the upload had. report: pipeline.prompts.PromptReport of what was uploaded.
    """

    __tablename__ = "prompt_sets"
    __table_args__ = (UniqueConstraint("name", "version"), Index(None, "created_at", "id"))

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str]
    version: Mapped[str]
    file: Mapped[str]
    mapping: Mapped[str]
    n_prompts: Mapped[int]
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    report: Mapped[dict[str, Any]]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    created_by: Mapped[str]  # name of the token


class PlatformSettings(Base):
    """What an administrator has set for everybody: one row, or none while nothing was set."""

    __tablename__ = "settings"
    __table_args__ = (CheckConstraint("id", name="one_row"),)

    id: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    price_per_gpu_hour: Mapped[float | None]  # None: money is not shown
    currency: Mapped[str]  # ISO 4217
    changed_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    changed_by: Mapped[str]  # name of the token


class AuditEntry(Base):
    """A change that was made through the API, written in the change's own transaction."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    token_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tokens.id"))
    token_name: Mapped[str]
    action: Mapped[str]  # such as run.stop
    target: Mapped[str] = mapped_column(index=True)  # id of what was changed
    before: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    request_id: Mapped[str]


class IdempotencyKey(Base):
    """The answer to a request that carried a key: the same request again gets it again, and does nothing."""

    __tablename__ = "idempotency_keys"

    token_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tokens.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request: Mapped[str]  # SHA-256 of method, path and body
    answer: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # None: not given yet
    expires_at: Mapped[dt.datetime] = mapped_column(index=True)


class Webhook(Base):
    """An address that is told of events. `secret` signs what is sent: unlike a token's it has to be known in full."""

    __tablename__ = "webhooks"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    url: Mapped[str]
    events: Mapped[list[str]]
    secret: Mapped[str]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    created_by: Mapped[str]


class Delivery(Base):
    """One event for one webhook, until it was taken or given up.

    Changes of state are put here by a trigger on `runs`, in the transaction that makes them: none is missed, whoever
    makes it.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_due", "due_at", postgresql_where=text("delivered_at IS NULL AND given_up_at IS NULL")),
        Index(None, "webhook_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    webhook_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event: Mapped[str]
    body: Mapped[dict[str, Any]]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    attempts: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    delivered_at: Mapped[dt.datetime | None]
    given_up_at: Mapped[dt.datetime | None]
    status: Mapped[int | None]  # of the newest answer
    error: Mapped[str | None]  # why the newest attempt failed


class RaisedAlert(Base):
    """An alert that webhooks were told of, for as long as it lasts: so that it is told once."""

    __tablename__ = "raised_alerts"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    raised_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
