"""Positions that are random or shifted: what they are, and that every encoding takes them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from seed import drawn
from small import rngs

from posexp.analysis.probe import perturbed
from posexp.analysis.properties import compiled, decoded
from posexp.encodings import ENCODINGS
from posexp.encodings.additive import Learned
from posexp.encodings.profiles import Inkling
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.models.classifier import ClassifierSpec
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions, spaced
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.training.devices import mesh_for
from posexp.training.optimizer import Training
from posexp.training.step import keys, program

B, L, REACH, VOCAB = 3, 6, 40, 23
SIZE = Size(d_model=32, num_heads=4, d_ff=32, num_layers=1, dropout=0.0)
MASK = np.arange(L) < np.array([[3], [6], [1]])
TOKENS = np.random.default_rng(0).integers(1, VOCAB, (B, L))
RANDOMIZED = Positions("randomized", REACH, "drawn")
SHIFTED = Positions("shifted", REACH)

# Gaps between positions are held for every encoding by tests/analysis/test_conformance.py.
SOME = ("learned", "transformer_xl")
OTHERS = drawn(sorted({*ENCODINGS} - {*SOME}), 1)
TWO = TOKENS[:2], MASK[:2]


def model(encoding, positions, **options):
  spec = ClassifierSpec(VOCAB, 2, encoding, SIZE, positions=positions, **options)
  return spec.build(Rngs(params=0, encoding=1))


def key(seed):
  return lambda: jax.random.key(seed)


def samples(positions):
  """What is drawn for training from 400 seeds."""
  draw = jax.vmap(lambda seed: positions.training(MASK, key(seed)))
  return np.asarray(jax.jit(draw)(np.arange(400)))


def test_randomized_positions_are_a_sorted_sample_of_the_reach():
  found = samples(RANDOMIZED)
  assert found.shape == (400, B, L)
  for row, count in enumerate((3, 6, 1)):
    real = found[:, row, :count]
    assert (np.diff(real) > 0).all()  # sorted, none twice
    assert real.min() == 0
    assert real.max() == REACH - 1
    # Each position is as likely as another: 400 · count samples of 40.
    counts = np.bincount(real.ravel(), minlength=REACH)
    assert abs(counts - 10 * count).max() < 6 * (10 * count) ** 0.5
  assert found.max() < REACH  # padding stands somewhere, too


def test_shifted_positions_are_consecutive_from_a_random_offset():
  found = samples(SHIFTED)
  assert found.shape == (400, 1, L)
  assert (np.diff(found) == 1).all()
  assert set(found[:, 0, 0]) == set(range(REACH - L + 1))


def test_spaced_positions_cover_the_reach():
  found = np.asarray(spaced(MASK, REACH))
  assert found[0, :3].tolist() == [0, 13, 26]
  assert found[1].tolist() == [0, 6, 13, 20, 26, 33]
  assert found[2, 0] == 0
  assert found.max() < REACH
  far = np.asarray(spaced(jnp.ones((1, 3), bool), 2**31 - 1))
  assert far.tolist() == [[0, (2**31 - 1) // 3, 2 * (2**31 - 1) // 3]]


def test_positions_in_evaluation_are_always_the_same_and_do_not_depend_on_padding():
  for positions in (RANDOMIZED, Positions("randomized", REACH, "spaced")):
    found = np.asarray(positions.evaluating(MASK))
    assert np.array_equal(found, positions.evaluating(MASK))
    wider = np.asarray(positions.evaluating(np.pad(MASK, ((0, 0), (0, 5)))))
    for row, count in enumerate((3, 6, 1)):
      assert np.array_equal(found[row, :count], wider[row, :count])
  assert SHIFTED.evaluating(MASK) is None
  assert Positions().evaluating(MASK) is Positions().training(MASK, None) is None
  assert Positions("randomized", REACH, "consecutive").evaluating(MASK) is None


@pytest.mark.parametrize(
  ("positions", "alone", "with_nine"),
  [
    (Positions(), None, 9),
    (Positions("randomized", 5, "drawn"), 5, 5),
    (Positions("randomized", 50, "spaced"), 50, 9),
    (Positions("randomized", 5, "consecutive"), None, 9),
    (Positions("shifted", 5), None, 9),
  ],
)
def test_how_many_tokens_can_be_read(positions, alone, with_nine):
  assert positions.limit(None) == alone
  assert positions.limit(9) == with_nine


@pytest.mark.parametrize(
  ("name", "positions"),
  [
    *(
      pytest.param(name, RANDOMIZED, marks=[pytest.mark.slow] * (name not in (*SOME, *OTHERS)))
      for name in ENCODINGS
    ),
    *(pytest.param(name, SHIFTED, marks=[pytest.mark.slow] * (name != "learned")) for name in SOME),
  ],
  ids=lambda value: getattr(value, "kind", value),
)
def test_every_encoding_takes_random_positions(name, positions):
  encoding = ENCODINGS[name]()
  if encoding.causal_only:
    pytest.skip("not defined in an encoder")
  random = model(encoding, positions)
  evaluated = random(*TWO)
  assert np.isfinite(evaluated).all()
  if positions is SHIFTED:
    np.testing.assert_allclose(evaluated, model(encoding, Positions())(*TWO), atol=2e-5)
  elif name in SOME:
    padded = compiled(random, "__call__", *(np.pad(each, ((0, 0), (0, 2))) for each in TWO))
    np.testing.assert_allclose(padded, evaluated, atol=2e-5)
  one, other = (np.asarray(random(*TWO, rngs=Rngs(positions=seed))) for seed in (0, 1))
  assert np.isfinite(one).all()
  blind = name in ("none", "fox") or (encoding.relative and positions is SHIFTED)
  assert np.allclose(one, other, atol=2e-5) == blind


def test_transformer_xl_knows_every_distance_within_its_reach_and_none_beyond():
  build = functools.partial(Stack, VOCAB, TransformerXL(), SIZE)
  positions = jnp.array([[0, 5, 9, 20, 30, 39]])
  for reach, known in ((REACH, True), (None, False)):
    stack = build(max_position=reach, rngs=Rngs(params=0, encoding=1))
    assert np.isfinite(compiled(stack, "__call__", TOKENS, positions=positions)).all() == known


def test_training_draws_other_positions_in_every_step_from_the_seed_alone():
  spec = ClassifierSpec(VOCAB, 2, Learned(REACH), SIZE, False, RANDOMIZED)
  run = program(spec, Training(learning_rate=1e-12), 8, mesh_for(B))  # nothing else changes
  batch = {"tokens": TOKENS, "mask": MASK, "labels": np.array([0, 1, 0])}
  batch["weight"] = np.ones(B, np.float32)
  losses = []
  for _ in range(2):
    state = run.init(0)
    for _ in range(4):
      state = run.update(run.clear(state), batch, keys(0)["dropout"])
      losses.append(float(state.window.sums["loss"]))
  assert losses[:4] == losses[4:]
  assert len({*losses}) == 4


LONGEST, REACHED = 4, 4096  # tokens of the longest example of training, and the reach


@pytest.mark.parametrize(
  ("kind", "width"), [("classifier", LONGEST), ("segments", 64), ("diagnostic", 64)]
)
def test_a_row_of_training_has_positions_over_the_whole_reach(kind, width, monkeypatch):
  positions = Positions("randomized", REACHED, "consecutive")
  real = np.arange(width) < LONGEST
  tokens = jnp.where(real, 1, 0)[None]
  seen = []

  def watched(self, tokens, memory, *, positions, **options):
    seen.append(positions)
    return jnp.zeros((*tokens.shape, 32)), None

  def drawn(seed):
    seen.clear()
    rngs = Rngs(positions=seed, dropout=0)
    if kind == "classifier":
      return positions.training(jnp.asarray(real)[None], rngs.positions)
    batch = {"tokens": tokens[:, :LONGEST] if kind == "segments" else tokens}
    if kind == "diagnostic":
      batch |= {"slots": jnp.array([LONGEST]), "mask": real[None]}
    built.hidden(batch, (), rngs=rngs)
    return seen[-1]

  monkeypatch.setattr(Stack, "recur", watched)
  built = LanguageModelSpec(VOCAB, RPR(), SIZE, positions).build(Rngs(params=0, encoding=1))
  found = np.array([drawn(seed)[0][:LONGEST] for seed in range(60)])
  assert (np.diff(found, axis=1) > 0).all()
  mean = REACHED * np.arange(1, LONGEST + 1) / (LONGEST + 1)
  # The order statistics of a uniform sample, within four standard errors.
  np.testing.assert_allclose(found.mean(0), mean, atol=4 * 0.2 * REACHED / 60**0.5)


@pytest.mark.parametrize("encoding", [TransformerXL(), Inkling()], ids=str)
def test_a_cache_may_be_longer_than_the_positions_of_training(encoding):
  stack = Stack(VOCAB, encoding, SIZE, causal=True, max_position=4, rngs=rngs())
  stack, tokens = perturbed(stack), jnp.arange(1, 9)[None]
  whole = compiled(stack, "__call__", tokens)
  np.testing.assert_allclose(decoded(stack, tokens), whole, atol=1e-5)


def test_token_types_are_read_where_padding_goes_beyond_the_positions():
  size = dataclasses.replace(SIZE, token_types=2)
  stack = perturbed(Stack(VOCAB, Learned(length=4), size, rngs=rngs()))
  tokens, types = jnp.arange(1, 7)[None], jnp.array([[0, 0, 1, 1, 0, 0]])
  alone = compiled(stack, "__call__", tokens[:, :4], types=types[:, :4])
  padded = compiled(stack, "__call__", tokens, jnp.arange(6)[None] < 4, types=types)
  np.testing.assert_allclose(padded[:, :4], alone, atol=1e-5)
