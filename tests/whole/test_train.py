"""The whole command, in this process: what it learns, repeats, compiles and measures."""

import json
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import order
import pytest
from order import SHORT, command, compilations, interrupted, only, result, summaries

from posexp.runs import read_run
from posexp.training import step
from posexp.training.restore import open_trained

pytestmark = pytest.mark.usefixtures("home")

TRAIN = ["train.steps=90", "train.evaluate_every=45", "train.learning_rate=2e-2"]
TRAIN += ["train.warmup=10", "model.dropout=0"]
RPR = ["encoding=rpr", "rpr.k=2"]
PATIENT = [*SHORT, "encoding=none", "train.patience=2", "train.steps=40"]
PATIENT += ["train.learning_rate=1e-2", "train.schedule=cosine"]
WITH_ORDER = {"none": False, "rpr": True, "rpr.k=0": False}  # the runs of a sweep


@pytest.fixture(scope="module")
def options(home):
  return order.write(Path())


@pytest.fixture(scope="module")
def long(home):
  """Options of the task with texts for two buckets, up to 8 and up to 16 tokens."""
  Path("long").mkdir()
  return order.write(Path("long"), longest=14)


# Encodings


@pytest.fixture(scope="module")
def sweep(options):
  """Encodings, trained by one command: rpr with two k, each other one named twice.

  cope is among them, which is not for encoders, and learned, with fewer positions than texts have.
  """
  encodings = ["encoding=none,rpr,cope,learned", "rpr.k=2,0", "rpr.table=2", "learned.length=2"]
  argv = ["-m", *encodings, *options, *TRAIN]
  # Sweeps of other tests have left groups behind, of which a process keeps the programs of few.
  with mock.patch("posexp.sweeps.sweep._programs", set()), compilations() as counts:
    typed = command(*argv)
  return argv, typed, counts


def name_of(path):
  config = read_run(path).config
  return "rpr.k=0" if config.get("rpr", {}).get("k") == 0 else config["encoding"]


@pytest.mark.parametrize("name", WITH_ORDER)
def test_an_encoding_learns_which_word_comes_first(sweep, name):
  found = {name_of(path): summary for path, summary in summaries("runs").items()}
  for split in ("validation", "test"):
    assert found[name][f"baseline/{split}/accuracy"] == 0.5
    accuracy = found[name][f"{split}/accuracy"]
    assert accuracy > 0.8 if WITH_ORDER[name] else abs(accuracy - 0.5) < 0.1


def test_a_sweep_trains_each_run_once_and_compiles_it_once(sweep):
  _, (_, out, _), counts = sweep
  assert out.count(": done, test accuracy ") == len(summaries("runs")) == len(WITH_ORDER)
  assert out.count(": the same run as job ") == 2
  assert counts["start"] == len(WITH_ORDER)
  assert counts["update"] == counts["predict"] == 2  # all k of a table share what comes after


def test_a_failing_job_leaves_the_others_finished(sweep):
  _, (status, out, err), _ = sweep
  assert status == 1
  assert out.count(": failed: learned.length=2 gives 2 positions: ") == 1
  failed = "encoding=learned rpr.k=2"
  assert err == f"posexp: error: 1 of {len(WITH_ORDER) + 1} runs failed: {failed}\n"


def test_an_encoding_that_does_not_suit_the_task_is_left_out_before_a_run_is_trained(sweep):
  _, (_, out, _), _ = sweep
  left_out = ": left out: model: cope is defined for causal attention only, not for an encoder\n"
  assert out.count(left_out) == 2
  assert out.index(left_out) < out.index("\nstep ")


def test_a_sweep_that_is_typed_again_trains_nothing(sweep):
  argv, typed, _ = sweep
  before = summaries("runs")
  with compilations() as counts:
    again = command(*argv)
  assert (again.status, again.err) == (typed.status, typed.err)
  assert again.out.count(": finished already, in runs/") == len(WITH_ORDER)
  assert "\nstep " not in again.out
  assert not counts
  assert summaries("runs") == before


# Compilation


@pytest.fixture(scope="module")
def patient(long):
  """A command line, and what was compiled when it was typed first: of a run out of patience."""
  argv = [*long, *PATIENT, "runs=patient"]
  with compilations() as counts:
    assert command(*argv).status == 0
  return argv, counts


def test_seeds_share_what_is_compiled_and_nothing_is_compiled_per_batch(patient):
  argv, counts = patient
  assert counts["start"] == counts["clear"] == 1
  assert counts["update"] == counts["predict"] == 2  # one of each bucket
  with compilations() as counts:
    assert command(*argv, "seed=1").status == 0
  assert not counts


# One run, stopped and gone on with


@pytest.fixture(scope="module")
def whole(options):
  """The command line of a run that was never stopped, and what it measured."""
  argv = [*options, *SHORT, *RPR]
  typed = command(*argv, "runs=whole")
  assert (typed.status, typed.err) == (0, "")
  return argv, typed, result(only("whole"))


