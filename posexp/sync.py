"""Send runs to Weights & Biases after the fact: `python -m posexp.sync runs/mr`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp import storage
from posexp.config import build
from posexp.config.arguments import Parser, run
from posexp.errors import UserError, counted, near
from posexp.runs import Run, lock, read_runs
from posexp.runs.predictions import load_samples
from posexp.tracking import connection, wandb_run
from posexp.tracking.wandb_run import WandbOptions, WandbRun, is_synced

if TYPE_CHECKING:
  from posexp.tracking.aggregates import Aggregate

EXAMPLES = """\
examples:
  python -m posexp.sync                              # all of runs/
  python -m posexp.sync runs/mr --project ablations --entity my-team
  python -m posexp.sync runs/mr --dry-run            # says what would be sent

Each run is sent as training would have sent it, also if it was trained without W&B; rows that W&B
has are not sent again. Every group, runs that differ in their seeds alone, is a run of its own as
well, of the type "aggregate": means, standard deviations, n and 95 % intervals, and their tables.
"""
SENDING = {"mode": "online"}  # whatever the mode of training
SENT, THERE, FAILED = "sent", "in W&B already", "not sent"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("sync", "Sends runs, and their means over seeds, to Weights & Biases.", EXAMPLES)
  parser.add_argument(
    "runs", nargs="*", type=Path, default=[Path("runs")], help="folders; default: runs"
  )
  parser.add_argument("--project", help="default: that of each run, or WANDB_PROJECT, or posexp")
  parser.add_argument("--entity", help="user or team; default: that of each run, or WANDB_ENTITY")
  parser.add_argument("--dry-run", action="store_true", help="send nothing")
  return parser.parse_args(list(argv))


def sync(args: argparse.Namespace) -> Counter:
  """Send what is new, with a line for each run and group, and a count at the end.

  Returns:
    How many runs and groups were SENT, were THERE, and FAILED.

  Raises:
    UserError: there are no runs, W&B does not answer, or the project's name is not valid.
  """
  from posexp.tracking.aggregates import aggregates

  runs, notes = read_runs(args.runs)
  for note in notes:
    print(f"note: {note}")
  sender = Sender(args)
  ends: Counter = Counter()
  for each in [*runs, *aggregates(runs)]:
    end, line = sender.send(each)
    ends[end] += 1
    print(f"{near(each.path)}: {line}", flush=True)
  counts = [f"{ends[end]} {end}" for end in (SENT, THERE, FAILED) if ends[end]]
  print(f"runs and groups: {', '.join(counts)}{' (a dry run)' if args.dry_run else ''}")
  return ends


class Sender:
  """Sends runs and groups, each once.

  Raises:
    UserError: the project's name is not valid, or W&B cannot be reached or refuses the key.
  """

  def __init__(self, args: argparse.Namespace):
    asked = {"project": args.project, "entity": args.entity}
    self.asked = {key: value for key, value in asked.items() if value is not None}
    build(WandbOptions, self.asked, "wandb")
    self.dry = args.dry_run
    self.server = connection.server_url()
    if not self.dry:
      try:
        connection.connect(time.monotonic() + WandbOptions.timeout).Api()  # which tries the key
      except Exception as error:  # W&B's have no class in common
        connection.reset()
        raise UserError(
          f"W&B cannot be had: {connection.reason(error)}; wandb login keeps a key, WANDB_BASE_URL "
          "names another server"
        ) from error

  def send(self, each: Run | Aggregate) -> tuple[str, str]:
    """Send a run or a group, if W&B lacks any of it; SENT, THERE or FAILED, and a line.

    Raises:
      UserError: the server does not answer any more.
    """
    try:
      section = {**(each.config.get("wandb") or {}), **self.asked}
      options = wandb_run.with_environment(build(WandbOptions, section | SENDING, "wandb"))
      if isinstance(each, Run):
        folder, content = each.path / "wandb", wandb_run.extent(each.step, each.summary is not None)
        what, send = counted(len(each.history), "row"), self._send_run
      else:
        folder, content = each.path / ".aggregate", each.content
        what, send = f"aggregate of {len(each.runs)}", self._send_group
      if is_synced(folder, self.server, options, content):
        return THERE, THERE
      line = f"{what}, {'to be sent' if self.dry else send(each, options)}"
      connection.heard.flush()
      return SENT, line
    except ConnectionError as error:
      raise UserError(f"{error}: the rest is not sent") from error
    except Exception as error:
      if not isinstance(error, UserError):
        connection.reset()
      return FAILED, f"{FAILED}: {connection.reason(error)}"

  def _send_run(self, run: Run, options: WandbOptions) -> str:
    """Send a run; return its address."""
    samples = load_samples(run.path) if run.summary is not None else {}
    with lock(run.path):
      settings = wandb_run.run_settings(options, run.config, wandb_run.facts(run.summary), run.path)
      deadline = time.monotonic() + options.timeout
      opened = WandbRun(connection.open_online(settings, deadline), run.path)
      opened.catch_up(run.history)
      if run.summary is not None:
        opened.summarize(run.summary)
        there = opened.run.summary.keys()
        opened.samples({name: rows for name, rows in samples.items() if name not in there})
      opened.finish(0 if run.summary is not None else 1)
    return opened.run.url

  def _send_group(self, group: Aggregate, options: WandbOptions) -> str:
    """Send a group; return its address."""
    from posexp.tracking.aggregates import COLUMNS

    folder = storage.unlinked(group.path / ".aggregate")
    folder.mkdir(exist_ok=True)
    settings = wandb_run.settings(options, group.config, group.path.name, "aggregate")
    settings |= {"id": f"{group.path.name}-aggregate", "job_type": "aggregate"}
    settings |= {"config": group.facts, "dir": str(folder)}
    opened = connection.open_online(settings, time.monotonic() + options.timeout)
    opened.summary.update(group.summary)
    wandb = connection.load()
    opened.log({name: wandb.Table(COLUMNS, rows) for name, rows in group.tables.items()})
    opened.finish()
    wandb_run.record(folder, opened, group.content)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    return opened.url


def main() -> None:
  """Run the command line; the exit status is 1 if anything could not be sent."""
  run(lambda argv: sys.exit(1 if sync(arguments(argv))[FAILED] else 0), "reading the runs")


if __name__ == "__main__":
  main()
