"""Which defaults should change on a device, from the rows of what was measured there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarking.cases import IN_TURN, PASSES, SEARCHES, VMAP
from benchmarking.rows import Row
from posexp.models.attention import LONG

WORTH = 1.05  # times as fast a way must be before it becomes the default, the quartiles apart
SHAPE = ("pass", "model", "encoding", "options", "attention", "dtype", "d_model", "heads")
SHAPE += ("length", "batch", "beam", "seeds", "by")


class Choice(NamedTuple):
  """Another way than the default, measured beside it in one place."""

  title: str  # what is computed
  change: str  # to the other way
  default: str
  encoding: str
  at: int  # the length, or the width
  times: float  # as fast as the default
  sure: bool  # that it is faster


class Advice(NamedTuple):
  """A sentence, and whether it says that a default should change."""

  change: bool
  text: str


def choice(new: Row, old: Row, by: str, at: str, **texts: str) -> Choice:
  """One way against another `by` the ratios of a group, or `by` seconds where these are two.

  The other is surely faster if it is by `WORTH` in its slow rounds against the default's fast ones.
  """
  times, sure = old[by] / new[by], old[f"{by}_low"] / new[f"{by}_high"] >= WORTH
  return Choice(encoding=new["encoding"], at=new[at], times=times, sure=sure, **texts)


def advice(
  rows: Sequence[Row], checks: Sequence[Row] = (), long: int = LONG["gpu"]
) -> list[Advice]:
  """Return all that the rows say.

  `checks` are those of `proof`. With them the kernels of an encoding and model count if all of its
  checks found them equal; without any they count, and that is said.
  """
  own = [row for row in rows if row["by"] in ("posexp", IN_TURN, VMAP)]
  found = (told(forms(own, checks, long), "L"), told(dtypes(own), "d_model"))
  return [*itertools.chain(*found, told(seeds(own), "d_model"))]


def forms(rows: Sequence[Row], checks: Sequence[Row], long: int) -> Iterator[Choice]:
  """Return what `model.attention=auto` takes against the fastest other form, at every length.

  Where it takes blocks, it does so for the memory of the definition, which is no choice then.
  """
  keys = ("model", "dtype", "encoding", "options", "length", "d_model", "heads")
  places: dict[tuple, dict[str, Row]] = {}
  for row in rows:
    if row["pass"] == "attention":
      places.setdefault(tuple(row[key] for key in keys), {})[row["attention"]] = row
  for (model, dtype, encoding, _, length, width, heads), of in places.items():
    now = "blocked" if length >= long and "blocked" in of else "reference"
    said = [row["equal"] for row in checks if (row["encoding"], row["model"]) == (encoding, model)]
    wrong = {"fused"} if checks and (not said or "no" in said) else set()
    others = [row for form, row in of.items() if form not in {now, "reference"} | wrong]
    if now in of and others:
      best = min(others, key=lambda row: row["ratio"])
      unproved = best["attention"] == "fused" and not checks
      yield choice(
        best, of[now], "ratio", "length",
        title=f"attention, {model}, {dtype}, {heads} heads × {width // heads}",
        change=f"`model.attention=auto` should be {best['attention']}"
        + unproved * " (not checked yet: --parts check)",
        default=f"`auto` without kernels (reference below {long:,} tokens, then blocked)",
      )  # fmt: skip


def dtypes(rows: Sequence[Row]) -> Iterator[Choice]:
  """bfloat16 against float32, in whole models."""
  whole = [row for row in rows if row["pass"] in ("step", *SEARCHES)]
  for new, old in beside(whole, "dtype", "bfloat16", "float32"):
    yield choice(
      new, old, "seconds", "d_model",
      title=f"{PASSES[new['pass']]}, {new['model']}, L={new['length']}, B={new['batch']}",
      change="`model.dtype` should be bfloat16",
      default="float32",
    )  # fmt: skip


def seeds(rows: Sequence[Row]) -> Iterator[Choice]:
  """Compare seeds in one program with one after another."""
  for new, old in beside(rows, "by", VMAP, IN_TURN):
    shape = f"{new['model']}, {new['dtype']}, L={new['length']}, B={new['batch']}"
    yield choice(
      new, old, "ratio", "d_model",
      title=f"{new['seeds']} seeds, {shape}",
      change="they should be one program",
      default="one seed after another",
    )  # fmt: skip


def beside(rows: Sequence[Row], name: str, new: str, old: str) -> Iterator[tuple[Row, Row]]:
  """Rows in which a column is `new`, each with the one that is `old` and the same otherwise."""
  keys = [key for key in SHAPE if key != name]
  found = {tuple(row[key] for key in keys): row for row in rows if row[name] == old}
  for row in rows:
    other = found.get(tuple(row[key] for key in keys))
    if row[name] == new and other is not None:
      yield row, other


def told(choices: Iterable[Choice], at: str) -> Iterator[Advice]:
  """Sentences, each for all encodings of which the same is to be said."""
  places: dict[tuple, list[Choice]] = {}
  for each in choices:
    places.setdefault((each.title, each.encoding), []).append(each)
  said: dict[tuple, list[Choice]] = {}
  for (title, _), own in places.items():
    measured = sorted(each.at for each in own)
    better = [each for each in own if each.sure]
    for change in dict.fromkeys(each.change for each in better):
      chosen = [each for each in better if each.change == change]
      sentence = f"{change} {where(sorted(each.at for each in chosen), measured, at)}"
      said.setdefault((title, sentence), []).extend(chosen)
    if not better:
      said.setdefault((title, None), []).extend(own)
  for (title, sentence), chosen in said.items():
    names = ", ".join(dict.fromkeys(each.encoding for each in chosen))
    low, high = (f"{end(each.times for each in chosen):.2f}" for end in (min, max))
    fast = f"{low} times as fast" if low == high else f"{low} to {high} times as fast"
    default = chosen[0].default
    if sentence:
      yield Advice(True, f"{title}, {names}: {sentence}: {fast} as {default}.")
    else:
      yield Advice(False, f"{title}, {names}: {default} stays: nothing is surely faster ({fast}).")


def where(some: Sequence[int], all: Sequence[int], at: str) -> str:
  """Return the places in which something holds, in words."""
  if len(some) == len(all) > 1:
    return f"at every {at} measured"
  if list(some) == list(all[-len(some) :]) and len(all) > 1:
    return f"from {at}={some[0]:,} on"
  if list(some) == list(all[: len(some)]) and len(all) > 1:
    return f"up to {at}={some[-1]:,}"
  return f"at {at}={', '.join(f'{each:,}' for each in some)}"
