"""Which runs a sweep is made of: from what was typed to a config for each of them."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from hydra.types import RunMode
from omegaconf import DictConfig

from posexp.config import RunOptions, build, encodings_node, plugins, resolve
from posexp.config.command_line import check_sweep, compose, read
from posexp.errors import UserError
from posexp.runs import folder
from posexp.sweeps.sweep import DONE, WAITING, Member, key_of, shown


def members(args: Namespace, shared: DictConfig) -> list[Member] | None:
  """The runs of a sweep in their order; None if a single run was typed.

  `shared` is the config of what is typed less its sweeps. It and one config for each run, of which
  seeds need none of their own, are all that is composed.

  Raises:
    UserError: the sweep is contradictory, or sets what none of its runs reads; the config of a run
      has a wrong value, or its data are missing.
  """
  typed = read(args.overrides)
  values = _values(args, typed, shared)
  if values is None:
    return None
  sweeper = shared.hydra.runtime.choices["hydra/sweeper"]
  if sweeper != "basic":
    raise UserError(f"hydra/sweeper={sweeper}: posexp sweeps over values that are written out")
  jobs = list(itertools.product(*values.values()))
  differs = [len(column) > 1 for column in values.values()]
  composed = {_without_seed([o.input_line for o in typed if not o.is_sweep_override()]): shared}
  digests: dict[str, str | None] = {}  # of the user's own files, by the options of the task
  first: dict[Path, Member] = {}
  found = []
  for number, job in enumerate(jobs, start=1):
    rest = _without_seed(job)
    if rest not in composed:
      composed[rest] = compose(args, rest)
    if "seed" in values:
      composed[rest].seed = job[list(values).index("seed")].partition("=")[2]
    config = resolve(composed[rest])
    path = _folder(config, digests)
    seen = [option for option, varies in zip(job, differs, strict=True) if varies]
    unread = encodings_node().keys() - {config["encoding"]}
    read_too = [option for option in seen if key_of(option).partition(".")[0] not in unread]
    alone = f"encoding={config['encoding']}"
    member = Member(
      number=number,
      options=seen or job,
      name=shown(read_too) or alone,
      group=shown(_without_seed(read_too)) or alone,
      config=config,
      path=path,
      duplicate_of=first.get(path),
    )
    member.state = DONE if member.finished and not config["rerun"] else WAITING
    first.setdefault(path, member)
    found.append(member)
  _check_experiments(typed, composed)
  encodings = dict.fromkeys(member.config["encoding"] for member in found)
  check_sweep(read(column[0] for column in values.values()), list(encodings))
  return found


def _without_seed(options: Sequence[str]) -> tuple[str, ...]:
  return tuple(option for option in options if not option.startswith("seed="))


def _folder(config: dict[str, Any], digests: dict[str, str | None]) -> Path:
  from posexp.tasks import make_task

  task = json.dumps(config["task"], sort_keys=True, default=str)
  if task not in digests:
    digests[task] = make_task(config).data_digest()
  return folder(config, digests[task])


def _values(
  args: Namespace, typed: Sequence[Override], shared: DictConfig
) -> dict[str, list[str]] | None:
  """The overrides that each key of a sweep takes in turn; None if a single run was typed."""
  seeds = _seeds(args, shared, {o.key_or_group: o for o in typed})
  if not (seeds or args.multirun or shared.hydra.mode is RunMode.MULTIRUN):
    return None
  params = shared.hydra.sweeper.get("params") or {}
  values = {}
  for o in [*read(f"{key}={value}" for key, value in params.items()), *typed]:
    values[o.get_key_element()] = _of_one_key(o, shared)
  if seeds:
    values["seed"] = [f"seed={seed}" for seed in range(seeds)]
  return values


def _of_one_key(o: Override, shared: DictConfig) -> list[str]:
  if not o.is_sweep_override():
    return [o.input_line]
  if not o.is_discrete_sweep():
    raise UserError(f"{o.input_line}: not a list of values; write them out, or use range(...)")
  if isinstance(o.value(), Glob):
    sources = [source for source in shared.hydra.runtime.config_sources if source.schema == "file"]
    files = [f for s in sources for f in sorted(Path(s.path, o.key_or_group).glob("*.yaml"))]
    names = dict.fromkeys([*(file.stem for file in files), *plugins.found(o.key_or_group)])
    found = o.value().filter(list(names))
    if not found:
      raise UserError(f"{o.input_line}: there is no such {o.key_or_group}")
  else:
    found = o.sweep_string_iterator()
  return [f"{o.get_key_element()}={value}" for value in found]


def _seeds(args: Namespace, shared: DictConfig, typed: Mapping[str, Override]) -> int | None:
  """How many seeds each config is trained with, if `seeds` says so.

  A seed that is typed wins over the `seeds` of a file, and so does hydra.mode=RUN.

  Raises:
    UserError: `seeds` is no count, or stands beside a seed.
  """
  if "seeds" in typed and typed["seeds"].is_sweep_override():
    raise UserError(
      f"{typed['seeds'].input_line}: seeds is one number, of the seeds 0 to seeds − 1"
    )
  count = build(RunOptions, {"seeds": shared.get("seeds")}, where="").seeds
  single = "hydra.mode" in typed and not args.multirun and shared.hydra.mode is RunMode.RUN
  if count is None or ("seeds" not in typed and (single or "seed" in typed)):
    return None
  params = shared.hydra.sweeper.get("params") or {}
  if "seed" in typed or "seed" in params:
    other = typed["seed"].input_line if "seed" in typed else f"seed={params['seed']}"
    raise UserError(f"seeds={count} stands for seeds 0 to {count - 1}, beside {other}; drop one")
  return count


def _check_experiments(typed: Sequence[Override], composed: Mapping[Any, DictConfig]) -> None:
  """Refuses a sweep over experiments that are sweeps: their own values would not be heeded."""
  swept = [o for o in typed if o.key_or_group == "experiment" and o.is_sweep_override()]
  for options, cfg in composed.items() if swept else ():
    varied = [*(cfg.hydra.sweeper.get("params") or {}), *["seeds"] * bool(cfg.get("seeds"))]
    name = next((option for option in options if key_of(option) == "experiment"), None)
    if name and varied:
      raise UserError(
        f"{swept[0].input_line}: {name} is a sweep itself (over {', '.join(varied)}): run one "
        "experiment after another"
      )
