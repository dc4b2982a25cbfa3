"""Small stacks with an encoding, and what they read."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import UNDEFINED

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
  alone = model(tokens[:, 3:])
  mask = np.arange(7) >= np.array([[3], [3]])
  padded = model(tokens, mask, positions=jnp.arange(7)[None], padding_last=False)[:, 3:]
  documents = jnp.asarray([[4] * 3 + [7] * 4, [1] * 3 + [0] * 4])
  packed, _ = model.recur(tokens, model.empty_memory(2, 2), documents=documents)
  yield from (np.abs(each - alone).max() for each in (padded, packed[:, 3:]))
  # Two hypotheses of each row take turns in the slots of one cache.
  cache, found = model.empty_cache(1, 8, jnp.arange(8)[None] // 2, rolling=False), []
  seen = np.zeros((1, 2, 8), bool)
  for t in range(4):
    seen[:, [0, 1], [2 * t, 2 * t + 1]] = True
    out, cache = model.step(tokens[:, 3 + t][None], cache, seen=jnp.asarray(seen))
    found.append(out[0])
  yield np.abs(jnp.stack(found, 1) - alone).max()
