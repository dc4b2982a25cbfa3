"""How long large data take from files to the first step: `python scripts/large.py`.

Writes pairs of sentences and running text of invented words, as many as in WMT's English and German
and in a large corpus of bytes, and trains a small model on each for one step, twice: with nothing
prepared, and with what the first run has left in the cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
COLUMNS = ["data", "MB", "first step, s", "CPU s", "peak MiB", "again, s", "again, CPU s"]
EXAMPLES = """\
examples:
  python scripts/large.py --out docs/benchmarks/large
  python scripts/large.py --pairs 100000 --bytes 10000000
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """The options; UserError if they cannot be understood."""
  parser = Parser("", "Measures how long large data take to the first step.", EXAMPLES)
  parser.prog = "python scripts/large.py"
  add = parser.add_argument
  add("--pairs", type=int, default=4_500_000, help="of sentences; default: 4,500,000")
  add("--bytes", type=int, default=500_000_000, help="of text, roughly; default: 500,000,000")
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


def write(path: Path, count: int, seed: int) -> None:
  """A file of so many lines."""
  with path.open("w") as file:
    file.writelines(sentences(count, seed))


def first_step(folder: Path, name: str, options: list[str]) -> tuple[float, float, float]:
  """Seconds from Enter to the end of the first step, and CPU seconds and MiB of the whole run.

  Raises:
    UserError: the run failed.
  """
  runs = folder / "runs" / name
  command = [sys.executable, "-m", "posexp.train", f"runs={runs}", *options]
  fixed = ["encoding=sinusoidal", "model=tiny", "train.steps=1", "wandb.mode=disabled"]
  environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
  with (folder / "log").open("w") as log:
    process = subprocess.Popen([*command, *fixed], env=environment, stdout=log, stderr=log)
    _, status, used = os.wait4(process.pid, 0)
  summaries = [*runs.rglob("summary.json")]
  if status or not summaries:
    raise UserError(f"the run failed: {(folder / 'log').read_text().splitlines()[-1]}")
  seconds = json.loads(summaries[0].read_text())["time/first_step_seconds"]
  return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def measure(folder: Path, data: str, size: int, options: list[str]) -> list[str]:
  """A row of the table."""
  seconds, cpu, peak = first_step(folder, "first", options)
  again, cpu_again, _ = first_step(folder, "again", options)
  figures = [size / 1e6, seconds, cpu, peak, again, cpu_again]
  return [data, *(f"{each:,.0f}" if each >= 20 else f"{each:.1f}" for each in figures)]


def translation(pairs: int) -> list[str]:
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for number, side in enumerate(("en", "de")):
      write(folder / f"train.{side}", pairs, seed=number)
      write(folder / f"held.{side}", HELD_OUT, seed=number + 2)
    size = sum(each.stat().st_size for each in folder.glob("train.*"))
    held = [f"task.{split}={folder / 'held'}" for split in ("validation", "test")]
    options = ["task=translation", f"task.train={folder / 'train'}", *held]
    options += ["task.vocab_size=32000", "task.beam=1"]
    return measure(folder, f"{pairs:,} pairs, BPE of 32,000", size, options)


def language_model(size: int) -> list[str]:
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write(folder / "train.txt", size // 160, seed=0)
    write(folder / "held.txt", HELD_OUT, seed=1)
    held = [f"task.{split}={folder / 'held.txt'}" for split in ("validation", "test")]
    options = ["task=language_modeling", f"task.train={folder / 'train.txt'}", *held]
    size = (folder / "train.txt").stat().st_size
    return measure(folder, "bytes of running text", size, options)


def main(argv: list[str]) -> None:
  args = arguments(argv)
  output.check_writable(args.out)
  notes = ["peak and CPU are those of a whole run of one step and its evaluation"]
  command = f"python scripts/large.py --pairs {args.pairs} --bytes {args.bytes} --out {args.out}"
  about = output.about(command, notes)
  table = tabulate(
    [translation(args.pairs), language_model(args.bytes)],
    COLUMNS,
    "pipe",
    disable_numparse=True,
    colalign=["left", *["right"] * (len(COLUMNS) - 1)],
  )
  parts = ["# Large data", f"```\n{about[0]}\n```", "\n".join(f"- {each}" for each in about[1:])]
  text = "\n\n".join([*parts, table]) + "\n"
  output.write(args.out, {"benchmark.md": text})
  print(text)


if __name__ == "__main__":
  run(main)
