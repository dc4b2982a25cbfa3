"""The config files of posexp itself, and how a composed config becomes the plain one of a run."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from posexp.config import plugins
from posexp.config.checks import FOLDER, LARGEST, Count, Positive, between, brief
from posexp.config.plugins import CONFIGS
from posexp.config.schema import build, flat, unknown_option
from posexp.errors import UserError

SECTIONS = ("task", "model", "train")  # that each config has
# YAML 1.1 reads 1e-3 as a text and 2024-01-01 as a date; Hydra, as this loader, as number and text.
FLOAT = re.compile(
  r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?$"
  r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
TAGS = "tag:yaml.org,2002:"


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
  """A loader by libyaml, which takes a tenth of the time of PyYAML's own."""

  def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    """Return the mapping; a key that stands there twice is a mistake."""
    names = [key.value for key, _ in node.value]
    if len({*names}) < len(names):
      raise yaml.constructor.ConstructorError(None, None, f"a key twice: {names}", node.start_mark)
    return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
  first: [row for row in rows if row[0] not in (f"{TAGS}float", f"{TAGS}timestamp")]
  for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(f"{TAGS}float", FLOAT, [*"-+.0123456789"])


def mapping(text: str | Path) -> DictConfig:
  """Return the mapping in a YAML file of posexp, given its text or its path."""
  if isinstance(text, Path):
    text = text.read_text(encoding="utf-8")
  return OmegaConf.create(yaml.load(text, Loader) or {})


def _by(name: Any, values: Mapping[str, Any]) -> Any:
  """Return the entry of `values` for `name`, which is the value of another option.

  A file of options writes `vocab_size: ${by:${.tokenizer},{bpe:2048}}`: null for other tokenizers.
  """
  return {str(key): value for key, value in values.items()}.get(str(name))


def _named(kind: str, file: str | None, *others: Any) -> str:
  """Return the name of a task on a `file` of one's own: the name of the file without its ending or,
  if that is `train`, of its folder. Where the name is taken, or `others` stand beside it, the
  `kind` is the name.
  """
  name = "" if file is None or any(others) else file_name(str(file))
  taken = (CONFIGS / "task" / f"{name}.yaml").exists()
  return name if FOLDER.holds(name) and not taken else kind


def file_name(path: str) -> str:
  """Return the name by which a file of training data is told from others."""
  file = Path(path.removesuffix(".gz"))
  return file.parent.name if file.stem == "train" else file.stem


def _usual(epochs: int, steps: int | None, task: DictConfig) -> int | None:
  """Return the usual number of epochs; None for a file of one's own, unless `steps` are given.

  Such a file may have a few texts or millions, so training counts steps instead of epochs.
  """
  file, *others = (OmegaConf.select(task, key) for key in ("train", "hub", "package"))
  return None if file and not any(others) and steps is None else epochs


@functools.cache
def tracker_variables() -> dict[str, dict[str, str]]:
  """Return the environment variables that configs/tracker/*.yaml name, by the tracker and by the
  option that takes its default from the variable.
  """
  files = (CONFIGS / "tracker").glob("*.yaml")
  texts = {file.stem: file.read_text(encoding="utf-8") for file in files}
  return {name: dict(re.findall(r"(\w+): \$\{oc\.env:(\w+)", texts[name])) for name in texts}


def _variable(name: str, *default: Any) -> Any:
  """Return the value of an environment variable, of which "" stands for none; refuse one that could
  be a secret.

  A config is kept with its run and published with the run's records, and an experiment file may be
  a stranger's.
  """
  if not any(name in variables.values() for variables in tracker_variables().values()):
    raise ValueError(
      f"a config does not read the environment variable {brief(name)}, as its value would be kept "
      f'and published with the run; type the option, with "${brief(name)}" for the shell'
    )
  value = _ENV(name, *default)
  return default[0] if value == "" and default else value


_ENV = oc.env
with warnings.catch_warnings():
  warnings.simplefilter("ignore")  # OmegaConf 2.4 has another name for this, which 2.3 lacks
  OmegaConf.register_new_resolver("by", _by, replace=True)
  OmegaConf.register_new_resolver("named", _named, replace=True)
  OmegaConf.register_new_resolver("usual", _usual, replace=True)
  OmegaConf.register_new_resolver("oc.env", _variable, replace=True)


def encodings_node() -> DictConfig:
  """Return the default options of every encoding, of posexp's and of plugins, by its name.

  Hydra composes them below everything else, so that `rpr.k=2,4` has a place to go in the runs of a
  sweep whose encoding is another. To be read only.
  """
  return _node(*plugins.found("encoding").values())


