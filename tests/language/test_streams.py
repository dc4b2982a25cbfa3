"""Streams: every token but the first is predicted once, in lanes that go on from step to step."""

import itertools

import numpy as np
import pytest

from posexp.language.streams import Stream
from posexp.language.vocabulary import END

SIZES = [30, 1, 7, 25, 12]  # of documents; 1 is an empty one
TOKENS = np.concatenate(
  [[END, *range(100 * n + 1, 100 * n + size)] for n, size in enumerate(SIZES)]
)
T, LANES = 4, 3


def an_epoch(stream, lanes=LANES, seed=0, epoch=0):
  steps = stream.steps(lanes)
  batches = stream.training(lanes, seed=seed, start=epoch * steps)
  return list(itertools.islice(batches, steps))


def targets(batches):
  """All (token, label) that count."""
  return sorted(
    pair
    for batch in batches
    for pair in zip(batch["tokens"][batch["mask"]], batch["labels"][batch["mask"]], strict=True)
  )


EVERY = sorted(itertools.pairwise(TOKENS))


@pytest.mark.parametrize("documents", ["stream", "mask", "reset"])
@pytest.mark.parametrize("lanes", [1, 3, 30])
def test_every_token_but_the_first_is_a_target_once(documents, lanes):
  stream = Stream(TOKENS, T, documents)
  for epoch in range(3):
    assert targets(an_epoch(stream, lanes, epoch=epoch)) == EVERY
  assert targets(stream.evaluation(lanes)) == EVERY
  found = np.concatenate([batch["index"] for batch in stream.evaluation(lanes)])
  assert sorted(found[found >= 0]) == list(range(stream.segments))


def test_a_lane_goes_on_where_it_was():
  for before, after in itertools.pairwise(an_epoch(Stream(TOKENS, T))):
    goes_on = after["mask"][:, 0] & ~after["fresh"]
    assert goes_on.any() or not after["mask"].any()
    ends = before["labels"][goes_on, -1]
    # Behind its last token the text begins anew.
    expected = np.where(ends == TOKENS[-1], TOKENS[0], ends)
    np.testing.assert_array_equal(after["tokens"][goes_on, 0], expected)
  assert all(
    batch["fresh"].all() == (step == 0) for step, batch in enumerate(an_epoch(Stream(TOKENS, T)))
  )


def test_epochs_and_seeds_cut_elsewhere_and_steps_are_a_function():
  stream = Stream(TOKENS, T)
  first = [an_epoch(stream, epoch=0, seed=seed)[0]["tokens"] for seed in range(4)]
  assert len({tokens.tobytes() for tokens in first}) > 1
  assert not np.array_equal(an_epoch(stream)[0]["tokens"], an_epoch(stream, epoch=1)[0]["tokens"])
  start = stream.steps(LANES) + 2
  later = next(stream.training(LANES, seed=0, start=start))
  for name, value in an_epoch(stream, epoch=1)[2].items():
    np.testing.assert_array_equal(later[name], value)


def test_documents_begin_segments_where_they_reset():
  stream = Stream(TOKENS, T, "reset")
  batches = an_epoch(stream)
  begins = np.concatenate([batch["tokens"][:, 0] == END for batch in batches])
  fresh = np.concatenate([batch["fresh"] for batch in batches])
  real = np.concatenate([batch["mask"][:, 0] for batch in batches])
  assert (fresh | ~begins | ~real).all()
  inside = [batch["tokens"][:, 1:][batch["mask"][:, 1:]] for batch in batches]
  assert END not in np.concatenate(inside)
  orders = [
    np.concatenate([batch["tokens"][:, 1] for batch in an_epoch(stream, 1, epoch=e)])
    for e in (0, 1)
  ]
  assert not np.array_equal(*orders)


def test_documents_are_numbered_where_they_are_masked():
  for batch in Stream(TOKENS, T, "mask").evaluation(LANES):
    inside = batch["mask"] & (batch["tokens"] != END)
    np.testing.assert_array_equal(batch["documents"][inside] - 1, batch["tokens"][inside] // 100)


def test_evaluation_may_end_early_and_keeps_lanes_long():
  stream = Stream(np.arange(1, 1026), T)
  assert targets(stream.evaluation(LANES, most=5)) == [(n, n + 1) for n in range(1, 21)]
  rows = [batch["weight"].sum() for batch in stream.evaluation(64)]
  assert max(rows) == 256 // 32


def test_totals_count_each_target_in_its_segment():
  stream, numbers = Stream(TOKENS, T, "reset"), np.random.default_rng(0).integers(9, size=500)
  found = stream.totals(numbers)
  batches = stream.evaluation(1)
  expected = [(numbers[batch["labels"]] * batch["mask"]).sum() for batch in batches]
  np.testing.assert_array_equal(found, expected)
