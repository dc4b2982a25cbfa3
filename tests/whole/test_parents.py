"""Runs that start from the weights of others: what they take, and what is refused."""

import json
import shutil
from pathlib import Path
from unittest import mock

import order
import pytest

from posexp.reporting.results import results
from posexp.reporting.tables import family_table
from posexp.runs import RunWriter, read_run, read_runs

pytestmark = pytest.mark.usefixtures("home")

FEW = [*(each for each in order.BRIEF if "rpr.k" not in each), "train.log_every=2"]
TABLES = [f"stack/blocks/0/attention/relation/tables/{name}" for name in ("keys", "values")]


@pytest.fixture(scope="module")
def options(home):
  return [*order.write(home), *FEW]


@pytest.fixture(scope="module")
def parent(options):
  """The folder of a run of two seeds."""
  assert order.command("-m", *options, "seed=0,1").status == 0
  (path,) = Path("runs").glob("*/*/*")
  return path


@pytest.fixture(scope="module")
def children(options, parent):
  """Their runs go on from them, each from that of its seed, with the same options."""
  typed = ["-m", *options, "seed=0,1", f"init={parent}", "runs=children"]
  assert order.command(*typed).status == 0
  (path,) = Path("children").glob("*/*/*")
  return typed, path


def test_a_child_begins_where_its_parent_was_best(parent, children):
  for seed in ("seed=0", "seed=1"):
    before, after = read_run(parent / seed), read_run(children[1] / seed)
    first = order.timeless(after.history[0])
    assert first == {"step": 0} | {name: before.summary[name] for name in first if name != "step"}
    assert before.digest != after.digest
    assert after.summary["parent"]["step"] == before.summary["step"]
    assert after.summary["parent_steps"] == before.summary["stopped_at"]
    assert after.summary["time/parent_seconds"] == before.summary["time/seconds"]
    assert not after.summary["parent"]["new"] + after.summary["parent"]["dropped"]


def test_a_report_says_how_children_began(parent, children):
  (found,) = results(read_runs([parent, children[1]])[0])
  (heads, (row,)), costs = family_table(found), {group.label: group.costs for group in found.groups}
  child, whose, best, begun, _ = row
  assert heads[2] == "its validation accuracy"
  assert best == begun
  assert costs[child]["parents' steps"] == costs[whose]["steps"]
  assert {child, whose} == {group.label for group in found.groups}


def test_a_child_that_is_stopped_goes_on_to_the_same_numbers(options, parent, children):
  argv = [*options, f"init={parent}", "runs=stopped"]
  for step in (0, 4):
    with order.interrupted(step):
      assert order.command(*argv).status
  assert order.command(*argv).status == 0
  assert order.result(order.only("stopped")) == order.result(children[1] / "seed=0")


def test_a_parent_is_found_by_the_options_that_trained_it(options, parent, children):
  line = " ".join(options)
  found = order.command(*options, f"init='{line}'")
  assert found.status == 0, found.err
  other = Path("runs", *children[1].parts[1:], "seed=0")
  assert order.result(other) == order.result(children[1] / "seed=0")
  found = order.command(*options, f"init='{line} rpr.k=3'", "runs=children")
  assert found.status == 2
  assert "have trained no run, which would be children/order/rpr/" in found.err


def test_what_is_new_and_what_is_dropped(options, parent, monkeypatch):
  found = []

  def stop(writer, step, metrics):
    found.append((writer.path / "parent.json").read_text())
    raise KeyboardInterrupt

  monkeypatch.setattr("posexp.training.step.Step.begin", mock.Mock())
  monkeypatch.setattr(RunWriter, "log", stop)
  order.command(*options, "encoding=learned", f"init={parent}", "runs=new")
  kept = json.loads(found[0])
  assert (kept["new"], kept["dropped"]) == (["stack/embed/vector/rows"], TABLES)
  assert "stack/embed/table" in kept["taken"]


def test_a_run_of_no_steps_measures_the_weights_of_another(options, children):
  typed = [option for option in options if "train.steps" not in option] + ["train.steps=0"]
  found = order.command("-m", *typed, f"init={children[1]}", "runs=measured")
  assert found.status == 0, found.err
  before, measured = (
    read_run(each).summary for each in (children[1] / "seed=0", order.only("measured"))
  )
  scores = {key: before[key] for key in before if key.startswith(("validation/", "test/"))}
  assert scores.items() <= measured.items()
  assert measured["parent_steps"] == 12  # and those of the parent's parent


@pytest.mark.slow
def test_a_child_is_trained_again_from_its_folder(children):
  found = order.command("--again", str(children[1] / "seed=1"))
  assert found.status == 0, found.err
  assert "note" not in found.err
  assert order.result(order.only("again")) == order.result(children[1] / "seed=1")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      ["model.d_model=32"],
      "head/kernel is [16, 2] there and [32, 2] here, and what a run takes from another must have "
      "the same size; there, model.d_model=16",
    ),
    (
      ["task.tokenizer=char"],
      "it was trained with task.tokenizer=word, and a run has the data and the tokens of the run "
      "that it starts from; choose the same",
    ),
    (["task.train=test.jsonl"], "the data of this run are not those that it was trained on"),
    (["seed=7"], "no run of seed=7 is there; train it, or name the run that all seeds are to"),
    (["init=nowhere"], "init=nowhere: there is no such folder"),
    (["init="], "init must name a folder"),
  ],
  ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_what_is_refused(options, parent, changes, message):
  found = order.command(*options, f"init={parent}", "runs=refused", *changes)
  assert found.status == 2
  assert message in found.err
  assert "Traceback" not in found.err
  assert not Path("refused").exists()


def test_a_parent_that_has_not_finished_or_is_another_one_now(options, parent, children, tmp_path):
  shutil.copytree(parent, path := tmp_path / parent.name)
  argv = [*options, f"init={path}", "runs=changed"]
  summary = path / "seed=0" / "summary.json"
  kept = summary.read_text()
  summary.unlink()
  assert "has not finished" in order.command(*argv).err
  summary.write_text(kept)
  assert order.command(*argv).status == 0
  (path / "seed=0" / "run.sha256").unlink()
  summary.write_text(kept.replace('"test/loss": ', '"test/loss": 1'))
  found = order.command(*argv)
  assert found.status == 2
  assert "started from other weights than" in found.err
