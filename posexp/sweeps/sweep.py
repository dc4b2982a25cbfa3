"""A sweep: its runs, what becomes of each, and how that is said."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import logging.config
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from posexp import reading, storage
from posexp.config import plugins
from posexp.errors import UserError, counted, lasting, near, refused
from posexp.runs import Elsewhere, is_held, read_run, read_summary, scores
from posexp.runs.identity import is_whole
from posexp.runs.plans import Plan, is_kept, keep_plan

log = logging.getLogger("posexp")

STATES = ("done", "running", "elsewhere", "failed", "waiting", "if needed")
DONE, RUNNING, ELSEWHERE, FAILED, WAITING, LATER = STATES

KEPT = 8  # models whose compiled programs one process keeps

Train = Callable[[dict[str, Any]], Any]  # trains the run of a config


@dataclasses.dataclass(eq=False)
class Member:
  """A run of a sweep."""

  number: int  # from 1
  options: str  # those in which the runs of the sweep differ
  group: str  # the same without the seed
  config: dict[str, Any]
  path: Path = Path()  # the folder of the run
  duplicate_of: Member | None = None  # the first member that is the same run
  of: str = ""  # of a trial: the group that it is to improve
  fixed: Member | None = None  # of a run with tuned options: that with the fixed ones
  unsuited: str = ""  # why there can be no such run
  state: str = WAITING
  reason: str = ""  # of a failure, or why it is not trained here

  @property
  def is_ready(self) -> bool:
    """Whether its options are known, as those of a tuned run are once its trials have ended."""
    return self.fixed is None or self.path != Path()

  @property
  def finished(self) -> bool:
    """Whether there is a summary, and nothing of the run was changed since."""
    try:
      return read_summary(self.path) is not None and is_whole(self.path)
    except UserError:  # training makes it again, or says what is wrong
      return False

  @property
  def seed(self) -> str:
    """Its seed and, while it is trained, the step of its last row of metrics."""
    step = 0
    if self.state == RUNNING:
      with contextlib.suppress(UserError, OSError):  # its folder may not be there yet
        step = read_run(self.path).step
    return f"{self.config['seed']} at {step}" if step else str(self.config["seed"])


Report = tuple[Member, str, str]  # a member, its new state, and the reason for it


_programs: set[str] = set()  # a digest for each model whose compiled programs this process keeps


def _forget(config: dict[str, Any]) -> None:
  """Drop all compiled programs before a run of another model would keep too many.

  JAX holds some 50 MB for each as long as the process lives. Runs that differ only in their seed,
  their learning rate or the weights that they start from share what is compiled.
  """
  train = {key: value for key, value in config["train"].items() if key != "learning_rate"}
  rest = {key: value for key, value in config.items() if key not in ("seed", "trial", "init")}
  _programs.add(needed := storage.digest(rest | {"train": train}))
  if len(_programs) > KEPT:
    import jax  # slow to import, and a sweep may be refused before it trains

    jax.clear_caches()
    _programs.intersection_update([needed])


def attempt(train: Train, member: Member, own: Sequence[Path] = ()) -> tuple[str, str]:
  """Train a run; return how it ended (DONE, FAILED or ELSEWHERE) and why.

  Plugins in the files `own` are loaded first.

  The traceback of an unexpected exception is in the train.log of the run.
  """
  try:
    plugins.load(own)
    _forget(member.config)
    train(member.config)
  except Elsewhere as error:
    return ELSEWHERE, str(error)
  except (UserError, OSError) as error:
    return FAILED, str(refused(error))
  except Exception as error:
    first = (str(error).splitlines() or [""])[0]
    return FAILED, f"{type(error).__name__}: {first}; {_kept(error, member.path / 'train.log')}"
  return DONE, ""


def _kept(error: Exception, log: Path) -> str:
  """Keep a traceback in a train.log that may have it already; return where it is, in words."""
  try:
    if (
      not reading.tail(log)
      .decode(errors="replace")
      .endswith(traceback.format_exception_only(error)[-1])
    ):
      log.parent.mkdir(parents=True, exist_ok=True)
      with storage.appending(log) as file:
        file.write("".join(traceback.format_exception(error)))
  except (UserError, OSError) as refusal:
    return f"its traceback is lost ({refused(refusal)})"
  return f"its traceback is in {near(log)}"


@dataclasses.dataclass(frozen=True)
class Context:
  """The settings with which another process trains runs of this sweep as this one would."""

  logs: dict[str, Any]
  plugins: list[Path]

  @classmethod
  def of(cls, cfg: DictConfig) -> Context:
    """Return the context of runs that share a config."""
    return cls(OmegaConf.to_container(cfg.hydra.job_logging, resolve=True), plugins.files())

  def attempt(self, train: Train, member: Member) -> tuple[str, str]:
    """Train a run in that process, as `attempt` does."""
    logging.config.dictConfig(self.logs)
    return attempt(train, member, self.plugins)


def _outcome(member: Member) -> str:
  """Return the score of a finished run that its task is about; "" if it has none."""
  with contextlib.suppress(UserError, OSError):
    run = read_run(member.path)
    if (about := scores.headline([run])) is not None:
      return f", {about.title} {about.number(run.score(about.key))}"
  return ""


class Sweep:
  """The runs of a sweep, and the messages about them while they are trained."""

  def __init__(self, members: Sequence[Member]):
    self.members = members
    self.begun, self.ended = time.monotonic(), 0  # and how many runs have ended since then
    self.plan = Plan([], 0, len(self.in_state(DONE)), time.time())

  @property
  def runs(self) -> list[Member]:
    """The members that are runs of their own."""
    return [m for m in self.members if m.duplicate_of is None and not m.unsuited]

  @property
  def name(self) -> str:
    """A text that identifies the sweep: the folders of all runs but those with tuned options."""
    return "\n".join(str(member.path) for member in self.runs if member.fixed is None)

  def in_state(self, state: str) -> list[Member]:
    """Return the runs that are in a state."""
    return [member for member in self.runs if member.state == state]

  def options_in(self, state: str) -> str:
    """Return the options of the runs that are in a state."""
    return "; ".join(member.options for member in self.in_state(state))

  def added(self) -> list[str]:
    """Return a note if seeds are added to finished groups: if they are added because of the other
    seeds' results, intervals of a fixed number of seeds do not hold.
    """
    place = Path(self.members[0].config["runs"])
    counts = {DONE: Counter(), WAITING: Counter()}
    for run in self.runs:
      if run.state in counts and not run.of:
        counts[run.state][run.group] += 1
    names = [name for name in counts[WAITING] if counts[DONE][name] > 1]
    if not names or is_kept(place, self.name):  # the sweep was cut off, and goes on
      return []
    return [
      f"note      {names[0]} has {counts[DONE][names[0]]} finished seeds, to which "
      f"{counts[WAITING][names[0]]} are added: if these are added because of what the others have "
      "shown, the report's intervals and p do not hold; those of until=told do"
    ]

  def keep_plan(self) -> None:
    """Keep the plan of the sweep for `posexp.report`, until all runs are done."""
    place = Path(self.members[0].config["runs"])
    runs = [member for member in self.runs if member.state != LATER]
    ready = [member.path for member in runs if member.is_ready]
    plan = self.plan._replace(runs=ready, more=len(runs) - len(ready))
    done = all(member.state == DONE for member in runs)
    keep_plan(place, self.name, None if done else plan)

  def to_train(self) -> list[Member]:
    """Return the runs that are to be trained; says of all others why not."""
    for member in self.members:
      if member.unsuited:
        self.say(member, f"{member.options}: left out: {member.unsuited}")
      elif member.duplicate_of is not None:
        self.say(member, f"{member.options}: the same run as job {member.duplicate_of.number}")
      elif member.state == DONE:
        self.say(member, f"{member.options}: finished already, in {near(member.path)}")
    return [run for run in self.runs if run.state not in (DONE, LATER) and run.is_ready]

  def left(self) -> list[Member]:
    """Return the unfinished runs that another process was training and has given up."""
    for member in self.in_state(ELSEWHERE):
      if member.finished:
        self.turn(member, DONE)
    return [member for member in self.in_state(ELSEWHERE) if not is_held(member.path)]

  def turn(self, member: Member, state: str, reason: str = "") -> None:
    """Note and say that a run is in another state."""
    member.state, member.reason = state, reason
    self.ended += state in (DONE, FAILED)
    texts = {RUNNING: member.options, WAITING: reason}
    text = texts.get(state, f"{state}: {reason}")
    if state == DONE:
      text = f"done{_outcome(member)}{self._left()}"
    self.say(member, text, logging.ERROR if state == FAILED else logging.INFO)

  def _left(self) -> str:
    """Return the estimated time of the rest, by the runs that have ended; "" if under 10 s."""
    rest = sum(member.state in (WAITING, RUNNING) for member in self.runs)
    seconds = (time.monotonic() - self.begun) / self.ended * rest
    return f"; about {lasting(seconds)} left" if seconds >= 10 else ""

  def say(self, member: Member, text: str, level: int = logging.INFO) -> None:
    """Log a line about a run."""
    log.log(level, "job %d/%d: %s", member.number, len(self.members), text)

  def heading(self) -> str:
    """Return how many runs there are in each state."""
    counts = Counter(member.state for member in self.runs)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    unsuited = sum(1 for member in self.members if member.unsuited)
    again = len(self.members) - len(self.runs) - unsuited
    rest = f"; {counted(again, 'duplicate')}" if again else ""
    rest += f"; {unsuited} left out" if unsuited else ""
    return f"{'sweep':<10}{counted(len(self.runs), 'run')}: {states}{rest}"

  def table(self) -> str:
    """Return the table of states: a line for each group of seeds, and each kind of failure."""
    groups: dict[str, list[Member]] = {}
    for member in self.runs:
      groups.setdefault(member.group, []).append(member)
    width, lines = max(map(len, groups)), [self.heading()]
    for name, group in groups.items():
      parts = []
      for state in STATES:
        if seeds := ", ".join(member.seed for member in group if member.state == state):
          parts.append(f"{state} (seed {seeds})")
      lines.append(f"  {name:<{width}}  {', '.join(parts)}")
    for member in [*self.in_state(FAILED), *self.in_state(WAITING)]:
      if member.reason:
        lines.append(f"  {member.state}: {member.options}: {member.reason}")
    return "\n".join(lines)
