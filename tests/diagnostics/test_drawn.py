"""Examples of a diagnostic of one's own, which may differ in size, and what it cannot have."""

import dataclasses
import itertools

import numpy as np
import pytest

from posexp.diagnostics import algorithmic, states
from posexp.diagnostics.diagnostic import Diagnostic, Drawn
from posexp.errors import UserError


def test_symbols_that_differ_are_as_many_as_the_longest_example_has():
  with pytest.raises(ValueError, match="kinds must be at least 20 for distinct"):
    algorithmic.Copy(distinct=True, kinds=16, lengths=(4, 16))
  with pytest.raises(ValueError, match="kinds must be at least 25 for symbols that differ"):
    states.IndirectIndexing(kinds=20, lengths=(5,), validated=(25,))
  assert (
    len(
      algorithmic.Addition(longest=4, lengths=(4,), validated=(6,)).draw(
        np.random.default_rng(0), 6
      )[0]
    )
    == 25
  )


@dataclasses.dataclass(frozen=True)
class Ones(Diagnostic):
  """The symbols but 0 of an input, whose number differs from example to example."""

  symbols = 4
  rare: int = 0  # how many examples there are to one of four times as many symbols

  def draw(self, random, n):
    n *= 4 if self.rare and not random.integers(self.rare) else 1
    x = random.integers(4, size=n) * random.integers(2, size=n)
    return x, x[x > 0]


def test_examples_of_a_length_may_differ_in_tokens():
  data = Drawn(Ones(longest=13, lengths=(13, 26)))
  assert all(batch["mask"].any() for batch in itertools.islice(data.batches(8, seed=0), 300))
  data = Drawn(Ones(longest=13, lengths=(13,), examples=1, rare=200))
  batches = [*itertools.islice(data.batches(8, seed=0), 300)]
  assert len({batch["tokens"].shape for batch in batches}) > 1
  for start in (0, 150, 299):  # a batch is what it is, whatever came before
    again = next(data.batches(8, seed=0, start=start))
    np.testing.assert_array_equal(again["tokens"], batches[start]["tokens"])
  data = Drawn(Ones(longest=13, lengths=(13, 26)))
  for split in ("validation", "test", "beyond"):
    assert sum((batch["index"] >= 0).sum() for batch in data.evaluation(split, 64)) >= 500


def test_examples_of_training_are_no_split_to_measure():
  with pytest.raises(
    UserError, match="split train has no examples to measure: those of training are"
  ):
    next(Drawn(algorithmic.Copy()).evaluation("train", 8))


@pytest.mark.parametrize("form", ["decoder", "encoder"])
def test_a_symbol_that_a_task_does_not_have_is_named(form):
  class Few(algorithmic.Majority):
    symbols = 1

  with pytest.raises(
    UserError, match="the symbol 1, and symbols = 1 counts them from 0: make it 2"
  ):
    next(Drawn(Few(form=form)).batches(8, seed=0))


@pytest.mark.parametrize("symbols", [-1, 0.5])
def test_a_symbol_is_a_whole_number_from_0_on(symbols):
  class Odd(algorithmic.Majority):
    def draw(self, random, n):
      x, y = super().draw(random, n)
      return x, y + symbols - y.max()

  with pytest.raises(UserError, match="symbols from 0 on, as two arrays of integers"):
    next(Drawn(Odd()).batches(8, seed=0))
