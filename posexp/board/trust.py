"""Whether numbers can be trusted: this machine's beside published ones, and those of an entry.

A machine is calibrated before it trains a row: it must make the batches of the suite, begin with
the same losses, and end within the published distribution. An entry is verified before it is
published.
"""

from __future__ import annotations

import json
import math
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from posexp import storage
from posexp.board.rows import TRACKS, Row, about_row, work
from posexp.board.standings import Standing, chosen
from posexp.board.suite import Column, Suite, beginning_of
from posexp.config import command_line, plugins, resolve, show
from posexp.config.command_line import typed_for
from posexp.config.overrides import read
from posexp.errors import UserError, counted
from posexp.reporting.significance import estimate
from posexp.runs import Run, digest, read_run
from posexp.runs.context_losses import with_context_losses
from posexp.runs.examples import Examples
from posexp.runs.lengths import extrapolation
from posexp.runs.records import read_records
from posexp.sweeps import jobs
from posexp.sweeps.supervise import carry_out
from posexp.sweeps.sweep import DONE, Sweep, Train

CLOSE = 1e-5  # of losses at the beginning
SAME = 1e-6  # of scores on the same processor, with the same versions
FREE = 0.02  # of the way between anchors, by which a score may always differ elsewhere
CHANCE = 0.01  # of stopping a machine that is in order
TESTED = ("test/", "beyond/", "context/", "chance/")  # how keys of test scores begin
SEEDS = (0, 1)  # of calibrating runs
AGAIN = 3  # runs of an entry that are trained again


def config_of(column: Column, encoding: str, seed: int, more: Sequence[str] = ()) -> dict[str, Any]:
  """Return the config of a run of an encoding in a column."""
  rate = f"train.learning_rate={column.learning_rate:g}"
  lines = [f"encoding={encoding}", *column.options, f"task.name={column.name}", rate, *more]
  overrides = read([*lines, f"seed={seed}", "tracker=none"])
  return resolve(command_line.shared(overrides))


def calibrate(
  suite: Suite, published: Sequence[Standing], out: Path, overrides: Sequence[str], train: Train
) -> Iterator[str]:
  """Compare this machine with what is published, column by column; yield what was found.

  What has been found is kept in `out`, so that a command that goes on does not begin again.

  Raises:
    UserError: batches, losses or scores differ, and how.
  """
  from posexp.training.versions import machine

  file = out / "calibration.json"
  done = storage.parse(storage.read(file) or b"{}")
  key = storage.digest(suite.digest, machine())[:12]
  for name, encodings in suite.frozen.get("calibration", {}).items():
    for encoding, seeds in encodings.items():
      place = f"{key} {name} {encoding}"
      if place not in done:
        column = suite.columns[name]
        for seed, want in seeds.items():
          _check_beginning(beginning_of(config_of(column, encoding, int(seed))), want, place, seed)
        base = next((r for r in published if (r.name, r.track) == (encoding, TRACKS[0])), None)
        done[place] = "batches and first losses are those of the suite"
        if base is not None and name in base.chosen:
          done[place] += "; " + _check_scores(base, column, out, overrides, train)
        storage.write(file, json.dumps(done, indent=1))
      yield f"{name}, {encoding}: {done[place]}"


def _check_beginning(
  found: Mapping[str, Any], want: Mapping[str, Any], place: str, seed: int
) -> None:
  where = f"calibration: {place.partition(' ')[2].replace(' ', ', ')}, seed {seed}"
  if found["batches"] != want["batches"]:
    raise UserError(
      f"{where}: the batches of training are others ({found['batches']}) than those of the suite "
      f"({want['batches']}); compare the versions of numpy, num2words, babel and tokenizers"
    )
  if abs(found["loss"] - want["loss"]) > CLOSE * abs(want["loss"]):
    raise UserError(
      f"{where}: the first loss is {found['loss']}, and {want['loss']} in the suite: weights begin "
      "elsewhere, or are multiplied otherwise; compare the versions of jax and flax, and the device"
    )


def _check_scores(
  base: Standing, column: Column, out: Path, overrides: Sequence[str], train: Train
) -> str:
  """Train two runs of a published row, and say that their scores lie among the published ones."""
  options = [*base.about["options"], *base.chosen[column.name].split()]
  configs = [config_of(column, base.about["encoding"], seed, options) for seed in SEEDS]
  runs = trained(configs, out / "runs" / "calibration", overrides, train)
  sides = [side for side in column.sides if (column.name, side) in base.cells]
  for side in sides:
    values = [*base.cells[column.name, side].values.values()]
    for run in runs:
      value = column.value(run, side)
      if not agrees(value, values, column, side, len(runs) * len(sides)):
        raise UserError(
          f"calibration: {column.name}, {base.name}, seed {run.seed}: {column.sides[side].score} "
          f"is {value:.4f}, and published runs have {min(values):.4f} to {max(values):.4f}, so "
          "rows of this machine cannot stand beside them; compare versions and the device"
        )
  return f"{counted(len(runs), 'run')} end among the published ones"


