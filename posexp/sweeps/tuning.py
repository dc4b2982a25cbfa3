"""Equal tuning: what a sweep tries for each group of runs, and what it then trains.

    -m encoding=none,rpr tune.train.learning_rate=1e-3,3e-3 tune.option=true seeds=5

Each group of runs, an encoding with its options, gets the same trials, at seeds that no result
has. The runs of all seeds are then trained twice: with the options that were typed, and with those
of the trials that were best on validation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from posexp.config import build, show
from posexp.config.checks import LARGEST, brief
from posexp.config.command_line import TUNE
from posexp.errors import UserError, counted, lasting, near
from posexp.runs import Run, read_runs
from posexp.runs.identity import number
from posexp.runs.trials import Point, Tuning, tunings
from posexp.sweeps.sweep import DONE, ELSEWHERE, FAILED, LATER, Member, Sweep

# Options of training that decide how long a run takes.
SIZES = ("steps", "epochs", "least_epochs", "least_steps", "batch_size")
PREFIX = f"{TUNE}."  # of an option whose values are tried
SETTINGS = (f"{PREFIX}seeds", f"{PREFIX}option")


@dataclasses.dataclass(frozen=True)
class Tune:
  """The section `tune`, beside the options whose values are tried."""

  seeds: list[int] = dataclasses.field(default_factory=lambda: [1000, 1001])
  option: bool = False

  def __post_init__(self):
    seeds = self.seeds
    if not seeds or len({*seeds}) < len(seeds) or not all(0 <= seed <= LARGEST for seed in seeds):
      raise ValueError(f"seeds must be different numbers from 0 to {LARGEST}, not {brief(seeds)}")


@dataclasses.dataclass(frozen=True)
class Space:
  """What is tried for each group: every combination of values, at each seed."""

  options: dict[str, list[str]]  # overrides by option, {"rpr.k": ["rpr.k=2", "rpr.k=4"]}
  alternatives: bool  # whether the alternative that an encoding declares is tried, too
  seeds: list[int]

  @classmethod
  def taken(cls, columns: dict[str, list[str]], shared: DictConfig) -> Space | None:
    """Take the options `tune.*` out of the columns of a sweep; None if nothing is tuned.

    Raises:
      UserError: it cannot be tuned, leaves nothing to choose, or a seed of trials has results.
    """
    taken = {key: columns.pop(key) for key in [*columns] if key.startswith(PREFIX)}
    section = OmegaConf.to_container(shared.tune, resolve=True)
    for key in SETTINGS:
      if len(values := taken.pop(key, [])) > 1:
        section[key.removeprefix(PREFIX)] = [value.partition("=")[2] for value in values]
    if isinstance(seed := section.get("seeds"), int | str):
      section["seeds"] = [seed]
    tune = build(Tune, section, "tune")
    options = {
      key.removeprefix(PREFIX): [line.removeprefix(PREFIX) for line in lines]
      for key, lines in taken.items()
    }
    if not options and not tune.option:
      return None
    for key, lines in options.items():
      check_tuned(key, lines, columns)
    space = cls(options, tune.option, tune.seeds)
    finals = columns.get("seed", [f"seed={shared.seed}"])
    for seed in [*tune.seeds, *space.further * tune.option]:
      if f"seed={seed}" in finals:
        raise UserError(
          f"seed={seed} is a seed of trials (tune.seeds={show(tune.seeds)}), and results are of "
          "other seeds: type others for one of them"
        )
    return space

  @property
  def further(self) -> list[int]:
    """The extra seeds for trials of an encoding that has no alternative value to try.

    Such an encoding gets as many trials as the others, and spends on seeds what they spend on their
    second value.
    """
    return [max(self.seeds) + 1 + each for each in range(len(self.seeds))]

  def seeds_of(self, config: Mapping[str, Any], points: Sequence[dict]) -> list[int]:
    """Return the seeds at which each point of a group is tried."""
    from posexp.encodings import alternative_of  # slow to import

    alone = self.alternatives and len(points) > 1 and alternative_of(config["encoding"]) is None
    return self.seeds + self.further * alone

  def points(self, config: Mapping[str, Any], typed: Mapping[str, Sequence[str]]) -> list[dict]:
    """Return the points that are tried for a group: their overrides, by option.

    `typed` are the overrides of the whole sweep.

    Raises:
      UserError: the alternative value of an option is to be tried, but the sweep already tunes that
        option, gives it several values, or sets it to the alternative.
    """
    from posexp.encodings import all_encodings, alternative_of  # slow to import

    name, options = config["encoding"], dict(self.options)
    for key in [*options]:
      if key.partition(".")[0] in all_encodings().keys() - {name}:
        del options[key]
    if self.alternatives and (option := alternative_of(name)):
      key, value = option
      default = (config.get(name) or {}).get(key.partition(".")[2])
      if key in options or len(typed.get(key, ())) > 1 or default == value:
        raise UserError(
          f"{key}: tune.option=true tries {key}={show(value)} beside what is typed or the "
          f"default; leave tune.option out, or {key}"
        )
      options[key] = [f"{key}={show(default)}", f"{key}={show(value)}"]
    return [
      dict(zip(options, lines, strict=True)) for lines in itertools.product(*options.values())
    ]


def check_tuned(key: str, lines: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
  """Raise UserError for an option that cannot be tuned; `columns` are those that are compared."""
  section, dot, _ = key.partition(".")
  typed = [each.partition("=")[2] for each in lines]
  line = brief(f"{PREFIX}{key}={','.join(typed)}")
  if not dot or section in ("task", "hydra", "tracker", "wandb"):
    raise UserError(
      f"{line}: options of the model, of training and of encodings are tuned, and {key} is none"
    )
  if len({text if (value := number(text)) is None else value for text in typed}) < 2:
    raise UserError(f"{line}: one value leaves nothing to choose; type several, or {lines[0]}")
  if len(columns.get(key, ())) > 1:
    raise UserError(f"{line}: the sweep compares values of {key} already; tune it, or compare them")


def tuned_runs(fixed: Sequence[Member]) -> list[Member]:
  """Return a run for each one with fixed options; `choose` sets the options that trials chose."""
  return [
    Member(0, f"tuned {run.options}", f"tuned {run.group}", run.config, fixed=run)
    for run in fixed
    if run.duplicate_of is None and not run.unsuited
  ]


def choose(members: Sequence[Member]) -> Iterator[tuple[Member, str]]:
  """Set the options of tuned runs whose trials have all ended; yield each run with these options.

  The best trial is the best of all that are on disk. A tuned run that is the same as another of the
  sweep becomes its duplicate.
  """
  known = {member.path: member for member in members if member.is_ready}
  made: dict[Any, list[Member]] = {}
  for member in members:
    if member.config.get("trial") and not member.unsuited:
      made.setdefault(member.path.parents[2], []).append(member)
  tunings_of: dict[Any, Tuning] = {}
  for each in [each for each in members if not each.is_ready]:
    group = each.fixed.path.parent
    states = {trial.state for trial in made.get(group, ())}
    each.reason = next((why for state, why in WAITS.items() if state in states), "")
    if states != {DONE}:
      continue
    if group not in tunings_of:
      tunings_of[group] = tunings(read_runs([group / "trials"], trials=True)[0])[0]
    if (best := tunings_of[group].best) is None:
      each.state, each.reason = FAILED, "all of its trials diverged"
      continue
    each.config, each.path = chosen_run(each.fixed, best)
    if (same := known.setdefault(each.path, each)) is not each:
      each.duplicate_of = same
    elif each.state != LATER and each.finished and not each.config["rerun"]:
      each.state = DONE
    yield each, best.typed or "the fixed options"


def chosen_run(fixed: Member, point: Point) -> tuple[dict[str, Any], Path]:
  """Return the config and the folder of a run with the options of a point instead of its own."""
  group = fixed.path.parents[1] / point.runs[0].path.parent.name
  return _with(fixed.config, point.values), group / fixed.path.name


WAITS = {  # the state of a trial -> why tuned runs wait
  FAILED: "it waits for trials that failed",
  ELSEWHERE: "it waits for trials that another process trains",
}


def _with(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
  """Return a config with other values of options, by their full keys."""
  made = dict(config)
  for key, value in values.items():
    *sections, name = key.split(".")
    node = made
    for section in sections:
      node[section] = dict(node[section] or {})
      node = node[section]
    node[name] = value
  return made


def ready(sweep: Sweep) -> list[Member]:
  """Return the runs whose options trials have chosen by now, and say which options these are."""
  chosen: list[Member] = []
  for member, options in choose(sweep.members):
    if member.state == LATER:
      continue
    text = f"{member.options}: {options}"
    if member.duplicate_of is not None:
      text += f": the same run as job {member.duplicate_of.number}"
    elif member.state == DONE:
      text += f": finished already, in {near(member.path)}"
    else:
      chosen.append(member)
    sweep.say(member, text)
  for member in sweep.runs:
    if not member.is_ready and member.reason:
      sweep.say(member, f"{member.options}: {member.reason}")
  return chosen


def plan(members: Sequence[Member]) -> Iterator[str]:
  """Yield the lines on the runs of a tuned sweep, before any work."""
  runs = [member for member in members if member.duplicate_of is None and not member.unsuited]
  groups: dict[str, list[Member]] = {}
  for run in runs:
    if run.of:
      groups.setdefault(run.of, []).append(run)
  if not groups:
    return
  most, trials = max(map(len, groups.values())), sum(map(len, groups.values()))
  tuned = sum(member.fixed is not None for member in members)
  fixed = sum(each.fixed is None for each in runs) - trials
  yield (
    f"tuning    {counted(len(groups), 'group')}: {counted(trials, 'trial')}, "
    f"{counted(fixed, 'run')} with fixed options, and up to {tuned} with tuned ones"
  )
  for name, own in groups.items():
    if len(own) < most:
      yield f"note      {name}: {counted(len(own), 'trial')} and not {most}"
  left = sum(each.state != DONE for each in runs)
  took = _usual_seconds(next(iter(groups.values()))[0].config) if left else []
  if took:
    long = (
      f"about {lasting(statistics.median(took) * left)} one at a time, as {len(took)} before took"
    )
    yield f"          {counted(left, 'run')} to train: {long}"
  elif left:
    yield f"          {counted(left, 'run')} to train; the first that ends says how long they take"


def _usual_seconds(config: Mapping[str, Any]) -> list[float]:
  """Return how many seconds finished runs of the same task, model and steps took."""

  def facts(of: Mapping[str, Any]) -> list[Any]:
    return [of["task"], of["model"], *(of["train"].get(name) for name in SIZES)]

  runs: list[Run] = []
  with contextlib.suppress(UserError):  # there are none
    runs = read_runs([Path(config["runs"], str(config["task"]["name"]))], trials=True)[0]
  times = [run.score("time/seconds") for run in runs if facts(run.config) == facts(config)]
  return [seconds for seconds in times if seconds is not None]
