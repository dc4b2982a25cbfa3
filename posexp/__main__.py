"""The commands of posexp: `python -m posexp` lists them, and `python -m posexp train` is one."""

import ast
import runpy
import sys
from pathlib import Path

COMMANDS = (
  "train", "evaluate", "inspect", "check", "report", "compare", "translate", "generate", "parse",
  "clean", "sync",
)  # fmt: skip


def main() -> None:
  """Run a command with its arguments; without one, list the commands."""
  name = sys.argv[1] if sys.argv[1:] else "--help"
  if name in COMMANDS:
    del sys.argv[1]
    runpy.run_module(f"posexp.{name}", run_name="__main__", alter_sys=True)
  elif name in ("-h", "--help"):
    lines = ["usage: python -m posexp COMMAND ...; COMMAND --help says more", ""]
    for each in COMMANDS:
      module = ast.parse(Path(__file__).with_name(f"{each}.py").read_text("utf-8"))
      lines.append(f"  {each:<10} {' '.join(ast.get_docstring(module).split()).partition(':')[0]}")
    print("\n".join(lines))
  else:
    print(f"posexp: error: {name}: no such command, but {', '.join(COMMANDS)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  main()
