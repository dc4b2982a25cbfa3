"""Measure what gradients written by hand buy over plain JAX: `scripts/bench/plain_jax.py`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from benchmarking import output, programs
from benchmarking.cases import Case, encodings
from benchmarking.measure import CEILING
from benchmarking.rows import Row, row
from benchmarking.tables import ratio
from benchmarking.timing import rounds

from posexp.config.arguments import Parser, names, run
from posexp.errors import UserError
from posexp.kernels import diagonals, gradients, lookup
from posexp.kernels.random_bits import random_bits
from posexp.models import cross_entropy
from posexp.models.size import Size
from posexp.training import step
from posexp.training.devices import prepare

SIZES = {  # name: d_model, tokens of a sequence, sequences of a batch
  "tiny": (64, 32, 64),
  "small": (128, 32, 64),
  "long": (256, 256, 8),
}
EXAMPLES = """\
A training step is measured as it is and with one part left to JAX at a time, in alternating rounds
of one process. A ratio above 1 is the time of the plain step over that of the step as it is.

example:
  python scripts/bench/plain_jax.py --sizes small,long --out docs/benchmarks/plain
"""


def plain_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Draw random bits by JAX's default generator, Threefry."""
  return jax.random.bits(key, shape)


def plain_wave(phase: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return cos and sin as two arrays."""
  return jnp.cos(phase), jnp.sin(phase)


def plain_loss(hidden, reader, labels, weight, label_smoothing):
  """Return the sums of `cross_entropy.in_parts` with a gradient derived from kept logits."""
  logits = reader.logits(hidden)
  normalizer = jax.nn.logsumexp(logits, axis=-1)
  nll, right = cross_entropy.against(labels, logits, normalizer)
  loss = (1 - label_smoothing) * nll + label_smoothing * (normalizer - logits.mean(-1))
  return (loss * weight).sum(), ((nll * weight).sum(), (right * weight).sum())


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of posexp, and the plain JAX that can stand in its place."""

  functions: tuple[Callable[..., Any], ...]
  plain: Callable[..., Any] | None = None  # None: the same functions with gradients by JAX
  model: str = "encoder"
  encoding: str = "none"


PARTS = {
  "matmul": Part((gradients.matmul,)),
  "normalized": Part((gradients.normalized,)),
  "add_bias": Part((gradients.add_bias,)),
  "scores": Part((gradients._scores,)),
  "weighted_sum": Part((gradients.weighted_sum,)),
  "softmax": Part((gradients.softmax,)),
  "random_bits": Part((random_bits,), plain_bits),
  "wave": Part((gradients.wave,), plain_wave, encoding="complex"),
  "by_key, by_offset": Part((lookup.by_key, lookup.by_offset), encoding="rpr"),
  "diagonals": Part((diagonals.diagonals,), encoding="transformer_xl"),
  "in_parts": Part((cross_entropy.in_parts,), plain_loss, model="decoder"),
}


@contextlib.contextmanager
def left_to_jax(parts: list[Part]) -> Iterator[None]:
  """Replace functions by plain JAX in every module of posexp that has them."""
  plain = {id(f): part.plain or f.fun for part in parts for f in part.functions}
  places = [
    (module, name, value)
    for key, module in list(sys.modules.items())
    if key.partition(".")[0] == "posexp"
    for name, value in list(vars(module).items())
    if id(value) in plain
  ]
  for module, name, value in places:
    setattr(module, name, plain[id(value)])
  try:
    forget()
    yield
  finally:
    for module, name, value in places:
      setattr(module, name, value)
    forget()


def forget() -> None:
  """Drop programs that were traced with other functions."""
  step.program.cache_clear()
  jax.clear_caches()


def groups(size: str) -> Iterator[tuple[Case, dict[str, list[Part]]]]:
  """Yield the case of each model and encoding, and the parts to leave to JAX, by label."""
  d_model, length, batch = SIZES[size]
  for model, name in dict.fromkeys((part.model, part.encoding) for part in PARTS.values()):
    own = {
      label: part for label, part in PARTS.items() if (part.model, part.encoding) == (model, name)
    }
    options, encoding = encodings([name], [])[name]
    shape = Size(d_model=d_model, num_heads=4, num_layers=2, d_ff=4 * d_model, dropout=0.1)
    case = Case("step", model, name, options, encoding, shape, length, batch, vocabulary=8000)
    without = {label: [part] for label, part in own.items()}
    yield case, without | ({"all of these": list(own.values())} if len(own) > 1 else {})


def measured(size: str, count: int, seconds: float) -> Iterator[list[Row]]:
  """Yield the rows of each group of a size: the step as it is, then without each part."""
  for case, without in groups(size):
    print(case.title, flush=True)
    ready = {"as it is": programs.prepare(case)}
    for label, parts in without.items():
      with left_to_jax(parts):
        ready[f"without {label}"] = programs.prepare(case)
    product, flops = programs.ceiling(case.size.dtype)
    works = {key: each.timed for key, each in ready.items()} | {CEILING: product}
    spent, _ = rounds(works, count, seconds)
    ceiling = spent[CEILING], flops
    found = []
    for key, each in ready.items():
      made = row(case, each.facts, spent[key], (case, spent["as it is"]), ceiling)
      named = {"group": f"{case.title}, {case.name}", "label": key, "against": "as it is"}
      found.append(made | named)
      print(f"  {key}: {ratio(made)}, by CPU time {made['cpu_ratio']:.2f}", flush=True)
    yield found


def main() -> None:
  """Run the command line."""
  command = shlex.join(["python", "scripts/bench/plain_jax.py", *sys.argv[1:]])

  def work(argv: list[str]) -> None:
    args = arguments(argv)
    prepare()
    jax.config.update("jax_enable_compilation_cache", False)  # compiling is timed
    output.check_writable(args.out)
    about = output.about(command, [])
    found: list[Row] = []
    for size in args.sizes:
      for rows in measured(size, args.rounds, args.seconds):
        found += rows
        output.write_rows(args.out, found, about)
    print(f"\nin {args.out}: {output.NAME}.csv, {output.ABOUT}")

  run(work)


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  what = "Measures what each hand-written gradient buys over plain JAX in a training step."
  parser = Parser("", f"{what}\n\n{EXAMPLES}")
  parser.prog = "python scripts/bench/plain_jax.py"
  parser.add_argument("--sizes", type=names, default=list(SIZES), help=f"of {', '.join(SIZES)}")
  parser.add_argument("--rounds", type=int, default=9, help="default: 9")
  parser.add_argument("--seconds", type=float, default=0.5, help="of each in a round; default: 0.5")
  parser.add_argument("--out", type=Path, default=Path("plain"), help="a folder; default: plain")
  args = parser.parse_args(argv)
  parser.check_least(args, rounds=1, seconds=0)
  for size in args.sizes:
    if size not in SIZES:
      raise UserError(f"--sizes {size}: the sizes are {', '.join(SIZES)}")
  return args


if __name__ == "__main__":
  main()
