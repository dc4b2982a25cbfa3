"""The sentences of a report: which group beats the baseline, and what a reader must know."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from posexp.errors import counted, near
from posexp.reporting.grouping import PATHS, Group, differing, distinguishing, text_size
from posexp.reporting.results import Results, between
from posexp.reporting.significance import LEVEL, Difference
from posexp.reporting.text import MISSING, listed, p_number, p_value
from posexp.runs.metrics import Score, score
from posexp.runs.scores import by_part

VERBS = {  # how a group compares with the baseline
  "better": "beats",
  "worse": "loses to",
  "equal": "is equal for practical purposes to",
  "not told apart": "cannot be told apart from",
  "not tested": "cannot be tested against",
}

MIXED = {  # facts of a summary that all runs of a comparison should share
  "devices": "Seconds and rates are of different devices",
  "processor": "Runs were trained on different processors, which round differently",
  "versions": "Runs were trained by different versions, whose numbers may differ",
}


def answer(results: Results) -> str:
  """Return which group is the best, whether groups are on equal terms, and how they compare with
  the baseline; or why there is none and what to type.
  """
  if not results.ranked:
    keys = list(dict.fromkeys(key for group in results.groups for key in group.mixed))
    mixed = f"each mixes runs of different {listed(keys)}{_apart(results)}"
    return f"No group of {results.task} has a mean: {mixed}."
  best, base = results.ranked[0], results.baseline
  counts = Counter(outcome(group, results) for group in results.ranked if group is not base)
  others = ", ".join(f"{counts[each]} {each}" for each in VERBS if counts[each])
  against = f" Against {base.label}: {others}." if others else ""
  said = results.shown(best.estimate)
  of = f"{learned(best, results)} seeds learned" if results.gated else f"n = {best.estimate.n}"
  equal = [group.label for group in results.ranked if group.estimate.mean == best.estimate.mean]
  if len(results.ranked) == 1:
    said = f"{best.label} is the only group with a mean: {said}, {of}"
  elif len(equal) > 1:
    mean = results.score.number(best.estimate.mean)
    said = f"{' and '.join(equal[:2])} " if len(equal) == 2 else f"{listed(equal, 3)} "
    said += f"are equal and first of {len(results.ranked)} groups with {mean}"
  else:
    said = f"{best.label} is first of {len(results.ranked)} groups with {said}, {of}"
  if results.unequal:
    said += f", on unequal terms: groups differ in {listed(results.unequal)}"
  missing = [group.label for group in results.groups if not group.estimate.n]
  without = f" Without a mean: {listed(missing)}." if missing else ""
  speed = f" {training(results)}" if results.cut_short(results.runs) else ""
  none = results.gated and not any(group.learned(results.score) for group in results.ranked)
  say = f" No seed has learned the task, which takes {_asked(results)}." if none else ""
  return f"{said}.{against}{without}{say}{speed}"


def training(results: Results) -> str:
  """Return how many runs were not trained to their end; "" if all were."""
  every = [*results.trained.values()]
  counts = {
    "still improved at the last evaluation": sum(run.improving for run in every),
    "never left warmup": sum(run.rising for run in every),
    "learned the training set no better than by guessing": sum(run.at_chance for run in every),
  }
  said = [f"{count} {what}" for what, count in counts.items() if count]
  if not said:
    return ""
  speed = ""
  if results.cut_short(results.runs):
    more = max(every, key=lambda each: each.steps).more()
    speed = f": this ranks speed, not encodings; add {more}"
  return f"Of {counted(len(every), 'run')}, {', '.join(said)}{speed}."


def learned(group: Group, results: Results) -> str:
  """Return how many of a group's seeds have learned the task: "3 of 5"."""
  own = len(group.learned(results.score))
  return f"{own} of {len(group.repeats)}" if group.repeats else MISSING


def _asked(results: Results) -> str:
  """Say which score a run must reach to have learned its task."""
  split = results.score.split
  gates = (run.summary["gates"][split] for run in results.runs if run.learned(split) is not None)
  gate = next(gates)
  of = score(gate["metric"])
  return f"{of.number(gate['least'])} {of.title}"


