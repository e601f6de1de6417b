"""How many tokens a prompt has under a model's tokenizer and chat template. No torch and no transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.prompts.types import FileFault, Prompt

FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja")
"""What it reads of a model folder."""


class Lengths:
    """limit: the model's context, in tokens; None when its config names none."""

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
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare exceptions
            raise FileFault(f"the model's tokenizer cannot be read: {str(error)[:200]}") from None
        if not isinstance(template, str):
            raise FileFault("the model's tokenizer has no chat template")
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.template = _environment().from_string(template)
        self.words = {name: _word(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        limit = config.get("max_position_embeddings")
        self.limit = limit if isinstance(limit, int) else None

    def __call__(self, prompts: Sequence[Prompt]) -> list[int]:
        """Tokens of each, as both engines count them. Raises FileFault where the template refuses a chat."""
        try:
            texts = [self.template.render(messages=p.chat, add_generation_prompt=True, **self.words) for p in prompts]
        except Exception as error:  # whatever a template does
            raise FileFault(f"the model's chat template refuses a prompt: {str(error)[:200]}") from None
        return [len(found.ids) for found in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


def _environment() -> Any:
    """As transformers has it for chat templates; they are code of others, and sandboxed."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> None:
    raise ValueError(message)


def _word(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
