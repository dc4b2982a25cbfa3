"""Models that read a text in segments with a memory, and Transformer-XL as its authors have it.

`transformer_xl.npz` was written from the PyTorch code of
https://github.com/kimiyoung/transformer-xl at commit 44781ed, with PyTorch 2.13.0: small random
weights in float16, a text of 5 segments, the losses of each case in nats, and the gradients of the
last segment's mean loss in the last case. Weights and gradients are named by posexp's paths, and
matrices are [in, out].
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posexp.analysis import properties
from posexp.analysis.properties import Case
from posexp.encodings.relative import RPR, TransformerXL
from posexp.models import attention
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size

THEIRS = dict(np.load(Path(__file__).with_name("transformer_xl.npz")))
CASES = json.loads(str(THEIRS["cases"]))  # options of the size and of the encoding
TEXT = jnp.asarray(THEIRS["text"], jnp.int32)  # [B,L+1]
SEGMENT = int(THEIRS["segment"])
THEIR_SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 2, "dropout": 0.0}
THEIR_SIZE |= {"norm_epsilon": 1e-5}
CLOSE = 1e-5  # nats
T, M = 4, 10  # tokens of a segment, slots of the memory


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


def segments():
  """The batches, one segment of every row after the other."""
  rows = len(TEXT)
  for start in range(0, TEXT.shape[1] - 1, SEGMENT):
    tokens, labels = (each[:, start : start + SEGMENT] for each in (TEXT[:, :-1], TEXT[:, 1:]))
    whole = {"mask": jnp.ones((rows, SEGMENT), bool), "weight": jnp.ones(rows)}
    yield {"tokens": tokens, "labels": labels, "fresh": jnp.full(rows, start == 0), **whole}


def close_to_theirs(case, **options):
  model, found = theirs(case, **options), []
  graphdef, state = nnx.split(model)
  predict = jax.jit(lambda batch, carry: nnx.merge(graphdef, state).predict(batch, carry))
  carry = model.initial_carry(len(TEXT))
  for batch in segments():
    scores, carry = predict(batch, carry)
    found.append(scores["nll"])
  expected = THEIRS["losses"][CASES.index(case)]
  np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=0, atol=CLOSE)


# What these have, others have together, in blocks or in a test of gradients.
SLOW = (1, 3, 4)


@pytest.mark.parametrize(
  "case",
  [
    pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (number in SLOW))
    for number, case in enumerate(CASES)
  ],
)
def test_the_authors_weights_give_their_losses(case):
  close_to_theirs(case)


def test_the_gradient_stops_where_theirs_does():
  model = theirs(CASES[-1])
  graphdef, values, rest = nnx.split(model, nnx.Param, ...)

  def loss(values, batch, carry):
    model = nnx.merge(graphdef, values, rest)
    found, _, carry = model.loss(batch, carry, label_smoothing=0.0, rngs=nnx.Rngs(0))
    return found["loss"], carry

  carry = model.initial_carry(len(TEXT))
  assert CASES[-1]["size"]["memory"] > SEGMENT
  step = jax.jit(jax.grad(loss, has_aux=True))
  for batch in segments():
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


def test_evaluation_may_have_another_memory_length_and_clamp():
  size = Size(d_model=8, num_heads=2, d_ff=8, num_layers=1, memory=T)
  spec = LanguageModelSpec(11, TransformerXL(), size)
  other = dataclasses.replace(
    spec,
    encoding=dataclasses.replace(spec.encoding, clamp=3),
    size=dataclasses.replace(size, memory=M, same_length=True),
  )
  trained, evaluated = (
    nnx.eval_shape(lambda each=each: nnx.state(each.build(nnx.Rngs(0)), nnx.Param))
    for each in (spec, other)
  )
  assert jax.tree.map(jnp.shape, trained) == jax.tree.map(jnp.shape, evaluated)


def test_keys_and_values_of_a_memory_are_learned_from():
  """In one layer the memory is embeddings: all but these have the gradient of the whole text."""
  case = Case(RPR(k=2), causal=True, length=3 * T, layers=1)
  model, tokens = properties.stack(case), properties.tokens_of(case)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)
  _, memory = jax.jit(model.recur)(tokens[:, : 2 * T], model.empty_memory(len(tokens), M))
  weights = jnp.cos(jnp.arange(case.d_model))

  def of_memory(params):
    output, _ = nnx.merge(graphdef, params, rest).recur(tokens[:, 2 * T :], memory)
    return (output * weights).sum()

  def of_whole(params):
    return (nnx.merge(graphdef, params, rest)(tokens)[:, 2 * T :] * weights).sum()

  found, expected = (
    properties.paths(jax.jit(jax.grad(each))(params)) for each in (of_memory, of_whole)
  )
  assert not np.allclose(found.pop("embed/table"), expected.pop("embed/table"))
  for path, slope in expected.items():
    np.testing.assert_allclose(found[path], slope, rtol=1e-4, atol=1e-4, err_msg=path)
