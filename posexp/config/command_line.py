"""What was typed: how it is read, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import contextlib
import itertools
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from posexp import config
from posexp.config import plugins
from posexp.errors import UserError

# What `explain` explains.
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


def parse(argv: Sequence[str]) -> Namespace:
  """Hydra's flags and the overrides, or a UserError where Hydra would print its usage."""
  parser = get_args_parser()

  def error(message: str) -> None:
    flag = message.partition(": ")[2].split()[:1]
    if message.startswith("unrecognized") and flag:
      message = f"{flag[0]}: no such flag; write options as option=value, as in encoding=rpr"
    raise UserError(message)

  parser.error = error
  args = parser.parse_intermixed_args(argv)
  if args.config_dir and not Path(args.config_dir).is_dir():
    raise UserError(f"--config-dir {args.config_dir}: there is no such folder")
  if args.cfg and args.multirun:
    raise UserError("--cfg shows the config of one run: leave -m out")
  if args.resolve and not (args.cfg or args.help):
    raise UserError("--resolve goes with --cfg or --help")
  for override in read([typed for typed in args.overrides if typed.startswith("plugins=")]):
    if override.is_sweep_override():
      raise UserError(f"{override.input_line}: write a list, plugins=[a.py,b.py]")
    files = override.value() or []
    plugins.load([str(files)] if not isinstance(files, list) else map(str, files))
  return args


def compose(args: Namespace, overrides: Sequence[str]) -> DictConfig:
  """The config that these overrides give, from where the flags say."""
  folders = [args.config_dir] if args.config_dir else []
  try:
    return config.compose(overrides, folders=folders, name=args.config_name or "train")
  except ValueError as error:  # what Hydra raises for a choice of null
    raise UserError(f"{' '.join(overrides)}: {error}") from error


def seeded(args: Namespace) -> Namespace:
  """The same with `seeds=n` as the sweep seed=0,…,n−1, which varies before all else does.

  A seed that is typed wins over the `seeds` of a file, and so does hydra.mode=RUN.

  Raises:
    UserError: `seeds` is no count, or stands beside a seed.
  """
  if args.hydra_help or args.cfg or args.info or args.shell_completion:
    return args
  given = {o.key_or_group: o for o in read(args.overrides)}
  typed = given.get("seeds")
  if typed and typed.is_sweep_override():
    raise UserError(f"{typed.input_line}: seeds is one number, of the seeds 0 to seeds − 1")
  try:
    cfg = compose(args, [o.input_line for o in given.values() if not o.is_sweep_override()])
    seeds = cfg.get("seeds")
  except CONFIG_ERRORS:
    return args
  count = config.build(config.Run, {"seeds": seeds}, where="").seeds
  single = not args.multirun and "hydra.mode" in given and cfg.hydra.mode is RunMode.RUN
  if count is None or (not typed and (single or "seed" in given)):
    return args
  params = cfg.hydra.sweeper.get("params") or {}
  other = given["seed"].input_line if "seed" in given else f"seed={params.get('seed')}"
  if "seed" in given or "seed" in params:
    raise UserError(f"seeds={count} stands for seeds 0 to {count - 1}, beside {other}; drop one")
  overrides = [*args.overrides, f"seed={','.join(map(str, range(count)))}"]
  return Namespace(**vars(args) | {"overrides": overrides, "multirun": True})


def common(args: Namespace) -> DictConfig:
  """The config that all jobs of a sweep have in common."""
  return compose(args, [o.input_line for o in read(args.overrides) if not o.is_sweep_override()])


def check(args: Namespace) -> list[list[str]] | None:
  """Refuses what Hydra would let pass; the overrides of each job of a sweep, if they can be told.

  Raises UserError for an option of an encoding that is not chosen: by this run, or by any job of
  this sweep. What Hydra finds out by itself is left to it, and to `explain`.
  """
  if args.hydra_help or args.cfg or args.info or args.shell_completion:
    return None
  overrides = read(args.overrides)
  try:
    cfg = common(args)
  except CONFIG_ERRORS:
    return None
  sweep = args.multirun or cfg.hydra.mode is RunMode.MULTIRUN
  if sweep:
    _check_folder(cfg)
    params = cfg.hydra.sweeper.get("params") or {}
    overrides = read([f"{key}={value}" for key, value in params.items()]) + overrides
  launcher = cfg.hydra.runtime.choices.get("hydra/launcher")
  if not sweep and launcher not in (None, "basic"):
    raise UserError(f"hydra/launcher={launcher} launches sweeps: add -m, or leave it out")
  given = {o.key_or_group: o for o in overrides if not o.is_hydra_override()}
  _check_experiments(args, given.get("experiment"))
  for o in given.values():
    if o.is_sweep_override() and not sweep:
      raise UserError(
        f"{o.input_line} is a sweep: add -m to run each value, or write "
        f"{o.get_key_element()}=[...] for a list"
      )
    if o.is_sweep_override() and (not o.is_discrete_sweep() or isinstance(o.value(), Glob)):
      return None
  values = {key: _values(o) for key, o in given.items()}
  _check_encodings(args, values, sweep)
  if not sweep or not cfg.hydra.sweeper._target_.endswith(".BasicSweeper"):
    return None
  return BasicSweeper.split_arguments(overrides, None)[0]


