"""Where prompts come from: files, uploaded sets and fetched data sets, by what a config writes.

Uploaded sets are $PILOT_HOME/prompt-sets/NAME/VERSION/prompts.jsonl. Their names and versions are checked before they
become part of a path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pipeline.config import RunConfig, is_path, pilot_home, resolve
from pipeline.prompts import hub
from pipeline.prompts.types import FileFault

SET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
VERSION = re.compile(r"[0-9a-f]{16}")


class SetRef(NamedTuple):
    """An uploaded set. version: the content's digest."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"set:{self.name}@{self.version}"

    @property
    def folder(self) -> Path:
        return pilot_home() / "prompt-sets" / self.name / self.version

    @property
    def path(self) -> Path:
        return self.folder / "prompts.jsonl"


def set_ref(source: str) -> SetRef | None:
    """The uploaded set that a config's source names; None when it names something else. Raises FileFault."""
    if not source.startswith("set:"):
        return None
    name, at, version = source.removeprefix("set:").partition("@")
    if not SET_NAME.fullmatch(name) or not at or not VERSION.fullmatch(version):
        raise FileFault(
            "is not set:NAME@VERSION, with a name of lower-case letters, digits, '.', '_' and '-', and the version of "
            "16 hex digits that its upload answered"
        )
    return SetRef(name, version)


def sets_of(config: RunConfig) -> list[SetRef]:
    """The uploaded sets that a run uses. Its sources were checked before."""
    sources = [config.data.train, *(benchmark.data for benchmark in config.benchmarks)]
    return [ref for source in sources if (ref := set_ref(source)) is not None]


def from_here(source: str) -> str:
    """What somebody at a terminal writes, as a config would: paths are taken from the current folder."""
    return str(Path(source).resolve()) if is_path(source) else source


def find(source: str) -> tuple[str, list[Path]]:
    """(name for people, files) of what a config's data.train or data.eval says. Raises FileFault."""
    if (ref := set_ref(source)) is not None:
        if not ref.path.is_file():
            raise FileFault(
                "there is no such prompt set (any more); the page Data and GET /api/v1/prompt-sets list them"
            )
        return ref.name, [ref.path]
    if (dataset := hub.hub_ref(source)) is not None:
        return dataset.repo, hub.fetched(dataset)
    path = resolve(source)
    return path.stem, [path]