def agrees(
  value: float | None, others: Sequence[float], column: Column, side: str, tests: int = 1
) -> bool:
  """Return whether a score may be of the distribution of others: whether it lies in the interval
  in which one more would be expected, or hardly outside.
  """
  found, n = estimate(others), len(others)
  error = (found.sd or 0.0) * math.sqrt(1 + 1 / n)
  reach = special.stdtrit(max(n - 1, 1), 1 - CHANCE / tests / 2)
  free = FREE * abs(column.sides[side].high - column.sides[side].low)
  return value is not None and abs(value - found.mean) <= max(reach * error, free)


def trained(
  configs: Sequence[Mapping[str, Any]], place: Path, overrides: Sequence[str], train: Train
) -> list[Run]:
  """Train runs of some configs in a folder; return them. UserError if one fails."""
  members = []
  for config in configs:
    lines = [f"{key}={value}" for key, value in typed_for(config).items() if key != "seed"]
    given = read([*lines, f"seed={config['seed']}", "tracker=none", f"runs={show(str(place))}"])
    members += jobs.members(Namespace(overrides=given, multirun=True), command_line.shared(given))
  for number, each in enumerate(members, start=1):
    each.number = number
    each.options = (
      f"{each.config['task']['name']}, {each.config['encoding']}, seed={each.config['seed']}"
    )
  sweep = Sweep(members)
  if any(each.state != DONE for each in members):
    carry_out(sweep, work(overrides, len(members), train), live=False)
  if failed := [each for each in sweep.runs if each.state != DONE]:
    raise UserError(f"{failed[0].options}: {failed[0].reason or failed[0].state}")
  return with_context_losses([read_run(each.path) for each in members])[0]


def verify(
  file: Path, suite: Suite, out: Path, overrides: Sequence[str], train: Train
) -> Iterator[str]:
  """Yield what holds of an entry, check by check.

  Raises:
    UserError: the entry is refused, and why.
  """
  about, every = about_row(file), read_records(file, trials=True)
  if about["suite"] != suite.digest:
    raise UserError(f"{file} is refused: it is of suite {about['suite']}, not {suite.digest}")
  suite.check_code()
  yield f"suite     {suite.name} ({suite.digest})"
  yield _check_code(file, about)
  row = Row.named(about["encoding"], about["options"], about["name"])
  for column in suite.columns.values():
    if runs := [run for run in every if run.task == column.name]:
      _check_budget(file, row, column, suite, about, runs)
  known = {run.task for run in every}
  if strange := known - {*suite.columns}:
    raise UserError(f"{file} is refused: {strange.pop()} is no column of the suite")
  finals = [run for run in every if not run.trial]
  yield f"budget    {counted(len(every) - len(finals), 'trial')} without a test score, and "
  for run in finals:
    _check_numbers(file, run)
  yield f"          {counted(len(finals), 'run')} that they chose, as their examples say"
  yield from _check_again(file, finals, suite, out, overrides, train)


def _check_code(file: Path, about: Mapping[str, Any]) -> str:
  """Say whose code an entry is of; UserError if it is not the code that is loaded."""
  name, code = about["encoding"], about["code"]
  own = plugins.found("encoding").get(name)
  if (code is None) != (own is None):
    raise UserError(
      f"{file} is refused: its encoding {name} is of the file {code['file']}; name it, with "
      f"plugins={code['file']}"
      if code
      else f"{file} is refused: it is of posexp's own {name}, and {own.file} has another"
    )
  if code and own.sha256 != code["sha256"]:
    raise UserError(
      f"{file} is refused: {own.file.name} is not the code that was trained (sha256 "
      f"{own.sha256[:12]}, and {code['sha256'][:12]} in the entry)"
    )
  return f"code      {code['file'] if code else 'of posexp'}, encoding {name}"