@functools.lru_cache(maxsize=2)
def _node(*own: plugins.Plugin) -> DictConfig:
  node = OmegaConf.merge(*map(mapping, sorted((CONFIGS / "encoding").glob("*.yaml"))))
  del node["encoding"]
  return OmegaConf.merge(node, {plugin.name: plugin.options for plugin in own}) if own else node


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """The options at the top level of a config, which stand in no section."""

  seed: Annotated[int, between(0, LARGEST)] = 0
  init: str | None = None
  runs: str = "runs"
  rerun: bool = False
  seeds: Count | None = None
  until: Literal["told"] | None = None
  margin: Positive | None = None
  budget: str | None = None
  workers: int | str = 1
  distributed: Literal["auto", "off"] = "auto"
  distributed_timeout: Positive = 300.0
  labels: dict | None = None

  def __post_init__(self):
    for name in ("runs", "init"):
      if getattr(self, name) == "":
        raise ValueError(f"{name} must name a folder")
    if self.workers != "auto" and (isinstance(self.workers, str) or self.workers < 1):
      raise ValueError(f"workers must be auto or at least 1, not {self.workers}")


def resolve(cfg: DictConfig) -> dict[str, Any]:
  """Return the plain config of one run: interpolations resolved, other encodings' options left out.

  Raises:
    UserError: an option does not exist, or its value is missing, refers to one that does not exist,
      or cannot be.
  """
  return known_alone(resolved(cfg))


def resolved(cfg: DictConfig) -> dict[str, Any]:
  """Return the options of one run from a composed config, with interpolations resolved.

  Raises:
    UserError: a value is missing, refers to one that does not exist, or cannot be.
  """
  try:
    # The options of trackers stand in the section tracker, which may refer to sections of theirs.
    unread = {"hydra", *tracker_variables(), *encodings_node()} - {str(cfg.get("encoding"))}
    return {
      key: OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
      if OmegaConf.is_config(value := cfg[key])
      else value
      for key in cfg
      if key not in unread
    }
  except MissingMandatoryValue as error:
    raise UserError(f"{error.full_key} is missing: set {error.full_key}=...") from error
  except OmegaConfBaseException as error:
    raise UserError(f"{error.full_key}: {reason(error)}") from error


def known_alone(config: dict[str, Any]) -> dict[str, Any]:
  """Check the resolved options of a run, and return them as its plain config, without the options
  of sweeps.

  Raises:
    UserError: an option does not exist, or its value cannot be.
  """
  for key in SECTIONS:
    if not isinstance(config.get(key), Mapping):
      raise UserError(f"{key}={brief(config.get(key))}: it must be a section with options")
  fields = [field.name for field in dataclasses.fields(RunOptions)]
  known = {*SECTIONS, *fields, *encodings_node(), "encoding", "positions", "tracker", "plugins"}
  known.add("tune")
  if unknown := [key for key in config if key not in known]:
    value = config[unknown[0]]
    there = {key: config[key] for key in config if key in known}
    raise unknown_option(str(unknown[0]), value, *options_for(there, [config.get("encoding")]))
  given = {name: config[name] for name in fields if name in config}
  config |= dataclasses.asdict(build(RunOptions, given, where=""))
  # Not every shell expands ~ after runs=, and no folder should have that name.
  config |= {key: os.path.expanduser(config[key]) for key in ("runs", "init") if config[key]}
  for key in ("seeds", "budget", "tune", "workers", "plugins"):  # of a sweep, or read already
    config.pop(key, None)
  for key in ("labels", "until", "margin"):
    if not config[key]:
      del config[key]
  if used := plugins.record(config):
    config["plugins"] = used
  chosen = config.get("encoding")
  first = [key for key in ("encoding", chosen, "task", "model", "positions") if key in config]
  return {key: config[key] for key in dict.fromkeys([*first, *config])}


def no_such_option(
  key: str, value: Any, options: Sequence[str], others: Sequence[str]
) -> UserError:
  """Return the error for an option that a composed config lacks: as `unknown_option` does, if it is
  not of a tracker that was not chosen.
  """
  section = key.partition(".")[0]
  chosen = any(each.startswith(f"{section}.") for each in options)
  if tracker_variables().get(section) and not chosen:
    return UserError(
      f"{key}={brief(value)} is of tracker={section}: choose that tracker, or drop {key}"
    )
  return unknown_option(key, value, options, others)


def options_for(config: Mapping[str, Any], encodings: Iterable[Any]) -> tuple[list[str], list[str]]:
  """Return the full keys of the options that runs with these encodings have, and of all others."""
  encodings, every = [*encodings], {**OmegaConf.to_container(encodings_node()), **config}
  others = [str(name) for name in encodings_node() if name not in encodings]
  unread = {name: every.pop(name) for name in others}
  return [*flat(every)], [*flat(unread)]


def reason(error: OmegaConfBaseException) -> str:
  """Return why a value cannot be resolved, in OmegaConf's words without its prefix."""
  said = str(error).splitlines()[0]
  return re.sub(r'^\w+ raised while resolving interpolation: "?(.*?)"?$', r"\1", said)


def options(cfg: DictConfig) -> DictConfig:
  """Return a composed config without the node `hydra`."""
  return OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
