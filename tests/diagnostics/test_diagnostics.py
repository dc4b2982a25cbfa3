"""Diagnostics: what is asked is what their names say, and exact match is that of greedy search."""

import collections
import functools
import itertools
import statistics

import jax
import kinds
import numpy as np
import order
import pytest
from flax import nnx

from posexp.diagnostics import algorithmic, states
from posexp.diagnostics.answering import BOS, EOS, FIRST, PAD, SEP
from posexp.diagnostics.diagnostic import Drawn
from posexp.diagnostics.echo import EchoData
from posexp.encodings import Encoding
from posexp.encodings.relative import RPR
from posexp.models.positions import Positions
from posexp.models.size import Size

TINY = Size(d_model=16, num_heads=2, d_ff=16, num_layers=1, dropout=0.0)
DRAWS = 40


def number(digits, base):
  """The number of digits, the least one first."""
  return sum(int(digit) * base**place for place, digit in enumerate(digits))


def is_sum(x, y, n):
  """Of two numbers, written with the least digit first."""
  return x[n] == 10 and number(x[:n], 10) + number(x[n + 1 :], 10) == number(y, 10)


def is_hinted_sum(x, y, n):
  """Each digit behind its hint: the same for one significance, and consecutive."""
  a, b = x[: 2 * n], x[2 * n + 1 :]
  hints = a[::2] == b[::2], np.diff(y[::2]) == 1, y[: 2 * n : 2] == a[::2]
  return np.concatenate(hints).all() and is_sum(
    np.array([*a[1::2], x[2 * n], *b[1::2]]), y[1::2], n
  )


def is_recalled(x, y, n):
  """The symbol behind the last one's other occurrence."""
  (place,) = np.flatnonzero(x[:8:2] == x[-1])
  return len(x) == 8 + n + 1 and y == x[2 * place + 1] and len(set(x[:8])) == 8


EVEN = [p for p in itertools.permutations(range(5)) if np.linalg.det(np.eye(5)[[*p]]) > 0]


def are_products(permutations, x, y):
  """Things that are moved by one permutation after another, as the last answers have it."""
  things, found = range(len(permutations[0])), []
  for each in x:
    things = [permutations[each][thing] for thing in things]
    found.append(tuple(things))
  return found[-len(y) :] == [permutations[each] for each in y]


def is_value_of_chain(x, y):
  """Of the last symbol, which was set to a variable or, in the end, to the value."""
  sources, rest = {}, iter(x[:-1])
  for each in rest:
    if each < 32:
      sources[each] = next(rest)
  source = x[-1]
  while source < 32:
    source = sources[source]
  return y == source


def is_recalled_anywhere(x, y, n):
  """The same with the fillers taken out, which are the symbols from 64 on."""
  return len(x) == n + 9 and is_recalled(x[x < 64], y, 0)


def are_recalled(x, y):
  """Both values of each of two keys, of three."""
  pairs = {key: [*values] for key, *values in x[:9].reshape(3, 3)}
  return [*y] == [*pairs[x[-2]], *pairs[x[-1]]] and len({*x[:9]}) == 9


