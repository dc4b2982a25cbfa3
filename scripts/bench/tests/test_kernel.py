"""The kernel of `fused_rpr` equals its definition, forms nothing of queries × keys, and lowers."""

import functools
import math
import re

import fused_rpr
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import on_eight_devices
from seed import SEED, some

from posexp.kernels.target import Target

B, H, BLOCK = 2, 2, 16


@pytest.fixture
def small(monkeypatch):
  """Blocks so small that short texts have several: far to the left, near and far to the right."""
  monkeypatch.setattr(fused_rpr, "BLOCK", BLOCK)


def definition(q, k, v, keys, values, mask, first, *, causal, asked=None):
  """Shaw et al. 2018, equations 3 and 4, with a one-hot vector for each clipped offset, in float64.

  If gradients of the output are `asked`, so are those of all arrays, by the chain rule.
  """
  arrays = (q, k, v, keys, values)
  q, k, v, keys, values = (x if x is None else np.asarray(x, np.float64) for x in arrays)
  offset = int(first) + np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None]
  visible = np.asarray(mask)[:, None, None] & ((offset <= 0) | (not causal))
  logits = np.einsum("bqhd,bkhd->bhqk", q, k)

  def one_hot(table):
    far = table.shape[-2] // 2
    return np.eye(2 * far + 1)[np.clip(offset, -far, far) + far]

  def of_heads(table):
    return np.broadcast_to(table, (H, *table.shape[-2:]))

  if keys is not None:
    key_rows = np.einsum("hrd,qkr->hqkd", of_heads(keys), one_hot(keys))
    logits += np.einsum("bqhd,hqkd->bhqk", q, key_rows)
  weights = np.exp(np.where(visible, logits - logits.max(-1, keepdims=True), -np.inf))
  weights /= weights.sum(-1, keepdims=True)
  out = np.einsum("bhqk,bkhd->bqhd", weights, v)
  if values is not None:
    value_rows = np.einsum("hrd,qkr->hqkd", of_heads(values), one_hot(values))
    out += np.einsum("bhqk,hqkd->bqhd", weights, value_rows)
  if asked is None:
    return out

  asked = np.asarray(asked, np.float64)
  slope = np.einsum("bqhd,bkhd->bhqk", asked, v)
  if values is not None:
    slope += np.einsum("bqhd,hqkd->bhqk", asked, value_rows)
  slope = weights * (slope - (weights * slope).sum(-1, keepdims=True))
  slopes = [np.einsum("bhqk,bkhd->bqhd", slope, k), np.einsum("bhqk,bqhd->bkhd", slope, q)]
  slopes.append(np.einsum("bhqk,bqhd->bkhd", weights, asked))
  if keys is not None:
    slopes[0] += np.einsum("bhqk,hqkd->bqhd", slope, key_rows)
  for table, share, of in ((keys, slope, q), (values, weights, asked)):
    if table is None:
      slopes.append(None)
    else:
      rows = np.einsum("bhqk,bqhd,qkr->hrd", share, of, one_hot(table), optimize=True)
      slopes.append(rows if table.ndim == 3 else rows.sum(0))
  return [out, *slopes]


def drawn(seed, queries, keys, far, width, *, causal, per_head=False):
  """Random q, k, v, vectors and gradient of the output, and a mask with gaps."""
  draw = np.random.default_rng(seed)
  table = (*[H] * per_head, 2 * far + 1, width)
  shapes = [*((B, n, H, width) for n in (queries, keys, keys)), table, table]
  *arrays, asked = (
    jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in (*shapes, shapes[0])
  )
  mask = draw.random((B, keys)) < 0.7
  mask[:, 0] = True
  first = draw.integers(-keys, 1 if causal else queries)
  return arrays, asked, (jnp.asarray(mask), jnp.asarray(first, jnp.int32))


