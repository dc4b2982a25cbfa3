"""How a run is trained, from its data to its summary. It reads from top to bottom."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from posexp.data.splits import SPLITS
from posexp.errors import NotFinite, UserError, counted
from posexp.runs import RunWriter
from posexp.runs.predictions import load_samples
from posexp.runs.trained import Trained
from posexp.status import doing
from posexp.tasks.contract import Data, ModelSpec, Task, declared
from posexp.tasks.results import prefixed, score_of, unsmoothed
from posexp.tracking import Tracker, Trackers
from posexp.training import costs, inherit, matching, processes, terminal
from posexp.training.devices import by_rows, replicated, shard
from posexp.training.evaluation import LOOK, SMALLER, Snapshot
from posexp.training.optimizer import make_schedule
from posexp.training.processes import SAVE, STOP, StopRequests
from posexp.training.setup import Setup
from posexp.training.step import Program, State, keys

log = logging.getLogger("posexp")

SOON = 50  # batches whose shapes are compiled ahead

Batches = Iterator[tuple[dict[str, jax.Array], int]]  # on their devices, with their real tokens
Shapes = list[dict[str, jax.ShapeDtypeStruct]]  # of batches, each once


@dataclasses.dataclass(frozen=True)
class Job:
  """The parts of the training of one run."""

  run: RunWriter
  setup: Setup
  data: Data
  program: Program
  rhythm: Rhythm
  trackers: Trackers
  started: float  # when the process, or the job of a sweep, began: by time.perf_counter

  def snapshot(self, state: State) -> Snapshot:
    """Return the model of a state, to be measured."""
    params = jax.device_put(state.params, replicated(self.program.mesh))  # they may be divided
    return Snapshot(self.program, state.replace(params=params), self.setup.training.batch_size)


def run_training(
  run: RunWriter, setup: Setup, trackers: Mapping[str, Tracker], started: float
) -> dict[str, Any]:
  """Train a run whose folder is open; return its summary, which is the last thing written.

  `trackers` have their names as keys; `started` is as in `Job`.

  Raises:
    UserError: the data are not in order, or the loss is no longer finite.
  """
  newest = run.checkpoints.find("latest")
  step = newest or 0
  if setup.config.get("init") is not None:
    inherit.prepare(setup, run.path, new=newest is None)
  doing("reading the data")
  with processes.main_process_first():
    data = prepared(setup.task, run.path)
  doing("building the model")
  rhythm = Rhythm.of(setup, data)
  run.metric = score_of(setup.task.metrics, setup.task.chosen_by(data))
  run.rewind(-1 if newest is None else newest, rhythm.rows(step))
  spec, program, batches, upcoming = begin(setup, data, step)
  program.update.await_xla()
  mesh = program.mesh
  facts = matching.facts(spec, data.length, setup.size)
  model = nnx.merge(program.graphdef, program.shapes.params, program.shapes.settings)
  facts |= {"attention": matching.forms(model, data.length), "steps": rhythm.steps}
  facts |= {"devices": f"{mesh.size} {mesh.devices.flat[0].device_kind}"}
  facts |= costs.machine()
  with Trackers(trackers, run, setup.config, facts) as opened:
    terminal.header(setup.config, data, spec, facts, run.path, opened.lines)
    job = Job(run, setup, data, program, rhythm, opened, started)
    own = declared(setup.task)
    if setup.config.get("trial"):
      own["headline"] = [run.metric.key]
    try:
      summary = conclude(job, fit(job, newest, batches, upcoming))
    except NotFinite as error:
      if not setup.config.get("trial"):
        raise
      summary = {"diverged": str(error)} | costs.of_run(run.history)  # a result of the trial
    if summary.keys().isdisjoint({"diverged", *own["headline"]}):
      log.warning("the task's headline, %s, is among no results", ", ".join(own["headline"]))
    summary |= facts | own | {"ended": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"}
    opened.summarize(summary)
    opened.samples(load_samples(run.output))
  run.finish(summary)  # after the trackers have it all: a finished run is not opened again
  return summary


def begin(setup: Setup, data: Data, step: int) -> tuple[ModelSpec, Program, Batches, Shapes]:
  """Return the model for some data, its program, whose next step begins to be compiled, the batches
  after a step, and the shapes of the first ones, to be compiled ahead.

  There are no shapes on a GPU or TPU, where XLA times kernels while it compiles, nor with several
  processes, which have to compile in one order.
  """
  spec = setup.model_for(data)
  mesh, seed = setup.mesh(data), setup.config["seed"]
  program = setup.program(spec, data, mesh)
  batches = data.batches(setup.training.batch_size, seed=seed, start=step)
  soon = list(itertools.islice(batches, min(SOON, setup.steps(data) - step)))
  shapes: dict[tuple[int, ...], dict[str, jax.ShapeDtypeStruct]] = {}  # of batches, each once
  if mesh.devices.flat[0].platform == "cpu" and by_rows(mesh).is_fully_addressable:
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=by_rows(mesh))
    shapes = {
      batch["mask"].shape: {name: shape(rows.shape, rows.dtype) for name, rows in batch.items()}
      for batch in soon
    }
  upcoming = [*shapes.values()]
  program.update.begin(program.shapes, upcoming[:1], keys(seed)["dropout"])
  return spec, program, shard(itertools.chain(soon, batches), mesh), upcoming


def fit(job: Job, newest: int | None, ready: Batches, upcoming: Shapes) -> State:
  """Train from the `newest` checkpoint's step, or 0, until the last step or out of patience.

  `ready` and `upcoming` are batches and shapes, as `begin` gives them.
  """
  run, program, rhythm, seed = job.run, job.program, job.rhythm, job.setup.config["seed"]
  key, step, steps = keys(seed)["dropout"], newest or 0, rhythm.steps
  learning_rate = make_schedule(job.setup.training, steps)
  doing("compiling the model")
  state = begun(job, newest)
  meter = costs.Meter(run.history, program.update, program.mesh, job.started)
  with (
    StopRequests() as stop,
    terminal.progress(step, steps) as bar,
    contextlib.closing(ready) as batches,
  ):
    while step < steps and not exhausted(job):
      batch, tokens = meter.next(batches, state)
      state = program.update(state, batch, key)
      run.started = True
      step += 1
      meter.count(tokens, state)  # which waits for the first step: nothing is to take cores from it
      program.update.begin(program.shapes, upcoming, key)  # meanwhile
      bar.update()
      asked = stop.asked()
      evaluates, row = rhythm.evaluates(step), {}
      if rhythm.logs(step):
        row |= training_metrics(state) | {"train/learning_rate": float(learning_rate(step - 1))}
        row |= meter.read()
        state = program.clear(state)
        terminal.at_bar(bar, row)
      elif asked:
        training_metrics(state)  # so that no broken state is saved
      if evaluates:
        row |= validation_metrics(job, state)
        best = all(run.rank(row) > before for before in run.ranks)
      if row:
        run.log(step, row)
        job.trackers.log(step, row)
      if evaluates:
        terminal.evaluation(job.setup.task, steps, run.history, best)
        run.save(step, state, row)
        meter.restart()
      elif asked:
        if not row:
          run.log(step, meter.spent())  # which the next session counts on from
        run.save(step, state)
      if asked == SAVE:
        run.checkpoints.wait()
        log.info("asked to end: saved at step %d; training goes on until it is killed", step)
      elif asked == STOP:
        break
  run.checkpoints.wait()
  stop.obey(step, steps)
  return state


def begun(job: Job, newest: int | None) -> State:
  """Return the state of the `newest` checkpoint, or a new one for step 0.

  A run that starts from another one is evaluated there, and may turn out to be best there.
  """
  run, setup, program = job.run, job.setup, job.program
  if newest is not None:
    log.info("going on from step %d", newest)
    return run.checkpoints.load(newest, program.shapes)
  if setup.config.get("init") is None:
    return program.init(setup.config["seed"])
  state = inherit.begin(setup, job.data, program, run.output)
  row = validation_metrics(job, state)
  run.log(0, row)
  job.trackers.log(0, row)
  terminal.first(setup.task, job.rhythm.steps, row)
  run.save(0, state, row)
  return state


def conclude(job: Job, state: State) -> dict[str, Any]:
  """Return the summary: the best checkpoint's metrics on validation and, this once, on test.

  With `train.average` it is the mean of the last evaluated checkpoints that is measured. A trial of
  a tuned sweep is never tested.
  """
  run, data, task, count = job.run, job.data, job.setup.task, job.setup.training.average
  summary: dict[str, Any] = {"stopped_at": int(state.step)}
  if count:
    best, summary["averaged"] = run.checkpoints.average(state, count)
  else:
    best = run.restore_best(state)
  model = job.snapshot(best)
  summary["step"] = int(best.step)
  if count:
    row = validation_metrics(job, best)
  else:
    row = next(row for row in run.history if row["step"] == summary["step"])
  summary |= {name: row[name] for name in row if name.startswith("validation/")}
  given = job.setup.training
  warmup, epochs = given.warmup_of(job.rhythm.steps), given.epochs if given.steps is None else None
  chance = getattr(data, "chance", None)  # which data of one's own need not know
  history, smoothing = run.history, given.label_smoothing
  if smoothing and (counts := getattr(data, "label_counts", None)) is not None:
    losses = [unsmoothed(row.get("train/loss", 0.0), counts, smoothing) for row in history]
    history = [row | {"train/nll": loss} for row, loss in zip(history, losses, strict=True)]
  planned = job.rhythm.steps
  if trained := Trained.of(history, summary["step"], warmup, chance, epochs, planned):
    summary["trained"] = trained._asdict()
  if not job.setup.config.get("trial"):
    tested = sum(data.sizes.get(split, 0) for split in ("test", "beyond"))
    doing(f"testing on {tested:,} {data.item}s")
    summary |= task.conclude(data, model, run.output)
  check_finite(summary)
  return summary | costs.of_run(run.history) | inherit.of_parent(run.output)


def prepared(task: Task, folder: Path) -> Data:
  """Return a task's data; raise UserError if a task of one's own returns none, or lacks a split."""
  data = task.prepare(folder)
  if data is None:
    raise UserError(f"task {task.name}: its method `prepare` is missing, or has no return")
  sizes = data.sizes | ({"test": 0} if "beyond" in data.sizes else {})  # tested there alone
  if missing := [split for split in SPLITS if split not in sizes]:
    raise UserError(f"task {task.name}: its data have no split {' and no '.join(missing)}")
  return data


def training_metrics(state: State) -> dict[str, float]:
  """Return the means of the training metrics since the last row.

  Raises:
    UserError: a loss among them was not finite.
  """
  window = jax.device_get(state.window)
  if window.broken >= 0:
    raise not_finite(window.broken)
  weight = window.weight or 1.0  # streams may begin with tokens that do not count
  return {f"train/{name}": float(total / weight) for name, total in window.sums.items()}


def validation_metrics(job: Job, state: State) -> dict[str, float]:
  """Return the metrics of the validation split; UserError if one is not finite."""
  doing(f"validating on {job.data.sizes['validation']:,} {job.data.item}s")
  measured = job.setup.task.measure(job.data, job.snapshot(state), "validation")
  row = check_finite(prefixed("validation", measured))
  chosen = job.run.metric.key
  if np.ndim(value := row.get(chosen)) or not np.issubdtype(np.asarray(value).dtype, np.number):
    raise UserError(
      f"{chosen} chooses the checkpoint, so the task must measure one number there; it measures "
      f"{', '.join(row)}"
    )
  return {chosen: row.pop(chosen)} | row  # first, as readers expect it


def exhausted(job: Job) -> bool:
  """Return whether the last `train.patience` evaluations brought nothing better."""
  patience, ranks = job.setup.training.patience, job.run.ranks
  if patience is None or not ranks:
    return False
  return len(ranks) - 1 - ranks.index(max(ranks)) >= patience


EVALUATIONS = 20  # about so many, where epochs are short
START = f"the model overflows with the weights that it starts from; {LOOK}"


def check_finite(metrics: dict[str, Any]) -> dict[str, Any]:
  """Return the metrics; raise NotFinite if one is not finite."""
  for name, value in metrics.items():
    if isinstance(value, Real) and not math.isfinite(value):
      raise NotFinite(
        f"{name} is {value}, which is no result; the task must measure a finite number there"
      )
  return metrics


def not_finite(step: int) -> NotFinite:
  """Return the error for a loss from which training does not recover."""
  if step == 1:  # no weight has changed yet
    return NotFinite(f"the loss is not finite at step 1, before any option of train acts: {START}")
  return NotFinite(
    f"the loss is not finite at step {step}; what was saved before is kept: {SMALLER}; if they "
    f"change nothing, {LOOK}"
  )


class Rhythm(NamedTuple):
  """The steps, counted from 1, at which training logs a row and evaluates."""

  steps: int  # the last one is evaluated
  log_every: int
  evaluate_every: int

  @classmethod
  def of(cls, setup: Setup, data: Data) -> Rhythm:
    """Return the schedule of a run.

    Without `train.evaluate_every` the run is evaluated after each epoch or, where only
    `train.least_steps` is given and makes many short epochs, after every few.

    Raises:
      UserError: there are fewer evaluations than checkpoints that the run is to average.
    """
    options, steps = setup.training, setup.steps(data)
    epoch = data.steps_per_epoch(options.batch_size)
    epochs = steps / epoch if options.by_least else 1
    every = options.evaluate_every or epoch * max(1, round(epochs / EVALUATIONS))
    if (options.average or 0) > (evaluations := math.ceil(steps / every)):
      raise UserError(
        f"train.average={options.average}: of {steps:,} steps the run is evaluated "
        f"{counted(evaluations, 'time')}; lower it or train.evaluate_every"
      )
    return cls(steps, options.log_every, every)

  def evaluates(self, step: int) -> bool:
    return step % self.evaluate_every == 0 or step == self.steps

  def logs(self, step: int) -> bool:
    """Return whether a step logs a row, as each evaluation does."""
    return step % self.log_every == 0 or self.evaluates(step)

  def rows(self, until: int) -> dict[int, bool]:
    """Return the steps with a row of metrics, up to one, and whether each is evaluated."""
    return {step: self.evaluates(step) for step in range(1, until + 1) if self.logs(step)}
