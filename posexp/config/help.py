"""What `--help` prints: examples, the choices, and every option with its value and its comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from posexp.config import plugins
from posexp.config.composed import encodings_node, options

INTRODUCTION = """\
posexp trains a small Transformer with one of several positional encodings, on equal terms, and
measures it. The same command again goes on where it was stopped, or shows what came of it.

  python -m posexp.train encoding=rpr rpr.k=4                         one run
  python -m posexp.train -m encoding=none,sinusoidal,rpr seed=0,1,2   nine, one after another
  python -m posexp.train -m encoding=rpr rpr.k=2,4,8 seeds=5          fifteen, with means at the end
  python -m posexp.train -m encoding=rpr rpr.k=2,4,8 workers=auto     a process for each device
  python -m posexp.train experiment=shaw_clip_k                       a sweep that is kept in a file
  python -m posexp.train encoding=rpr --cfg job                       only the config of a run
"""
LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+):(?P<value>.*?)(?:\s+#\s(?P<comment>.*))?$")


def help_text(cfg: DictConfig) -> str:
  """The whole of it, for a composed config with its node `hydra`."""
  sources = cfg.hydra.runtime.config_sources
  folders = [Path(source.path) for source in sources if source.schema == "file"]
  choices: dict[str, dict[str, Path]] = {}
  for file in (file for folder in folders for file in sorted(folder.glob("*/*.yaml"))):
    choices.setdefault(file.parent.name, {}).setdefault(file.stem, file)
  experiments = choices.pop("experiment", {})
  comments = _comments([*(folder / "train.yaml" for folder in folders), *_files(cfg, choices)])
  for group in plugins.TABLES:
    choices[group] |= {name: plugin.file for name, plugin in plugins.found(group).items()}
  lines = [INTRODUCTION, "Choices:"]
  lines += [f"  {group}={'|'.join(names)}" for group, names in sorted(choices.items())]
  lines += ["", "Experiments, as in experiment=shaw_clip_k; NAME_small in 6 to 60 minutes:"]
  large = [name for name in experiments if not name.endswith("_small")]
  width = max(map(len, large), default=0)
  lines += [f"  {name:<{width}}  {_question(experiments[name])}".rstrip() for name in large]
  lines += ["", "Options, as in train.epochs=3, and their values:"]
  values = OmegaConf.to_container(options(cfg))
  ordered = sorted(values, key=lambda key: key in encodings_node())  # their options last
  for path, line in _paths(yaml.safe_dump({key: values[key] for key in ordered}, sort_keys=False)):
    comment = comments.get(path)
    lines.append(f"  {line:<26}  # {comment}" if comment else f"  {line}")
  return "\n".join(lines)


def _question(file: Path) -> str:
  """The first comment of an experiment's file, which says what it asks; "" if there is none."""
  comments = re.findall(r"^# (?!@package)(.*)", file.read_text(encoding="utf-8"), re.MULTILINE)
  return comments[0] if comments else ""


def _files(cfg: DictConfig, choices: dict[str, dict[str, Path]]) -> Iterator[Path]:
  """The YAML files of the choices that were made, and those of all encodings."""
  for group, name in cfg.hydra.runtime.choices.items():
    if name in choices.get(group, {}):
      yield from _with_bases(choices[group][name])
  yield from choices["encoding"].values()


def _with_bases(file: Path) -> Iterator[Path]:
  yield file
  for name in OmegaConf.load(file).get("defaults", ()):
    if isinstance(name, str) and name != "_self_":
      yield from _with_bases(file.with_name(f"{name}.yaml"))


def _comments(files: Iterable[Path]) -> dict[str, str]:
  """The comment of each option, by its full key, from the first file that has one."""
  found: dict[str, str] = {}
  for file in files:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = file.stem == "train" or "# @package _global_" in text
    for path, line in _paths(text):
      if comment := LINE.match(line)["comment"]:
        found.setdefault(path if whole else f"{file.parent.name}.{path}", comment)
  return found


def _paths(text: str) -> Iterator[tuple[str, str]]:
  """The lines of a YAML text that open a key, each with the dotted path of that key."""
  path: list[tuple[int, str]] = []
  for line in text.splitlines():
    if match := LINE.match(line):
      indent = len(match["indent"])
      path = [(depth, key) for depth, key in path if depth < indent] + [(indent, match["key"])]
      yield ".".join(key for _, key in path), line
