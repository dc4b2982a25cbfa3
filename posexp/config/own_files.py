"""The YAML files of posexp itself, which every command reads before anything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

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
  first: [each for each in rows if each[0] not in (f"{TAGS}float", f"{TAGS}timestamp")]
  for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(f"{TAGS}float", FLOAT, [*"-+.0123456789"])


def mapping(text: str | Path) -> DictConfig:
  """Return what a file of posexp holds, given its text or its path."""
  if isinstance(text, Path):
    text = text.read_text(encoding="utf-8")
  return OmegaConf.create(yaml.load(text, Loader) or {})
