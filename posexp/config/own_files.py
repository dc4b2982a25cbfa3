"""The YAML files of posexp itself, which every command reads before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

_PLAIN = get_yaml_loader()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
  """The loader of OmegaConf by libyaml, which takes a tenth of the time."""

  yaml_implicit_resolvers = _PLAIN.yaml_implicit_resolvers
  yaml_constructors = _PLAIN.yaml_constructors

  def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    """Return the mapping; a key that stands there twice is a mistake."""
    names = [key.value for key, _ in node.value]
    if len({*names}) < len(names):
      raise yaml.constructor.ConstructorError(None, None, f"a key twice: {names}", node.start_mark)
    return super().construct_mapping(node, deep)


def mapping(text: str | Path) -> DictConfig:
  """Return what a file of posexp holds, given its text or its path."""
  if isinstance(text, Path):
    text = text.read_text(encoding="utf-8")
  return OmegaConf.create(yaml.load(text, _Loader) or {})
