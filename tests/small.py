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
