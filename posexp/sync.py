"""Runs sent to Weights & Biases after the fact: `python -m posexp.sync runs/mr`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.config import build
from posexp.config.arguments import Parser, run
from posexp.errors import UserError, near
from posexp.runs import lock
from posexp.tracking import wandb_run as mirrors
from posexp.tracking.wandb_run import WandbOptions

if TYPE_CHECKING:
  from posexp.runs import Run
  from posexp.tracking.aggregates import Aggregate

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
    How many runs and groups came to each end.

  Raises:
    UserError: there are no runs, W&B cannot be had, or no project can have that name.
  """
  from posexp.runs import read_runs
  from posexp.tracking.aggregates import aggregates

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
  told = {SENT: f"{would}{SENT}", THERE: THERE, FAILED: FAILED}
  counted = [f"{ends[end]} {text}" for end, text in told.items() if ends[end]]
  print(f"{_count(runs, 'run')} and {_count(groups, 'group')}: {', '.join(counted)}")
  return ends


class Sender:
  """Sends runs and groups, each once; UserError if no project can have the name asked for."""

  def __init__(self, args: argparse.Namespace):
    asked = {"project": args.project, "entity": args.entity}
    self.asked = {key: value for key, value in asked.items() if value is not None}
    build(WandbOptions, self.asked, "wandb")
    self.dry = args.dry_run
    self.server = mirrors.server()
    self._presets: dict[str, bool] = {}  # whether an entity has them

  def check(self) -> None:
    """Raises UserError unless W&B can be had."""
    try:
      mirrors.connected(time.monotonic() + WandbOptions.timeout).Api()  # which tries the key
    except Exception as error:  # W&B's have no class in common
      mirrors.reset()
      raise UserError(
        f"W&B cannot be had: {mirrors.reason(error)}; wandb login keeps a key, WANDB_BASE_URL "
        "names another server"
      ) from error

  def send(self, each: Run | Aggregate) -> tuple[str, str]:
    """Sends a run or a group, if there is anything new in it; the end that it came to, and a line.

    Raises:
      ConnectionError: the server does not answer any more.
    """
    from posexp.runs import Run, read_run

    try:
      config = each.config if isinstance(each, Run) else read_run(each.first).config
      options = self._options(config)
      if isinstance(each, Run):
        return self._run(each, config, options)
      return self._group(each, config, options)
    except ConnectionError:
      raise
    except Exception as error:
      if not isinstance(error, UserError):
        mirrors.reset()
      return FAILED, f"{FAILED}: {mirrors.reason(error)}"

  def _options(self, config: dict[str, Any]) -> WandbOptions:
    return build(WandbOptions, {**(config.get("wandb") or {}), **self.asked}, "wandb")

  def _run(self, found: Run, config: dict[str, Any], options: WandbOptions) -> tuple[str, str]:
    mark = mirrors.marked(found.path / "wandb")
    held = mirrors.held(found.step, found.summary is not None)
    if mark and mark.at(self.server, options) and mark.content == held:
      return THERE, THERE
    what = f"{len(found.history)} rows{', the summary' if found.summary else ''}"
    if self.dry:
      return SENT, f"would be sent: {what}"
    with lock(found.path):
      told = mirrors.told(options, config, mirrors.facts(found.summary), found.path)
      mirror = mirrors.online(told, found.path, time.monotonic() + options.timeout)
      again = mirror.run.resumed
      mirror.catch_up(found.history)
      if found.summary is not None:
        mirror.summarize(found.summary)
        if "samples" not in mirror.run.summary.keys():  # noqa: SIM118
          mirror.samples(_samples(found.path))
      url = mirror.run.url
      mirror.finish(0 if found.summary is not None else 1)
    return SENT, f"{'what is new ' if again else ''}{SENT}, {url}"

  def _group(
    self, group: Aggregate, config: dict[str, Any], options: WandbOptions
  ) -> tuple[str, str]:
    from posexp.tracking import charts

    folder, what = group.path / ".aggregate", f"aggregate of {len(group.facts['seeds'])}"
    mark = mirrors.marked(folder)
    if mark and mark.at(self.server, options) and mark.content == group.content:
      return THERE, f"aggregate {THERE}"
    if self.dry:
      return SENT, f"{what} would be sent"
    folder.mkdir(exist_ok=True)
    alike = {key: value for key, value in config.items() if key != "seed"}
    told = mirrors.told_of_group(options, group.task, group.encoding, group.digest)
    told |= {
      "id": f"{group.digest}-aggregate",
      "name": f"{told['group']}/aggregate",
      "job_type": "aggregate",
      "config": mirrors.experiment(alike) | group.facts,
      "dir": str(folder),
    }
    mirror = mirrors.opened(told, time.monotonic() + options.timeout)
    has = self._has_presets(mirror.entity)
    mirror.summary.update(group.summary)
    mirror.log(charts.drawn(group.charts, mirror.entity if has else None))
    mirror.finish()
    mirrors.mark(folder, mirror, group.content if has else None)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    return SENT, f"{what} {SENT}, {mirror.url}"

  def _has_presets(self, entity: str) -> bool:
    from posexp.tracking import charts

    if entity not in self._presets:
      try:
        charts.keep_presets(entity)
        self._presets[entity] = True
      except Exception as error:
        self._presets[entity] = False
        print(f"note: {entity} has no custom charts, tables instead: {mirrors.reason(error)}")
    return self._presets[entity]


def _count(things: Sequence[Any], name: str) -> str:
  return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _samples(path: Path) -> list[dict[str, Any]]:
  from posexp.runs.predictions import SAMPLES, load_predictions

  return load_predictions(path, "test", SAMPLES)


def main() -> None:
  """The command line; the exit status is 1 if anything could not be sent."""
  run(lambda argv: sys.exit(1 if sync(arguments(argv))[FAILED] else 0))


if __name__ == "__main__":
  main()
