"""Whether an entry may be published: some of its runs are trained again, and compared.

Only training can tell whether numbers were measured at all. The file is read without the entry's
plugin, which could change how files are read; the plugin is executed by other processes, which
train and check it. It could still read the file and answer with its numbers, so a person has to
read the plugin.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posexp import reading
from posexp.board.choices import FACTOR, Choice
from posexp.board.rows import Row
from posexp.board.standings import about_row
from posexp.board.suite import TRACKS, Column, Suite
from posexp.board.trust import agrees, check_properties, config_of
from posexp.config import plugins, show
from posexp.config.overrides import read
from posexp.config.schema import flat
from posexp.errors import UserError, counted, near
from posexp.machine import cores
from posexp.runs import Run, read_runs
from posexp.runs.context_losses import with_context_losses
from posexp.runs.identity import settings
from posexp.runs.records import read_records
from posexp.training.setup import Setup

SAME = 1e-6  # of scores on the same processor, with the same versions
ENDS = ((min, -1), (max, 1))  # of the rates that are tried
AGAIN = 3  # runs of an entry that are trained again, of which one is a trial if there are some


def verify(
  file: Path, files: Sequence[Path], suite: Suite, published: Path, out: Path
) -> Iterator[str]:
  """Check an entry; yield the result of each check.

  Args:
    file: the records of the entry.
    files: its plugins, which are loaded here for a suite of one's own alone.
    suite: that of the entry.
    published: the folder of published rows.
    out: a folder for the runs that are trained again.

  Raises:
    UserError: the entry is refused, and why.
  """
  if not file.exists():
    raise UserError(f"{file}: there is no such file")
  about, every = about_row(file), read_records(file, trials=True)
  with _saying(f"{near(file)} is refused"):
    _check_row(file, files, about, suite, published)
    for name in dict.fromkeys(run.task for run in every):
      with _saying(name):
        _check_column(suite, name, about, [run for run in every if run.task == name])
    yield f"options   those of the suite {suite.name} in {counted(len(every), 'run')}"
    if about["code"]:
      check_properties(about["encoding"], about["options"], files)
    finals, trials = (
      [number for number, run in enumerate(every) if bool(run.trial) == kind]
      for kind in (False, True)
    )
    draw = random.SystemRandom()
    drawn = draw.sample(trials, min(1, len(trials)))
    drawn += draw.sample(finals, min(AGAIN - len(drawn), len(finals)))
    again = train_again(file, drawn, out / "runs" / "verified", files)
    for before, now in zip(map(every.__getitem__, drawn), again, strict=True):
      with _saying(f"{before.task}: {_named(before)}"):
        alike = [run for run in every if not run.trial and run.path.parent == before.path.parent]
        for line in compared(before, now, suite.columns[before.task], alike):
          yield f"again     {line}"


@contextlib.contextmanager
def _saying(where: str) -> Iterator[None]:
  """Begin the messages of errors with the place where they occur."""
  try:
    yield
  except UserError as error:
    raise UserError(f"{where}: {error}") from error


def _named(run: Run) -> str:
  return f"{run.encoding}/{run.digest} seed={run.seed}"


def _check_row(
  file: Path, files: Sequence[Path], about: Mapping[str, Any], suite: Suite, published: Path
) -> None:
  """Check the suite, the code and the name of an entry."""
  if about["suite"] != suite.name:
    raise UserError(f"it is of the suite {about['suite']}: type --suite {about['suite']}")
  name, code = about["name"], about["code"]
  own = {hashlib.sha256(reading.read(path) or b"").hexdigest() for path in files}
  if code and not files:
    raise UserError(
      f"its encoding {about['encoding']} is of the file {code['file']}; name it, with "
      f"plugins={code['file']}"
    )
  if files and code is None and not suite.own:
    raise UserError(f"the entry used posexp's own code: leave plugins={near(files[0])} out")
  if code and code["sha256"] not in own:
    raise UserError(f"{near(files[0])} is not the code that was trained")
  if name != file.stem:
    raise UserError(f"its row is named {name}, so its file has to be {name}.parquet")
  Row.check(name, about["encoding"], about["options"])
  if (other := published / file.name).exists() and not other.samefile(file):
    here, there = ([row["encoding"], *row["options"]] for row in (about, about_row(other)))
    if here != there:
      raise UserError(f"{name} is published with encoding={' '.join(there)}; take another --name")


def _check_column(suite: Suite, name: str, about: dict[str, Any], runs: Sequence[Run]) -> None:
  """Check that runs have the options of a column, and are as many as its budget asks for."""
  if (column := suite.columns.get(name)) is None:
    raise UserError("it is no column of the suite")
  if (digest := about["columns"].get(name)) != column.digest:
    raise UserError(f"it was trained in {digest}, and the column of the suite is {column.digest}")
  plugins.check("task", runs[0].config)
  config = config_of(column, "none", 0)
  column.check_examples(config)
  whole = Setup.of(config).config
  asked = flat(whole) | settings(whole)  # which has the digests of a task's file, too
  free = {"encoding", "train.learning_rate", *(o.key_or_group for o in read(about["options"]))}
  sha256 = (about["code"] or {}).get("sha256")
  budget = suite.budget(about["quick"])
  grid = [column.learning_rate * each for each in budget.rates]
  low, high = (end(grid) * FACTOR ** (sign * budget.doublings) for end, sign in ENDS)
  steps = range(-budget.doublings, budget.doublings + 1)
  every = {float(f"{rate * FACTOR**step:g}") for rate in grid for step in steps}
  rates = sorted(each for each in every if low * 0.99 < each < high * 1.01)
  for run in runs:
    if (rate := run.settings["train.learning_rate"]) not in rates:
      raise UserError(f"{_named(run)} has train.learning_rate={show(rate)}, not of {show(rates)}")
    if run.trial and any(run.score(side.score) is not None for side in column.sides.values()):
      raise UserError(f"{_named(run)} is a trial, and has a test score")
    for key, value in run.settings.items():
      own = key in free or key.startswith(f"{run.encoding}.")
      if not own and asked.get(key) != value:
        raise UserError(f"{_named(run)} has {key}={show(value)}, not {show(asked.get(key))}")
    used = (run.config.get("plugins") or {}).get("encoding", {}).get("sha256")
    if (run.encoding, used) != (about["encoding"], sha256):
      raise UserError(f"{_named(run)} was trained with another encoding than the row's")
  choice = Choice.of(runs, about["default"], column)
  tuned = budget.option and (choice is None or choice.is_tuned)  # default tracks are trained first
  tracks = column.tracks if tuned else TRACKS[:1]
  chosen = [[p.runs[0].digest for p in choice.of_track(t)] for t in tracks] if choice else []
  there = sorted((str(run.digest), run.seed) for run in runs if not run.trial)
  # Of points that tie, one is enough.
  best = {digest for digests in chosen for digest in digests} & dict(there).keys()
  missing = not all(any(digest in best for digest in digests) for digests in chosen)
  want = sorted((digest, seed) for digest in best for seed in range(budget.seeds))
  tried = len(choice.rates) if choice else len(grid)
  trials = max(tried, len(grid)) * (1 + tuned) * len(budget.trial_seeds)
  if choice and (rate := choice.next_rate(budget)) is not None:
    raise UserError(f"its best rate is at an edge: the suite asks for trials at {rate:g}, too")
  if missing or there != want or len(runs) - len(there) != trials:
    raise UserError(
      f"it has {counted(len(runs) - len(there), 'trial')} and {counted(len(there), 'result')}; the "
      f"suite asks for {trials}, and for all seeds of what they chose in each track, each once"
    )


def train_again(
  file: Path, numbers: Sequence[int], place: Path, files: Sequence[Path]
) -> list[Run]:
  """Train rows of a file of records again, each in a process of its own; return the runs."""
  named = [f"plugins={show([str(path) for path in files])}"] if files else []

  def train(number: int) -> Run:
    source = f"{file}:{number}"
    digest = hashlib.sha256(file.read_bytes() + str(number).encode()).hexdigest()[:12]
    own = [f"runs={show(str(place / digest))}", "tracker=none", *named]
    words = [sys.executable, "-m", "posexp.train", "--again", source, *own]
    env = os.environ | {"NPROC": "1"}  # by which the last digits do not depend on other runs
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    if done.returncode:
      said = (done.stderr.strip().splitlines() or ["it has ended without a word"])[-1]
      raise UserError(f"{source} cannot be trained again: {said.removeprefix('posexp: error: ')}")
    return with_context_losses(read_runs([place / digest], trials=True)[0])[0][0]

  with ThreadPoolExecutor(cores()) as pool:
    return [*pool.map(train, numbers)]


def compared(before: Run, now: Run, column: Column, alike: Sequence[Run]) -> Iterator[str]:
  """Yield how well the scores of an entry agree with the run that was trained again.

  On another processor, where the last digits differ, its score must lie in the distribution of the
  seeds `alike`, and a trial, which has too few of them, may have another.
  """
  if now.digest != before.digest:
    raise UserError(f"its options are not those of its digest, and give {now.digest}")
  scores = {side: of.score for side, of in column.sides.items()}
  if before.trial:
    scores = {"trial": before.summary["headline"][0]}
  for side, key in scores.items():
    said, trained_again = before.score(key), now.score(key)
    values = [value for run in alike if (value := run.score(key)) is not None]
    if said is None and not before.summary.get("diverged"):
      raise UserError(f"it has no {key}")
    close = said == trained_again or (
      None not in (said, trained_again) and abs(said - trained_again) <= SAME * max(1.0, abs(said))
    )
    if not close and (
      _place(before) == _place(now)
      or not (before.trial or agrees(trained_again, values, column, side, 2 * AGAIN))
    ):
      raise UserError(f"{key} is {said}, and trained again {trained_again}")
    shown, was = ("diverged" if at is None else f"{at:.6g}" for at in (trained_again, said))
    how = f"{was} on another processor" if before.trial else "within its distribution"
    yield f"{column.name} ({side}) {_named(before)}: {shown}, {'to the digit' if close else how}"


def _place(run: Run) -> tuple[Any, ...]:
  """Return the processor and the libraries of a run, which decide its last digits."""
  own = ("posexp", "versions", "cores", "ended")
  return tuple(sorted((key, str(value)) for key, value in run.facts.items() if key not in own))