def outcome(group: Group, results: Results) -> str:
  """Return how a group compares with the baseline: a key of VERBS."""
  difference = group.difference
  if difference.holm is None:
    return "not tested"
  if _contradicts(difference):
    return "not told apart"
  if difference.holm >= LEVEL:
    margin, low, high = results.margin, difference.estimate.low, difference.estimate.high
    within = margin is not None and low is not None and -margin <= low and high <= margin
    return "equal" if within else "not told apart"
  ahead = (difference.estimate.mean > 0) == results.score.metric.higher_is_better
  return "better" if ahead else "worse"


def _contradicts(difference: Difference) -> bool:
  """Return whether a mean and its interval are on two sides of 0: an interval of ranks says where
  most seeds are, and a few that failed may move the mean to the other side.
  """
  mean, low, high = difference.estimate.mean, difference.estimate.low, difference.estimate.high
  return low is not None and (low > 0 > mean or high < 0 < mean)


def other_baselines(tasks: Sequence[Results], asked: str | None) -> list[str]:
  """Return a note on tasks without the group that was asked for as the baseline."""
  others = [
    f"{task.task} with {task.baseline.label}"
    for task in tasks
    if asked is not None and task.baseline and task.baseline.label != asked
  ]
  return [f"Without a group {asked}, so compared otherwise: {listed(others, 8)}."] * bool(others)


def differences(results: Results) -> list[str]:
  """Return a sentence for each group that shares seeds with the baseline, the best first."""
  return [_difference(group, results) for group in results.ranked if group.difference.estimate.n]


def _difference(group: Group, results: Results) -> str:
  difference, kind = group.difference, outcome(group, results)
  unit, test = results.score.unit, difference.contrast
  text = f"{group.label} {VERBS[kind]} {results.baseline.label}: "
  text += f"{results.shown(difference.estimate, '+')} {unit}"
  if difference.p is None:
    runs = [*group.repeats.values(), *results.baseline.repeats.values()]
    short = "; most of these runs were cut short" * results.cut_short(runs)
    return f"{text}, n = {difference.estimate.n}{short}."
  corrected = f" ({p_number(difference.holm)} corrected)" if len(results.tested) > 1 else ""
  text += f", {p_value(difference.p)}{corrected}"
  own, base = test.n if test else (len(group.repeats), len(results.baseline.repeats))
  pairs = f"{own} pairs" if test and test.paired else ""
  text += f", n = {pairs or (own if own == base else f'{own} and {base}')}"
  if _contradicts(difference):
    text += "; most seeds are on the one side, and the mean, by a few, is on the other"
  if (wider := results.over_examples.get(group.label)) is not None:
    ends = "to".join(f" {results.score.number(end, '+')} " for end in (wider.low, wider.high))
    text += f"; with other test examples, too,{ends.rstrip()}"
  if kind == "not told apart" and (least := results.detectable(group)) is not None:
    within = results.score.most is None or least <= results.score.most
    found = f"{results.score.number(least)} {unit} or more" if within else "no difference at all"
    text += f"; these seeds find {found}"
  return f"{text}."


def order(results: Results) -> str:
  """Return a sentence on whether the order of words matters for these data.

  It compares the group without positions with each other one: in an encoder, texts have no order
  for it. It is "" without such a group, and for tasks without a bag of words to compare with:
  a causal decoder knows the order of words without positions, too.
  """
  groups = [*results.ranked]
  blind = [group for group in groups if {run.encoding for run in group.runs} == {"none"}]
  reads = any("baseline/test/accuracy" in (run.summary or ()) for run in results.runs)
  if len(blind) != 1 or len(groups) < 2 or not reads:
    return ""
  (none,) = blind
  groups.remove(none)
  looks = len(groups) * results.looked_at
  of_none = (between(results, group.repeats, none.repeats, looks) for group in groups)
  pairs = zip(groups, of_none, strict=True)
  kinds = [outcome(dataclasses.replace(group, difference=each), results) for group, each in pairs]
  best = groups[kinds.index("better") if "better" in kinds else 0]
  worth = results.score.number(abs(best.estimate.mean - none.estimate.mean))
  worth = f"{worth} {results.score.unit} between {best.label} and no positions"
  if "better" in kinds:
    return f"Order matters for these data: {worth}."
  if {*kinds} == {"equal"}:
    return "Order does not matter for these data: without positions the score is within the margin."
  return f"Whether order matters for these data cannot be told: {worth}."


