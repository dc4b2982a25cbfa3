"""Models that read a text in segments with a memory, and Transformer-XL as its authors have it.

`transformer_xl.npz` was written from the PyTorch code of
https://github.com/kimiyoung/transformer-xl at commit 44781ed, with PyTorch 2.13.0: small random
weights in float16, a text of 5 segments, and the losses of each case in nats.
"""

import dataclasses
from pathlib import Path

import agreement
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import CASES
from flax import nnx

from posexp.analysis import properties
from posexp.analysis.properties import Case
from posexp.encodings.relative import RPR, TransformerXL
from posexp.models import attention
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size

THEIRS = agreement.read(Path(__file__).with_name("transformer_xl.npz"))
CLOSE = 1e-5  # nats
T, M = 4, 10  # tokens of a segment, slots of the memory


# What these have, others have together, in blocks or in a test of gradients.
SLOW = (CASES[1], CASES[3], CASES[4])


@pytest.mark.parametrize(
  "case", [pytest.param(c, id=str(c), marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES]
)
def test_the_authors_weights_give_their_losses(case):
  expected = THEIRS.losses[THEIRS.cases.index(case)]
  np.testing.assert_allclose(agreement.losses(THEIRS, case), expected, rtol=0, atol=CLOSE)


def test_their_losses_are_there_and_differ_from_case_to_case():
  assert THEIRS.losses.shape == (len(CASES), 2, 20)
  for i, one in enumerate(THEIRS.losses):
    for other in THEIRS.losses[:i]:
      assert np.abs(one - other).max() > 0.1


def test_the_gradient_stops_where_theirs_does():
  case = THEIRS.cases[-1]
  assert case.memory > THEIRS.segment
  found = agreement.gradients(THEIRS, case)
  for path, expected in agreement.params(THEIRS.gradients, THEIRS.heads).items():
    np.testing.assert_allclose(found[path], expected, rtol=0, atol=CLOSE, err_msg=path)


def test_in_blocks_tokens_see_the_same_part_of_the_memory(monkeypatch):
  monkeypatch.setattr(attention, "ROWS", 3)
  case = next(case for case in CASES if case.same_length)
  expected = THEIRS.losses[THEIRS.cases.index(case)]
  found = agreement.losses(THEIRS, case, attention="blocked")
  np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


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
