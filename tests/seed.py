"""The seed by which tests choose among many cases; `pytest --seed` sets it and prints it."""

import os
import random

import pytest

SEED = int(os.environ.get("POSEXP_TESTS_SEED", 0))


def drawn(names, count):
  """Return some of the names, by the seed."""
  return random.Random(SEED).sample(names, count)


def some(cases, count):
  """Return the cases as parameters, of which all but `count` drawn ones are slow."""
  params = [
    each if hasattr(each, "marks") else pytest.param(*(each if type(each) is tuple else [each]))
    for each in cases
  ]
  quick = [each for each in params if not each.marks]
  kept = random.Random(SEED).sample(quick, min(count, len(quick)))
  slow = [each._replace(marks=[pytest.mark.slow]) for each in params]
  return [
    each if each.marks or each in kept else other for each, other in zip(params, slow, strict=True)
  ]
