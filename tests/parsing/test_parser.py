"""The parser, held against the authors' of 2018 and against the best and the sum of all trees."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from definitions import trees
from flax import nnx

from posexp.analysis import probe
from posexp.encodings import all_encodings
from posexp.encodings.rngs import Rngs
from posexp.models.size import Size
from posexp.parsing import chart
from posexp.parsing.encoded import UNKNOWN
from posexp.parsing.model import Parser, ParserSpec, uniform

SIZE = Size(d_model=8, num_heads=2, d_ff=8, num_layers=1, dropout=0.0)
SPEC = ParserSpec(20, 4, all_encodings()["sinusoidal"](), SIZE, hidden=6)
LENGTHS = (5, 1, 3)
LONGEST = max(LENGTHS)
UNSEEN = -1  # the label of a gold phrase that training has not met


def build(spec: ParserSpec) -> Parser:
  return spec.build(Rngs(params=1, encoding=2))


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
  mask = np.arange(LONGEST + 2) < np.array(LENGTHS)[:, None] + 2
  gold = np.zeros((3, LONGEST, LONGEST), np.int16)
  gold[0, 0, 4], gold[0, 1, 2], gold[0, 2, 2], gold[0, 1, 3] = 1, 2, 3, UNSEEN
  gold[1, 0, 0], gold[2, 0, 2], gold[2, 0, 0] = 2, 3, 1
  tokens = np.random.default_rng(0).integers(4, 20, (*mask.shape, 2)) * mask[..., None]
  given = {"tokens": tokens, "mask": mask, "rare": np.zeros(mask.shape, np.float32)}
  return given | {"gold": gold, "weight": np.ones(3, np.float32)}


@pytest.fixture(scope="module")
def parser() -> Parser:
  model, draw = build(dataclasses.replace(SPEC, loss="crf")), np.random.default_rng(1)
  for linear in (model.scorer.first, model.scorer.second):
    for param in (linear.kernel, linear.bias):
      param[...] = draw.normal(size=param.shape).astype(np.float32)
  return model


@pytest.fixture(scope="module")
def predict(parser):
  """What the parser predicts of a batch."""
  graphdef, state = nnx.split(parser)
  compiled = jax.jit(lambda batch: nnx.merge(graphdef, state).predict(batch)[0])
  return lambda batch: jax.device_get(compiled(batch))


@pytest.fixture(scope="module")
def loss(parser):
  """Of a batch, in training: its loss, the weight of this and the gradients."""
  graphdef, params, rest = nnx.split(parser, nnx.Param, ...)

  def of(params, batch):
    model, rngs = nnx.merge(graphdef, params, rest), Rngs(dropout=3, positions=4)
    values, weight, _ = model.loss(batch, (), label_smoothing=0.0, rngs=rngs)
    return values["loss"], weight

  compiled = jax.jit(lambda batch: jax.value_and_grad(of, has_aux=True)(params, batch))
  return lambda batch: jax.device_get(compiled(batch))


def of_definition(model: Parser, projected: jax.Array, gold: np.ndarray, n: int) -> jax.Array:
  """The loss of one sentence: of every tree, each span with all of its labels."""
  scores = model.scorer(projected[None] - projected[:, None])

  @functools.cache
  def of(i: int, j: int) -> jax.Array:
    return jax.nn.logsumexp(scores[i, j, 1:] if (i, j) == (0, n) else scores[i, j])

  every = jnp.stack([sum(of(*span) for span in tree) for tree in trees(0, n)])
  right = sum(scores[i, j + 1, gold[i, j]] for i, j in np.argwhere(gold > 0))
  return jax.nn.logsumexp(every) - right


# The authors' parser, below, has the other loss.
def test_the_loss_and_its_gradient_are_those_of_the_definition(parser, batch):
  posts = jax.random.normal(jax.random.key(0), (3, LONGEST + 1, SPEC.hidden))
  gold, lengths = jnp.asarray(batch["gold"], int), jnp.array(LENGTHS)
  rows = [*zip(batch["gold"].astype(int), LENGTHS, strict=True)]

  @jax.jit
  def both(posts):
    found = parser.losses(posts, gold, lengths)
    expected = [of_definition(parser, posts[i], *row) for i, row in enumerate(rows)]
    return found, jnp.stack(expected)

  (found, expected), back = jax.vjp(both, posts)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
  np.testing.assert_allclose(*(back(each)[0] for each in ((ones, zeros), (zeros, ones))), atol=1e-4)


def test_it_predicts_the_best_tree_with_its_best_labels(parser, predict, batch):
  spans = np.asarray(predict(batch)["spans"])

  @nnx.jit
  def every(parser, batch):
    projected = parser.scorer.project(parser(batch["tokens"], batch["mask"]))
    return parser.scorer(projected[:, None] - projected[:, :, None])

  for n, row, scores in zip(LENGTHS, range(3), np.array(every(parser, batch)), strict=True):
    scores[0, n, 0] = -np.inf  # the whole sentence has a label
    best = max(trees(0, n), key=lambda tree: sum(scores[span].max() for span in tree))
    in_order = sorted(best, key=lambda span: (span[0], -span[1]))
    assert spans[row, : 2 * n - 1].tolist() == [
      [*span, int(scores[span].argmax())] for span in in_order
    ]
    assert not spans[row, 2 * n - 1 :].any()


def test_trees_that_are_equally_good_are_one_tree():
  spans = chart.best_trees(jnp.zeros((5, 1, 5)), jnp.array([5]))[0]
  assert {tuple(span) for span in spans.tolist()} in trees(0, 5)


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


def test_the_loss_is_the_mean_over_sentences_that_count(predict, loss, batch):
  (mean, weight), _ = loss(batch | {"weight": np.float32([1, 0, 1])})
  assert weight == 2
  assert mean == pytest.approx(float(predict(batch)["loss"][::2].mean()), rel=1e-5)


def test_padding_changes_nothing(predict, loss, batch):
  def wider(x: np.ndarray) -> np.ndarray:
    columns = {1: 0, 2: 1, 3: 1 if x.shape[-1] == 2 else 2}[x.ndim]
    return np.pad(x, [(0, 0)] + [(0, 2)] * columns + [(0, 0)] * (x.ndim - 1 - columns))

  more, same = (
    {**each, "rare": np.float32(0.5) * each["mask"]} for each in (jax.tree.map(wider, batch), batch)
  )
  np.testing.assert_allclose(predict(more)["loss"], predict(same)["loss"], rtol=1e-5)
  spans = predict(same)["spans"]
  np.testing.assert_array_equal(predict(more)["spans"][:, : spans.shape[1]], spans)
  assert loss(more)[0][0] == pytest.approx(float(loss(same)[0][0]), rel=1e-5)


def test_rare_words_become_unknown_in_training_alone(predict, loss, batch):
  words = np.array(batch["tokens"])
  words[:, 1:, 0] = UNKNOWN
  certain = batch["mask"].astype(np.float32)
  certain[:, 0] = 0
  assert loss(batch | {"rare": certain})[0][0] == loss(batch | {"tokens": words})[0][0]
  np.testing.assert_array_equal(predict(batch | {"rare": certain})["loss"], predict(batch)["loss"])
  drawn, few = (np.asarray(uniform(jax.random.key(1), *each)) for each in ((50, 40), (3, 2)))
  assert drawn.mean() == pytest.approx(0.5, abs=0.03)
  np.testing.assert_array_equal(few, drawn[:3, :2])


def test_gradients_reach_every_parameter_but_one(loss, batch):
  """A bias of the encoder's last norm is the same at both fenceposts of a span."""
  still = {
    path[1:]
    for path, leaf in nnx.to_flat_state(loss(batch)[1])
    if path[1:] != ("embed", "words", "table") and not np.abs(leaf[...]).max() > 1e-6
  }
  assert still == {("norm", "bias")}


