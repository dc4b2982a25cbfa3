"""Says where the time of a training step goes: `python scripts/step_parts.py encoding=rpr rpr.k=4`.

    python scripts/step_parts.py OPTION=VALUE ... [--steps 30] [--out FOLDER]

Takes the options of `posexp.train` and trains on the batches that such a run begins with, those of
the shape that most of them have, on one core. XLA's own trace says how long each kernel took, and
the line of code that it stands for which part of the step it belongs to: a fusion of several
counts where it ends. What is left of the time of a step without a trace is the host's: handing the
step its arguments, and gaps.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import tabulate
from benchmarking import output, programs
from benchmarking.hlo import Instruction, Program

from posexp.config import command_line, resolve
from posexp.config.arguments import run
from posexp.training.devices import Batch, mesh_for, prepare, shard
from posexp.training.setup import Setup
from posexp.training.step import State, keys

PARTS = {  # by "file:function" of the innermost call that one of them matches, the first of these
  "dropout": r"Dropout|random_bits",
  "optimizer": r"^optax/(?!losses)|training/optimizer",
  "products with weights": r"Linear\.__call__|:matmul$|:add_bias",
  "norms": r"LayerNorm|normalized|gradients.py:mean",
  "words": r"TokenEmbedding",
  "attention": r"models/attention|posexp/encodings/|posexp/kernels/",
  "rest of the model": r"posexp/models/|^optax/losses",
}
REST, HOST = "copies and the rest", "host"
COLUMNS = ("part", "ms", "share", "GFLOPs", "GFLOPs/s", "MB", "GB/s")


class Spent(NamedTuple):
  """What a part of a step takes, and what it does."""

  seconds: float = 0.0
  flops: float = 0.0
  bytes: float = 0.0  # read and written by its kernels, from wherever they are

  def plus(self, other: Spent) -> Spent:
    return Spent(*(a + b for a, b in zip(self, other, strict=True)))


class Sources:
  """Which calls in Python an instruction stands for, by the tables at the head of its program."""

  def __init__(self, text: str):
    def table(name: str) -> dict[int, str]:
      found = re.search(rf"^{name}\n((?:\d+ .*\n)+)", text, re.MULTILINE)
      rows = (row.split(" ", 1) for row in (found[1] if found else "").splitlines())
      return {int(number): row.strip('"') for number, row in rows}

    def numbers(name: str) -> dict[int, dict[str, int]]:
      pairs = {key: re.findall(r"(\w+)=(\d+)", row) for key, row in table(name).items()}
      return {key: {name: int(value) for name, value in found} for key, found in pairs.items()}

    self.files, self.functions = table("FileNames"), table("FunctionNames")
    self.places, self.frames = numbers("FileLocations"), numbers("StackFrames")

  def calls(self, it: Instruction) -> Iterator[str]:
    """As file:function, the innermost first; files from the name of their package on."""
    frame = int(it.attribute(r"stack_frame_id=(\d+)") or 0)
    while frame in self.frames:
      place = self.places[self.frames[frame]["file_location_id"]]
      file = re.sub(r"^.*(?=\b(?:posexp|optax)/)", "", self.files[place["file_name_id"]])
      yield f"{file}:{self.functions[place['function_name_id']]}"
      outer = self.frames[frame].get("parent_frame_id", 0)
      frame = outer if outer != frame else 0

  def part(self, it: Instruction) -> str:
    """One of PARTS, or the rest."""
    for call in self.calls(it):
      for part, pattern in PARTS.items():
        if re.search(pattern, call):
          return part
    return REST


def traced(folder: Path, module: str) -> dict[str, float]:
  """Seconds of each kernel of a module in a trace, without those of kernels within it."""
  spent: collections.Counter[str] = collections.Counter()
  (path,) = folder.glob("**/*.xplane.pb")
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      found = [
        (event.start_ns, -event.duration_ns, event.name)
        for event in line.events
        if dict(event.stats).get("hlo_module") == module
      ]
      around: list[tuple[float, str]] = []  # the kernels that a kernel is within, and their ends
      for start, negative, name in sorted(found):
        while around and around[-1][0] <= start:
          around.pop()
        if around:
          spent[around[-1][1]] += negative
        spent[name] -= negative
        around.append((start - negative, name))
  return {name: nanoseconds / 1e9 for name, nanoseconds in spent.items()}


def accounted(setup: Setup, count: int, folder: Path) -> tuple[str, dict[str, Spent], float]:
  """The shape of the batches, the parts of a step, and its time without a trace."""
  data = setup.task.prepare(folder)
  mesh = mesh_for(data.rows_of(setup.training.batch_size), setup.training.accumulate)
  program = setup.program(setup.model_for(data), data, mesh)
  key = keys(setup.config["seed"])["dropout"]
  batches = shard(data.batches(setup.training.batch_size, seed=setup.config["seed"]), mesh)
  first = [batch for batch, _ in itertools.islice(batches, count)]
  shapes = collections.Counter(batch["mask"].shape for batch in first)
  ((shape, number),) = shapes.most_common(1)
  first = [batch for batch in first if batch["mask"].shape == shape]
  state = program.init(setup.config["seed"])
  text = program.update.jitted.lower(state, first[0], key).compile().as_text()

  def steps(state: State, batches: list[Batch]) -> tuple[State, float]:
    began = time.perf_counter()
    for batch in batches:
      state = program.update(state, batch, key)
    jax.block_until_ready(state)
    return state, (time.perf_counter() - began) / len(batches)

  state, _ = steps(state, first)  # compiles
  seconds = []
  for _ in range(5):
    state, each = steps(state, first)
    seconds.append(each)
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with jax.profiler.trace(str(folder / "trace"), profiler_options=options):
    steps(state, first)
  module = re.match(r"HloModule ([\w.\-]+)", text)[1]
  parts = by_part(text, traced(folder / "trace", module), number)
  plain = statistics.median(seconds)
  kernels = sum(part.seconds for part in parts.values())
  parts[HOST] = Spent(max(0.0, plain - kernels))
  about = f"{shape[0]} rows of {shape[1]} tokens, the shape of {number} of {count} batches"
  return about, parts, plain


def by_part(text: str, kernels: dict[str, float], steps: int) -> dict[str, Spent]:
  """What the parts of one step take, the longest first."""
  program, sources = Program(text), Sources(text)
  parts: collections.defaultdict[str, Spent] = collections.defaultdict(Spent)
  of = {name: inner for inner in program.computations.values() for name in inner}
  for name, seconds in kernels.items():
    if name not in of:
      parts[REST] = parts[REST].plus(Spent(seconds / steps))
      continue
    it = of[name][name]
    flops, moved = program.products(of[name], it)[0], program.moved(of[name], it)
    part = sources.part(it)
    parts[part] = parts[part].plus(Spent(seconds / steps, flops, moved))
  return dict(sorted(parts.items(), key=lambda item: -item[1].seconds))


def table(parts: dict[str, Spent], seconds: float) -> str:
  """A row for each part, and one for the step."""
  done = functools.reduce(Spent.plus, parts.values())
  rows = []
  for part, spent in (parts | {"step": done._replace(seconds=seconds)}).items():
    rates = [spent.flops / spent.seconds, spent.bytes / spent.seconds] if spent.seconds else [0, 0]
    flops = [f"{spent.flops / 1e9:.3f}", f"{rates[0] / 1e9:.1f}"] if spent.flops else ["—", "—"]
    moved = [f"{spent.bytes / 1e6:.1f}", f"{rates[1] / 1e9:.1f}"] if spent.bytes else ["—", "—"]
    row = [part, f"{1e3 * spent.seconds:.2f}", f"{spent.seconds / seconds:.1%}", *flops, *moved]
    rows.append(row)
  align = ("left", *["right"] * (len(COLUMNS) - 1))
  return tabulate.tabulate(rows, COLUMNS, "pipe", disable_numparse=True, colalign=align)


def work(argv: list[str]) -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("options", nargs="*", metavar="OPTION=VALUE", help="as of posexp.train")
  parser.add_argument("--steps", type=int, default=60, help="batches to choose from; default: 60")
  parser.add_argument("--out", type=Path, help="a folder for the table, parts.md")
  args = parser.parse_intermixed_args(argv)
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  prepare()
  setup = Setup.of(resolve(command_line.shared(command_line.read(args.options))))
  with tempfile.TemporaryDirectory() as folder:
    about, parts, seconds = accounted(setup, args.steps, Path(folder))
  product, flops = programs.ceiling(setup.size.dtype)
  peak = max(flops / product(1).wall for _ in range(20))
  command = " ".join(["python scripts/step_parts.py", *args.options])
  notes = [f"{setup.task.name}, {about}", f"a large product: {peak / 1e9:.0f} GFLOPs/s"]
  text = "\n\n".join(
    ["\n".join(f"- {line}" for line in output.about(f"`{command}`", notes)), table(parts, seconds)]
  )
  print(text)
  if args.out:
    output.check_writable(args.out)
    output.write(args.out, {"parts.md": text + "\n"})


if __name__ == "__main__":
  run(work)
