"""What a report says in plain words: which group beats the baseline, and what has to be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from posexp.reporting.grouping import PATHS, Group, Repeat, confounded, telling, value_of
from posexp.reporting.intervals import MOST
from posexp.reporting.results import Row, Section, shared
from posexp.runs import Run
from posexp.runs.metrics import Score

KINDS = {
  "better": "better",
  "worse": "worse",
  "same": "not told apart",
  "untested": "not tested",
}
NAMED = 4  # runs that a note names


def p_value(p: float) -> str:
  """As papers write it."""
  return f"p = {p:.3f}" if p >= 0.0995 else (f"p = {p:.2g}" if p >= 0.001 else "p < 0.001")


def headline(section: Section) -> str:
  """The answer in one sentence."""
  best, metric = section.rows[0], section.metric
  if best.score is None:
    return f"No run of {section.task} has finished with {metric.title}."
  score = f"{metric.number(best.score.mean)}{interval_of(best, metric)}"
  rows = [row for row in section.rows if row.score is not None]
  if best.group.mixed:
    return f"Every group of {section.task} mixes several settings: none can be ranked."
  if len(rows) == 1:
    return f"{best.label}: {score}, n = {best.score.n}."
  if section.baseline is None:
    return f"{best.label} is first of {len(rows)} groups with {score}."
  counts = Counter(_kind(row, metric) for row in rows if row is not section.baseline)
  others = ", ".join(f"{counts[kind]} {said}" for kind, said in KINDS.items() if counts[kind])
  return (
    f"{best.label} is first of {len(rows)} groups with {score}, n = {best.score.n}; against "
    f"{section.baseline.label}, {others}."
  )


def _kind(row: Row, metric: Score) -> str:
  if row.against is None or row.against.p is None:
    return "untested"
  if not row.against.sure:
    return "same"
  return "better" if (row.against.mean > 0) == metric.metric.higher_is_better else "worse"


def interval_of(row: Row, metric: Score) -> str:
  """` ± half its interval`, or nothing."""
  found = row.score
  if found is None or found.low is None:
    return ""
  return f" ± {metric.number((found.high - found.low) / 2)}"


def verdicts(section: Section) -> Iterator[str]:
  """A sentence for each group against the baseline, in the order of their scores."""
  for row in section.rows:
    if row is not section.baseline and (said := verdict(row, section)):
      yield said


def verdict(row: Row, section: Section) -> str:
  """How a group does against the baseline; nothing where the notes say why that is not known."""
  found, base, metric = row.against, section.baseline, section.metric
  if found is None or base is None:
    return ""
  if not found.n:
    return ""
  ahead = (found.mean > 0) == metric.metric.higher_is_better
  seeds = f"{found.n} seeds"
  if found.p is None:
    size = f"{metric.rounded(abs(found.mean), 0)} {metric.unit}"
    way = "ahead of" if ahead else "behind"
    if not found.mean:
      each = f"each of {seeds}" if found.n > 1 else "the one seed that both have"
      return f"{row.label} and {base.label} have the same score with {each}: no test."
    if found.n > 1:
      return (
        f"{row.label} is {size} {way} {base.label} with each of {seeds} alike, so that it cannot "
        "be said how much seeds matter: no test."
      )
    return f"{row.label} is {size} {way} {base.label} with the one seed that both have: no test."
  size = (
    f"{metric.rounded(abs(found.mean), found.half)} ± "
    f"{metric.rounded(found.half, found.half)} {metric.unit}"
  )
  if found.sure:
    verb = "beats" if ahead else "loses to"
    return f"{row.label} {verb} {base.label} by {size}, {p_value(found.holm)}, n = {found.n}."
  signed = size if found.mean > 0 else f"−{size}"
  if found.needed:
    more = f"about {found.needed:,} would be needed for a difference of that size"
  else:
    more = f"more than {MOST:,} would be needed for a difference that small"
  return (
    f"{row.label} and {base.label} cannot be told apart with {seeds} ({signed}, "
    f"{p_value(found.holm)}); {more}."
  )


def method(section: Section) -> str:
  """How the sentences and intervals come about."""
  parts = [f"Mean of {section.metric.title} over seeds; intervals (±) are 95 % t intervals"]
  if section.tests:
    corrected = f", after Holm's correction for {section.tests} tests" if section.tests > 1 else ""
    parts.append(
      f"differences and p come from paired t tests on the seeds shared with "
      f"{section.baseline.label}{corrected}"
    )
    if not section.named:
      parts.append("--baseline names another baseline")
    level = f" at the level 0.05/{section.tests}" if section.tests > 1 else ""
    parts.append(
      f"seeds needed are for a power of 80 %{level}, if a difference is as large as it seems"
    )
  return "; ".join(parts) + "."


def notes(section: Section) -> Iterator[str]:
  """Everything that a reader of the numbers must know: what is missing, mixed, or not alike."""
  base = section.baseline
  for row in section.rows:
    yield from _of_group(row.group, section)
  if base is not None:
    for row in section.rows:
      mixed = row.group.mixed or base.group.mixed
      if row is not base and row.group.counted and base.group.counted and not mixed:
        yield from _pairing(row.group, base.group)
    if base.group.mixed and len(section.rows) > 1:
      yield f"The baseline {base.label} is mixed: there are no tests."
    if not base.group.counted:
      yield f"The baseline {base.label} has no run that counts: there are no tests."
  if extra := confounded([row.group for row in section.rows], section.by):
    yield f"Groups differ in more than in {', '.join(section.by)}: {_list(extra, 8)}."
  single = [row.label for row in section.rows if row.score is not None and row.score.n == 1]
  if single:
    yield f"n = 1, so without an interval: {_list(single)}."
  yield from _of_all(section)


def _of_group(group: Group, section: Section) -> Iterator[str]:
  left = [run for run in group.runs if run.state != "finished"]
  if left:
    yield f"{group.label}: left out {_list([_state(run) for run in left])}."
  if group.unscored:
    yield f"{group.label}: {_count(group.unscored, 'finished run')} without {section.metric.key}."
  if group.mixed:
    yield f"{group.label} mixes {_mixture(group, section.by)}"
  if group.several:
    yield (
      f"{group.label}: {_count(group.several, 'run')} left out, since another has the same "
      "settings and seed."
    )


def _mixture(group: Group, by: Sequence[str]) -> str:
  parts, keys = [], []
  for key, values in group.mixed.items():
    shown = _list([f"{value} ({_count(count, 'run')})" for value, count in values.most_common()])
    if key == "data":
      parts.append(f"runs of different data (folders {shown})")
    elif key != "steps":
      parts.append(f"{key} = {shown}")
      keys.append(key)
    elif len(group.mixed) == 1:  # or other options explain it
      parts.append(f"runs of {shown} steps")
  if keys:  # as few as take it apart
    keys = [key for key in telling(list(group.counted.values())) if key in keys]
  way_out = f"; --by {','.join([*by, *keys])} takes it apart" if keys else ""
  return f"{'; '.join(parts)}: its mean has no rank, no interval and no test{way_out}."


def _pairing(group: Group, base: Group) -> Iterator[str]:
  both = set(shared(group, base))
  for one, other in ((group, base), (base, group)):
    if both and (missing := other.counted.keys() - both):
      yield f"{one.label} lacks {_repeats(missing)} of {other.label}: not in their difference."
  if not both:
    yield (
      f"{group.label} ({_repeats(group.counted)}) and {base.label} ({_repeats(base.counted)}) "
      "share no seed: no test."
    )


def _of_all(section: Section) -> Iterator[str]:
  finished = [run for run in section.runs if run.state == "finished"]
  for key in PATHS:
    found = {value_of(run, key) for run in finished if key in run.settings}
    if len(found) > 1:
      yield f"Runs name different files as {key}: {_list(sorted(found))}."
  devices = sorted({str(run.summary["devices"]) for run in finished if "devices" in run.summary})
  if len(devices) > 1:
    yield f"Seconds and rates are of different devices: {_list(devices)}."
  if damaged := {run.path: run.damaged for run in section.runs if run.damaged}:
    total = sum(damaged.values())
    were = "was" if total == 1 else "were"
    yield (
      f"{_count(total, 'damaged line')} of metrics.jsonl {were} skipped: "
      f"{_list([f'{count} in {path}' for path, count in damaged.items()])}."
    )


def _state(run: Run) -> str:
  if run.state == "failed":
    return f"seed {run.seed}, which failed at step {run.step:,} ({run.failure[:120]})"
  return f"seed {run.seed}, not finished (at step {run.step:,})"


def _repeats(repeats: Sequence[Repeat]) -> str:
  folds = {fold for _, fold in repeats if fold is not None}
  ordered = sorted(repeats, key=lambda each: (each[0], str(each[1])))
  names = [f"{seed}/{fold}" if folds else str(seed) for seed, fold in ordered]
  return f"{'seed/fold' if folds else 'seed'}{'s' if len(names) > 1 else ''} {_list(names, 12)}"


def _count(count: int, what: str) -> str:
  return f"{count:,} {what}{'' if count == 1 else 's'}"


def _list(items: Sequence[str], most: int = NAMED) -> str:
  shown = ", ".join(items[:most])
  return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
