"""Numbers for Prometheus: the requests that this process answered, and the platform as the database has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session
from starlette.routing import Route
from starlette.types import Scope

from db import DatabaseUnavailable, stats

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")  # others are without number, too


class Metrics:
    def __init__(self, engine: sa.Engine) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pilot_api_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "pilot_api_request_seconds",
            "From the request to the begin of its answer.",
            ["method", "route"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_Platform(engine))

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request. The route's pattern is the label, never the path: paths are without number."""
        route = scope.get("route")
        name = route.path if isinstance(route, Route) else "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, name, str(status)).inc()
        self._seconds.labels(method, name).observe(seconds)


class _Platform(Collector):
    """Looks into the database at each scrape. `pilot_database_up` alone says so when it cannot."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        yield from ()  # so that registering it does not scrape

    def collect(self) -> Iterator[Metric]:
        try:
            with Session(self._engine) as session:
                found = stats.collect(session)
        except (DatabaseUnavailable, sa.exc.SQLAlchemyError):
            yield GaugeMetricFamily("pilot_database_up", "Whether the database can be read.", value=0)
            return
        yield GaugeMetricFamily("pilot_database_up", "Whether the database can be read.", value=1)
        yield _by("pilot_runs", "Runs by state.", "state", found.runs)
        yield _by("pilot_slots", "Slots that workers offer.", "kind", found.slots)
        yield _by("pilot_slots_free", "Slots that no run holds.", "kind", found.free)
        for name, words, value in (
            ("pilot_training_rollouts", "Training rollouts of all runs that are not deleted.", found.rollouts),
            ("pilot_training_tokens", "Training tokens of all runs that are not deleted.", found.tokens),
            ("pilot_oldest_queued_seconds", "How long the run that waits longest has waited.", found.oldest_queued_s),
            ("pilot_webhook_deliveries_pending", "Deliveries still to be made.", found.deliveries),
        ):
            yield GaugeMetricFamily(name, words, value=value)


def _by(name: str, words: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
