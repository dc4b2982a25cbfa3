"""Account for a training step, by part: `python scripts/account.py --encodings none,rpr`.

It takes the options of scripts/benchmark.py. The step runs on one core, one kernel after the other,
while JAX's profiler takes the time of each. XLA says of a kernel which lines of Python it comes
from: by these it is counted to a part. What several parts are fused into counts to the part it ends
with.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import benchmark
import jax
import jax.numpy as jnp
from benchmarking import cases, hlo, output, programs
from benchmarking.cases import Case
from benchmarking.timing import timed
from tabulate import tabulate

from posexp.config.arguments import run
from posexp.errors import UserError
from posexp.training.devices import prepare

EXAMPLES = """
examples:
  python scripts/account.py --encodings none,rpr --d-model 128 --lengths 32 --batch 32 --layers 2

The step runs on one core while JAX's profiler takes the time of each kernel. Passes, texts, peers,
authors and ahead are for scripts/benchmark.py alone.
"""
STEPS = 20  # that are traced
NAME = "account.md"
Frames = Sequence[tuple[str, str]]  # the file and the function of each call, the innermost first
FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}")
LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+) ")
CALLS = r"calls=%?([\w.\-]+)"
NAMED = re.compile(r'^(\d+) "(.*)"$')


def within(*functions: str) -> Callable[[Frames], bool]:
  """Return whether a call is to one of these functions, or to a method of one of these classes."""
  return lambda frames: any(name.startswith(functions) for _, name in frames)


def of_optimizer(frames: Frames) -> bool:
  """Return whether a call is to optax, which also has the losses."""
  return any("/optax/" in file and "/losses/" not in file for file, _ in frames)


def of_output(frames: Frames) -> bool:
  """Return whether a call is to the linear map onto a vocabulary and its loss."""
  return any(file.endswith("/cross_entropy.py") for file, _ in frames)


# The first that holds is the part of a kernel.
PARTS: Mapping[str, Callable[[Frames], bool]] = {
  "optimizer": of_optimizer,
  "output words": of_output,
  "dropout": within("Dropout."),
  "norms": within("LayerNorm."),
  "words": within("TokenEmbedding."),
  "linear maps": within("Linear."),
  "attention": within("MultiHeadAttention.", "Relation."),
}
REST = "all else"
PRODUCTS = "products of "
MULTIPLY = ("linear maps", "attention", "output words")  # their products are parts of their own
AROUND = ("while", "conditional", "call")  # no kernels, but what launches them


class Part(NamedTuple):
  """What kernels of one part take in a step."""

  seconds: float
  flops: float
  bytes: float

  def plus(self, other: Part) -> Part:
    return Part(*map(sum, zip(self, other, strict=True)))


def frames(text: str) -> dict[str, Frames]:
  """Return the calls behind each stack frame of a compiled program's text, by its number."""
  section, names, places, calls = "", {}, {}, {}
  for line in text.splitlines():
    if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
      section = line
    elif section in ("FileNames", "FunctionNames") and (found := NAMED.match(line)):
      names[section, found[1]] = found[2]
    elif section == "FileLocations" and (found := LOCATION.match(line)):
      places[found[1]] = names["FileNames", found[2]], names["FunctionNames", found[3]]
    elif section == "StackFrames" and (found := FRAME.match(line)):
      parent = str(int(found[3]) - 1)  # a frame without one says 1
      calls[found[1]] = (places[found[2]], *calls.get(parent, ()))
    elif line.startswith("%") or line.startswith("ENTRY"):
      break
  return calls


def kernels(compiled: jax.stages.Compiled) -> dict[str, tuple[str, float, float]]:
  """Return the part, the FLOPs and the bytes of each instruction of a program, by its name."""
  text = compiled.as_text()
  calls, program = frames(text), hlo.Program(text)
  everything = [each for of in program.computations.values() for each in of.values()]
  fused = {each.attribute(CALLS) for each in everything if each.op == "fusion"}
  found = {}
  for name, of in program.computations.items():
    for each in () if name in fused else of.values():
      if each.op in (*hlo.FREE, *AROUND):
        continue
      behind = calls.get(each.attribute(r"stack_frame_id=(\d+)"), ())
      part = next((part for part, holds in PARTS.items() if holds(behind)), REST)
      flops, _ = program.products(of, each)
      product = flops and part in MULTIPLY
      found[each.name] = PRODUCTS + part if product else part, flops, program.moved(of, each)
  return found


