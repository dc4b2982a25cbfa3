"""Whether an entry may be published: its file is checked, and some of its runs are trained again.

What is in the file must be what the suite asks for, and must not contradict itself. That numbers
which agree with each other were measured at all, only training can tell.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp import reading
from posexp.board.evidence import VALIDATION, check_summary, prepared
from posexp.board.rows import TRACKS, Row, about_row, default_of
from posexp.board.standings import chosen
from posexp.board.suite import FOLDER, Column, Suite
from posexp.board.trust import agrees, check_properties, trained
from posexp.config import plugins
from posexp.errors import UserError, counted
from posexp.reporting.significance import estimate
from posexp.runs import Run, digest
from posexp.runs.metrics import score
from posexp.runs.records import read_records
from posexp.sweeps.sweep import Member, Train
from posexp.training.setup import Setup

SAME = 1e-6  # of scores on the same processor, with the same versions
TESTED = ("test/", "beyond/", "context/", "chance/")  # how keys of test scores begin
AGAIN = 3  # runs of an entry that are trained again, a trial among them


def verify(
  file: Path, suite: Suite, published: Path, out: Path, overrides: Sequence[str], train: Train
) -> Iterator[str]:
  """Yield what holds of an entry, check by check; `published` is the folder of published rows.

  Raises:
    UserError: the entry is refused, and why.
  """
  if not file.exists():
    raise UserError(f"{file}: there is no such file")
  about, every = about_row(file), read_records(file, trials=True)
  with _saying(f"{file} is refused"):
    yield from checked(file, about, every, suite, published)
    if about["code"]:
      check_properties(about["encoding"], about["options"])
  yield from _check_again(file, about, every, suite, out, overrides, train)


def checked(
  file: Path, about: dict[str, Any], every: Sequence[Run], suite: Suite, published: Path
) -> Iterator[str]:
  """Yield what holds of an entry without training; raise UserError, which says what does not."""
  if about["suite"] != suite.digest:
    raise UserError(_of_other_suite(about["suite"], suite))
  suite.check_code()
  yield f"suite     {suite.name} ({suite.digest})"
  yield _check_code(about)
  row = _row(file, about, published)
  if strange := sorted({run.task for run in every} - {*suite.columns}):
    raise UserError(f"{strange[0]} is no column of the suite")
  for name, column in suite.columns.items():
    if runs := [run for run in every if run.task == name]:
      with _saying(name):
        _check_column(row, column, suite, about, runs)
  finals = [run for run in every if not run.trial]
  yield (
    f"budget    {counted(len(every) - len(finals), 'trial')} without a test score, and "
    f"{counted(len(finals), 'run')} that they chose, as their examples say"
  )


def _check_column(
  row: Row, column: Column, suite: Suite, about: dict[str, Any], runs: Sequence[Run]
) -> None:
  """Check that the runs of a column are those that the suite asks for, with numbers of their own.

  Numbers come before the choice, so that an edited trial is named, and not what it chooses.
  """
  _check_runs(about, runs)
  planned = row.planned(suite, column, about["quick"], Path(f".{row.name}"))  # no folder of runs
  fixed = next(each.fixed for each in planned if each.fixed).config
  if about["default"] != (default := _default(fixed)):
    raise UserError(
      f"the default in its metadata is {about['default']}, and that of its options is {default}"
    )
  _check_trials([each for each in planned if each.of], runs)
  data = prepared(fixed)
  for run in runs:
    with _saying(_named(run)):
      check_summary(run, column, data)
  _check_choice(suite, about, runs)


@contextlib.contextmanager
def _saying(where: str) -> Iterator[None]:
  """Put before an error where it is."""
  try:
    yield
  except UserError as error:
    raise UserError(f"{where}: {error}") from error


def _named(run: Run) -> str:
  return f"{run.encoding}/{run.digest} seed={run.seed}"


def _of_other_suite(found: str, suite: Suite) -> str:
  """Say of which suite an entry is that is of another one, and what to type for it."""
  for file in sorted(FOLDER.glob("*.yaml")):
    if Suite.read(file).digest == found:
      way = "leave --suite out" if file.stem == "1" else f"type --suite {file.stem}"
      return f"it is of suite {file.stem}, not {suite.name}; {way}"
  return f"it is of suite {found}, not {suite.digest}, and posexp brings no such suite"


def _check_code(about: Mapping[str, Any]) -> str:
  """Say whose code an entry is of; UserError if it is not the code that is loaded."""
  name, code = about["encoding"], about["code"]
  own = plugins.found("encoding").get(name)
  if code and own is None:
    raise UserError(
      f"its encoding {name} is of the file {code['file']}; name it, with plugins={code['file']}"
    )
  if own and code is None:
    raise UserError(f"it is of posexp's own {name}, and {own.file} has another")
  if code and own.sha256 != code["sha256"]:
    raise UserError(
      f"{own.file.name} is not the code that was trained (sha256 {own.sha256[:12]}, and "
      f"{code['sha256'][:12]} in the entry)"
    )
  return f"code      {own.file.name if own else 'of posexp'}, encoding {name}"


def _row(file: Path, about: Mapping[str, Any], published: Path) -> Row:
  """Return the row of an entry; UserError if its name is not its own."""
  row = Row.named(about["encoding"], about["options"], about["name"])
  if row.name != file.stem:
    raise UserError(f"its row is named {row.name}, so its file has to be {row.name}.parquet")
  if (other := published / file.name).exists() and not other.samefile(file):
    here, there = ([each["encoding"], *each["options"]] for each in (about, about_row(other)))
    if here != there:
      raise UserError(
        f"{row.name} is published as the row of encoding={' '.join(there)}; take another name, "
        "with --name"
      )
  return row


def _check_runs(about: Mapping[str, Any], runs: Sequence[Run]) -> None:
  """Check that the runs of a column are what they are called, each a run of its own."""
  for run in runs:
    if not isinstance(run.trial, str | None):
      raise UserError(f"{_named(run)} is a trial of {run.trial!r:.50}, which names no runs")
    if run.digest != digest(run.config, **Setup.of(run.config).data_digests()):
      raise UserError(f"the options of {_named(run)} are not those of its digest {run.digest}")
    keys = [*run.summary, *(key for line in run.history for key in line)] if run.trial else []
    if tested := [key for key in keys if key.startswith(TESTED)]:
      raise UserError(f"{_named(run)} is a trial and has the test score {tested[0]}")
    sha = (run.config.get("plugins") or {}).get("encoding", {}).get("sha256")
    if sha != (about["code"] or {}).get("sha256"):
      raise UserError(f"{_named(run)} was trained with other code ({str(sha)[:12]})")
  counts = Counter((run.trial, run.digest, run.seed) for run in runs)
  if twice := [_named(run) for run in runs if counts[run.trial, run.digest, run.seed] > 1]:
    raise UserError(f"{twice[0]} is in it more than once")
  first: dict[bytes | None, Run] = {}
  for run in runs:  # which have their own seconds, at the least
    if run.rows and (other := first.setdefault(run.rows, run)) is not run:
      raise UserError(
        f"{_named(run)} is a copy of {_named(other)}: their rows of metrics are equal"
      )


def _check_trials(planned: Sequence[Member], runs: Sequence[Run]) -> None:
  """Check that the trials of a column are those that the suite asks for, and no others."""
  want = {(each.config["trial"], each.path.parent.name, each.config["seed"]) for each in planned}
  trials = {(run.trial, run.digest, run.seed) for run in runs if run.trial}
  if want != trials:
    raise UserError(
      f"the suite asks for {len(want)} trials, of which {len(want - trials)} are missing, and "
      f"{len(trials - want)} are none of them"
    )


def _check_choice(suite: Suite, about: dict[str, Any], runs: Sequence[Run]) -> None:
  """Check that the results of a column are those of the runs that its trials have chosen."""
  best = {group for track in _tracks(suite, about) if (group := _choice(runs, about, track))}
  want = {(each, seed) for each in best for seed in range(suite.budget(about["quick"]).seeds)}
  finals = {(run.digest, run.seed) for run in runs if not run.trial}
  if other := sorted(finals - want):
    raise UserError(f"its trials did not choose the run {other[0][0]} seed={other[0][1]}")
  if missing := sorted(want - finals):
    name, seed = missing[0]
    raise UserError(
      f"it has {len(finals)} of {len(want)} results, without that of {name} seed={seed}"
    )


def _default(config: Mapping[str, Any]) -> Any:
  """Return the default of the main option of a config, as JSON has it."""
  return reading.parse(json.dumps(default_of(config)).encode())


def _tracks(suite: Suite, about: Mapping[str, Any]) -> Sequence[str]:
  return TRACKS[: 1 + suite.budget(about["quick"]).option]


def _choice(runs: Sequence[Run], about: dict[str, Any], track: str) -> str | None:
  """Return the digest of the runs that the trials of a column choose for a track."""
  point = chosen(runs, about, track)
  return point.runs[0].digest if point else None


def _check_again(
  file: Path,
  about: dict[str, Any],
  every: Sequence[Run],
  suite: Suite,
  out: Path,
  overrides: Sequence[str],
  train: Train,
) -> Iterator[str]:
  """Train some runs of an entry again, drawn by chance, and compare their scores."""
  finals, trials = [run for run in every if not run.trial], [run for run in every if run.trial]
  sample = random.SystemRandom().sample
  drawn = [*sample(trials, 1), *sample(finals, min(AGAIN - 1, len(finals)))]
  again = trained([run.config for run in drawn], out / "runs" / "verified", overrides, train)
  for before, now in zip(drawn, again, strict=True):
    column = suite.columns[before.task]
    runs = [run for run in every if run.task == before.task]
    with _saying(f"{file} is refused: {column.name}: {_named(before)}"):
      compared = trial_again if before.trial else final_again
      for line in compared(before, now, column, suite, about, runs):
        yield f"again     {line}"


def final_again(
  before: Run, now: Run, column: Column, suite: Suite, about: dict[str, Any], runs: Sequence[Run]
) -> Iterator[str]:
  """Compare the scores of a result; say how they agree."""
  group = [run for run in runs if not run.trial and run.digest == before.digest]
  for side in column.sides:
    said, found = column.value(before, side), column.value(now, side)
    values = [value for run in group if (value := column.value(run, side)) is not None]
    close = _is_close(said, found)
    if not close and (
      _place(before) == _place(now) or not agrees(found, values, column, side, 2 * AGAIN)
    ):
      raise UserError(f"{column.sides[side].score} is {said}, and trained again {found}")
    how = "to the digit" if close else "within its distribution"
    yield f"{column.name} ({side}) {_named(before)}: {found:.6g}, {how}"


def trial_again(
  before: Run, now: Run, column: Column, suite: Suite, about: dict[str, Any], runs: Sequence[Run]
) -> Iterator[str]:
  """Compare the validation scores of a trial; say how they agree.

  On another processor, no spread is known of options that were not chosen. There, such a trial may
  end otherwise, but not so well that it should have been chosen.
  """
  key = before.summary["headline"][0]
  said, found = before.score(key), now.score(key)
  shown = "no score" if found is None else f"{found:.6g}"
  keys = {each for run in (before, now) for each in run.summary if each.startswith(VALIDATION)}
  differing = [each for each in sorted(keys) if not _is_close(before.score(each), now.score(each))]
  if not differing:
    yield f"{column.name} (trial) {_named(before)}: {shown}, to the digit"
    return
  if _place(before) == _place(now):
    each = differing[0]
    raise UserError(
      f"{each} of this trial is {before.score(each)}, and trained again {now.score(each)}"
    )
  sign = 1 if score(key).metric.higher_is_better else -1
  for track in _tracks(suite, about):
    if track == TRACKS[0] and _default(before.config) != about["default"]:
      continue
    if (rival := _choice(runs, about, track)) is None:  # all of its trials diverged
      continue
    group = [run for run in runs if not run.trial and run.digest == rival]
    values = [value for run in group if (value := run.score(key)) is not None]
    if rival != before.digest and (found is None or sign * (estimate(values).mean - found) > 0):
      continue
    if not agrees(found, values, column, "within", 2 * AGAIN):
      why = f"so that the {track} track should have chosen it"
      why = "unlike its results" if rival == before.digest else why
      raise UserError(f"{key} of this trial is {said}, and trained again {found}, {why}")
  yield f"{column.name} (trial) {_named(before)}: {shown}, which leaves the choice as it is"


def _is_close(said: float | None, found: float | None) -> bool:
  if said is None or found is None:
    return said is found
  return abs(said - found) <= SAME * max(1.0, abs(said))


def _place(run: Run) -> tuple[Any, ...]:
  """Return what decides the last digits of a run: the processor and the libraries."""
  own = ("posexp", "versions", "cores", "ended")
  return tuple(sorted((key, str(value)) for key, value in run.facts.items() if key not in own))
