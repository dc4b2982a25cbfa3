"""Runs of networks without attention: trained in a sweep, measured, looked at, and refused."""

import head_distances
import pytest
from order import command, home, summaries, write

from posexp import evaluate, inspect
from posexp.errors import UserError
from posexp.runs import read_run
from posexp.training.restore import open_trained

TINY = ["model.d_model=8", "train.steps=4", "train.warmup=1", "train.learning_rate=1e-2"]
SWEPT = ["-m", "model=fasttext,cnn", "encoding=complex,rpr", "rpr.k=2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
  """What a mixed sweep says, and the folders of its runs by their networks."""
  folder = tmp_path_factory.mktemp("home")
  with home(folder):
    files = [each for each in write(folder) if not each.startswith("model.")]
    done = command(*SWEPT, *files, *TINY)
    runs = {read_run(path).config["model"]["backbone"]: path for path in summaries("runs")}
    yield done, runs, files


def test_what_does_not_suit_is_left_out_of_a_sweep(swept):
  (status, out, err), runs, files = swept
  assert (status, err) == (0, "")
  assert sorted(runs) == ["cnn", "fasttext"]
  assert "sweep     2 runs: 2 waiting; 2 left out\n" in out
  sentence = "rpr acts in attention, which model=cnn does not have; choose an encoding of the input"
  assert f"job 4/4: model=cnn encoding=rpr: left out: {sentence}" in out
  typed = command("-m", "model=cnn", "encoding=rpr,alibi", *files, *TINY)
  assert typed.refusal.startswith(sentence)


def test_the_header_says_what_is_trained(swept):
  (_, out, _), runs, _ = swept
  assert "          fasttext: d_model 8, float32\n" in out  # of the first alone
  log = (runs["cnn"] / "train.log").read_text()
  assert "cnn: d_model 8, filters 100 of each width 3, 4, 5, float32\n" in log
  assert "blind" not in out + log


def test_a_run_is_measured_with_everything_on_alone(swept, capsys):
  path = swept[1]["cnn"]
  (found,) = evaluate.evaluate(evaluate.arguments([str(path)]))
  assert found["on"]["accuracy"] == read_run(path).summary["test/accuracy"]
  for flags in (["--grid"], ["--without", "content"]):
    with pytest.raises(UserError, match="terms of attention, which model=cnn does not have"):
      evaluate.evaluate(evaluate.arguments([str(path), *flags]))


def test_a_run_is_inspected_without_attention(few_positions, swept, capsys, tmp_path):
  path = swept[1]["cnn"]
  files = inspect.inspect([f"run={path}", f"out={tmp_path}"])
  names = {file.stem for file in files}
  assert names == {"vectors", "products-by-offset", "frequencies-by-word"}
  assert "none in model=cnn, so what acts there is left out" in capsys.readouterr().out
  with pytest.raises(UserError, match="model=cnn has no attention to be compared"):
    head_distances.compare(path, [swept[1]["fasttext"]])
  with pytest.raises(UserError, match="rpr acts in attention, which model=lstm does not have"):
    inspect.inspect(["encoding=rpr", "model=lstm"])


def test_a_run_comes_back_with_its_network(swept):
  trained = open_trained(swept[1]["fasttext"])
  assert trained.spec.size.backbone == "fasttext"
  assert trained.snapshot.model().stacks == ()
