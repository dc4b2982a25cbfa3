"""Pairs of sentences, read in a stream from the hub or the user's own files."""

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from posexp import storage
from posexp.data import files, hub, splits, store
from posexp.errors import UserError

Pair = tuple[str, str]
Pairs = Callable[[], Iterator[Pair]]  # a split: each call reads it from its beginning

SPLITS = ("train", "validation", "test")


class _Split(NamedTuple):
  where: tuple[str, str]  # lie its sources and its targets
  rows: Callable[[], Iterator[tuple[str, Pair]]]  # ("line 7", pair)


def read(task) -> dict[str, Pairs]:
  """The splits that the source of a `Translation` has, `train` at least.

  Pairs of `train` with an empty side are left in: `arrange` drops them.

  Raises:
    UserError: for what is missing or broken, some of it only while a split is read.
  """
  found = _of_hub(task) if task.hub else _of_files(task)
  return {
    name: functools.partial(_pairs, split, None if name == "train" else (task.source, task.target))
    for name, split in found.items()
  }


def digest(task) -> str:
  """Tells the pairs of tasks apart: by the contents of own files, or by what pins the hub's.

  Raises:
    UserError: a file is missing or empty.
  """
  given = {}
  for split, path in {} if task.hub else _given(task).items():
    found = _paths(task, split, path)
    roles = [split] if len(found) == 1 else [f"{split}.{side}" for side in ("source", "target")]
    given |= dict(zip(roles, found, strict=True))
  content = _asked(task) if task.hub else files.contents(given)
  return hashlib.sha256(f"{content}:{task.source}:{task.target}".encode()).hexdigest()


def arrange(given: dict[str, Pairs], data: str | None = None) -> tuple[dict[str, Pairs], list[str]]:
  """Splits `train`, `validation` and `test` of what is given, and notes on how they were made.

  A tenth of the training pairs is held out for each split that is missing, the test split first,
  by a hash of their source texts. All that is given is read once for the notes, and not again
  where `data`, a digest of all that the pairs depend on, is one whose notes are kept.

  Raises:
    UserError: a split would have no rows, or what `read` raises.
  """
  missing = [name for name in ("test", "validation") if name not in given]
  if data is None:
    notes = _notes(given, missing)
  else:
    name = hashlib.sha256(json.dumps([data, missing]).encode()).hexdigest()[:32]
    notes = storage.cached(f"splits/{name}.json", lambda: _notes(given, missing))
  held = {
    name: functools.partial(_part, given["train"], missing, name) for name in ("train", *missing)
  }
  return {name: held.get(name) or given[name] for name in SPLITS}, notes


def _notes(given: dict[str, Pairs], missing: list[str]) -> list[str]:
  known = {
    name: Counter(splits.key(source) for source, _ in given[name]())
    for name in ("test", "validation")
    if name not in missing
  }
  sizes = Counter({name: keys.total() for name, keys in known.items()})
  repeated, dropped = Counter(), 0
  for source, target in given["train"]():
    if not _full(source, target):
      dropped += 1
      continue
    key = splits.key(source)
    name = _share(key, missing)
    sizes[name] += 1
    if name == "train":
      for other, keys in known.items():
        repeated[other] += keys.pop(key, 0)
  for name in SPLITS:
    if not sizes[name]:
      raise UserError(f"the {name} split has no rows; give more data or set task.{name}")
  notes = [f"{dropped:,} training pairs have an empty side and are dropped"] if dropped else []
  for name in missing:
    notes.append(f"the {name} split is a tenth of the training pairs, held out by content hash")
  for name in ("validation", "test"):
    if repeated[name]:
      notes.append(f"{repeated[name]:,} {name} sources also stand in the training split")
  return notes


def _full(source: str, target: str) -> bool:
  return bool(source.strip() and target.strip())


def _share(key: bytes, missing: list[str]) -> str:
  """The split that a training pair goes to."""
  for name in missing:
    if splits.draw(key, name) < splits.HELD_OUT:
      return name
  return "train"


def _part(train: Pairs, missing: list[str], name: str) -> Iterator[Pair]:
  for source, target in train():
    if _full(source, target) and (not missing or _share(splits.key(source), missing) == name):
      yield source, target


def _pairs(split: _Split, full: tuple[str, str] | None) -> Iterator[Pair]:
  """The pairs of a split; with `full`, its languages, no side may be empty."""
  for place, pair in split.rows():
    if full:
      for where, language, text in zip(split.where, full, pair, strict=True):
        if not text.strip():
          raise UserError(
            f"{where}, {place}: the side {language!r} is empty; only training pairs may lack one"
          )
    yield pair


