"""Charts, held against all trees, one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from definitions import trees

from posexp.parsing import chart

LENGTHS = (6, 1, 4, 2, 5)
SIZE = 7  # one more than the longest sentence has


@pytest.fixture(scope="module")
def squares() -> np.ndarray:
  """The scores of the words i to j; those with j < i or beyond a sentence mean nothing."""
  drawn = np.random.default_rng(0).normal(scale=2, size=(len(LENGTHS), SIZE, SIZE))
  real = np.arange(SIZE) < np.array(LENGTHS)[:, None]
  return np.where(real[:, :, None] & real[:, None], drawn, 1e6)


def best(scores, lengths):
  """The score of each best tree, and its spans."""
  spans = chart.best_trees(scores, lengths)
  i, j = spans[..., 0], spans[..., 1]
  at = scores[jnp.maximum(j - i - 1, 0), jnp.arange(len(spans))[:, None], i]
  return jnp.where(j > i, at, 0).sum(1), spans


def score(square: np.ndarray, tree: frozenset[tuple[int, int]]) -> float:
  return sum(square[i, j - 1] for i, j in tree)


def test_the_best_tree_is_the_best_of_all_and_in_preorder(squares):
  def total(squares):
    scores, spans = best(chart.by_width(squares), jnp.array(LENGTHS))
    return scores.sum(), (scores, spans)

  gradient, found = jax.jit(jax.grad(total, has_aux=True))(jnp.array(squares, jnp.float32))
  each = zip(squares, LENGTHS, *map(np.asarray, (*found, gradient)), strict=True)
  for square, n, value, rows, slope in each:
    most = max(trees(0, n), key=lambda tree: score(square, tree))
    in_order = sorted(most, key=lambda span: (span[0], -span[1]))  # then nothing
    assert rows.tolist() == [*map(list, in_order), *[[0, 0]] * (2 * (SIZE - n))]
    assert value == pytest.approx(score(square, most), abs=1e-4)
    indicator = np.zeros_like(square)
    for i, j in most:
      indicator[i, j - 1] = 1
    np.testing.assert_array_equal(slope, indicator)


def test_the_partition_is_the_sum_over_all_trees(squares):
  def total(squares):
    logs = chart.log_partition(chart.by_width(squares), jnp.array(LENGTHS))
    return logs.sum(), logs

  marginals, logs = jax.jit(jax.grad(total, has_aux=True))(jnp.array(squares, jnp.float32))
  for square, n, log, marginal in zip(squares, LENGTHS, logs, marginals, strict=True):
    weights = np.exp([score(square, tree) for tree in trees(0, n)])
    assert log == pytest.approx(np.log(weights.sum()), abs=1e-4)
    expected = np.zeros_like(square)
    for tree, weight in zip(trees(0, n), weights / weights.sum(), strict=True):
      for i, j in tree:
        expected[i, j - 1] += weight
    np.testing.assert_allclose(marginal, expected, atol=1e-5)


def test_trees_that_are_equally_good_are_one_tree():
  score, spans = best(jnp.zeros((5, 1, 5)), jnp.array([5]))
  assert score == 0
  assert {tuple(span) for span in spans[0].tolist()} in trees(0, 5)


@pytest.mark.parametrize("size", [1, 4])
def test_charts_are_made_of_the_difference_of_every_two_fenceposts(size):
  draw = np.random.default_rng(0)
  posts, square = draw.normal(size=(2, size + 1, 3)), draw.integers(0, 9, (2, size, size))

  def cubed(difference, said):
    return (difference**3).sum(-1) + said

  found = chart.of_differences(cubed, jnp.array(posts, jnp.float32), jnp.array(square))
  for row in range(2):
    for i in range(size):
      for j in range(i + 1, size + 1):
        expected = ((posts[row, j] - posts[row, i]) ** 3).sum() + square[row, i, j - 1]
        assert found[j - i - 1, row, i] == pytest.approx(expected, rel=1e-4)