@pytest.mark.parametrize("encoding", ["sinusoidal", "split", "complex"])
def test_a_token_may_be_several_words(encoding, batch):
  spec = dataclasses.replace(SPEC, encoding=all_encodings()[encoding]())

  @jax.jit
  def vectors(tokens):
    embed, positions = build(spec).stack.embed, jnp.arange(LONGEST + 2)[None]
    given = tokens, tokens[..., :1], tokens[..., 1:], tokens[..., 0]
    found = [embed(each, positions) for each in given]
    table = embed.amplitude if encoding == "complex" else embed.words.table
    table[...] = jnp.zeros_like(table[...])
    return *found, embed(tokens, positions)

  both, word, tag, alone, place = map(np.asarray, vectors(batch["tokens"]))
  np.testing.assert_allclose(word, alone, atol=1e-6)
  np.testing.assert_allclose(both, word + tag - place, atol=1e-5)  # the place counts once


@pytest.mark.parametrize("encoding", ["none", "sinusoidal"])
def test_positions_are_seen_apart_from_letters(encoding):
  def vectors(**letters):
    spec = dataclasses.replace(SPEC, encoding=all_encodings()[encoding](), **letters)
    return probe.position_vectors(build(spec).stack.embed, 6)

  found, of_words = vectors(characters=4), vectors()
  assert found.shape == of_words.shape
  assert (np.ptp(found, axis=0).max() > 0) == (encoding != "none")
  np.testing.assert_allclose(np.diff(found, axis=0), np.diff(of_words, axis=0), atol=1e-5)


