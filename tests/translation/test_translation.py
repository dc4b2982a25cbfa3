"""Translation from the command line: what it learns, says, keeps, repeats and refuses."""

import contextlib
import dataclasses
import itertools
import json
import re
from pathlib import Path

import finished
import jax
import numpy as np
import pytest
import sacrebleu
from order import NUMBERS, command

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.errors import UserError
from posexp.runs import bleu, read_run
from posexp.runs.checkpoints import Checkpoints
from posexp.tasks import make_task
from posexp.training import terminal
from posexp.training.evaluation import gathered
from posexp.training.restore import open_trained
from posexp.translation.corpus import Corpus
from posexp.translation.encoded import EOS
from posexp.translation.parallel import TextPair
from posexp.translation.task import tokenizers

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def options(home):
  return finished.pairs(Path())


@pytest.fixture(scope="module")
def learned(options):
  """What a run said that has learned an order, its folder, and what was compiled."""
  out, counts = finished.translator(Path("learned"))
  return out, Path("learned"), counts


def test_scores_are_those_of_the_hypotheses_that_are_kept(learned):
  path = learned[1]
  summary = read_run(path).summary
  rows = [json.loads(line) for line in (path / "predictions/test.jsonl").open()]
  said = (path / "predictions/test.txt").read_text().splitlines()
  references = Path("test.de").read_text().splitlines()
  assert [row["source"] for row in rows] == Path("test.en").read_text().splitlines()
  assert [row["reference"] for row in rows] == references
  assert [row["hypothesis"] for row in rows] == said
  assert all(np.isfinite(row["score"]) and row["score"] <= 0 for row in rows)
  assert summary["test/bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, [references]).score)
  assert summary["test/chrf"] == pytest.approx(sacrebleu.corpus_chrf(said, [references]).score)
  equal = [one == other for one, other in zip(said, references, strict=True)]
  assert summary["test/exact_match"] == pytest.approx(np.mean(equal))
  short = [len(row["source"].split()) <= 5 for row in rows]
  assert summary["test/examples/1-5"] == sum(short)
  assert summary["test/examples/6-10"] == len(rows) - sum(short)
  of_short = np.mean([one for one, is_short in zip(equal, short, strict=True) if is_short])
  assert summary["test/exact_match/1-5"] == pytest.approx(of_short)
  assert summary["test/perplexity"] == pytest.approx(np.exp(summary["test/loss"]))
  assert re.search(r"tok:13a\|.*version:", summary["bleu_signature"])


def test_the_table_says_what_the_summary_holds(learned):
  out, path, _ = learned
  summary = read_run(path).summary
  last = out[out.rindex("\nat step") :]
  for label, name, form in (("BLEU", "bleu", ".2f"), ("exact match", "exact_match", ".4f")):
    figures = [f"{summary[f'{split}/{name}']:{form}}" for split in ("validation", "test")]
    assert re.search(rf"^{label} +{figures[0]} +{figures[1]}$", last, re.MULTILINE)
  assert summary["bleu_signature"] in last
  assert re.search("^test, by words of source +1-5 +6-10$", last, re.MULTILINE)


def test_parts_are_by_characters_where_no_blanks_part_the_words():
  pairs = [TextPair("小狗追了王伟", "b"), TextPair("狗", "b")]
  assert bleu.parts(pairs) == {"1-5": [0, 1]}
  assert bleu.parts(pairs, words=False) == {"1-5": [1], "6-10": [0]}


def test_nothing_is_compiled_per_batch(learned):
  _, path, counts = learned
  buckets = len(open_trained(path).data.bucket_lengths)
  assert 1 <= counts["update"] <= buckets
  assert 1 <= counts["predict"] <= buckets
  assert 1 <= counts["begin"] <= 2 * buckets  # greedy, and by beam search
  assert 1 <= counts["advance"] <= 4 * buckets  # for the first cache, and the longest hypotheses


def test_the_mean_of_the_last_checkpoints_is_what_is_tested(learned):
  path = learned[1]
  summary = read_run(path).summary
  assert summary["averaged"] == [220, 240]
  trained, files = open_trained(path), path / "checkpoints"
  found = trained.snapshot
  with contextlib.closing(Checkpoints(files, read_only=True)) as checkpoints:
    first, last = (checkpoints.load(step, found.state).params for step in (220, 240))
  mean = jax.tree.map(lambda a, b: (np.asarray(a) + b) / 2, first, last)
  for one, other in zip(jax.tree.leaves(mean), jax.tree.leaves(found.state.params), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
  task = trained.setup.task
  measured = task.scores(task.predict(trained.data, found, "test"))
  assert measured["loss"] == pytest.approx(summary["test/loss"], rel=1e-5)


def test_separate_vocabularies_are_kept_apart(options, tmp_path):
  files = {"train": "train", "validation": "validation", "test": "test"}
  data = Corpus(**files, vocab_size=330, joint=False).prepare(tmp_path)
  assert not (tmp_path / "tokenizer.json").exists()
  first, second = (
    (tmp_path / f"tokenizer.{side}.json").read_text() for side in ("source", "target")
  )
  assert "red" in first
  assert "red" not in second
  assert re.search(r"vocabulary \d+ and \d+", data.about[1])


class Oracle:
  """A snapshot that translates all but every third sentence as the data have it."""

  batch_size, graphdef = 256, None

  def map(self, function, batches):
    def found(batch):
      tokens = np.where(batch["index"][:, None] % 3, batch["labels"], EOS)
      return {"tokens": tokens, "length": batch["mask"].sum(1), "score": np.zeros(len(tokens))}

    return gathered((batch, found(batch)) for batch in batches)

  def predict(self, batches, term_scale=None, split=""):
    def found(batch):
      tokens = batch["mask"].sum(1)
      return {"loss": 2.0 * tokens, "tokens": tokens, "right": tokens}

    return gathered((batch, found(batch)) for batch in batches)


def test_numbers_are_measured_in_groups_and_beyond_training(home, tmp_path):
  task = make_task(resolve(compose(NUMBERS)))
  data = task.prepare(tmp_path)
  summary = {"step": 1} | task.conclude(data, Oracle(), tmp_path)
  groups = {name.split("/")[2] for name in summary if name.startswith("test/exact_match/")}
  assert groups == {"numbers", "years", "dates"}
  texts = [text.group for text in data.texts_of["test"]]
  for group in groups:
    right = [place % 3 > 0 for place, text in enumerate(texts) if text == group]
    assert summary[f"test/exact_match/{group}"] == pytest.approx(np.mean(right))
    assert summary[f"test/examples/{group}"] == len(right)
  assert summary["beyond/examples/3"] == 300
  assert summary["beyond/exact_match/3"] == pytest.approx(2 / 3)
  assert summary["beyond/loss"] == 2
  assert re.search(r"^beyond +3$", "\n".join(task.table(summary)), re.MULTILINE)


def test_where_bleu_does_not_apply_chrf_chooses_and_it_is_said(home, tmp_path, caplog):
  words = itertools.product(finished.WORDS, repeat=3)
  rows = [f"{a} {b} {c}\t{c} {b} {a}" for a, b, c in words]
  (tmp_path / "a.tsv").write_text("\n".join(["en\tde", *rows]))
  config = [f"task.train={tmp_path / 'a.tsv'}", "task=translation", "task.vocab_size=300"]
  task = make_task(resolve(compose(config)))
  data = task.prepare(tmp_path)
  assert task.chosen_by(data) == "validation/chrf"
  assert data.notes[-1] == (
    "BLEU does not apply to validation, test: no reference has 4 tokens; validation chrF "
    "chooses the checkpoint"
  )
  summary = {"step": 1, "validation/chrf": 5.0} | task.conclude(data, Oracle(), tmp_path)
  assert not any("bleu" in name for name in summary)
  table = "\n".join(task.table(summary))
  assert re.search("^BLEU +-$", table, re.MULTILINE)
  assert "BLEU does not apply" in table
  row = {"step": 2, "validation/loss": 1.0, "validation/accuracy": 0.5, "train/loss": 1.0}
  row |= {"validation/exact_match": 0.5, "time/tokens_per_second": 1.0}
  with caplog.at_level("INFO", "posexp"):
    terminal.evaluation(task, 2, [row], best=True)
  assert "exact match 0.500" in caplog.text
  assert "BLEU" not in caplog.text


@pytest.mark.parametrize(
  ("typed", "words"),
  [
    ("task.target=fr", "train.fr"),
    ("train.batch_size=4", "train.batch_size=4: it counts tokens, and the longest batches have 8"),
    ("learned.length=4", "learned.length=4 gives 4 positions: the longest sentence has"),
  ],
)
def test_a_mistake_is_one_sentence(options, typed, words):
  more = ["encoding=learned"] if typed.startswith("learned") else []
  assert words in command(*options, *more, typed, "runs=refused").refusal


def test_the_tokenizer_of_another_run_is_refused(options, tmp_path):
  task = Corpus(train="train", validation="validation", test="test", vocab_size=270)
  found = task.prepare(tmp_path)
  assert task.prepare(tmp_path) is found
  other = dataclasses.replace(task, vocab_size=280)
  other.prepare(tmp_path / "other")
  (tmp_path / "tokenizer.json").write_text((tmp_path / "other/tokenizer.json").read_text())
  with pytest.raises(UserError, match="not the tokenizer that the run was trained with"):
    task.prepare(tmp_path)
  with pytest.raises(UserError, match=r"tokenizer\.json is missing; the run cannot be read"):
    tokenizers(task, tmp_path / "none")
