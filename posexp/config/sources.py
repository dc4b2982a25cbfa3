"""Config files of the user's own: experiments are global, and texts stay as they are written.

YAML 1.1 guesses types: 2026_11 is the number 202611, 1:30 is 90, `on` is true. In these files such
a value is a text, which becomes a number or a switch where an option asks for one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from posexp import reading
from posexp.config.checks import show
from posexp.config.heeded import check_heeded
from posexp.config.own_files import TAGS, Loader, mapping
from posexp.config.plugins import CONFIGS, folders
from posexp.config.schema import flat, not_a_value
from posexp.errors import UserError, near


def _check_global(key: Any, value: Any, file: str) -> None:
  """Raise UserError for a line of an experiment that Hydra would not take as it is meant."""
  section, dot, name = str(key).partition(".")
  if dot:
    raise UserError(f"{file}: {key} is {name} in the section {section}; indent it there")
  if key == "plugins":
    raise UserError(f"{file}: plugins are loaded by the command alone; type plugins=FILE")
  if key != "encoding" and isinstance(value, str | list) and (CONFIGS / section).is_dir():
    raise UserError(
      f"{file}: {key}: {value} stands under defaults, in a line - override /{key}: {value}"
    )


def _load_config(self: ConfigSource, config_path: str) -> ConfigResult:
  """Return the config of a file in a folder that Hydra reads; those of posexp hold what they say.

  Raises:
    UserError: it is no mapping in UTF-8, or holds what is not heeded.
    YAMLError: it is not valid YAML.
  """
  file = Path(self.path, f"{config_path.removesuffix('.yaml')}.yaml")
  try:
    text = (reading.read(file) or b"").decode()
    if self.provider == "main":
      found = mapping(text)
    else:
      found = _of_user(file, text, config_path.startswith("experiment/"))
  except (OSError, ValueError) as error:
    raise UserError(f"{near(file)}: a config file is a mapping in UTF-8: {error}") from error
  header = self._get_header_dict(text[:512])
  if config_path.startswith("experiment/"):
    header["package"] = header.get("package") or "_global_"
  return ConfigResult(self.provider, self.full_path(), found, header)


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
  found = OmegaConf.create(spelled)
  if "hydra" in native:
    if not OmegaConf.is_dict(native.hydra):
      raise UserError(f"{near(file)}: {not_a_value('hydra')}")
    params = OmegaConf.select(found, "hydra.sweeper.params")
    found.hydra = native.hydra
    if params:
      found.hydra.sweeper.params = params
    for key in flat(OmegaConf.to_container(native.hydra), "hydra."):
      check_heeded(key, f"{near(file)}, {key}")
  return found


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
    """Add the folders to Hydra's search path."""
    for folder in folders():
      search_path.append("posexp.plugins", f"file://{folder}")


def register() -> None:
  """Have Hydra read files by this module, in the folders of plugins, too."""
  for source in Plugins.instance().discover(ConfigSource):
    if source.scheme() == "file":
      source.load_config = _load_config
  Plugins.instance().register(PluginFolders)
