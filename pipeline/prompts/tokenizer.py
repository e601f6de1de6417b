"""A model's tokenizer and chat template, as transformers applies them but without its seconds of import. No torch."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.prompts.types import FileFault, Prompt

FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja")
"""What it reads of a model folder."""


class ChatTokenizer:
    """eos: token that ends a response; None when the folder names none.
    limit: the model's context, in tokens; None when its config names none."""

    def __init__(self, folder: Path) -> None:
        """Raises FileFault: tokenizer.json or a chat template is missing or broken, or no tokenizers are installed."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise FileFault("the package tokenizers is not installed here") from None
        try:
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            written = folder / "chat_template.jinja"
            template = written.read_text(encoding="utf-8") if written.is_file() else settings.get("chat_template")
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare exceptions
            raise FileFault(f"the model's tokenizer cannot be read: {str(error)[:200]}") from None
        if not isinstance(template, str):
            raise FileFault("the model's tokenizer has no chat template")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = _environment().from_string(template)
        words = {name: _word(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self._given = words | {"tools": None, "documents": None, "add_generation_prompt": True}
        self.eos: int | None = self._tokenizer.token_to_id(words["eos_token"])
        limit = config.get("max_position_embeddings")
        self.limit = limit if isinstance(limit, int) else None

    def encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Token ids of each in the chat template, ready for the answer. Raises FileFault where that refuses a chat."""
        try:
            texts = [self._template.render(messages=prompt.chat, **self._given) for prompt in prompts]
        except Exception as error:  # whatever a template does
            raise FileFault(f"the model's chat template refuses a prompt: {str(error)[:200]}") from None
        return [found.ids for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _environment() -> Any:
    """As transformers has it for chat templates; they are code of others, and sandboxed."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda wanted: dt.datetime.now().strftime(wanted)
    return environment


def _refuse(message: str) -> None:
    raise ValueError(message)


def _word(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