def sloped(attend, arrays, asked, others, causal):
  """The output and its gradients, of what is there."""

  def loss(arrays):
    out = attend(*arrays, *others, causal=causal)
    return (out * asked).sum(), out

  grads, out = jax.grad(loss, has_aux=True)(arrays)
  return [out, *grads]


def interpreted(*arrays, causal):
  return fused_rpr.attend(*arrays, causal=causal, target=Target("cpu"))


compiled = jax.jit(interpreted, static_argnames="causal")


@functools.partial(jax.jit, static_argnames="causal")
def found(arrays, asked, others, causal):
  return sloped(interpreted, arrays, asked, others, causal)


CASES = {
  # queries, keys, f, width, what is different; `first` and the mask alone make no other program
  "square": (70, 70, 3, 8, {"first": 0}),
  "square, keys far ahead": (70, 70, 3, 8, {"first": 90}),
  "square, causal": (70, 70, 3, 8, {"first": 0, "causal": True}),
  "square, keys far behind, causal": (70, 70, 3, 8, {"first": -90, "causal": True}),
  "a table per head, causal": (50, 75, 7, 24, {"first": -25, "per_head": True, "causal": True}),
  "keys alone": (40, 66, 1, 8, {"values": None, "first": -10}),
  "values alone, causal": (60, 60, 1, 8, {"keys": None, "causal": True, "first": 0}),
  "whole blocks, vectors for all offsets": (32, 48, 80, 16, {"first": 5}),
  "one query, causal": (1, 40, 5, 8, {"first": -39, "causal": True}),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
  "name", [*some(CASES, 1), "random", *(pytest.param(n, marks=pytest.mark.slow) for n in range(10))]
)
def test_the_kernel_gives_what_the_definition_gives_and_so_do_its_gradients(name):
  if name in CASES:
    seed = list(CASES).index(name)
    queries, keys, far, width, other = CASES[name]
  else:
    seed = SEED if name == "random" else name
    print(f"drawn from seed {seed}")
    queries, keys, far = (int(n) for n in np.random.default_rng(seed).integers(1, (90, 90, 12)))
    width, other = 8, {"causal": seed % 2 == 0}
  causal, per_head = other.get("causal", False), other.get("per_head", False)
  arrays, asked, (mask, first) = drawn(
    seed, queries, keys, far, width, causal=causal, per_head=per_head
  )
  first = jnp.asarray(other.get("first", first), jnp.int32)
  arrays[3:] = (other.get(name, x) for name, x in zip(("keys", "values"), arrays[3:], strict=True))
  mine = found(arrays, asked, (mask, first), causal)
  expected = definition(*arrays, mask, first, causal=causal, asked=asked)
  for each, whole in zip(mine, expected, strict=True):
    if whole is not None:
      assert np.isfinite(whole).all()
      # Gradients of vectors that every key shares are float32 sums in which all terms cancel.
      np.testing.assert_allclose(each, whole, rtol=1e-5, atol=2e-5 * max(1, np.abs(whole).max()))


@pytest.mark.usefixtures("small")
def test_blocks_that_are_not_near_share_a_clipped_offset():
  count, before, after = 20, 3, 5
  base = np.arange(-50, 400)[:, None, None]
  _, (start, stop), _ = fused_rpr.near(base, count, before, after)
  start, stop = np.asarray(start)[..., 0], np.asarray(stop)[..., 0]
  offset = np.arange(BLOCK * count) - np.arange(BLOCK)[:, None] - base
  offset = offset.reshape(len(base), BLOCK, count, BLOCK)
  left, right = (offset <= -before).all((1, 3)), (offset >= after).all((1, 3))
  np.testing.assert_array_equal(np.arange(count) < start, left)
  np.testing.assert_array_equal(np.arange(count) >= stop, right)


@pytest.mark.usefixtures("small")
def test_bfloat16_stays_near_float32():
  arrays, _, others = drawn(0, 40, 40, 3, 16, causal=False)
  arrays = [x / 2 for x in arrays]
  narrow = compiled(*(x.astype(jnp.bfloat16) for x in arrays), *others, causal=False)
  assert narrow.dtype == jnp.bfloat16
  whole = definition(*arrays, *others, causal=False)
  np.testing.assert_allclose(narrow.astype(jnp.float32), whole, atol=0.05)


