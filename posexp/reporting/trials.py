"""Results with the options that were typed and with those that trials chose, and all trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from posexp import storage
from posexp.errors import counted, near, writing
from posexp.reporting import grouping, labels, sentences, tables
from posexp.reporting.results import Results, results
from posexp.reporting.text import MISSING, Section, Table, listed, tabulated, wrapped
from posexp.runs import Run, read_runs
from posexp.runs.metrics import Score
from posexp.runs.trials import Tuning, tunings

FIXED, TUNED = "fixed", "tuned"  # follow the name of a task, of results with such options


def labeled(tuned: Sequence[Tuning]) -> list[Tuning]:
  """Label tuned groups by the options in which they differ from others of their task."""
  tasks: dict[str, list[Run]] = {}
  for tuning in tuned:
    shown = dataclasses.replace(tuning.points[0].runs[0], settings=tuning.settings)
    tasks.setdefault(tuning.task, []).append(shown)
  names = {task: iter(grouping.names_of(shown, 100)) for task, shown in tasks.items()}
  return [dataclasses.replace(tuning, label=next(names[tuning.task])) for tuning in tuned]


def tracks(runs: Sequence[Run], tuned: Sequence[Tuning]) -> list[Run]:
  """Return the runs that are no trials; those of tuned groups count as results of two tasks.

  The runs with fixed options are of the task "mr (fixed)". Those with the options of the best trial
  are of "mr (tuned)", without the options that were tuned: each group has its own there. A run may
  be both. All others are of their task as before.
  """
  finals: dict[tuple[str, str | None], list[Run]] = {}
  for run in runs:
    if not run.trial:
      finals.setdefault((run.task, run.digest), []).append(run)
  made, used = [], set()
  for tuning in tuned:
    for kind, digest in ((FIXED, tuning.fixed), (TUNED, tuning.tuned)):
      own = finals.get((tuning.task, digest), []) if digest else []
      settings = own[0].settings if own and kind == FIXED else tuning.settings
      settings = settings | {"task.name": f"{tuning.task} ({kind})"}  # one object for all seeds
      made += [dataclasses.replace(run, settings=settings) for run in own]
      used.add((tuning.task, digest))
  return [*(run for key, own in finals.items() if key not in used for run in own), *made]


def tuned_table(task: str, tuned: Sequence[Tuning], results: Sequence[Results]) -> Table:
  """Return each tuned group's chosen options, and its results with fixed and with tuned options."""
  sides = {side.task.removeprefix(f"{task} ").strip("()"): side for side in results}
  sides = {kind: sides[kind] for kind in (FIXED, TUNED) if kind in sides}
  rows = []
  for tuning in tuned:
    digests = {FIXED: tuning.fixed, TUNED: tuning.tuned}
    counts = [len(point.runs) for point in tuning.points]
    equal = f"{len(counts)} × {counted(counts[0], 'seed')}"
    trials = equal if len({*counts}) == 1 else f"{sum(counts)}"
    row = [tuning.label, trials, tuning.best.typed if tuning.best else MISSING]
    row.append(tuning.score.number(tuning.best.mean) if tuning.best else MISSING)
    for kind, side in sides.items():
      groups = [group for group in side.ranked if digests[kind] in {r.digest for r in group.runs}]
      mean = groups[0].estimate if groups else None
      row.append(f"{side.shown(mean)} (n = {mean.n})" if mean else MISSING)
    rows.append(row)
  valid = next((tuning.score.title for tuning in tuned if tuning.score), "validation")
  return ["", "trials", "chosen", valid, *(f"{sides[k].score.title}, {k}" for k in sides)], rows


def trial_table(tuned: Sequence[Tuning]) -> Table:
  """Return a row for each trial of some groups, with the score of each seed on validation."""
  seeds = sorted({run.seed for tuning in tuned for point in tuning.points for run in point.runs})
  rows = []
  for tuning in tuned:
    for point in tuning.points:
      cells = {run.seed: _trial(run, tuning.score) for run in point.runs}
      mean = MISSING if point.mean is None else tuning.score.number(point.mean)
      last = [mean, "chosen" if point is tuning.best else ""]
      rows.append([tuning.label, point.typed, *(cells.get(seed, MISSING) for seed in seeds), *last])
  return ["", "trial", *(f"seed {seed}" for seed in seeds), "mean", ""], rows


def _trial(run: Run, of: Score | None) -> str:
  if run.summary is None:
    return "failed" if run.failure else f"at step {run.step:,}"
  return "diverged" if (value := run.score(of.key)) is None else of.number(value)


