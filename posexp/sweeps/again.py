"""A run trained again: from its folder, or from a row of records, back to a command line.

python -m posexp.train --again runs/mr/rpr/437f7d2f65d9/seed=0
python -m posexp.train --again records.parquet:3 rpr.k=8
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.types import Override

from posexp.config import plugins, resolve, show
from posexp.config.command_line import compose, typed_for
from posexp.config.overrides import read
from posexp.errors import UserError
from posexp.runs import BOOKKEEPING, FILES, Run, digest
from posexp.runs.identity import NEUTRAL, settings
from posexp.runs.records import recorded

MOVED = {*(f"task.{name}" for name in FILES), "model.vectors"}  # paths, which a digest replaces


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
  try:
    options = typed_for(run.config)
  except UserError as error:
    by = f"by {_trained_by(run)}: train it again with that one"
    raise UserError(f"{source} was trained with {error}, {by}") from error
  options |= _as_then(run, options)
  replaced = {o.key_or_group for o in given}
  gone = replaced | ({run.encoding} if "encoding" in replaced else set())
  kept = [f"{key}={options[key]}" for key in options if not {key, key.partition(".")[0]} & gone]
  place = [] if "runs" in replaced else ["runs=again"]
  words = [*kept, *place, *(o.input_line for o in given)]
  sweep = ["-m"] if any(o.is_sweep_override() for o in given) else []
  said = [f"this is python -m posexp.train {shlex.join([*sweep, *words])}"]
  if replaced <= {*BOOKKEEPING, *MOVED}:
    said += _differences(run, [*kept, *(o.input_line for o in given if not o.is_sweep_override())])
  print(*(f"posexp: {each}" for each in said), sep="\n", file=sys.stderr)
  return read(words)


def _as_then(run: Run, options: Mapping[str, str]) -> dict[str, str]:
  """Return options that came after a run, with the values by which it is the same run."""
  now = settings(resolve(compose([f"{key}={value}" for key, value in options.items()])))
  return {key: show(NEUTRAL[key][0]) for key in now if key in NEUTRAL and key not in run.settings}


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
