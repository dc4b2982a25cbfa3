"""A row of the leaderboard: which runs it takes, their training, and the file of their records."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp import status, storage
from posexp.board.choices import Choice
from posexp.board.standings import about_row
from posexp.board.suite import Column, Suite
from posexp.config import command_line, look_up, plugins, show
from posexp.config.overrides import read
from posexp.encodings import all_encodings, alternative_of
from posexp.errors import UserError, counted, lasting
from posexp.machine import cores
from posexp.reporting.paired_predictions import packed_examples
from posexp.runs import read_run
from posexp.runs.context_losses import with_context_losses
from posexp.runs.lengths import with_extrapolation
from posexp.runs.records import read_records, write_records
from posexp.runs.trials import Point
from posexp.sweeps import jobs, tuning
from posexp.sweeps.supervise import trainer_for
from posexp.sweeps.sweep import DONE, RUNNING, WAITING, Member, Sweep, Train
from posexp.sweeps.workers import devices

OWN = ("positions", "model.logits_")  # options that a row may have, beside those of its encoding


@dataclasses.dataclass(frozen=True)
class Row:
  """An encoding with its options, under the name that the leaderboard has for it."""

  name: str
  encoding: str
  options: tuple[str, ...] = ()

  @classmethod
  def named(cls, encoding: str, options: Sequence[str], name: str | None = None) -> Row:
    """Return the row of an encoding with options, by default under the name of the encoding.

    Raises:
      UserError: as `check`; or there is no such encoding, options were given without a name, or an
        option has the value that the tuned track tries anyway.
    """
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


def default_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the main option of an encoding with its value before tuning: {"rpr.k": 16}."""
  if (other := alternative_of(config["encoding"])) is None:
    return {}
  return {other[0]: config[config["encoding"]][other[0].partition(".")[2]]}


class Cell:
  """The runs of a row in a column, as far as they are known: trials, at rates that grow until the
  best is among them, and the results that these trials choose: of the default track first, then
  those that the tuned tracks need besides.

  Raises:
    Unsuited: the encoding cannot be trained on the column's task.
    UserError: an option is wrong.
  """

  def __init__(self, row: Row, suite: Suite, column: Column, quick: bool, place: Path):
    self.row, self.column, self.budget = row, column, suite.budget(quick)
    self.place, self.trials, self.results = place, [], []
    self.tuned: set[Member] = set()  # the runs that the default track does without
    self.fixed = self._try([column.learning_rate * rate for rate in self.budget.rates])
    self.default = default_of(self.fixed[0].config)
    self._left = 1 + bool(self.tuned)  # tracks without results, where all tuned ones count as one
    self.grow()

  @property
  def runs(self) -> list[Member]:
    return [*self.trials, *self.results]

  @property
  def left(self) -> int:
    """The number of runs that are left to train, at most, at the rates that are known so far."""
    return sum(run.state != DONE for run in self.runs) + self._left * self.budget.seeds

  @property
  def written(self) -> list[Member]:
    """The runs that go into a row's file.

    The trials of a rate go there once all of them are done, and the runs of tuned tracks once all
    runs of the cell are.
    """
    if not self._left and all(run.state == DONE for run in self.runs):
      return self.runs
    default = [run for run in self.runs if run not in self.tuned]
    rates = {trial: trial.config["train"]["learning_rate"] for trial in self.trials}
    begun = {rates[each] for each in default if each in rates and each.state != DONE}
    return [key for key in default if rates.get(key) not in begun]

  def _try(self, rates: Sequence[float]) -> list[Member]:
    """Add the trials at some rates, at least two; return the runs of the row with fixed options."""
    column, budget = self.column, self.budget
    lines = [f"encoding={self.row.encoding}", *column.options, f"task.name={column.name}"]
    lines += [f"train.learning_rate={column.learning_rate:g}", *self.row.options]
    lines += [f"seeds={budget.seeds}", "tracker=none", f"runs={show(str(self.place))}"]
    lines += [f"tune.train.learning_rate={','.join(f'{rate:g}' for rate in rates)}"]
    lines += [f"tune.option={str(budget.option).lower()}"]
    overrides = read([*lines, f"tune.seeds={','.join(map(str, budget.trial_seeds))}"])
    shared = command_line.shared(overrides)
    members = jobs.members(Namespace(overrides=overrides, multirun=True), shared)
    known = {trial.path for trial in self.trials}
    fixed = [member for member in members if not member.of and member.fixed is None]
    default = default_of(fixed[0].config)
    for member in members:
      if member.of and member.path not in known:
        name = member.options.replace("trial", f"trial of {self.row.name},", 1)
        member.options = f"{column.name}: {name}"
        self.trials.append(member)
        if default_of(member.config) != default:
          self.tuned.add(member)
    return fixed

  def grow(self) -> None:
    """Add the runs that finished trials ask for: trials at more rates, or results."""
    while self._left:
      is_tuned = self._left == 1 and bool(self.tuned)
      trials = [trial for trial in self.trials if is_tuned or trial not in self.tuned]
      if any(trial.state != DONE for trial in trials):
        return
      runs = [read_run(trial.path) for trial in trials]
      choice = Choice.of(runs, self.default, self.column)
      if choice is None or not choice.best:  # all have diverged; the alternative may not
        self._left -= 1
        continue
      if (rate := choice.next_rate(self.budget)) is not None:
        self._try([rate, choice.rates[0]])
        continue
      for point in choice.results(is_tuned):
        self._train(point, is_tuned)
      self._left -= 1

  def _train(self, point: Point, is_tuned: bool) -> None:
    """Add the results of a point, unless they are known."""
    for each in self.fixed:
      config, path = tuning.chosen_run(each, point)
      if any(path == known.path for known in self.results):
        continue
      group = f"{self.column.name}: {self.row.name} {point.typed}"
      member = Member(0, f"{group} seed={config['seed']}", group, config, path)
      member.state = DONE if member.finished else WAITING
      self.results.append(member)
      if is_tuned:
        self.tuned.add(member)


