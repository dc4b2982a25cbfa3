"""Whether attention by the kernels that only a GPU can run equals its definition.

Every encoding that has such a form runs as one layer in bfloat16, forward and backward, with
`attention=fused` and by the definition. Both are compared with the definition in float32: the
kernel's error may be at most `FACTOR` times that of the definition in bfloat16, or `LEAST`.
Encoders have padding, decoders are causal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from benchmarking.cases import BY_NAME, with_positions
from benchmarking.measure import reason
from benchmarking.rows import Row
from benchmarking.tables import Table
from posexp.encodings import Encoding
from posexp.encodings.base import Relation
from posexp.encodings.rngs import Rngs
from posexp.models.size import Size
from posexp.models.transformer import Stack

SIZE = Size(d_model=512, num_heads=8, d_ff=64, num_layers=1, dropout=0.0, attention="reference")
FUSED = {"attention": "fused", "dtype": "bfloat16"}
WORDS, BATCH = 100, 4
LENGTHS = (255, 1024)  # odd, and whole blocks of the kernels
MORE = {"fused_rpr": ({"keys": False}, {"values": False}, {"share": "none"})}  # beside the defaults
FACTOR, LEAST = 2.0, 0.01
# Errors relative to the definition in float32: of the kernel, then of the definition in bfloat16.
ERRORS = ("output", "output_bfloat16", "gradients", "gradients_bfloat16")
COLUMNS = ("encoding", "options", "model", "length", *ERRORS, "equal", "reason")


def layer(encoding: Encoding, causal: bool, **options: str) -> Stack:
  """Return a model of one layer; ValueError if the encoding does not have it.

  What its relus let through counts for nothing, or one that is off by rounding would look wrong.
  """
  size = dataclasses.replace(SIZE, **options)
  stack = Stack(WORDS, encoding, size, causal=causal, rngs=Rngs(params=0, encoding=1))
  down = stack.blocks[0].feed_forward.down
  nnx.update(down, jax.tree.map(jnp.zeros_like, nnx.state(down, nnx.Param)))
  return stack


def passes(stack: Stack, tokens: Array, mask: Array) -> list[np.ndarray]:
  """Return the output of a layer at real tokens, [B,L,F], and the gradients of its parameters."""
  graphdef, params, others = nnx.split(stack, nnx.Param, ...)
  toward = jax.random.normal(jax.random.key(1), (*tokens.shape, SIZE.d_model))

  @jax.jit
  def both(params: nnx.State) -> tuple[nnx.State, Array]:
    def loss(params: nnx.State) -> tuple[Array, Array]:
      found = nnx.merge(graphdef, params, others)(tokens, mask).astype(jnp.float32)
      found = jnp.where(mask[..., None], found, 0)
      return (found * toward).sum(), found

    return jax.grad(loss, has_aux=True)(params)

  grads, found = both(params)
  return [np.asarray(x, np.float64) for x in (found, *jax.tree.leaves(grads))]


def distance(these: list[np.ndarray], those: list[np.ndarray]) -> float:
  """Return the largest difference of two lists of arrays, in norms relative to those of the
  second.
  """
  norms = [np.linalg.norm(each) for each in those]
  least = 1e-3 * max(norms)  # gradients that are all but zero count by the others' size
  pairs = zip(these, those, norms, strict=True)
  return max(np.linalg.norm(a - b) / max(norm, least) for a, b, norm in pairs)


def compare(encoding: Encoding, causal: bool, length: int) -> list[float]:
  """`ERRORS` of sequences of which all but one have padding."""
  draw = np.random.default_rng(length)
  tokens = jnp.asarray(draw.integers(4, WORDS, (BATCH, length)), jnp.int32)
  mask = jnp.arange(length) < jnp.asarray([length, length // 2, 1, length - 1])[:, None]

  def found(precision: str, options: dict[str, str]) -> list[np.ndarray]:
    with jax.default_matmul_precision(precision):
      return passes(layer(encoding, causal, **options), tokens, mask)

  with ThreadPoolExecutor() as pool:  # most of the time is for compiling
    forms = (FUSED, {"dtype": "bfloat16"}, {})
    # By default products of float32 are of TensorFloat-32.
    fused, rounded, exact = pool.map(found, ("default", "default", "highest"), forms)
  parts = (slice(0, 1), slice(1, None))
  return [distance(each[part], exact[part]) for part in parts for each in (fused, rounded)]


def check(encodings: Iterable[str], lengths: Sequence[int]) -> Iterator[Row]:
  """Yield a row of `COLUMNS` for each encoding that has kernels, model and length.

  Encodings of the embedding alone attend as `none` does, which stands for them.
  """
  for name in encodings:
    for options in ({}, *MORE.get(name, ())):
      typed = " ".join(f"{key}={value}" for key, value in options.items())
      fitting = with_positions(name, BY_NAME[name](**options), max(lengths), "")
      for model, causal in (("encoder", False), ("decoder", True)):
        if fitting.causal_only and not causal:
          continue
        row = dict.fromkeys(COLUMNS) | {"encoding": name, "options": typed, "model": model}
        try:
          plain = type(layer(fitting, causal, **FUSED).relation) is Relation
        except ValueError as error:
          yield row | {"equal": "no kernel", "reason": reason(error)}
          continue
        for length in () if plain and name != "none" else lengths:
          yield row | {"length": length} | verdict(fitting, causal, length)


def verdict(encoding: Encoding, causal: bool, length: int) -> Row:
  """Return the errors, and whether they are small enough: `yes` or `no`, with a reason."""
  try:
    found = compare(encoding, causal, length)
  except Exception as error:  # whatever a compiler or a device says no with
    return {"equal": "no", "reason": reason(error)}
  equal = all(a <= max(FACTOR * b, LEAST) for a, b in (found[:2], found[2:]))
  errors = dict(zip(ERRORS, found, strict=True))
  return errors | ({"equal": "yes"} if equal else {"equal": "no", "reason": "it differs"})


def label(row: Row) -> str:
  """Return what a row is of."""
  parts = f"{row['encoding']} {row['options']}".strip(), row["model"]
  return ", ".join((*parts, f"L={row['length']}") if row["length"] else parts)


def table(rows: Sequence[Row]) -> Table:
  """Return the rows of what has kernels; errors are relative to the definition in float32."""
  heads = ["", "output", "in bfloat16", "gradients", "in bfloat16", "equal"]
  cells = []
  for row in rows:
    if row["equal"] != "no kernel":
      errors = ("—" if row[name] is None else f"{row[name]:.1e}" for name in ERRORS)
      equal = "yes" if row["equal"] == "yes" else f"NO: {row['reason']}"
      cells.append([label(row), *errors, equal])
  title = "Errors of the kernels beside those of the definition in bfloat16"
  return Table(title, heads, cells)