def method(results: Results) -> str:
  """Return how the sentences and intervals come about."""
  scale = {None: "", math.inf: " of the logarithm"}.get(results.score.most, " of the logit")
  folds = any(group.folds for group in results.ranked)
  over = "folds, each the mean of its seeds," if folds else "seeds"
  text = f"Means of {results.score.title} over {over} with 95 % t intervals{scale}."
  if results.looked_at:
    text = f"Means of {results.score.title} over seeds."
  if results.gated:
    text += (
      f" Every seed counts; the task counts as learned from {_asked(results)} on. Of few seeds, of "
      "which some lie near 0 and some near 1, intervals are too narrow."
    )
  if len(results.ranked) > 1:
    rule = f"{results.rule}; " if results.rule else ""
    text += f" Differences to {results.baseline.label} ({rule}--baseline names another group)"
    if not results.tested:
      short = results.cut_short(results.runs)
      why = "as most runs were cut short" if short else "for want of seeds"
      return f"{text} without a test, {why}."
    tests = len(results.tested)
    if results.looked_at:
      return f"{text}: {_looked_at(results)}"
    pairs = sum(group.difference.contrast.paired for group in results.tested)
    by = "fold" if folds else "seed"
    which = f"; {pairs} of {tests} paired by {by}, which at least halves the variance"
    which = which if pairs else f", since pairing by {by} would not halve the variance"
    text += (
      f": Welch's t tests{which}; corrected for {counted(tests, 'test')} (Holm). What seeds find "
      f"is found with a power of 80 % at the level 0.05/{tests}."
    )
  return text


def _looked_at(results: Results) -> str:
  """Return how differences come about where each seed was looked at before the next was trained."""
  margin = results.margin
  equal = "" if margin is None else (
    f" nor equal within {results.score.number(margin)} {results.score.unit} (margin)"
  )  # fmt: skip
  return (
    f"seeds were added to what was not told apart{equal}. So these are no t tests: intervals and p "
    "hold however often one looks (ranks of all scores, see docs/until.md), for shifts of any "
    f"distribution, and for all {counted(len(results.ranked) - 1, 'comparison')} together."
  )


def missing(results: Results, what: str) -> str:
  """Return why a report has nothing of `what` for a task, and what to type."""
  if any(group.repeats for group in results.groups):
    return f"No {what}: the seeds of a group have logged too little in common."
  return f"No {what}: no group is of runs that are alike{_apart(results)}."


def notes(results: Results) -> Iterator[str]:
  """Yield notes on numbers that are missing, mixed, or not alike."""
  if said := training(results):
    yield said
  for group in results.groups:
    yield from _group_notes(group, results)
  for group in results.doubtful:
    own, other = (results.of_learned(side).mean for side in (group, results.baseline))
    names = f"{group.label} or {results.baseline.label}"
    yield (
      f"Seeds that have not learned decide whether {names} is ahead: without them the means are "
      f"{results.score.number(own)} and {results.score.number(other)}."
    )
  kept = [run for group in results.groups for run in group.repeats.values()]
  if extra := [key for key in differing(kept) if key not in results.by]:
    yield f"Groups differ in more than in {', '.join(results.by)}: {listed(extra, 8)}."
  for key in results.uncrossed:
    values = Counter(group.values[key] for group in results.ranked)
    often = next(value for value, _ in values.most_common() if value != MISSING)
    yield (
      f"Some groups have values of {key} that others lack; {_where(key, often)} compares those "
      "that have the same."
    )
  reasons: dict[str, list[str]] = {}
  for run in results.never_begun:
    name = f"{run.path.parent.name}/{run.path.name}"
    reasons.setdefault(run.failure[:120], []).append(name)
  for why, failed in reasons.items():
    yield f"In no group, since they failed before they began: {listed(failed, 8)} ({why})."
  columns = by_part(results.score, results.runs).get(results.score.split, ())
  for group in results.groups:
    every = group.repeats.values()
    lacks = [part.part for part in columns if any(run.score(part.key) is None for run in every)]
    if lacks:
      which = listed(lacks, 8)
      yield f"{group.label}: without {which}, so its mean is of fewer parts than others'."
  if len(texts := dict.fromkeys(filter(None, map(text_size, kept)))) > 1:
    yield (
      f"Groups were tested on different texts, of {listed([*texts])} bytes: bits per byte of two "
      "texts say nothing of each other, so they are not compared."
    )
  if results.other_data:
    names = listed([group.label for group in results.other_data])
    yield f"Tested on other data than {results.baseline.label}, and so not compared: {names}."
  for fact, says in MIXED.items():
    kinds = {str(run.summary[fact]) for run in results.runs if fact in (run.summary or {})}
    if len(kinds) > 1:
      yield f"{says}: {listed(sorted(kinds))}."