class Remaining(Sweep):
  """A sweep of the runs that some cells still need: first the default track, cell by cell.

  A cell is looked at when those before it have nothing left to train. Cells in `tuned` lack only
  runs of tuned tracks. No run begins that would not end by `until`, as far as `took` tells, the
  seconds of earlier runs by column and row.
  """

  def __init__(
    self,
    cells: Iterable[Cell],
    tuned: Iterable[Cell] = (),
    until: float | None = None,
    took: dict[str, dict[str, list[float]]] | None = None,
  ):
    self.cells: list[Cell] = []
    self._more, self._until = {False: iter(cells), True: iter(tuned)}, until
    self._given: set[Member] = set()
    self._spent = 0.0  # seconds of the suite's, of runs that have ended
    self._began: dict[Member, float] = {}
    self._took = took or {}
    super().__init__([])

  @property
  def is_late(self) -> bool:
    return self._until is not None and time.monotonic() > self._until

  def upcoming(self, wait: bool = True) -> Iterator[Member | None]:
    """Yield run after run, and None while others have to end before there is one more."""
    while True:
      if (member := self._next()) is not None:
        self._given.add(member)
        yield member
      elif wait and self.in_state(RUNNING):
        yield None
      else:
        return

  def _next(self) -> Member | None:
    for is_tuned, more in self._more.items():
      for cell in itertools.chain(self.cells, map(self._add, more)):
        if self.is_late:
          return None
        for run in cell.runs:
          if run.state == DONE or run in self._given or (run in cell.tuned) > is_tuned:
            continue
          if self._fits(cell):
            return run
    return None

  def _add(self, cell: Cell) -> Cell:
    self.cells.append(cell)
    self._number()
    return cell

  def _number(self) -> None:
    self.members = [run for cell in self.cells for run in cell.runs]
    for number, member in enumerate(self.members, start=1):
      member.number = number

  def _note(self, cell: Cell, seconds: float) -> None:
    self._took.setdefault(cell.column.name, {}).setdefault(cell.row.name, []).append(seconds)

  def _expected(self, cell: Cell) -> float:
    """Return the usual seconds of a run: by the cell's runs, else its column's, else the suite."""
    of_column = self._took.get(cell.column.name, {})
    known = of_column.get(cell.row.name) or [*itertools.chain(*of_column.values())]
    return statistics.median(known or [cell.column.seconds])

  def _fits(self, cell: Cell) -> bool:
    return self._until is None or time.monotonic() + self._expected(cell) <= self._until

  @property
  def name(self) -> str:
    return str(self.members[0].path)

  def look_again(self) -> None:
    """Let runs be trained here that another process has given up."""
    for member in self.left():
      member.state = WAITING
      self._given.discard(member)

  def turn(self, member: Member, state: str, reason: str = "") -> None:
    now = time.monotonic()
    if state == RUNNING:
      self._began[member] = now
    cell = next(each for each in self.cells if member in each.runs)
    if state == DONE:
      self._note(cell, now - self._began.get(member, now))
      self._spent += cell.column.seconds
    super().turn(member, state, reason)
    if state == DONE:
      cell.grow()
      self._number()

  def _left(self) -> str:
    """Return how many runs are left, and about how long these take."""
    if self._until is not None:
      return f"; {lasting(max(self._until - time.monotonic(), 0))} left"
    rest = {cell: cell.left for cell in self.cells}
    pace = (time.monotonic() - self.begun) / self._spent
    seconds = pace * sum(cell.column.seconds * runs for cell, runs in rest.items())
    return f"; {counted(sum(rest.values()), 'run')} left, about {lasting(seconds)}"


