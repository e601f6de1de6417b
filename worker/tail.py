"""Following one attempt's event log into the database."""

from __future__ import annotations

import uuid
from itertools import islice
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.orm import Session

from pipeline.events import AnyEvent, AttemptFinished, StepFinished, events_path, read_events
from worker.ingest import EventLogBroken, ingest

# A transaction's share of the log: a second's work, so that a stop never waits long for the run's row, nor memory grows
# with what there is to catch up on. A single event may be larger.
_BATCH_EVENTS: Final = 500
_BATCH_BYTES: Final = 4 << 20


class Tail:
    """Where reading has got to.

    newest, finished: the last step and the attempt's closing event, as far as they have been ingested.
    """

    def __init__(self, engine: sa.Engine, run_id: uuid.UUID, attempt: int, fence: int, run_dir: Path) -> None:
        self._engine, self._run_id, self._attempt, self._fence = engine, run_id, attempt, fence
        self._path = events_path(run_dir, attempt)
        self._offset = 0
        self.newest: StepFinished | None = None
        self.finished: AttemptFinished | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was found in the log so far."""
        return self._offset == 0

    def advance(self) -> int:
        """Ingest the next batch in one transaction. Returns how many events it held; 0 at the end of the log.

        When it raises, nothing was taken and it may be called again. Raises EventLogBroken, LeaseLost,
        DatabaseUnavailable and other SQLAlchemy errors.
        """
        events, offset = self._read()
        if not events:
            return 0
        with Session(self._engine) as session, session.begin():
            ingest(session, self._run_id, self._attempt, self._fence, events)
        self._offset = offset
        self.newest = next((e for e in reversed(events) if isinstance(e, StepFinished)), self.newest)
        if isinstance(events[-1], AttemptFinished):
            self.finished = events[-1]
        return len(events)

    def drain(self) -> None:
        """Ingest everything that is there. Raises what `advance` raises."""
        while self.advance():
            pass

    def _read(self) -> tuple[list[AnyEvent], int]:
        events, offset = [], self._offset
        try:
            for event, after in islice(read_events(self._path, self._offset), _BATCH_EVENTS):
                events.append(event)
                offset = after
                if offset - self._offset >= _BATCH_BYTES:
                    break
        except FileNotFoundError:
            return [], 0  # the trainer has not got so far
        except ValidationError as error:
            raise EventLogBroken(f"{self._path} holds something that is not an event: {error}") from error
        return events, offset
