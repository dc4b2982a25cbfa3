"""The language model: its memory, what counts and what it sees; Transformer-XL as its authors'."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import some

from posexp.analysis import properties
from posexp.encodings.additive import Sinusoidal
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.models import attention
from posexp.models.attention import since_start
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size

B, T, V = 2, 6, 11
SIZE = Size(d_model=16, num_heads=2, d_ff=32, num_layers=2, dropout=0.0)


@functools.cache
def model(memory=0, encoding=None, **options):
  size = dataclasses.replace(SIZE, memory=memory)
  spec = LanguageModelSpec(V, encoding or TransformerXL(), size, **options)
  return spec.build(Rngs(params=0, encoding=1))


def text(length, seed=0):
  return np.random.default_rng(seed).integers(1, V, (B, length + 1))


def batch(tokens, **more):
  shape = tokens[:, 1:].shape
  given = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "mask": np.ones(shape, bool)}
  given |= {"weight": np.ones(len(tokens), np.float32), "fresh": np.zeros(len(tokens), bool)}
  return {name: jnp.asarray(value) for name, value in (given | more).items()}


@nnx.jit
def predict(model, batch, carry=()):
  return model.predict(batch, carry)


@nnx.jit
def loss(model, batch, rngs, carry=()):
  return model.loss(batch, carry, label_smoothing=0.0, rngs=rngs)


def segments(tokens, length=T, **more):
  """The batches of a text, one segment of every row after the other."""
  for start in range(0, tokens.shape[1] - 1, length):
    cut = {name: each[:, start : start + length] for name, each in more.items()}
    yield batch(tokens[:, start : start + length + 1], **cut)


def in_segments(model, batches):
  """nll [B,L] of a text, read segment by segment."""
  carry, found = model.initial_carry(B), []
  for each in batches:
    now, carry = predict(model, each, carry)
    found.append(now["nll"])
  return np.concatenate(found, axis=1)


def test_rows_that_begin_afresh_forget():
  now = model(2 * T)
  _, carry = predict(now, batch(text(T)), now.initial_carry(B))
  tokens = text(T, seed=1)
  fresh = batch(tokens, fresh=np.array([True, False]))
  found, _ = predict(now, fresh, carry)
  kept, _ = predict(now, batch(tokens), carry)
  new, _ = predict(now, batch(tokens), now.initial_carry(B))
  np.testing.assert_array_equal(found["nll"][0], new["nll"][0])
  np.testing.assert_array_equal(found["nll"][1], kept["nll"][1])
  assert np.abs(found["nll"][1] - new["nll"][1]).max() > 1e-4


def test_masked_documents_see_themselves_alone():
  tokens = text(2 * T)
  documents = np.broadcast_to(np.arange(2 * T) >= T - 2, (B, 2 * T)).astype(int) + 4
  other = tokens.copy()
  other[:, : T - 2] = text(T, seed=1)[:, : T - 2]
  now = model(2 * T)
  found = [in_segments(now, segments(each, documents=documents)) for each in (tokens, other)]
  np.testing.assert_allclose(found[0][:, T - 2 :], found[1][:, T - 2 :], atol=1e-6)
  assert np.abs(found[0] - found[1])[:, : T - 2].max() > 1e-3


def test_packed_documents_have_positions_of_their_own():
  documents = jnp.asarray([[3, 3, 4, 4, 4, 9]])
  assert since_start(documents).tolist() == [[0, 1, 0, 1, 2, 0]]
  now, tokens = model(encoding=Sinusoidal()), text(T)
  documents = np.broadcast_to(np.arange(T) >= 2, (B, T)).astype(int)
  packed, _ = predict(now, batch(tokens, documents=documents))
  alone, _ = predict(now, batch(tokens[:, 2:]))
  np.testing.assert_allclose(packed["nll"][:, 2:], alone["nll"], atol=1e-5)


def test_half_a_segment_is_scored_in_training_alone():
  tokens = text(T)
  half, full = model(scored="half"), model()
  values, weight, _ = loss(half, batch(tokens), nnx.Rngs(0))
  each, _ = predict(full, batch(tokens))
  assert weight == B * T / 2
  np.testing.assert_allclose(values["nll"], each["nll"][:, T // 2 :].mean(), rtol=1e-5)
  scored, _ = predict(half, batch(tokens))
  np.testing.assert_array_equal(scored["nll"], each["nll"])


def test_random_positions_put_the_memory_before_the_segment():
  tokens = text(T)

  def of(seed, memory=T):
    now = model(memory, RPR(k=2), positions=Positions("randomized", reach=64))
    values, *_ = loss(now, batch(tokens), nnx.Rngs(positions=seed), now.initial_carry(B))
    return values["loss"]

  assert of(0) != of(1)
  with pytest.raises(ValueError, match=r"reach=64 positions, but texts of 70 tokens"):
    of(0, memory=64)


# Written from the PyTorch code of https://github.com/kimiyoung/transformer-xl at commit 44781ed,
# with PyTorch 2.13.0: small random weights in float16, a text of 5 segments, the losses of each
# case in nats, and the gradients of the last segment's mean loss in the last case. Weights and
# gradients are named by posexp's paths, and matrices are [in, out].
THEIRS = dict(np.load(Path(__file__).with_name("transformer_xl.npz")))
CASES = json.loads(str(THEIRS["cases"]))  # options of the size and of the encoding
TEXT = jnp.asarray(THEIRS["text"], jnp.int32)  # [B,L+1]
SEGMENT = int(THEIRS["segment"])
THEIR_SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 2, "dropout": 0.0}
THEIR_SIZE |= {"norm_epsilon": 1e-5}
CLOSE = 1e-5  # nats


def theirs(case, **options):
  """posexp's model of a case, with the authors' weights.

  Their pre-norm has no norm after the last layer, and here it is taken away.
  """
  size = Size(**THEIR_SIZE | case["size"] | options)
  encoding = TransformerXL(**case["encoding"])
  model = LanguageModelSpec(13, encoding, size).build(nnx.Rngs(0))
  if size.norm == "pre":
    model.stack.norm = None
  for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    value = THEIRS["/".join(["weights", *map(str, path)])]
    assert param[...].shape == value.shape, path
    param[...] = jnp.asarray(value, jnp.float32)
  return model


def close_to_theirs(case, **options):
  found = in_segments(theirs(case, **options), segments(TEXT, SEGMENT))
  expected = THEIRS["losses"][CASES.index(case)]
  np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("case", some(CASES, 1), ids=str)
def test_the_authors_weights_give_their_losses(case):
  close_to_theirs(case)


def test_the_gradient_stops_where_theirs_does():
  model = theirs(CASES[-1])
  graphdef, values, rest = nnx.split(model, nnx.Param, ...)

  def loss(values, batch, carry):
    model = nnx.merge(graphdef, values, rest)
    found, _, carry = model.loss(batch, carry, label_smoothing=0.0, rngs=nnx.Rngs(0))
    return found["loss"], carry

  carry = model.initial_carry(B)
  assert CASES[-1]["size"]["memory"] > SEGMENT
  step = jax.jit(jax.grad(loss, has_aux=True))
  for batch in segments(TEXT, SEGMENT):
    slopes, carry = step(values, batch, carry)
  found = properties.paths(slopes)
  # Theirs are of one table, which is ours twice.
  both = found["stack/embed/table"] + found["head/kernel"].T
  found |= {"stack/embed/table": both, "head/kernel": both.T}
  for path, slope in found.items():
    expected = THEIRS[f"gradients/{path}"]
    np.testing.assert_allclose(slope, expected, rtol=0, atol=CLOSE, err_msg=path)


def test_in_blocks_tokens_see_the_same_part_of_the_memory(monkeypatch):
  monkeypatch.setattr(attention, "ROWS", 3)
  close_to_theirs(CASES[3], attention="blocked")  # of the same length for all
