"""Ours against that of transformers, which verl and vLLM use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import Qwen2Tokenizer

from pipeline.prompts import ChatTokenizer, FileFault, Message, make_prompt

POLICY = Path(__file__).parents[3] / "pipeline" / "bundled" / "policy"
CHATS = [
    (Message("user", "1+1="),),
    (Message("system", "Be brief."), Message("user", "a?"), Message("assistant", "b"), Message("user", "é\n日本 🙂")),
    (Message("user", "<|end|> <|pad|><|user|> \x00\t  two  spaces \u202e"),),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
        shutil.copy(POLICY / name, tmp_path)
    return tmp_path


def test_tokens_and_text_are_those_of_transformers() -> None:
    ours, theirs = ChatTokenizer(POLICY), Qwen2Tokenizer.from_pretrained(POLICY)
    assert (ours.eos, ours.limit) == (theirs.eos_token_id, 256)
    for chat in CHATS:
        prompt = make_prompt(chat, "1")
        text = theirs.apply_chat_template(prompt.chat, tokenize=False, add_generation_prompt=True)
        (tokens,) = ours.encode([prompt])
        assert tokens == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
    broken = [0xE3, 0x81, 1, 0, 2, 3, 250]  # half a character, special tokens
    assert ours.decode(broken) == theirs.decode(broken, skip_special_tokens=True)


@pytest.mark.parametrize(
    "template",
    [
        "{% if tools is not none %}T{% endif %}{{ bos_token }}{{ messages | tojson }}{{ strftime_now('%Y') }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}\n {{ m['content'] | trim }}\n{% endfor %}",
    ],
)
def test_a_template_is_rendered_as_transformers_does(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    prompt = make_prompt(CHATS[1], "1")
    theirs = Qwen2Tokenizer.from_pretrained(folder)
    text = theirs.apply_chat_template(prompt.chat, tokenize=False, add_generation_prompt=True)
    assert ChatTokenizer(folder).encode([prompt]) == [theirs(text, add_special_tokens=False)["input_ids"]]


def test_what_is_missing_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only one turn') }}")
    with pytest.raises(FileFault, match="chat template refuses a prompt: only one turn"):
        ChatTokenizer(folder).encode([make_prompt(CHATS[1], "1")])
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(FileFault, match="has no chat template"):
        ChatTokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None, "chat_template": "x"}))
    assert ChatTokenizer(folder).eos is None
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FileFault, match="cannot be read"):
        ChatTokenizer(folder)
