"""Send runs to Weights & Biases after the fact.

examples:
  python -m posexp.sync                              # all of runs/
  python -m posexp.sync runs/mr --project ablations --entity my-team
  python -m posexp.sync runs/mr --dry-run            # says what would be sent

Each run is sent as training would have sent it, also if it was trained without W&B; rows that W&B
has are not sent again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from posexp.config import build
from posexp.config.arguments import Parser, command
from posexp.errors import UserError, counted, near
from posexp.runs import Run, lock, read_runs
from posexp.runs.predictions import load_samples
from posexp.tracking import wandb_server
from posexp.tracking.tracker import facts
from posexp.tracking.wandb_run import Wandb, WandbRun, is_synced

# This machine and this command are not those that have trained the run.
ELSEWHERE = {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
SENT, THERE, FAILED = "sent", "in W&B already", "not sent"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("sync", __doc__)
  parser.add_argument(
    "runs", nargs="*", type=Path, default=[Path("runs")], help="folders; default: runs"
  )
  parser.add_argument("--project", help="default: that of each run, or WANDB_PROJECT, or posexp")
  parser.add_argument("--entity", help="user or team; default: that of each run, or WANDB_ENTITY")
  parser.add_argument("--dry-run", action="store_true", help="send nothing")
  return parser.parse_args(list(argv))


def sync(args: argparse.Namespace) -> Counter[str]:
  """Send what is new, with a line for each run, and a count at the end.

  Returns:
    How many runs were SENT, were THERE, and FAILED.

  Raises:
    UserError: there are no runs, W&B cannot be reached or refuses the key, or the project's name is
      not valid.
  """
  runs, notes = read_runs(args.runs)
  for note in notes:
    print(f"note: {note}")
  asked = {"project": args.project, "entity": args.entity}
  asked = {key: value for key, value in asked.items() if value is not None}
  build(Wandb, asked, "wandb")
  server = wandb_server.server_url()
  if not args.dry_run:
    _log_in()
  ends: Counter[str] = Counter()
  for each in runs:
    try:
      trackers = each.config.get("tracker") or each.config  # earlier runs have the section alone
      options = build(Wandb, (trackers.get("wandb") or {}) | asked, "wandb")
      end = line = THERE
      if not is_synced(each, server, options):
        what = counted(len(each.history), "row")
        line = f"{what}, {'to be sent' if args.dry_run else _send(each, options)}"
        end = SENT
    except ConnectionError as error:
      raise UserError(f"{error}: the rest is not sent") from error
    except Exception as error:  # W&B's have no class in common
      if not isinstance(error, UserError):
        wandb_server.reset()
      end, line = FAILED, f"{FAILED}: {wandb_server.reason(error)}"
    ends[end] += 1
    print(f"{near(each.path)}: {line}", flush=True)
  counts = [f"{ends[end]} {end}" for end in (SENT, THERE, FAILED) if ends[end]]
  print(f"runs: {', '.join(counts)}{' (a dry run)' if args.dry_run else ''}")
  return ends


def _log_in() -> None:
  """Raise UserError unless W&B can be reached and accepts the key."""
  try:
    wandb_server.connect(time.monotonic() + Wandb.timeout).Api()  # which tries the key
  except Exception as error:  # W&B's have no class in common
    wandb_server.reset()
    raise UserError(
      f"W&B cannot be had: {wandb_server.reason(error)}; wandb login keeps a key, WANDB_BASE_URL "
      "names another server"
    ) from error


def _send(run: Run, options: Wandb) -> str:
  """Send a run, as far as it is trained; return its address."""
  samples = load_samples(run.path) if run.summary is not None else {}
  with lock(run.path):
    settings = options.settings(run.config, facts(run.summary), run.path)
    deadline = time.monotonic() + options.timeout
    opened = WandbRun(wandb_server.open_online(settings, deadline, **ELSEWHERE), run)
    if run.summary is not None:
      opened.summarize(run.summary)
      opened.samples(samples)
    opened.close(0 if run.summary is not None else 1)
  return opened.run.url


main = command("reading the runs", lambda args: sys.exit(sync(args)[FAILED] > 0), arguments)


if __name__ == "__main__":
  main()
