"""Runs sent to Weights & Biases after the fact: `python -m posexp.sync runs/mr`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp.config import build
from posexp.config.arguments import Parser, run
from posexp.errors import UserError, near
from posexp.runs import Run, lock, read_runs
from posexp.runs.predictions import SAMPLES, load_predictions
from posexp.tracking import charts, connection, wandb_run
from posexp.tracking.aggregates import Aggregate, aggregates
from posexp.tracking.wandb_run import WandbOptions, WandbRun, is_synced

EXAMPLES = """\
examples:
  python -m posexp.sync                              all of runs/
  python -m posexp.sync runs/mr --project ablations --entity my-team
  python -m posexp.sync runs/mr --dry-run            says what would be sent

Each run is sent as training would have sent it, also if it was trained without W&B; rows that W&B
has are not sent again. Every group, runs that differ in their seeds alone, is a run of its own as
well, of the type "aggregate": means, standard deviations, n and 95 % intervals, and charts of them.
"""
SENT, THERE, FAILED = "sent", "in W&B already", "not sent"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser("sync", "Sends runs, and their means over seeds, to Weights & Biases.", EXAMPLES)
  parser.add_argument("runs", metavar="RUNS", nargs="*", type=Path, help="folders; default: runs")
  parser.add_argument("--project", help="default: that of each run, wandb.project")
  parser.add_argument("--entity", help="user or team; default: that of each run, wandb.entity")
  parser.add_argument("--dry-run", action="store_true", help="send nothing")
  args = parser.parse_args(list(argv))
  args.runs = args.runs or [Path("runs")]
  return args


def sync(args: argparse.Namespace) -> Counter:
  """Sends what is new, with a line for each run and group, and a count at the end.

  Returns:
    How many runs and groups were SENT, were THERE, and FAILED.

  Raises:
    UserError: there are no runs, W&B cannot be reached, or the project's name is not valid.
  """
  runs, notes = read_runs(args.runs)
  groups = aggregates(runs)
  for note in notes:
    print(f"note: {note}")
  sender = Sender(args)
  if not args.dry_run:
    sender.check()
  ends: Counter = Counter()
  try:
    for each in [*runs, *groups]:
      end, line = sender.send(each)
      ends[end] += 1
      print(f"{near(each.path)}: {line}", flush=True)
  except ConnectionError as error:
    ends[FAILED] += len(runs) + len(groups) - ends.total()
    print(f"{error}: the rest is not sent")
  would = "would be " if args.dry_run else ""
  titles = {SENT: f"{would}{SENT}", THERE: THERE, FAILED: FAILED}
  counts = [f"{ends[end]} {title}" for end, title in titles.items() if ends[end]]
  print(f"{_count(runs, 'run')} and {_count(groups, 'group')}: {', '.join(counts)}")
  return ends


class Sender:
  """Sends runs and groups, each once; UserError if the project's name is not valid."""

  def __init__(self, args: argparse.Namespace):
    asked = {"project": args.project, "entity": args.entity}
    self.asked = {key: value for key, value in asked.items() if value is not None}
    build(WandbOptions, self.asked, "wandb")
    self.dry = args.dry_run
    self.server = connection.server_url()
    self._presets: dict[str, bool] = {}  # whether an entity has them

  def check(self) -> None:
    """Raises UserError unless W&B can be reached and accepts the key."""
    try:
      connection.connect(time.monotonic() + WandbOptions.timeout).Api()  # which tries the key
    except Exception as error:  # W&B's have no class in common
      connection.reset()
      raise UserError(
        f"W&B cannot be had: {connection.reason(error)}; wandb login keeps a key, WANDB_BASE_URL "
        "names another server"
      ) from error

  def send(self, each: Run | Aggregate) -> tuple[str, str]:
    """Sends a run or a group, if W&B lacks any of it; SENT, THERE or FAILED, and a line.

    Raises:
      ConnectionError: the server does not answer any more.
    """
    try:
      section = {**(each.config.get("wandb") or {}), **self.asked}
      options = build(WandbOptions, section, "wandb")
      if isinstance(each, Run):
        return self._send_run(each, options)
      return self._send_group(each, options)
    except ConnectionError:
      raise
    except Exception as error:
      if not isinstance(error, UserError):
        connection.reset()
      return FAILED, f"{FAILED}: {connection.reason(error)}"

  def _send_run(self, run: Run, options: WandbOptions) -> tuple[str, str]:
    finished = run.summary is not None
    if is_synced(run.path / "wandb", self.server, options, wandb_run.extent(run.step, finished)):
      return THERE, THERE
    if self.dry:
      return SENT, f"would be sent: {len(run.history)} rows{', the summary' if finished else ''}"
    samples = load_predictions(run.path, "test", SAMPLES) if finished else []
    with lock(run.path):
      settings = wandb_run.run_settings(options, run.config, wandb_run.facts(run.summary), run.path)
      deadline = time.monotonic() + options.timeout
      opened = WandbRun(connection.open_online(settings, deadline), run.path)
      again, url = opened.run.resumed, opened.run.url
      opened.catch_up(run.history)
      if finished:
        opened.summarize(run.summary)
        if "samples" not in opened.run.summary.keys():  # noqa: SIM118
          opened.samples(samples)
      opened.finish(0 if finished else 1)
    return SENT, f"{'what is new ' if again else ''}{SENT}, {url}"

  def _send_group(self, group: Aggregate, options: WandbOptions) -> tuple[str, str]:
    folder, what = group.path / ".aggregate", f"aggregate of {len(group.runs)}"
    if is_synced(folder, self.server, options, group.content):
      return THERE, f"aggregate {THERE}"
    if self.dry:
      return SENT, f"{what} would be sent"
    folder.mkdir(exist_ok=True)
    first, digest = group.runs[0], group.path.name
    settings = wandb_run.group_settings(options, first.task, first.encoding, digest)
    settings |= {
      "id": f"{digest}-aggregate",
      "name": f"{settings['group']}/aggregate",
      "job_type": "aggregate",
      "config": group.facts,
      "dir": str(folder),
    }
    opened = connection.open_online(settings, time.monotonic() + options.timeout)
    has = self._has_presets(opened.entity)
    opened.summary.update(group.summary)
    opened.log(charts.loggable(group.charts, opened.entity if has else None))
    opened.finish()
    # Without presets the group is sent again next time: the account may have them by then.
    wandb_run.record(folder, opened, group.content if has else None)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    return SENT, f"{what} {SENT}, {opened.url}"

  def _has_presets(self, entity: str) -> bool:
    if entity not in self._presets:
      try:
        charts.ensure_presets(entity)
        self._presets[entity] = True
      except Exception as error:
        self._presets[entity] = False
        print(f"note: {entity} has no custom charts, tables instead: {connection.reason(error)}")
    return self._presets[entity]


def _count(things: Sequence[Any], name: str) -> str:
  return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def main() -> None:
  """The command line; the exit status is 1 if anything could not be sent."""
  run(lambda argv: sys.exit(1 if sync(arguments(argv))[FAILED] else 0))


if __name__ == "__main__":
  main()
