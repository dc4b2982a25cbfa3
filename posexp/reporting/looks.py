"""The color and the marker of each encoding, the same in every figure of the project.

The marker says the family, and the color the encoding within it. Readers with any color vision tell
the colors apart, and markers remain where a figure is printed in gray.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from posexp.plotting import (
  BLUE,
  BROWN,
  COLORS,
  GRAY,
  GREEN,
  ORANGE,
  PINK,
  RED,
  SKY,
  VIOLET,
)

FAMILIES: dict[str, dict[str, str]] = {  # marker -> encoding -> color
  "cross": {"none": GRAY},
  "circle": {  # vectors of positions, at the input
    "sinusoidal": BLUE, "learned": ORANGE, "index": GREEN, "binary": PINK, "clock": SKY,
    "normalized": RED, "complex": VIOLET, "fope": BROWN,
  },
  "square": {  # vectors of distances, in attention
    "rpr": RED, "transformer_xl": PINK, "deberta": VIOLET, "tupe": BROWN, "split": GREEN,
    "by_layer": BLUE,
  },
  "triangle-up": {  # biases of the logits
    "alibi": SKY, "t5": VIOLET, "kerple": BROWN, "fire": ORANGE, "sandwich": GREEN, "dape": PINK,
    "inkling": RED, "cope": BLUE,
  },
  "diamond": {  # rotations and other maps of queries and keys
    "rope": GREEN, "xpos": ORANGE, "pope": VIOLET, "selective_rope": RED, "path": BLUE,
    "grape": PINK,
  },
  "triangle-down": {"fox": BLUE, "stick_breaking": ORANGE},  # gates that forget
}  # fmt: skip
SPARE = ("triangle-left", "triangle-right")  # markers of all other encodings, such as plugins'
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # lengths of lines and gaps, in pixels
DARKEST, LIGHTEST = -0.2, 0.55  # of the shades of one encoding with several values of its options
UNORDERED = {"by_layer"}  # its patterns, unlike numbers, have no order that shades could show


class Look(NamedTuple):
  """How an encoding is drawn."""

  color: str  # "#0072B2"
  shape: str  # the name of a marker, as Vega has it
  dash: list[int]


def look(encoding: str) -> Look:
  """Return how an encoding is drawn; a name that posexp does not know always gets the same look."""
  for shape, colors in FAMILIES.items():
    if encoding in colors:
      return Look(colors[encoding], shape, DASHES[0])
  color, lap = zlib.crc32(encoding.encode()) % len(COLORS), zlib.crc32(encoding.encode()[::-1]) % 2
  return Look(COLORS[color], SPARE[lap], DASHES[0])


def looks(encodings: Iterable[str]) -> list[Look]:
  """Return the looks of lines in their order.

  Several lines of one encoding get shades of its color, from dark to light, and different dashes;
  several patterns of layers get a color each, as they have no order, and from the ninth on another
  marker.
  """
  every = list(encodings)
  found = []
  for place, encoding in enumerate(every):
    color, shape, _ = look(encoding)
    rank, count = every[:place].count(encoding), every.count(encoding)
    if encoding in UNORDERED:
      lap, turn = divmod(rank, len(COLORS))
      color, shape = COLORS[turn], (shape, *SPARE)[lap % 3]
    else:
      lap = rank
      share = DARKEST + (LIGHTEST - DARKEST) * rank / (count - 1) if count > 1 else 0.0
      color = _mixed(color, share)
    found.append(Look(color, shape, DASHES[lap % len(DASHES)]))
  return found


def _mixed(color: str, share: float) -> str:
  """Return a color mixed with so much white, or black if the share is negative."""
  end = 255 if share > 0 else 0
  parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
  return "#" + "".join(f"{round(part + abs(share) * (end - part)):02x}" for part in parts)
