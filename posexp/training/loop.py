"""The training loop: step, log, evaluate, save; leave when asked; measure the best at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posexp.errors import UserError
from posexp.runs import RunWriter
from posexp.runs.predictions import SAMPLES, load_predictions
from posexp.tracking.tracker import Tracker
from posexp.training import costs, matching, processes, terminal
from posexp.training.devices import mesh_for, shard
from posexp.training.evaluation import snapshot
from posexp.training.optimizer import Training, make_schedule
from posexp.training.processes import StopFlag, is_main_process
from posexp.training.setup import Setup
from posexp.training.step import Program, State, keys, program

log = logging.getLogger("posexp")


def run_training(
  run: RunWriter, setup: Setup, track: Callable[..., Tracker], begun: float
) -> dict[str, Any]:
  """The work of a run, from its data to its summary, which is returned.

  `track(facts=...)` opens what follows the run.
  """
  config, options = setup.config, setup.training
  with processes.main_process_first():
    data = setup.task.prepare(run.path)
  spec, steps = setup.model_for(data), setup.steps(data)
  mesh = mesh_for(data.rows_of(options.batch_size), options.accumulate)
  facts = matching.facts(spec, data.length, setup.size)
  facts |= {"steps": steps, "devices": f"{mesh.size} {mesh.devices.flat[0].device_kind}"}
  run.rewind(run.checkpoints.find("latest") or 0)
  with track(facts=facts) as tracker:
    terminal.header(config, data, facts, run.path, tracker.line)
    compiled = program(spec, options, steps, mesh)
    fitted = fit(run, tracker, compiled, data, options, steps, config["seed"], mesh, begun)
    summary = measure(run, compiled, data, options, fitted, mesh) | facts
    tracker.summarize(summary)
    tracker.samples(load_predictions(run.output, "test", SAMPLES))
  run.finish(summary)  # after W&B has it all: a finished run is not opened again
  return summary


def fit(
  run: RunWriter,
  tracker: Tracker,
  program: Program,
  data: Any,
  options: Training,
  steps: int,
  seed: int,
  mesh: Mesh,
  begun: float,
) -> State:
  """Trains until `steps` or out of patience, from the newest checkpoint if there is one.

  `begun` is when all this began, by `time.perf_counter`.

  Raises:
    UserError: the loss, of training or validation, is no longer finite.
  """
  state = program.init(seed)
  state = run.restore(state) or state
  step = int(state.step)
  if step:
    log.info("going on from step %d", step)
  key = keys(seed)["dropout"]
  schedule = make_schedule(options, steps)
  every = options.evaluate_every or data.steps_per_epoch(options.batch_size)
  batches = shard(data.batches(options.batch_size, seed=seed, start=step), mesh)
  meter = costs.Meter(run.history, program.update, mesh, begun)
  stop = StopFlag()
  with stop_signals() as asked, progress(step, steps) as bar, contextlib.closing(batches):
    while step < steps and not exhausted(run, options.patience):
      batch, tokens = next(batches)
      state = program.update(state, batch, key)
      step += 1
      meter.count(tokens, state)
      bar.update()
      leaves = stop.step(bool(asked))  # once a step: a signal may come between any two lines
      evaluates = step % every == 0 or step == steps
      row = {}
      if step % options.log_every == 0 or evaluates:
        row |= window(state) | {"train/learning_rate": float(schedule(step - 1))} | meter.read()
        state = program.clear(state)
        bar.set_postfix_str(
          f"loss {row['train/loss']:.3f}, {row['time/tokens_per_second']:,.0f} tokens/s"
        )
      elif leaves:
        window(state)  # or what is saved below might be broken
      if evaluates:
        measured = data.measure(snapshot(program, state, mesh, options.batch_size), "validation")
        if not math.isfinite(measured["loss"]):
          raise not_finite("validation loss", step)
        row |= {f"validation/{name}": value for name, value in measured.items()}
        log.info("%s", line(step, steps, row, run, data.shown))
      if row:
        run.log(step, row)
        tracker.log(step, row)
      if evaluates:
        run.save(step, state, row)
        meter.restart()
      elif leaves:
        run.save(step, state)
      if leaves:
        break
  run.wait()
  if stop.read(bool(asked)):
    log.info("stopped at step %d of %d, which is saved", step, steps)
    number = asked[0] if asked else signal.SIGTERM
    signal.raise_signal(number)
    sys.exit(128 + number)  # where that is bypassed, as schedulers' wrappers do
  return state


def measure(
  run: RunWriter, program: Program, data: Any, options: Training, state: State, mesh: Mesh
) -> dict[str, Any]:
  """The summary: the best checkpoint's metrics on validation and, this once, on test.

  With `options.average` it is the mean of the last evaluated checkpoints that is measured.
  """
  summary: dict[str, Any] = {"stopped_at": int(state.step)}
  if options.average:
    best, summary["averaged"] = run.checkpoints.average(state, options.average)
  else:
    best = run.restore(state, "best")
  model = snapshot(program, best, mesh, options.batch_size)
  summary["step"] = int(best.step)
  if options.average:
    row = {f"validation/{k}": v for k, v in data.measure(model, "validation").items()}
  else:
    row = next(row for row in run.history if row["step"] == summary["step"])
  summary |= {name: row[name] for name in row if name.startswith("validation/")}
  summary |= data.conclude(model, run.output)
  return summary | costs.of_run(run.history)


def window(state: State) -> dict[str, float]:
  """The means of the training metrics since the last row.

  Raises:
    UserError: a loss among them was not finite.
  """
  sums, weight, broken = jax.device_get(
    (state.window.sums, state.window.weight, state.window.broken)
  )
  if broken >= 0:
    raise not_finite("loss", broken)
  return {f"train/{name}": float(total / weight) for name, total in sums.items()}


def not_finite(loss: str, step: int) -> UserError:
  """The error for a loss that no training comes back from."""
  return UserError(
    f"the {loss} is not finite at step {step}; what was saved before is kept: try a smaller "
    "train.learning_rate, a longer train.warmup or a smaller train.clip"
  )


def exhausted(run: RunWriter, patience: int | None) -> bool:
  """Whether the last `patience` evaluations brought nothing better."""
  if patience is None:
    return False
  ranks = run.ranks
  return bool(ranks) and len(ranks) - 1 - ranks.index(max(ranks)) >= patience


def line(
  step: int, steps: int, row: dict[str, float], run: RunWriter, shown: dict[str, str]
) -> str:
  """One evaluation, as the user reads it; `shown` are metrics and how they are written."""
  best = all(run.rank(row) > rank for rank in run.ranks)
  figures = [form.format(row[f"validation/{name}"]) for name, form in shown.items()]
  return "   ".join(
    [
      f"step {step:>{len(str(steps))}}/{steps}",
      f"train loss {row['train/loss']:.3f}",
      f"validation {figures[0]}",
      *figures[1:],
      f"{row['time/tokens_per_second']:,.0f} tokens/s",
      *["best"] * best,
    ]
  )


@contextlib.contextmanager
def progress(step: int, steps: int) -> Iterator[tqdm]:
  """A progress bar in a terminal, and nothing where output is piped."""
  with (
    logging_redirect_tqdm(),
    tqdm(
      initial=step,
      total=steps,
      disable=None if is_main_process() else True,
      dynamic_ncols=True,
      leave=False,
    ) as bar,
  ):
    yield bar


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
  """SIGTERM, Ctrl-C and USR2 wait for the end of a step; a second one does not wait.

  USR2 is what clusters send before time is up. One that is ignored, as Ctrl-C is in the background
  jobs of a script, stays so.
  """
  asked: list[int] = []
  signals = [
    number
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    if signal.getsignal(number) is not signal.SIG_IGN
  ]

  def ask(number: int, frame: Any) -> None:
    asked.append(number)
    for known, handler in before.items():
      signal.signal(known, handler)

  before = {number: signal.signal(number, ask) for number in signals}
  try:
    yield asked
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
