"""Whether rows of this machine can stand beside published ones.

A machine is calibrated before it trains a row: it must make the batches of the suite, begin with
the same losses, and end within the published distribution. What has been found is kept in the cache
of the machine. An encoding of one's own must have the
properties that all encodings have.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import special

from posexp import storage
from posexp.board.rows import work
from posexp.board.standings import Cell, Standing
from posexp.board.suite import TRACKS, Column, Suite, beginning_of
from posexp.config import command_line, resolve, show
from posexp.config.overrides import read
from posexp.errors import UserError, counted
from posexp.reporting.significance import estimate
from posexp.runs import Run, read_run
from posexp.runs.context_losses import with_context_losses
from posexp.sweeps import jobs
from posexp.sweeps.launch import typed_for
from posexp.sweeps.supervise import carry_out
from posexp.sweeps.sweep import DONE, WAITING, Member, Sweep, Train

CHECK = 60.0  # processor seconds of posexp.check
CLOSE = 1e-5  # of losses at the beginning
FREE = 0.02  # of the way between anchors, by which a score may always differ elsewhere
CHANCE = 0.01  # of stopping a machine that is in order
SEEDS = (0, 1)  # of calibrating runs


def check_properties(encoding: str, options: Sequence[str], files: Sequence[Path]) -> None:
  """Raise UserError if an encoding of these plugins lacks a property that all encodings have."""
  words = [sys.executable, "-m", "posexp.check", f"encoding={encoding}"]
  if files:  # none of an encoding of an installed package
    words.append(f"plugins={show([str(file) for file in files])}")
  print(f"check     {encoding}: the properties of every encoding, about a minute", flush=True)
  done = subprocess.run([*words, *options], capture_output=True, text=True)
  if done.returncode:
    failed = [line for line in done.stdout.splitlines() if " fails " in line] or [done.stderr]
    raise UserError(f"posexp.check: {failed[0].strip()}; it has no place before that holds")


def config_of(column: Column, encoding: str, seed: int, more: Sequence[str] = ()) -> dict[str, Any]:
  """Return the config of a run of an encoding in a column."""
  rate = f"train.learning_rate={column.learning_rate:g}"
  lines = [f"encoding={encoding}", *column.options, f"task.name={column.name}", rate, *more]
  overrides = read([*lines, f"seed={seed}", "tracker=none"])
  return resolve(command_line.shared(overrides))


class Calibration(NamedTuple):
  """A comparison of this machine with a published row in a column, kept once it has succeeded."""

  column: Column
  encoding: str
  beginnings: Mapping[Any, Mapping[str, Any]]  # by seed: what runs begin with
  base: Standing | None  # the published row, if it has the column

  @property
  def parts(self) -> list[Any]:
    """What the result depends on."""
    from posexp.training.costs import machine

    cells = [score for (name, _), score in self.scores.items() if name == self.column.name]
    values = [[*cell.values.values()] for cell in cells]
    return [self.column.digest, self.encoding, machine(), values]

  @property
  def scores(self) -> Mapping[tuple[str, str], Cell]:
    return self.base.cells if self.base else {}

  @property
  def seconds(self) -> float:
    """The processor seconds of its runs, which the suite estimates; 0 once it has succeeded."""
    done = storage.cached_file("calibration", *self.parts).exists()
    return 0.0 if done or self.base is None else self.column.seconds * len(SEEDS)


def calibrations(
  suite: Suite, published: Sequence[Standing], asked: Iterable[Column]
) -> list[Calibration]:
  """Return the calibrations of a machine that trains some columns: one in the cheapest column with
  a decoder, and one in the cheapest with an encoder. Controls are left out.
  """
  frozen = suite.frozen.get("calibration", {})
  known = [suite.columns[name] for name in frozen if not suite.columns[name].control]
  asked = [each for each in asked if each in known] or known
  cheapest: dict[bool, Column] = {}
  for column in sorted(asked, key=lambda each: each.seconds):
    cheapest.setdefault(column.encoder, column)
  rows = {row.name: row for row in published if row.track == TRACKS[0]}
  chosen = []
  for column in cheapest.values():
    for encoding, beginnings in frozen[column.name].items():
      base = rows.get(encoding)
      base = base if base and column.name in base.chosen else None
      chosen.append(Calibration(column, encoding, beginnings, base))
  return chosen


def calibrate(each: Calibration, out: Path, overrides: Sequence[str], train: Train) -> str:
  """Compare this machine with the published rows, and return the result in words.

  Raises:
    UserError: batches, losses or scores differ, and how.
  """

  def compared() -> str:
    for seed, want in each.beginnings.items():
      kept = beginning_of(config_of(each.column, each.encoding, int(seed)))
      _check_beginning(kept, want, f"{each.column.name}, {each.encoding}, seed {seed}")
    said = "batches and first losses are those of the suite"
    if each.base is not None:
      said += "; " + _check_scores(each.base, each.column, out, overrides, train)
    return said

  kept = storage.cached("calibration", compared, *each.parts)
  return f"{each.column.name}, {each.encoding}: {kept}"


def _check_beginning(found: Mapping[str, Any], want: Mapping[str, Any], place: str) -> None:
  where = f"calibration: {place}"
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
      value = run.score(column.sides[side].score)
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
  """Return whether a score may come from the distribution of others: whether it lies in their
  prediction interval, or hardly outside.
  """
  own, n = estimate(others), len(others)
  error = (own.sd or 0.0) * math.sqrt(1 + 1 / n)
  reach = special.stdtrit(max(n - 1, 1), 1 - CHANCE / tests / 2)
  free = FREE * abs(column.sides[side].high - column.sides[side].low)
  return value is not None and abs(value - own.mean) <= max(reach * error, free)


def trained(
  configs: Sequence[Mapping[str, Any]], place: Path, overrides: Sequence[str], train: Train
) -> list[Run]:
  """Train runs of some configs in a folder; return them. UserError if one fails."""
  members: list[Member] = []
  for config in configs:
    lines = [f"{key}={value}" for key, value in typed_for(config).items() if key != "seed"]
    given = read([*lines, f"seed={config['seed']}", "tracker=none", f"runs={show(str(place))}"])
    (job,) = jobs.members(Namespace(overrides=given, multirun=True), command_line.shared(given))
    members.append(_trial(job, config["trial"]) if config.get("trial") else job)
  for number, member in enumerate(members, start=1):
    member.number = number
    member.options = (
      f"{member.config['task']['name']}, {member.config['encoding']}, seed={member.config['seed']}"
    )
  sweep = Sweep(members)
  if any(each.state != DONE for each in members):
    carry_out(sweep, work(overrides, len(members), train), live=False)
  if failed := [run for run in sweep.runs if run.state != DONE]:
    raise UserError(f"{failed[0].options}: {failed[0].reason or failed[0].state}")
  return with_context_losses([read_run(each.path) for each in members])[0]


def _trial(member: Member, group: str) -> Member:
  """Return a run as the trial of a group of runs that it was, since a trial is never tested."""
  *_, name, seed = member.path.parts
  path = member.path.parents[1] / group / "trials" / name / seed
  trial = dataclasses.replace(member, config=member.config | {"trial": group}, path=path)
  trial.state = DONE if trial.finished else WAITING
  return trial
