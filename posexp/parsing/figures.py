"""A constituency tree as a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posexp.analysis import plotting
from posexp.analysis.values import wide
from posexp.parsing.trees import Tree
from posexp.reporting.palette import BLUE, GRAY

LETTER = 0.09  # inches of a letter
ROW = 0.42  # inches between a phrase and its parts
LINE = 0.36  # rows between a tag and its word


def drawn(tree: Tree) -> bytes:
  """Draw a tree as SVG with its root on top, and each phrase over the middle of its words."""
  texts = [*zip(tree.tags, tree.words, strict=True)]  # a word stands below its tag
  sizes = np.array([max(map(wide, lines)) + 2 for lines in texts])
  centers = np.cumsum(sizes) - sizes / 2  # in letters
  figure = plotting.Figure()
  axes = figure.add_axes((0, 0, 1, 1))
  above: list[tuple[float, int]] = [(0.0, -1)] * len(sizes)  # the lowest phrase over each word yet

  def place(lines: Sequence[str], start: int, end: int, gap: float, color: str) -> None:
    """Draw a bracket over the words from `start` up to `end`, and the line to the one above."""
    (over, row), x = above[start], (centers[start] + centers[end - 1]) / 2
    if row >= 0:
      axes.plot([over, x], [row + 0.22, row + 1 - gap], color=GRAY, linewidth=0.8)
    for at, line in enumerate(lines):  # a text each, which a browser centers in any font
      y = row + 1 + LINE * (at - (len(lines) - 1) / 2)
      axes.text(x, y, line, ha="center", va="center", fontsize=9, color=color)
    above[start:end] = [(x, row + 1)] * (end - start)

  for start, end, label in tree.phrases:
    place([label], start, end, 0.25, BLUE)
  for i, lines in enumerate(texts):
    place(lines, i, i + 1, 0.42, "black")
  deepest = max(row for _, row in above)
  figure.set_size_inches(LETTER * sizes.sum() + 0.2, ROW * (deepest + 1.6))
  axes.set(xlim=(-1, sizes.sum() + 1), ylim=(deepest + 0.8, -0.6))
  axes.axis("off")
  return plotting.drawn(figure, "svg")
