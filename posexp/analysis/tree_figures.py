"""A constituency tree as a figure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from posexp import plotting
from posexp.data.trees import Tree

LETTER = 0.09  # inches of a letter
ROW = 0.42  # inches between a phrase and its parts


class Node(NamedTuple):
  """A phrase, or a word with its tag, as it is drawn."""

  text: str
  x: float  # in letters
  depth: int  # phrases above it
  children: tuple[int, ...]  # their places among the nodes


def nodes(tree: Tree) -> list[Node]:
  """Return the words, then the phrases, children before their parents."""
  depths = np.zeros(len(tree.words), int)
  of_phrases = []
  for start, end, _ in tree.phrases:
    of_phrases.append(int(depths[start]))
    depths[start:end] += 1
  found: list[Node] = []
  edge = 0.0
  for word, tag, depth in zip(tree.words, tree.tags, depths.tolist(), strict=True):
    width = max(len(word), len(tag)) + 2
    found.append(Node(f"{tag}\n{word}", edge + width / 2, depth, ()))
    edge += width
  above = list(range(len(found)))  # the highest node over each word so far
  for (start, end, label), depth in zip(reversed(tree.phrases), reversed(of_phrases), strict=True):
    children = tuple(dict.fromkeys(above[start:end]))
    x = (found[children[0]].x + found[children[-1]].x) / 2
    above[start:end] = [len(found)] * (end - start)
    found.append(Node(label, x, depth, children))
  return found


def drawn(tree: Tree) -> Figure:
  """Draw a tree with its root on top, and each phrase below the one that contains it."""
  placed = nodes(tree)
  width = sum(max(map(len, node.text.split("\n"))) + 2 for node in placed if not node.children)
  deepest = max(node.depth for node in placed)
  figure = Figure(figsize=(LETTER * width + 0.2, ROW * (deepest + 1.6)))
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set(xlim=(-1, width + 1), ylim=(deepest + 0.8, -0.6))
  axes.axis("off")
  for node in placed:
    for child in node.children:
      below = placed[child]
      top = below.depth - (0.25 if below.children else 0.42)  # a word stands below its tag
      axes.plot([node.x, below.x], [node.depth + 0.22, top], color=plotting.GRAY, linewidth=0.8)
    color = plotting.BLUE if node.children else "black"
    axes.text(node.x, node.depth, node.text, ha="center", va="center", fontsize=9, color=color)
  return figure
