"""Three wishes for a positional encoding, measured: that each position is told apart, that a step
is the same in texts of unequal length, and that nothing grows without bound.

What is measured is what an encoding gives: the vectors of positions where it acts at the input, or
else the logits of offsets back from a query at the end of a text.
"""

from __future__ import annotations

import numpy as np

from posexp.analysis import probe
from posexp.analysis.probe import ProbeModel

LENGTHS = 64, 256  # tokens of a short text and of a long one
APART = 1e-4  # of the largest distance between two positions, below which they are alike
SAME = 1e-3  # of the largest step, by which steps may differ
GROWTH = 1.25  # of the mean size in the second half, from the short to the long text


def rows(model: ProbeModel, layer: int = 0) -> dict[str, str]:
  """Return a row of the card for each wish.

  Args:
    model: the stack of a run, or one whose weights are `perturbed`, as many tables start at zero.
    layer: the layer whose logits are measured.
  """
  short, long = (given(model, probe.available(model.encoding, n), layer) for n in LENGTHS)
  what = "position" if "input" in model.encoding.acts_in else "offset"
  apart = np.linalg.norm(long[:, None] - long[None], axis=-1)
  most = apart.max()
  if len(long) < 2 or most < APART * (1 + np.abs(long).max()):
    return {"unique": "no: nothing tells positions apart"}
  np.fill_diagonal(apart, np.inf)
  alike = int((apart.min(axis=1) < APART * most).sum())
  nearest = f"the nearest two are {apart.min() / most:.1%} of the farthest apart"
  steps = [np.diff(vectors[: len(short)], axis=0) for vectors in (short, long)]
  differ = np.linalg.norm(steps[0] - steps[1], axis=1).max()
  differ /= max(np.linalg.norm(step, axis=1).max() for step in steps)
  sizes = [np.linalg.norm(vectors[len(vectors) // 2 :], axis=1).mean() for vectors in (short, long)]
  counts = len(short), len(long)
  wishes = {
    "unique": f"no: {alike} of {len(long)} {what}s are like another"
    if alike
    else f"yes, each of {len(long)} {what}s: {nearest}",
    "equal steps": f"no: in texts of {counts[0]} and {counts[1]} tokens they differ by {differ:.1%}"
    if differ > SAME
    else f"yes, in texts of {counts[0]} and {counts[1]} tokens",
    "bounded": f"no: four times as far, they are {sizes[1] / sizes[0]:.1f} times as large"
    if sizes[1] > GROWTH * sizes[0]
    else f"yes, as far as {what} {counts[1]}",
  }
  if len(short) == len(long):  # there are no more positions
    del wishes["equal steps"]
    wishes["bounded"] = f"ends at {what} {len(long) - 1}"
  return wishes


def given(model: ProbeModel, length: int, layer: int) -> np.ndarray:
  """Return the features of each position in a text of so many tokens: vectors [L,F], or logits
  [L,N·H] of the offsets 0, −1, … minus the logit of offset 0.
  """
  if "input" in model.encoding.acts_in:
    return probe.position_vectors(model.stack.embed, length)
  profile = probe.profile(model, length, layer)
  logits = probe.relative_to_zero(profile.logits, profile.offsets)[..., profile.offsets <= 0]
  return np.moveaxis(logits, -1, 0).reshape(logits.shape[-1], -1)[::-1]
