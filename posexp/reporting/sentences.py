"""What a report says in plain words: which group beats the baseline, and what has to be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from posexp.reporting.grouping import PATHS, Group, Repeat, confounded, distinguishing, value_of
from posexp.reporting.results import Results, shared
from posexp.reporting.significance import MOST_SEEDS
from posexp.reporting.text import counted, listed, p_value
from posexp.runs import Run

OUTCOMES = ("better", "worse", "not told apart", "not tested")


def answer(results: Results) -> str:
  """The answer in one sentence."""
  best, score, base = results.groups[0], results.score, results.baseline
  if best.estimate is None:
    return f"No run of {results.task} has finished with {score.title}."
  if best.mixed:
    return f"Every group of {results.task} mixes several settings: none can be ranked."
  found = score.number(best.estimate.mean)
  if best.estimate.half is not None:
    found += f" ± {score.number(best.estimate.half)}"
  groups = [group for group in results.groups if group.estimate is not None]
  if len(groups) == 1:
    return f"{best.label}: {found}, n = {best.estimate.n}."
  if base is None:
    return f"{best.label} is first of {len(groups)} groups with {found}."
  counts = Counter(outcome(group, results) for group in groups if group is not base)
  others = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each])
  return (
    f"{best.label} is first of {len(groups)} groups with {found}, n = {best.estimate.n}; against "
    f"{base.label}, {others}."
  )


def outcome(group: Group, results: Results) -> str:
  """How a group compares with the baseline: one of OUTCOMES."""
  found = group.difference
  if found is None or found.p is None:
    return "not tested"
  if not found.significant:
    return "not told apart"
  return "better" if is_ahead(group, results) else "worse"


def is_ahead(group: Group, results: Results) -> bool:
  """Whether the mean difference to the baseline is one for the better."""
  return (group.difference.estimate.mean > 0) == results.score.metric.higher_is_better


def differences(results: Results) -> list[str]:
  """A sentence for each group that shares seeds with the baseline, in the order of their scores."""
  return [
    difference(group, results)
    for group in results.groups
    if group.difference is not None and group.difference.n
  ]


def difference(group: Group, results: Results) -> str:
  """How a group does against the baseline, on the seeds that both have."""
  found, score = group.difference, results.score
  name, base = group.label, results.baseline.label
  mean, half, seeds = abs(found.estimate.mean), found.estimate.half, f"{found.n} seeds"
  if found.p is None:
    each = f"each of {seeds}" if found.n > 1 else "the one seed that both have"
    if not mean:
      return f"{name} and {base} have the same score with {each}: no test."
    size = f"{score.rounded(mean, 0)} {score.unit}"
    way = "ahead of" if is_ahead(group, results) else "behind"
    if found.n == 1:
      return f"{name} is {size} {way} {base} with {each}: no test."
    return (
      f"{name} is {size} {way} {base} with {each} alike, so that it cannot be said how much seeds "
      "matter: no test."
    )
  size = f"{score.rounded(mean, half)} ± {score.rounded(half, half)} {score.unit}"
  if found.significant:
    verb = "beats" if is_ahead(group, results) else "loses to"
    return f"{name} {verb} {base} by {size}, {p_value(found.holm)}, n = {found.n}."
  sign = "" if found.estimate.mean > 0 else "−"
  if found.needed:
    more = f"about {found.needed:,} would be needed for a difference of that size"
  else:
    more = f"more than {MOST_SEEDS:,} would be needed for a difference that small"
  return (
    f"{name} and {base} cannot be told apart with {seeds} ({sign}{size}, {p_value(found.holm)}); "
    f"{more}."
  )


def method(results: Results) -> str:
  """How the sentences and intervals come about."""
  tests = results.tests
  parts = [f"Mean of {results.score.title} over seeds; intervals (±) are 95 % t intervals"]
  if tests:
    corrected = f", after Holm's correction for {tests} tests" if tests > 1 else ""
    parts.append(
      f"differences and p come from paired t tests on the seeds shared with "
      f"{results.baseline.label}{corrected}"
    )
    if not results.named:
      parts.append("--baseline names another baseline")
    level = f" at the level 0.05/{tests}" if tests > 1 else ""
    parts.append(
      f"seeds needed are for a power of 80 %{level}, if a difference is as large as it seems"
    )
  return "; ".join(parts) + "."


def notes(results: Results) -> Iterator[str]:
  """Everything that a reader of the numbers must know: what is missing, mixed, or not alike."""
  base = results.baseline
  for group in results.groups:
    yield from _of_group(group, results)
  if base is not None:
    for group in results.groups:
      if group is not base and group.ranked and base.ranked:
        yield from _of_seeds(group, base)
    if base.mixed and len(results.groups) > 1:
      yield f"The baseline {base.label} is mixed: there are no tests."
    if not base.counted:
      yield f"The baseline {base.label} has no run that counts: there are no tests."
  if extra := confounded(results.groups, results.by):
    yield f"Groups differ in more than in {', '.join(results.by)}: {listed(extra, 8)}."
  if single := [g.label for g in results.groups if g.estimate is not None and g.estimate.n == 1]:
    yield f"n = 1, so without an interval: {listed(single)}."
  yield from _of_all(results)


def _of_group(group: Group, results: Results) -> Iterator[str]:
  if left := [_state(run) for run in group.runs if run.state != "finished"]:
    yield f"{group.label}: left out {listed(left)}."
  if group.unscored:
    runs = counted(group.unscored, "finished run")
    yield f"{group.label}: {runs} without {results.score.key}."
  if group.mixed:
    yield f"{group.label} mixes {_mixture(group, results.by)}"
  if group.repeated:
    yield (
      f"{group.label}: {counted(group.repeated, 'run')} left out, since another has the same "
      "settings and seed."
    )


def _state(run: Run) -> str:
  if run.state == "failed":
    return f"seed {run.seed}, which failed at step {run.step:,} ({run.failure[:120]})"
  return f"seed {run.seed}, not finished (at step {run.step:,})"


def _mixture(group: Group, by: Sequence[str]) -> str:
  parts, keys = [], []
  for key, values in group.mixed.items():
    shown = listed([f"{value} ({counted(n, 'run')})" for value, n in values.most_common()])
    if key == "data":
      parts.append(f"runs of different data (folders {shown})")
    elif key != "steps":
      parts.append(f"{key} = {shown}")
      keys.append(key)
    elif len(group.mixed) == 1:  # or other options explain it
      parts.append(f"runs of {shown} steps")
  if keys:  # as few as take it apart
    keys = [key for key in distinguishing(list(group.counted.values())) if key in keys]
  way_out = f"; --by {','.join([*by, *keys])} takes it apart" if keys else ""
  return f"{'; '.join(parts)}: its mean has no rank, no interval and no test{way_out}."


def _of_seeds(group: Group, base: Group) -> Iterator[str]:
  both = set(shared(group, base))
  for one, other in ((group, base), (base, group)):
    if both and (missing := other.counted.keys() - both):
      yield f"{one.label} lacks {_repeats(missing)} of {other.label}: not in their difference."
  if not both:
    yield (
      f"{group.label} ({_repeats(group.counted)}) and {base.label} ({_repeats(base.counted)}) "
      "share no seed: no test."
    )


def _repeats(repeats: Sequence[Repeat]) -> str:
  folds = any(fold is not None for _, fold in repeats)
  ordered = sorted(repeats, key=lambda each: (each[0], str(each[1])))
  names = [f"{seed}/{fold}" if folds else str(seed) for seed, fold in ordered]
  return f"{'seed/fold' if folds else 'seed'}{'s' if len(names) > 1 else ''} {listed(names, 12)}"


def _of_all(results: Results) -> Iterator[str]:
  finished = [run for run in results.runs if run.state == "finished"]
  for key in PATHS:
    files = {value_of(run, key) for run in finished if key in run.settings}
    if len(files) > 1:
      yield f"Runs name different files as {key}: {listed(sorted(files))}."
  devices = sorted({str(run.summary["devices"]) for run in finished if "devices" in run.summary})
  if len(devices) > 1:
    yield f"Seconds and rates are of different devices: {listed(devices)}."
  if damaged := {run.path: len(run.damaged) for run in results.runs if run.damaged}:
    total = sum(damaged.values())
    yield (
      f"{counted(total, 'damaged line')} of metrics.jsonl {'was' if total == 1 else 'were'} "
      f"skipped: {listed([f'{count} in {path}' for path, count in damaged.items()])}."
    )
