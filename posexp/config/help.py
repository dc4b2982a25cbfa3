"""What `--help` prints: examples, the choices, and every option with its value and its comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from posexp.config import plugins
from posexp.config.compose import options

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
SMALL = "_small"  # ends the names of experiments that are others in small
LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+):(?P<value>.*?)(?:\s+#\s(?P<comment>.*))?$")


def help_text(cfg: DictConfig) -> str:
  """The whole of it, for a composed config with its node `hydra`."""
  choices: dict[str, dict[str, Path]] = {}
  for folder in _folders(cfg):
    for file in sorted(folder.glob("*/*.yaml")):
      choices.setdefault(file.parent.name, {})[file.stem] = file
  for group in plugins.TABLES:
    choices[group] |= {name: plugin.file for name, plugin in plugins.found(group).items()}
  experiments = choices.pop("experiment", {})
  lines = [INTRODUCTION, "Choices:"]
  lines += [f"  {group}={'|'.join(names)}" for group, names in sorted(choices.items())]
  lines += ["", "Experiments, as in experiment=shaw_clip_k; NAME_small in 6 to 30 minutes:"]
  large = [
    n for n in experiments if not (n.endswith(SMALL) and n.removesuffix(SMALL) in experiments)
  ]
  width = max(map(len, large), default=0)
  lines += [f"  {name:<{width}}  {_question(experiments[name])}".rstrip() for name in large]
  return "\n".join([*lines, "", "Options, as in train.epochs=3, and their values:", *_options(cfg)])


def _question(file: Path) -> str:
  """The first comment of an experiment's file, which says what it asks; "" if there is none."""
  comments = re.findall(r"^# (?!@package)(.*)", file.read_text(encoding="utf-8"), re.MULTILINE)
  return comments[0] if comments else ""


def _options(cfg: DictConfig) -> Iterator[str]:
  comments = dict(_comments(cfg))
  plain = options(cfg)
  first = [
    key for key in ("encoding", "positions", "task", "model", "seed", "train") if key in plain
  ]
  for key in dict.fromkeys([*first, *plain]):
    for path, line in _paths(OmegaConf.to_yaml(OmegaConf.masked_copy(plain, key))):
      comment = comments.get(path)
      yield f"  {line:<26}  # {comment}" if comment else f"  {line}"


def _folders(cfg: DictConfig) -> list[Path]:
  return [Path(s.path) for s in cfg.hydra.runtime.config_sources if s.schema == "file"]


def _comments(cfg: DictConfig) -> Iterator[tuple[str, str]]:
  choices = {group: name for group, name in cfg.hydra.runtime.choices.items() if name}
  for folder in _folders(cfg):
    yield from _of_file(folder / f"{cfg.hydra.job.config_name}.yaml", "")
    for file in sorted(folder.glob("encoding/*.yaml")):
      yield from _of_file(file, "")
    for group, name in choices.items():
      yield from _of_file(folder / group / f"{name}.yaml", f"{group}.")


def _of_file(file: Path, prefix: str) -> Iterator[tuple[str, str]]:
  if not file.is_file():
    return
  text = file.read_text(encoding="utf-8")
  if prefix:
    for name in (yaml.safe_load(text) or {}).get("defaults", []):
      if isinstance(name, str) and name != "_self_":
        yield from _of_file(file.with_name(f"{name}.yaml"), prefix)
  for path, line in _paths(text):
    if comment := LINE.match(line)["comment"]:
      yield ("" if "# @package _global_" in text else prefix) + path, comment


def _paths(text: str) -> Iterator[tuple[str, str]]:
  """The lines of a YAML text that open a key, each with the dotted path of that key."""
  path: list[tuple[int, str]] = []
  for line in text.splitlines():
    if match := LINE.match(line):
      indent = len(match["indent"])
      path = [(depth, key) for depth, key in path if depth < indent] + [(indent, match["key"])]
      yield ".".join(key for _, key in path), line