def _check_budget(
  file: Path, row: Row, column: Column, suite: Suite, about: dict[str, Any], runs: Sequence[Run]
) -> None:
  """Check that the runs of a column are those that the suite asks for, and no others."""

  def refuse(why: str) -> UserError:
    return UserError(f"{file} is refused: {column.name}: {why}")

  from posexp.training.setup import Setup

  for run in runs:
    if run.digest != digest(run.config, **Setup.of(run.config).data_digests()):
      raise refuse(f"the options of {_named(run)} are not those of its digest {run.digest}")
    keys = [*run.summary, *(key for line in run.history for key in line)] if run.trial else []
    if tested := [key for key in keys if key.startswith(TESTED)]:
      raise refuse(f"{_named(run)} is a trial and has the test score {tested[0]}")
    sha = (run.config.get("plugins") or {}).get("encoding", {}).get("sha256")
    if sha != (about["code"] or {}).get("sha256"):
      raise refuse(f"{_named(run)} was trained with other code ({str(sha)[:12]})")
  planned = row.planned(suite, column, about["quick"], Path(f".{file.stem}"))  # no folder of runs
  want = {(each.path.parent.name, each.config["seed"]) for each in planned if each.of}
  trials = {(run.digest, run.seed) for run in runs if run.trial}
  if want != trials:
    raise refuse(
      f"the suite asks for {len(want)} trials, of which {len(want - trials)} are missing, and "
      f"{len(trials - want)} are none of them"
    )
  tracks = TRACKS[: 1 + suite.budget(about["quick"]).option]
  points = [chosen(runs, about, track) for track in tracks]
  best = {point.runs[0].digest for point in points if point is not None}
  seeds = range(suite.budget(about["quick"]).seeds)
  want = {(each, seed) for each in best for seed in seeds}
  finals = [(run.digest, run.seed) for run in runs if not run.trial]
  if other := [each for each in finals if each not in want]:
    raise refuse(f"its trials did not choose the run {other[0][0]} seed={other[0][1]}")
  if len(finals) != len(want):
    raise refuse(f"it has {len(finals)} of {len(want)} results")


def _named(run: Run) -> str:
  return f"{run.encoding}/{run.digest} seed={run.seed}"


def _check_numbers(file: Path, run: Run) -> None:
  """Check that a summary says what the run's examples and rows of metrics say."""

  def compare(key: str, value: float, by: str) -> None:
    said = run.score(key)
    if said is None or abs(said - value) > 1e-4 * max(abs(value), 1.0):
      raise UserError(
        f"{file} is refused: {run.task}: {_named(run)}: {key} is {said}, and by {by} it is "
        f"{value:.6f}"
      )

  row = next((each for each in run.history if each["step"] == run.summary.get("step")), {})
  for key in [key for key in run.summary if key.startswith("validation/") and key in row]:
    compare(key, row[key], "the rows of training")
  if not run.examples:
    raise UserError(f"{file} is refused: {run.task}: {_named(run)} has no record of its examples")
  for split, metrics in run.examples.items():
    for metric, packed in metrics.items():
      one = Examples.unpacked(packed)
      if f"{split}/{metric}" in run.summary:
        compare(f"{split}/{metric}", one.amounts.sum() / one.sizes.sum(), "its examples")
      each, task = run.settings.get("task.examples"), f"{split}/{metric}/"
      parts = [key for key in run.summary if key.startswith(task)]
      if "task.lengths" in run.settings and len(one.sizes) == len(parts) * (each or 0):
        for key, values in zip(parts, np.split(one.amounts, len(parts)), strict=True):
          compare(key, values.mean(), "its examples")
  for key, value in extrapolation(run.summary).items():
    compare(key, value, "its scores by length")


def _check_again(
  file: Path,
  finals: Sequence[Run],
  suite: Suite,
  out: Path,
  overrides: Sequence[str],
  train: Train,
) -> Iterator[str]:
  """Train some runs of an entry again, drawn by chance, and compare their scores."""
  drawn = random.SystemRandom().sample(list(finals), min(AGAIN, len(finals)))
  again = trained([run.config for run in drawn], out / "runs" / "verified", overrides, train)
  for before, now in zip(drawn, again, strict=True):
    column = suite.columns[before.task]
    alike = _place(before) == _place(now)
    group = [run for run in finals if (run.task, run.digest) == (before.task, before.digest)]
    for side in column.sides:
      said, found = column.value(before, side), column.value(now, side)
      values = [value for run in group if (value := column.value(run, side)) is not None]
      close = (
        said is not None and found is not None and abs(said - found) <= SAME * max(1, abs(said))
      )
      if not close and (alike or not agrees(found, values, column, side, 2 * AGAIN)):
        raise UserError(
          f"{file} is refused: {column.name}: {_named(before)} has {column.sides[side].score} = "
          f"{said}, and trained again {found}"
        )
      how = "to the digit" if close else "within its distribution"
      yield f"again     {column.name} ({side}) {_named(before)}: {found:.6g}, {how}"


def _place(run: Run) -> tuple[Any, ...]:
  """Return what decides the last digits of a run: the processor and the libraries."""
  facts = {
    key: value for key, value in run.facts.items() if key not in ("posexp", "cores", "ended")
  }
  facts.pop("versions", None)
  return tuple(sorted((key, str(value)) for key, value in facts.items()))
