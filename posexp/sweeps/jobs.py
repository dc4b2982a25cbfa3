"""Which runs a sweep is made of: from what was typed to a config for each of them."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
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
from omegaconf.errors import OmegaConfBaseException

from posexp.config import RunOptions, build, command_line, resolve
from posexp.config.checks import show
from posexp.config.command_line import check_heeded, compose, explained
from posexp.config.composed import known_alone, resolved
from posexp.config.overrides import read
from posexp.config.schema import flat
from posexp.errors import Unsuited, UserError
from posexp.runs import folder
from posexp.sweeps import tuning
from posexp.sweeps.sweep import DONE, Member
from posexp.sweeps.tuning import Space

MOST = 10_000  # runs of a sweep
MOST_SEEDS = 20  # of a sweep that ends by itself, where none are typed
KEPT = 64  # composed configs
SINGLE = ("experiment", "seeds", "runs")  # a sweep takes one value of these
# The six encodings that one should try first. Where a text is read forward, they are encodings that
# the leaderboard has as the best for some need, or as not told apart from it; where it is read from
# both sides, those of the findings on classification and translation. No positions are the floor.
SHORT_LIST = "short_list"
BOTH_SIDES = ("none", "sinusoidal", "learned", "rpr", "rope", "deberta")
CAUSAL = ("none", "rope", "alibi", "fire", "rpr", "fox")


def listed(typed: Sequence[Override], multirun: bool) -> list[Override]:
  """Return overrides with the names of encodings in the place of `encoding=short_list`.

  Raises:
    UserError: it is typed of one run, or what is typed beside it cannot be composed.
  """
  lines = (each.input_line.partition("=") for each in typed)
  chosen = {at: value.split(",") for at, (key, _, value) in enumerate(lines) if key == "encoding"}
  place = [at for at, names in chosen.items() if SHORT_LIST in names]
  if not place:
    return list(typed)
  if not multirun:
    raise UserError(f"encoding={SHORT_LIST} stands for six encodings: add -m for a sweep")
  rest = [each for at, each in enumerate(typed) if at not in place]
  decisive = ("task", "task.form")  # by which a text is read in one direction or in both
  tasks = [each for each in rest if each.is_sweep_override() and each.key_or_group in decisive]
  every = itertools.product(*([*each.sweep_string_iterator()] for each in tasks))
  lists = {
    _suited(
      [*rest, *read(f"{o.key_or_group}={value}" for o, value in zip(tasks, values, strict=True))]
    )
    for values in every
  }
  if len(lists) > 1:
    swept = " ".join(each.input_line for each in tasks)
    raise UserError(
      f"encoding={SHORT_LIST} stands for other encodings in parts of {swept}: sweep each alone"
    )
  (suited,) = lists
  names = dict.fromkeys(
    name for each in chosen[place[0]] for name in (suited if each == SHORT_LIST else [each])
  )
  return [*rest[: place[0]], *read([f"encoding={','.join(names)}"]), *rest[place[0] :]]


def _suited(typed: Sequence[Override]) -> tuple[str, ...]:
  """Return the list for a task, by an encoding that is defined for one direction alone."""
  from posexp.training.setup import Setup  # slow to import

  try:
    Setup.of(resolve(command_line.shared([*typed, *read(["encoding=fire"])]))).least_parameters()
  except Unsuited:
    return BOTH_SIDES
  return CAUSAL


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
  space = Space.taken(columns, shared)
  if (runs := math.prod(map(len, columns.values()))) > MOST:
    most = max(columns, key=lambda key: len(columns[key]))
    many = f"{runs:,}" if len(columns[most]) <= MOST else f"more than {MOST:,}"
    raise UserError(
      f"these are {many} runs, and a sweep has at most {MOST:,}: type fewer values of {most}"
    )
  varied = [key for key, column in columns.items() if len(column) > 1] or list(columns)
  _composed.cache_clear()  # files and plugins may have changed since the last command line
  _base.cache_clear()
  digests: dict[str, dict[str, str | None]] = {}
  first: dict[Path, Member] = {}
  every, typed = [], {}
  for number, values in enumerate(itertools.product(*columns.values()), start=1):
    job = dict(zip(columns, values, strict=True))
    config = _config(job)
    options = " ".join(job[key] for key in varied)
    group = " ".join(job[key] for key in varied if key != "seed")
    group = group or f"encoding={config['encoding']}"
    every.append(member := Member(number, options, group, config))
    typed[member] = job
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
    raise Unsuited(every[0].unsuited)
  encodings = dict.fromkeys(member.config["encoding"] for member in every)
  tuned = space.options if space else {}
  check_heeded(read(lines[0] for lines in [*columns.values(), *tuned.values()]), list(encodings))
  if space is None:
    return every
  every = [*_trials(space, columns, typed, digests), *every, *tuning.tuned_runs(every)]
  for number, member in enumerate(every, start=1):
    member.number = number
  for _ in tuning.choose(every):  # those whose trials have been trained before
    pass
  return every


def _trials(
  space: Space,
  columns: Mapping[str, list[str]],
  typed: Mapping[Member, dict[str, str]],
  digests: dict[str, dict[str, str | None]],
) -> list[Member]:
  """Return the trials for each group among the runs of a sweep, whose overrides are `typed`.

  Raises:
    UserError: they are too many, or an option that is to be tuned is wrong.
  """
  groups = {each.path.parent: each for each in typed if not (each.duplicate_of or each.unsuited)}
  points = {each: space.points(each.config, columns) for each in groups.values()}
  seeds = {each: space.seeds_of(each.config, own) for each, own in points.items()}
  if (runs := sum(len(own) * len(seeds[each]) for each, own in points.items())) > MOST:
    raise UserError(
      f"these are {runs:,} trials, and a sweep has at most {MOST:,}: try fewer values"
    )
  trials, known = [], set()
  for fixed, each in points.items():
    for point, seed in itertools.product(each, (f"seed={seed}" for seed in seeds[fixed])):
      config = _config({**typed[fixed], **point, "seed": seed})
      group = " ".join(["trial", fixed.group, *point.values()])
      member = Member(0, f"{group} {seed}", group, config, of=fixed.group)
      try:
        own = config | {"trial": fixed.path.parent.name}
        member.config, member.path = _identified(own, digests)
      except Unsuited as error:
        member.unsuited = str(error)
      if member.path not in known or member.unsuited:  # else a number that is typed in two ways
        trials.append(member)
        known.add(member.path)
      if not member.unsuited and member.finished and not config["rerun"]:
        member.state = DONE
  if all(len(each) < 2 for each in points.values()):
    raise UserError("tune.option=true: none of these encodings declares an alternative to try")
  return trials


def _config(job: Mapping[str, str]) -> dict[str, Any]:
  """Return the config of a run, from its overrides by their keys.

  Runs that differ in the seed alone share the resolved config, unless a value may refer to it.
  """
  cfg, known = _composed(tuple(line for key, line in job.items() if key != "seed"))
  if "seed" in job:
    seed = read([job["seed"]])[0].value()
    if known and type(seed) is int:
      return known_alone(copy.deepcopy(known) | {"seed": seed})
    OmegaConf.update(cfg, "seed", seed)
  config = resolved(cfg)
  texts = map(str, flat(OmegaConf.to_container(cfg)).values())
  if not any("${" in text and "seed" in text for text in texts):
    known.update(copy.deepcopy(config))
  return known_alone(config)


@functools.lru_cache(maxsize=KEPT)
def _composed(lines: tuple[str, ...]) -> tuple[DictConfig, dict[str, Any]]:
  """Return a config, and an empty dictionary for its resolved form.

  Composing takes Hydra a quarter of a second. So runs with the same choices share it.
  """
  given = read(lines)
  with explained(given):
    cfg = copy.deepcopy(_base(tuple(o.input_line for o in given if not _is_value(o))))
    try:
      for o in filter(_is_value, given):
        OmegaConf.update(cfg, o.key_or_group, o.value())
    except OmegaConfBaseException:
      cfg = compose(lines)  # which says what is wrong
  return cfg, {}


@functools.lru_cache(maxsize=KEPT)
def _base(lines: tuple[str, ...]) -> DictConfig:
  """Return the config of choices alone, to be copied."""
  return compose(lines)


def _is_value(o: Override) -> bool:
  """Return whether an override gives an option a value, on which no choice of a file depends."""
  option = "." in o.key_or_group and "/" not in o.key_or_group and not o.is_hydra_override()
  return option and o.type is OverrideType.CHANGE and not isinstance(o.value(), dict)


def _identified(
  config: dict[str, Any], digests: dict[str, dict[str, str | None]]
) -> tuple[dict[str, Any], Path]:
  """Return a run's config as its dataclasses read it, and its folder, once its options are known to
  suit.

  `digests` caches the digests of the user's files, by the options of the task and the file of word
  vectors.
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
  values_of = {name: shared.get(name) for name in ("seeds", "until", "margin", "budget")}
  given = build(RunOptions, values_of, where="")
  seeds = given.seeds
  for name in ("margin", "budget"):
    if not given.until and getattr(given, name) is not None:
      raise UserError(f"{name}={getattr(given, name)} has no effect without until=told: add that")
  if "seed" in names and "seeds" not in names:
    seeds = None  # a seed that is typed wins over the seeds of a file
  elif given.until and not seeds:
    seeds = MOST_SEEDS
  asked = args.multirun or shared.hydra.runtime.choices["hydra/launcher"] != "basic"
  mode = shared.hydra.mode or (seeds and RunMode.MULTIRUN)
  params = shared.hydra.sweeper.get("params") or {}
  if not asked and mode is not RunMode.MULTIRUN:
    if params and mode is None:
      raise UserError("hydra.sweeper.params has no effect on one run: add -m for a sweep")
    if given.until:
      raise UserError("until=told has no effect on one run: add -m, and leave seed out")
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
  """Return a value of a sweep as it is typed; one with an interpolation, as Hydra spells it."""
  text = value.text if isinstance(value, QuotedString) else value
  plain = isinstance(text, str) and "${" not in text
  return show(text) if plain else Transformer.str(value)


def values(o: Override) -> Iterable[str]:
  """Return the overrides, each with one value, that an override with several stands for.

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
