"""Language models at the command line: texts that they write, and what texts cost them."""

import io
import json
import math
import shutil
import sys
import types

import fuzz
import numpy as np
import pytest
from order import command, only, work

from posexp.analysis import ablation
from posexp.language import generate, sampling, score, scoring
from posexp.language.task import LanguageModeling
from posexp.runs.predictions import load_predictions

WORDS = ["the", "cat", "séance", "sat", "on", "a", "mat"]
SEGMENT, MEMORY = 8, 12
OPTIONS = [
  "task=language_modeling", "task.tokenizer=char", f"task.segment={SEGMENT}",
  "encoding=transformer_xl", f"model.memory={MEMORY}", "model.d_model=16", "model.num_heads=2",
  "model.d_ff=16", "model.num_layers=1", "train.batch_size=4", "train.steps=30",
  "train.evaluate_every=30", "train.warmup=2", "train.learning_rate=0.02", "wandb.mode=disabled",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("opened_once")


def words(count, seed):
  return " ".join(np.random.default_rng(seed).choice(WORDS, count)) + "\n"


@pytest.fixture(scope="module")
def text(home):
  """The test split."""
  (home / "test.txt").write_text(words(300, 1), encoding="utf-8")
  return words(300, 1)


@pytest.fixture(scope="module")
def trained(home, text):
  """The folder of a run, without its data, and its summary."""
  for split, count in {"train": 800, "validation": 60}.items():
    (home / f"{split}.txt").write_text(words(count, count), encoding="utf-8")
  files = [f"task.{split}={home / split}.txt" for split in ("train", "validation", "test")]
  done = command(*OPTIONS, *files, "runs=runs")
  assert (done.status, done.err) == (0, "")
  run = only("runs")
  shutil.copytree(run, home / "alone")
  for split in ("train", "validation"):
    (home / f"{split}.txt").unlink()
  for kept in ("documents", "tokens", "vocabularies"):
    shutil.rmtree(home / "cache/posexp" / kept)
  return home / "alone"


@pytest.fixture
def say(capsys, monkeypatch):
  """Types a command with some standard input, and returns what it found and what it prints."""

  def say(module, *argv, given=""):
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    found = work(module, *argv)
    out, err = capsys.readouterr()
    return found, out, err

  return say


def test_the_text_of_the_test_split_costs_what_the_run_says(trained, home, text, say):
  summary = json.loads((trained / "summary.json").read_text())
  found, out, err = say(score, trained, home / "test.txt")
  (costs,) = found
  assert err == ""
  assert f"{len(text.encode()):,} bytes, {len(text):,} characters" in out
  bits = costs.total / math.log(2)
  assert bits / len(text.encode()) == pytest.approx(summary["test/bits_per_byte"], abs=1e-5)
  assert bits / len(text) == pytest.approx(summary["test/bits_per_char"], abs=1e-5)
  assert f"{summary['test/bits_per_byte']:.4f}" in out
  assert len(costs.tokens) == summary["test/tokens"] == len(text)


@pytest.mark.parametrize(
  ("memory", "how", "later"),
  [(5, "memory of 5, segments of 8", range(6, 14)), (0, "windows of 8, 4 apart", range(5, 9))],
)
def test_each_token_is_shown_once_with_what_it_costs(trained, text, say, memory, how, later):
  typed = (score, trained, "-", "--per-token", "--memory", memory)
  (costs,), out, err = say(*typed, given=text[:85])
  head, *rows = (line.split("\t") for line in out.splitlines())
  assert head == ["nats", "bits", "context", "token"]
  assert "".join(json.loads(row[3]) for row in rows) == text[:85]
  assert [int(row[2]) for row in rows] == [*range(1, 9), *[*later] * 20][:85]
  assert sum(float(row[0]) for row in rows) == pytest.approx(costs.total, abs=1e-2)
  assert sum(float(row[1]) for row in rows) == pytest.approx(costs.total / math.log(2), abs=1e-2)
  assert how in err
  (first,), *_ = say(*typed, given=text[:SEGMENT])
  np.testing.assert_allclose(costs.nats[:SEGMENT], first.nats, atol=1e-5)


def test_parts_of_characters_are_shown_as_bytes():
  class Bytes:
    def decode(self, ids):
      return bytes(ids)

  tokens = np.frombuffer("é\n\u202e".encode(), np.uint8)
  costs = scoring.TokenLosses("", tokens, np.ones(len(tokens)), np.ones(len(tokens), int))
  shown = [line.split("\t")[3] for line in scoring.lines(Bytes(), costs)][1:]
  assert shown == [r'"\\xc3"', r'"\\xa9"', r'"\n"', r'"\\xe2"', r'"\\x80"', r'"\\xae"']


def test_a_text_goes_on_from_its_prompt(trained, say):
  _, out, err = say(generate, trained, "the cat", "--tokens", 12)
  assert (out[:7], len(out), out[-1], err) == ("the cat", 7 + 12 + 1, "\n", "")
  assert say(generate, trained, "the cat", "--tokens", 12)[1] == out
  assert say(generate, trained, "the cat", "--tokens", 12, "--seed", 1)[1] != out
  assert say(generate, "--tokens", 12, trained, given="the cat\r\n")[1] == out
  greedy = [
    say(generate, trained, "", "--tokens", 9, *options)[1]
    for options in (["--temperature", 0], ["--top-k", 1, "--seed", 7], ["--top-p", 1e-6])
  ]
  assert greedy[0] == greedy[1] == greedy[2]


def test_a_run_has_gone_on_with_parts_of_its_test_split(trained, text, say):
  rows = load_predictions(trained, "generated")
  assert [row["index"] for row in rows] == [*range(8)]
  assert len({row["prompt"] for row in rows}) > 1
  for row in rows:
    assert row["prompt"] in text
    assert (len(row["prompt"]), len(row["text"])) == (SEGMENT // 2, SEGMENT // 2)
  for row in rows[::4]:  # the first one of each batch
    _, out, _ = say(generate, trained, row["prompt"], "--tokens", SEGMENT // 2)
    assert out == f"{row['prompt']}{row['text']}\n"


def test_a_text_ends_where_the_model_ends_it(trained, say, monkeypatch):
  ids = LanguageModeling(train="t.txt").vocabulary(trained).encode("mat")
  texts = [[*ids, 0, ids[0], ids[0]], [ids[0], 0, 0, 0, ids[0], ids[0]]]
  drawn = []

  def columns(*_, rows, **__):
    for column in zip(*texts[:rows], strict=True):
      drawn.append(column)
      yield np.array(column), None

  monkeypatch.setattr(sampling, "generate", columns)
  assert say(generate, trained, "a ")[1] == "a mat\n"
  assert len(drawn) == 4
  _, out, _ = say(generate, trained, "a ", "--samples", 2)
  assert out == "--- sample 1 ---\na mat\n\n--- sample 2 ---\na m\n"


def test_a_character_is_printed_when_it_is_whole(capsys):
  show, seen = generate.Printer(), []
  for byte in "é\x1b\t\n🜚".encode() + b"\xff\xe2":
    show(bytes([byte]))
    seen.append(capsys.readouterr().out)
  assert seen == ["", "é", "�", "\t", "\n", "", "", "", "🜚", "�", ""]
  show(b"", last=True)
  assert capsys.readouterr().out == "�"


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("generate RUN a --top-p 0", "--top-p must be from"),
    ("generate RUN a --tokens 0", "--tokens must be at least 1, not 0"),
    ("generate RUN a --memory -1", "model.memory must be from 0"),
    ("generate RUN caty", "the character 'y' (U+0079) is none of the 12"),
    ("generate RUN", "standard input: not valid UTF-8"),
    ("score RUN gone.txt", "gone.txt: there is no such file"),
    ("score RUN empty.txt", "empty.txt: the file is empty"),
    ("score RUN binary", "binary, line 1: not valid UTF-8"),
    ("score RUN test.txt --segment 9999999", "segments of 9999999: segment must"),
    ("score RUN test.txt more.txt", "name RUN and FILE, and options as OPTION=VALUE"),
    ("translate RUN a", "is a run of language_modeling, whose commands are evaluate, context, "),
    ("score RUN test.txt --per-token --memory 1,2", "--per-token is for one --memory"),
  ],
)
def test_mistakes_are_one_sentence(argv, message, trained, home):
  (home / "empty.txt").write_text(" \n")
  (home / "binary").write_bytes(bytes(range(128, 256)))
  words = argv.replace("RUN", str(trained)).split()
  assert message in fuzz.typed(*words, given=b"caf\xe9\n").refusal


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("RUN --text test.txt --segment 4", "score RUN test.txt --segment 4"),
    ("RUN --context=4 --positions 9", "context RUN --at 4 --positions 9"),
    ("RUN --lengths 5:9", "lengths RUN 5:9"),
  ],
)
def test_flags_that_other_commands_have_are_taken_and_told(old, new, trained, home):
  old, new = (line.replace("RUN", str(trained)).split() for line in (old, new))
  then, now = fuzz.typed("evaluate", *old), fuzz.typed(*new)
  said = f"typed in another command now: python -m posexp.{' '.join(new)}\n"
  assert then[:2] == now[:2]
  assert then.err.partition(said)[1:] == (said, now.err)