def _check_experiments(args: Namespace, given: Override | None) -> None:
  """Refuses a sweep over experiments that are sweeps: Hydra would take no notice of theirs."""
  if given is None or not given.is_sweep_override() or not given.is_discrete_sweep():
    return
  for name in _values(given) if not isinstance(given.value(), Glob) else []:
    cfg = compose(args, [f"experiment={name}"])
    varied = [*(cfg.hydra.sweeper.get("params") or {}), *["seeds"] * bool(cfg.get("seeds"))]
    if varied:
      raise UserError(
        f"{given.input_line}: experiment={name} is a sweep itself (over {', '.join(varied)}): run "
        "one experiment after another"
      )


def _check_encodings(args: Namespace, values: dict[str, list[str]], sweep: bool) -> None:
  sections = config.encodings_node().keys()
  keys = [key for key in values if key.partition(".")[0] in sections]
  if not keys:
    return
  groups = [key for key in ("encoding", "experiment") if key in values]
  choices = itertools.product(*([f"{key}={value}" for value in values[key]] for key in groups))
  try:
    read = list(dict.fromkeys(compose(args, choice).encoding for choice in choices))
  except CONFIG_ERRORS:
    return
  for key in keys:
    section = key.partition(".")[0]
    if section not in read and sweep:
      raise UserError(
        f"{key} is set, but no job of this sweep reads it (encoding={','.join(read)});"
        f" add {section} to them or drop {key}"
      )
    if section not in read:
      raise UserError(
        f"{key} is set, but encoding={read[0]}; choose encoding={section} or drop {key}"
      )


def _check_folder(cfg: DictConfig) -> None:
  try:
    Path(cfg.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"runs={cfg.runs}: cannot keep runs there: {error.strerror}") from error


def explain(error: Exception, args: Namespace) -> UserError:
  """One of CONFIG_ERRORS, which take several lines, in one sentence."""
  text = str(error)
  if isinstance(error, OverrideParseException):
    return _malformed(error)
  if isinstance(error, MissingConfigException) and "hydra/launcher/submitit_" in text:
    return UserError(
      "that launcher needs submitit, which is not installed: pip install 'posexp[slurm]'"
    )
  if isinstance(error, MissingConfigException) and error.options:
    group, _, name = error.missing_cfg_file.rpartition("/")
    return config.unknown_name(group, name, error.options)
  if isinstance(error, yaml.YAMLError):
    return UserError(f"a config file is not valid YAML: {' '.join(text.split())}")
  if match := re.match(r"Could not append to config. An item is already at '(.*)'", text):
    return UserError(f"+{match[1]}: there is an option {match[1]} already, leave the + out")
  match = re.match(r"Could not override '(.*)'", text)
  if match and isinstance(error.__cause__, ConfigKeyError | ConfigAttributeError):
    key = match[1]
    typed = next((o for o in args.overrides if o.startswith(f"{key}=")), "")
    return config.unknown_option(key, typed.partition("=")[2], _known_options(args))
  lines = [line for e in (error, error.__cause__) if e for line in str(e).splitlines()[:1]]
  return UserError(": ".join(line for line in lines if line))


def _malformed(error: OverrideParseException) -> UserError:
  key, equals, value = error.override.partition("=")
  if not equals:
    return UserError(f"{key}: write options as option=value, as in encoding=rpr")
  quoted = "'" + key + '="' + value + "\"'"
  return UserError(f"{error.override}: cannot be read; quote the value, as in {quoted}")


def _known_options(args: Namespace) -> list[str]:
  """The full keys of all options and sections, and the groups, under the choices that were made."""
  choices = [o for o in args.overrides if "." not in o.partition("=")[0] and "," not in o]
  for overrides in (choices, []):
    with contextlib.suppress(*CONFIG_ERRORS, UserError):
      cfg = compose(args, overrides)
      groups = [group for group in cfg.hydra.runtime.choices if "/" not in group]
      plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
      return list(dict.fromkeys([*_flat(OmegaConf.to_container(plain)), *groups]))
  return []


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[str]:
  for key, value in section.items():
    yield prefix + key
    if isinstance(value, dict):
      yield from _flat(value, f"{prefix}{key}.")


def read(lines: list[str]) -> list[Override]:
  try:
    return OverridesParser.create().parse_overrides(lines)
  except OverrideParseException as error:
    raise _malformed(error) from error


def _values(override: Override) -> list[str]:
  if override.is_sweep_override():
    return list(override.sweep_string_iterator())
  return [override.get_value_element_as_str()]
