"""Whether an entry may be published: what it says of itself, and some of its runs trained again.

That numbers were measured at all, only training can tell. The file is read and compared without the
entry's plugin, which could change how that is done; a plugin is executed by other processes, which
train and check it. It could still read the file and answer with its numbers, so a person reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posexp import reading
from posexp.board.rows import TRACKS, Row, about_row, cores, default_of
from posexp.board.standings import chosen
from posexp.board.suite import FOLDER, Column, Suite
from posexp.board.trust import agrees, check_properties, config_of
from posexp.config import show
from posexp.config.overrides import read
from posexp.encodings import all_encodings
from posexp.errors import UserError, counted, near
from posexp.reporting.significance import estimate
from posexp.runs import Run, read_runs
from posexp.runs.context_losses import with_context_losses
from posexp.runs.identity import settings
from posexp.runs.metrics import score
from posexp.runs.records import read_records
from posexp.sweeps.tuning import Space

SAME = 1e-6  # of scores on the same processor, with the same versions
TESTED = ("test/", "beyond/", "context/", "chance/")  # how keys of test scores begin
AGAIN = 3  # runs of an entry that are trained again, a trial among them
RATE = "train.learning_rate"


def verify(
  file: Path, files: Sequence[Path], suite: Suite, published: Path, out: Path
) -> Iterator[str]:
  """Yield what holds of an entry, check by check.

  Args:
    file: the records of the entry.
    files: its plugins, which are not loaded here.
    suite: that of the entry.
    published: the folder of published rows.
    out: a folder for the runs that are trained again.

  Raises:
    UserError: the entry is refused, and why.
  """
  if not file.exists():
    raise UserError(f"{file}: there is no such file")
  about, every = about_row(file), read_records(file, trials=True)
  with _saying(f"{near(file)} is refused"):
    yield from checked(file, files, about, every, suite, published)
    if files:
      check_properties(about["encoding"], about["options"], files)
    yield from _check_again(file, files, about, every, suite, out)


def checked(
  file: Path,
  files: Sequence[Path],
  about: dict[str, Any],
  every: Sequence[Run],
  suite: Suite,
  published: Path,
) -> Iterator[str]:
  """Yield what holds of an entry without training; raise UserError, which says what does not."""
  if about["suite"] != suite.name:
    raise UserError(_of_other_suite(about["suite"], suite))
  yield f"suite     {suite.name}"
  yield _check_code(about, files)
  _check_name(file, about, published)
  if strange := sorted({run.task for run in every} - {*suite.columns}):
    raise UserError(f"{strange[0]} is no column of the suite")
  for name, column in suite.columns.items():
    if runs := [run for run in every if run.task == name]:
      with _saying(name):
        if (digest := about["columns"].get(name)) != column.digest:
          raise UserError(
            f"it was trained in {digest}, and the column of the suite is {column.digest}"
          )
        column.check_examples(config_of(column, "none", 0))
        _check_runs(about, column, runs)
        _check_trials(suite, about, column, [run for run in runs if run.trial])
        _check_choice(suite, about, runs)
  finals = [run for run in every if not run.trial]
  yield (
    f"budget    {counted(len(every) - len(finals), 'trial')} without a test score, and "
    f"{counted(len(finals), 'run')} that they chose"
  )


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
  if not (FOLDER / f"{found}.yaml").exists():
    return f"it is of the suite {found}, and posexp brings none of that name"
  way = "leave --suite out" if found == "1" else f"type --suite {found}"
  return f"it is of the suite {found}, not {suite.name}; {way}"


def _check_code(about: Mapping[str, Any], files: Sequence[Path]) -> str:
  """Say whose code an entry is of; UserError if it is not the code that is named."""
  name, code = about["encoding"], about["code"]
  own = {hashlib.sha256(reading.read(each) or b"").hexdigest(): each for each in files}
  if code and not files:
    raise UserError(
      f"its encoding {name} is of the file {code['file']}; name it, with plugins={code['file']}"
    )
  if code is None and files:
    raise UserError(f"it is of posexp's own {name}: leave plugins={near(files[0])} out")
  if code and code["sha256"] not in own:
    raise UserError(
      f"{files[0].name} is not the code that was trained (sha256 {next(iter(own))[:12]}, and "
      f"{code['sha256'][:12]} in the entry)"
    )
  if code is None and name not in all_encodings():
    raise UserError(f"posexp has no encoding {name}")
  return f"code      {own[code['sha256']].name if code else 'of posexp'}, encoding {name}"


def _check_name(file: Path, about: Mapping[str, Any], published: Path) -> None:
  """Raise UserError if the name of an entry's row is not its own."""
  if about["name"] != file.stem:
    raise UserError(
      f"its row is named {about['name']}, so its file has to be {about['name']}.parquet"
    )
  Row.check(about["name"], about["encoding"], about["options"])
  if (other := published / file.name).exists() and not other.samefile(file):
    here, there = ([each["encoding"], *each["options"]] for each in (about, about_row(other)))
    if here != there:
      raise UserError(
        f"{about['name']} is published as the row of encoding={' '.join(there)}; take another "
        "name, with --name"
      )


