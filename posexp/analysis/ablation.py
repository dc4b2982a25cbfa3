"""A trained model measured with terms of its relation switched off, in single layers and heads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posexp.errors import UserError
from posexp.training.restore import TrainedModel, terms_of

Kept = dict[str, np.ndarray]  # by term, float32 [layers,H]: 1 where it is on


class Off(NamedTuple):
  """What is switched off: these terms in these layers and heads."""

  terms: tuple[str, ...]
  layers: tuple[int, ...]
  heads: tuple[int, ...]


class Switches:
  """The terms that a run's model has, by layer and head."""

  def __init__(self, trained: TrainedModel):
    self.by_layer = terms_of(trained.spec)
    self.terms = tuple(dict.fromkeys(itertools.chain.from_iterable(self.by_layer)))
    self.shape = (len(self.by_layer), trained.spec.size.num_heads)
    self.name = trained.record.config["encoding"]

  def off(
    self,
    terms: Sequence[str],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
  ) -> Off:
    """A choice of switches; None is all.

    Raises:
      UserError: there is no such term, layer or head.
    """
    for term in terms:
      if term not in self.terms:
        raise UserError(
          f"--without {term}: no such term, {self.name} has {', '.join(self.terms)} here"
        )
    chosen = []
    for what, given, count in zip(("layers", "heads"), (layers, heads), self.shape, strict=True):
      for number in given or ():
        if not 0 <= number < count:
          raise UserError(f"--{what} {number}: the model's {what} are 0 to {count - 1}")
      chosen.append(tuple(range(count)) if given is None else tuple(given))
    return Off(tuple(terms), *chosen)

  def kept(self, off: Off | None = None) -> Kept:
    """All terms, less what is off."""
    kept = {term: np.ones(self.shape, np.float32) for term in self.terms}
    for term in off.terms if off else ():
      kept[term][np.ix_(off.layers, off.heads)] = 0
    return kept

  def grid(self, terms: Sequence[str], layers: Sequence[int], heads: Sequence[int]) -> list[Off]:
    """For each term: every head of every layer, every layer, and all of these at once."""
    found = []
    for term in terms:
      own = [layer for layer in layers if term in self.by_layer[layer]]
      found += [Off((term,), (layer,), (head,)) for layer in own for head in heads]
      found += [Off((term,), (layer,), tuple(heads)) for layer in own]
      found.append(Off((term,), tuple(own), tuple(heads)))
    return found


def measure(trained: TrainedModel, split: str, choices: Sequence[Kept]) -> list[dict[str, Any]]:
  """The metrics of a split for each choice of switches, and what they lose against the first.

  The switches are traced: however many choices there are, the program is compiled once for each
  length of the batches.
  """
  found = [trained.data.predict(trained.snapshot, split, kept) for kept in choices]
  return [trained.data.scores(each) | _against(found[0], each) for each in found]


def _against(whole: dict[str, np.ndarray], part: dict[str, np.ndarray]) -> dict[str, Any]:
  """How a part compares with the whole, example by example."""
  tokens = whole["tokens"]
  change = part["right"].astype(float) - whole["right"]
  mean = change.sum() / tokens.sum()
  # The error of a ratio of means: of pairs, not of two samples.
  spread = (change - mean * tokens).std() / tokens.mean()
  return {
    "examples": len(change),
    "change": float(mean),
    "error": float(spread / len(change) ** 0.5),
    "other": int((whole["answer"] != part["answer"]).sum()),  # answers that differ
  }
