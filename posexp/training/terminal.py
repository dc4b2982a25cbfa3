"""The output of a run on the terminal: a header, a line for each evaluation, a table."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posexp.config import show_options
from posexp.errors import near, printable
from posexp.runs.metrics import declared, score
from posexp.runs.trained import Trained
from posexp.status import doing
from posexp.tasks.contract import Data, ModelSpec, Task
from posexp.tasks.results import metric_of
from posexp.training.processes import is_main_process

log = logging.getLogger("posexp")


def header(
  config: Mapping[str, Any],
  data: Data,
  spec: ModelSpec,
  facts: Mapping[str, Any],
  folder: Path,
  trackers: Mapping[str, str],
) -> None:
  """Print the task, the encoding, the model with its size, and the folder of a run."""
  doing("")
  name, size, train = config["encoding"], config["model"], config["train"]
  splits = ", ".join(f"{count:,} {split}" for split, count in data.sizes.items())
  given = show_options(config.get(name))
  own = facts["parameters"] - facts["parameters_of_none"]
  cost = facts["flops_per_token"] / facts["flops_per_token_of_none"] - 1
  against, times = (f", {own:+,} against none", f" ({cost:+.1%})") if name != "none" else ("", "")
  match = "" if size["match"] == "none" else f" (for the {size['match']} of {size['match_to']})"
  plain = facts["attention"] in ("reference", "halves", "none")
  attention = "" if plain else f", {facts['attention']} attention"
  rows = {
    "task": f"{config['task']['name']}: {splits}; {data.about[0]}",
    "": data.about[1],
    "encoding": f"{name}{': ' if given else ''}{given}",
    "model": f"{facts['parameters']:,} parameters{against}; "
    f"{facts['flops_per_token'] / 1e6:.2f} MFLOPs a token{times}",
    " ": spec.size.about(match) + attention,
    "training": f"{facts['steps']:,} steps of {train['batch_size']:,} {data.unit}, "
    f"seed {config['seed']}, on {facts['devices']}",
    "run": near(folder),
    **trackers,
  }
  for label, text in rows.items():
    log.info("%s", printable(f"{label:<9} {text}").rstrip())
  notes = [*data.notes, *getattr(spec, "notes", ())]
  asked = train["steps"] is not None or train["epochs"] is not None  # else warmup is shortened
  if asked and train["warmup"] >= facts["steps"] > 0:
    notes.append(
      "the learning rate rises to the last step and never falls, as "
      f"train.warmup={train['warmup']} is no shorter than training"
    )
  for note in notes:
    log.info("%s", printable(f"{'note':<10}{note}"))


@contextlib.contextmanager
def progress(step: int, steps: int) -> Iterator[tqdm]:
  """Show a progress bar in a terminal from the first step on, and nothing where output is piped."""
  with (
    logging_redirect_tqdm(),
    tqdm(
      initial=step,
      total=steps,
      disable=None if is_main_process() else True,
      dynamic_ncols=True,
      leave=False,
      delay=1e-9,  # seconds: until the first step another line says what is done
    ) as bar,
  ):
    yield bar


def at_bar(bar: tqdm, row: Mapping[str, float]) -> None:
  """Show the newest loss and throughput at the progress bar."""
  rate = row["time/tokens_per_second"]
  bar.set_postfix_str(f"loss {row['train/loss']:.3f}, {rate:,.0f} tokens/s")


def evaluation(task: Task, steps: int, history: Sequence[Mapping[str, float]], best: bool) -> None:
  """Print a line on the evaluation of the last row.

  Loss and rate of training are means over the steps since the evaluation before.
  """
  row = history[-1]
  begun, rows = since_evaluation(history)
  counts = np.diff([begun, *(each["step"] for each in rows)])
  loss, rate = (
    np.average([each[name] for each in rows], weights=counts)
    for name in ("train/loss", "time/tokens_per_second")
  )
  trained = f"train loss {loss:.3f}"
  _say(
    steps, row["step"], trained, *_validated(task, row), f"{rate:,.0f} tokens/s", *["best"] * best
  )


def first(task: Task, steps: int, row: Mapping[str, float]) -> None:
  """Print a line on the evaluation before the first step, of a run that starts from another one."""
  _say(steps, 0, *_validated(task, row))


def _say(steps: int, step: float, *parts: str) -> None:
  log.info("%s", "   ".join([f"step {step:>{len(str(steps))}}/{steps}", *parts]))


def _validated(task: Task, row: Mapping[str, float]) -> list[str]:
  """Return the scores of an evaluation in words, with a decimal fewer than the final table."""
  scores = []
  for name in task.followed:
    if f"validation/{name}" in row:
      metric = metric_of(task.metrics, name)
      decimals = len(format(0.0, metric.format).partition(".")[2]) - 1
      scores.append(f"{metric.title} {row[f'validation/{name}']:.{decimals}f}")
  return [f"validation {scores[0]}", *scores[1:]]


def since_evaluation(
  history: Sequence[Mapping[str, float]],
) -> tuple[float, Sequence[Mapping[str, float]]]:
  """Return the step of the last evaluation but one, or 0, and the rows of training after it."""
  evaluated = [row["step"] for row in history[:-1] if "validation/loss" in row]
  begun = evaluated[-1] if evaluated else 0
  return begun, [row for row in history if row["step"] > begun and "train/loss" in row]


def trial(summary: Mapping[str, Any]) -> Iterator[str]:
  """Yield the lines of the result of a trial, which has validation scores alone."""
  if "diverged" in summary:
    yield f"diverged, so that it is not chosen: {summary['diverged']}"
  for key, value in summary.items():
    if key.startswith("validation/"):
      of = score(key, declared([summary]))
      yield f"{of.title:<36}{value:>12{of.metric.format}}"


def trained(summary: Mapping[str, Any]) -> None:
  """Print how far a run was trained."""
  if "trained" in summary:
    log.info("%s", f"{'trained':<9} {Trained(**summary['trained']).said()}")


def result(lines: Iterable[str]) -> None:
  """Print the final table."""
  log.info("")
  for line in lines:
    log.info("%s", printable(line))
