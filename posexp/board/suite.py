"""A suite: the columns of the leaderboard, what is spent on each, and what of it is frozen.

`suites/1.yaml` is the first one. A column is a unit: `Column.digest` says what its scores
depend on, a row keeps the digest of each column that it was trained in, and only cells of the same
digest share a table. So a suite can get another column, and no row is trained again. A variant,
such as `1-large.yaml`, has some columns of a suite with another model, which shows whether the
order of rows depends on the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp import reading, storage
from posexp.errors import UserError, near
from posexp.runs import Run

FOLDER = Path(__file__).with_name("suites")
SUITES = ("2", "1")  # the newest first, which is meant where none is named
SIDES = ("within", "beyond")  # the lengths of training, and longer ones
# The rate alone is tuned, or an option of the encoding, too: by validation at the lengths of
# training, or a little beyond them.
TRACKS = ("default", "tuned within", "tuned beyond")
BATCHES = 3  # that a digest is made of


class Side(NamedTuple):
  """A score of a column, and the scores that are worth 0 and 1. They never move."""

  score: str  # a key of summary.json
  low: float  # of a guess, computed
  high: float  # what the task allows
  # In suite 1, whose digests are made of a `low` that is no guess, the score of one.
  guess: float | None = None

  @property
  def nothing(self) -> float:
    """The score that is worth 0."""
    return self.low if self.guess is None else self.guess

  def worth(self, value: float) -> float:
    """Return what a score is worth: (score − a guess) / (what the task allows − a guess)."""
    return (value - self.nothing) / (self.high - self.nothing)


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
  """A need of users, and the task that stands for it."""

  name: str
  need: str
  options: tuple[str, ...]  # as they are typed, the task first
  learning_rate: float  # the middle one of those that are tried
  within: Side
  beyond: Side | None = None
  control: str = ""  # what it controls; such a column counts in no mean over columns
  encoder: bool = False  # encodings that are causal only have no cell in it
  # A score of validation a little beyond training, by which an option of encodings is chosen, too.
  validation_beyond: str | None = None
  seconds: float = 60.0  # processor seconds of a run with `rope`
  why: str = ""  # it is in the suite
  examples: str | None = None  # the digest of its test examples, once they are frozen
  budget: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of a whole row

  @property
  def label(self) -> str:
    """What the task needs, and whether it is a control that needs nothing."""
    return f"{self.need} ({self.control})" if self.control else self.need

  @functools.cached_property
  def digest(self) -> str:
    """Twelve hexadecimal digits, which change with anything that a score depends on."""
    sides = [each and each[:3] for each in (self.within, self.beyond)]
    parts = [self.options, self.learning_rate, *sides, self.examples, self.budget]
    return storage.digest(*parts, *filter(None, [self.validation_beyond]))[:12]

  def check_examples(self, config: Mapping[str, Any]) -> None:
    """Raise UserError if the test examples of a config of this column are not the frozen ones."""
    if self.examples and (examples := examples_of(config)) != self.examples:
      raise UserError(
        f"{self.name}: its test examples are others here ({examples}) than those of the suite "
        f"({self.examples}); compare the versions of numpy, num2words, babel, sympy and tokenizers"
      )

  @property
  def sides(self) -> dict[str, Side]:
    """The sides that there are, by their names."""
    return {name: side for name in SIDES if (side := getattr(self, name)) is not None}

  @property
  def tracks(self) -> tuple[str, ...]:
    """The ways in which an option of an encoding is chosen, the first without a choice."""
    return TRACKS if self.validation_beyond else TRACKS[:-1]


@dataclasses.dataclass(frozen=True)
class Budget:
  """What is spent on each column of a row."""

  seeds: int  # of results, from 0 on
  trial_seeds: tuple[int, ...]
  rates: tuple[float, ...] = (0.5, 1, 2)  # times the column's
  option: bool = True  # whether the alternative that an encoding declares is tried, too
  # How often the rates grow by a factor of two on either side until the best one is inside them.
  doublings: int = 0

  @property
  def plain(self) -> dict[str, Any]:
    """The fields of which the digest is made."""
    fields = dataclasses.asdict(self)
    return fields if self.doublings else {k: v for k, v in fields.items() if k != "doublings"}


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
  """The columns, and the budgets of a whole row and of a provisional one."""

  name: str
  columns: dict[str, Column]  # the cheapest and most telling first: so they are trained
  whole: Budget
  quick: Budget
  frozen: dict[str, Any]  # digests of test examples, and what calibration compares
  rows: dict[str, str] = dataclasses.field(default_factory=dict)  # "rope rope.p=0.25", by name
  own: bool = False  # not one that posexp brings

  @classmethod
  def read(cls, file: Path) -> Suite:
    """Return the suite in a file; raise UserError if there is none, or it is not complete."""
    if (data := reading.read(file)) is None:
      brought = ", ".join(sorted(each.stem for each in FOLDER.glob("*.yaml")))
      raise UserError(f"{file}: there is no such suite; posexp brings {brought}")
    try:
      given = reading.parse_yaml(data)
      if "of" in given:
        beside = file.with_name(f"{given['of']}.yaml")
        base = cls.read(beside if beside.exists() else FOLDER / beside.name)
        if isinstance(given["columns"], Mapping):
          return base.with_columns(given["columns"])
        columns = {name: _varied(base.columns[name], given) for name in given["columns"]}
      else:
        columns = {name: _column(name, each) for name, each in given["columns"].items()}
      whole, quick = (_budget(given[kind]) for kind in ("whole", "quick"))
      frozen = given.get("frozen") or {}
      digests, budget = frozen.get("examples") or {}, whole.plain
      columns = {
        name: dataclasses.replace(column, examples=digests.get(name), budget=budget)
        for name, column in columns.items()
      }
      rows, own = given.get("rows") or {}, file.parent != FOLDER
      return cls(str(given["suite"]), columns, whole, quick, frozen, rows, own)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
      raise UserError(f"{near(file)} is no suite: {type(error).__name__}: {error}") from error

  def with_columns(self, given: Mapping[str, Mapping[str, Any]]) -> Suite:
    """Return the suite with more columns; rows keep their results in the others."""
    budget = self.whole.plain
    more = {name: dataclasses.replace(_column(name, given[name]), budget=budget) for name in given}
    return dataclasses.replace(self, columns=self.columns | more, own=True)

  def budget(self, quick: bool) -> Budget:
    return self.quick if quick else self.whole

  def chosen(self, names: Sequence[str]) -> list[Column]:
    """Return the columns of some names, or all; raise UserError if there is no such column."""
    for name in names:
      if name not in self.columns:
        raise UserError(f"--columns {name}: suite {self.name} has {', '.join(self.columns)}")
    return [self.columns[name] for name in names or self.columns]


def _budget(given: Mapping[str, Any]) -> Budget:
  options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
  return Budget(**options)


def _column(name: str, given: Mapping[str, Any]) -> Column:
  sides = {side: Side(**given[side]) for side in SIDES if given.get(side)}
  options = tuple(map(str, given["options"]))
  return Column(**{**given, **sides, "name": name, "options": options})


def _varied(column: Column, given: Mapping[str, Any]) -> Column:
  """Return a column of another suite with the options of a variant."""
  options = (*column.options, *map(str, given["options"]))
  return dataclasses.replace(column, options=options, seconds=column.seconds * given["slower"])


def _digest(batches: Iterable[Mapping[str, Any]]) -> str:
  import numpy as np

  digest = hashlib.sha256()
  for batch in batches:
    for name in sorted(batch):
      each = np.ascontiguousarray(batch[name])
      digest.update(f"{name} {each.dtype} {each.shape}".encode() + each.tobytes())
  return digest.hexdigest()[:12]


def examples_of(config: Mapping[str, Any]) -> str:
  """Return the digest of the test examples of a config, those beyond training among them."""
  from posexp.training.setup import Setup

  setup = Setup.of(config)
  with tempfile.TemporaryDirectory() as folder:
    data, rows = setup.task.prepare(Path(folder)), setup.training.batch_size
    splits = [split for split in ("test", "beyond") if split in data.sizes]
    return _digest(batch for split in splits for batch in data.evaluation(split, rows))


def beginning_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the digest of a run's first batches, and the loss of its first step before it learns."""
  import jax

  from posexp.training import loop
  from posexp.training.setup import Setup
  from posexp.training.step import keys

  setup, seed = Setup.of(config), config["seed"]
  with tempfile.TemporaryDirectory() as folder:
    data = setup.task.prepare(Path(folder))
    batches = data.batches(setup.training.batch_size, seed=seed)
    digest = _digest(itertools.islice(batches, BATCHES))
    _, program, ready, _ = loop.begin(setup, data, 0)
    with contextlib.closing(ready) as made:
      batch, _ = next(made)
      state = program.update(program.init(seed), batch, keys(seed)["dropout"])
      loss = loop.training_metrics(jax.block_until_ready(state))["train/loss"]
  return {"batches": digest, "loss": round(loss, 7)}


def tested_on(run: Run) -> tuple[str | None, ...]:
  """Return what tells whether two runs were tested alike: their task's plugin, and examples."""
  plugin = (run.config.get("plugins") or {}).get("task") or {}
  scores = (score for metrics in (run.examples or {}).values() for score in metrics.values())
  return plugin.get("sha256"), *sorted({str(score.get("of")) for score in scores})
