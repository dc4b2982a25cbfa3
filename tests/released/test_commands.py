"""A released model in the commands, as a run is: measured, written on with, and trained further."""

import json
import shutil
from pathlib import Path

import fuzz
import jax
import numpy as np
import order
import pytest
from small_models import MODELS, byte_level, changed, decoder
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import posexp
from posexp import evaluate
from posexp.language import context, generate, score
from posexp.released.weights import Released
from posexp.runs.records import read_records

TEXT = "the cat sat on the mat and the dog sat by the door of the house where it was cold. "
TINY = ["train.steps=3", "train.evaluate_every=2", "train.batch_size=4", "wandb.mode=disabled"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
  """A released decoder with a tokenizer that puts <s> before a text, and a text."""
  folder, tokenizer = tmp_path_factory.mktemp("llama") / "model", byte_level(("<s>", "</s>"))
  first = ("<s>", tokenizer.token_to_id("<s>"))
  tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[first])
  decoder(folder, tokenizer, rows=310)
  (folder.parent / "text.txt").write_text(TEXT * 40)
  return folder


@pytest.fixture
def there(tmp_path):
  with order.home(tmp_path):
    yield tmp_path


def test_a_text_is_scored_as_the_model_scores_it(llama, there, capsys):
  (there / "own.txt").write_text(TEXT)
  found = order.work(score, f"hf:{llama}", "own.txt")
  model = posexp.load(f"hf:{llama}")
  ids = np.array([model.tokenizer.encode(TEXT).ids])
  logits = np.asarray(model(ids[:, :-1]))
  nll = jax.nn.logsumexp(logits, -1) - np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
  np.testing.assert_allclose(found[0].nats, nll[0], atol=2e-5)
  assert f"{len(ids[0]) - 1} tokens" in capsys.readouterr().out
  changed = order.work(score, f"hf:{llama}", "encoding=none", "own.txt")
  assert changed[0].total != found[0].total


@pytest.mark.slow
def test_what_is_generated_is_the_likeliest(llama, there, capsys):
  order.work(generate, f"hf:{llama}", "the cat", "--temperature", "0", "--tokens", "5")
  model = posexp.load(f"hf:{llama}")
  ids = np.array([model.tokenizer.encode("the cat").ids])
  expected = model.tokenizer.decode(np.asarray(model.greedy(ids, 5))[0].tolist())
  assert capsys.readouterr().out.strip() == f"the cat{expected}".strip()


def test_terms_are_switched_off_and_losses_measured_by_context(llama, there, capsys):
  data = ["task=language_modeling", f"task.train={llama.parent / 'text.txt'}", "task.segment=16"]
  data += ["train.batch_size=4"]
  asked = [*data, "--without", "rotated", "--records", "kept.parquet"]
  (found,) = order.work(evaluate, f"hf:{llama}", *asked)
  runs = read_records(Path("kept.parquet"))
  assert {run.settings["init"] for run in runs} == {
    f"hf/{Released.open(f'hf:{llama}').digest()[:12]}"
  }
  on, (off,) = found["on"], found["off"]
  assert off["change"] == pytest.approx(off["bits_per_byte"] - on["bits_per_byte"], abs=1e-9)
  assert off["change"] != 0
  order.work(context, f"hf:{llama}", *data, "rope.base=3", "--at", "4,8", "--positions", "32")
  assert "released" in str([*Path("runs").iterdir()])


@pytest.mark.parametrize("other", [[], pytest.param(["encoding=none"], marks=pytest.mark.slow)])
def test_training_goes_on_from_its_weights(llama, there, other):
  data = ["task=language_modeling", f"task.train={llama.parent / 'text.txt'}", "task.segment=16"]
  done = order.command(*data, f"init=hf:{llama}", "seed=0", *TINY, *other)
  assert (done.status, done.err) == (0, "")
  path = order.only("runs")
  run = posexp.load(path)
  released = posexp.load(f"hf:{llama}")
  ids = np.array([released.tokenizer.encode(TEXT).ids[:9]])
  own = np.array([[0, *run.tokenizer.encode(TEXT)[:8]]])
  assert run(own).shape == released(ids).shape
  row = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
  assert row["step"] == 0
  if not other:  # at step 0 these are the released weights
    same = [*data, "train.batch_size=4", "--split", "validation"]
    (found,) = order.work(evaluate, f"hf:{llama}", *same)
    assert found["on"]["loss"] == pytest.approx(row["validation/loss"], rel=1e-4)


def test_an_encoder_classifies(there):
  folder = there / "bert"
  changed(folder, "bert", words=40)
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", *order.COLORS]
  tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  around = [("[CLS]", 2), ("[SEP]", 3)]
  tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
  tokenizer.save(str(folder / "tokenizer.json"))
  data = [each for each in order.write(there) if not each.startswith("model.")]
  done = order.command(*data, f"init=hf:{folder}", *TINY)
  assert (done.status, done.err) == (0, "")
  notes = json.loads((order.only("runs") / "parent.json").read_text())
  assert notes["new"] == ["head/bias", "head/kernel"] or notes["new"] == ["head/kernel"]
  assert all(each.startswith(("transform", "bias")) for each in notes["dropped"])


def test_what_cannot_be_opened_is_said_in_one_sentence(llama, there):
  shutil.copytree(llama, there / "mute")
  (there / "mute" / "tokenizer.json").unlink()
  for name, message in (
    ("hf:mute", "no tokenizer.json in it"),
    (f"hf:{MODELS / 'bert'}", "is an encoder, which writes no text"),
    ("hf:nowhere/at all", "no such folder, and no name on the hub"),
  ):
    assert message in fuzz.typed("generate", name, "x").refusal
