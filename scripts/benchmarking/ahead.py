"""The update step compiled for GPUs that are not at hand: its kernels, and a bound on its time."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarking import cases, chips, output, programs, rows
from benchmarking.cases import Case
from benchmarking.chips import Chip
from benchmarking.hlo import Kernel, Program
from benchmarking.rows import Row
from benchmarking.tables import Table, number
from posexp import config
from posexp.errors import UserError
from posexp.training import devices, step
from posexp.training.optimizer import Training

NAME = "ahead"
TF32 = 0.5  # of the FLOPs in bfloat16, which is how products of float32 are computed
COLUMNS = (
  *("group", "gpus", "model", "encoding", "options", "attention", "label", "against", "dtype"),
  *("d_model", "heads", "layers", "d_ff", "vocabulary", "length", "batch"),
  *("attention_kernels", "products", "other_kernels", "collectives"),
  *("temporaries_mib", "gflops_compiled", "gflops", "gb_moved", "gb_exchanged"),
  *("bound_ms", "bound_ratio", "bound_mfu", "compile_s"),
)
SHOWN = {
  "label": "step",
  "attention_kernels": "attention",
  "products": "products",
  "other_kernels": "others",
  "collectives": "collectives",
  "temporaries_mib": "temporaries MiB",
  "gflops_compiled": "GFLOPs compiled",
  "gflops": "plain",
  "gb_moved": "GB moved",
  "bound_ms": "ms at least",
  "bound_ratio": "",  # × the baseline
  "bound_mfu": "MFU at most",
  "compile_s": "compile s",
}
ABOUT = """\
**Nothing below was run or timed: each program was compiled for a GPU that was not there.** *ms at
least* is a lower bound, however far from it a run may be: for each kernel the longer of its FLOPs
at {teraflops:,.0f} TFLOP/s (half of that in float32) and of its bytes at {bandwidth:.2f} TB/s, and
all kernels one after the other, without what caches save. The ratio and *MFU at most*, of *plain*,
are of these bounds.

