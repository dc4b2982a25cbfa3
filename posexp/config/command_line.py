"""The command line of `posexp.train`: how it is read, and one sentence for whatever is wrong."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
  ConfigAttributeError,
  ConfigKeyError,
  InterpolationResolutionError,
  OmegaConfBaseException,
)

from posexp import config
from posexp.config import plugins
from posexp.config.arguments import Parser, load_plugins
from posexp.config.checks import NAME, brief, quoted, show, typed
from posexp.config.composed import SECTIONS, no_such_option, options_for, reason, tracker_variables
from posexp.config.overrides import check_composed, check_hydra_option, of_file, read, register
from posexp.config.schema import flat, nearest, not_a_value, suggestion, summary
from posexp.errors import UserError

ABOUT = """\
Trains a small Transformer with one of several positional encodings, on equal terms, and measures
it. The same command again goes on where it was stopped, or shows what came of it.

examples:
  python -m posexp.train encoding=rpr rpr.k=4                       # one run
  python -m posexp.train -m encoding=none,sinusoidal,rpr seed=0,1,2 # nine, one after another
  python -m posexp.train -m encoding=rpr rpr.k=2,4,8 seeds=5        # fifteen, with means at the end
  python -m posexp.train -m encoding=rpr rpr.k=2,4,8 workers=auto   # a process for each device
  python -m posexp.train experiment=shaw_clip_k                     # a sweep that is kept in a file
  python -m posexp.train encoding=rpr --cfg job                     # only the config of a run
