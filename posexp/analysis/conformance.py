"""The properties of every encoding, and the smallest counterexample of one that does not hold.

`posexp.analysis.properties` has their definitions; here is where each of them is asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from posexp.analysis import attention_properties, properties
from posexp.analysis.compilation import compilation
from posexp.analysis.far_positions import far_positions
from posexp.analysis.probe import refusal
from posexp.analysis.properties import Case, Violation, stack
from posexp.encodings import Encoding
from posexp.encodings.sinusoids import REACH


class Property(NamedTuple):
  """A property, and where it is asked for."""

  check: Callable[[Case], Iterator[Violation]]
  encoder: bool = True  # also of attention to both sides
  declared: str = ""  # only of an encoding that declares this: `relative` or `recurrent`

  @property
  def name(self) -> str:
    return self.check.__name__.replace("_", " ")

  @property
  def claim(self) -> str:
    """What holds, in words."""
    return self.check.__doc__.removeprefix("Check that ")

  def sides(self, encoding: Encoding) -> list[bool]:
    """Return whether attention is causal: one or both, or none where it is not asked for."""
    if self.declared and not getattr(encoding, self.declared):
      return []
    return [True, *[False] * (self.encoder and not encoding.causal_only)]


PROPERTIES = (
  Property(properties.padding),
  Property(properties.batch_mates),
  Property(properties.cached_decoding, encoder=False),
  Property(properties.cross_attention, encoder=False),
  Property(properties.memory, encoder=False, declared="recurrent"),
  Property(properties.explicit_positions),
  Property(properties.shift, declared="relative"),
  Property(properties.spans),
  Property(far_positions),
  Property(properties.long_texts),
  Property(compilation),
  Property(properties.gradients),
  Property(properties.bfloat16),
  Property(properties.same_start),
  Property(properties.terms),
  Property(attention_properties.weights),
  Property(attention_properties.columns),
)


class Outcome(NamedTuple):
  """Whether one property holds."""

  name: str
  status: str  # "holds", "fails" or "not declared"
  detail: str  # what holds, or the smallest counterexample


def examine(encoding: Encoding, reach: int = REACH) -> Iterator[Outcome]:
  """Yield every property of one encoding, with the smallest counterexample if it does not hold.

  Positions that are far apart are below `reach`.

  Raises:
    ValueError: no model can be built with the encoding.
  """
  count = max(2, encoding.least_layers)
  whole = {causal: Case(encoding, causal, layers=count) for causal in (True, False)}
  defined = [causal for causal, case in whole.items() if is_defined(case)]
  if not defined:
    stack(whole[encoding.causal_only])  # says why
  for each in PROPERTIES:
    sides = [causal for causal in each.sides(encoding) if causal in defined]
    cases = [Case(encoding, causal, layers=count, reach=reach) for causal in sides]
    failed = next((case for case in cases if fails(each, case)), None)
    if failed is not None:
      smallest, found = shrink(each, failed)
      by = "" if np.isnan(found.amount) else f", by {found.amount:.3g}"
      yield Outcome(each.name, "fails", f"{smallest}: {found.what}{by}")
    else:
      yield Outcome(each.name, "holds" if cases else "not declared", each.claim)


def is_defined(case: Case) -> bool:
  """Return whether a model can be built."""
  return refusal(case.encoding, case.size(), case.causal) is None


def fails(each: Property, case: Case) -> Violation | None:
  """Return the first difference that a property finds; an exception is one, too."""
  try:
    return next(each.check(case), None)
  except Exception as error:
    return Violation(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def shrink(each: Property, case: Case) -> tuple[Case, Violation]:
  """Return the smallest case that fails: of the fewest layers, then heads, then tokens."""
  sizes = itertools.product((1, case.layers), (1, case.heads), range(2, case.length + 1))
  for layers, heads, length in sizes:
    smaller = dataclasses.replace(case, length=length, layers=layers, heads=heads)
    if is_defined(smaller) and (found := fails(each, smaller)) is not None:
      return smaller, found
  return case, fails(each, case)
