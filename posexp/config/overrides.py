"""Overrides and config files of the user's own, in which a text keeps the spelling that was typed.

Hydra's grammar and YAML 1.1 guess types: 2026_11 is the number 202611, 1.10 is 1.1, 1:30 is 90,
NULL is nothing and `on` is true. Here such a value is the text itself, which becomes a number or a
switch where an option asks for one. Experiments and encodings are global.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import (
  CommonTokenStream,
  InputStream,
  OverrideLexer,
  OverrideParser,
  create_functions,
)
from hydra.core.override_parser.overrides_visitor import HydraErrorListener, HydraOverrideVisitor
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from posexp import reading
from posexp.config import plugins
from posexp.config.checks import MISREAD, brief, quoted, show, typed
from posexp.config.composed import TAGS, Loader, mapping
from posexp.config.plugins import CONFIGS
from posexp.config.schema import flat, not_a_value
from posexp.errors import UserError, near

UNREADABLE = HydraException, ArithmeticError, RecursionError, ValueError
OPENED = {"[": "]", "{": "}"}
OF_TEXTS = "choice", "shuffle"  # functions whose arguments are values, and no bounds of numbers


class _Visitor(HydraOverrideVisitor):
  """A visitor that keeps the spelling of values where Hydra would give another number or text."""

  guessing = False  # in the arguments of a function such as range(...)

  def visitPrimitive(self, ctx: Any) -> Any:
    value, text = super().visitPrimitive(ctx), ctx.getText().strip()
    if self.guessing or isinstance(value, str | QuotedString):
      return value
    endless = isinstance(value, float) and not math.isfinite(value)
    return text if endless or show(value) != text else value

  def visitFunction(self, ctx: Any) -> Any:
    before, self.guessing = self.guessing, ctx.getChild(0).getText() not in OF_TEXTS
    try:
      return super().visitFunction(ctx)
    finally:
      self.guessing = before


_functions = functools.cache(create_functions)


def _parsed(line: str) -> Override:
  """Return the override of a line; raise one of UNREADABLE if it cannot be read."""
  lexer = OverrideLexer(InputStream(line))
  parser = OverrideParser(CommonTokenStream(lexer))
  for part in (lexer, parser):
    part.removeErrorListeners()
    part.addErrorListener(HydraErrorListener())
  override = _Visitor(_functions()).visit(parser.override())
  override.input_line = line
  source = line.partition("=")[2]
  if isinstance(override._value, str) and source != override._value == source.strip():
    override._value = QuotedString(source, Quote.double)  # with the blanks around it
  return override


def read(lines: Iterable[str]) -> list[Override]:
  """Parse override lines; return the overrides.

  A value that the grammar does not know is a text: `task.train=café (copie).csv`, `runs=a=b`.

  Raises:
    UserError: a line cannot be read, or can be read in more than one way.
  """
  return [_read(line) for line in lines]


@functools.lru_cache(maxsize=4096)  # a sweep has the same lines in each of its runs
def _read(line: str) -> Override:
  key, equals, value = line.partition("=")
  if not equals and not line.startswith("~"):
    raise UserError(
      f"{brief(key)}: write options as option=value, as in encoding=rpr, without blanks around = "
      "and commas"
    )
  if not key.strip("+~ "):
    raise UserError(f"{brief(line)}: a name is missing before =, as in encoding={value or 'rpr'}")
  parts = [part.strip() for part in value.split(",")]
  if len(parts) > 1 and "" in parts and not {*value} & {*"'\"[{("}:
    raise UserError(
      f"{brief(line)}: a value is missing at a comma; leave out blanks around commas, at which a "
      f"shell ends a word, or quote a text, as in {typed(key, value)}"
    )
  reasons = []
  for each in _readings(value):
    try:
      return _parsed(key + equals + each)
    except UNREADABLE as error:
      reasons.append(error)
  if not key.isascii():
    raise UserError(f"{brief(line)}: there is no such option; --help lists them") from reasons[0]
  if " while evaluating " in str(reasons[0]):  # choice()
    raise UserError(f"{brief(line)}: {reasons[0].__cause__}") from reasons[0]
  message = f"{brief(line)}: cannot be read; quote the value, as in {typed(key, value)}"
  if value[:1] in OPENED and value[-1:] in (",", ":"):
    way_out = quote(f"{key}={value} ...{OPENED[value[0]]}")
    message = f"{brief(line)}: a shell ends a word at a blank: quote the whole option, as {way_out}"
  elif value[:1] + value[-1:] == "[]":
    way_out = quote(f'{key}=["a b","c=d"]')
    message = f"{brief(line)}: cannot be read; quote texts in a list one by one, as in {way_out}"
  elif key.endswith("/seed"):
    run = quote(line)
    message = f"{run} is a run's folder: --again {run} trains it again, posexp.evaluate measures it"
  elif value[:1] == "{":
    message = f"{brief(line)}: cannot be read; write {{name: value}}, names without blanks and ="
  raise UserError(message) from reasons[0]


def _readings(value: str) -> Iterator[str]:
  """Yield the ways to read a value: as it is, then with its texts in quotes."""
  yield value
  inner = value.strip()
  listed = inner[:1] + inner[-1:] == "[]"  # a list, or a choice of lists
  lists = inner[1:-1].split("],[") if listed else [inner]
  lists = [[part.strip() for part in words.split(",")] for words in lists]
  parts = [part for words in lists for part in words]
  even = all(part.count(a) == part.count(b) for part in parts for a, b in ("[]", "{}", "()"))
  if (even or parts == [inner]) and not any(map(MISREAD.match, parts)):
    texts = [",".join(map(quoted, [value] if words == [inner] else words)) for words in lists]
    yield ",".join(f"[{text}]" for text in texts) if listed else texts[0]


def _check_global(key: Any, value: Any, file: str) -> None:
  """Raise UserError for a line of an experiment that Hydra would misunderstand."""
  section, dot, name = str(key).partition(".")
  if dot:
    raise UserError(f"{file}: {key} is {name} in the section {section}; indent it there")
  for line in value if key == "defaults" and isinstance(value, list) else ():
    for name, choice in line.items() if isinstance(line, Mapping) else ():
      if no_slash := re.match(r"override (?!/)(.*)", str(name)):
        way_out = f"- override /{no_slash[1]}: {choice}"
        raise UserError(f"{file}: a choice is overridden with a slash before its group: {way_out}")
  if key == "plugins":
    raise UserError(f"{file}: plugins are loaded by the command alone; type plugins=FILE")
  if key != "encoding" and isinstance(value, str | list) and (CONFIGS / section).is_dir():
    raise UserError(
      f"{file}: {key}: {value} stands under defaults, in a line - override /{key}: {value}"
    )


def _load_config(self: ConfigSource, config_path: str) -> ConfigResult:
  """Return the config of a file; in a user's own file texts keep their spelling.

  Raises:
    UserError: it is no mapping in UTF-8, or sets an option that would be ignored or misread.
    YAMLError: it is not valid YAML.
  """
  file = Path(self.path, f"{config_path.removesuffix('.yaml')}.yaml")
  try:
    text = (reading.read(file) or b"").decode()
    if self.provider == "main":
      config = mapping(text)
    else:
      config = _of_user(file, text, config_path.startswith("experiment/"))
  except (OSError, ValueError) as error:
    raise UserError(f"{near(file)}: a config file is a mapping in UTF-8: {error}") from error
  header = self._get_header_dict(text[:512])
  if config_path.startswith(("experiment/", "encoding/")):
    header["package"] = header.get("package") or "_global_"
  return ConfigResult(self.provider, self.full_path(), config, header)


def _of_user(file: Path, text: str, is_experiment: bool) -> Any:
  with contextlib.suppress(yaml.YAMLError):  # of which Hydra says where
    reading.check_yaml(text, LEVELS, reading.NODES)
  native = OmegaConf.load(file)
  spelled = yaml.load(text, _Loader)  # a subclass of SafeLoader
  if not isinstance(spelled, Mapping | None):
    raise ValueError("it is none")
  if is_experiment:
    for key, value in (spelled or {}).items():
      _check_global(key, value, near(file))
  if not spelled:
    return native
  config = OmegaConf.create(spelled)
  if "hydra" in native:
    if not OmegaConf.is_dict(native.hydra):
      raise UserError(f"{near(file)}: {not_a_value('hydra')}")
    params = OmegaConf.select(config, "hydra.sweeper.params")
    config.hydra = native.hydra
    if params:
      config.hydra.sweeper.params = params
    for key in flat(OmegaConf.to_container(native.hydra), "hydra."):
      check_hydra_option(key, f"{near(file)}, {key}")
  return config


LEVELS = 50  # of lists and mappings in a config


class _Loader(Loader):
  """A loader that keeps a text where its type is a guess."""


def _scalar(loader: Any, node: yaml.ScalarNode) -> Any:
  value = NATIVE[node.tag](loader, node)
  return value if node.value in ("", "~") or show(value) == node.value else node.value


NATIVE = {
  f"{TAGS}{kind}": Loader.yaml_constructors[f"{TAGS}{kind}"]
  for kind in ("int", "float", "bool", "null")
}
for tag in NATIVE:
  _Loader.add_constructor(tag, _scalar)


class PluginFolders(SearchPathPlugin):
  """The folders of configs that plugins bring, behind that of posexp."""

  def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
    """Add the folders to Hydra's search path.

    Raises:
      UserError: a file in one of them hides behind one of posexp's.
    """
    for plugin in plugins.found("config").values():
      for file in plugin.value.glob("**/*.yaml"):
        if (CONFIGS / (name := file.relative_to(plugin.value))).exists():
          raise UserError(f"{near(file)}: posexp has {name} already; choose another name")
    for folder in plugins.table("config", {}).values():
      search_path.append(PROVIDER, f"file://{folder}")


@functools.cache
def _taken() -> set[str]:
  """Return the names at the top level of a config, which no encoding can have."""
  return {*map(str, mapping(CONFIGS / "train.yaml")), *(entry.name for entry in CONFIGS.iterdir())}


PROVIDER = "posexp.plugins"  # marks the configs that Hydra is told about


def register() -> None:
  """Make Hydra read config files by `_load_config`, also those in the folders of plugins.

  Plugins of groups with config files are offered to Hydra as if each had one; those that were
  offered before are withdrawn first.

  Raises:
    UserError: the name of a plugin is taken.
  """
  for source in Plugins.instance().discover(ConfigSource):
    if source.scheme() == "file":
      source.load_config = _load_config
  Plugins.instance().register(PluginFolders)
  hydra = ConfigStore.instance()
  for group, row in plugins.GROUPS.items():
    nodes = hydra.repo.get(group, {})
    for file in [file for file, node in nodes.items() if node.provider == PROVIDER]:
      del nodes[file]
    for name, plugin in plugins.found(group).items() if row.config else ():
      if (CONFIGS / group / f"{name}.yaml").exists() or (group == "encoding" and name in _taken()):
        raise plugins.taken(plugin)
      node = row.config(name, plugin.options)
      hydra.store(name, node, group=group, package="_global_", provider=PROVIDER)
  folders = plugins.table("config", {}).values()
  for name in plugins.found("launcher"):
    if not any((folder / f"hydra/launcher/{name}.yaml").exists() for folder in folders):
      hydra.store(name, {}, "hydra/launcher", "hydra.launcher", PROVIDER)  # it has no options


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


def check_hydra_option(key: str, where: str) -> None:
  """Raise UserError for an option of Hydra that has no effect here; `where` says how it was set."""
  section = key.partition("@")[0]
  if section.endswith("._target_") or not (
    section in GROUPS or any(f"{section}.".startswith(f"{option}.") for option in HEEDED)
  ):
    raise UserError(
      f"{where}: posexp does not heed this option of Hydra's; leave it out (it heeds "
      f"{', '.join([*HEEDED, *GROUPS])})"
    )


def check_composed(hydra: DictConfig, typed: Iterable[str]) -> None:
  """Check the composed node `hydra`; `typed` are the keys given on the command line.

  Raises:
    UserError: logging would call a function or open a file, an object would be made that is no
      launcher, sweeper or sampler, or a file would run a command.
  """
  logging = OmegaConf.to_container(hydra.job_logging, resolve=True)
  for key, value in flat({"job_logging": logging}, "hydra.").items():
    name, values = key.rpartition(".")[2], value if isinstance(value, list) else [value]
    only = ONLY.get(name, values)
    heeded = LOGGING.fullmatch(key.removeprefix("hydra.job_logging."))
    # Logging makes an object of a mapping, a list or a text such as ext://..., other than a stream.
    made = [
      isinstance(each, Mapping | list)
      or (isinstance(each, str) and name != "stream" and CALLED.match(each))
      for each in values
    ]
    if not heeded or any(made) or any(each not in only for each in values):
      known = "of logging, posexp heeds levels, formats and handlers of logging.StreamHandler"
      raise UserError(f"{key}={brief(value)}: {known}; leave it out")
  for section in ("launcher", "sweeper"):
    for key, value in _targets(OmegaConf.to_container(hydra[section]), section):
      if key not in TARGETS or not re.fullmatch(TARGETS[key], str(value)):
        what = "posexp makes launchers, sweepers and samplers of Hydra's plugins, and nothing else"
        raise UserError(f"hydra.{key}={brief(value)}: {what}; leave it out")
  if (most := hydra.sweeper.get("max_batch_size")) is not None and _is_own(hydra.sweeper):
    raise UserError(
      f"hydra.sweeper.max_batch_size={most}: a sweep trains as many runs at once as workers= says; "
      f"type workers={most}"
    )
  spelled = {".".join(key.split(".")[:3]) for key in typed}
  for key in (f"hydra.launcher.{name}" for name in COMMANDS):
    if OmegaConf.select(hydra, key.removeprefix("hydra.")) and key not in spelled:
      raise UserError(f"{key}: it can run commands, so a file cannot set it; type {key}=...")


def _is_own(sweeper: DictConfig) -> bool:
  """Return whether posexp sweeps in the place of Hydra's own sweeper."""
  return str(sweeper.get("_target_")).endswith(".BasicSweeper")


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


def of_file(group: str, file: Path) -> str:
  """Return what to type for a file that was typed as the choice of a group; "" if it is no file."""
  if not file.name:
    return ""
  if file.exists() and file.parent.name == group:
    return f"hydra.searchpath=[{file.parent.parent}] {group}={file.stem}"
  if (plugin := file.with_suffix(".py")).exists() and group in plugins.GROUPS:
    return f"plugins={quote(str(plugin))} {group}={file.stem}"
  if group == "task" and file.is_file():
    kind = "language_modeling" if file.suffix == ".txt" else "text_classification"
    return f"task={kind} task.train={quote(str(file))}"
  return ""
