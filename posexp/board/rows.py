"""A row of the leaderboard: which runs it takes, their training, and the file of their records."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp import reading, storage
from posexp.board.suite import Column, Suite
from posexp.config import command_line, look_up, plugins, show
from posexp.config.overrides import read
from posexp.encodings import all_encodings, alternative_of
from posexp.errors import Unsuited, UserError, counted, lasting
from posexp.reporting.paired_predictions import packed_examples
from posexp.runs import Run, read_run
from posexp.runs.context_losses import with_context_losses
from posexp.runs.lengths import with_extrapolation
from posexp.runs.records import read_records, write_records
from posexp.sweeps import jobs, tuning
from posexp.sweeps.supervise import carry_out, trainer_for
from posexp.sweeps.sweep import DONE, RUNNING, WAITING, Member, Sweep, Train
from posexp.training.device_shares import devices

TRACKS = ("default", "tuned")  # the learning rate alone is tuned, or the encoding's option, too
OWN = ("positions", "model.logits_")  # options that a row may have, beside those of its encoding


@dataclasses.dataclass(frozen=True)
class Row:
  """An encoding with its options, under the name that the leaderboard has for it."""

  name: str
  encoding: str
  options: tuple[str, ...] = ()

  @classmethod
  def named(cls, encoding: str, options: Sequence[str], name: str | None = None) -> Row:
    """Return a row; raise UserError as `check` does, or for want of a name or of the encoding."""
    look_up(all_encodings(), encoding, "encoding")
    row = cls(name or encoding, encoding, tuple(options))
    cls.check(f"{encoding}-2" if options and not name else row.name, encoding, options)
    if (other := alternative_of(encoding)) and f"{other[0]}={show(other[1])}" in options:
      raise UserError(
        f"{other[0]}={show(other[1])}: the tuned track of {encoding} tries this value already; "
        "leave it out"
      )
    if options and not name:
      raise UserError(
        f"{' '.join(options)}: a row with options needs a name: --name {encoding}-2, say"
      )
    return row

  @staticmethod
  def check(name: str, encoding: str, options: Sequence[str]) -> None:
    """Raise UserError for an option that a suite has fixed, or a name that the row cannot have."""
    for line in options:
      if not line.startswith((f"{encoding}.", *OWN)):
        raise UserError(
          f"{line}: the suite says what is trained, and a row has options of its encoding, of "
          "positions and of model.logits_by alone; leave it out"
        )
    for override in read(options):
      if override.is_sweep_override():
        raise UserError(f"{override.input_line}: a row has one value; train a row for each")
    if name in all_encodings() and (name != encoding or options):
      raise UserError(f"--name {name}: this is the row of the encoding {name}; take another name")
    if not re.fullmatch(r"[\w.+@-]+( [\w.+@-]+)*", name, re.ASCII):
      raise UserError(f"--name {name}: use letters, digits, blanks and . _ + - @")

  def planned(self, suite: Suite, column: Column, quick: bool, place: Path) -> list[Member]:
    """Return the runs of the row in a column: trials, and runs that are chosen by them.

    Raises:
      Unsuited: the encoding cannot be trained on the column's task.
      UserError: an option is wrong.
    """
    budget, lines = suite.budget(quick), [f"encoding={self.encoding}", *column.options]
    rates = ",".join(f"{column.learning_rate * each:g}" for each in budget.rates)
    lines += [f"task.name={column.name}", f"train.learning_rate={column.learning_rate:g}"]
    lines += [*self.options, f"seeds={budget.seeds}", "tracker=none", f"runs={show(str(place))}"]
    lines += [f"tune.train.learning_rate={rates}", f"tune.option={str(budget.option).lower()}"]
    overrides = read([*lines, f"tune.seeds={','.join(map(str, budget.trial_seeds))}"])
    shared = command_line.shared(overrides)
    found = jobs.members(Namespace(overrides=overrides, multirun=True), shared)
    trials = [each for each in found if each.of]
    fixed = [each for each in found if not each.of and each.fixed is None]
    for each in trials:
      each.options = f"{column.name}: {each.options.replace('trial', f'trial of {self.name},', 1)}"
    finals = [
      Member(
        number=0,
        options=f"{column.name}: {self.name}, {track}, seed={each.config['seed']}",
        group=f"{column.name} {self.name} {track}",
        config=each.config,
        fixed=each,
        among=default_of(each.config) if track == TRACKS[0] else {},
      )
      for track in TRACKS[: 1 + budget.option]
      for each in fixed
    ]
    for _ in tuning.choose([*trials, *finals]):  # those whose trials have been trained before
      pass
    return [*trials, *finals]


def default_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the main option of an encoding with its value before tuning: {"rpr.k": 16}."""
  if (other := alternative_of(config["encoding"])) is None:
    return {}
  return {other[0]: config[config["encoding"]][other[0].partition(".")[2]]}


def planned(
  suite: Suite, rows: Sequence[Row], columns: Sequence[Column], quick: bool, place: Path
) -> Iterator[tuple[Row, dict[str, list[Member]], dict[str, str]]]:
  """Yield each row with its runs by column, and why it has none in a column."""
  for row in rows:
    found, without = {}, {}
    for column in columns:
      try:
        found[column.name] = row.planned(suite, column, quick, place)
      except Unsuited as error:
        without[column.name] = str(error)
    yield row, found, without


