"""The whole command, in this process: what it learns, repeats, compiles, measures and says."""

import io
import json
import re
import signal
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import order
import pytest
from order import command, compilations, interrupted, only, result, summaries

from posexp.runs import RunWriter, read_run
from posexp.training import costs, step
from posexp.training.restore import open_trained

pytestmark = pytest.mark.usefixtures("home")

# All runs have these, so that each of two models is compiled once.
TRAIN = ["train.steps=60", "train.evaluate_every=10", "train.log_every=4", "train.patience=1"]
TRAIN += ["train.learning_rate=2e-2", "train.warmup=10", "train.schedule=constant"]
TRAIN += ["model.dropout=0"]
RPR = ["encoding=rpr", "rpr.k=2", "rpr.table=2"]
ALONE = [*RPR, "seed=1", "runs=alone"]


@pytest.fixture(scope="module")
def options(home):
  return [*order.write(Path()), *TRAIN]


@pytest.fixture(scope="module")
def sweep(options):
  """The output of a command that trains rpr with two k, and no encoding; and what was compiled."""
  # Sweeps of other tests have left groups behind, of which a process keeps the programs of few.
  with mock.patch("posexp.sweeps.sweep._programs", set()), compilations() as counts:
    typed = command("-m", "encoding=none,rpr", "rpr.k=2,0", "rpr.table=2", *options)
  assert (typed.status, typed.err) == (0, "")
  return typed.out, counts


@pytest.fixture(scope="module")
def alone(sweep, options):
  """The folder of a run that is no part of a sweep, and what it said."""
  with compilations() as counts:
    typed = command(*options, *ALONE)
  assert (typed.status, typed.err, counts) == (0, "", {})
  return only("alone"), typed.out


@pytest.fixture(scope="module")
def whole(sweep):
  """By encoding, or with k=0, the folders of these runs, which were never stopped."""
  found = {path: read_run(path).config for path in summaries("runs")}
  return {
    "rpr k=0" if config.get("rpr", {}).get("k") == 0 else config["encoding"]: path
    for path, config in found.items()
  }


def test_an_encoding_learns_which_word_comes_first(whole):
  for name, path in whole.items():
    summary = read_run(path).summary
    for split in ("validation", "test"):
      assert summary[f"baseline/{split}/accuracy"] == 0.5
      accuracy = summary[f"{split}/accuracy"]
      assert accuracy > 0.8 if name == "rpr" else abs(accuracy - 0.5) < 0.1


def test_a_sweep_trains_each_run_once_and_compiles_it_once(sweep, whole):
  out, counts = sweep
  assert out.count(": done, test accuracy ") == len(whole) == counts["start"] == 3
  assert out.count(": the same run as job ") == 1
  assert counts["update"] == counts["predict"] == 2  # all k of a table share what comes after
  run = read_run(whole["none"])
  assert 0 < run.summary["time/compile_seconds"] < run.summary["time/first_step_seconds"] + 60
  assert run.summary["memory/temporary_bytes"] > 0
  assert costs.of_run(run.history).items() <= run.summary.items()


def test_a_run_that_is_stopped_goes_on_without_compiling_anything(options, whole, monkeypatch):
  argv = [*options, *RPR, "runs=interrupted"]
  with interrupted(at=24):
    status, _, err = command(*argv)
  assert (status, err) == (130, "posexp: interrupted; the same command goes on from here\n")
  log = RunWriter.log

  def stop(self, step, row):
    log(self, step, row)
    if step == 36:
      signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(io, "StringIO", type("Terminal", (io.StringIO,), {"isatty": lambda _: True}))
  with compilations() as counts, mock.patch.object(RunWriter, "log", stop):
    status, out, err = command(*argv)
  assert status == 143
  assert re.search(r"\r *\d+%\|.*\d+/60 \[.*loss \d\.\d{3}, [\d,]+ tokens/s", err)
  assert err.endswith("posexp: interrupted; the same command goes on from here\n")
  assert "\r" not in out
  assert "going on from step 20\n" in out
  (stopped,) = re.findall(r"^stopped at step (\d+) of 60, which is saved$", out, re.M)
  last = read_run(only("interrupted")).history[-1]
  assert last["step"] == int(stopped)
  with compilations() as more:
    status, out, _ = command(*argv)
  assert status == 0
  assert f"going on from step {stopped}\n" in out
  assert not counts + more
  assert result(only("interrupted")) == result(whole["rpr"])
  rows = read_run(only("interrupted")).history
  assert last in rows
  assert rows[-1]["time/cpu_seconds"] > last["time/cpu_seconds"]  # of all sessions


