"""Bucket colours can be told apart with colour-blind sight and stand out on both backgrounds."""

from __future__ import annotations

import itertools
import math
import tomllib
from pathlib import Path

import pytest

from db.models import BUCKETS, FATES, RUN_STATES
from ui import palette

Colour = tuple[float, float, float]

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def linear(colour: str) -> Colour:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return red, green, blue


def luminance(rgb: Colour) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(linear(one)), luminance(linear(other))))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, sight: str) -> Colour:
    rgb = linear(colour)
    red, green, blue = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in SIGHT[sight])
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = luminance((red, green, blue))
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("sight", SIGHT)
def test_buckets_are_told_apart(sight: str) -> None:
    for one, other in itertools.combinations(palette.BUCKETS.values(), 2):
        distance = math.dist(lab(one.colour, sight), lab(other.colour, sight))
        assert distance > 14, f"{one.name} and {other.name} look alike with {sight}: {distance:.0f}"


def test_buckets_stand_out_on_both_backgrounds() -> None:
    config = Path(__file__).resolve().parents[2] / ".streamlit" / "config.toml"
    themes = tomllib.loads(config.read_text())["theme"]
    for bucket in palette.BUCKETS.values():
        for theme in ("light", "dark"):
            assert contrast(bucket.colour, themes[theme]["backgroundColor"]) > 2, (bucket.name, theme)


def test_nothing_is_without_a_colour_and_words() -> None:
    assert set(palette.BUCKETS) == set(palette.STACK) == set(BUCKETS)
    assert set(palette.FATES) == set(FATES)
    assert set(palette.STATE_COLOURS) == set(RUN_STATES)