def test_bytes_that_no_token_stands_for_count_8_bits_each():
  costs = scoring.TokenLosses("at once", np.arange(2), np.zeros(2), np.ones(2))
  assert "3.4286" in scoring.table("the dog", [costs], 3)


def test_bits_with_terms_off_are_of_the_exact_text_as_those_of_the_run():
  def found(bits):
    counts = {name: np.array([30, 50]) for name in ("bytes", "chars", "tokens")}
    return counts | {
      "loss": np.full(2, bits * math.log(2)),
      "right": np.ones(2),
      "answer": np.ones(2),
    }

  task, shown = LanguageModeling(train="a.txt"), iter([found(10), found(11)])
  stub = types.SimpleNamespace(predict=lambda *_: next(shown), scores_of=task.scores_of)
  text = types.SimpleNamespace(bytes=100, chars=100)
  data = types.SimpleNamespace(streams={"test": types.SimpleNamespace(source=text, unspelled=5)})
  trained = types.SimpleNamespace(setup=types.SimpleNamespace(task=stub), data=data, snapshot=None)
  on, off = ablation.measure(trained, "test", [None, None])
  assert [on["bits_per_byte"], off["bits_per_byte"]] == pytest.approx([0.6, 0.62])
  assert off["change"] == pytest.approx(0.02)
