"""What a report says in plain words: which group beats the baseline, and what has to be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from posexp.errors import counted
from posexp.reporting.grouping import Group, differing, distinguishing, text_size
from posexp.reporting.results import Results
from posexp.reporting.significance import LEVEL, MOST_SEEDS
from posexp.reporting.text import listed, p_value

VERBS = {  # how a group compares with the baseline
  "better": "beats",
  "worse": "loses to",
  "not told apart": "cannot be told apart from",
  "not tested": "cannot be tested against",
}


def answer(results: Results) -> str:
  """The answer in one sentence, or two with a baseline."""
  if not results.ranked:
    return f"No group of {results.task} has a mean."
  best, base = results.ranked[0], results.baseline
  counts = Counter(outcome(group, results) for group in results.ranked if group is not base)
  others = ", ".join(f"{counts[each]} {each}" for each in VERBS if counts[each])
  against = f" Against {base.label}: {others}." if others else ""
  groups = counted(len(results.ranked), "group")
  found = results.shown(best.estimate)
  return f"{best.label} is first of {groups} with {found}, n = {best.estimate.n}.{against}"


def outcome(group: Group, results: Results) -> str:
  """How a group compares with the baseline: a key of VERBS."""
  found = group.difference
  if found is None or found.holm is None:
    return "not tested"
  if found.holm >= LEVEL:
    return "not told apart"
  ahead = (found.estimate.mean > 0) == results.score.metric.higher_is_better
  return "better" if ahead else "worse"


def differences(results: Results) -> list[str]:
  """A sentence for each group that shares seeds with the baseline, in the order of their scores."""
  return [_difference(group, results) for group in results.ranked if group.difference is not None]


def _difference(group: Group, results: Results) -> str:
  found, kind = group.difference, outcome(group, results)
  size = f"{results.shown(found.estimate, '+')} {results.score.unit}"
  text = f"{group.label} {VERBS[kind]} {results.baseline.label}: {size}"
  if found.holm is not None:
    text += f", {p_value(found.holm)}"
  text += f", n = {found.estimate.n}"
  if kind == "not told apart":
    needed = f"about {found.needed:,}" if found.needed else f"more than {MOST_SEEDS:,}"
    text += f"; {needed} seeds would be needed for a difference of that size"
  return f"{text}."


def method(results: Results) -> str:
  """How the sentences and intervals come about."""
  text = f"Means of {results.score.title} over seeds with 95 % t intervals."
  if tests := sum(outcome(group, results) != "not tested" for group in results.ranked):
    text += (
      f" Differences to {results.baseline.label} (--baseline names another group): paired t tests "
      f"on shared seeds with Holm's correction for {counted(tests, 'test')}. Seeds needed: for a "
      f"power of 80 % at the level 0.05/{tests}."
    )
  return text


def notes(results: Results) -> Iterator[str]:
  """Everything that a reader of the numbers must know: what is missing, mixed, or not alike."""
  base = results.baseline
  for group in results.groups:
    if group.mixed:
      yield _mixture(group, results)
    elif left := list(_left_out(group, results.score.key)):
      yield f"{group.label}: left out {listed(left)}."
    if group.counted and group.counted.keys() != base.counted.keys():
      shared = group.counted.keys() & base.counted.keys()
      yield (
        f"{group.label} ({_repeats(group)}) and {base.label} ({_repeats(base)}) share "
        f"{counted(len(shared), 'seed')}: their difference is that of these alone."
      )
  kept = [run for group in results.groups for run in group.counted.values()]
  if extra := [key for key in differing(kept) if key not in results.by]:
    yield f"Groups differ in more than in {', '.join(results.by)}: {listed(extra, 8)}."
  if len(texts := dict.fromkeys(filter(None, map(text_size, kept)))) > 1:
    yield (
      f"Groups were tested on different texts, of {listed([*texts])} bytes: bits per byte of two "
      "texts say nothing of each other, so they are not compared."
    )
  devices = {
    str(run.summary["devices"]) for run in results.runs if "devices" in (run.summary or {})
  }
  if len(devices) > 1:
    yield f"Seconds and rates are of different devices: {listed(sorted(devices))}."


def _left_out(group: Group, key: str) -> Iterator[str]:
  """The runs of a group that do not count, and why."""
  kept = {run.path for run in group.counted.values()}
  for run in [run for run in group.runs if run.path not in kept]:
    if run.state == "failed":
      why = f"failed at step {run.step:,}: {run.failure[:120]}"
    elif run.state == "unfinished":
      why = f"not finished, at step {run.step:,}"
    elif run.score(key) is None:
      why = f"without {key}"
    else:
      why = "a copy of another run"
    yield f"seed {run.seed} ({why})"


def _mixture(group: Group, results: Results) -> str:
  parts = []
  for key, values in group.mixed.items():
    shown = listed([f"{value} ({counted(n, 'run')})" for value, n in values.most_common()])
    parts.append(f"{key} = {shown}")
  finished = [run for run in group.runs if run.score(results.score.key) is not None]
  keys = [key for key in distinguishing(finished) if key in group.mixed]
  way_out = f"; --by {','.join([*results.by, *keys])} takes it apart" if keys else ""
  return f"{group.label} mixes {'; '.join(parts)}: it has no mean{way_out}."


def _repeats(group: Group) -> str:
  names = [f"{seed}" if fold is None else f"{seed}/{fold}" for seed, fold in group.counted]
  return f"seeds {listed(names, 12)}"
