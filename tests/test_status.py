"""What a terminal shows while a command works, and how that line goes away."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from posexp.__main__ import COMMANDS
from posexp.status import doing

# What has been imported when the first character is written.
FIRST = """
import runpy, sys
write = sys.stderr.write
def first(text):
  sys.stderr.write = write
  write(f"{text} {sorted({'jax', 'flax', 'scipy'} & {*sys.modules})}\\n")
  sys.exit(0)
sys.stderr.write = first
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


def in_terminal(code, *argv):
  """What a script prints in a terminal of 40 columns."""
  own, other = pty.openpty()
  terminal = {"COLUMNS": "40", "TERM": "xterm"}
  env = os.environ | terminal | {"PYTHONPATH": str(Path(__file__).parents[1])}
  command = [sys.executable, "-c", code, *argv]
  with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env) as process:
    os.close(other)
    text = b""
    while part := _read(own):
      text += part
  os.close(own)
  return process.returncode, text.decode()


def _read(terminal):
  try:
    return os.read(terminal, 65_536)
  except OSError:  # how Linux says that the other side is closed
    return b""


def test_the_line_makes_way_for_whatever_is_printed():
  code = "import sys, time; from posexp.status import doing\n"
  code += "doing('first ' + 'x' * 99); doing('second'); time.sleep(1.2); print('out')\n"
  code += "print('more'); doing('third'); print('err', file=sys.stderr); doing('last'); doing('')"
  _, text = in_terminal(code)
  wipe = "\r\x1b[K"
  assert text == (
    f"{wipe}first {'x' * 33}{wipe}{wipe}second{wipe}second, 1 s{wipe}out\r\nmore\r\n"
    f"{wipe}third{wipe}err\r\n{wipe}last{wipe}"
  )


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
  doing("something")
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["train", "inspect", "report", "sync"])
def test_a_command_says_what_it_does_before_it_imports_what_takes_long(command):
  status, text = in_terminal(FIRST, f"posexp.{command}")
  assert (status, "[]" in text) == (0, True), text


def test_all_commands_are_listed(capsys):
  scripts = (Path(__file__).parents[1] / "pyproject.toml").read_text()
  assert {f"posexp-{name}" for name in COMMANDS} == {
    line.split(" ")[0] for line in scripts.splitlines() if line.startswith("posexp-")
  }
  modules = {file.stem for file in (Path(__file__).parents[1] / "posexp").glob("*.py")}
  assert modules >= {*COMMANDS}