"""
USAGE = """python -m posexp.train [-m] [--cfg job] [--again RUN] [OPTION=VALUE ...]
       python -m posexp.train --help [SECTION ...]"""

TUNE = "tune"  # the section of options of tuned sweeps
ADDITIONAL = "hydra.launcher.additional_parameters"
NULLABLE = "labels", ADDITIONAL, "hydra.sweeper.params", "hydra.sweeper.sampler"
# Groups of configs, of which one is chosen.
GROUPS = {entry.name for entry in config.CONFIGS.iterdir() if entry.is_dir()}
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


def trainer() -> Parser:
  """Return the parser of `posexp.train`."""
  options = "options and their values; --help lists them"
  parser = Parser("train", ABOUT, options, keeps=False, add_help=False, usage=USAGE)
  option = parser.add_argument
  option("-h", "--help", action="store_true", help="print this, or the sections that are named")
  option("-m", "--multirun", action="store_true", help="train each combination of several values")
  option("--cfg", "-c", choices=["job"], help="print the config of the run and train nothing")
  shells = "print what makes a shell complete options, as in install=bash (also zsh, fish)"
  option("--shell-completion", "-sc", metavar="install=SHELL", help=shells)
  again = "train a run once more, into again/: its folder, or FILE:ROW, a row of its records"
  option("--again", metavar="RUN", help=again)
  return parser


def parse(argv: Sequence[str], parser: Parser | None = None) -> Namespace:
  """Parse flags and overrides, which may be mixed, and load plugins; return both.

  With `--help`, words without a value are `sections`, those of which help is asked for.

  Raises:
    UserError: a flag does not exist or does not go with another, or an override cannot be read.
  """
  argv = load_plugins(argv)
  for word, after in zip(argv, [*argv, "DIR"][1:], strict=True):
    if word.partition("=")[0] in ("--config-dir", "-cd"):
      place = word.partition("=")[2] or after
      raise UserError(f"{word}: write hydra.searchpath=[file://{place}] for configs of your own")
  used = parser or trainer()
  args, unknown = used.parse_known_intermixed_args(argv)
  words = [word for word in args.overrides if "=" not in word and not word.startswith("~")]
  args.sections = words if parser is None and args.help else []
  flags = [flag for action in used._actions for flag in action.option_strings]
  for word in [*unknown, *(word for word in words if word not in args.sections)]:
    if close := nearest(word.partition("=")[0], flags, cutoff=0.8):
      raise UserError(f"{brief(word)}: no such flag; did you mean {close}?")
    what = f"{brief(word)}:{' no such flag;' * word.startswith('-')} write options as option=value"
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    groups = {file.stem: file.parent.name for file in sorted(config.CONFIGS.glob("*/*.yaml"))}
    if name in groups:
      raise UserError(f"{what}, as in {groups[name]}={name}")
    known = _known_options(read(line for line in args.overrides if "=" in line))
    if name in known[0]:
      raise UserError(f"{what}, as in {name}=...")
    raise UserError(f"{what}, as in encoding=rpr; {suggestion(name, *known)}")
  if parser is None and args.cfg and args.multirun:
    raise UserError("--cfg shows the config of one run: leave -m out")
  args.overrides = read(word for word in args.overrides if word not in args.sections)
  last = {o.key_or_group: o for o in args.overrides}
  for o in args.overrides:
    if o.key_or_group.startswith("hydra"):
      check_hydra_option(o.key_or_group, brief(o.input_line))
    counts = last[o.key_or_group].input_line
    if o.is_sweep_override() and counts != o.input_line:
      print(
        f"posexp: of {brief(o.input_line)} and {brief(counts)} the last counts", file=sys.stderr
      )
    value = None if o.is_delete() else o.value()
    tried = o.key_or_group.removeprefix(f"{TUNE}.")
    if o.key_or_group != tried not in ("seeds", "option") and not o.is_sweep_override():
      raise UserError(
        f"{brief(o.input_line)}: one value leaves nothing to choose; type several, as in "
        f"{TUNE}.{tried}=A,B, or {tried}={brief(value)}"
      )
    if o.key_or_group == "seeds" and (o.is_sweep_override() or isinstance(value, list)):
      these = o.input_line.partition("=")[2].strip("[]")
      raise UserError(
        f"{brief(o.input_line)}: seeds is how many there are, as seeds=3 for the seeds 0 to 2; for "
        f"these, write -m seed={these}"
      )
  return args


@contextlib.contextmanager
def hydra_with_configs() -> Iterator[Any]:
  """Set Hydra up with the configs of posexp and of plugins; yield what composes configs."""
  global _stored
  register()
  if (encodings := config.encodings_node()) is not _stored:  # these options are in no single file
    ConfigStore.instance().store("encodings", encodings)
    _stored = encodings
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(?s).*Hydra 1.5")  # which 1.3 cannot do without
    known = hydra.initialize_config_dir(str(config.CONFIGS), "posexp", version_base="1.3")
  with known:
    yield GlobalHydra.instance().hydra


_stored: DictConfig | None = None  # what Hydra was given of the encodings


def complete(asked: str) -> None:
  """Print completions for a shell or, asked for `install=bash`, the code that sets them up.

  Raises:
    UserError: Hydra does not know the shell.
  """
  with hydra_with_configs() as main:
    try:
      main.shell_completion("train", [asked])
    except ValueError as error:
      raise UserError(f"--shell-completion {asked}: {' '.join(str(error).split())}") from error


def compose(overrides: Sequence[str] = ()) -> DictConfig:
  """Compose `configs/train.yaml` and the overrides; return the config, with Hydra's own node
  `hydra`.

  Raises what Hydra raises, and UserError if a choice is no name.
  """
  given = read(overrides)
  own = TUNE, "tracker", "positions", "hydra.launcher", "hydra.sweeper", "hydra.job_logging"
  encodings = map(str, config.encodings_node())
  sections = {*SECTIONS, *own, *NULLABLE, *tracker_variables(), *encodings}  # of options
  _check_given(given, sections)
  # What is in this mapping are options of sbatch, which no config lists.
  added = ["++" * o.key_or_group.startswith(ADDITIONAL) + o.input_line for o in given]
  pairs = zip(given, added, strict=True)
  lines = [_choice(o) if o.key_or_group in GROUPS else line for o, line in pairs]
  try:
    with warnings.catch_warnings(), hydra_with_configs():
      warnings.filterwarnings("error", "(?s).*is not available", UserWarning)
      cfg = hydra.compose("train", lines, return_hydra_config=True)
  except UserWarning as warning:
    missing = str(warning).partition("path=")[2].removesuffix(" is not available.")
    raise UserError(f"hydra.searchpath={missing}: there is no such folder") from warning
  except ValueError as error:  # what Hydra raises for a choice of null
    null = [o.input_line for o in given if o.value() is None] or overrides
    raise UserError(f"{brief(' '.join(null))}: {error}") from error
  for key in sections - {*NULLABLE}:
    if (node := OmegaConf.select(cfg, key, default=cfg)) is not cfg and not OmegaConf.is_dict(node):
      raise UserError(f"{key}={brief(node)}: {not_a_value(key)}")
  check_composed(cfg.hydra, [o.key_or_group for o in given])
  for o in given:
    chosen = o.key_or_group in GROUPS or o.is_hydra_override()
    if not (chosen or o.is_delete() or o.is_sweep_override()):
      OmegaConf.update(cfg, o.key_or_group, o.value())  # in the spelling that Hydra has lost
  return cfg


def _choices(group: str) -> dict[str, str]:
  """Return the summary of each file in a group by its name, without folders of the user's own."""
  own = sorted((config.CONFIGS / group).glob("*.yaml"))
  others = plugins.found(group) if group in plugins.GROUPS else ()
  said = {file.stem: summary(file.read_text(encoding="utf-8")) for file in own}
  return said | dict.fromkeys(others, "")