def notes(tuned: Sequence[Tuning]) -> Iterator[str]:
  """Yield notes on tuned results."""
  at_edges: dict[str, list[str]] = {}
  for tuning in tuned:
    if tuning.edges:
      at_edges.setdefault(", ".join(tuning.edges), []).append(tuning.label)
  for edges, names in at_edges.items():
    yield (
      f"{listed(names, 8)}: the best trial lies at the edge of what was tried ({edges}); "
      "values beyond it may be better."
    )
  for tuning in tuned:
    counts = [len(point.runs) for point in tuning.points]
    if few := sum(count < max(counts) for count in counts):
      yield (
        f"{tuning.label}: of {len(counts)} choices {few} had fewer seeds than others, and only "
        "those with the most are compared; the same tune.seeds for all compares them all."
      )
    if left := sum(run.summary is None for point in tuning.points for run in point.runs):
      yield f"{tuning.label}: {counted(left, 'trial')} not finished, so the choice may change."
  counts = [sum(len(point.runs) for point in tuning.points) for tuning in tuned]
  if len({*counts}) > 1:
    pairs = zip(tuned, counts, strict=True)
    fewer = [f"{tuning.label} {count}" for tuning, count in pairs if count < max(counts)]
    yield (
      f"Groups were tuned by unequal numbers of trials: {listed(fewer, 8)}, others {max(counts)}."
    )
  if of := next((tuning.score for tuning in tuned if tuning.score), None):
    yield (
      f"Trials were chosen by their mean {of.title} at seeds of their own, and were never tested; "
      "results are of other seeds."
    )


def sections(tuned: Sequence[Tuning], results: Sequence[Results]) -> list[Section]:
  """Return the sections of a report on each tuned task, with every trial."""
  made = []
  for task in dict.fromkeys(tuning.task for tuning in tuned):
    own = [tuning for tuning in tuned if tuning.task == task]
    title, table = f"{task}: {FIXED} and {TUNED} options", tuned_table(task, own, results)
    made.append(Section(title, table, [*notes(own)], trial_table(own)))
  return made


def verdicts(folders: Sequence[Path], margin: float | None) -> dict[Path, str]:
  """Return the verdict on each group of finished runs, by its folder: how it compares with the
  baseline, or "" where more seeds are needed. The baseline is open as long as another group is.
  """
  runs = _of_folders(folders)
  verdict_of: dict[Path, str] = {}
  for task in results(tracks(runs, tunings(runs))):
    task.margin = None if margin is None else margin / task.score.factor
    others = [group for group in task.ranked if group is not task.baseline]
    known = {group.label: sentences.outcome(group, task) for group in others}
    if not task.cut_short(task.runs):  # of which more seeds would tell nothing
      few = {each.label for each in others if each.estimate.n < 2 or task.baseline.estimate.n < 2}
      known = {
        label: "" if kind == "not told apart" or label in few else kind
        for label, kind in known.items()
      }
    if task.baseline is not None:
      known[task.baseline.label] = "" if "" in known.values() else "baseline"
    for group in task.ranked:
      for run in group.runs:
        if verdict_of.get(run.path.parent) != "":
          verdict_of[run.path.parent] = known[group.label]
  return verdict_of


def of_sweep(folders: Sequence[Path], margin: float | None = None) -> Iterator[str]:
  """Yield the lines at the end of a sweep: the means of its finished runs, in their folders.

  `margin` is that of a sweep with `until`; if it is None, the one that its last run was begun with.
  """
  runs = _of_folders(folders)
  tuned = labeled(tunings(runs))
  if not (finals := tracks(runs, tuned)):
    return
  tasks = results(finals)
  for task in tasks:
    if task.looked_at and margin is not None:
      task.margin = margin / task.score.factor
  notes = labels.rename(tasks, {})
  for section in sections(tuned, tasks):
    yield from ("", section.title, *tabulated(section.table, "plain").splitlines(), *section.notes)
  yield from (*notes, *tables.means(tasks))
  looked_at = [task for task in tasks if task.looked_at and len(task.ranked) > 1]
  for task in looked_at:
    yield from _told(task, "told" if len(looked_at) == 1 else f"told {task.task}")


def _of_folders(folders: Sequence[Path]) -> list[Run]:
  """Return the runs in some folders, and with a trial all that are beside it: they count, too."""
  places = [each.parents[1] if each.parents[1].name == "trials" else each for each in folders]
  return read_runs([*dict.fromkeys(places)], trials=True)[0]


def _told(results: Results, title: str) -> Iterator[str]:
  """Yield the findings of a sweep that ends by itself, in sentences and in a picture."""
  from posexp.reporting import figures  # slow to import

  order = sentences.order(results)
  said = [sentences.answer(results), *sentences.differences(results)[:1], *[order] * bool(order)]
  yield from ("", *map(wrapped, said))
  place = next(iter(results.runs)).path.parents[2]
  first = next(iter(figures.figures(results)), None)
  if first is not None:
    file = place / f"{first._replace(title=title, results=None).name}.svg"
    with writing("the picture", place):
      storage.write(file, str(first._replace(title=title).drawn("svg")))
    yield f"picture: {near(file)}"
