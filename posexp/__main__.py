"""The commands of posexp: `python -m posexp` lists them, and `python -m posexp train` is one."""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

COMMANDS = (
  "train", "evaluate", "inspect", "check", "report", "compare", "clean",
)  # fmt: skip


def main() -> None:
  """Run a command with its arguments; without one, list the commands."""
  if sys.argv[1:] and sys.argv[1] in COMMANDS:
    name = sys.argv.pop(1)
    runpy.run_module(f"posexp.{name}", run_name="__main__", alter_sys=True)
  else:
    from posexp.config.arguments import run

    run(run_other)


def run_other(argv: list[str]) -> None:
  """Run a command that is a plugin, or list the commands or the plugins.

  The words `plugins=FILE` are read here, and a command of another package does not see them.

  Raises:
    UserError: there is no such command, or a line of a file is wrong.
  """
  from posexp import __version__
  from posexp.config import plugins
  from posexp.config.arguments import named_plugins
  from posexp.errors import UserError

  files, words = named_plugins(argv)
  name, *rest = words or ["--help"]
  if name in {entry.name for entry in plugins.entries("command")[0]}:  # it reads them itself
    rest = [*argv]
    rest.remove(name)
  else:
    plugins.load(files)
  commands = plugins.table("command", {"plugins": print_plugins})
  if name == "--version":
    print(f"posexp {__version__}")
  elif name in ("-h", "--help"):
    print_commands(commands)
  elif name in commands:
    sys.argv[1:] = rest
    with plugins.explained({}):
      commands[name]()
  else:
    raise UserError(f"{name}: no such command, but {', '.join((*COMMANDS, *commands))}")


def print_commands(others: Mapping[str, Callable]) -> None:
  """Print each command with the first sentence that its module or its function says of it."""
  said = {}
  for name in COMMANDS:
    module = ast.parse(Path(__file__).with_name(f"{name}.py").read_text("utf-8"))
    said[name] = ast.get_docstring(module)
  said |= {name: inspect.getdoc(command) or "" for name, command in others.items()}
  print("usage: python -m posexp COMMAND ...; COMMAND --help says more\n")
  for name, text in said.items():
    first = " ".join(text.partition("\n\n")[0].split())
    print(f"  {name:<12} {first.partition(':')[0].rstrip('.')}".rstrip())


def print_plugins() -> None:
  """List the plugins that are installed or named, and where they come from."""
  from posexp.config import plugins
  from posexp.errors import near

  plugins_there = [plugin for group in plugins.GROUPS for plugin in plugins.found(group).values()]
  for each in plugins_there:
    print(f"{each.group:<10} {each.name:<20} {each.package or near(each.file)}")
  if not plugins_there:
    print("no plugins: install a package that brings some, or name a file by plugins=FILE")


if __name__ == "__main__":
  main()
