"""Pairs of sentences of one's own, or of the hub."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from posexp import storage
from posexp.config.checks import only_with
from posexp.data import sources
from posexp.data.splits import RECIPE, SPLITS, Row, arrange, cased_key
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
