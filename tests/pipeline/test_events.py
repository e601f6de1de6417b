from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.events import AttemptFinished, CheckpointSaved, EventLog, events_path, parse_event, read_events


def test_numbered_flushed_and_readable_while_written(tmp_path):
    path = events_path(tmp_path, 1)
    log = EventLog(path)
    log.append(CheckpointSaved(step=3, path="x"))
    ((first, offset),) = read_events(path)
    assert (first.seq, first.step) == (1, 3) and first.time > 0
    log.append(AttemptFinished(outcome="succeeded", reason="done", step=3))
    log.close()
    assert [e.seq for e, _ in read_events(path, offset)] == [2]


def test_a_torn_line_is_left_for_later(tmp_path):
    path = events_path(tmp_path, 1)
    log = EventLog(path)
    log.append(CheckpointSaved(step=3, path="x"))
    log.close()
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert len(list(read_events(path))) == 1


def test_an_attempt_has_one_log_and_unknown_events_are_refused(tmp_path):
    EventLog(events_path(tmp_path, 1))
    with pytest.raises(FileExistsError):
        EventLog(events_path(tmp_path, 1))
    with pytest.raises(ValidationError):
        parse_event('{"type": "checkpoint_saved", "seq": 1, "time": 0, "step": 1, "path": "x", "more": 1}')
    with pytest.raises(ValidationError):
        parse_event('{"type": "other"}')
