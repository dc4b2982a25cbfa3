"""The text of `posexp.train --help`: an index of sections, and the options of each section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from posexp.config import plugins
from posexp.config.arguments import within
from posexp.config.command_line import trainer
from posexp.config.composed import encodings_node, options
from posexp.config.schema import nearest, summary
from posexp.errors import UserError

LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+):(?P<value>.*?)(?:\s+#\s(?P<comment>.*))?$")


def help_text(cfg: DictConfig, asked: Sequence[str] = ()) -> str:
  """Return the help for a composed config with its node `hydra`: all of it, or some sections.

  Raises:
    UserError: there is no such section.
  """
  sources = cfg.hydra.runtime.config_sources
  folders = [Path(source.path) for source in sources if source.schema == "file"]
  choices: dict[str, dict[str, Path]] = {}
  for file in (file for folder in folders for file in sorted(folder.glob("*/*.yaml"))):
    choices.setdefault(file.parent.name, {}).setdefault(file.stem, file)
  experiments = choices.pop("experiment", {})
  comments = _comments([*(folder / "train.yaml" for folder in folders), *_files(cfg, choices)])
  for group in choices.keys() & plugins.GROUPS.keys():
    choices[group] |= {name: plugin.file for name, plugin in plugins.found(group).items()}
  sections = {group: [f"{group}=NAME:", *_listed(files)] for group, files in choices.items()}
  large = {name: file for name, file in experiments.items() if not name.endswith("_small")}
  what = "experiment=NAME, a sweep that is kept in a file; most NAME_small in 6 to 60 minutes:"
  sections["experiment"] = [what, *_listed(large)]
  values = OmegaConf.to_container(options(cfg))
  for path, line in paths(yaml.safe_dump(values, sort_keys=False)):
    section, comment = path.partition(".")[0], comments.get(path)
    section = section if section in sections or isinstance(values[section], dict) else "run"
    sections.setdefault(section, []).append(
      f"  {line:<26}  # {comment}" if comment else f"  {line}"
    )
  own = sorted(sections.keys() & encodings_node().keys())
  order = ["run", *sorted(sections.keys() - {"run", *own}), *own]
  for name in asked:
    if name not in sections:
      close = f"did you mean {near}? " if (near := nearest(name, sections)) else ""
      way_out = [f"{g}={name} --help {g} shows this {g}" for g in choices if name in choices[g]]
      way_out.append(f"{close}--help alone has an index")
      raise UserError(f"--help {name}: no such section; {way_out[0]}")
  index = f"""
sections, each by itself with --help SECTION, as in --help {own[0]}:
  {", ".join(order[: -len(own)])}
  of encodings: {", ".join(own)}"""
  begin = [] if asked else [trainer().format_help() + index]
  shown = ["\n".join(sections[name]) for name in asked or order]
  return within("\n\n".join([*begin, *shown]))


def _listed(files: Mapping[str, Path]) -> Iterator[str]:
  """Yield a line for each name, with what its file says of it."""
  width = max(map(len, files), default=0)
  for name, file in files.items():
    text = file.read_text(encoding="utf-8", errors="replace") if file.suffix == ".yaml" else ""
    yield f"  {name:<{width}}  {summary(text)}".rstrip()


def _files(cfg: DictConfig, choices: dict[str, dict[str, Path]]) -> Iterator[Path]:
  """Yield the YAML files of the typed choices, and of all encodings."""
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
  """Return the comment of each option, by its full key, from the first file that has one."""
  comments: dict[str, str] = {}
  for file in files:
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    whole = file.stem == "train" or "# @package _global_" in text
    for path, line in paths(text):
      if comment := LINE.match(line)["comment"]:
        comments.setdefault(path if whole else f"{file.parent.name}.{path}", comment)
  return comments


def paths(text: str) -> Iterator[tuple[str, str]]:
  """Yield the lines of a YAML text that open a key, each with the dotted path of that key."""
  path: list[tuple[int, str]] = []
  for line in text.splitlines():
    if match := LINE.match(line):
      indent = len(match["indent"])
      path = [(depth, key) for depth, key in path if depth < indent] + [(indent, match["key"])]
      yield ".".join(key for _, key in path), line
