"""Every colour and every word that stands for a bucket, a fate, a state or a phase: the same on every page.

Bucket colours are told apart with normal and with colour-blind sight (tests/ui/test_palette.py computes it) and stand
out against the light and the dark background. Nothing is told by colour alone: a name is always beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.schemas import PromptMarkName


@dataclass(frozen=True)
class Bucket:
    name: str
    colour: str
    meaning: str


BUCKETS = {
    b.name: b
    for b in (
        Bucket("unseen", "#8B95A7", "not sampled yet"),
        Bucket("ready", "#56B4F0", "just right, waiting to train"),
        Bucket("committed", "#1F66D1", "trained on"),
        Bucket("skipped", "#E8A317", "too easy for now"),
        Bucket("deferred", "#D9480F", "too hard, back next epoch"),
        Bucket("evicted", "#0E9F7E", "solved, out of the pool"),
    )
}
STACK = tuple(BUCKETS)  # from left to right in bars, from bottom to top in stacked charts


@dataclass(frozen=True)
class Fate:
    name: str
    colour: str
    label: str
    meaning: str


FATES = {
    f.name: f
    for f in (
        Fate("trained", BUCKETS["committed"].colour, "trained on", "made a gradient"),
        Fate("buffered", BUCKETS["ready"].colour, "in the buffer", "pilots that wait to be committed"),
        Fate("pilot_skipped", BUCKETS["skipped"].colour, "pilot, too easy", "told us to skip the prompt"),
        Fate("pilot_deferred", BUCKETS["deferred"].colour, "pilot, too hard", "told us to defer the prompt"),
        Fate("pilot_evicted", BUCKETS["evicted"].colour, "pilot, solved", "told us that the prompt is solved"),
        Fate("downsampled", "#A78BDB", "down-sampled", "left out of the update by choice"),
        Fate("stale", "#B98A62", "stale", "too old to train on"),
        Fate("discarded", "#7D8597", "discarded", "sampled and never used"),
        Fate("failed", "#C2255C", "reward failed", "no reward came back"),
        Fate("lost", "#7A3B52", "lost", "sampled again after a crash"),
    )
}


@dataclass(frozen=True)
class Mark:
    """What somebody wishes for a prompt. action: on a button; to_come, held: of a prompt that has it."""

    name: PromptMarkName
    colour: str
    icon: str
    action: str
    to_come: str
    held: str
    meaning: str


MARKS: dict[str, Mark] = {
    m.name: m
    for m in (
        Mark("pin", "#6366E8", ":material/keep:", "Pin", "to be pinned", "pinned",
             "First in every epoch, and skipped instead of evicted when it is solved"),
        Mark("exclude", "#C2255C", ":material/block:", "Exclude", "to be excluded", "excluded",
             "Not sampled any more; what waits in the buffer is discarded"),
        Mark("retest", "#C9A227", ":material/replay:", "Re-test", "to be re-tested", "re-tested",
             "Once: sampled first in the next step, whatever its bucket"),
        Mark("clear", "#8B95A7", ":material/bookmark_remove:", "Clear marks", "to be cleared", "cleared",
             "Neither pinned nor excluded, and no re-test that is still to come"),
    )
}  # fmt: skip

ACCENT = "#6366E8"  # sampled accuracy and other series that are no bucket
TARGET = "#C2255C"  # the accuracy that is wanted
NEUTRAL = "#8B95A7"  # what a series is compared with
SERIES = (  # of runs that are compared: told apart with colour-blind sight, too, and named in the legend
    "#6366E8", "#E8A317", "#0E9F7E", "#C2255C", "#56B4F0", "#8B5E34", "#8B95A7",
)  # fmt: skip
PHASES = {"generate": "#6366E8", "reward": "#C9A227", "update": "#2A9D8F"}

STATE_COLOURS = {
    "queued": "#8B95A7",
    "starting": "#6366E8",
    "running": "#2F80ED",
    "stopping": "#D98E04",
    "stopped": "#8B95A7",
    "succeeded": "#0E9F7E",
    "failed": "#D92D3A",
}
FINISHED_STATES = ("stopped", "succeeded", "failed")
METHODS = {"pilot_commit": "Pilot-Commit", "grpo": "GRPO", "dapo": "DAPO"}
