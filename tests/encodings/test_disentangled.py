"""DeBERTa and TUPE are their papers' formulas, in float64."""

import dataclasses

import jax
import numpy as np
import oracle
import pytest
from seed import some
from small import rngs
from test_bias import bucket

from posexp.analysis.properties import compiled
from posexp.encodings.disentangled import TUPE, DeBERTa, log_buckets
from posexp.encodings.relative import TransformerXL
from posexp.models.size import Size
from posexp.models.transformer import Stack


def normalized(x, scale, bias, epsilon):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * scale + bias


def tame(path, x):
  """Kernels of the size that they have in training."""
  return x / x.shape[0] ** 0.5 if "kernel" in path else x


@pytest.mark.parametrize(
  ("encoding", "causal"),
  some(
    [
      (DeBERTa(k=3), False),
      (DeBERTa(k=100), True),
      (DeBERTa(k=3, biases=True, mirrored=False), True),
      (DeBERTa(k=3, position_to_content=False), False),
      (DeBERTa(k=3, content_to_position=False), False),
      (DeBERTa(k=9, log_buckets=6, normalized=True), False),
    ],
    2,
  ),
  ids=str,
)
def test_deberta(encoding, causal):
  half = encoding.log_buckets or encoding.k

  def delta(distance):
    if encoding.log_buckets:
      far = log_buckets(half, encoding.k)[min(abs(distance), encoding.k)]
      distance = int(far) * (1 if distance > 0 else -1)
    return 0 if distance <= -half else 2 * half - 1 if distance >= half else distance + half

  def formula(p, q, k, i, j):
    heads, width = q.shape[2:]
    logits = np.einsum("bihd,bjhd->bhij", q, k)
    table = p.get("shared/rows")
    if encoding.normalized:
      table = normalized(table, p["shared/norm/scale"], p["shared/norm/bias"], 1e-7)

    def projected(name):
      rows = table @ p[f"relation/{name}/kernel"] + p.get(f"relation/{name}/bias", 0)
      return rows.reshape(-1, heads, width)

    for a, b in np.ndindex(logits.shape[2:]):
      distance = int(i[a] - j[b])
      if encoding.content_to_position:
        row = projected("key")[delta(distance)]
        logits[..., a, b] += np.einsum("bhd,hd->bh", q[:, a], row)
      if encoding.position_to_content:
        row = projected("query")[delta(-distance if encoding.mirrored else distance)]
        logits[..., a, b] += np.einsum("bhd,hd->bh", k[:, b], row)
    terms = 1 + encoding.content_to_position + encoding.position_to_content
    return logits / (terms * width) ** 0.5

  oracle.check(encoding, formula, causal=causal, values=tame, tolerance=2e-5)


@pytest.mark.parametrize("encoding", [DeBERTa(), TransformerXL()], ids=str)
def test_an_impossible_offset_has_no_score(encoding):
  parts = {"causal": False, "rngs": rngs()}
  relation, shared = (make(2, 4, **parts) for make in (encoding.relation, encoding.shared))
  at = oracle.span(causal=False, spaced=True).replace(max_position=None)
  ones = np.ones((1, oracle.K, 2, 4), np.float32)
  scores = jax.jit(lambda at: relation.score(ones, ones, at.replace(shared=shared(at))))(at)
  offset = np.asarray(at.key[0]) - np.asarray(at.query[0])[:, None]
  assert (np.isfinite(scores[0, 0]) == (np.abs(offset) < oracle.K)).all()


@pytest.mark.parametrize(
  ("encoding", "causal"),
  some([(TUPE(40), True), (TUPE(40, True), False), (TUPE(40, True, 8, 16), False)], 2),
  ids=str,
)
def test_tupe(encoding, causal):
  def formula(p, q, k, i, j):
    heads, width = q.shape[2:]
    rows = normalized(p["shared/table/rows"], p["shared/norm/scale"], p["shared/norm/bias"], 1e-5)

    def projected(name):
      projected = rows @ p[f"shared/{name}/kernel"] + p[f"shared/{name}/bias"]
      return projected.reshape(-1, heads, width)

    untied = encoding.untie_cls
    position = np.einsum("ihd,jhd->hij", projected("query"), projected("key")) / (2 * width) ** 0.5
    logits = np.einsum("bihd,bjhd->bhij", q, k) / (2 * width) ** 0.5
    for a, b in np.ndindex(logits.shape[2:]):
      x, y = int(i[a]) + untied, int(j[b]) + untied
      row = bucket(y - x, 8, 16, False)
      if untied and x == 1:
        x = y = 0
        row = 4
      elif untied and y == 1:
        x = y = 1
        row = 8
      logits[..., a, b] += position[:, x, y]
      if encoding.buckets:
        logits[..., a, b] += p["shared/biases"][row]
    return logits

  oracle.check(encoding, formula, causal=causal, values=tame, tolerance=2e-5)


def test_shared_maps_of_keys_serve_as_many_heads_of_queries():
  size = Size(d_model=16, num_heads=4, d_ff=8, num_layers=1, dropout=0.0)
  narrow = Stack(23, DeBERTa(share_maps=True), dataclasses.replace(size, head_dim=3), rngs=rngs())
  assert narrow(np.ones((1, 5), int)).shape == (1, 5, 16)
  few, every = (
    Stack(23, DeBERTa(k=2, share_maps=True), each, rngs=rngs())
    for each in (dataclasses.replace(size, num_kv_heads=2), size)
  )
  layer = few.blocks[0].attention
  for name in ("key", "value"):
    kernel = getattr(layer, name).kernel[...]
    by_head = np.repeat(np.reshape(kernel, (16, 2, 4)), 2, axis=1)
    getattr(every.blocks[0].attention, name).kernel[...] = by_head.reshape(16, 16)
  tokens = np.arange(1, 7)[None]
  found, expected = (compiled(each, "__call__", tokens) for each in (few, every))
  np.testing.assert_allclose(found, expected, atol=1e-5)