def _group_notes(group: Group, results: Results) -> Iterator[str]:
  """Yield notes on the runs of a group that have no part in its mean or in its difference."""
  base = results.baseline
  if group.mixed:
    parts = []
    for key, counts in group.mixed.items():
      shown = [f"{value} ({counted(n, 'run')})" for value, n in counts.most_common()]
      parts.append(f"{key} = {listed(shown)}")
    yield f"{group.label} mixes {'; '.join(parts)}: it has no mean{_way_out(group, results)}."
  elif left := list(_left_out(group, results.score)):
    yield f"{group.label}: left out {listed(left)}."
  test, theirs = group.difference.contrast, base.repeats if base else {}
  shared, most = len(group.repeats.keys() & theirs.keys()), max(map(len, (group.repeats, theirs)))
  alone = test.paired if test else min(len(group.repeats), len(theirs)) == 1
  if group is not base and alone and not group.folds and 0 < shared < most:
    yield (
      f"{group.label} ({_repeats(group)}) and {base.label} ({_repeats(base)}) share "
      f"{counted(shared, 'seed')}: their difference is that of these alone."
    )


def _left_out(group: Group, of: Score) -> Iterator[str]:
  """Yield the runs of a group that do not count, and why."""
  kept = {run.path for run in group.repeats.values()}
  for run in [run for run in group.runs if run.path not in kept]:
    if run.state == "failed":
      why = f"failed at step {run.step:,}: {run.failure[:120]}"
    elif run.state == "unfinished":
      why = f"not finished, at step {run.step:,}"
    elif run.score(of.key) is None:
      why = f"without {of.key}"
    else:
      why = f"a copy of another run, in {near(run.path)}"
    yield f"seed {run.seed} ({why})"


def _apart(results: Results) -> str:
  """Say what to type for a mean where all groups are mixed."""
  return next((way for group in results.groups if (way := _way_out(group, results))), "")


def _way_out(group: Group, results: Results) -> str:
  """Say what to type for a mean of the parts of a mixed group."""
  finished = [run for run in group.runs if run.score(results.score.key) is not None]
  keys = [key for key in distinguishing(finished) if key in group.mixed]
  keys = keys or [key for key in differing(finished) if key in PATHS][:1]
  if not keys:
    return "; name the folders of like runs alone" if group.mixed else ""
  value = group.mixed[keys[0]].most_common(1)[0][0] if keys[0] in group.mixed else None
  chosen = "" if value in (None, MISSING) else f", {_where(keys[0], value)} chooses a part"
  return f"; --by {','.join([*results.by, *keys])} takes it apart{chosen}"


def _where(key: str, value: str) -> str:
  return f"--where {shlex.quote(f'{key}={value}')}"


def _repeats(group: Group) -> str:
  names = [f"{seed}" if fold is None else f"{seed}/{fold}" for seed, fold in group.repeats]
  return f"seeds {listed(names, 12)}"
