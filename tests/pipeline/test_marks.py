"""The file of wishes, as the trainer reads it."""

from __future__ import annotations

import json

from pipeline.marks import Wishes
from pipeline.prompts import Message, make_prompt
from pipeline.rundir import MARKS

PROMPTS = [make_prompt((Message(role="user", content=f"{n}+{n}="),), str(2 * n)) for n in range(3)]
A, B, C = (prompt.id for prompt in PROMPTS)


def test_each_wish_is_given_out_once_and_in_order(tmp_path):
    wishes = Wishes(tmp_path, PROMPTS, applied=[2])
    assert wishes.new() == [], "there need be no file"
    marks = [[3, "exclude", B], [1, "pin", A], [2, "retest", C]]
    (tmp_path / MARKS).write_text(json.dumps({"marks": marks}))
    assert wishes.new() == [(1, "pin", A), (3, "exclude", B)]
    assert wishes.new() == []
    (tmp_path / MARKS).write_text(json.dumps({"marks": [*marks, [4, "clear", B]]}))
    assert wishes.new() == [(4, "clear", B)]
    assert [wishes.place[prompt.id] for prompt in PROMPTS] == [0, 1, 2]


def test_what_cannot_be_read_or_done_is_printed_once_and_stops_nothing(tmp_path, capsys):
    wishes = Wishes(tmp_path, PROMPTS)
    for broken in ("", '{"marks": [[1, "burn", "x"]]}', '{"marks": {}}'):
        (tmp_path / MARKS).write_text(broken)
        assert wishes.new() == wishes.new() == []
        assert capsys.readouterr().out.count("cannot be read, the marks in it wait") == 1
    (tmp_path / MARKS).write_text(json.dumps({"marks": [[1, "pin", "nobody"], [2, "pin", A]]}))
    assert wishes.new() == [(2, "pin", A)]
    assert wishes.new() == []
    assert capsys.readouterr().out == "mark 1: the training set has no prompt 'nobody'\n"