CASES = {
  "majority": (
    algorithmic.Majority(),
    lambda x, y, n: y == (np.mean(x) > 0.5) and x.mean() != 0.5,
  ),
  "even_pairs": (algorithmic.EvenPairs(), lambda x, y, n: y == (np.diff(x) != 0).sum() % 2),
  "parity": (algorithmic.Parity(), lambda x, y, n: y == sum(x) % 2),
  "tally": (algorithmic.Tally(), lambda x, y, n: len(set(x)) == 1 and [*x] == [*y]),
  "copy": (algorithmic.Copy(), lambda x, y, n: [*x] == [*y]),
  "reverse": (algorithmic.Copy(reverse=True), lambda x, y, n: [*x] == [*y][::-1]),
  "distinct": (
    algorithmic.Copy(kinds=100, distinct=True),
    lambda x, y, n: [*x] == [*y] and len(set(x)) == n,
  ),
  "addition": (algorithmic.Addition(hints=False), is_sum),
  "printed": (
    algorithmic.Addition(reversed=False, hints=False),
    lambda x, y, n: is_sum(np.array([*x[n - 1 :: -1], 10, *x[:n:-1]]), y[::-1], n),
  ),
  "hints": (algorithmic.Addition(lengths=(8, 30)), is_hinted_sum),
  "recall": (algorithmic.Recall(), is_recalled),
  "recall anywhere": (algorithmic.Recall(anywhere=True), is_recalled_anywhere),
  "induction": (
    algorithmic.Induction(),
    lambda x, y, n: len(x) == n + 2 and [y] == [x[1:][x[:-1] == 16]] and x[-1] == 16,
  ),
  "missing_duplicate": (
    algorithmic.MissingDuplicate(),
    lambda x, y, n: [*np.where(x == 2, y, x)] == [*np.roll(np.where(x == 2, y, x), n)],
  ),
  "bucket_sort": (algorithmic.BucketSort(), lambda x, y, n: sorted(x) == [*y]),
  "recall of many": (
    algorithmic.Recall(pairs=3, values=2, queries=2),
    lambda x, y, n: are_recalled(x, y) and len(x) == 9 + n + 2,
  ),
  "flip_flop": (
    states.FlipFlop(),
    lambda x, y, n: y == x[1:-1:2][x[:-1:2] == 2][-1] and len(x) == 2 * n + 1 and x[0] == 2,
  ),
  "s3": (
    states.GroupWords(),
    lambda x, y, n: len(y) == n and are_products([*itertools.permutations(range(3))], x, y),
  ),
  "a5": (
    states.GroupWords(group="a5", form="decoder"),
    lambda x, y, n: len(y) == 1 and are_products(EVEN, x, y),
  ),
  "selective_copy": (
    states.SelectiveCopy(),
    lambda x, y, n: [*x[x < 8]] == [*y] and len(x) == n + 4,
  ),
  "most_frequent": (
    states.MostFrequent(),
    lambda x, y, n: statistics.multimode(x.tolist()) == [*y] and len(x) == n,
  ),
  "indirect_indexing": (
    states.IndirectIndexing(),
    lambda x, y, n: y == x[np.flatnonzero(x[:n] == x[n]) - (x[n + 1] - 127)] and n == len({*x[:n]}),
  ),
  "variable_tracking": (
    states.VariableTracking(chains=3, hops=2),
    lambda x, y, n: is_value_of_chain(x.tolist(), y) and len(x) == 18 + n + 1,
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_what_is_asked(name):
  task, holds = CASES[name]
  random = np.random.default_rng(1)
  answers = set()
  for n in random.integers(task.shortest, 31, DRAWS).tolist():
    x, y = task.draw(random, n)
    assert holds(x, y, n), (x, y)
    assert min(*x, *y) >= 0
    assert max(*x, *y) < task.symbols
    answers.add(tuple(y))
  assert len(answers) > 1


def best_guess(inputs, answer):
  """Return the exact match of the likeliest answer to each bag of equally likely inputs."""
  bags = {}
  for x in inputs:
    bags.setdefault(tuple(sorted(x)), []).append(answer(x))
  return sum(collections.Counter(bag).most_common(1)[0][1] for bag in bags.values())


def test_chance_is_that_of_the_best_guess_from_a_bag():
  words = [*itertools.product(range(6), repeat=4)]
  table = states.products_of("s3")
  right = best_guess(words, lambda x: functools.reduce(lambda p, q: table[q, p], x))
  task = states.GroupWords(form="decoder")
  assert task.chance(4) == pytest.approx(right / len(words), abs=0.05)
  assert states.GroupWords().chance(2) == pytest.approx(27 / 36, abs=0.04)  # half commute
  given = [x for x in itertools.product(range(4), repeat=3) if x[0] > 1]  # from 2 on they write
  tokens = [[t for each in x for t in (2 + (each > 1), each % 2)] for x in given]
  last = lambda t: [bit for what, bit in zip(t[::2], t[1::2], strict=True) if what == 3][-1]  # noqa: E731
  assert states.FlipFlop(ignore=0.5).chance(3) == pytest.approx(
    best_guess(tokens, last) / len(given)
  )
  items = [*itertools.product(range(3), repeat=4)]
  right = best_guess(items, lambda x: x)
  assert states.SelectiveCopy(kinds=3).chance(5) == pytest.approx(right / len(items))
  assert algorithmic.Copy(kinds=3).chance(4) == pytest.approx(right / len(items))
  distinct = algorithmic.Copy(distinct=True, kinds=99, longest=9, lengths=(3,))
  assert distinct.chance(3) == 1 / 6
  digits = [*itertools.product(range(3), repeat=4)]  # of two numbers, the least first
  right = best_guess(digits, lambda x: x[0] + x[2] + 3 * (x[1] + x[3]))
  assert algorithmic.Addition(base=3).chance(2) == pytest.approx(right / len(digits))
  assert [algorithmic.Addition().chance(n) for n in (1, 8)] == [1, 0]
  assert algorithmic.Tally().chance(5) == 1
  for n in range(1, 9):
    right = best_guess(itertools.product(range(2), repeat=n), lambda x: x[0] ^ x[-1])
    assert algorithmic.EvenPairs().chance(n) == pytest.approx(right / 2**n)
  # Where a marked symbol is asked for, it is that of the most frequent one.
  assert algorithmic.Induction().chance(1) == 1
  assert algorithmic.Induction().chance(2) == pytest.approx((1 + 1 / 16) / 2, abs=0.01)


def drawn(task, **options):
  return Drawn(task(longest=3, lengths=(3, 5, 9), examples=6, **options))


def test_what_is_shorter_than_in_training_was_not_trained_either():
  lengths = Drawn(algorithmic.Copy(shortest=3, longest=6, lengths=(2, 5, 9))).lengths
  assert (lengths["test"], lengths["beyond"]) == ((5,), (2, 9))


def test_all_tested_lengths_may_lie_beyond_training(home):
  options = ["task=majority", "task.longest=2", "task.lengths=[3]", "runs=far", *kinds.RUN]
  for ends in ("not learned: ", "finished already"):
    typed = order.command(*options)
    assert (typed.status, typed.err) == (0, "")
    assert ends in typed.out


def rows(task, **options):
  """Yields the tokens, the labels and the mask of each example beyond training."""
  for batch in drawn(task, **options).evaluation("beyond", 4):
    for row in np.flatnonzero(batch["weight"]):
      yield [batch[name][row] for name in ("tokens", "labels", "mask")]


def test_rows_are_input_and_answer_of_which_the_answer_counts():
  data = drawn(algorithmic.Copy)
  first = next(data.batches(4, seed=0, start=0))
  trained = zip(first["tokens"], first["labels"], first["mask"], strict=True)
  for tokens, labels, mask in [*trained, *rows(algorithmic.Copy)]:
    n = mask.sum() - 1
    x = tokens[1 : n + 1]
    assert [tokens[0], tokens[n + 1]] == [BOS, SEP]
    assert (x >= FIRST).all()
    assert [*labels[mask]] == [*x, EOS]
    assert [*np.flatnonzero(mask)] == [*range(n + 1, 2 * n + 2)]
  batches = [*data.evaluation("beyond", 4)]
  assert {batch["tokens"].shape for batch in batches} == {(4, 16), (4, 32)}
  assert all((batch["tokens"][batch["weight"] == 0] == PAD).all() for batch in batches)


def test_a_question_stands_behind_the_separator():
  for tokens, labels, mask in rows(algorithmic.Recall):
    (place,) = np.flatnonzero(tokens == SEP)
    assert [*np.flatnonzero(mask)] == [place + 1, place + 2]
    x = np.array([*tokens[1:place], tokens[place + 1]])
    value, end = labels[mask]
    assert is_recalled(x - FIRST, value - FIRST, len(x) - 9)
    assert end == EOS


def test_classifiers_read_the_input_alone():
  for tokens, label, mask in rows(algorithmic.EvenPairs, form="encoder"):
    x = tokens[mask]
    assert x[0] == BOS
    assert label == (x[1] != x[-1])


def test_a_tagger_has_an_answer_for_each_symbol():
  for tokens, labels, mask in rows(states.GroupWords):
    assert [*np.flatnonzero(mask)] == [*range(1, mask.sum() + 1)]
    x, y = tokens[mask] - FIRST, labels[mask] - FIRST
    assert are_products([*itertools.permutations(range(3))], x, y)
  data = drawn(states.GroupWords)
  # A decoder's answers, of the tags alone.
  found = {"nll": np.zeros((6, 8)), "right": np.arange(8) < np.array([[2, 3, 3, 3, 0, 3]]).T}
  lengths = data.splits["test"][0]
  assert lengths.tolist() == [3] * 6
  assert data.task.answers(data, "test", found)["exact"].tolist() == [
    False,
    *[True] * 3,
    False,
    True,
  ]


# Models


@functools.cache
def model(encoding=None, **options):
  """A decoder of copies, untrained, with weights so large that its answers differ."""
  task = algorithmic.Copy(longest=3, lengths=(3, 5, 9), examples=6)
  data = task.prepare(None)
  spec = data.model(encoding or Encoding(), TINY, Positions(**options))
  built = spec.build(nnx.Rngs(0))
  built.head.kernel[...] *= 8
  return built, data


logits = nnx.jit(lambda model, batch: model.reader.logits(model.hidden(batch, ())[0]))
predict = nnx.jit(lambda model, batch: model.predict(batch)[0])


def test_right_tokens_are_those_of_greedy_search_up_to_its_first_mistake():
  built, data = model(RPR(k=2))
  (batch,) = data.evaluation("test", 6)
  asked = batch["mask"].argmax(1)  # where the answer begins
  rows, tokens = np.arange(6), np.pad(batch["tokens"], [(0, 0), (0, 1)])
  tokens[np.arange(tokens.shape[1]) > asked[:, None]] = PAD
  for place in range(4):
    best = logits(built, batch | {"tokens": tokens[:, :-1]}).argmax(-1)
    tokens[rows, asked + place + 1] = best[rows, asked + place]
  # The text that is read has another token than that of greedy search, in each row elsewhere.
  wrong = rows % 4
  place = asked + wrong + 1
  tokens[rows, place] = np.where(tokens[rows, place] == FIRST, SEP, FIRST)
  mask = (np.arange(tokens.shape[1] - 1) >= asked[:, None]) & batch["mask"].any(1)[:, None]
  read = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "mask": mask}
  right = predict(built, batch | read)["right"]
  for row in rows:
    assert right[row, asked[row] : place[row] - 1].all()
    assert not right[row, place[row] - 1]


def test_random_positions_do_not_tell_the_answers_length():
  built, data = model(RPR(k=8), kind="randomized", reach=200, evaluation="spaced")
  (batch,) = data.evaluation("test", 6)
  wide = {
    name: np.pad(value, [(0, 0), (0, 16)]) if value.ndim > 1 else value
    for name, value in batch.items()
  }
  narrow = predict(built, batch)["nll"]
  np.testing.assert_allclose(predict(built, wide)["nll"][:, :8], narrow, atol=1e-5)


def test_positions_of_training_reach_what_is_tested():
  task = algorithmic.Tally(longest=6, lengths=(6, 12, 40), examples=4)
  drawn = task.prepare(None)
  train = next(drawn.batches(8, seed=0, start=0))
  assert set(train["slots"]) == {drawn.trained} == {2 + 2 * 6}
  for split, lengths in {"test": [6], "beyond": [12, 40]}.items():
    for batch in drawn.evaluation(split, 4):
      assert set(batch["slots"]) <= {2 + 2 * length for length in lengths}
  draw = Positions("randomized", 512).training
  last = [
    int(draw(np.arange(16)[None] < drawn.trained, lambda seed=seed: jax.random.key(seed))[0, 13])
    for seed in range(100)
  ]
  assert 0.9 * 512 < np.mean(last) < 0.96 * 512  # 14/15 of the reach
  assert max(last) > 500


# Echo


@pytest.mark.parametrize("back", [1, 3, 4, 9])
def test_echo_asks_for_the_symbol_some_steps_back(back):
  data = EchoData(symbols=5, back=back, segment=4)
  batches = list(itertools.islice(data.batches(3, seed=0), 6))
  stream = np.concatenate([batch["tokens"] for batch in batches], axis=1)
  labels = np.concatenate([batch["labels"] for batch in batches], axis=1)
  mask = np.concatenate([batch["mask"] for batch in batches], axis=1)
  np.testing.assert_array_equal(labels[:, back:], stream[:, :-back])
  np.testing.assert_array_equal(mask, np.broadcast_to(np.arange(24) >= back, mask.shape))
  assert [batch["fresh"].all() for batch in batches] == [True] + [False] * 5
  later = next(data.batches(3, seed=0, start=4))
  np.testing.assert_array_equal(later["tokens"], batches[4]["tokens"])


def test_the_ceiling_of_echo_without_a_memory():
  data = EchoData(16, 8, 32)
  inside = np.arange(32) >= 8  # what is asked for stands in the same segment
  masks = [batch["mask"] for batch in data.evaluation("test", 64)]
  right = np.concatenate([np.where(inside, 1, 1 / 16)[mask_row] for m in masks for mask_row in m])
  assert data.ceiling == pytest.approx(right.mean())
  assert EchoData(16, 32, 32).ceiling == pytest.approx(0.0625)
  parts = [*data.evaluation("test", 24)]  # a batch size changes nothing of what is measured
  tokens = {place: row for b in parts for place, row in zip(b["index"], b["tokens"], strict=True)}
  for batch in data.evaluation("test", 64):
    np.testing.assert_array_equal(batch["tokens"], [tokens[place] for place in batch["index"]])