def test_a_loss_that_is_not_a_number_stops_a_run_and_costs_nothing_saved(
  options, whole, monkeypatch
):
  take_step, argv = step.Step.__call__, [*options, *RPR, "runs=broken"]

  def breaks(self, state, batch, key):
    """Parameters that are no numbers come out of step 16: the first loss is that of step 17."""
    broken = jnp.nan if int(state.step) == 15 else 1.0
    state = take_step(self, state, batch, key)
    return state.replace(params=jax.tree.map(lambda leaf: leaf * broken, state.params))

  monkeypatch.setattr(step.Step, "__call__", breaks)
  for _ in range(2):
    status, out, err = command(*argv)
    assert status == 2
    assert err.startswith("posexp: error: the loss is not finite at step 17; what was saved before")
    assert err.count("\n") == 1
  monkeypatch.undo()
  assert (only("broken") / "train.log").read_text().count("not finite at step 17") == 2
  status, out, _ = command(*argv)
  assert status == 0
  assert "going on from step 10\n" in out
  assert result(only("broken")) == result(whole["rpr"])


def test_patience_ends_a_run_that_gets_no_better(whole):
  rows, summary, _ = result(whole["none"])
  evaluated = [row for row in rows if "validation/accuracy" in row]
  # Without order nothing is learned: all scores are equal, and the lower loss decides.
  assert {row["validation/accuracy"] for row in evaluated} == {0.5}
  losses = [row["validation/loss"] for row in evaluated]
  best = losses.index(min(losses))
  assert best == len(losses) - 2
  assert summary["stopped_at"] == evaluated[-1]["step"] < 60
  measured = {name: value for name, value in summary.items() if name.startswith("validation/")}
  assert measured.items() <= evaluated[best].items()
  assert summary["step"] == evaluated[best]["step"]


def test_the_test_split_is_measured_on_the_best_checkpoint(whole):
  _, summary, predictions = result(whole["rpr"])
  texts = [json.loads(line) for line in Path("test.jsonl").read_text().splitlines()]
  said = [json.loads(line) for line in predictions.splitlines()]
  assert [row["index"] for row in said] == list(range(len(texts)))
  assert [row["label"] for row in said] == [row["label"] for row in texts]
  right = [row["label"] == row["prediction"] for row in said]
  assert summary["test/accuracy"] == np.mean(right)
  assert summary["test/loss"] == pytest.approx(np.mean([row["loss"] for row in said]), rel=1e-12)
  f1 = []
  for label in "ab":
    hits = sum(row["label"] == row["prediction"] == label for row in said)
    named = sum((row["label"] == label) + (row["prediction"] == label) for row in said)
    f1.append(2 * hits / named)
  assert summary["test/macro_f1"] == pytest.approx(np.mean(f1), rel=1e-12)

  best = open_trained(whole["rpr"])
  assert int(best.snapshot.state.step) == summary["step"]
  for batch in best.data.evaluation("test", 1):  # one by one
    found, _ = best.snapshot.program.predict(best.snapshot.state, batch)
    row = said[int(batch["index"][0])]
    assert best.data.label_names[int(found["answer"][0])] == row["prediction"]
    assert float(found["loss"][0]) == pytest.approx(row["loss"], abs=1e-5)