def traced(call: Callable[[int], None]) -> dict[str, tuple[float, float]]:
  """Return how often a step launches each kernel, and the seconds of each time, their median."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # it would take the core from the kernels
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder, profiler_options=options):
      for _ in range(STEPS):
        call(1)
    (file,) = Path(folder).glob("plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
  spent: dict[str, list[float]] = {}
  for event in events:
    if event.get("ph") == "X":
      spent.setdefault(event["name"], []).append(event["dur"] / 1e6)
  return {name: (len(each) / STEPS, median(each)) for name, each in spent.items()}


def account(case: Case) -> tuple[dict[str, Part], float]:
  """Return the parts of a case's step, and the seconds of a step that is not traced."""
  call, compiled, _ = programs.train(case)
  call(STEPS)
  began = time.perf_counter()
  call(STEPS)
  step = (time.perf_counter() - began) / STEPS
  known, parts = kernels(compiled), {}
  for name, (times, seconds) in traced(call).items():
    if name in known:
      part, *work = known[name]
      of_all = Part(*(times * each for each in (seconds, *work)))
      parts[part] = parts.get(part, Part(0, 0, 0)).plus(of_all)
  return parts, step


def bandwidth() -> float:
  """Bytes a second of a sum of two long arrays."""
  x = jnp.ones(2**24)
  add = jax.jit(jnp.add)
  work = timed(programs.repeated(lambda: add(x, x)))
  work(2)
  return 2 * x.nbytes * 10 / work(10).wall


def table(parts: Mapping[str, Part], step: float, case: Case) -> str:
  """Return a row for each part, the longest first."""
  product, flops = programs.ceiling(case.size.dtype)
  product(2)
  peak, stream = flops * 10 / product(10).wall, bandwidth()
  total = sum(part.seconds for part in parts.values())
  rows = []
  for name, part in sorted(parts.items(), key=lambda item: -item[1].seconds):
    floor = max(part.flops / peak, part.bytes / stream) / part.seconds
    rows.append(
      [
        name,
        f"{part.seconds * 1e3:.2f}",
        f"{part.seconds / total:.1%}",
        f"{part.flops / 1e9:.2f}" if part.flops else "—",
        f"{part.bytes / 2**20:,.0f}",
        f"{floor:.0%}",
      ]
    )
  rows.append(["all kernels", f"{total * 1e3:.2f}", "", "", "", ""])
  rows.append(["a step that is not traced", f"{step * 1e3:.2f}", "", "", "", ""])
  heads = ("part", "ms", "share", "GFLOPs", "MiB moved", "of the limit")
  limits = f"Limits: {peak / 1e9:.0f} GFLOP/s in a large product, {stream / 1e9:.1f} GB/s in a sum."
  shown = tabulate(rows, heads, "pipe", disable_numparse=True, colalign=("left", *["right"] * 5))
  return f"## {case.label}: {case.title}\n\n{shown}\n\n{limits}"


def main(argv: list[str], command: str) -> None:
  """Print the account of each case, and write them to a folder.

  Raises:
    UserError: there is no such encoding or size, or the folder cannot be written.
  """
  parser = benchmark.parser_of("account", "Accounts for a training step, by part.", EXAMPLES)
  args = benchmark.arguments(argv, parser)
  if args.passes != ["step"] or args.texts or args.peers or args.authors or args.ahead:
    raise UserError("an account is of posexp's own steps on the CPU: leave other passes out")
  with contextlib.suppress(AttributeError):  # where a process cannot be bound, its threads share
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
  prepare()
  jax.config.update("jax_enable_compilation_cache", False)  # a program from there has no frames
  groups, notes = cases.plan(args)
  output.check_writable(args.out)
  typed, *others = output.about(command, notes)
  texts = ["# Where a training step's time goes", f"```\n{typed}\n```"]
  texts.append("\n".join(f"- {each}" for each in others))
  asked = [
    case
    for case in itertools.chain(*groups)
    if case.name in args.encodings or args.encodings == ["all"]
  ]
  account(asked[0])  # the first trace of a process finds memory that is not yet its own
  for case in asked:
    texts.append(table(*account(case), case))
    print(f"\n{texts[-1]}", flush=True)
  output.write(args.out, {NAME: "\n\n".join(texts) + "\n"})


if __name__ == "__main__":
  said = shlex.join(["python", "scripts/account.py", *sys.argv[1:]])
  run(lambda argv: main(argv, said))
