"""What a terminal shows while a command works, and how that line goes away."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posexp import __main__
from posexp.status import begin, doing

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


def test_where_there_is_no_terminal_a_line_says_what_takes_long(capsys, monkeypatch):
  monkeypatch.setattr("posexp.status.PATIENCE", 0.05)
  begin("reading the options")
  assert capsys.readouterr() == ("", "")
  doing("loading JAX")
  time.sleep(0.2)
  assert capsys.readouterr() == ("", "posexp: loading JAX ...\n")
  begin("reading the options")
  doing("")
  time.sleep(0.2)
  assert capsys.readouterr() == ("", "")


def in_terminal(code, *argv):
  """What a script prints in a terminal of 40 columns."""
  own, other = pty.openpty()
  terminal = {"COLUMNS": "40", "TERM": "xterm"}
  env = os.environ | terminal | {"PYTHONPATH": str(Path(__file__).parents[2])}
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
  wipe = "\r\x1b[J"
  assert text == (
    f"{wipe}first {'x' * 33}{wipe}{wipe}second{wipe}second, 1 s{wipe}out\r\nmore\r\n"
    f"{wipe}third{wipe}err\r\n{wipe}last{wipe}"
  )


def screen(text):
  """The lines that a terminal shows after all that was written to it."""
  lines, row = [""], 0
  for part in re.findall(r"\x1b\[\d*[A-Z]|\r|\n|[^\x1b\r\n]+", text):
    if part == "\n":
      row += 1
      lines += [""] * (row == len(lines))
    elif part == "\x1b[J":
      lines[row:] = [""]
    elif part.startswith("\x1b"):
      row -= int(part[2:-1])
    elif part != "\r":
      lines[row] += part
  return lines


def test_lines_stay_below_what_is_printed_and_are_cut_to_the_terminal():
  code = "import os; from posexp.status import show; os.environ['LINES'] = '5'\n"
  code += "show('a\\nb\\nc'); print('said'); show('d\\n' + 'e' * 99); print('more')\n"
  first = f"{code}show('d\\n' + 'e' * 99)"
  assert screen(in_terminal(first)[1]) == ["said", "more", "d", "e" * 39]
  many = f"{code}show('f\\n' * 9)"
  assert screen(in_terminal(many)[1]) == ["said", "more", "f", "f", "f", "..."]


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_command_says_what_it_does_before_it_imports_what_takes_long(command):
  status, text = in_terminal(FIRST, f"posexp.{command}")
  assert (status, "[]" in text) == (0, True), text


def test_posexp_lists_its_commands_and_takes_one(monkeypatch, capsys):
  root = Path(__file__).parents[2]
  scripts = re.findall(r"^posexp-(\w+) = ", (root / "pyproject.toml").read_text(), re.MULTILINE)
  wings = ["context", "export", "generate", "judge", "leaderboard", "lengths", "parse", "score"]
  wings += ["sync", "translate"]
  assert {*scripts} == {*__main__.COMMANDS, *wings}
  for argv, status in ([], None), (["trian"], 2), (["report", "--help"], 0):
    monkeypatch.setattr(sys, "argv", ["posexp", *argv])
    with pytest.raises(SystemExit) if status is not None else contextlib.nullcontext() as end:
      __main__.main()
    assert (end and end.value.code) == status
  out, err = capsys.readouterr()
  listed, help_of_report = out.split("usage: python -m posexp.report")
  commands = re.findall(r"^  (\w+) +[A-Z]\w+", listed, re.MULTILINE)
  assert commands == [*__main__.COMMANDS, "plugins", *wings]
  assert "examples:" in help_of_report
  assert err.startswith("posexp: error: trian: no such command, but train, evaluate")
