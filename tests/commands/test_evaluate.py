"""A trained run measured again: with everything on, and without terms in layers and heads."""

import json
import re
import shutil

import numpy as np
import order
import pytest
from flax import nnx
from order import compilations

from posexp import evaluate
from posexp.analysis.ablation import ratio
from posexp.errors import UserError
from posexp.report import arguments as report_arguments
from posexp.report import report
from posexp.runs.records import read_records
from posexp.training.restore import open_trained, with_options

pytestmark = pytest.mark.usefixtures("opened_once")


@pytest.fixture(scope="module")
def run(home):
  """The folder of a run of `split`."""
  options = [*order.SHORT, "train.learning_rate=0.02", "encoding=split", "model.num_layers=2"]
  assert order.command(*order.write(home), *options).status == 0
  return home / order.only("runs")


@pytest.fixture(scope="module")
def trained(run):
  return open_trained(run)


def typed(*argv):
  (found,) = order.work(evaluate, *argv)
  return found


def test_with_everything_on_it_is_what_the_run_measured(run):
  found = typed(run)
  summary = json.loads((run / "summary.json").read_text())
  assert found["off"] == []
  assert found["on"]["accuracy"] == summary["test/accuracy"]
  assert found["on"]["loss"] == pytest.approx(summary["test/loss"], abs=1e-6)
  assert typed(run, "--split", "validation")["on"]["accuracy"] == summary["validation/accuracy"]


def test_without_a_term_is_with_options_that_leave_it_out_and_is_compared_in_pairs(run):
  found = typed(run, "--without", "position", "--split", "train")
  on, (off,) = found["on"], found["off"]
  other = typed("split.attention=content", run, "--split", "train")
  assert other["options"] == ["split.attention=content"]
  assert other["on"]["loss"] == pytest.approx(off["loss"], abs=1e-6)
  assert on["change"] == on["error"] == on["other"] == 0
  assert off["change"] == pytest.approx(off["accuracy"] - on["accuracy"])
  assert off["other"] > 0
  assert off["error"] > 0


def test_a_grid_is_what_single_evaluations_say_in_one_program(run, tmp_path, capsys):
  file = tmp_path / "without.parquet"
  with compilations() as counts:
    grid = typed(run, "--grid", "--records", file)
  assert counts["predict"] <= 1  # of all switches
  # For either term four heads, two layers, and everywhere.
  assert len(grid["off"]) == 2 * (4 + 2 + 1)
  with compilations() as counts:
    for row in grid["off"][2], grid["off"][13]:
      where = ["--layers", ",".join(map(str, row["layers"]))]
      where += ["--heads", ",".join(map(str, row["heads"]))]
      (alone,) = typed(run, "--without", row["terms"][0], *where)["off"]
      assert alone == row
  assert counts["predict"] == 0
  assert len({row["loss"] for row in grid["off"]}) > 10
  files = {path.name for path in (run / "figures").iterdir()}
  assert files == {"terms-test.png", "terms-test.svg"}
  assert "without position: layer 1, head 0" in capsys.readouterr().out
  kept = {each.settings["without"]: each for each in read_records(file)}
  assert {"nothing", "content", "content: layer 1", "content: layer 1, head 0"} <= kept.keys()
  assert len(kept) == len(grid["off"]) + 1
  assert kept["nothing"].score("test/accuracy") == grid["on"]["accuracy"]
  without = next(row for row in grid["off"] if row["terms"] == ("content",))
  assert kept["content: layer 0, head 0"].score("test/loss") == without["loss"]
  assert "validation/accuracy" not in kept["nothing"].summary
  report(report_arguments([str(file), "--by", "without", "--no-files"]))
  assert "split without=content: layer 0" in capsys.readouterr().out


def test_that_a_run_has_not_finished_is_said(run, tmp_path, capsys):
  stopped = tmp_path / run.parent.name / run.name
  shutil.copytree(run, stopped, ignore=shutil.ignore_patterns("summary.json"))
  typed(stopped)
  step = json.loads((run / "summary.json").read_text())["step"]
  said = f"has not finished: this is its best checkpoint so far, of step {step}\n"
  assert said in capsys.readouterr().err


def test_the_error_of_a_ratio_is_that_of_drawing_the_examples_again():
  """Also where the denominator depends on what was found, as that of F1 does."""
  draw = np.random.default_rng(0)
  counts = draw.integers(1, 20, (2, 400)).astype(float)
  values = draw.binomial(counts.astype(int), 0.7).astype(float)
  (one, by_one), (other, by_other) = map(ratio, values, counts)
  assert (one, other) == tuple(values.sum(1) / counts.sum(1))
  rows = draw.integers(0, 400, (4000, 400))
  again = values[:, rows].sum(2) / counts[:, rows].sum(2)
  spread = (by_other - by_one).std() / 400**0.5
  assert spread == pytest.approx((again[1] - again[0]).std(), rel=0.05)


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("--without place", "--without place: the model's terms are content, position"),
    ("--without position --layers 0,2", "--layers 2: the model's layers are 0, 1"),
    ("--grid --heads -1", "--heads -1: the model's heads are 0, 1"),
    ("--layers 1", "--layers and --heads say where a term is off, so they need --without"),
    ("--records without.csv", "--records without.csv: give it the ending .parquet"),
    ("rpr.k=2", "rpr.k: a run of split can be measured with other options of split, and with"),
    ("split.attend=both", "split.attend=both: there is no option split.attend; did you mean"),
    ("split.length=64", "split.length=64: stack/embed/vector/rows is [512, 8] in the checkpoint"),
    ("split.attention=content split.form=added split.norms=joint", "split.form=added has one "),
    ("split.length=64,128", "split.length=64,128: give one value; each command measures one"),
  ],
)
def test_mistakes_are_one_sentence(run, argv, message):
  with pytest.raises(UserError) as error:
    typed(run, *argv.split())
  assert str(error.value).startswith(message)
  assert "\n" not in str(error.value)


def test_what_is_not_trained_is_one_sentence(run, tmp_path):
  (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
  with pytest.raises(UserError, match="has no checkpoint: it was not trained up to its first"):
    typed(tmp_path)


def test_a_window_is_what_a_model_without_what_is_beyond_it_sees(trained):
  """What one layer says of a token changes with those in its window, and with the ends'."""
  other = with_options(trained, {"model.window": 2, "model.window_ends": "relaxed"})
  windowed = other.snapshot.model().stack
  assert windowed.size.window == 2
  windowed.blocks, windowed.kinds = windowed.blocks[:1], windowed.kinds[:1]
  # The text as it is, and with another token in each place.
  tokens = np.full((13, 14), 3) + np.eye(13, 14, -1, dtype=int)
  said = nnx.jit(type(windowed).__call__)(windowed, tokens, np.arange(14)[None] < 12)
  said = np.asarray(said)[:, :12]
  changes = (np.abs(said[1:] - said[0]) > 1e-6).any(2).T
  place = np.arange(12)
  end = (place < 2) | (place >= 10)
  near = np.abs(place[:, None] - place) <= 2
  np.testing.assert_array_equal(changes, near | end | end[:, None])


def test_layers_that_no_checkpoint_has_are_not_built(run, tmp_path):
  received = shutil.copytree(run, tmp_path / "received" / "seed=0")
  (received / "run.sha256").unlink()
  config = received / "config.yaml"
  config.write_text(re.sub(r"num_layers: \d+", "num_layers: 1000", config.read_text()))
  with pytest.raises(UserError, match=r"num_layers is 1,000 in its config\.yaml, and 2 in its ch"):
    open_trained(received)
