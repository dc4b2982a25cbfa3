"""Train, measure and log one run: `python -m posexp.train encoding=rpr rpr.k=4`."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp import machine
from posexp.errors import near
from posexp.status import begin, doing

log = logging.getLogger("posexp")


def main() -> None:
  """Run the command line."""
  gc.disable()  # what is imported stays: to look through it, again and again, takes 5 % of a start
  machine.keep_freed()
  begin("reading the options")
  from posexp.config.arguments import flush_output
  from posexp.sweeps.launch import launch

  try:
    status = launch(train, means, look)
  except Exception:
    traceback.print_exc()
    status = 1
  doing("")
  if status:  # the interpreter would wait for what threads still compile, and for other processes
    logging.shutdown()
    with contextlib.suppress(OSError):
      flush_output()
    os._exit(status)


def train(config: dict[str, Any]) -> dict[str, Any]:
  """Train the run that `config` describes: from the start, from where it was stopped, or not at all
  if it has finished.

  Returns the run's summary.

  Raises:
    UserError: the config, the data or the run's folder are not in order, or there is a mistake in
      an encoding or a task of the user's own.
  """
  doing("loading JAX and Flax")
  from posexp.config import plugins
  from posexp.runs import ReadOnlyRun, RunWriter, folder, parents
  from posexp.tasks.contract import finished
  from posexp.tracking import chosen, repeat
  from posexp.training import costs, devices, processes, terminal
  from posexp.training.loop import run_training
  from posexp.training.setup import Setup

  with plugins.explained(config), processes.explained():
    begun = costs.job_begins()
    devices.prepare(find=False)  # which several processes do once they know of each other
    setup = Setup.of(config)
    config = setup.config
    task, trackers = setup.task, chosen(config)
    path = folder(config, **setup.data_digests())
    if config["distributed"] == "auto":
      processes.join(path, config["distributed_timeout"])
    if config.get("init") is not None:
      parents.check_same(path, config)
    if not processes.is_main_process():
      trackers = {}
    kind = RunWriter if processes.is_main_process() else ReadOnlyRun
    run = kind(path, config)
    if config["rerun"] or (summary := finished(task, path)) is None:
      devices.find_devices()
      devices.check_cores(setup.training.cpu_devices)
      setup.check_fits(setup.least_parameters())
      with contextlib.ExitStack() as stack:
        with processes.main_process_first():
          stack.enter_context(run)
        summary = run_training(run, setup, trackers, begun)
    else:
      log.info("finished already, in %s; rerun=true trains it again", near(path))
      repeat(trackers, path, config)
    terminal.result((terminal.trial if config.get("trial") else task.table)(summary))
    terminal.trained(summary)
    return summary


def means(folders: Sequence[Path], margin: float | None) -> Iterator[str]:
  """Return the lines at the end of a sweep, from the folders of its finished runs."""
  from posexp.reporting.trials import of_sweep  # slow to import, and a sweep may be refused before

  return of_sweep(folders, margin)


def look(folders: Sequence[Path], margin: float | None) -> dict[Path, str]:
  """Return the verdict on each group of a sweep: see `posexp.sweeps.until`."""
  from posexp.reporting.trials import verdicts

  return verdicts(folders, margin)


if __name__ == "__main__":
  main()
