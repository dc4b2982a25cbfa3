"""Send runs to Weights & Biases after the fact.

examples:
  python -m posexp.sync                              # all of runs/
  python -m posexp.sync runs/mr --project ablations --entity my-team
  python -m posexp.sync runs/mr --dry-run            # says what would be sent

What was logged offline is sent as it was, with the command, the machine and the times of training.
Other runs are sent from their folders. Rows that W&B has are not sent again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp import reading, storage
from posexp.config import build
from posexp.config.arguments import Parser, command
from posexp.errors import UserError, counted, near
from posexp.runs import Run, lock, read_runs
from posexp.runs.predictions import load_samples
from posexp.tracking.tracker import facts
from posexp.wandb import offline, server
from posexp.wandb.run import NOTE, Wandb, WandbRun

# This machine and this command are not those that have trained the run.
ELSEWHERE = {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
ELSEWHERE |= {"x_save_requirements": False}
SESSION = 600.0  # seconds that W&B may take to send a session
PASSED: tuple[str, ...] = ("API_KEY", "BASE_URL", "IDENTITY_TOKEN_FILE", "CREDENTIALS_FILE")
PASSED += ("ERROR_REPORTING", "INSECURE_DISABLE_SSL", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR")
SENT, THERE, FAILED = "sent", "in W&B already", "not sent"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("sync", __doc__)
  parser.add_argument(
    "runs", nargs="*", type=Path, default=[Path("runs")], help="folders; default: runs"
  )
  named = "default: that of each run, or WANDB_PROJECT, or that of wandb init, or posexp"
  parser.add_argument("--project", help=named)
  parser.add_argument("--entity", help="user or team; default: that of each run, or WANDB_ENTITY")
  parser.add_argument("--dry-run", action="store_true", help="send nothing")
  return parser.parse_args(list(argv))


def sync(args: argparse.Namespace) -> Counter[str]:
  """Send new rows, with a line for each run, and a count at the end.

  Returns:
    How many runs were SENT, were THERE, and FAILED.

  Raises:
    UserError: there are no runs, W&B cannot be reached or refuses the key or a setting, or the
      project's name is not valid.
  """
  runs, notes = read_runs(args.runs, trials=True)
  for note in notes:
    print(f"note: {note}")
  said = {name: os.environ.get(f"WANDB_{name.upper()}") for name in ("project", "entity")}
  for name, project in (("--project", args.project), ("WANDB_PROJECT", said["project"])):
    try:
      build(Wandb, {"project": project}, "")
    except UserError as error:
      raise UserError(f"{name}{str(error).removeprefix('project')}") from None
  os.environ.pop("WANDB_RUN_ID", None)  # it names a run to be trained
  url = server.settled().base_url
  if not args.dry_run:
    _log_in()
  ends: Counter[str] = Counter()
  for run in runs:
    try:
      trackers = run.config.get("tracker") or run.config  # earlier runs have the section alone
      section = trackers.get("wandb") or {}
      own = {key: getattr(args, key) or section.get(key) or said[key] for key in said}
      own["project"] = own["project"] or noted(run.path).get("project")  # where it was logged
      options = build(Wandb, section | own, "wandb")
      end = line = THERE
      if not is_synced(run, url, options):
        what = counted(len(run.history), "row")
        line = f"{what}, {'to be sent' if args.dry_run else _send(run, url, options)}"
        end = SENT
    except ConnectionError as error:
      raise UserError(f"{error}: the rest is not sent") from error
    except Exception as error:  # W&B's have no class in common
      if not isinstance(error, UserError):
        server.reset()
      end, line = FAILED, f"{FAILED}: {server.reason(error)}"
    ends[end] += 1
    print(f"{near(run.path)}: {line}", flush=True)
  counts = [f"{ends[end]} {end}" for end in (SENT, THERE, FAILED) if ends[end]]
  print(f"runs: {', '.join(counts)}{' (a dry run)' if args.dry_run else ''}")
  return ends


def _log_in() -> None:
  """Raise UserError unless W&B can be reached and accepts the key."""
  import wandb

  try:
    server.connect(Wandb.timeout)
    wandb.Api()  # which tries the key
  except Exception as error:  # W&B's have no class in common
    server.reset()
    raise UserError(
      f"W&B cannot be had: {server.reason(error)}; wandb login keeps a key, WANDB_BASE_URL "
      "names another server"
    ) from error


def _send(run: Run, url: str, options: Wandb) -> str:
  """Send a run, as far as it is trained; return its address."""
  samples = load_samples(run.path) if run.summary is not None else {}
  with lock(run.path):
    settings = options.settings(run.config, facts(run.summary), run.path)
    server.connect(options.timeout)
    address = _send_sessions(run, url, settings)
    if not is_synced(run, url, options):
      online = server.start(settings, options.timeout, console="off", **ELSEWHERE)
      opened = WandbRun(online, run, options)
      if run.summary is not None:
        opened.summarize(run.summary)
        opened.samples(samples)
      opened.close(0 if run.summary is not None else 1)
      address = opened.line
    for session in offline.unsent(run.path, settings["id"]):  # whose rows have been sent now
      storage.write(session / f"run-{settings['id']}.wandb.synced", "")
  return address


def _send_sessions(run: Run, url: str, settings: Mapping[str, Any]) -> str:
  """Send the offline sessions of a run as W&B recorded them, and note that it has them.

  `wandb sync` always sends a whole session, so rows that W&B already has would be there twice. This
  therefore stops at a session that was sent in part, and sends nothing of a run that was online.

  Returns:
    The run's address, or "" if no session was sent.
  """
  folder, address = run.path, ""
  folders = offline.sessions(folder, settings["id"])
  if any(each.name.startswith("run-") for each in folders):
    return ""
  place = {key: settings[key] for key in ("entity", "project") if settings[key]}
  for each in offline.unsent(folder, settings["id"]):
    if any(each.glob("*.syncstate")):
      return ""
    about = next(iter(offline.records(each, "environment")), {})
    said = {key.upper(): about[key] for key in ("host", "program") if key in about}
    words: list[str | Path] = ["sync", *(f"--{key}={value}" for key, value in place.items()), each]
    line = re.search(r"View run .* at (\S+)", _wandb(words, RESUME="allow", **said))
    if not line or not any(each.glob("*.synced")):
      return ""
    address = line[1]
  if address:
    note = {"finished": False} | noted(folder)
    whole = note.get("step") == run.step  # else the last session was killed
    whole = whole or offline.next_step(folder, settings["id"]) > run.step
    note |= {"server": url, "offline": False, "step": run.step if whole else -1}
    note["entity"], note["project"] = address.split("/")[-4:-2]
    storage.write(folder / NOTE, json.dumps(note) + "\n")
  return address


def _wandb(words: Sequence[str | Path], **more: str) -> str:
  """Run a command of W&B's; return its output, or "" if it takes longer than SESSION.

  Of W&B's environment variables, the command gets only those in PASSED and `more`. The others
  describe this process, whereas a session has its own record of the process that trained.
  """
  kept = {f"WANDB_{name}" for name in PASSED}
  env = {key: value for key, value in os.environ.items() if key[:6] != "WANDB_" or key in kept}
  env |= {f"WANDB_{name}": value for name, value in more.items()}
  argv = [sys.executable, "-m", "wandb", *map(str, words)]
  try:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=SESSION)
  except subprocess.TimeoutExpired:
    return ""
  return done.stderr


def noted(folder: Path) -> dict[str, Any]:
  """Return the note on a run in W&B; nothing if it cannot be read."""
  try:
    return dict(reading.parse(reading.read(folder / NOTE) or b"{}"))
  except (UserError, ValueError, TypeError):
    return {}


def is_synced(run: Run, url: str, options: Wandb) -> bool:
  """Return whether a server is known to have all of a run, in the project and entity asked for."""
  note = noted(run.path)
  wanted: dict[str, Any] = {"server": url, "project": options.project}
  wanted |= {"entity": options.entity or note.get("entity"), "offline": False}
  return note == wanted | {"step": run.step, "finished": run.summary is not None}


main = command("reading the runs", lambda args: sys.exit(sync(args)[FAILED] > 0), arguments)


if __name__ == "__main__":
  main()
