"""Runs kept in one file: the report of the file is that of their folders."""

import dataclasses
import re

import pyarrow
import pytest
from pyarrow import parquet
from run_folders import report, sweep, write

from posexp.errors import UserError
from posexp.reporting.paired_predictions import Examples, moved
from posexp.runs import read_runs
from posexp.runs.metrics import score
from posexp.runs.predictions import write_predictions
from posexp.runs.records import NAME, read_records, write_records

SCORES = {"rpr": [0.91, 0.93, 0.90], ("rpr", 4): [0.8, 0.7, 0.9], "none": [0.7, 0.6, 0.8]}


@pytest.fixture
def runs(tmp_path):
  return sweep(tmp_path / "runs", SCORES)


def test_the_report_of_records_is_that_of_the_runs(tmp_path, runs, capsys):
  report(runs, "--out", tmp_path / "one")
  write(runs, "learned", 0)  # which has not finished
  report(runs, "--records", tmp_path / "kept" / NAME, "--no-files")
  assert f"written: {tmp_path}/kept/{NAME}, 9 runs" in capsys.readouterr().out
  report(tmp_path / "kept", "--out", tmp_path / "two")
  for kind in ("groups.csv", "paper.tex"):
    one, two = ((tmp_path / folder / kind).read_text() for folder in ("one", "two"))
    assert one == two
  by_folder = capsys.readouterr().out
  report(tmp_path / "kept" / NAME, "--no-files")
  assert capsys.readouterr().out.strip() in by_folder
  before = {run.path.parts[-4:]: run for run in read_runs([runs])[0]}
  for run in read_records(tmp_path / "kept" / NAME):
    folder = before[run.path.parts[-4:]]
    assert run.settings == folder.settings
    assert run.summary == folder.summary
    assert run.history == folder.history


def test_records_do_not_say_where_runs_were(tmp_path, runs):
  found, _ = read_runs([runs])
  plugin = {"task": {"name": "mine", "path": "/home/me/mine.py", "sha256": "0" * 64}}
  found[0].config["plugins"] = plugin
  write_records(tmp_path / NAME, found)
  kept = [run.config for run in read_records(tmp_path / NAME)]
  assert {"runs", "tracker"} & {key for config in kept for key in config} == set()
  assert [config["plugins"]["task"]["path"] for config in kept if "plugins" in config] == [
    "mine.py"
  ]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "there are no records of runs in it"),
    (b"PAR1 and no more", "there are no records of runs in it"),
    ({"folder": ["a"], "config": ["b"]}, "there are no records of runs in it"),
    ({name: [1] for name in ("folder", "config", "summary", "metrics")}, "there are no records"),
    (
      {"folder": ["../../etc"], "config": ["a: 1"], "summary": ["{}"], "metrics": [""]},
      "is a folder of another version",
    ),
  ],
)
def test_what_holds_no_records_is_refused(tmp_path, content, message):
  path = tmp_path / "x.parquet"
  if isinstance(content, bytes):
    path.write_bytes(content)
  else:
    parquet.write_table(pyarrow.table(content), path)
  with pytest.raises(UserError, match=re.escape(message)) as refused:
    report(path, "--no-files")
  assert str(path) in str(refused.value)
  assert ".." not in str(refused.value)
  assert "\n" not in str(refused.value)


def test_runs_that_have_not_finished_have_no_records(tmp_path):
  write(tmp_path / "runs", "rpr", 0)
  runs, _ = read_runs([tmp_path / "runs"])
  with pytest.raises(UserError, match="only finished ones are recorded"):
    write_records(tmp_path / NAME, runs)
  assert not (tmp_path / NAME).exists()


def test_records_hold_which_examples_were_right_and_reports_say_what_others_would_change(
  tmp_path, capsys
):
  shares = {"rpr": (24, 26, 25), "none": (20, 21, 19)}
  for encoding, counts in shares.items():
    for seed, count in enumerate(counts):
      path = write(tmp_path / "runs", encoding, seed, count / 40)
      said = ["ab"[at >= count] for at in range(40)]
      rows = [{"text": f"{at}", "label": "a", "prediction": each} for at, each in enumerate(said)]
      write_predictions(path, "test", rows)
  file = tmp_path / "kept" / NAME
  report(tmp_path / "runs", "--no-files", "--records", file)
  report(file, "--no-files")
  by_folder, by_record = capsys.readouterr().out.split("written: ")
  for text in (by_folder, by_record):
    assert "points, p = 0.0" in text
    assert re.search(r"with other test\s+examples, too,\s+\+1.65 to \+23.10", text)
  (one, *_) = read_records(file)
  assert one.examples["test"]["accuracy"].keys() == {"of", "count", "right"}
  right = Examples.unpacked(one.examples["test"]["accuracy"]).amounts
  assert right.tolist() == [1.0] * 20 + [0.0] * 20
  damaged = dataclasses.replace(one, examples={"test": {"accuracy": {"right": "?"}}})
  with pytest.raises(UserError, match="its scores of examples are damaged"):
    moved({0: damaged}, score("test/accuracy"))
