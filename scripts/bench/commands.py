"""Time every command from Enter to its answer: `python scripts/bench/commands.py`."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from posexp import storage
from posexp.config.arguments import Parser, run
from posexp.errors import UserError, writing
from posexp.runs import read_run
from posexp.runs.identity import folder, seal

NEEDS = {"nothing": 1.0, "a model": 2.5, "a check": 30.0, "many runs": 20.0}  # CPU seconds, at most
RATES = 20  # of learning, in which many runs differ beside their encodings
ENCODINGS = ("none", "sinusoidal", "learned", "rope", "alibi")
TRAINED = "task=tally train.steps=40 model.d_model=32 task.examples=40 runs=runs tracker=none"
COMMANDS = [  # (what it needs, its arguments); RUN, OTHER and MANY are folders
  ("nothing", "train --help"),
  ("a model", f"train {TRAINED} encoding=none"),  # which has finished; encodings are of JAX
  ("nothing", "report runs"),
  ("nothing", "compare RUN OTHER"),
  ("nothing", "judge MANY/a.csv MANY/b.csv"),
  ("a model", "inspect encoding=rope"),
  ("a model", "evaluate RUN"),
  ("a model", f"train {TRAINED} encoding=none train.steps=1 rerun=true"),
  ("a check", "check encoding=rpr rpr.k=4"),
  ("many runs", "leaderboard"),  # of all seeds of all rows
  ("many runs", "report MANY"),
]


class Spent(NamedTuple):
  """What one call took."""

  first: float  # seconds until its first line
  wall: float  # seconds
  cpu: float  # seconds, of the process and those that it started
  memory: float  # MiB, at most


def call(words: Sequence[str], place: Path) -> Spent:
  """Run a module of posexp in a folder; return what it took. Raises UserError if it fails."""
  begun = time.perf_counter()
  streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  with subprocess.Popen([sys.executable, "-m", *words], cwd=place, **streams) as process:
    said = process.stdout.readline()
    first = time.perf_counter() - begun
    said += process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode:
    last = said.strip().rpartition("\n")[2]
    raise UserError(f"python -m {shlex.join(words)} fails: {last}")
  wall = time.perf_counter() - begun
  return Spent(first, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10)


def multiply(run_folder: Path, out: Path, count: int) -> None:
  """Write so many runs, each with the rows and the files of one, and scores of its own."""
  run = read_run(run_folder)
  rows = [json.dumps(run.history[-1] | {"step": step}) for step in range(20, 1020, 20)]
  for number in range(count):
    group, seed = number % (len(ENCODINGS) * RATES), number // (len(ENCODINGS) * RATES)
    encoding = ENCODINGS[group % len(ENCODINGS)]
    config = {key: value for key, value in run.config.items() if key != run.encoding}
    rate = {"learning_rate": 1e-3 * (1 + group // len(ENCODINGS))}
    config |= {"runs": str(out), "seed": seed, "encoding": encoding, encoding: {}}
    config["train"] = config["train"] | rate
    place = folder(config)
    scale = 1 - (number * 0.6180339887 % 1) / 4  # scattered, and the same in each benchmark
    scored = ("validation", "test", "beyond")
    summary = run.summary | {
      key: scale * value
      for key, value in run.summary.items()
      if key.startswith(scored) and isinstance(value, float)
    }
    storage.write(place / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    storage.write(place / "metrics.jsonl", "\n".join([*rows, ""]))
    text = json.dumps(summary)
    seal(place, text)
    storage.write(place / "summary.json", text)


def prepare(place: Path, many: int) -> dict[str, str]:
  """Train two runs and multiply one; return the folders by the names that COMMANDS have."""
  for encoding in ENCODINGS[:2]:
    call(["posexp.train", *TRAINED.split(), f"encoding={encoding}"], place)
  found = sorted((place / "runs").glob("*/*/*/seed=0"))
  if not (place / "many" / "a.csv").exists():
    multiply(found[0], place / "many", many)
    for name, shift in (("a", 0.0), ("b", 0.1)):
      rows = [f"{seed},{0.5 + 0.01 * (seed % 3) + shift}" for seed in range(5)]
      storage.write(place / "many" / f"{name}.csv", "\n".join(["seed,score", *rows, ""]))
  names = [str(each.relative_to(place)) for each in found]
  return {"RUN": names[0], "OTHER": names[1], "MANY": "many"}


def arguments(argv: list[str]) -> tuple[Path, int, int]:
  """Return the folder, how many rounds, and how many runs the largest report has."""
  parser = Parser("", __doc__)
  parser.prog = "python scripts/bench/commands.py"
  parser.add_argument("--out", type=Path, default=Path("benchmark"), help="default: benchmark")
  parser.add_argument("--rounds", type=int, default=3, help="default: 3")
  parser.add_argument("--runs", type=int, default=10_000, help="of a report; default: 10000")
  args = parser.parse_args(argv)
  return args.out, args.rounds, args.runs


def main(argv: list[str]) -> None:
  """Print a row for each command, the median of its rounds, and write all to a folder."""
  out, count, many = arguments(argv)
  place = (out / "work").absolute()
  with writing("--out", out):
    place.mkdir(parents=True, exist_ok=True)
  folders = prepare(place, many)
  rows = []
  for needs, command in COMMANDS:
    module, *words = [folders.get(word, word) for word in command.split()]
    words = [word.replace("MANY/", "many/") for word in words]
    call([f"posexp.{module}", *words], place)  # which warms the caches
    spent = [call([f"posexp.{module}", *words], place) for _ in range(count)]
    first, wall, cpu, memory = (round(median(each), 2) for each in zip(*spent, strict=True))
    row = {"command": command, "needs": needs, "first line": first, "seconds": wall}
    rows.append(row | {"CPU seconds": cpu, "most": NEEDS[needs], "MiB": round(memory)})
    print(f"{first:6.2f} s {wall:6.2f} s {cpu:6.2f} CPU s {memory:6.0f} MiB  {command}", flush=True)
  with (out / "commands.csv").open("w", newline="") as file:
    table = csv.DictWriter(file, rows[0])
    table.writeheader()
    table.writerows(rows)
  from benchmarking.output import about  # brings JAX, whose memory a command would start with

  command, *machine = about(shlex.join(["python", "scripts/bench/commands.py", *argv]), [])
  said = json.dumps({"command": command, "about": machine}, indent=2)
  storage.write(out / "about.json", f"{said}\n")


if __name__ == "__main__":
  run(main)
