"""The run from whose weights another one starts, as the option `init` names it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexp.errors import UserError, near
from posexp.runs.metrics import results
from posexp.runs.run import Broken, Run, read_config, read_run


def resolved(config: Mapping[str, Any]) -> tuple[dict[str, Any], Run]:
  """Return a config with its path `init` replaced by the record for config.yaml; and the parent.

      init:
        path: /home/ann/runs/mr/rope/437f7d2f65d9    as it was named
        run: rope/437f7d2f65d9    with /seed=0 if children of all seeds start from that one
        results: 1f0c…            the sha256 of its results, which no other weights have

  A folder that holds the seeds of a run stands for the one with the seed of the config.

  Raises:
    UserError: there is no such run, it has not finished, or its folder has another name than its
      digest.
  """
  given = config["init"]
  path, seed = Path(given), config["seed"]
  paired = path.is_dir() and any(path.glob("seed=*"))
  if paired and not (path / f"seed={seed}").is_dir():
    there = sorted(path.glob("seed=*"))
    raise UserError(
      f"init={given}: no run of seed={seed} is there; train it, or name the run that all seeds are "
      f"to start from, as in init={near(there[0])}"
    )
  try:
    run = read_run(path / f"seed={seed}" if paired else path)
  except UserError as error:
    raise UserError(f"init={given}: {str(error).removeprefix(f'{given}: ')}") from error
  if run.summary is None:
    raise UserError(
      f"init={given}: {near(run.path)} has not finished, so its weights may change; its command, "
      "typed again, goes on with it"
    )
  if run.digest is None:
    raise UserError(
      f"init={given}: its folder must have the run's digest as a name, which tells which run this "
      "is; move it back into such a folder"
    )
  text = json.dumps(results(run.summary), sort_keys=True)
  record = {
    "path": str(path.absolute()),
    "run": f"{run.encoding}/{run.digest}" + ("" if paired else f"/seed={run.seed}"),
    "results": hashlib.sha256(text.encode()).hexdigest(),
  }
  return {**config, "init": record}, run


def is_command(init: str) -> bool:
  """Return whether `init` is the options of a command line, rather than a path."""
  return re.match(r"[\w.]+=", init) is not None and not Path(init).exists()


def path_of(config: Mapping[str, Any]) -> Path:
  """Return the folder of the run from which a run with a resolved config starts."""
  init = config["init"]
  return Path(init["path"]) / ("" if "/seed=" in init["run"] else f"seed={config['seed']}")


def check_same(folder: Path, config: Mapping[str, Any]) -> None:
  """Raise UserError if the run in a folder started from other weights than its parent has now."""
  before, now = None, config["init"]
  with contextlib.suppress(Broken):  # then it is written again
    before = (read_config(folder) or {}).get("init")
  if before and before["results"] != now["results"] and not config["rerun"]:
    raise UserError(
      f"{near(folder)} started from other weights than {near(path_of(config))} has now; put those "
      "back, or rerun=true trains the run afresh"
    )
