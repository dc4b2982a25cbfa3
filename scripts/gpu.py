"""Checks the attention kernels that only a GPU can run against the definition: `make gpu`.

RPR's Pallas kernel and cuDNN's attention run on a GPU alone. Every encoding that has one of them
runs as one layer in bfloat16, forward and backward, with `attention=fused` and by the definition.
Both are compared with the definition in float32: the kernel's error may be at most `FACTOR` times
that of the definition in bfloat16, or `LEAST`. Encoders have padding, decoders are causal.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from benchmarking.cases import with_positions
from flax import nnx
from jax import Array
from tabulate import tabulate

from posexp.encodings import ENCODINGS, Encoding
from posexp.encodings.rngs import Rngs
from posexp.kernels.target import target
from posexp.models.transformer import Size, Stack

SIZE = Size(d_model=512, num_heads=8, d_ff=64, num_layers=1, dropout=0.0, attention="reference")
WORDS, BATCH = 100, 4
LENGTHS = (31, 256, 1000)  # odd; a multiple of the kernel's block; neither
MORE = {"rpr": ({"keys": False}, {"values": False}, {"share": "none"})}  # beside the defaults
FACTOR, LEAST = 2.0, 0.01
# Errors relative to the definition in float32: of the kernel, then of the definition in bfloat16.
HEADS = ("", "model", "L", "output", "bfloat16", "gradients", "bfloat16 ", "equal")


def variants() -> Iterator[tuple[str, Encoding]]:
  """Every encoding with its default options, and some with others."""
  for name, encoding in ENCODINGS.items():
    for options in ({}, *MORE.get(name, ())):
      shown = " ".join(f"{key}={value}" for key, value in options.items())
      yield f"{name} {shown}".strip(), with_positions(name, encoding(**options), LENGTHS[-1], "")


def layer(
  encoding: Encoding, causal: bool, tokens: Array, mask: Array, **options: str
) -> list[np.ndarray]:
  """The output of one layer at real tokens, [B,L,F], and the gradients of its parameters.

  Raises:
    ValueError: the encoding has no kernel.
  """
  size = dataclasses.replace(SIZE, **options)
  stack = Stack(WORDS, encoding, size, causal=causal, rngs=Rngs(params=0, encoding=1))
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
  """The largest difference of two lists of arrays, in norms relative to those of the second."""
  norms = [np.linalg.norm(each) for each in those]
  least = 1e-3 * max(norms)  # gradients that are all but zero count by the others' size
  pairs = zip(these, those, norms, strict=True)
  return max(np.linalg.norm(a - b) / max(norm, least) for a, b, norm in pairs)


def compare(encoding: Encoding, causal: bool, length: int) -> list[float]:
  """How far the kernel and the definition in bfloat16 are from the definition: of the output, then
  of the gradients."""
  draw = np.random.default_rng(length)
  tokens = jnp.asarray(draw.integers(4, WORDS, (BATCH, length)), jnp.int32)
  mask = jnp.arange(length) < jnp.asarray([length, length // 2, 1, length - 1])[:, None]
  fused = layer(encoding, causal, tokens, mask, attention="fused", dtype="bfloat16")
  rounded = layer(encoding, causal, tokens, mask, dtype="bfloat16")
  with jax.default_matmul_precision("highest"):  # else products of float32 are of TensorFloat-32
    exact = layer(encoding, causal, tokens, mask)
  parts = (slice(0, 1), slice(1, None))
  return [distance(each[part], exact[part]) for part in parts for each in (fused, rounded)]


def main() -> None:
  """Prints a table; exit status 1 if a kernel differs from its definition."""
  if target().platform != "gpu":
    print(
      "JAX finds no GPU here, so no kernel was checked (make gpu EXTRA=cuda installs JAX for it)"
    )
    return
  rows, without, failed = [], [], False
  for name, encoding in variants():
    for model, causal in (("encoder", False), ("decoder", True)):
      if encoding.causal_only and not causal:
        continue
      try:
        for length in LENGTHS:
          found = compare(encoding, causal, length)
          equal = all(a <= max(FACTOR * b, LEAST) for a, b in (found[:2], found[2:]))
          failed |= not equal
          figures = [f"{each:.1e}" for each in found]
          rows.append([name, model, length, *figures, "yes" if equal else "NO"])
          print(f"{name}, {model}, L={length}: {rows[-1][-1]}", file=sys.stderr, flush=True)
      except ValueError as error:
        without.append(f"{name}, {model}: {str(error).splitlines()[0]}")
  print(tabulate(rows, HEADS, disable_numparse=True))
  print("\nwithout a kernel:", *without, sep="\n  ")
  sys.exit(failed)


if __name__ == "__main__":
  main()
