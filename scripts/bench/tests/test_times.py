"""The times of commands: that they are of the commands that they name, and of runs that differ."""

import csv

import commands
import pytest

from posexp.errors import UserError
from posexp.runs import read_runs


def test_a_command_is_called_and_timed(tmp_path):
  spent = commands.call(["posexp.judge", "--version"], tmp_path)
  assert 0 < spent.first < spent.wall
  assert 0 < spent.cpu < 10 < spent.memory
  with pytest.raises(UserError, match=r"posexp\.judge nothing.* fails"):
    commands.call(["posexp.judge", "nothing", "nowhere"], tmp_path)


def test_runs_are_multiplied_and_each_command_has_a_row(tmp_path, monkeypatch):
  chosen = [each for each in commands.COMMANDS if each[1] in ("train --help", "report MANY")]
  monkeypatch.setattr(commands, "COMMANDS", chosen)
  commands.main(["--out", str(tmp_path), "--rounds", "1", "--runs", "6"])
  runs, notes = read_runs([tmp_path / "work" / "many"])
  assert (len(runs), notes, len({run.path for run in runs})) == (6, [], 6)
  with (tmp_path / "commands.csv").open() as file:
    rows = [*csv.DictReader(file)]
  assert [row["command"] for row in rows] == [command for _, command in chosen]
