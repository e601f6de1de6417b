"""Whether training prompts give away held-out ones: equal texts, and long runs of words in common.

Both sides are compared after normalisation: case, punctuation and white space do not count, and neither does whatever
most prompts of a set have in common (a request for a box at the end of each). Two prompts overlap when they share a run
of `n` words: 13 as in GPT-3 (arXiv 2005.14165, appendix C); for a held-out prompt with fewer words the whole of it,
from eight words on.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.prompts import FileFault, Prompt, RowFault, places, read_prompts
from pipeline.prompts.mappings import Layout

LONGEST, SHORTEST = 13, 8
_WORD = re.compile(r"\\?[^\W_]+|[+\-*/=<>^%]")
_COMMON = 0.5  # a run of words in so many prompts of one side is a template, not content

Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A held-out prompt that the training set gives away. kind: `exact`, or `overlap` with the shared words.

    evaluation and train are places in the order that was given; n_train: how many training prompts do so.
    """

    kind: Literal["exact", "overlap"]
    evaluation: int
    evaluation_id: str
    train: int
    train_id: str
    n_train: int
    shared: str


def words_of(text: str) -> list[str]:
    """The words, numbers, commands and operators of a text, in lower case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def contaminated(train: Sequence[Prompt], evaluation: Sequence[Prompt], n: int = LONGEST) -> list[Hit]:
    """One hit for each held-out prompt that is, or overlaps with, a training prompt. Raises ValueError for n below 8.

    Takes memory for the held-out prompts only; the training prompts are walked through once.
    """
    if n < SHORTEST:
        raise ValueError(f"n={n}: runs of fewer than {SHORTEST} words are in common by chance")
    held_out = [words_of(p.text) for p in evaluation]
    whole: dict[Gram, list[int]] = defaultdict(list)
    grams: dict[int, dict[Gram, list[int]]] = defaultdict(lambda: defaultdict(list))  # by length
    for i, words in enumerate(held_out):
        whole[tuple(words)].append(i)
        size = min(n, len(words))
        if size >= SHORTEST:
            for gram in set(runs(words, size)):
                grams[size][gram].append(i)
    usual = max(3, int(_COMMON * len(evaluation)))
    for found in grams.values():
        for gram in [g for g, owners in found.items() if len(owners) > usual]:
            del found[gram]
    exact: dict[int, list[int]] = defaultdict(list)
    overlap: dict[int, dict[int, Gram]] = defaultdict(dict)
    frequent: Counter[Gram] = Counter()
    for j, prompt in enumerate(train):
        words = words_of(prompt.text)
        for i in whole.get(tuple(words), ()) if words else ():
            exact[i].append(j)
        for size, found in grams.items():
            for gram in set(runs(words, size)):
                if gram in found:
                    frequent[gram] += 1
                    for i in found[gram]:
                        overlap[i].setdefault(j, gram)
    template = {g for g, times in frequent.items() if times > max(3, int(_COMMON * len(train)))}
    hits: list[Hit] = []
    for i, prompt in enumerate(evaluation):
        if exact[i]:
            j = exact[i][0]
            hits.append(Hit("exact", i, prompt.id, j, train[j].id, len(exact[i]), " ".join(held_out[i])[:200]))
            continue
        shared = [(j, gram) for j, gram in overlap[i].items() if gram not in template]
        if shared:
            j, gram = shared[0]
            hits.append(Hit("overlap", i, prompt.id, j, train[j].id, len(shared), " ".join(gram)))
    return hits


def runs(words: Sequence[str], n: int) -> list[Gram]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def numbered(source: str, by: Layout) -> tuple[list[str], list[Prompt]]:
    """The rows of what a config's data.train may say, paths from the current folder, and their prompts. Raises
    ValueError for one that is none."""
    rows, prompts = [], []
    try:
        for row, prompt in read_prompts(places.find(places.from_here(source))[1], by):
            if isinstance(prompt, RowFault):
                raise ValueError(f"{source}: row {row}: {prompt}")
            rows.append(row)
            prompts.append(prompt)
    except FileFault as error:
        raise ValueError(f"{source}: {error}") from None
    return rows, prompts
