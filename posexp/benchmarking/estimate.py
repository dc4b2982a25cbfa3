"""What a large model would take on machines that are not at hand: reckoned, not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posexp.benchmarking import chips, output, tables
from posexp.benchmarking.cases import Case
from posexp.benchmarking.chips import Chip
from posexp.benchmarking.programs import build
from posexp.encodings import ENCODINGS
from posexp.models.transformer import Size
from posexp.training import step
from posexp.training.devices import mesh_for
from posexp.training.optimizer import Training

EFFICIENCY = 0.4  # of the peak, assumed of matrix products
ENCODED = ("none", "rpr")
LENGTH, VOCABULARY = 1024, 32_000
SIZE = Size(
  d_model=1024,
  num_heads=16,
  d_ff=4096,
  num_layers=18,
  dropout=0.0,
  dtype="bfloat16",
  attention="reference",
)
SEEN = (1, 3)  # layers of the programs that are compiled; all others cost as much as these two
STATE = 12  # bytes of a parameter, of its two moments and of itself


MACHINES = {  # how many chips, how many texts on each, and which chips
  "8 × H100 SXM": (8, 8, chips.H100),
  "8 × TPU v5e": (8, 2, chips.TPU_V5E),
  "8 × TPU v5p": (8, 16, chips.TPU_V5P),
}
ABOUT = f"""\
**These are estimates: nothing below was run on the machines that it names.**

The model is a decoder of {SIZE.num_layers} layers, d_model {SIZE.d_model}, {SIZE.num_heads} heads,
d_ff {SIZE.d_ff}, {VOCABULARY:,} words, on texts of {LENGTH:,} tokens, in bfloat16 with weights and
AdamW's moments in float32, data parallel; the state *divided* is that of train.shard=parameters,
whose gathering of parameters is not in the times. Assumed are

- the makers' figures: dense bfloat16 989, 197 and 459 TFLOP/s; 80, 16 and 95 GB at 3.35, 0.819 and
  2.765 TB/s; 450, 200 and 600 GB/s to the other devices, one way;
- {EFFICIENCY:.0%} of the peak in arithmetic, for *plain* FLOPs (6 for each weight of a matrix and
  token, and attention); memory at its full bandwidth; a step takes at least the arithmetic and at
  most the longer of the two, and then the gradients' all-reduce around a ring, none of it hidden
  behind the backward pass;
- FLOPs, traffic and temporaries as XLA's analysis has them of the update step compiled for a CPU
  with {SEEN[0]} and {SEEN[1]} layers, continued as a straight line. A CPU fuses less and computes
  much of bfloat16 in float32, so that traffic and temporaries are upper bounds. Attention is the
  plain form, which keeps its weights for the backward pass; a fused kernel would not.
"""


class Cost(NamedTuple):
  """Of a step on one device."""

  flops: float  # as compiled
  bytes: float  # read and written, as compiled
  temporaries: float  # bytes


def compiled(case: Case) -> Cost:
  """What the compiler says of the update step; nothing is allocated."""
  program = step.program(build(case), Training(), 1000, mesh_for(np.array([1])))
  state = jax.eval_shape(lambda: program.init(0))
  shape = (case.batch, case.length)
  kinds = {"tokens": jnp.int32, "labels": jnp.int32, "mask": bool}
  batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in kinds.items()}
  compiled_step = program.update.jitted.lower(state, batch, step.keys(0)["dropout"]).compile()
  found = compiled_step.cost_analysis()
  memory = compiled_step.memory_analysis().temp_size_in_bytes
  return Cost(found["flops"], found["bytes accessed"], memory)


def whole(case: Case) -> Cost:
  """Of all layers, from programs of few."""
  low, high = (
    compiled(dataclasses.replace(case, size=dataclasses.replace(case.size, num_layers=layers)))
    for layers in SEEN
  )
  more = (case.size.num_layers - SEEN[0]) / (SEEN[1] - SEEN[0])
  return Cost(*(a + (b - a) * more for a, b in zip(low, high, strict=True)))


def reckoned(case: Case, cost: Cost, parameters: int, count: int, chip: Chip) -> dict[str, Any]:
  """Milliseconds of a step, and bytes of a device."""
  arithmetic = case.flops / (EFFICIENCY * chip.flops)
  traffic = cost.bytes / chip.bandwidth
  reduced = 2 * (count - 1) / count * 4 * parameters / chip.link
  least, most = arithmetic + reduced, max(arithmetic, traffic) + reduced
  return {
    "texts on each": case.batch,
    "TFLOPs plain": case.flops / 1e12,
    "TFLOPs compiled": cost.flops / 1e12,
    "ms of arithmetic": 1e3 * arithmetic,
    "ms of memory": 1e3 * traffic,
    "ms of all-reduce": 1e3 * reduced,
    "ms a step, at least": 1e3 * least,
    "ms a step, at most": 1e3 * most,
    "tokens/s of all, at least": count * case.tokens / most,
    "tokens/s of all, at most": count * case.tokens / least,
    "GB of state": STATE * parameters / 1e9,
    "GB of state, divided": STATE * parameters / count / 1e9,
    "GB of temporaries": cost.temporaries / 1e9,
    "GB there are": chip.memory / 1e9,
  }


def lines() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
  """For each encoding and machine: their names, how many parameters there are, and the figures."""
  for name in ENCODED:
    costs: dict[int, Cost] = {}
    for machine, (count, rows, chip) in MACHINES.items():
      case = Case("step", "decoder", name, "", ENCODINGS[name](), SIZE, LENGTH, rows, VOCABULARY)
      if rows not in costs:
        costs[rows] = whole(case)
      parameters = step.parameters(build(case))
      yield name, machine, parameters, reckoned(case, costs[rows], parameters, count, chip)


def estimate(folder: Path, command: str) -> None:
  """Prints the figures as they are worked out, and keeps them in a folder.

  Raises:
    UserError: the folder cannot be written.
  """
  output.writable(folder)
  heads, rows = [""], {}
  for name, machine, parameters, found in lines():
    heads.append(f"{name}, {machine}")
    for quantity, value in {"M parameters": parameters / 1e6, **found}.items():
      rows.setdefault(quantity, [quantity]).append(tables.number(value))
    low, high = (found[f"ms a step, at {end}"] for end in ("least", "most"))
    print(f"  {heads[-1]}: {low:.0f} to {high:.0f} ms a step, estimated", flush=True)
  table = "Estimated step of training", heads, list(rows.values())
  print(
    f"\n{tables.terminal(table)}\n\nestimates, not measurements; the assumptions are kept beside"
  )
  parts = ["# Estimates", f"```\n{command}\n```", ABOUT, tables.markdown(table)]
  output.keep(folder, {"estimate.md": "\n\n".join(parts) + "\n"})
  print(f"in {folder}: estimate.md")
