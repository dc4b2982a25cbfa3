"""Sweeps that end by themselves: which seeds are trained next, and when enough is known.

    -m encoding=none,rope,alibi until=told margin=1 budget=2h

The first seeds of all groups are trained, and then one seed a round of each group whose difference
to the baseline is open: neither told apart from 0 nor shown to be within the margin. What is looked
at holds at any time, so that looking after each round costs nothing.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from posexp.config.checks import brief, seconds
from posexp.errors import UserError, counted, lasting
from posexp.sweeps.sweep import DONE, LATER, WAITING, Member, Sweep

FIRST = 3  # seeds of each group that are trained before the first look
OPEN = ""  # what a look says of a group that needs more seeds

# From the folders of finished runs and the margin to what is known of the group in each folder.
Look = Callable[[Sequence[Path], float | None], Mapping[Path, str]]


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much a sweep may train: a number of runs, or a time in seconds."""

  runs: int | None = None
  seconds: float | None = None

  @classmethod
  def of(cls, text: str | None) -> Budget:
    """Read a budget such as `2h`, `90m` or `40 runs`; None is none.

    Raises:
      UserError: it is neither a time nor a number of runs.
    """
    if text is None:
      return cls()
    if match := re.fullmatch(r"([1-9]\d*) *runs?", text):
      return cls(runs=int(match[1]))
    if time_given := seconds(text):
      return cls(seconds=time_given)
    raise UserError(f"budget={brief(text)}: type a time, such as 2h or 90m, or 'budget=40 runs'")


class Rounds:
  """The rounds of a sweep; `next` names the runs of each."""

  def __init__(self, sweep: Sweep, look: Look, margin: float | None, budget: Budget):
    self.sweep, self.look, self.margin, self.budget = sweep, look, margin, budget
    self.groups: dict[str, list[Member]] = {}
    for run in sweep.runs:
      if not run.of:  # a trial
        self.groups.setdefault(run.group, []).append(run)
    for group in self.groups.values():
      for each in group[FIRST:]:
        each.state = LATER
    if len(self.groups) < 2 or max(map(len, self.groups.values())) <= FIRST:
      raise UserError(
        f"until=told compares two groups or more, of more than {FIRST} seeds: type several values "
        "of an option, as in encoding=none,rope, and leave seeds out"
      )
    self.begun, self.done, self.ended = time.monotonic(), len(sweep.in_state(DONE)), ""

  def plan(self) -> str:
    """Return the line on the first runs and the greatest cost of the sweep, before any work."""
    first = sum(len(group[:FIRST]) for group in self.groups.values())
    whole = sum(map(len, self.groups.values()))
    most = f"at most {counted(whole, 'run')}"
    if self.budget.runs is not None:
      most += f", of which the budget allows {min(self.budget.runs, whole)}"
    if self.budget.seconds is not None:
      most += f", and no new round after {lasting(self.budget.seconds)} by the budget"
    alike = "" if self.margin else "; without margin= groups that are alike take them all"
    text = f"until     told: {counted(first, 'run')} first, {FIRST} seeds of each group"
    return f"{text}; {most}{alike}"

  def next(self) -> list[Member]:
    """Return the runs of the next round, [] if the sweep is at its end; `ended` then says why.

    Rounds that were trained before are looked at one by one, too, as if they were trained now.
    """
    while chosen := self._chosen():
      self.ended = self._over_budget(chosen)
      if self.ended:
        break
      for run in chosen:
        run.state = DONE if run.finished and not run.config["rerun"] else WAITING
      if left := [each for each in chosen if each.state == WAITING]:
        return left
    return []

  def _chosen(self) -> list[Member]:
    """Return the next seed of each group that is open, and of the baseline while any is."""
    done = [each.path for each in self.sweep.in_state(DONE)]
    known = self.look(done, self.margin) if done else {}
    chosen, ends = [], "nothing is open" if done else "no run has finished"
    if any(kind.startswith("not ") for kind in known.values()):  # as a look says of runs cut short
      ends = "more seeds would tell nothing of runs that were cut short"
    for group in self.groups.values():
      own = [run for run in group if run.duplicate_of is None]
      trained = [run for run in own if run.state != LATER]
      if not any(known.get(run.path.parent) == OPEN for run in trained):
        continue
      if any(run.state != DONE for run in trained):
        ends = "some runs failed, or are trained elsewhere"
      elif len(trained) == len(own):
        ends = "the most seeds are trained"
      else:
        chosen.append(own[len(trained)])
    self.ended = "" if chosen else ends
    return chosen

  def _over_budget(self, chosen: Sequence[Member]) -> str:
    """Return why a round is not trained; "" if it fits into the budget."""
    count = self.trained.total()
    if self.budget.runs is not None and count + len(chosen) > self.budget.runs:
      return f"another round is over the budget of {counted(self.budget.runs, 'run')}"
    spent = time.monotonic() - self.begun
    usual = spent / max(len(self.sweep.in_state(DONE)) - self.done, 1)
    if self.budget.seconds is not None and spent + len(chosen) * usual > self.budget.seconds:
      return f"another round is over the budget of {lasting(self.budget.seconds)}"
    return ""

  @property
  def trained(self) -> Counter:
    """How many seeds of each group are trained."""
    runs = (run for group in self.groups.values() for run in group if run.duplicate_of is None)
    return Counter(run.group for run in runs if run.state != LATER)

  def conclusion(self) -> str:
    """Return the line on the end of the sweep: why it ended, and how many runs it saved."""
    seeds, whole = self.trained, sum(map(len, self.groups.values()))
    text = f"until     told: {self.ended}; seeds: "
    text += ", ".join(f"{name} {count}" for name, count in seeds.items())
    text += f"; {counted(seeds.total(), 'run')} of at most {whole}"
    most = max(seeds.values())
    saved = most * len(seeds) - seeds.total()
    return f"{text}, and {saved} fewer than {most} seeds of each" if saved else text


def rounds_of(cfg: DictConfig, sweep: Sweep, look: Look | None) -> Rounds | None:
  """Return the rounds of a sweep whose config asks for them, else None.

  Raises:
    UserError: the budget cannot be read, or there are too few seeds or groups.
  """
  if cfg.get("until") is None or look is None:
    return None
  given = cfg.get("budget")
  budget = Budget.of(None if given is None else str(given))
  return Rounds(sweep, look, cfg.get("margin"), budget)