def _choice_named(name: Any) -> str:
  """Return the choice of this name as one types it, as in "encoding=rope"; "" if there is none."""
  groups = ("encoding", "task", "model", "experiment")
  named = (group for group in groups if isinstance(name, str) and name in _choices(group))
  return next((f"{group}={name}" for group in named), "")


def _check_given(given: Sequence[Override], sections: set[str]) -> None:
  """Raise UserError for a name that is longer than a file's can be, and for a value that is given
  to one of the whole `sections` of options.
  """
  for o in given:
    if len(o.key_or_group.encode(errors="replace")) > NAME:
      raise UserError(f"{brief(o.input_line)}: there is no such option; --help lists them")
    group = o.key_or_group in GROUPS or "/" in o.key_or_group
    if group and not o.is_delete() and len(show(o.value()).encode(errors="replace")) > NAME:
      raise config.unknown_name(o.key_or_group, o.value(), [*_choices(o.key_or_group)])
  for o in given:
    key = o.key_or_group
    if key in sections - GROUPS and not o.is_delete() and not isinstance(o.value(), dict):
      inside = [each.input_line for each in given if each.key_or_group.startswith(f"{key}.")]
      if inside or o.value() is not None:
        if inside:
          way_out = f", as in {brief(inside[0])}"
        else:
          way_out = f"; {suggestion(f'{key}.?', *_known_options(e for e in given if e is not o))}"
        raise UserError(f"{brief(o.input_line)}: {not_a_value(key)}{way_out}")


def _choice(o: Override) -> str:
  """Return the line that chooses a file of a group, whose name may look like a number."""
  value = o.value()
  none = value is None and o.key_or_group == "experiment"
  several = isinstance(value, list) and o.key_or_group == "tracker"
  if none or several or o.type is not OverrideType.CHANGE or o.is_sweep_override():
    return o.input_line
  if isinstance(value, list | dict | None):
    raise UserError(
      f"{brief(o.input_line)}: choose one {o.key_or_group} by its name; -m with a list of names, "
      f"{o.key_or_group}=A,B, runs each"
    )
  return f"{o.get_key_element()}={quoted(show(value).strip())}"


def shared(overrides: Iterable[Override]) -> DictConfig:
  """Return the config of a single run, or the part that all runs of a sweep share."""
  given = [o for o in overrides if not o.is_sweep_override()]
  for o in given:
    section, dot, _ = o.key_or_group.partition(".")
    falls_back = section in config.encodings_node() or o.key_or_group.startswith("hydra.sweeper.")
    if o.is_delete() and not (dot and falls_back):
      raise UserError(f"{o.input_line}: options can be changed, and not removed; leave it out")
  return compose([o.input_line for o in given])


def config_of_one(argv: Sequence[str], parser: Parser) -> dict[str, Any]:
  """Parse the command line of a command about one encoding; return the config that would train it.

  Raises:
    UserError: an option does not exist or does not suit.
  """
  args = parse(argv, parser)
  for o in args.overrides:
    if o.is_sweep_override():
      raise UserError(
        f"{o.input_line}: this command takes one value of an option; run it for each, or write "
        f"{o.get_key_element()}=[...] for a list"
      )
  with explained(args.overrides):
    cfg = shared(args.overrides)
    check_single(args.overrides, cfg)
    return config.resolve(cfg)


def check_single(overrides: Sequence[Override], cfg: DictConfig) -> None:
  """Raise UserError for an override that has no effect on a single run with this config."""
  for o in overrides:
    if o.is_sweep_override():
      text, several = o.input_line.partition("=")[2], o.value()
      if isinstance(several, ChoiceSweep) and several.simple_form:
        text = ",".join(str(getattr(each, "text", each)) for each in several.list)
      others = (
        f"{o.get_key_element()}=[...] for a list, or {typed(o.key_or_group, text)} for a text"
      )
      others = "" if o.key_or_group in GROUPS else f", or write {others}"
      raise UserError(f"{o.input_line} is a sweep: add -m to run each value{others}")
    of_sweeps = o.key_or_group.startswith(("hydra.sweep.", "hydra.sweeper.", f"{TUNE}."))
    if of_sweeps or (o.key_or_group == "workers" and o.value() not in (1, None)):
      raise UserError(f"{o.input_line} has no effect on one run: add -m for a sweep, or drop it")
  check_heeded(overrides, [str(cfg.get("encoding"))])