def _check_runs(about: Mapping[str, Any], column: Column, runs: Sequence[Run]) -> None:
  """Check that the runs of a column have its options, and are each a run of its own."""
  asked = settings(config_of(column, "none", 0))
  typed = {o.key_or_group: show(o.value()) for o in read(about["options"])}
  for run in runs:
    if run.encoding != about["encoding"] or not isinstance(run.trial, str | None):
      raise UserError(f"{_named(run)} is no run of {about['encoding']}")
    own = {key: value for key, value in run.settings.items() if not key.startswith("encoding")}
    for key, value in own.items():
      fixed = not key.startswith(f"{run.encoding}.") and key not in (RATE, *typed)
      if fixed and (key not in asked or asked[key] != value):
        raise UserError(
          f"{_named(run)} has {key}={show(value)}, and the suite {show(asked.get(key))}"
        )
      if key in typed.keys() - about["default"].keys() and show(value) != typed[key]:
        raise UserError(f"{_named(run)} has {key}={show(value)}, and the row {typed[key]}")
    keys = [*run.summary, *(key for line in run.history for key in line)] if run.trial else []
    if tested := [key for key in keys if key.startswith(TESTED)]:
      raise UserError(f"{_named(run)} is a trial and has the test score {tested[0]}")
    sha = (run.config.get("plugins") or {}).get("encoding", {}).get("sha256")
    if sha != (about["code"] or {}).get("sha256"):
      raise UserError(f"{_named(run)} was trained with other code ({str(sha)[:12]})")
  counts = Counter((run.trial, run.digest, run.seed) for run in runs)
  if twice := [_named(run) for run in runs if counts[run.trial, run.digest, run.seed] > 1]:
    raise UserError(f"{twice[0]} is in it more than once")


def _check_trials(
  suite: Suite, about: Mapping[str, Any], column: Column, trials: Sequence[Run]
) -> None:
  """Check that the trials of a column are those that the suite asks for, and no others."""
  budget, default = suite.budget(about["quick"]), about["default"]
  if about["code"] is None:
    own = default_of(config_of(column, about["encoding"], 0, about["options"]))
    if own != default:
      raise UserError(f"its metadata have the default {show(default)}, and it is {show(own)}")
  options = {tuple(run.settings.get(key) for key in default) for run in trials}
  if tuple(default.values()) not in options or len(options) > 1 + budget.option:
    raise UserError(f"its trials are not with {show(default)} and one other value")
  rates = [float(f"{column.learning_rate * each:g}") for each in budget.rates]
  space = Space({}, budget.option, [*budget.trial_seeds])
  seeds = [*space.seeds, *space.further * (budget.option and not default)]
  want = {*itertools.product(rates, options, seeds)}
  tried = {
    (float(run.settings[RATE]), tuple(run.settings.get(key) for key in default), run.seed)
    for run in trials
  }
  if want != tried:
    raise UserError(
      f"the suite asks for {len(want)} trials, of which {len(want - tried)} are missing, and "
      f"{len(tried - want)} are none of them"
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


def _tracks(suite: Suite, about: Mapping[str, Any]) -> Sequence[str]:
  return TRACKS[: 1 + suite.budget(about["quick"]).option]


def _choice(runs: Sequence[Run], about: dict[str, Any], track: str) -> str | None:
  """Return the digest of the runs that the trials of a column choose for a track."""
  point = chosen(runs, about, track)
  return point.runs[0].digest if point else None


def _check_again(
  file: Path,
  files: Sequence[Path],
  about: dict[str, Any],
  every: Sequence[Run],
  suite: Suite,
  out: Path,
) -> Iterator[str]:
  """Train some runs of an entry again, drawn by chance, and compare their scores."""
  trials = [number for number, run in enumerate(every) if run.trial]
  finals = [number for number, run in enumerate(every) if not run.trial]
  sample = random.SystemRandom().sample
  drawn = [*sample(trials, 1), *sample(finals, min(AGAIN - 1, len(finals)))]
  found = train_again(file, drawn, out / "runs" / "verified", files)
  for before, now in zip(map(every.__getitem__, drawn), found, strict=True):
    column = suite.columns[before.task]
    runs = [run for run in every if run.task == before.task]
    with _saying(f"{column.name}: {_named(before)}"):
      if now.digest != before.digest:
        raise UserError(f"its options are not those of its digest, and give {now.digest}")
      compared = trial_again if before.trial else final_again
      for line in compared(before, now, column, suite, about, runs):
        yield f"again     {line}"


def train_again(
  file: Path, numbers: Sequence[int], place: Path, files: Sequence[Path]
) -> list[Run]:
  """Train rows of a file of records again, each in a process of its own; return the runs."""
  plugins = [f"plugins={show([str(each) for each in files])}"] if files else []

  def train(number: int) -> Run:
    source = f"{file}:{number}"
    digest = hashlib.sha256(file.read_bytes() + str(number).encode()).hexdigest()[:12]
    own = [f"runs={show(str(place / digest))}", "tracker=none", *plugins]
    words = [sys.executable, "-m", "posexp.train", "--again", source, *own]
    env = os.environ | {"NPROC": "1"}  # by which the last digits do not depend on other runs
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    if done.returncode:
      said = (done.stderr.strip().splitlines() or ["it has ended without a word"])[-1]
      raise UserError(f"{source} cannot be trained again: {said.removeprefix('posexp: error: ')}")
    return with_context_losses(read_runs([place / digest])[0])[0][0]

  with ThreadPoolExecutor(cores()) as pool:
    return [*pool.map(train, numbers)]


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
  if _is_close(said, found):
    yield f"{column.name} (trial) {_named(before)}: {shown}, to the digit"
    return
  if _place(before) == _place(now):
    raise UserError(f"{key} of this trial is {said}, and trained again {found}")
  sign = 1 if score(key).metric.higher_is_better else -1
  is_default = all(before.settings.get(each) == about["default"][each] for each in about["default"])
  for track in _tracks(suite, about):
    if track == TRACKS[0] and not is_default:
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
