"""Pairs of sentences of one's own, or of the hub."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, ClassVar

from posexp import storage
from posexp.config.checks import only_with
from posexp.data import files, sources
from posexp.data.splits import RECIPE, SPLITS, Row, arrange, cased_key
from posexp.errors import UserError
from posexp.translation.task import Splits, Translation


@dataclasses.dataclass(frozen=True)
class Corpus(sources.Sourced, Translation):
  """Pairs of `hub`, or else of the files `train`, `validation` and `test`."""

  columns: ClassVar[tuple[str, ...]] = ("source", "target")
  way_out: ClassVar[str] = "task=translation task.train=FILE, or take task=numbers"

  subset: Annotated[str | None, only_with("hub")] = None

  def __post_init__(self):
    super().__post_init__()
    sources.check(self, "training pairs")

  def data_digest(self):
    return None if self.hub else sources.identity(self)

  def paths(self, split):
    """Yield a table, or two parallel texts, whose names end with a dot and the language."""
    path = getattr(self, split)
    if files.is_table(path):
      yield split, path
      return
    for side, language in sources.wanted(self).items():
      name = f"{path}.{language}"
      there = [file for file in (name, f"{name}.gz") if os.path.exists(os.path.expanduser(file))]
      if not there:
        raise UserError(
          f"task.{split}={path}: there is no {name} (looked in {Path.cwd()}); give a table "
          f"({', '.join(files.TABLES)}), or that with which the names of two parallel files begin"
        )
      yield f"{split}.{side}", there[0]

  def row(self, split, where, record):
    """Return the two sides of a row, which has a column for each language or one that holds both.

    Pairs of `train` may have an empty side.
    """
    both = record.get("translation")
    columns = both if isinstance(both, dict) and self.source not in record else record
    pair = []
    for option, language in sources.wanted(self).items():
      value = sources.pick(self, columns, option, where)
      text = sources.as_text(value, self.max_length, f"side {language!r}", where)
      if split != "train" and not text.strip():
        raise UserError(
          f"{where}: the side {language!r} is empty; only training pairs may lack one"
        )
      pair.append(text)
    source, target = pair
    return source, target

  def splits(self):
    given, digest = sources.rows(self), sources.identity(self)
    if len(given) < len(SPLITS):
      digest = storage.digest(digest, RECIPE)
    names = {"rows": "pairs", "texts": "sources"}
    splits, notes = arrange(given, keep=full, equal=cased_key, digest=digest, **names)
    return Splits(splits, [*sources.notes(self), *notes], digest)


def full(pair: Row) -> bool:
  """Return whether neither side of a pair is empty."""
  return all(text.strip() for text in pair)