@pytest.mark.usefixtures("small")
def test_the_kernel_can_be_mapped():
  arrays, _, others = drawn(0, 20, 20, 3, 8, causal=False)
  arrays = [jnp.stack([x, x[..., ::-1] / 2]) for x in arrays]
  mapped = jax.vmap(lambda arrays: compiled(*arrays, *others, causal=False))(arrays)
  for number, each in enumerate(mapped):
    expected = definition(*(x[number] for x in arrays), *others, causal=False)
    np.testing.assert_allclose(each, expected, atol=1e-5, rtol=1e-5)


EIGHT = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sys.path[:0] = [sys.argv[1], "scripts"]
from test_kernel import definition, drawn, fused_rpr, sloped
from posexp.kernels.target import Target

fused_rpr.BLOCK = 16
arrays, asked, (mask, first) = drawn(0, 20, 20, 3, 8, causal=False)
rows = lambda x: np.concatenate([x[:1] * n for n in range(1, 9)]) / np.float32(8)
q, k, v, asked = map(rows, (*arrays[:3], asked))
mask = np.repeat(mask[:1], 8, axis=0)

def attend(*inputs, causal):
  return fused_rpr.attend(*inputs, causal=causal, target=Target("cpu", mesh))

def both(q, k, v, mask, asked):
  return sloped(attend, [q, k, v, *arrays[3:]], asked, (mask, first), False)

mesh = Mesh(np.array(jax.devices()), ("data",))
placed = jax.device_put((q, k, v, mask, asked), NamedSharding(mesh, PartitionSpec("data")))
program = jax.jit(both).lower(*placed).compile()
text = program.as_text()
assert "all-reduce" in text  # of the gradients of the vectors
assert "all-gather" not in text and "all-to-all" not in text
whole = definition(q, k, v, *arrays[3:], mask, first, causal=False, asked=asked)
for mine, whole in zip(program(*placed), whole, strict=True):
  np.testing.assert_allclose(mine, whole, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
def test_each_device_attends_to_its_own_texts():
  on_eight_devices(EIGHT)


def gradients(length, platform, dtype=jnp.float32):
  """The function that gives them, and what it takes."""
  q = jax.ShapeDtypeStruct((1, length, 1, 16), dtype)
  table = jax.ShapeDtypeStruct((9, 16), jnp.float32)
  mask, first = jax.ShapeDtypeStruct((1, length), bool), jax.ShapeDtypeStruct((), jnp.int32)

  def of(arrays, mask, first):
    def loss(arrays):
      out = fused_rpr.attend(*arrays, mask, first, causal=False, target=Target(platform))
      return out.astype(jnp.float32).sum()

    return jax.grad(loss)(arrays)

  return jax.jit(of), ((q, q, q, table, table), mask, first)


def test_nothing_as_long_as_queries_times_keys_is_formed():
  length = 1024
  function, shapes = gradients(length, "cpu")
  found = re.findall(r"\b[a-z]+\d*\[([\d,]+)\]", function.lower(*shapes).compile().as_text())
  assert max(math.prod(map(int, shape.split(","))) for shape in found) < length * length / 8


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_forward_and_backward_lower_to_triton(dtype):
  function, shapes = gradients(200, "gpu", dtype)
  target = "__gpu$xla.gpu.triton"
  unchecked = [jax.export.DisabledSafetyCheck.custom_call(target)]
  h100 = {"device_kind": "NVIDIA H100 80GB HBM3", "num_cores": None, "platform": "cuda"}
  device = jax.sharding.AbstractDevice(**h100)
  mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    exported = jax.export.export(function, platforms=["cuda"], disabled_checks=unchecked)(*shapes)
  assert exported.mlir_module().count(target) == 3
