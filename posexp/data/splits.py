"""Splits and folds by content: equal texts share a fate, and no seed or order has a say in it."""

import hashlib
import re

from posexp.data.files import Rows
from posexp.errors import UserError

HELD_OUT = 0.1  # the share of a split that is not given


def key(text: str) -> bytes:
  """What makes two texts equal: their letters and digits, lower-cased."""
  return hashlib.sha256(re.sub(r"[\W_]+", "", text.lower()).encode()).digest()


def draw(key: bytes, purpose: str) -> float:
  """A number in [0, 1) that `key` has for ever; numbers for different purposes are independent."""
  return int.from_bytes(hashlib.sha256(purpose.encode() + key).digest()[:7], "big") / 2**56


def arrange(
  given: dict[str, Rows], folds: int | None = None, fold: int | None = None
) -> tuple[dict[str, Rows], list[str]]:
  """Splits `train`, `validation` and `test` of what is given, and notes on how they were made.

  With `folds`, all rows are pooled and the test split is fold number `fold` of them. Then a tenth
  of the training rows is held out for each split that is missing, the test split first.

  Raises:
    UserError: a split would have no rows.
  """
  # Each text is normalized once: it is most of the work.
  keyed = {name: [(key(row[0]), row) for row in rows] for name, rows in given.items()}
  notes = []
  if folds is not None:
    pool = [item for rows in keyed.values() for item in rows]
    keyed = _part(pool, "test", lambda key: int(draw(key, "fold") * folds) == fold)
    notes.append(f"the test split is fold {fold} of {folds} over all {len(pool):,} texts")
  for name in ("test", "validation"):
    if name not in keyed:
      keyed |= _part(keyed["train"], name, lambda key, name=name: draw(key, name) < HELD_OUT)
      notes.append(f"the {name} split is a tenth of the training texts, held out by content hash")
  for name, rows in keyed.items():
    if not rows:
      raise UserError(f"the {name} split has no rows; give more data or set task.{name}")
  seen = {key for key, _ in keyed["train"]}
  for name in ("validation", "test"):
    if repeated := sum(key in seen for key, _ in keyed[name]):
      notes.append(f"{repeated:,} {name} texts also stand in the training split")
  splits = {name: [row for _, row in keyed[name]] for name in ("train", "validation", "test")}
  return splits, notes


def _part(items: list, name: str, chosen) -> dict[str, list]:
  parts = {"train": [], name: []}
  for item in items:
    parts[name if chosen(item[0]) else "train"].append(item)
  return parts