class Remaining(Sweep):
  """The runs of a row, with how many are left and about how long these take."""

  def __init__(self, columns: Mapping[str, list[Member]], suite: Suite):
    members = list(itertools.chain(*columns.values()))
    for number, each in enumerate(members, start=1):
      each.number = number
    super().__init__(members)
    self.cost = {
      each: suite.columns[name].seconds for name, runs in columns.items() for each in runs
    }
    self.spent = 0.0

  def to_train(self) -> list[Member]:
    return [each for each in self.runs if each.state != DONE and each.is_ready]

  def turn(self, member: Member, state: str, reason: str = "") -> None:
    if state == DONE:
      self.spent += self.cost[member]
    super().turn(member, state, reason)

  def _left(self) -> str:
    rest = [each for each in self.runs if each.state in (WAITING, RUNNING)]
    pace = (time.monotonic() - self.begun) / self.spent if self.spent else 0.0
    long = lasting(pace * sum(self.cost[each] for each in rest))
    return f"; {counted(len(rest), 'run')} left, about {long}"


def work(overrides: Sequence[str], count: int, train: Train) -> Callable[..., Any]:
  """Return the function that trains so many runs: by default as many at once as there are cores
  or devices.
  """
  lines = [*overrides]
  if not any(line.startswith(("workers=", "hydra/launcher=")) for line in lines):
    bound = devices("auto", count)
    lines.append(f"workers={len(bound) if bound[0] else min(cores(), count)}")
  given = read(lines)
  return trainer_for(train, count, command_line.shared(given), given)[0]


def cores() -> int:
  """Return how many cores this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_row(
  columns: Mapping[str, list[Member]], suite: Suite, overrides: Sequence[str], train: Train
) -> bool:
  """Train what is left of a row; return whether all of it has finished."""
  sweep = Remaining(columns, suite)
  if left := [each for each in sweep.runs if each.state != DONE]:
    carry_out(sweep, work(overrides, len(left), train), live=False)
  return all(each.state == DONE for each in sweep.runs)


def finished(columns: Mapping[str, list[Member]]) -> list[Run]:
  """Return the finished runs of a row, each once."""
  paths = {each.path: None for runs in columns.values() for each in runs if each.is_ready}
  runs = [read_run(path) for path in paths if path.is_dir()]
  runs = [run for run in runs if run.summary is not None]
  return with_extrapolation(with_context_losses(runs)[0])


def write_row(
  file: Path, suite: Suite, row: Row, columns: Mapping[str, list[Member]], quick: bool
) -> int:
  """Write the file of a row, if a run has finished: its records, and what they were trained for.
  Return how many runs these are.

  `entries` are the digests of all code and options that this file has had results of.
  """
  if not (runs := finished(columns)):
    return 0
  own = plugins.found("encoding").get(row.encoding)
  code = {"file": own.file.name, "sha256": own.sha256} if own else None
  about = {"suite": suite.name, "name": row.name, "encoding": row.encoding, "quick": quick}
  fixed = next(each.fixed for members in columns.values() for each in members if each.fixed)
  about |= {"options": [*row.options], "code": code, "default": default_of(fixed.config)}
  before = about_row(file) if file.exists() else {}
  digests = {name: suite.columns[name].digest for name in columns}
  if about.items() <= before.items():  # columns that were trained by another command
    kept = read_records(file, trials=True)
    runs = [*runs, *(run for run in kept if run.task not in columns)]
    digests = before["columns"] | digests
  entry = storage.digest({key: value for key, value in about.items() if key != "quick"})
  entries = [*dict.fromkeys([*before.get("entries", []), entry])]
  file.parent.mkdir(parents=True, exist_ok=True)
  about |= {"entries": entries, "columns": digests}
  return write_records(file, runs, packed_examples, about)


def about_row(file: Path) -> dict[str, Any]:
  """Return the metadata of a row's file; raise UserError if it has none, or damaged ones."""
  import pyarrow
  from pyarrow import parquet

  kinds: dict[str, Any] = {"suite": str, "name": str, "encoding": str, "default": dict}
  kinds["columns"] = dict  # the digest of each column
  kinds |= {"quick": bool, "options": list, "code": dict | None}
  found: dict[str, Any] = {}
  with contextlib.suppress(pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError):
    data = io.BytesIO(reading.read(file) or b"")
    found = dict(reading.parse(parquet.read_schema(data).metadata[b"posexp"]))
  if not kinds.keys() <= found.keys() or not reading.is_plain(found):
    raise UserError(f"{file} is no row of a leaderboard; python -m posexp.leaderboard writes them")
  wrong = [key for key, kind in kinds.items() if not isinstance(found[key], kind)]
  if not wrong:
    code = found["code"]
    texts = {"options": found["options"], "entries": found.get("entries", [])}
    texts["code"] = [] if code is None else [code.get("file"), code.get("sha256")]
    wrong = [
      key
      for key, each in texts.items()
      if not isinstance(each, list) or not all(isinstance(text, str) for text in each)
    ]
  if wrong:
    raise UserError(f"{file}: its metadata is damaged: {wrong[0]} is {found[wrong[0]]!r:.60}")
  return found
