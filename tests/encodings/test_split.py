"""Kitaev and Klein's split into content and position, naively in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import slopes
from flax import nnx
from seed import some
from slopes import draw, float64
from small import SMALL, rngs

from posexp.analysis import properties
from posexp.encodings import Encoding, Span
from posexp.encodings.split import Split
from posexp.models.size import Size
from posexp.models.transformer import Stack

B, L, H, D, VOCAB = 2, 6, 2, 4, 11
F = H * D
TOKENS = np.random.default_rng(1).integers(0, VOCAB, (B, L))
POSITIONS = jnp.arange(L)[None]
WHOLE, CONTENT, POSITION = slice(None), slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize(
  ("encoding", "streams"),
  some(
    [
      (Encoding(), [WHOLE]),
      (Split(), [CONTENT, POSITION]),
      (Split(attention="content"), [CONTENT]),
      (Split(attention="position"), [POSITION]),
    ],
    2,
  ),
)
def test_attention_is_the_scaled_dot_product_of_its_streams(encoding, streams):
  def formula(p, q, k, i, j):
    logits = sum(np.einsum("bihd,bjhd->bhij", q[..., s], k[..., s]) for s in streams)
    return logits / q.shape[-1] ** 0.5

  oracle.check(encoding, formula, causal=False)


@pytest.mark.parametrize("attention", ["content", "position"])
def test_attention_ignores_what_it_does_not_attend_to(attention):
  size = Size(**SMALL | {"num_layers": 2})
  stack = properties.perturbed(Stack(VOCAB, Split(attention=attention), size, rngs=rngs()))
  run = jax.jit(stack.__call__)
  out, moved = (run(TOKENS, positions=at) for at in (POSITIONS, POSITIONS + 9))
  words = run((TOKENS + 1) % VOCAB, positions=POSITIONS)
  assert np.allclose(out[..., 1::2], words[..., 1::2]) == (attention == "position")
  assert np.allclose(out[..., 0::2], moved[..., 0::2]) == (attention == "content")


def test_position_only_attention():
  relation = Split(length=L, form="position_only").relation(H, D, causal=False, rngs=rngs())
  mask = np.arange(L) < np.array([[6], [4]])

  def function(rows, w_q, w_k, v):
    held = slopes.holding(relation, query_kernel=w_q, key_kernel=w_k)
    at = Span(POSITIONS, POSITIONS, jnp.asarray(mask)[:, None], shared=(rows, rows))
    return held.attend(None, jnp.zeros((B, L, H, 0)), v, at, lambda weights: weights)

  def naive(rows, w_q, w_k, v):
    q, k = (np.einsum("bif,fhd->bihd", rows, w) for w in (w_q, w_k))
    weights = np.exp(np.einsum("bihd,bjhd->bhij", q, k) / D**0.5) * mask[:, None, None]
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)

  maps = (draw(F, H, D, seed=seed) for seed in (1, 2))
  slopes.check(function, naive, draw(1, L, F), *maps, draw(B, L, H, D))


def test_position_only_attention_asks_the_embedding_s_own_table_in_every_layer():
  size = Size(d_model=F, num_heads=H, d_ff=8, num_layers=2)
  stack = Stack(VOCAB, Split(length=9, form="position_only"), size, rngs=rngs())
  assert stack.shared.vector is stack.embed.vector
  again = nnx.merge(*nnx.split(stack))
  assert again.shared.vector is again.embed.vector
  paths = properties.paths(stack)
  assert sum(path.endswith("/rows") for path in paths) == 1
  assert not any(path.endswith(("query/kernel", "attention/key/kernel")) for path in paths)
  here = stack.ready(Span(POSITIONS, POSITIONS, jnp.ones((1, L, L), bool)))
  for part in here.shared:
    assert np.array_equal(part[0], stack.embed.vector.rows[:L])


@pytest.mark.parametrize("form", ["concatenated", "added", "factored"])
def test_forms_of_the_embedding(form):
  embed = Split(length=L, form=form).embed(VOCAB, F, scale=3.0, rngs=rngs())
  words, rows = float64(embed.words.table), float64(embed.vector.rows)
  width = F if form == "added" else F // 2
  assert words.shape == (VOCAB, width)
  assert rows.shape == (L, width)
  assert rows.std() == pytest.approx(1, rel=0.3)
  w, p = np.broadcast_arrays(3 * words[TOKENS], rows)
  # The halves of a vector lie channel by channel.
  expected = w + p if form == "added" else slopes.interleaved(w + 1j * p)
  np.testing.assert_allclose(embed(TOKENS, POSITIONS), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  ("encoding", "parts"), [(Split(), 2), (Split(norms="joint"), 1), (Split(form="added"), 1)]
)
def test_norms_are_of_each_part_or_of_the_whole(encoding, parts):
  assert encoding.norm(F, rngs=rngs()).parts == parts