def test_a_run_goes_on_without_compiling_anything(whole):
  with interrupted(at=9):
    status, _, err = command(*whole[0], "runs=interrupted")
  assert (status, err) == (130, "posexp: interrupted; the same command goes on from here\n")
  with compilations() as counts:
    status, out, _ = command(*whole[0], "runs=interrupted")
  assert status == 0
  assert "going on from step 8\n" in out
  assert not counts
  assert result(only("interrupted")) == whole[2]


def test_rerun_starts_afresh(whole):
  status, out, _ = command(*whole[0], "runs=whole", "rerun=true")
  assert status == 0
  assert "going on" not in out
  assert result(only("whole")) == whole[2]


def test_a_loss_that_is_not_a_number_stops_a_run_and_costs_nothing_saved(whole, monkeypatch):
  take_step = step.Step.__call__

  def breaks(self, state, batch, key):
    """Parameters that are no numbers come out of step 6: the first loss is that of step 7."""
    broken = jnp.nan if int(state.step) == 5 else 1.0
    state = take_step(self, state, batch, key)
    return state.replace(params=jax.tree.map(lambda leaf: leaf * broken, state.params))

  monkeypatch.setattr(step.Step, "__call__", breaks)
  for _ in range(2):
    status, out, err = command(*whole[0], "runs=broken")
    assert status == 2
    assert err.startswith("posexp: error: the loss is not finite at step 7; what was saved before")
    assert err.count("\n") == 1
  monkeypatch.undo()
  assert (only("broken") / "train.log").read_text().count("not finite at step 7") == 2
  status, out, _ = command(*whole[0], "runs=broken")
  assert status == 0
  assert "going on from step 4\n" in out
  assert result(only("broken")) == whole[2]


@pytest.mark.parametrize(
  ("every", "message"),
  [
    (
      1,
      "examples of the validation split (the first is number 0) at step 1, so there is no result",
    ),
    (9, "the loss is not finite at step 2; what was saved before is kept: try a smaller "),
  ],
)
def test_a_learning_rate_far_too_large(whole, every, message):
  extra = ["train.learning_rate=1e30", "train.clip=null", f"train.evaluate_every={every}"]
  status, _, err = command(*whole[0], *extra, "train.warmup=0", f"runs=large{every}")
  assert status == 2
  assert message in err
  assert "try a smaller train.learning_rate" in err
  assert list(only(f"large{every}").glob("checkpoints/*")) == []


# What is measured


@pytest.fixture(scope="module")
def impatient(patient):
  """The folder of that run."""
  (path,) = Path("patient").glob("*/*/*/seed=0")
  return path


def test_patience_ends_a_run_that_gets_no_better(impatient):
  rows, summary, _ = result(impatient)
  evaluated = [row for row in rows if "validation/accuracy" in row]
  # Without order nothing is learned: all scores are equal, and the lower loss decides.
  assert {row["validation/accuracy"] for row in evaluated} == {0.5}
  losses = [row["validation/loss"] for row in evaluated]
  best = losses.index(min(losses))
  assert best == len(losses) - 3
  assert summary["stopped_at"] == evaluated[-1]["step"] < 40
  measured = {name: value for name, value in summary.items() if name.startswith("validation/")}
  assert measured.items() <= evaluated[best].items()
  assert summary["step"] == evaluated[best]["step"]


def test_the_test_split_is_measured_on_the_best_checkpoint(impatient):
  _, summary, predictions = result(impatient)
  texts = [json.loads(line) for line in Path("long/test.jsonl").read_text().splitlines()]
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

  best = open_trained(impatient)
  assert int(best.snapshot.state.step) == summary["step"]
  for batch in best.data.evaluation("test", 1):  # one by one
    found, _ = best.snapshot.program.predict(best.snapshot.state, batch)
    row = said[int(batch["index"][0])]
    assert best.data.label_names[int(found["answer"][0])] == row["prediction"]
    assert float(found["loss"][0]) == pytest.approx(row["loss"], abs=1e-5)


@pytest.mark.slow
def test_bfloat16_follows_float32_and_keeps_parameters_in_float32(sweep, options):
  argv = [*options, *TRAIN, *RPR, "rpr.table=2", "model.dtype=bfloat16", "runs=bfloat16"]
  status, out, err = command(*argv)
  assert (status, err) == (0, "")
  assert ", pre-norm, bfloat16\n" in out
  (exact,) = (path for path in summaries("runs") if name_of(path) == "rpr")
  found, expected = (
    [row["train/loss"] for row in read_run(path).history] for path in (only("bfloat16"), exact)
  )
  assert found != expected
  assert found == pytest.approx(expected, abs=0.2)
  assert found[-1] < 0.6 * found[0]
  state = open_trained(only("bfloat16")).snapshot.state
  kinds = {str(leaf.dtype) for leaf in jax.tree.leaves((state.params, state.opt_state))}
  assert kinds == {"float32", "int32"}
