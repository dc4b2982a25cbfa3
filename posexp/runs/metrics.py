"""What the names in summary.json mean: which there are, in what unit, and whether less is more."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from posexp.config import nearest
from posexp.errors import UserError
from posexp.runs.reading import Found


class Metric(NamedTuple):
  """A row of the table of metrics. A task of one's own may list rows beside these."""

  name: str  # in summary.json: `exact_match` of `beyond/exact_match/7`
  title: str
  format: str = ".4f"  # of a value in a run's own output
  higher_is_better: bool = True
  percent: bool = False  # a share, which reports show in points of a hundred


METRICS = {
  metric.name: metric
  for metric in (
    Metric("accuracy", "accuracy", percent=True),
    Metric("macro_f1", "macro F1", percent=True),
    Metric("exact_match", "exact match", percent=True),
    Metric("bleu", "BLEU", ".2f"),
    Metric("chrf", "chrF", ".2f"),
    Metric("loss", "loss", higher_is_better=False),
    Metric("perplexity", "perplexity", ".3f", higher_is_better=False),
    Metric("nll", "nll", higher_is_better=False),
  )
}
SHARES = {each.name: each.title for each in METRICS.values() if each.percent}
LOSSES = {each.name: each.title for each in METRICS.values() if not each.higher_is_better}
SCORES = {"bleu": "BLEU", "chrf": "chrF"}
NAMES = {each.name: each.title for each in METRICS.values()}
PREFERRED = {"numbers": "test/exact_match", "text_classification": "test/accuracy"}  # by task.kind


def name(metric: str) -> str:
  """The measure in a metric: `exact_match` of `beyond/exact_match/7`."""
  return next((part for part in metric.split("/") if part in NAMES), metric)


def title(metric: str) -> str:
  """A metric as one reads it: `beyond/exact_match/7` as "beyond exact match (7)"."""
  of = name(metric)
  if of not in NAMES:
    return metric
  before, _, after = metric.partition(of)
  shown = f"{before.strip('/').replace('/', ' ')} {NAMES[of]}" if before else NAMES[of]
  return f"{shown} ({after.strip('/')})" if after.strip("/") else shown


def factor(metric: str) -> float:
  """What a metric is multiplied with to be shown: shares are shown in points of a hundred."""
  return 100.0 if name(metric) in SHARES else 1.0


def unit(metric: str) -> str:
  """What differences of a metric are counted in."""
  of = name(metric)
  return "points" if of in SHARES else NAMES.get(of, "")


def descending(metric: str) -> bool:
  """Whether the highest is the best."""
  return name(metric) not in LOSSES


def digits(metric: str) -> int:
  """Decimals in tables."""
  return 4 if name(metric) not in SHARES | SCORES else 2


def number(value: float, metric: str, sign: str = "") -> str:
  """A value as tables show it."""
  return format(factor(metric) * value, f"{sign}z.{digits(metric)}f")


def rounded(value: float, like: float, metric: str, sign: str = "") -> str:
  """A value with as many decimals as `like`, half an interval, allows: two at least for losses."""
  least = 1 if name(metric) in SHARES | SCORES else 2
  size = abs(factor(metric) * like)
  places = max(least, -math.floor(math.log10(size))) if size > 1e-12 else least
  return format(factor(metric) * value, f"{sign}z.{min(places, 8)}f")


def known(runs: Iterable[Found]) -> list[str]:
  """All metrics of finished runs, in their order."""
  found: dict[str, None] = {}
  for run in runs:
    for key in run.summary or {}:
      if "/" in key and key not in found and run.score(key) is not None:
        found[key] = None
  return [key for key in found if not key.startswith(("time/", "memory/"))]


def chosen(runs: Sequence[Found], asked: str | None) -> str | None:
  """The metric of a task's runs; None if none of them has what was asked for.

  Without being asked: what the task is about, or the first there is.
  """
  names = known(runs)
  if asked is not None:
    return asked if asked in names else None
  preferred = PREFERRED.get(runs[0].settings["task.kind"], "test/bleu")
  return preferred if preferred in names else next(iter(names), None)


def check(runs: Sequence[Found], asked: str | None) -> None:
  """Raises UserError, with the nearest names, unless a finished run has the metric."""
  if not any(run.summary is not None for run in runs):
    raise UserError(
      f"none of the {len(runs)} runs has finished: their scores are measured at the end"
      if len(runs) > 1
      else f"{runs[0].path} has not finished: its scores are measured at the end"
    )
  names = known(runs)
  if asked is None or asked in names:
    return
  last = [each for each in names if asked in (name(each), each.rpartition("/")[2])]
  close = last[:3] or [each for each in [nearest(asked, names)] if each]
  hint = f"did you mean {' or '.join(close)}?" if close else f"they have {', '.join(names[:8])}"
  raise UserError(f"--metric {asked}: no run has such a metric; {hint}")


def families(metric: str, runs: Iterable[Found]) -> dict[str, list[str]]:
  """The parts in which a metric was measured too, by split: {"beyond": ["6", "7"]}."""
  of, found = name(metric), {}
  if of not in NAMES:
    return {}
  for key in known(runs):
    split, middle, part = key.partition(f"/{of}/")
    if middle and part and "/" not in split:
      found.setdefault(split, []).append(part)
  return {split: ordered(parts) for split, parts in found.items() if len(parts) > 1}


def ordered(parts: Sequence[str]) -> list[str]:
  """Lengths ("6", "11-15") by size; names as they are."""
  begins = [re.match(r"\d+", part) for part in parts]
  if not all(begins):
    return list(parts)
  return [part for _, part in sorted(zip((int(b.group()) for b in begins), parts, strict=True))]
