"""How far a run was trained: whether its training set was learned, and whether more steps would
change its results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from posexp.errors import counted
from posexp.runs.run import Run

STEEP = 0.07  # of the loss of guessing: by so much it falls in the last quarter of a run cut short
LEARNED, GUESSED = 0.5, 0.9  # shares of the loss of guessing: up to it, and from it on
ENOUGH = 1000  # steps in which small models learn 200 texts
MORE = 4  # times as many steps are advised


class Trained(NamedTuple):
  """How far a run was trained, as its summary has it under this name. Losses are in nats."""

  steps: int
  warmup: int  # steps in which the learning rate rises
  best: int  # the step whose weights were measured
  fell: float  # the validation loss in the last quarter of the steps, as a share of guessing's
  loss: float | None  # of training, since the evaluation before the last one
  chance: float | None  # the loss of guessing by the shares of answers in the training set
  epochs: int | None  # that were asked for; None where steps were
  planned: int | None = None  # steps; None if they are not known

  @classmethod
  def of(
    cls,
    history: Sequence[Mapping[str, Any]],
    best: int,
    warmup: int,
    chance: float | None,
    epochs: int | None,
    planned: int | None = None,
  ) -> Self | None:
    """Return how far the rows of metrics show a run to be; None if they show no training."""
    rows = [row for row in history if row["step"]]
    evaluated = [row for row in rows if "validation/loss" in row]
    # Guessing is of plain labels, and so is nll; the loss may be of smoothed ones.
    plain = {
      row["step"]: row.get("train/nll", row["train/loss"]) for row in rows if "train/loss" in row
    }
    losses = [*plain.values()]
    if not evaluated or not losses:
      return None
    steps, last = rows[-1]["step"], evaluated[-1]
    begin = chance or max(losses[0], evaluated[0]["validation/loss"])
    before = [row["validation/loss"] for row in evaluated if 4 * row["step"] <= 3 * steps]
    fell = (before[-1] - last["validation/loss"]) / begin if before and begin else 0.0
    since = [row["step"] for row in evaluated[:-1]][-1:] or [0]
    recent = [loss for step, loss in plain.items() if step > since[0]]
    loss = sum(recent) / len(recent) if recent else None
    if since == [0] and chance and last["validation/loss"] <= GUESSED * chance:
      loss = None  # the mean since the first step says less
    return cls(steps, warmup, best, fell, loss, chance, epochs, planned)

  @property
  def rising(self) -> bool:
    """Whether the learning rate still rose at the last step."""
    return self.warmup >= max(1, self.steps - 1)

  @property
  def out_of_patience(self) -> bool:
    """Whether the run ended early, as `train.patience` evaluations brought nothing better."""
    return self.steps < (self.planned or 0)

  @property
  def improving(self) -> bool:
    """Whether the loss of the validation split still fell steeply."""
    return self.fell >= STEEP

  @property
  def cut_short(self) -> bool:
    """Whether more steps would probably change the results."""
    return self.rising or self.improving

  @property
  def at_chance(self) -> bool:
    """Whether the training set was learned no better than by guessing; False if that is unknown."""
    known = self.loss is not None and bool(self.chance)
    return known and self.loss > GUESSED * self.chance

  def said(self) -> str:
    """Return it in words, for the end of a run."""
    parts = []
    if self.loss is not None and self.chance:
      share = self.loss / self.chance
      how = "learned" if share <= LEARNED else "not learned" if self.at_chance else "half learned"
      parts.append(f"{how}: training loss {self.loss:.3f}, by guessing {self.chance:.3f}")
    last = "its last" if self.best >= self.steps else f"of {self.steps:,} steps"
    parts.append(f"best evaluation at step {self.best:,}, {last}")
    if self.improving:
      parts.append("validation loss still falling")
    parts.append(f"warmup of {counted(self.warmup, 'step')} {'not ' * self.rising}over")
    return "; ".join(parts)

  def lacking(self) -> str:
    """Return the fault of the training, and how to mend it; "" if there is none."""
    faults = ["loss at chance"] * self.at_chance + ["warmup not over"] * self.rising
    faults += ["still improving"] * self.improving
    took = counted(self.steps, "step")
    if self.out_of_patience:
      took += f" of {self.planned:,}, by train.patience"
    return f"{took}, {', '.join(faults)}; add {self.more()}" if faults else ""

  def more(self) -> str:
    """Return options for a longer training, to be added to a command."""
    if self.out_of_patience:
      return "train.patience=null"
    steps = max(ENOUGH, MORE * self.steps)
    epochs = math.ceil(steps * (self.epochs or 0) / self.steps)
    longer = f"epochs={epochs}" if epochs else f"steps={steps}"
    return f"train.{longer} train.warmup={steps // 10}"


def trained(run: Run) -> Trained | None:
  """Return how far a finished run was trained; of one of an earlier version by its rows."""
  if "trained" in run.summary:
    return Trained(**run.summary["trained"])
  given = run.settings.get
  epochs = None if given("train.steps") else given("train.epochs")
  best, warmup = run.summary.get("step", 0), given("train.warmup") or 0
  return Trained.of(run.history, best, warmup, None, epochs)
