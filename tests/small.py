"""Small stacks with an encoding, and what they read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import UNDEFINED
from flax import nnx

from posexp.analysis import properties
from posexp.analysis.properties import VOCAB, Case
from posexp.encodings.bias import T5
from posexp.encodings.rngs import Rngs

B, L = 2, 6
SMALL = {"d_model": 32, "num_heads": 4, "d_ff": 32, "num_layers": 1, "dropout": 0.0}


def case_of(encoding, causal):
  """A model of one layer, or of two that share a table."""
  return Case(encoding, causal, layers=max(encoding.least_layers, 1 + isinstance(encoding, T5)))


def rngs():
  return Rngs(params=0, encoding=1)


def stack(encoding, causal=None, **options):
  """The stack of a case: an encoder, unless the encoding is for causal attention only."""
  if causal is None:
    causal = encoding.causal_only
  if UNDEFINED.get(encoding) is causal:
    pytest.skip("not defined there")
  return properties.stack(case_of(encoding, causal), **options)


def some_tokens(seed=0, rows=B):
  return jnp.asarray(np.random.default_rng(seed).integers(1, VOCAB, (rows, L)))


def leaks(model):
  """How far outputs are from those of texts alone: padded, packed, and as two hypotheses."""
  tokens = jnp.asarray(np.random.default_rng(0).integers(1, VOCAB, (2, 7)))
  mask = np.arange(7) >= np.array([[3], [3]])
  documents = jnp.asarray([[4] * 3 + [7] * 4, [1] * 3 + [0] * 4])
  graphdef, state = nnx.split(model)

  @jax.jit
  def whole(state):
    model = nnx.merge(graphdef, state)
    padded = model(tokens, mask, positions=jnp.arange(7)[None], padding_last=False)
    packed, _ = model.recur(tokens, model.empty_memory(2, 2), documents=documents)
    return model(tokens[:, 3:]), padded[:, 3:], packed[:, 3:]

  step = jax.jit(lambda state, *given, seen: nnx.merge(graphdef, state).step(*given, seen=seen))
  alone, *others = whole(state)
  yield from (np.abs(other - alone).max() for other in others)
  # Two hypotheses of each row take turns in the slots of one cache.
  cache, found = model.empty_cache(1, 8, jnp.arange(8)[None] // 2, rolling=False), []
  seen = np.zeros((1, 2, 8), bool)
  for t in range(4):
    seen[:, [0, 1], [2 * t, 2 * t + 1]] = True
    out, cache = step(state, tokens[:, 3 + t][None], cache, seen=jnp.asarray(seen))
    found.append(np.asarray(out[0]))
  yield np.abs(np.stack(found, 1) - alone).max()
