"""What reports say beyond the lengths of training, where some seeds have not learned a task."""

import csv
import json
import re

import pytest
from run_folders import report, write

from posexp.errors import UserError
from posexp.reporting import charts, figures, specs
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
  """A report of two tasks: what it finds of each, and its folder."""
  folder = tmp_path_factory.mktemp("reported")
  runs = several(folder / "runs")
  diagnostic(runs, "rpr", [1.0, 1.0], [1.0, 0.9], name="copy")
  return report(runs, "--out", folder / "out"), folder / "out"


def test_every_seed_counts_and_it_is_said_how_many_have_learned(reported):
  (_, found), out = reported
  text = " ".join((out / "report.md").read_text().split())
  means = {group.label: group.estimate.mean for group in found.groups}
  assert means == pytest.approx({"rpr": 0.988, "none": 0.5, "rope": 0.2})
  # Those that learned have a mean in another column.
  assert re.search(
    r"none \| 3 of 5 \| 50.00 \| 90.00 80.00 70.00 10.00 0.00 \| [\d.]+ to [\d.]+ \| 56.67 \| base",
    text,
  )
  assert re.search(r"\| rope \| 0 of 2 \| 20.00 \| 40.00 0.00 \|[^|]*\| — \|", text)
  assert "first of 3 groups with 98.80" in text
  assert "5 of 5 seeds learned" in text
  assert "Every seed counts; the task counts as learned from 95.00 test exact match on." in text
  rows = csv.DictReader((out / "groups.csv").open())
  groups = {row["group"]: row for row in rows if row["task"] == "tally"}
  assert [groups[each]["learned"] for each in ("rpr", "none", "rope")] == ["5", "3", "0"]
  assert groups["rope"]["mean"] == "0.2"
  rows = [*csv.DictReader((out / "runs.csv").open())]
  learned = " ".join(row["learned"] for row in rows if row["group"] == "none")
  assert learned == "True True False True False"
  assert all(row["beyond/exact_match"] for row in rows)
  assert "(3/5)" in (out / "paper.tex").read_text()


def test_it_is_said_where_the_seeds_that_did_not_learn_decide(tmp_path, said):
  diagnostic(tmp_path, "none", [1.0] * 3, [0.5, 0.52, 0.48])
  diagnostic(tmp_path, "rpr", [1.0, 1.0, 0.2], [0.7, 0.6, 0.0])
  decide = "Seeds that have not learned decide whether rpr or none is ahead: without them"
  assert f"{decide} the means are 65.00 and 50.00." in said(tmp_path)


def test_the_lengths_of_training_have_no_gate(runs):
  (found,) = report(runs, "--no-files", "--metric", "test/exact_match")
  assert [group.estimate.n for group in found.groups] == [5, 5, 2]


@pytest.mark.parametrize("gates", [[], {"beyond": 1}, {"beyond": {"metric": "a"}}, "x"])
def test_a_gate_that_says_nothing_is_a_broken_summary(tmp_path, gates):
  path = write(tmp_path, "none", 0, 0.5)
  (path / "summary.json").write_text(json.dumps({"test/accuracy": 0.5, "gates": gates}))
  with pytest.raises(UserError, match=r"summary\.json is broken"):
    read_run(path)


def test_a_grid_has_the_farthest_first_and_it_is_said_what_cannot_be_measured(runs, said):
  diagnostic(runs, "learned", [1.0, 1.0], [0.95, 0.97], lengths=(24,))
  text = said(runs)
  assert "learned: without 40, so its mean is of fewer parts than others'." in text
  assert text.count("of fewer parts") == 1
  (found,) = results(read_runs([runs])[0])
  chart = charts.lengths(found)
  labels = [*dict.fromkeys(point.series for point in chart.points)]
  assert labels == ["rpr", "learned", "none", "rope"]
  rows = [chart.points[at : at + 4] for at in (0, 4, 8, 12)]
  assert ([each.x for each in rows[0]], chart.trained) == (["10", "20", "24", "40"], 20)
  assert [each.state for each in rows[1]] == ["", "", "", charts.NOT_APPLICABLE]
  assert [each.found.mean for each in rows[2]] == pytest.approx([3.66 / 5] * 2 + [0.5] * 2)
  spec = specs.spec(chart, found)
  shown = [row["row"] for row in spec["data"]["values"]]
  assert [*dict.fromkeys(shown)][2:] == ["none (3 of 5)", "rope (0 of 2)"]
  # The line stands behind the last length of training.
  numbers = ["73", "73", "50", "50", "60", "60", "20", "20"]
  assert [row["text"] for row in spec["data"]["values"][8:]] == numbers
  assert spec["layer"][-1]["data"]["values"] == [{"x": "20"}]


def test_there_is_no_heat_map_where_what_is_beyond_has_the_lengths_of_training(tmp_path):
  runs = diagnostic(tmp_path / "runs", "rpr", [1.0], [0.5], lengths=(10, 20))
  assert charts.lengths(results(read_runs([runs])[0])[0]) is None
  runs = diagnostic(tmp_path / "longer", "rpr", [1.0], [0.5])
  assert len(charts.lengths(results(read_runs([runs])[0])[0]).points) == 4


def test_several_tasks_are_on_one_page_with_how_far_groups_reach(reported):
  found, out = reported
  assert not (out / "figures").exists()
  page = (out / "report.html").read_text()
  assert page.index("How far groups reach") < page.index("Exact match by length, within and beyond")
  (figure,) = figures.of_all(found)
  rows = figure.specs[0]["data"]["values"]
  assert {(row["row"], row["x"]): row["text"] for row in rows} == {
    ("rpr", "copy"): "20.0",
    ("rpr", "tally"): "20.0",
    ("none", "tally"): "20.0",
    ("rope", "tally"): "20.0",
  }
