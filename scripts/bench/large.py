"""How long large data take from files to the first step: `python scripts/bench/large.py`.

Writes pairs of sentences and running text of invented words, as many as in WMT's English and German
and in a large corpus of bytes, and trains a small model on each for one step, twice: with nothing
prepared, and with what the first run has left in the cache. A third run, of more steps, tells which
share of them devices waited for batches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from benchmarking import output
from tabulate import tabulate

from posexp.config.arguments import Parser, run
from posexp.errors import UserError

WORDS = 1_000_000  # invented ones
FALL = 1.15  # their frequencies fall with this power of their rank: as many as in German news
LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
MEAN, SPREAD = 22, 0.5  # words of a sentence, lognormal
HELD_OUT = 100  # pairs, or lines, of a validation and a test file
AT_ONCE = 20_000
STEPS = 50  # of the third run
LINE = 60  # bytes of a line, at the least in the mean of many
COLUMNS = [
  "data",
  "MB",
  "first step, s",
  "CPU s",
  "peak MiB",
  "again, s",
  "again, CPU s",
  "waiting",
]
EXAMPLES = """\
examples:
  python scripts/bench/large.py --out docs/benchmarks/large
  python scripts/bench/large.py --pairs 100000 --bytes 10000000
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """Return the options; UserError if they cannot be understood."""
  parser = Parser("", f"Measures how long large data take to the first step.\n\n{EXAMPLES}")
  parser.prog = "python scripts/bench/large.py"
  add = parser.add_argument
  add("--pairs", type=int, default=4_500_000, help="of sentences; default: 4,500,000")
  add("--bytes", type=int, default=500_000_000, help="of text; default: 500,000,000")
  add("--out", type=Path, default=Path("benchmark"), help="a folder; default: benchmark")
  args = parser.parse_args(argv)
  for name in ("pairs", "bytes"):
    if getattr(args, name) < 1_000:
      raise UserError(f"--{name} {getattr(args, name)}: it must be at least 1,000")
  return args


def sentences(count: int, seed: int) -> Iterator[str]:
  """Lines of invented words, of which the frequent ones are short."""
  random = np.random.default_rng(seed)
  lengths = (1 + 0.6 * np.log(np.arange(1, WORDS + 1)) + 2 * random.random(WORDS)).astype(int)
  letters = LETTERS[np.minimum(random.geometric(0.12, lengths.sum()) - 1, 25)]
  ends = np.cumsum(lengths)
  words = np.array(
    ["".join(letters[end - n : end]) for end, n in zip(ends, lengths, strict=True)], object
  )
  for start in range(0, count, AT_ONCE):
    sizes = random.lognormal(math.log(MEAN), SPREAD, min(AT_ONCE, count - start)).astype(int) + 1
    drawn = 1 + random.random(sizes.sum()) * (WORDS ** (1 - FALL) - 1)
    taken = words[(drawn ** (1 / (1 - FALL))).astype(int) - 1]
    for end, n in zip(np.cumsum(sizes), sizes, strict=True):
      yield " ".join(taken[end - n : end]) + "\n"


def write(path: Path, lines: Iterable[str], size: float = math.inf) -> None:
  """Return a file of these lines, or of as many as reach a size in bytes."""
  with path.open("w") as file:
    for line in lines:
      if size <= 0:
        break
      size -= file.write(line)


def trained(
  folder: Path, name: str, options: list[str], steps: int = 1
) -> tuple[dict[str, float], resource.struct_rusage]:
  """Return the summary of a run, and what its process used.

  Raises:
    UserError: the run failed.
  """
  runs = folder / "runs" / name
  command = [sys.executable, "-m", "posexp.train", f"runs={runs}", *options, f"train.steps={steps}"]
  fixed = ["encoding=sinusoidal", "model=tiny", "wandb.mode=disabled"]
  environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
  with (folder / "log").open("w") as log:
    process = subprocess.Popen([*command, *fixed], env=environment, stdout=log, stderr=log)
    _, status, used = os.wait4(process.pid, 0)
  summaries = [*runs.rglob("summary.json")]
  if status or not summaries:
    raise UserError(f"the run failed: {(folder / 'log').read_text().splitlines()[-1]}")
  return json.loads(summaries[0].read_text()), used


def measure(folder: Path, data: str, size: int, options: list[str]) -> list[str]:
  """Return a row of the table."""
  first, used = trained(folder, "first", options)
  again, used_again = trained(folder, "again", options)
  longer, _ = trained(folder, "longer", options, STEPS)
  figures = [size / 1e6, first["time/first_step_seconds"], cpu(used), used.ru_maxrss / 1024]
  figures += [again["time/first_step_seconds"], cpu(used_again)]
  steps = longer["time/seconds"] - longer["time/compile_seconds"]
  shown = [f"{figure:,.0f}" if figure >= 20 else f"{figure:.1f}" for figure in figures]
  return [data, *shown, f"{longer['time/input_seconds'] / steps:.2%}"]


def cpu(used: resource.struct_rusage) -> float:
  """CPU seconds."""
  return used.ru_utime + used.ru_stime


def translation(pairs: int) -> list[str]:
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for number, side in enumerate(("en", "de")):
      write(folder / f"train.{side}", sentences(pairs, seed=number))
      write(folder / f"held.{side}", sentences(HELD_OUT, seed=number + 2))
    size = sum(file.stat().st_size for file in folder.glob("train.*"))
    held = [f"task.{split}={folder / 'held'}" for split in ("validation", "test")]
    options = ["task=translation", f"task.train={folder / 'train'}", *held]
    options += ["task.vocab_size=32000", "task.beam=1"]
    return measure(folder, f"{pairs:,} pairs, BPE of 32,000", size, options)


def language_model(size: int) -> list[str]:
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write(folder / "train.txt", sentences(size // LINE, seed=0), size)
    write(folder / "held.txt", sentences(HELD_OUT, seed=1))
    held = [f"task.{split}={folder / 'held.txt'}" for split in ("validation", "test")]
    options = ["task=language_modeling", f"task.train={folder / 'train.txt'}", *held]
    size = (folder / "train.txt").stat().st_size
    return measure(folder, "bytes of running text", size, options)


def main(argv: list[str]) -> None:
  args = arguments(argv)
  output.check_writable(args.out)
  notes = [
    "peak and CPU are those of a whole run of one step and its evaluation",
    f"waiting: the share of {STEPS} steps in which devices had no batch, at the most",
  ]
  command = (
    f"python scripts/bench/large.py --pairs {args.pairs} --bytes {args.bytes} --out {args.out}"
  )
  about = output.about(command, notes)
  found = [translation(args.pairs), language_model(args.bytes)]
  rows = [dict(zip(COLUMNS, each, strict=True)) for each in found]
  output.write_rows(args.out, rows, about, "large", COLUMNS)
  print(tabulate(found, COLUMNS, disable_numparse=True))


if __name__ == "__main__":
  run(main)
