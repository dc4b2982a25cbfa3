"""A constituency tree as a figure."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from posexp.parsing.trees import Tree
from posexp.reporting.palette import BLUE, GRAY

LETTER = 0.09  # inches of a letter
ROW = 0.42  # inches between a phrase and its parts


def drawn(tree: Tree) -> Figure:
  """Draw a tree with its root on top, and each phrase over the middle of its words."""
  texts = [f"{tag}\n{word}" for word, tag in zip(tree.words, tree.tags, strict=True)]
  sizes = np.array([max(map(len, text.split("\n"))) + 2 for text in texts])
  centers = np.cumsum(sizes) - sizes / 2  # in letters
  figure = Figure()
  axes = figure.add_axes((0, 0, 1, 1))
  above: list[tuple[float, int]] = [(0.0, -1)] * len(sizes)  # the lowest phrase over each word yet

  def place(text: str, start: int, end: int, gap: float, color: str) -> None:
    """Draw a bracket over the words from `start` up to `end`, and the line to the one above."""
    (over, row), x = above[start], (centers[start] + centers[end - 1]) / 2
    if row >= 0:
      axes.plot([over, x], [row + 0.22, row + 1 - gap], color=GRAY, linewidth=0.8)
    axes.text(x, row + 1, text, ha="center", va="center", fontsize=9, color=color)
    above[start:end] = [(x, row + 1)] * (end - start)

  for start, end, label in tree.phrases:
    place(label, start, end, 0.25, BLUE)
  for i, text in enumerate(texts):
    place(text, i, i + 1, 0.42, "black")  # a word stands below its tag
  deepest = max(row for _, row in above)
  figure.set_size_inches(LETTER * sizes.sum() + 0.2, ROW * (deepest + 1.6))
  axes.set(xlim=(-1, sizes.sum() + 1), ylim=(deepest + 0.8, -0.6))
  axes.axis("off")
  return figure
