"""Which runs a sweep is made of: from what was typed to a config for each of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import (
  Glob,
  Override,
  OverrideType,
  QuotedString,
  Transformer,
)
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posexp.config import RunOptions, build, resolve
from posexp.config.checks import show
from posexp.config.command_line import check_heeded, compose, explained
from posexp.config.overrides import read
from posexp.errors import Unsuited, UserError
from posexp.runs import folder
from posexp.sweeps.sweep import DONE, Member

MOST = 10_000  # runs of a sweep
SINGLE = ("experiment", "seeds", "runs")  # a sweep takes one value of these


def members(args: Namespace, shared: DictConfig) -> list[Member] | None:
  """Return the runs of a sweep in their order; None if a single run was typed.

  `shared` is the config of what is typed without the options that have several values.

  Raises:
    UserError: the sweep is contradictory, or sets what none of its runs reads; the config of a run
      has a wrong value, or its data are missing.
  """
  columns = _columns(args, shared)
  if columns is None:
    return None
  if (runs := math.prod(map(len, columns.values()))) > MOST:
    most = max(columns, key=lambda key: len(columns[key]))
    raise UserError(
      f"these are {runs:,} runs, and a sweep has at most {MOST:,}: type fewer values of {most}"
    )
  varied = [key for key, column in columns.items() if len(column) > 1] or list(columns)
  config_of = _composer(columns)
  digests: dict[str, dict[str, str | None]] = {}
  first: dict[Path, Member] = {}
  found = []
  for number, values in enumerate(itertools.product(*columns.values()), start=1):
    job = dict(zip(columns, values, strict=True))
    config = resolve(cfg := config_of(job))
    options = " ".join(job[key] for key in varied)
    group = " ".join(job[key] for key in varied if key != "seed") or f"encoding={cfg.encoding}"
    found.append(member := Member(number, options, group, config))
    try:
      member.config, member.path = _identified(config, digests)
    except Unsuited as error:
      member.unsuited = str(error)
      continue
    if (same := first.setdefault(member.path, member)) is not member:
      member.duplicate_of = same
    if member.finished and not config["rerun"]:
      member.state = DONE
  if not first:
    raise UserError(found[0].unsuited)
  encodings = dict.fromkeys(member.config["encoding"] for member in found)
  check_heeded(read(column[0] for column in columns.values()), list(encodings))
  return found


def _composer(columns: dict[str, list[str]]) -> Callable[[dict[str, str]], DictConfig]:
  """Return the function from the overrides of a run, by their keys, to its config.

  Composing one takes Hydra a tenth of a second. So it composes one for each set of choices
  (`encoding=rpr`), in which values (`rpr.k=4`) are set as Hydra sets them, unless some of them do
  more than that. All runs set the same options: none is left over from the run before.
  """
  overrides = {o.input_line: o for column in columns.values() for o in read(column)}
  own = {field.name for field in dataclasses.fields(RunOptions)}
  values = {
    line: o for line, o in overrides.items() if "." in o.key_or_group or o.key_or_group in own
  }
  if any(o.type is not OverrideType.CHANGE or isinstance(o.value(), dict) for o in values.values()):
    values = {}
  composed: dict[tuple[str, ...], DictConfig] = {}

  def config_of(job: dict[str, str]) -> DictConfig:
    choices = tuple(line for line in job.values() if line not in values)
    if choices not in composed:
      with explained(read(job.values())):
        composed[choices] = compose(tuple(job.values()))
    for line in job.values():
      if line in values:
        OmegaConf.update(composed[choices], values[line].key_or_group, values[line].value())
    return composed[choices]

  return config_of


def _identified(
  config: dict[str, Any], digests: dict[str, dict[str, str | None]]
) -> tuple[dict[str, Any], Path]:
  """Return the config as it is read, of a run whose options are right and suit each other, and its
  folder.

  `digests` keeps those of the user's files, by the options of the task and the vectors of words.
  """
  from posexp.training.setup import Setup

  setup = Setup.of(config)
  setup.least_parameters()
  files = [setup.config["task"], setup.size.vectors]
  asked = json.dumps(files, sort_keys=True, default=str)
  if asked not in digests:
    digests[asked] = setup.data_digests()
  return setup.config, folder(setup.config, **digests[asked])


def _columns(args: Namespace, shared: DictConfig) -> dict[str, list[str]] | None:
  """Return the overrides that each option takes in turn; None if a single run was typed."""
  names = {o.key_or_group for o in args.overrides}
  seeds = build(RunOptions, {"seeds": shared.get("seeds")}, where="").seeds
  if "seed" in names and "seeds" not in names:
    seeds = None  # a seed that is typed wins over the seeds of a file
  asked = args.multirun or shared.hydra.runtime.choices["hydra/launcher"] != "basic"
  mode = shared.hydra.mode or (seeds and RunMode.MULTIRUN)
  params = shared.hydra.sweeper.get("params") or {}
  if not asked and mode is not RunMode.MULTIRUN:
    if params and mode is None:
      raise UserError("hydra.sweeper.params has no effect on one run: add -m for a sweep")
    return None
  of_file = read(f"{key}={value}" for key, value in params.items())
  columns = {o.get_key_element(): list(values(o)) for o in [*of_file, *args.overrides]}
  if seeds and seeds > MOST:
    raise UserError(f"seeds={seeds}: a sweep has at most {MOST:,} runs; type fewer seeds")
  if seeds and "seed" in columns:
    raise UserError(f"seeds={seeds} stands for seeds 0 to {seeds - 1}: drop it, or drop seed=...")
  if seeds:
    columns["seed"] = [f"seed={seed}" for seed in range(seeds)]
  return columns


def _spelled(value: Any) -> str:
  """Return a value of a sweep as one types it; what holds an interpolation, as Hydra does."""
  text = value.text if isinstance(value, QuotedString) else value
  plain = isinstance(text, str) and "${" not in text
  return show(text) if plain else Transformer.str(value)


def values(o: Override) -> Iterable[str]:
  """Return the overrides that one with several values stands for.

  Raises:
    UserError: it is no list of values, or the option takes one value.
  """
  if not o.is_sweep_override():
    return [o.input_line]
  if o.key_or_group in SINGLE:
    raise UserError(f"{o.input_line}: {o.key_or_group} takes one value; type a sweep for each")
  if not o.is_discrete_sweep() or isinstance(o.value(), Glob):
    raise UserError(f"{o.input_line}: not a list of values; write them out, or use range(...)")
  # One more than there may be: range(0,1e12) is never written out.
  try:
    values = list(itertools.islice(o.sweep_iterator(_spelled), MOST + 1))
  except (ArithmeticError, HydraException, ValueError) as error:
    raise UserError(f"{o.input_line}: not a range from one number to another") from error
  if not values:
    raise UserError(f"{o.input_line}: there is no value in it, so no run")
  return [f"{o.get_key_element()}={value}" for value in values]
