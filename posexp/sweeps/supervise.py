"""Who trains the runs of a sweep: this process, one by one, or a pool of other processes.

A pool is a context. `start(members)` gives it runs to train, and `reports()` iterates over what has
changed since, (member, state, reason, file) as `Sweep.turn` takes them, or returns after a moment
if nothing has. Left by an exception (a signal's, say) it has what it trains saved, or says what
becomes of it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.live import Live
from rich.text import Text

from posexp.config import RunOptions, build
from posexp.errors import UserError
from posexp.sweeps.slurm import SlurmPool
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, WAITING, Sweep, failure
from posexp.sweeps.workers import WorkerPool, devices

log = logging.getLogger("posexp")

Pool = WorkerPool | SlurmPool


def pool_for(job: Callable[[dict[str, Any]], Any], runs: int, cfg: DictConfig) -> Pool | None:
  """Who is to train so many runs, as the config that they share asks; None: this process.

  Raises:
    UserError: the options do not go together.
  """
  launcher = cfg.hydra.runtime.choices["hydra/launcher"]
  workers = build(RunOptions, {"workers": cfg.get("workers", 1)}, where="").workers
  if launcher not in ("basic", "slurm"):
    raise UserError(
      f"hydra/launcher={launcher}: of Hydra's launchers posexp knows slurm alone; workers=auto "
      "trains several runs at once on this machine"
    )
  if workers != 1 and launcher == "slurm":
    raise UserError(f"workers={workers} are processes of this machine: drop it, or drop slurm")
  if launcher == "slurm":
    return SlurmPool(job, cfg)
  if workers == 1:
    return None
  from posexp.training.processes import process_info  # imports numpy

  if process_info().count > 1:
    raise UserError(f"workers={workers}, but a run here takes several processes: drop workers")
  return WorkerPool(job, devices(workers, runs), cfg)


def train_here(sweep: Sweep, job: Callable[[dict[str, Any]], Any]) -> None:
  """Trains the runs one after another; the other runs go on when one fails."""
  _tell(sweep)
  for member in sweep.members:
    if not sweep.to_train(member):
      continue
    sweep.turn(member, RUNNING)
    try:
      job(member.config)
    except Exception as error:
      reason, file = failure(error, member.path)
      if not (file or isinstance(error, UserError)):
        log.exception("job %d", member.number)
      sweep.turn(member, FAILED, reason, file)
    else:
      sweep.turn(member, DONE)
    if terminal():
      _tell(sweep)


def _tell(sweep: Sweep) -> None:
  for line in [sweep.heading(), *(sweep.states() if terminal() else ())]:
    log.info("%s", line)


def supervise(sweep: Sweep, pool: Pool) -> None:
  """Has a pool train what is to be trained, and says what becomes of it."""
  left = [member for member in sweep.members if sweep.to_train(member)]
  with live_table(sweep) as draw, pool:
    pool.start(left)
    while any(member.state in (WAITING, RUNNING) for member in left):
      for report in pool.reports():
        sweep.turn(*report)
      draw()


@contextlib.contextmanager
def live_table(sweep: Sweep) -> Iterator[Callable[[], None]]:
  """Keeps the table of states at the bottom of a terminal, under what is logged meanwhile.

  Gives a function that draws it anew. Elsewhere than in a terminal its first line is said, once.
  """
  if not terminal():
    log.info("%s", sweep.heading())
    yield lambda: None
    return

  def table() -> Text:
    lines = [sweep.heading(), *sweep.states()]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

  console = Console(force_terminal=True, highlight=False, markup=False)
  handlers = [h for h in logging.getLogger().handlers if getattr(h, "stream", None) is sys.stdout]
  above = SimpleNamespace(  # a stream whose lines stand above the table
    write=lambda text: console.print(text, end="", soft_wrap=True), flush=sys.stdout.flush
  )
  with Live(table(), console=console, auto_refresh=False, redirect_stdout=False) as live:
    for handler in handlers:
      handler.setStream(above)
    try:
      yield lambda: live.update(table(), refresh=True)
    finally:
      for handler in handlers:
        handler.setStream(sys.stdout)


def terminal() -> bool:
  """Whether somebody is looking on."""
  return sys.stdout.isatty()