*GFLOPs compiled* are those of matrix products, with those in kernels of attention, which compute
scores again in the backward pass; *plain* are those of the plain Transformer of the same widths.
*GB moved* is what kernels read and write, each array once per kernel. Without a GPU XLA cannot
measure which kernel of a product is the fastest, and takes any: a run may have others, of the same
FLOPs. Whether cuDNN accepts its calls is decided on a GPU too."""


def gpus(asked: str) -> tuple[int, str]:
  """Return how many of which: `8xh100`, or one `h100`.

  Raises:
    UserError: there is no such GPU.
  """
  count, name = re.fullmatch(r"(?:([1-9]\d*)x)?(.*)", asked.lower()).groups()
  if name not in chips.GPUS:
    raise config.unknown_name("GPU", name, list(chips.GPUS))
  return int(count or 1), name


def mesh_of(count: int, name: str) -> Mesh:
  """Make a device that can be compiled for, and nothing else.

  Raises:
    UserError: XLA's compiler for them is not installed.
  """
  try:
    found = topologies.get_topology_desc(
      platform="cuda", topology=f"1x1x{count}", target_config=chips.described(name)
    )
  except NotImplementedError as error:
    raise UserError(
      f"--ahead {name} needs XLA's compiler for CUDA, which is not installed: "
      "pip install -e '.[cuda]', with or without a GPU"
    ) from error
  return Mesh(np.array(found.devices), ("data",))


def compiled(case: Case, mesh: Mesh) -> tuple[Any, float]:
  """Return the update step of a case, and how many seconds its compiler took. Nothing is
  allocated.
  """
  program = step.program(programs.spec(case), Training(batch_size=case.batch), programs.STEPS, mesh)

  def described(x: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

  state, where = program.shapes, devices.shardings(program.shapes, mesh, divide=False)
  state = jax.tree.map(described, state, where)
  divided = NamedSharding(mesh, PartitionSpec("data"))
  batch = jax.tree.map(lambda x: described(x, divided), programs.batch(case))
  key = jax.eval_shape(lambda: step.keys(0)["dropout"])
  return programs.compile(program.update.jitted, state, batch, key)


def seconds(kernel: Kernel, chip: Chip, count: int) -> float:
  """Return what a kernel takes at least, on each of so many chips."""
  if kernel.kind == "collective":  # a ring passes all but a share on, and of sums does so twice
    turns = 2 if kernel.name == "all-reduce" else 1
    return turns * (count - 1) / count * kernel.bytes / chip.link
  rate = chip.flops * (TF32 if kernel.dtype == "f32" else 1)
  return max(kernel.flops / rate, kernel.bytes / chip.bandwidth)


def counted(kernels: Sequence[Kernel], kind: str) -> str:
  """Return how many of each name there are, of a kind."""
  found: Counter = Counter()
  for each in kernels:
    if each.kind == kind:
      found[each.name] += each.times
  return ", ".join(f"{times:,} {name}" for name, times in found.items()) or "none"


def row(case: Case, program: Any, took: float, count: int, name: str) -> Row:
  """Return what a compiled program says of a case; its baseline is added later."""
  chip = chips.GPUS[name][1]
  kernels = Program(program.as_text()).kernels()
  bound = sum(seconds(each, chip, count) for each in kernels)
  exchanged = sum(each.bytes for each in kernels if each.kind == "collective") / 1e9
  local = [each for each in kernels if each.kind != "collective"]
  found = rows.shape(case) | {
    "group": f"{case.title}: compiled for {count} × {name.upper()}",
    "gpus": f"{count} × {name}",
    "attention_kernels": counted(kernels, "attention"),
    "products": counted(kernels, "product"),
    "other_kernels": sum(each.times for each in kernels if each.kind == "other"),
    "collectives": counted(kernels, "collective")
    + (f" of {exchanged:.3g} GB" if exchanged else ""),
    "temporaries_mib": program.memory_analysis().temp_size_in_bytes / 2**20,
    "gflops_compiled": count * sum(each.flops for each in local) / 1e9,
    "gb_moved": count * sum(each.bytes for each in local) / 1e9,
    "gb_exchanged": exchanged,
    "bound_ms": 1e3 * bound,
    "bound_mfu": case.flops / (bound * count * chip.flops),
    "compile_s": took,
  }
  return {column: found.get(column) for column in COLUMNS}


def group(found: Sequence[Case], mesh: Mesh, name: str, notes: list[str]) -> Iterator[Row]:
  """Yield the rows of a group, of which the first is the baseline; a note for each case without
  one.
  """
  first = None
  for case in found:
    try:
      one = row(case, *compiled(case, mesh), mesh.size, name)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      notes.append(f"{case.label}: {str(error).splitlines()[0]}")
      print(f"  {notes[-1]}", flush=True)
      continue
    first = first or one
    one["against"] = first["label"]
    one["bound_ratio"] = one["bound_ms"] / first["bound_ms"]
    yield one


def ahead(args: argparse.Namespace, command: str) -> list[Row]:
  """Compile, print a line for each program as it comes, write all to a folder.

  Raises:
    UserError: something that was asked for does not exist, or the folder cannot be written.
  """
  jax.config.update("jax_platforms", "cpu")  # a GPU that there is has no part in this
  jax.config.update("jax_enable_compilation_cache", False)  # compiling is timed
  count, name = gpus(args.ahead)
  groups, notes = cases.plan(args)
  for case in (group[0] for group in groups):
    if case.batch % count:
      raise UserError(f"--batch {case.batch} does not divide among {count} GPUs")
  mesh = mesh_of(count, name)
  output.check_writable(args.out)
  found: list[Row] = []
  try:
    for each in groups:
      print(each[0].title, flush=True)
      for one in group(each, mesh, name, notes):
        found.append(one)
        print(
          f"  {one['label']}: compiled in {one['compile_s']:.1f} s, "
          f"{one['bound_ms']:.2f} ms at least, attention by {one['attention_kernels']}",
          flush=True,
        )
  finally:  # Ctrl-C keeps what was compiled
    write(args, command, notes, found)
  for table in shown(found):
    print(f"\n{table.terminal()}")
  print(f"\nbounds, not measurements\nin {args.out}: {NAME}.md, {NAME}.csv")
  return found


def shown(found: Sequence[Row]) -> Iterator[Table]:
  """Yield a table for each group, in the order of its bounds."""
  for title in dict.fromkeys(each["group"] for each in found):
    mine = sorted((each for each in found if each["group"] == title), key=lambda r: r["bound_ms"])
    heads = SHOWN | {"bound_ratio": f"× {mine[0]['against']}"}
    yield Table(title, list(heads.values()), [[cell(each, key) for key in SHOWN] for each in mine])


def cell(one: Row, column: str) -> str:
  """Return a figure as it is shown."""
  value = one[column]
  if isinstance(value, str):
    return value
  forms = {"bound_ratio": "{:.2f}", "bound_ms": "{:.2f}", "bound_mfu": "{:.0%}"}
  return forms[column].format(value) if column in forms else number(value)


def write(args: argparse.Namespace, command: str, notes: Sequence[str], found: list[Row]) -> None:
  """Both files, of what was compiled so far; UserError if the folder cannot be written."""
  chip = chips.GPUS[gpus(args.ahead)[1]][1]
  parts = [
    "# What compilers make of encodings",
    f"```\n{command}\n```",
    ABOUT.format(teraflops=chip.flops / 1e12, bandwidth=chip.bandwidth / 1e12),
    "\n".join(f"- {each}" for each in (output.versions(), *notes)),
    *(table.markdown() for table in shown(found)),
  ]
  texts = {f"{NAME}.csv": rows.as_csv(found, COLUMNS), f"{NAME}.md": "\n\n".join(parts) + "\n"}
  output.write(args.out, texts)
