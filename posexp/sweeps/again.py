"""A run trained again: from its folder, or from a row of records, back to a command line.

python -m posexp.train --again runs/mr/rpr/437f7d2f65d9/seed=0
python -m posexp.train --again records.parquet:3 rpr.k=8
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override

from posexp.config import CONFIGS, plugins, resolve, show
from posexp.config.command_line import compose
from posexp.config.overrides import read
from posexp.errors import UserError, counted
from posexp.runs import BOOKKEEPING, FILES, Run, digest, read_run
from posexp.runs.identity import settings
from posexp.runs.records import held, read_records

SECTIONS = ("task", "model", "positions", "train")  # besides that of the encoding
MOVED = {*(f"task.{name}" for name in FILES), "model.vectors"}  # paths, which a digest replaces
SHOWN = 3  # rows that an error names


def again(source: str, given: Sequence[Override]) -> list[Override]:
  """Return the overrides that stand for a recorded run, then those that are `given` beside it.

  The run goes to the folder `again`, unless `runs` is given. The whole command line is printed on
  standard error, with notes on what of the run cannot be reproduced.

  Raises:
    UserError: there is no such run, it needs a plugin that is not loaded, or it was trained with an
      option that this version does not have.
  """
  run = recorded(source)
  for group in ("encoding", "task"):
    plugins.check(group, run.config)
  replaced = {o.key_or_group for o in given}
  lines = {key: f"{key}={value}" for key, value in _options(source, run).items()}
  kept = [line for key, line in lines.items() if not {key, _group(key, run)} & replaced]
  place = [] if "runs" in replaced else ["runs=again"]
  words = [*kept, *place, *(o.input_line for o in given)]
  sweep = ["-m"] if any(o.is_sweep_override() for o in given) else []
  said = [f"this is python -m posexp.train {shlex.join([*sweep, *words])}"]
  if replaced <= {*BOOKKEEPING, *MOVED}:
    said += _differences(run, [*kept, *(o.input_line for o in given if not o.is_sweep_override())])
  print(*(f"posexp: {each}" for each in said), sep="\n", file=sys.stderr)
  return read(words)


def recorded(source: str) -> Run:
  """Return the run in a folder, or in a row of records, FILE:ROW with rows counted from 0.

  Raises:
    UserError: there is none.
  """
  name, colon, row = source.rpartition(":")
  if Path(source).is_dir() or not (file := held(Path(name if colon else source))):
    return read_run(source)
  runs = read_records(file)
  if not row.isdecimal() or int(row) >= len(runs):
    rows = (f"{file}:{i} is {run.path.relative_to(file)}" for i, run in enumerate(runs[:SHOWN]))
    raise UserError(f"{source}: name one of {counted(len(runs), 'row')}: {', '.join(rows)}")
  return runs[int(row)]


def _options(source: str, run: Run) -> dict[str, str]:
  """Return the values of the options by which a run differs from the defaults, as one types them.

  Raises:
    UserError: an option does not exist any more.
  """
  config, (task, kind) = run.config, (run.task, run.config["task"]["kind"])
  named = (CONFIGS / "task" / f"{task}.yaml").exists()
  found = {"encoding": config["encoding"], "task": task if named else kind}
  if (backbone := run.settings["model.backbone"]) != "transformer":
    found["model"] = backbone
  composed = resolve(compose([f"{key}={value}" for key, value in found.items()]))
  for section in (*SECTIONS, config["encoding"]):
    defaults = composed.get(section) or {}
    for key, value in (config.get(section) or {}).items():
      if key not in defaults:
        raise UserError(
          f"{source} was trained with {section}.{key}={show(value)}, an option that this version "
          f"does not have, by {_trained_by(run)}: train it again with that one"
        )
      if value != defaults[key]:
        found[f"{section}.{key}"] = show(value)
  return found | ({"seed": show(run.seed)} if run.seed else {})


def _group(key: str, run: Run) -> str:
  """Return the group whose choice replaces an option: "encoding" for rpr.k, else its section."""
  section = key.partition(".")[0]
  return "encoding" if section == run.encoding else section


def _trained_by(run: Run) -> str:
  """Return the versions that trained a run, as its summary has them."""
  return (run.summary or {}).get("versions", "a version that did not record its name")


def _differences(run: Run, words: Sequence[str]) -> Iterator[str]:
  """Yield notes on what of a run these overrides cannot reproduce."""
  from posexp.training.setup import Setup
  from posexp.training.versions import versions

  setup = Setup.of(resolve(compose(words)))
  if run.digest not in (None, digest(setup.config, **setup.data_digests())):
    options = settings(setup.config).items()
    new = [f"{key}={show(value)}" for key, value in options if key not in run.settings]
    why = f"it did not have {', '.join(new)}" if new else "its data, or how it is trained, changed"
    yield f"note: this is another run than {run.digest}: {why}"
  if (before := _trained_by(run)) != (now := versions()):
    yield f"note: it was trained by {before}, and is now by {now}: the last digits may differ"
