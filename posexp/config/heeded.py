"""Options of Hydra's own that posexp heeds, and what a config file may not say in them.

A file of configs may come from a stranger. Python's logging calls any function and opens any file
that its options name, a launcher's options run shell commands, and `_target_` makes an object of
any class, so without these rules such a file would be a program, which runs even when it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from posexp.config.checks import brief
from posexp.config.schema import flat
from posexp.errors import UserError

# With all that is in them.
HEEDED = (
  "hydra.mode", "hydra.searchpath", "hydra.verbose", "hydra.job_logging", "hydra.sweep.dir",
  "hydra.sweeper", "hydra.launcher",
)  # fmt: skip
GROUPS = "hydra/launcher", "hydra/sweeper", "hydra/sweeper/sampler", "hydra/job_logging"
# What logging may be told; values are numbers, switches, texts, or lists of these.
LOGGING = re.compile(
  r"version|disable_existing_loggers|root(\.(level|handlers))?|formatters\.[^.]+\.(format|datefmt)|"
  r"handlers\.[^.]+\.(class|level|formatter|stream)|loggers\..+\.(level|handlers|propagate)"
)
ONLY = {"class": ("logging.StreamHandler",), "stream": ("ext://sys.stdout", "ext://sys.stderr")}
CALLED = re.compile(r"[a-z]+://")  # how a text begins of which logging makes an object
COMMANDS = "setup", "python", "srun_args", "additional_parameters"  # of launchers
TARGETS = {  # the classes that may be made of Hydra's options
  "launcher._target_": r"hydra_plugins(\.\w+)+|hydra\._internal\.core_plugins\.\w+\.\w+",
  "sweeper._target_": r"hydra_plugins(\.\w+)+|hydra\._internal\.core_plugins\.\w+\.\w+",
  "sweeper.sampler._target_": r"optuna\.samplers\.\w+",
}


def check_heeded(key: str, where: str) -> None:
  """Raise UserError for an option of Hydra that would change nothing; `where` is how it is set."""
  section = key.partition("@")[0]
  if section.endswith("._target_") or not (
    section in GROUPS or any(f"{section}.".startswith(f"{each}.") for each in HEEDED)
  ):
    raise UserError(
      f"{where}: posexp does not heed this option of Hydra's; leave it out (it heeds "
      f"{', '.join([*HEEDED, *GROUPS])})"
    )


def check_composed(hydra: DictConfig, typed: Iterable[str]) -> None:
  """Check what files and the command line say together; `typed` are keys of the command line.

  Raises:
    UserError: logging would call a function or open a file, an object would be made that is no
      launcher, sweeper or sampler, or a file would run a command.
  """
  logging = OmegaConf.to_container(hydra.job_logging, resolve=True)
  for key, value in flat({"job_logging": logging}, "hydra.").items():
    name, values = key.rpartition(".")[2], value if isinstance(value, list) else [value]
    only = ONLY.get(name, values)
    heeded = LOGGING.fullmatch(key.removeprefix("hydra.job_logging."))
    if not heeded or any(each not in only or _is_made(each, name) for each in values):
      known = "of logging, posexp heeds levels, formats and handlers of logging.StreamHandler"
      raise UserError(f"{key}={brief(value)}: {known}; leave it out")
  for section in ("launcher", "sweeper"):
    for key, value in _targets(OmegaConf.to_container(hydra[section]), section):
      if key not in TARGETS or not re.fullmatch(TARGETS[key], str(value)):
        what = "posexp makes launchers, sweepers and samplers of Hydra's plugins, and nothing else"
        raise UserError(f"hydra.{key}={brief(value)}: {what}; leave it out")
  spelled = {".".join(key.split(".")[:3]) for key in typed}
  for key in (f"hydra.launcher.{name}" for name in COMMANDS):
    if OmegaConf.select(hydra, key.removeprefix("hydra.")) and key not in spelled:
      raise UserError(f"{key}: it can run commands, so a file cannot set it; type {key}=...")


def _is_made(value: Any, name: str) -> bool:
  """Return whether logging would make an object of a value, other than a stream."""
  text = isinstance(value, str) and name != "stream" and CALLED.match(value)
  return bool(text) or isinstance(value, Mapping | list)


def _targets(value: Any, key: str) -> Iterable[tuple[str, Any]]:
  """Yield the key and the value of each `_target_` in plain options, at any depth."""
  if isinstance(value, Mapping):
    for name, inner in value.items():
      if name == "_target_":
        yield f"{key}._target_", inner
      yield from _targets(inner, f"{key}.{name}")
  elif isinstance(value, list):
    for number, inner in enumerate(value):
      yield from _targets(inner, f"{key}[{number}]")
