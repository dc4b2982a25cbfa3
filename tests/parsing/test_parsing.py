"""Parsing as a task: what is measured and written, and sentences parsed by a trained run."""

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import fuzz
import numpy as np
import pytest
from order import MODEL, command, only

from posexp.parsing import figures, grammar, sources, trees
from posexp.parsing.sources import Grammar
from posexp.runs import read_run
from posexp.runs.predictions import load_predictions
from posexp.training.restore import open_trained


class Oracle:
  """A snapshot that finds the trees of the treebank, but for the last labels of some sentences."""

  batch_size = 16

  def __init__(self, data, wrong=0):
    self.data, self.wrong = data, wrong

  def predict(self, batches, term_scale=None, split=""):
    sentences, labels = self.data.trees_of[split], self.data.lexicon.label_ids
    spans = np.zeros((len(sentences), 80, 3), int)
    for index, tree in enumerate(sentences):
      found = [(*span, labels[chain]) for span, chain in trees.chains(tree).items()]
      spans[index, : len(found)] = found
    spans[: self.wrong, 1:] = 0
    return {"loss": np.full(len(spans), 2.5), "spans": spans}


@pytest.fixture(scope="module")
def drawn(home):
  folder = Path("grammar")
  folder.mkdir()
  task = Grammar(examples=200)
  return task, task.prepare(folder), folder


def test_the_ceiling_reads_what_the_parser_reads(drawn, monkeypatch):
  (tree, *_), seen = drawn[1].trees_of["test"], []
  monkeypatch.setattr(sources.grammar, "best", lambda *_, **see: seen.append(see) or (tree, 0.0))
  monkeypatch.setattr(sources.storage, "cached", lambda _, compute, *parts: compute())
  for inputs in ("words", "characters", "tags", "both"):
    assert Grammar(inputs=inputs).ceiling([tree])["f1"] == 1
  assert [each["see_words"] for each in seen] == [True, True, False, True]
  assert [each["see_tags"] for each in seen] == [False, False, True, True]


def test_a_perfect_parser_gets_everything(drawn):
  task, data, folder = drawn
  summary = task.conclude(data, Oracle(data), folder)
  for name in ("f1", "recall", "precision", "exact_match", "unlabeled_f1"):
    assert summary[f"test/{name}"] == 1
    assert 0 <= summary[f"baseline/test/{name}"] < 0.5
  assert summary["test/loss"] == 2.5
  assert 0.85 < summary["ceiling/test/f1"] < 1
  assert 0.5 < summary["baseline/test/pcfg/f1"] < summary["ceiling/test/f1"]
  groups = [key for key in summary if key.startswith("test/sentences/")]
  assert sum(summary[key] for key in groups) == data.sizes["test"]
  gold, parsed = (
    (folder / "predictions" / f"test.{name}.mrg").read_text() for name in ("gold", "parsed")
  )
  assert gold == parsed == "".join(f"{trees.brackets(t)}\n" for t in data.trees_of["test"])


def test_predictions_count_what_the_metrics_are_made_of(drawn):
  task, data, folder = drawn
  summary = task.conclude(data, Oracle(data, wrong=7), folder)
  rows = load_predictions(folder, "test")
  assert [row["index"] for row in rows] == list(range(data.sizes["test"]))
  matched, gold, predicted = (
    sum(row[name] for row in rows) for name in ("matched", "gold", "predicted")
  )
  assert matched == predicted < gold
  assert summary["test/f1"] == 2 * matched / (gold + predicted)
  assert summary["test/exact_match"] == 1 - 7 / len(rows)
  found = task.predict(data, Oracle(data, wrong=7), "test")
  assert found["right"].sum() / found["tokens"].sum() == pytest.approx(summary["test/f1"])
  measured = task.scores(found)
  summary |= {"step": 9} | {f"validation/{name}": value for name, value in measured.items()}
  lines = list(task.table(summary))
  shown = [summary[f"{split}/f1"] for split in ("validation", "test")]
  assert lines[1].split() == ["F1", *(f"{score:.4f}" for score in shown)]
  (at,) = (i for i, line in enumerate(lines) if line.startswith("PCFG of the training trees, F1"))
  assert float(lines[at].split()[-1]) == round(summary["baseline/test/pcfg/f1"], 4)
  ahead = 100 * (summary["test/f1"] - summary["baseline/test/pcfg/f1"])
  assert lines[at + 1].split()[-1] == f"{ahead:+.2f}"
  assert f"F1 {summary['ceiling/test/f1']:.4f}" in lines[-1]


