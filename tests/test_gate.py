"""The gate of diagnostics: beyond the lengths of training, only what was learned there counts."""

import contextlib
import csv
import io
import json
import re

import numpy as np
import pytest
from run_folders import write

from posexp.errors import UserError
from posexp.report import arguments, report
from posexp.reporting import heat_maps
from posexp.reporting.results import results
from posexp.runs import read_run, read_runs

GATES = {"beyond": {"metric": "test/exact_match", "least": 0.95}}


def diagnostic(root, encoding, within, beyond, *, name="tally", lengths=(24, 40)):
  """Runs of a diagnostic: exact match of each seed at the lengths of training, and beyond them."""
  for seed, (near, far) in enumerate(zip(within, beyond, strict=True)):
    summary = {"test/exact_match": near, "gates": GATES, "beyond/reach": 20.0}
    summary |= {f"test/exact_match/{n}": near for n in (10, 20)}
    summary |= {f"beyond/exact_match/{n}": far for n in lengths}
    options = {"metric": "beyond/exact_match", "headline": ["beyond/exact_match"]}
    write(root, encoding, seed, far, **options, **summary, **{"task.name": name})
  return root


def several(root):
  """Runs of groups of which all seeds have learned, some, and none."""
  diagnostic(root, "none", [1.0, 0.96, 0.5, 1.0, 0.2], [0.9, 0.7, 0.8, 0.1, 0.0])
  diagnostic(root, "rpr", [1.0] * 5, [1.0, 1.0, 0.99, 0.98, 0.97])
  return diagnostic(root, "rope", [0.9, 0.3], [0.4, 0.0])


@pytest.fixture
def runs(tmp_path):
  return several(tmp_path / "runs")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
  """A report of two tasks: what it finds of each, what it says, and its folder."""
  folder = tmp_path_factory.mktemp("reported")
  runs = several(folder / "runs")
  diagnostic(runs, "rpr", [1.0, 1.0], [1.0, 0.9], name="copy")
  with contextlib.redirect_stdout(io.StringIO()) as said:
    found = report(arguments([str(runs), "--out", str(folder / "out")]))
  return found, " ".join(said.getvalue().split()), folder / "out"


def test_what_was_not_learned_is_in_no_mean_and_is_said(reported):
  (_, found), text, out = reported
  means = {group.label: group.estimate.mean for group in found.groups}
  assert means == {
    "rpr": pytest.approx(0.988),
    "none": pytest.approx(np.mean([0.9, 0.7, 0.1])),
    "rope": None,
  }
  # All of its seeds count in another column, those that did not learn the task as 0.
  assert re.search(
    r"none \| 3 of 5 \| 56.67 \| 90.00 70.00 10.00 \| \d.\d\d to 100.00 \| 34.00 \| baseline", text
  )
  assert "| rope | 0 of 2 | not learned | — | — | 0.00 | — | — | — |" in text
  assert "first of 2 groups with 98.80" in text
  assert "5 of 5 seeds learned" in text
  assert "none: left out seed 2 (not learned: 50.00 test exact match; 80.00 beyond" in text
  rows = csv.DictReader((out / "groups.csv").open())
  groups = {row["group"]: row for row in rows if row["task"] == "tally"}
  assert [groups[each]["learned"] for each in ("rpr", "none", "rope")] == ["5", "3", "0"]
  assert groups["rope"]["mean"] == ""
  rows = [*csv.DictReader((out / "runs.csv").open())]
  assert [row["learned"] for row in rows if row["group"] == "none"] == [
    "True",
    "True",
    "False",
    "True",
    "False",
  ]
  assert all(row["beyond/exact_match"] for row in rows)
  assert "3 of 5" in (out / "report.tex").read_text()
  assert "not learned" in (out / "report.html").read_text()


def test_the_lengths_of_training_have_no_gate(runs):
  (found,) = report(arguments([str(runs), "--no-files", "--metric", "test/exact_match"]))
  assert [group.estimate.n for group in found.groups] == [5, 5, 2]


def test_a_task_that_no_seed_learned_is_said_so(tmp_path, capsys):
  diagnostic(tmp_path, "none", [0.5, 0.4], [0.1, 0.0])
  report(arguments([str(tmp_path), "--no-files"]))
  text = " ".join(capsys.readouterr().out.split())
  assert "No group of tally has learned it: their scores count from 95.00 test exact match" in text


