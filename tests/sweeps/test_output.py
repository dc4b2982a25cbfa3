"""What the command says, of a run and of mistakes."""

import re
from pathlib import Path

import jax
import numpy as np
import order
import pytest
from order import SHORT, command, only, result, summaries

from posexp.training.restore import open_trained

pytestmark = pytest.mark.usefixtures("home")
SPLITS = ("validation", "test")


@pytest.fixture(scope="module")
def options(home):
  return order.write(Path())


@pytest.fixture(scope="module")
def whole(options):
  """The command line of a run, what it said, and what it measured."""
  argv = [*options, *SHORT, "encoding=rpr", "rpr.k=2"]
  typed = command(*argv, "runs=whole")
  assert (typed.status, typed.err) == (0, "")
  return argv, typed, result(only("whole"))


def test_the_output_of_a_run(whole):
  _, (_, out, _), (rows, summary, _) = whole
  lines = out.splitlines()
  assert lines[0] == ("task      order: 400 train, 60 validation, 100 test; 2 classes")
  assert lines[1] == "          vocabulary 10, longest text 7 tokens"
  assert lines[2].startswith("encoding  rpr: k=2, keys=true, values=true")
  count, more = re.match(
    r"model     ([\d,]+) parameters, \+([\d,]+) against none", lines[3]
  ).groups()
  state = open_trained(only("whole")).snapshot.state
  assert int(count.replace(",", "")) == sum(leaf.size for leaf in jax.tree.leaves(state.params))
  assert int(more) == 2 * 5 * 8  # a vector for each of five offsets, for keys and for values
  assert lines[4].startswith("          d_model 16, 2 heads, 1 layer, d_ff 32")
  assert lines[5] == "training  12 steps of 32 texts, seed 0, on 1 cpu"
  assert lines[6] == f"run       {only('whole')}"
  assert lines[7] == "wandb     disabled"
  assert [line for line in lines if line.startswith("step")] == [
    line for line in lines if re.match(
      r"step +\d+/12   train loss \d\.\d{3}   validation loss \d\.\d{3}   accuracy \d\.\d{3}   "
      r"macro F1 \d\.\d{3}   [\d,]+ tokens/s(   best)?$", line)
  ]  # fmt: skip
  assert [row["step"] for row in rows] == [3, 4, 6, 8, 9, 12]
  said = [line for line in lines if line.startswith("step")]
  losses = [row["train/loss"] for row in rows]
  # The last row before an evaluation may be of a single step, whose loss says little.
  means = [np.dot(losses[:2], [3, 1]) / 4, np.mean(losses[2:4]), np.dot(losses[4:], [1, 3]) / 4]
  assert [float(line.split()[4]) for line in said] == pytest.approx(means, abs=0.0006)
  assert "\r" not in out
  assert "\x1b" not in out
  shown, expected = [" ".join(line.split()) for line in lines], table(summary)
  begun = shown.index(expected[0])
  assert shown[begun : begun + len(expected)] == expected


def table(summary):
  """The final table, worked out again, with one blank between what stands in a row."""

  def row(name, *keys, form=".4f"):
    values = [[summary[f"{of}{split}/{key}"] for split in SPLITS] for of, key in keys]
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


def test_a_finished_run_shows_its_result_again(whole):
  argv, first, _ = whole
  status, out, err = command(*argv, "runs=whole", "wandb.mode=offline")
  said, _, shown = out.partition("\n")
  assert (status, err) == (0, "")
  assert said == f"finished already, in {only('whole')}; rerun=true trains it again"
  assert "\nat step " in shown
  assert first.out.endswith(shown)


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
  typed = command(*options, "runs=mistakes", *SHORT, *argv.split())
  assert typed.refusal.startswith(message)
  assert summaries("mistakes") == {}
