"""What cuDNN is given is what it takes, and says as much as the mask of the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from seed import some

from posexp.encodings import Span
from posexp.encodings.base import lengths_or_mask
from posexp.kernels import cudnn

try:  # JAX offers what it asks of cuDNN's arguments to nobody without a GPU
  from jax._src.cudnn.fused_attention_stablehlo import (
    AttentionLayout,
    check_layout,
    combine_bias_and_mask,
  )
except ImportError:
  check_layout = None

B, H, D = 3, 2, 16


def padded(queries, keys, *, causal=False, own=False, batch=B):
  """The span of texts with padding behind them, of which the first has none."""
  key = jnp.arange(keys)[None]
  query = key if own else jnp.arange(keys - queries, keys)[None]
  mask = jnp.arange(keys) < jnp.asarray([keys, 1, keys // 2][:batch])[:, None, None]
  return Span(query, key, mask, causal, consecutive=True, self_attention=own, padding_last=True)


SPANS = {
  "encoder": padded(8, 8, own=True),
  "decoder": padded(8, 8, own=True, causal=True),
  "odd decoder": padded(7, 7, own=True, causal=True),
  "odd source": padded(5, 7),
  "one mask for all": padded(6, 7, batch=1),
  "memory": padded(3, 7, causal=True),
  "gaps": padded(7, 7, own=True).replace(padding_last=False),
  "a row for each query": padded(7, 7).replace(mask=jnp.ones((1, 7, 7), bool), padding_last=False),
}
TOLD = [name for name in SPANS if name not in ("memory", "gaps", "a row for each query")]


def drawn(span, bias):
  """q, k, v and, of as many texts and heads as are said, a bias."""
  queries, keys = span.query.shape[1], span.key.shape[1]
  draw = np.random.default_rng(0)
  shapes = [(B, queries, H, D - 8), (B, keys, H, D - 8), (B, keys, H, D)]
  shapes += [] if bias is None else [(*bias, queries, keys)]
  *arrays, last = (jnp.asarray(draw.normal(size=shape), jnp.bfloat16) for shape in shapes)
  return (*arrays, last, None) if bias is None else (*arrays, last)


@pytest.mark.skipif(check_layout is None, reason="this JAX checks cuDNN's arguments elsewhere")
@pytest.mark.parametrize("bias", [None, (1, H), (B, H)])
@pytest.mark.parametrize("name", some(SPANS, 4))
def test_cudnn_takes_what_it_is_given(name, bias):
  given = cudnn.arguments(*drawn(SPANS[name], bias), *lengths_or_mask(SPANS[name]))
  q, k, v, lengths = (given[name] for name in ("query", "key", "value", "key_value_seq_lengths"))
  added = combine_bias_and_mask(given["bias"], given["mask"], q.dtype)
  check_layout(q, k, v, added, lengths, lengths, None, None, None, None, AttentionLayout.BTNH)
  assert (q.shape[1] % 2, k.shape[1] % 2) == (0, 0)  # JAX refuses others in training
  assert not given["is_causal"] or q.shape[1] == k.shape[1]
  assert (given["mask"] is None) == (name in TOLD)
  if name in TOLD:  # a bias of one text stays that of one text
    assert bias is None or added.shape[:2] == bias


@pytest.mark.parametrize(
  ("name", "bias"), [(name, (None, (1, H))[number % 2]) for number, name in enumerate(SPANS)]
)
def test_it_is_the_attention_of_the_definition(name, bias):
  span = SPANS[name]
  q, k, v, bias = (None if x is None else x.astype(jnp.float32) for x in drawn(span, bias))

  @jax.jit
  def mine(q, k, v):
    attend = lambda *arrays: cudnn.attend(*arrays, bias, *lengths_or_mask(span))  # noqa: E731
    out, backward = jax.vjp(attend, q, k, v)
    return out, *backward(jnp.broadcast_to(jnp.arange(D, dtype=out.dtype), out.shape))

  found = mine(q, k, v)
  # The definition in float64, and its derivatives by the chain rule.
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  logits = np.einsum("bqhd,bkhd->bhqk", q, k) + (0 if bias is None else np.asarray(bias))
  weights = np.where(np.asarray(span.visible)[:, None], np.exp(logits), 0)
  weights /= weights.sum(-1, keepdims=True)
  given = np.broadcast_to(np.arange(D), (*q.shape[:-1], D))
  moved = np.einsum("bqhd,bkhd->bhqk", given, v)
  moved = weights * (moved - (weights * moved).sum(-1, keepdims=True))
  expected = (
    np.einsum("bhqk,bkhd->bqhd", weights, v),
    np.einsum("bhqk,bkhd->bqhd", moved, k),
    np.einsum("bhqk,bqhd->bkhd", moved, q),
    np.einsum("bhqk,bqhd->bkhd", weights, given),
  )
  for each, right in zip(found, expected, strict=True):
    np.testing.assert_allclose(each, right, rtol=1e-4, atol=1e-4)
