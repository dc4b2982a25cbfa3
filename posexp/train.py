"""Train, measure and log one run: `python -m posexp.train encoding=rpr rpr.k=4`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posexp.errors import UserError, near
from posexp.sweeps.launch import launch

log = logging.getLogger("posexp")

SAMPLES = 50  # test examples that W&B is shown


def main() -> None:
  """The command line."""
  sys.exit(launch(train))


def train(config: dict[str, Any]) -> dict[str, Any]:
  """Trains what `config` describes, or goes on where it was stopped, or shows what came of it.

  Returns the run's summary.

  Raises:
    UserError: the config, the data or the run's folder are not in order.
  """
  from posexp.config import build
  from posexp.encodings import make_encoding
  from posexp.models.positions import Positions
  from posexp.models.transformer import Size
  from posexp.runs.run import Follower, Run, folder
  from posexp.tasks import make_task
  from posexp.tracking.tracker import WandbOptions
  from posexp.training import costs, devices, processes, terminal
  from posexp.training.optimizer import Training

  begun = costs.job_begins()
  devices.prepare()
  encoding, task = make_encoding(config), make_task(config)
  size = build(Size, config["model"], "model")
  positions = build(Positions, config.get("positions"), "positions")
  options = build(Training, config["train"], "train")
  wandb = build(WandbOptions, config["wandb"], "wandb")
  path = folder(config, task.data_digest())
  if config["distributed"] == "auto":
    processes.join(path)
  kind = Run if processes.first() else Follower
  run = kind(path, config, rerun=config["rerun"], metric=task.score, scored=options.average or 0)
  summary = None if config["rerun"] else run.finished
  if summary is None:
    suits(encoding, size, positions, task.toy())
    with contextlib.ExitStack() as stack:
      with processes.in_turn():
        stack.enter_context(run)
      summary = carry_out(run, config, encoding, task, size, positions, options, wandb, begun)
  else:
    log.info("finished already, in %s; rerun=true trains it again", near(path))
  terminal.result(task.table(summary))
  return summary


def suits(encoding, size, positions, kind) -> None:
  """Raises UserError unless a model of this size can be built with the encoding.

  It is built in shape only, for a `kind` with hardly any words, before anything that takes long.
  """
  from posexp.config import unknown_name
  from posexp.encodings import ENCODINGS
  from posexp.training.step import parameters

  if size.match_to not in ENCODINGS:
    raise unknown_name("model.match_to", size.match_to, list(ENCODINGS))
  try:
    parameters(kind.build(encoding, size, positions))
  except ValueError as error:
    raise UserError(f"model: {error}") from error


def carry_out(
  run, config, encoding, task, size, positions, options, wandb, begun
) -> dict[str, Any]:
  """The work of a run, from its data to its summary."""
  from posexp.tracking.tracker import start
  from posexp.training import loop, matching, processes, terminal
  from posexp.training.devices import mesh_for
  from posexp.training.step import program

  with processes.in_turn():
    data = task.prepare(run.path)
  build, fit = model(config["encoding"], encoding, data, size, positions)
  epoch = data.steps_per_epoch(options.batch_size)
  steps = options.steps or options.epochs * epoch
  mesh = mesh_for(data.rows_of(options.batch_size), options.accumulate)
  facts = matching.facts(data.kind, encoding, fit, size)
  facts |= {"steps": steps, "devices": f"{mesh.size} {mesh.devices.flat[0].device_kind}"}
  run.rewind(run.checkpoints.find("latest") or 0)
  if not processes.first():
    wandb = dataclasses.replace(wandb, mode="disabled")
  with start(wandb, config=config, facts=facts, run=run) as tracker:
    terminal.header(config, data, facts, run.path, tracker.line)
    compiled = program(build, options, steps, mesh)
    fitted = loop.fit(run, tracker, compiled, data, options, steps, config["seed"], mesh, begun)
    summary = loop.measure(run, compiled, data, options, fitted, mesh) | facts
    tracker.summarize(summary)
    tracker.samples(said(run.output))
  run.finish(summary)  # after W&B has it all: a finished run is not opened again
  return summary


def said(folder: Path) -> list[dict[str, Any]]:
  """What the model said of the first test examples, a row each."""
  with (folder / "predictions" / "test.jsonl").open(encoding="utf-8") as lines:
    return [json.loads(line) for line in itertools.islice(lines, SAMPLES)]


def model(name, encoding, data, size, positions) -> tuple[Callable[..., Any], Any]:
  """What builds the model of a run for its data, and the model's size.

  Raises:
    UserError: there are texts longer, or positions farther, than the encoding's positions; texts
      longer than positions are drawn from; or there is no matching width.
  """
  from posexp.training import matching

  kind = data.kind
  texts = f"the longest {data.item} has {data.longest} tokens, in batches of length {kind.length}"
  reach = positions.reach
  if reach is not None and kind.length > reach:
    raise UserError(
      f"positions.reach={reach}: {texts}; set positions.reach={kind.length} or more, or cut texts "
      "with task.max_length"
    )
  if encoding.limit is not None and max(kind.length, reach or 0) > encoding.limit:
    option = f"{name}.{encoding.limited_by}"
    why = texts if reach is None else f"positions are drawn from {reach}"
    lower = "cut texts with task.max_length" if reach is None else "lower positions.reach"
    raise UserError(
      f"{option}={getattr(encoding, encoding.limited_by)} gives {encoding.limit} positions: {why}; "
      f"raise {option}, or {lower}"
    )
  fit = matching.matched(kind, encoding, size)
  return kind.build(encoding, fit, positions), fit


if __name__ == "__main__":
  main()