def _given(task) -> dict[str, str]:
  named = {name: getattr(task, name) for name in SPLITS}
  return {name: source for name, source in named.items() if source}


def _pair(record: dict, task, where: str) -> Pair:
  """The two texts of a row, which has a column for each language or holds them together."""
  inner = record.get("translation")
  columns = inner if isinstance(inner, dict) and task.source not in record else record
  source = files.pick(columns, task.source, "source", where)
  target = files.pick(columns, task.target, "target", where)
  for language, text in ((task.source, source), (task.target, target)):
    if not (text is None or isinstance(text, str)):
      raise UserError(f"{where}: the side {language!r} is {text!r}; it must be a string")
  source, target = source or "", target or ""
  files.whole(source + target, where)
  return source, target


def _of_files(task) -> dict[str, _Split]:
  found = {split: _paths(task, split, path) for split, path in _given(task).items()}
  return {
    split: _Split(
      (paths[0], paths[-1]),
      functools.partial(_table if len(paths) == 1 else _parallel, task, *paths),
    )
    for split, paths in found.items()
  }


def _paths(task, split: str, path: str) -> tuple[str, ...]:
  """One table, or two files of which the option names what they both begin with."""
  if files.is_table(path):
    return (path,)
  found = []
  for language in (task.source, task.target):
    names = [f"{path}.{language}", f"{path}.{language}.gz"]
    found += [name for name in names if Path(name).expanduser().is_file()][:1]
    if not found or not found[-1].startswith(names[0]):
      raise UserError(
        f"task.{split}={path}: there is no {names[0]} (looked in {Path.cwd()}); give a table "
        f"({', '.join(files.TABLES)}), or that with which the names of two parallel files begin"
      )
  return tuple(found)


def _table(task, path: str) -> Iterator[tuple[str, Pair]]:
  empty = True
  for place, record in files.records(path):
    empty = False
    yield place, _pair(record, task, f"{path}, {place}")
  if empty:
    raise UserError(f"{path}: no rows below the header; give a file with at least one")


def _parallel(task, first: str, second: str) -> Iterator[tuple[str, Pair]]:
  rows = itertools.zip_longest(files.lines(first), files.lines(second))
  for number, (source, target) in enumerate(rows, start=1):
    if source is None or target is None:
      counts = [f"{number - 1:,}", f"{number + sum(1 for _ in rows):,}"]
      if target is None:
        counts.reverse()
      raise UserError(
        f"{first} has {counts[0]} lines, but {second} has {counts[1]}; each line must be the "
        "translation of the one in the other file"
      )
    yield f"line {number}", (source, target)


def _asked(task) -> str:
  """All that decides on the hub's pairs."""
  data_files = dict(task.data_files) if task.data_files else None
  what = [task.hub, task.subset, task.revision, data_files, _given(task), task.source, task.target]
  return json.dumps(what, sort_keys=True)


def _of_hub(task) -> dict[str, _Split]:
  """Splits of the hub, written to disk when they are asked for the first time.

  With `task.data_files`, files of the repository by our names of the splits, these are all its
  splits; else a task names the hub's.
  """

  def fill(folder: Path) -> None:
    loaded = hub.load(
      task.hub,
      task.revision,
      subset=task.subset,
      data_files=dict(task.data_files) if task.data_files else None,
      way_out="task=translation task.train=FILE, or take task=numbers",
    )
    for ours, theirs in _given(task).items():
      data, where = hub.split_of(task.hub, loaded, ours if task.data_files else theirs)
      number = itertools.count(1)
      with open(folder / f"{ours}.jsonl", "w", encoding="utf-8", newline="\n") as file:
        for columns in data.iter(batch_size=1_000):
          for values in zip(*columns.values(), strict=True):
            record = dict(zip(columns, values, strict=True))
            pair = _pair(record, task, f"{where}, row {next(number)}")
            file.write(json.dumps(pair, ensure_ascii=False) + "\n")

  asked = hashlib.sha256(_asked(task).encode()).hexdigest()[:16]
  folder = store.kept(f"hub/{task.hub.replace('/', '--')}-{asked}", fill)
  return {
    ours: _Split(
      (f"task.hub={task.hub}, split {theirs}",) * 2,
      functools.partial(_stored, folder / f"{ours}.jsonl"),
    )
    for ours, theirs in _given(task).items()
  }


def _stored(path: Path) -> Iterator[tuple[str, Pair]]:
  with open(path, encoding="utf-8", newline="\n") as file:
    for number, line in enumerate(file, start=1):
      source, target = json.loads(line)
      yield f"row {number}", (source, target)