def check_heeded(overrides: Sequence[Override], encodings: Sequence[str]) -> None:
  """Raise UserError for options of an encoding that no run has, or epochs beside train.steps."""
  for o in overrides:
    key, section = o.key_or_group, o.key_or_group.partition(".")[0]
    if section in config.encodings_node() and section not in encodings:
      raise UserError(
        f"{key} is set, but encoding={','.join(encodings)}; choose encoding={section} or drop {key}"
      )
  typed = {o.key_or_group: o.value() for o in overrides}
  for key in ("train.epochs", "train.least_epochs", "train.least_steps"):
    if key in typed and typed.get("train.steps") is not None:
      raise UserError(f"{key} has no effect beside train.steps: drop one of them")


@contextlib.contextmanager
def explained(overrides: Sequence[Override]) -> Iterator[None]:
  """Turn errors of Hydra, OmegaConf and YAML, which take several lines, into UserErrors."""
  try:
    yield
  except CONFIG_ERRORS as error:
    raise _explain(error, overrides) from error


def _explain(error: Exception, overrides: Sequence[Override]) -> UserError:
  one_of_several = "'tracker/" in str(error)  # for which Hydra does not say what there is
  if isinstance(error, MissingConfigException) and (error.options or one_of_several):
    group, name = re.match(r"((?:hydra/)?[^/]+)/(.*)", error.missing_cfg_file).groups()
    if way_out := of_file(group, Path(name)):
      return UserError(f"{group}={name}: a file is chosen as in {way_out}")
    if meant := _choice_named(name):
      return UserError(f"{group}={name}: no such {group}; did you mean {meant}?")
    said = _choices(group)
    return config.unknown_name(group, name, error.options or [*said], said)
  if isinstance(error, yaml.YAMLError):
    return UserError(f"a config file is not valid YAML: {' '.join(str(error).split())}")
  if isinstance(error, InterpolationResolutionError):
    return UserError(": ".join(filter(None, [error.full_key, reason(error)])))
  match = re.match(r"Could not override '(.*)'", str(error))
  if match and isinstance(error.__cause__, ConfigKeyError | ConfigAttributeError):
    value = next((o.value() for o in overrides if o.key_or_group == match[1]), "")
    known, unread = _known_options([o for o in overrides if o.key_or_group != match[1]])
    elsewhere = any(key.rpartition(".")[2] == match[1] for key in known)
    if (meant := _choice_named(value)) and "." not in match[1] and not elsewhere:
      return UserError(f"{match[1]}={value}: there is no option {match[1]}; did you mean {meant}?")
    return no_such_option(match[1], value, known, unread)
  told = (str(e).splitlines() for e in (error, error.__cause__) if e)
  lines = [" ".join(each[: 1 + each[0].endswith(":")]) for each in told if each]
  message = ": ".join(line for line in lines if line)
  added = [o.input_line for o in overrides if o.input_line.startswith("+")]
  plus = message.startswith(("Could not append", "Multiple values", "force-add"))
  return UserError(f"{added[0]}: leave out the +" if plus and added else message)


def _known_options(overrides: Iterable[Override]) -> tuple[list[str], list[str]]:
  """Return the full keys of all options under the typed choices, with the groups of choices; and
  the keys of the encodings that were not chosen.
  """
  choices = [
    o for o in overrides if "." not in o.key_or_group or o.key_or_group == "hydra.searchpath"
  ]
  with contextlib.suppress(*CONFIG_ERRORS, UserError):
    cfg = shared(choices)
    groups = [group for group in cfg.hydra.runtime.choices if "/" not in group]
    of_launcher = flat(OmegaConf.to_container(cfg.hydra.launcher), "hydra.launcher.")
    swept = " ".join(o.input_line for o in choices if o.key_or_group == "encoding")
    every = OmegaConf.to_container(config.options(cfg))
    known, others = options_for(every, [cfg.encoding, *re.findall(r"\w+", swept)])
    return [*known, *of_launcher, *groups], others
  return [], []