# Sentences of one's own


pytestmark = pytest.mark.usefixtures("opened_once")


@pytest.fixture(scope="module")
def trained(home):
  """The folder of a run that has learned short sentences."""
  short = [tree for tree in grammar.draw(900, seed=0) if len(tree.words) <= 6]
  Path("short.mrg").write_text("".join(f"{trees.brackets(tree)}\n" for tree in short))
  options = ["task=parsing", "task.train=short.mrg", "train.batch_size=16", "train.steps=120"]
  options += ["train.evaluate_every=120", "train.learning_rate=1e-2", "model.dropout=0"]
  typed = command(*options, *MODEL, "wandb.mode=disabled", "runs=runs")
  assert (typed.status, typed.err) == (0, "")
  return only("runs")


def test_sentences_are_parsed_as_in_the_test(trained):
  rows = load_predictions(trained, "test")
  text = "".join(
    " ".join(f"{word}/{tag}" for word, tag in zip(tree.words, tree.tags, strict=True)) + "\n"
    for tree in itertools.islice(trees.read([str(trained / "predictions/test.gold.mrg")]), 5)
  )
  found = fuzz.typed("parse", trained, "--batch", 2, given=f"\n{text}".encode())
  assert found.out.split("\n") == ["", *(row["parse"] for row in rows[:5]), ""]
  assert found.err == ""


def test_a_tree_is_printed_and_drawn_and_missing_tags_are_said(trained, tmp_path):
  file = tmp_path / "tree.svg"
  found = fuzz.typed("parse", trained, "Ann slept (", "--svg", file)
  ((_, tree),) = trees.parsed("", found.out)
  assert tree.words == ("Ann", "slept", "-LRB-")
  assert tree.tags[:2] == ("NNP", "VBD")
  assert found.err.startswith("note: no tags were given: each word has the one that it most often")
  assert found.err.endswith("; 1 word of no training tree got NN\n")
  drawn = "".join(ElementTree.parse(file).getroot().itertext())
  assert all(word in drawn for word in (*tree.words, *tree.tags))


def test_words_are_drawn_as_they_are():
  ((_, tree),) = trees.parsed("", r"(S (CD $5-$6) (NN $\n$) (NN 方法))")
  drawn = ElementTree.fromstring(figures.drawn(tree)).itertext()
  assert {"$5-$6", r"$\n$", "方法"} <= {*drawn}


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["Ann/NNP slept"], "text 1: 'slept' has no tag of the training trees, as other words have"),
    (["Ann", "Ann/NNP slept/XYZ"], "text 2: 'slept/XYZ' has no tag of the training trees"),
    (["x" * 20_001], "text 1 has a word of 20,001 letters"),
    (["a", "b", "--svg", "x.svg"], "--svg draws the tree of one TEXT, not of 2"),
    ([" ", "--svg", "x.svg"], "--svg draws the tree of one TEXT, not of 0"),
    (["Ann slept .", "--svg", "missing/x.svg"], "--svg missing/x.svg cannot be written"),
    (["--batch", "0"], "--batch must be at least 1"),
  ],
)
def test_mistakes_are_one_sentence(trained, argv, message):
  status, _, err = fuzz.typed("parse", trained, *argv)
  assert (status, err.count("\n")) == (2, 1)
  assert message in err


def test_a_run_learns_and_is_opened_again_with_its_data(trained):
  opened, summary = open_trained(trained), read_run(trained).summary
  assert summary["test/f1"] > 0.9 > summary["baseline/test/f1"]
  assert summary["validation/f1"] > 0.9
  found = opened.setup.task.predict(opened.data, opened.snapshot, "test")
  assert opened.setup.task.scores(found)["f1"] == summary["test/f1"]
