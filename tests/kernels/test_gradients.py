"""Written-out gradients against those that JAX derives of the same formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from posexp.kernels import diagonals, gradients, lookup
from posexp.models import cross_entropy

DRAW = np.random.default_rng(0)


def draw(*shape: int) -> jax.Array:
  return jnp.asarray(DRAW.normal(size=shape), jnp.float32)


def norm(x, scale, bias, parts):
  apart = x.reshape(*x.shape[:-1], -1, parts)
  apart = apart - apart.mean(-2, keepdims=True)
  apart = apart / jnp.sqrt(jnp.square(apart).mean(-2, keepdims=True) + 1e-6)
  return apart.reshape(x.shape) * scale + bias


VISIBLE = np.tril(np.ones((3, 7), bool), 2)[None, None] & (np.arange(7) < 6)
FUNCTIONS = {
  "times": (gradients.matmul, lambda x, w: x @ w, (2, 3, 6), (6, 4)),
  "plus, a vector": (gradients.add_bias, lambda x, b: x + b, (2, 3, 4), (4,)),
  "plus, for the batch": (gradients.add_bias, lambda x, b: x + b, (2, 5, 3, 4), (1, 5, 3, 4)),
  "plus, its own": (gradients.add_bias, lambda x, b: x + b, (2, 5, 3, 4), (2, 5, 3, 4)),
  "scores, one query for all": (
    gradients.scores,
    lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k),
    (1, 1, 5, 4),
    (2, 7, 5, 4),
  ),
  "mixed": (
    gradients.weighted_sum,
    lambda w, v: jnp.einsum("bhqk,bkhd->bqhd", w, v),
    (2, 5, 3, 7),
    (2, 7, 5, 4),
  ),
  "softmax": (
    lambda x: gradients.softmax(x, VISIBLE),
    lambda x: jax.nn.softmax(jnp.where(VISIBLE, x, -1e30)),
    (2, 5, 3, 7),
  ),
  **{
    f"softmax with sinks, {rows} rows": (
      lambda x, s: gradients.softmax(x, VISIBLE, s),
      lambda x, s: jax.nn.softmax(
        jnp.concatenate(
          [jnp.where(VISIBLE, x, -1e30), jnp.broadcast_to(s, (*x.shape[:3], 1))], axis=-1
        )
      )[..., :-1],
      (2, 5, 3, 7),
      (rows, 5, 3, 1),
    )
    for rows in (1, 2)
  },
  "wave": (
    lambda x: jnp.stack(gradients.wave(x)),
    lambda x: jnp.stack([jnp.cos(x), jnp.sin(x)]),
    (2, 3, 5),
  ),
  "norm of two": (
    lambda x, a, b: gradients.normalized(x, a, b, 2, 1e-6),
    lambda x, a, b: norm(x, a, b, 2),
    (2, 3, 8),
    (8,),
    (8,),
  ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_their_formula(name):
  function, formula, *shapes = FUNCTIONS[name]
  agree(function, formula, [draw(*shape) for shape in shapes])


def test_a_gradient_is_of_the_dtype_of_what_it_is_of():
  shapes = (
    jax.ShapeDtypeStruct((2, 5, 3, 4), jnp.bfloat16),
    jax.ShapeDtypeStruct((3, 4), jnp.float32),
  )
  slopes = jax.eval_shape(
    jax.grad(lambda *x: gradients.add_bias(*x).sum(), argnums=(0, 1)), *shapes
  )
  assert [slope.dtype for slope in slopes] == [shape.dtype for shape in shapes]


def test_functions_can_be_mapped():  # as seeds in one program are
  function, formula, *shapes = FUNCTIONS["times"]
  agree(jax.vmap(function), jax.vmap(formula), [draw(3, *shape) for shape in shapes])


def agree(function, formula, arrays):
  """Values and all gradients."""
  grad = draw(*jax.eval_shape(formula, *arrays).shape)

  def both(of, *arrays):
    value, back = jax.vjp(of, *arrays)
    return value, *back(grad)

  mine, theirs = jax.jit(lambda *arrays: [both(of, *arrays) for of in (function, formula)])(*arrays)
  for found, expected in zip(mine, theirs, strict=True):
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def test_what_is_not_visible_has_no_gradient():
  weights, back = jax.vjp(lambda x: gradients.softmax(x, VISIBLE), draw(2, 5, 3, 7))
  assert not np.where(VISIBLE, 0, back(draw(2, 5, 3, 7))[0]).any()
  assert not np.where(VISIBLE, 0, weights).any()


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (7, 3)])
def test_diagonals_are_rows_of_offsets(queries, keys):
  x, rows = draw(2, 3, queries, 2, 4), draw(3, queries + keys, 2, 4)
  offset = np.arange(keys) - np.arange(queries)[:, None] + queries - 1

  def formula(x, rows):
    return jnp.einsum("bnqhd,nqkhd->bhnqk", x, rows[:, offset])

  agree(diagonals.diagonals, formula, [x, rows])


@pytest.mark.parametrize(
  ("first", "consecutive"),  # where keys begin: with queries, or far off
  [(0, True), (-9, True), (9, True), (3, False)],
)
def test_values_by_offset_and_their_sums_are_transposes(consecutive, first):
  queries, keys, far = 4, 6, 2
  offset = (first + np.arange(keys) - np.arange(queries)[:, None])[None]
  if not consecutive:
    offset = np.stack([offset[0], offset[0, :, ::-1] * 2])
  one_hot = np.eye(2 * far + 1, dtype=np.float32)[np.clip(offset, -far, far) + far]
  one_hot, offset = np.broadcast_to(one_hot, (2, *one_hot.shape[1:])), jnp.asarray(offset)
  agree(
    lambda values: lookup.by_key(values, offset, consecutive),
    lambda values: jnp.einsum("bhqr,bqkr->bhqk", values, one_hot),
    [draw(2, 3, queries, 2 * far + 1)],
  )
  agree(
    lambda weights: lookup.by_offset(weights, offset, consecutive, far),
    lambda weights: jnp.einsum("bhqk,bqkr->bhqr", weights, one_hot),
    [draw(2, 3, queries, keys)],
  )


def test_sums_by_offset_of_more_weights_than_an_int32_counts(monkeypatch):
  long = 47_000
  weights = jax.ShapeDtypeStruct((1, 1, long, long), jnp.float32)
  offset = jax.ShapeDtypeStruct((1, long, long), jnp.int32)
  found = jax.eval_shape(lambda w, o: lookup.by_offset(w, o, True, 2), weights, offset)
  assert found.shape == (1, 1, long, 5)
  short = draw(2, 3, 4, 6), (np.arange(6) - np.arange(4)[:, None])[None]
  expected = lookup.by_offset(*short, True, 2)
  monkeypatch.setattr(lookup, "LARGEST", 23)
  np.testing.assert_allclose(lookup.by_offset(*short, True, 2), expected, atol=1e-6)


@pytest.mark.parametrize(
  ("at_once", "label_smoothing"), [(40, 0.1), (10**6, 0.0)], ids=["parts, smoothed", "one part"]
)
def test_likelihood_in_parts_is_that_of_all_logits(monkeypatch, at_once, label_smoothing):
  monkeypatch.setattr(cross_entropy, "AT_ONCE", at_once)
  batch, length, width, words = 2, 5, 3, 7
  labels = jnp.asarray(DRAW.integers(0, words, (batch, length)))
  weight = jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0.5]])

  def formula(hidden, kernel, bias):
    log_p = jax.nn.log_softmax(hidden @ kernel + bias)
    target = (1 - label_smoothing) * jax.nn.one_hot(labels, words) + label_smoothing / words
    return (-(target * log_p).sum(-1) * weight).sum()

  def found(hidden, kernel, bias):
    reader = cross_entropy.Reader(kernel, bias)
    return cross_entropy.summed(hidden, reader, labels, weight, label_smoothing)

  arrays = draw(batch, length, width), draw(width, words), draw(words)
  agree(lambda *arrays: found(*arrays).loss, formula, arrays)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def slope(hidden):
    sums = found(hidden, *arrays[1:])
    return sums.nll, sums

  of_nll, sums = slope(arrays[0])
  hidden, kernel, bias = (np.asarray(x, np.float64) for x in arrays)
  log_p = scipy.special.log_softmax(hidden @ kernel + bias, axis=-1)
  nll = -np.take_along_axis(log_p, np.asarray(labels)[..., None], -1)[..., 0]
  np.testing.assert_allclose(sums.nll, (nll * weight).sum(), rtol=1e-5)
  np.testing.assert_allclose(sums.right, ((log_p.argmax(-1) == labels) * weight).sum())
  assert not of_nll.any()


def test_of_equally_likely_words_the_first_is_the_likeliest():
  logits = jnp.asarray(DRAW.integers(0, 3, (50, 4, 6)).astype(np.float32))
  labels = jnp.asarray(DRAW.integers(0, 6, (50, 4)))
  right = cross_entropy.scores(logits, labels)[1]
  np.testing.assert_array_equal(right, np.argmax(logits, -1) == labels)
  ties = (logits == logits.max(-1, keepdims=True)).sum(-1) > 1
  assert (right & ties).any()
  assert (~right & ties).any()