def test_the_output_of_a_run(alone):
  path, out = alone
  rows, summary, _ = result(path)
  lines = out.splitlines()
  assert lines[0] == ("task      order: 400 train, 60 validation, 100 test; 2 classes")
  assert lines[1] == "          vocabulary 10, longest text 7 tokens"
  assert lines[2].startswith("encoding  rpr: k=2, keys=true, values=true")
  count, more = re.match(
    r"model     ([\d,]+) parameters, \+([\d,]+) against none", lines[3]
  ).groups()
  state = open_trained(path).snapshot.state
  assert int(count.replace(",", "")) == sum(leaf.size for leaf in jax.tree.leaves(state.params))
  assert int(more) == 2 * 5 * 8  # a vector for each of five offsets, for keys and for values
  assert lines[4].startswith("          d_model 16, 2 heads, 1 layer, d_ff 32")
  assert lines[5] == "training  60 steps of 32 texts, seed 1, on 1 cpu"
  assert lines[6] == f"run       {path}"
  assert lines[7] == "wandb     disabled"
  assert [line for line in lines if line.startswith("step")] == [
    line for line in lines if re.match(
      r"step +\d+/60   train loss \d\.\d{3}   validation loss \d\.\d{3}   accuracy \d\.\d{3}   "
      r"macro F1 \d\.\d{3}   [\d,]+ tokens/s(   best)?$", line)
  ]  # fmt: skip
  assert [row["step"] for row in rows[:6]] == [4, 8, 10, 12, 16, 20]
  said = [line for line in lines if line.startswith("step")]
  losses = [row["train/loss"] for row in rows[:6]]
  # The last row before an evaluation may be of few steps, whose loss says little.
  means = [np.dot(losses[:3], [4, 4, 2]) / 10, np.dot(losses[3:], [2, 4, 4]) / 10]
  assert [float(line.split()[4]) for line in said[:2]] == pytest.approx(means, abs=0.0006)
  assert "\r" not in out
  assert "\x1b" not in out
  shown, expected = [" ".join(line.split()) for line in lines], table(summary)
  begun = shown.index(expected[0])
  assert shown[begun : begun + len(expected)] == expected


def table(summary):
  """The final table, worked out again, with one blank between what stands in a row."""

  def row(name, *keys, form=".4f"):
    splits = ("validation", "test")
    values = [[summary[f"{of}{split}/{key}"] for split in splits] for of, key in keys]
    shown = values[0] if len(keys) == 1 else 100 * np.subtract(*values)
    return f"{name} {shown[0]:{form}} {shown[1]:{form}}"

  accuracy, bag = ("", "accuracy"), ("baseline/", "accuracy")
  return [
    f"at step {summary['step']} validation test",
    row("accuracy", accuracy),
    row("macro F1", ("", "macro_f1")),
    row("loss", ("", "loss")),
    row("bag of words, accuracy", bag),
    row("bag of words, macro F1", ("baseline/", "macro_f1")),
    row("accuracy against it, points", accuracy, bag, form="+.2f"),
  ]


def test_a_finished_run_shows_its_result_again(options, alone):
  path, before = alone
  status, out, err = command(*options, *ALONE, "wandb.mode=offline")
  said, _, shown = out.partition("\n")
  assert (status, err) == (0, "")
  assert said == f"finished already, in {path}; rerun=true trains it again"
  assert "\nat step " in shown
  assert before.endswith(shown)


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("train.batch_size=401", "train.batch_size=401: there are only 400 training examples"),
    ("runs=train.jsonl", "runs=train.jsonl: train.jsonl is a file; name a folder\n"),
    (f"runs={'x' * 300}", "runs=xxx"),
    (
      "wandb.mode=of",
      "wandb.mode must be one of auto, online, offline, disabled, dryrun, run, not 'of'",
    ),
  ],
)
def test_mistakes_are_one_line(options, argv, message):
  typed = command(*options, "runs=mistakes", *argv.split())
  assert typed.refusal.startswith(message)
  assert summaries("mistakes") == {}
