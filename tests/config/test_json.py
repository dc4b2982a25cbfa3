"""What `--json` keeps of a command."""

import json
import sys
from pathlib import Path

import pytest
import run_folders

from posexp import report
from posexp.config import arguments
from posexp.errors import UserError


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)

  def run(work, *words):
    arguments.kept(words, work)
    return capsys.readouterr().out

  return run


def finds(words):
  print(*words)
  arguments.keep(mean=float("nan"), file=Path("x"), rows=[{"n": 3, 4: (True, None)}])


def test_numbers_are_kept_beside_what_is_printed_or_alone(typed):
  found = {"mean": None, "file": "x", "rows": [{"n": 3, "4": [True, None]}]}
  assert typed(finds, "a", "b") == "a b\n"
  assert typed(finds, "a", "--json", "all/f.json", "b") == "a b\nwritten: all/f.json\n"
  assert json.loads(Path("all/f.json").read_text()) == found
  assert json.loads(typed(finds, "--json=-")) == found
  assert json.loads(typed(lambda words: print("said"), "--json", "-")) == {"lines": ["said"]}
  with pytest.raises(UserError, match="--json: name a file, or - for standard output"):
    typed(finds, "--json")


def test_what_was_found_is_kept_where_a_command_ends_with_1(typed):
  with pytest.raises(SystemExit):
    typed(lambda words: finds(words) or sys.exit(1), "--json", "f.json")
  assert json.loads(Path("f.json").read_text())["file"] == "x"


def test_a_report_has_its_groups_and_sentences(typed):
  run_folders.sweep(Path("runs"), {"rpr": run_folders.A, "none": run_folders.B})
  said = typed(lambda words: report.report(report.arguments(words)), "--no-files", "--json", "-")
  (task,) = json.loads(said)["tasks"]
  assert (task["metric"], task["baseline"]) == ("test/accuracy", "none")
  assert task["answer"].startswith("rpr is first of 2 groups")
  assert [group["n"] for group in task["groups"]] == [6, 6]
  assert task["groups"][0]["p_holm"] < 0.001