def test_a_word_is_its_letters_in_their_order():
  spec = dataclasses.replace(SPEC, encoding=all_encodings()["split"](), characters=4)
  with pytest.raises(ValueError, match="letters make the vector of a word, and the encoding has"):
    build(dataclasses.replace(spec, encoding=all_encodings()["complex"]()))
  stack = build(spec).stack
  words = jnp.array([[[5, 6, 7, 0], [7, 6, 5, 0], [5, 6, 7, 0]]])
  mask = jnp.ones((1, 3), bool)
  call = nnx.jit(type(stack).__call__)
  found = call(stack, words, mask)
  assert np.abs(found[0, 0] - found[0, 1]).max() > 1e-3
  padded = jnp.pad(words, ((0, 0), (0, 0), (0, 3)))
  np.testing.assert_allclose(call(stack, padded, mask), found, atol=1e-6)


def test_scores_and_trees_are_float32_in_a_bfloat16_encoder(batch):
  size = dataclasses.replace(SIZE, dtype="bfloat16")
  model = build(dataclasses.replace(SPEC, size=size))
  found, _ = jax.eval_shape(lambda batch: model.predict(batch), batch)
  assert found["loss"].dtype == jnp.float32
  assert found["spans"].dtype == jnp.int32


def authors_norm(scale: np.ndarray, shift: np.ndarray):
  """The layer normalization of the code of 2018."""

  def norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    deviation = jnp.sqrt((x * x).sum(-1, keepdims=True) / (x.shape[-1] - 1))
    return x / (deviation + 1e-3) * scale + shift

  return norm


def test_it_parses_and_learns_as_the_authors_parser_does():
  """Five sentences from fenceposts on, by https://github.com/nikitakit/self-attentive-parser.

  The tag `acl2018` with random weights, in float64: trees, losses and gradients.
  """
  with np.load(Path(__file__).with_name("parser.npz")) as file:
    theirs = {name: jnp.array(file[name]) for name in file.files}
  size = dataclasses.replace(SIZE, d_model=16)
  model = build(dataclasses.replace(SPEC, num_labels=9, size=size, hidden=10))
  for number, linear in enumerate((model.scorer.first, model.scorer.second), start=1):
    linear.kernel[...], linear.bias[...] = (
      theirs[f"{each}_{number}"] for each in ("kernel", "bias")
    )
  model.scorer.norm = authors_norm(theirs["scale"], theirs["shift"])
  gold, lengths = (theirs[name].astype(int) for name in ("gold", "lengths"))
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  @jax.jit
  def found(params):
    def total(params):
      model = nnx.merge(graphdef, params, rest)
      projected = model.scorer.project(theirs["fenceposts"])
      losses = model.losses(projected, gold, lengths)
      return losses.sum(), (losses, model.parse(projected, lengths))

    return jax.grad(total, has_aux=True)(params)

  gradient, (losses, parsed) = found(params)
  np.testing.assert_allclose(losses, theirs["loss"], atol=1e-4)
  for number, linear in enumerate(("first", "second"), start=1):
    of_kernel = gradient["scorer"][linear]["kernel"][...]
    np.testing.assert_allclose(of_kernel, theirs[f"of_kernel_{number}"], atol=1e-4)
  for mine, other in zip(parsed.tolist(), theirs["parsed"].tolist(), strict=True):
    # Trees that differ in spans without labels alone are equally good.
    assert {tuple(each) for each in mine if each[2] > 0} == {
      tuple(each) for each in other if each[2] > 0
    }