def work(overrides: Sequence[str], count: int, train: Train) -> Callable[..., Any]:
  """Return the function that trains runs, `count` at once, or as many as cores or devices."""
  lines = [*overrides]
  if not any(line.startswith(("workers=", "hydra/launcher=")) for line in lines):
    bound = devices("auto", max(count, 1))  # of finished rows no run is left
    lines.append(f"workers={len(bound) if bound[0] else min(cores(), max(count, 1))}")
  given = read(lines)
  return trainer_for(train, count, command_line.shared(given), given)[0]


def train_cells(sweep: Remaining, count: int, overrides: Sequence[str], train: Train) -> None:
  """Train the `count` or so runs that some cells still need, until the time is up."""
  trainer = work(overrides, count, train)
  at_once = any(line.startswith("hydra/launcher=") for line in overrides)
  while (first := next(sweep.upcoming(), None)) is not None:
    runs = itertools.chain([first], sweep.upcoming(wait=not at_once))
    sweep.keep_plan()
    try:
      with contextlib.closing(trainer([*runs] if at_once else runs)) as reports:
        for report in reports:
          if report is not None:
            sweep.turn(*report)
          status.show("")
          if sweep.is_late:
            return
    finally:
      sweep.keep_plan()
    sweep.look_again()


def write_row(
  file: Path, suite: Suite, cells: Sequence[Cell], quick: bool, published: Path | None = None
) -> int:
  """Write the records of a row's finished runs, if there are some; return their number.

  `entries` are the digests of all code and options that this file has had results of. The first
  file of a row that is published has its columns, too.
  """
  row, columns = cells[0].row, [cell.column.name for cell in cells]
  paths = {each.path: None for cell in cells for each in cell.written if each.path.is_dir()}
  runs = [run for run in map(read_run, paths) if run.summary is not None]
  if not runs:
    return 0
  runs = with_extrapolation(with_context_losses(runs)[0])
  own = plugins.found("encoding").get(row.encoding)
  code = {"file": own.file.name, "sha256": own.sha256} if own else None
  about = {"suite": suite.name, "name": row.name, "encoding": row.encoding, "quick": quick}
  about |= {"options": [*row.options], "code": code, "default": cells[0].default}
  known = next((path for path in (file, published) if path and path.exists()), None)
  before = about_row(known) if known else {}
  digests = {run.task: suite.columns[run.task].digest for run in runs}
  if about.items() <= before.items():  # columns that were trained by another command
    kept = read_records(known, trials=True)
    runs = [*runs, *(run for run in kept if run.task not in columns)]
    digests = before["columns"] | digests
  entry = storage.digest({key: value for key, value in about.items() if key != "quick"})
  entries = [*dict.fromkeys([*before.get("entries", []), entry])]
  file.parent.mkdir(parents=True, exist_ok=True)
  about |= {"entries": entries, "columns": digests}
  return write_records(file, runs, packed_examples, about)
