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
    case if hasattr(case, "marks") else pytest.param(*(case if type(case) is tuple else [case]))
    for case in cases
  ]
  quick = [param for param in params if not param.marks]
  kept = drawn(quick, min(count, len(quick)))
  slow = [pytest.mark.slow]
  return [each if each.marks or each in kept else each._replace(marks=slow) for each in params]