@pytest.mark.parametrize("gates", [[], {"beyond": 1}, {"beyond": {"metric": "a"}}, "x"])
def test_a_gate_that_says_nothing_is_a_broken_summary(tmp_path, gates):
  path = write(tmp_path, "none", 0, 0.5)
  (path / "summary.json").write_text(json.dumps({"test/accuracy": 0.5, "gates": gates}))
  with pytest.raises(UserError, match=r"summary\.json is broken"):
    read_run(path)


def test_a_heat_map_of_many_groups_shows_the_first_and_says_so(runs, monkeypatch):
  monkeypatch.setattr(heat_maps, "ROWS", 2)
  (found,) = results(read_runs([runs])[0])
  figure = heat_maps.heat_map(heat_maps.grid(found))
  assert figure.get_suptitle().endswith("by length (%), the first 2 of 3 groups")
  assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["rpr", "none (3 of 5)"]


def test_a_mean_of_fewer_lengths_is_said_to_be_one(runs, capsys):
  diagnostic(runs, "learned", [1.0, 1.0], [0.95, 0.97], lengths=(24,))
  report(arguments([str(runs), "--no-files"]))
  text = " ".join(capsys.readouterr().out.split())
  assert "learned: without 40, so its mean is of fewer parts than others'." in text
  assert text.count("of fewer parts") == 1


def test_a_grid_has_the_farthest_first_and_says_what_cannot_be_measured(runs):
  diagnostic(runs, "learned", [1.0, 1.0], [0.95, 0.97], lengths=(24,))
  (found,) = results(read_runs([runs])[0])
  grid = heat_maps.grid(found)
  assert [group.label for group in grid.groups] == ["rpr", "learned", "none", "rope"]
  assert ([each.part for each in grid.lengths], grid.trained) == (["10", "20", "24", "40"], 2)
  assert [cell.state for cell in grid.cells[1]] == ["measured"] * 3 + ["not applicable"]
  assert [cell.state for cell in grid.cells[3]] == ["measured"] * 2 + ["not learned"] * 2
  # At the lengths of training all seeds count, and beyond them those that learned.
  means = [cell.mean for cell in grid.cells[2]]
  assert means == pytest.approx([0.732, 0.732, 1.7 / 3, 1.7 / 3])
  assert heat_maps.names(grid)[2:] == ["none (3 of 5)", "rope (0 of 2)"]


def test_there_is_no_grid_where_what_is_beyond_has_the_lengths_of_training(tmp_path):
  runs = diagnostic(tmp_path / "runs", "rpr", [1.0], [0.5], lengths=(10, 20))
  assert heat_maps.grid(results(read_runs([runs])[0])[0]) is None
  runs = diagnostic(tmp_path / "longer", "rpr", [1.0], [0.5])
  assert len(heat_maps.grid(results(read_runs([runs])[0])[0]).lengths) == 4


def test_a_heat_map_has_a_number_in_each_cell_that_has_one_and_the_line_at_its_place(runs):
  (found,) = results(read_runs([runs])[0])
  left, right = heat_maps.heat_map(heat_maps.grid(found)).axes[:2]
  assert [text.get_text() for text in left.texts[:8]] == ["100"] * 2 + ["99"] * 2 + ["73"] * 2 + [
    "57"
  ] * 2
  assert len(left.texts) == 10  # the gray ones have none
  assert left.images[0].get_clim() == (0.0, 1.0)
  assert 1.5 in [line.get_xdata()[0] for line in left.lines]
  assert 22.0 in [line.get_xdata()[0] for line in right.lines]


def test_several_tasks_are_on_one_page_with_how_far_groups_reach(reported):
  found, _, out = reported
  names = ["lengths-copy", "lengths-tally", "lengths", "reach"]
  files = {f"{name}.{kind}" for name in names for kind in ("pdf", "png")}
  assert {path.name for path in (out / "figures").iterdir()} == files
  page = (out / "report.html").read_text()
  assert page.index("Groups by length") < page.index("How far groups reach")
  figure = heat_maps.reach_map([heat_maps.grid(each) for each in found])
  (axes,) = figure.axes
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ["copy", "tally"]
  assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rpr", "none", "rope"]
  # Written are the cells that were measured; beside them are one not learned, two not applicable.
  assert [text.get_position() for text in axes.texts] == [(0, 0), (1, 0), (1, 1)]
  assert [text.get_text() for text in figure.legends[0].texts] == ["not learned", "not applicable"]
