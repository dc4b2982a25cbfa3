"""Lines translated by a trained run, from its folder alone; and what it attends to meanwhile."""

import gzip
import io
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import order
import pytest
import yaml
from flax import nnx
from order import command, only
from states import assert_equal

from posexp import translate
from posexp.analysis import maps
from posexp.config import build, make_encoding
from posexp.data.tokenizer import EOS
from posexp.decoding import Search
from posexp.errors import UserError
from posexp.fairness import matched
from posexp.models import OfTranslator
from posexp.optimizer import Training
from posexp.run import Run, open_run
from posexp.sentences import Sentences, enough, padded
from posexp.trained import open_translator
from posexp.training import mesh_for, program
from posexp.transformer import Size

pytestmark = pytest.mark.usefixtures("compile_quickly")

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "ü": "$5$"}
OPTIONS = [
  "task=translation",
  "task.vocab_size=280",
  "task.max_length=10",
  "model.d_model=32",
  "model.num_heads=2",
  "model.d_ff=32",
  "model.num_layers=1",
  "model.dropout=0",
  "train.batch_size=128",
  "train.steps=100",
  "train.evaluate_every=100",
  "train.warmup=5",
  "train.learning_rate=0.01",
  "wandb.mode=disabled",
]


def write(folder, longest=3):
  """Writes the files of a task and returns the options of a tiny model that reads them."""
  draw = random.Random(0)
  for split, size in {"train": 200, "validation": 20, "test": 41}.items():
    texts = [draw.choices(list(WORDS), k=draw.randint(1, longest)) for _ in range(size)]
    pairs = [{"en": " ".join(text), "de": " ".join(WORDS[each] for each in text)} for text in texts]
    rows = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    (folder / f"{split}.jsonl").write_text(rows, encoding="utf-8")
  files = [f"task.{split}={folder / split}.jsonl" for split in ("train", "validation", "test")]
  return [*OPTIONS, *files]


@pytest.fixture(scope="module")
def home(tmp_path_factory, compile_quickly):
  path = tmp_path_factory.mktemp("home")
  with order.home(path):
    yield path


@pytest.fixture(scope="module")
def trained(home):
  """The folder of a finished run."""
  done = command(*write(home), "encoding=rpr", "rpr.k=2", "runs=runs")
  assert (done.status, done.err) == (0, "")
  return only("runs")


@pytest.fixture(scope="module")
def run(trained, home):
  """The run's folder alone, somewhere else: its data are gone."""
  shutil.copytree(trained, home / "alone")
  for split in ("train", "validation", "test"):
    (home / f"{split}.jsonl").rename(home / f"gone.{split}.jsonl")
  for kept in ("encoded", "tokenizers"):
    shutil.rmtree(home / "cache/posexp" / kept)
  return home / "alone"


@pytest.fixture(scope="module")
def tested(trained):
  """The sources of the test split, and what the run made of them."""
  text = (trained / "predictions/test.jsonl").read_text(encoding="utf-8")
  return [json.loads(row) for row in text.splitlines()]


class Input(io.TextIOWrapper):
  """Standard input, of which it is known when each line was read."""

  def __init__(self, lines, terminal=False):
    super().__init__(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
    self.isatty = lambda: terminal


def typed(*argv):
  translate.translate(translate.arguments(list(map(str, argv))))


@pytest.fixture
def say(capsys):
  """Types a command, and returns the lines of standard output and those of standard error."""

  def say(*argv):
    capsys.readouterr()
    typed(*argv)
    out, err = capsys.readouterr()
    assert not out or out.endswith("\n")
    return out.split("\n")[:-1], err.splitlines()

  return say


def test_it_says_what_the_run_said_of_its_test_split(run, tested, say, tmp_path):
  file = tmp_path / "test.en"
  file.write_text("".join(row["source"] + "\n" for row in tested), encoding="utf-8")
  out, err = say(run, "--file", file, "--batch", 16, "--scores")
  scores, said = zip(*(line.split("\t") for line in out), strict=True)
  assert list(said) == [" ".join(row["hypothesis"].split()) for row in tested]
  assert list(map(float, scores)) == pytest.approx([row["score"] for row in tested], abs=1e-3)
  assert len(set(said)) > 5
  assert err[-1].startswith("41 sentences in ")
  assert " sentences/s, " in err[-1]


def test_lines_come_in_any_of_the_ways_and_leave_in_order(run, tested, say, tmp_path, monkeypatch):
  lines = [row["source"] for row in tested[:5]]
  lines[2:2] = ["", "  "]
  expected, _ = say(run, *lines)
  assert expected[2:4] == ["", ""]
  assert all(expected[:2] + expected[4:])
  file = tmp_path / "lines"
  file.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
  assert say(run, "--file", file)[0] == expected
  with gzip.open(tmp_path / "lines.gz", "wb") as zipped:
    zipped.write("\n".join(lines).encode())
  assert say("--batch", 2, run, "--file", tmp_path / "lines.gz")[0] == expected
  for argv in ([], ["-"]):
    monkeypatch.setattr(sys, "stdin", Input(lines))
    assert say(run, *argv)[0] == expected
  scored, _ = say(run, *lines, "--scores")
  assert scored[2:4] == ["\t", "\t"]


def test_nothing_in_is_nothing_out(run, say, tmp_path, monkeypatch):
  (tmp_path / "empty").touch()
  assert say(run, "--file", tmp_path / "empty") == ([], [])
  monkeypatch.setattr(sys, "stdin", Input([]))
  assert say(run) == ([], [])
  assert say(run, "", " ") == (["", ""], [])


def test_an_input_is_read_a_window_at_a_time(run, monkeypatch, capsys):
  """What was printed is flushed before more is read, of an input that has no end."""
  monkeypatch.setattr("posexp.sentences.WINDOW", 2)
  before, read = [], []

  def endless():
    for number in itertools.count(1):
      if number % 4 == 1:
        before.append(len(capsys.readouterr().out.splitlines()))
      if number > 12:
        raise UserError("enough")
      read.append(number)
      yield "one two"

  monkeypatch.setattr(translate, "given", lambda args: endless())
  with pytest.raises(UserError, match="enough"):
    typed(run, "--batch", "2")
  assert before == [0, 4, 4, 4]


def test_lines_that_are_typed_are_answered_one_by_one(run, monkeypatch, capsys):
  answered = []

  def lines():
    for text in ["one", "", "two"]:
      answered.append(len(capsys.readouterr().out.splitlines()))
      yield f"{text}\n".encode()
    answered.append(len(capsys.readouterr().out.splitlines()))

  typing = Input([], terminal=True)
  monkeypatch.setattr(sys, "stdin", typing)
  monkeypatch.setattr(translate, "decoded", lambda *_: (each.decode().strip() for each in lines()))
  typed(run)
  assert answered == [0, 1, 1, 1]


def test_a_beam_and_a_greatest_length_can_be_asked_for(run, tested, say):
  texts = [row["source"] for row in tested]
  opened = open_translator(run, rows=64)
  for search in (Search(3, 0.0), Search(1, 0.6, max_length=2)):
    expected = [each.text for each in Sentences(opened, search, 64)(texts)]
    argv = ["--beam", search.beam, "--length-penalty", search.length_penalty]
    if search.max_length:
      argv += ["--max-length", search.max_length]
    said, err = say(run, *texts, *argv)
    assert said == expected
  assert any("translations were cut at the greatest length" in each for each in err)
  assert say(run, *texts)[0] == [" ".join(row["hypothesis"].split()) for row in tested]


def test_a_long_line_is_translated_up_to_what_the_model_reads(run, say):
  long = " ".join(["one"] * 40)
  (whole, short, _), err = say(run, long, "one", long + " two")
  opened = open_translator(run)
  sentences = Sentences(opened, Search(1), 1)
  (found,) = sentences([long])
  assert (len(found.source), found.source[-1]) == (10, EOS)
  assert whole != short
  assert err[0] == (
    "note: 2 lines are translated only up to 10 tokens, which is as much as the model reads "
    "(task.max_length=10); the first is line 1"
  )


def test_few_shapes_are_compiled(run, tested):
  opened = open_translator(run, rows=8)
  sentences = Sentences(opened, Search(1), 8)
  texts = [*(row["source"] for row in tested), *["one two three four"] * 9]
  sentences(texts)
  lengths = {padded(min(len(ids) + 1, 10)) for ids in sentences.source.ids(texts)}
  assert 0 < sentences._program.cache_info().currsize <= len(lengths) == 2
  compiled = sentences.compiling
  before = sentences.seconds
  again = sentences(texts[::-1])
  assert sentences.compiling == compiled
  assert sentences.seconds > before
  assert sentences.count == 2 * len(texts)
  assert sentences.tokens == 2 * sum(len(each.target) for each in again)


def test_sizes_of_batches():
  assert [padded(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]
  assert padded(17, limit=20) == 20
  assert [enough(n, 64, 1) for n in (0, 1, 3, 33, 64, 999)] == [1, 1, 4, 64, 64, 64]
  assert [enough(n, 48, 6) for n in (1, 7, 48, 999)] == [6, 12, 48, 48]
  assert enough(40, 50, 5) == 40
  assert enough(41, 50, 5) == 50


@pytest.fixture(scope="module")
def found(run, tested):
  """A translator, and what it makes of a few sentences."""
  opened = open_translator(run)
  return opened, Sentences(opened, Search(2), 8)([row["source"] for row in tested[:6]])


def test_maps_are_of_the_translation_that_was_found(found):
  opened, said = found
  for each in said:
    batch = maps.pair(each.source, each.target)
    loss = opened.snapshot.program.predict(opened.snapshot.state, batch)["loss"]
    assert -float(loss[0]) == pytest.approx(each.score, abs=1e-4)
    seen = maps.attention(opened, each.source, each.target)
    s, t = len(each.source), len(each.target)
    assert seen.encoder.shape == (1, 2, s, s)
    assert seen.decoder.shape == (1, 2, t, t)
    assert seen.cross.shape == (1, 2, t, s)
    for weights in (seen.encoder, seen.decoder, seen.cross):
      np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
      assert weights.min() >= 0
    assert (np.triu(seen.decoder, 1) == 0).all()
    assert (seen.read[0], seen.source[-1]) == ("[BOS]", "[EOS]")
    assert seen.read[1:] == seen.written[:-1]
    assert " ".join("".join(seen.written).replace("␣", " ").removesuffix("[EOS]").split()) == (
      each.text
    )


def test_maps_are_the_weights_of_the_model(found):
  """Those of the first layer of the encoder, from its parts."""
  opened, said = found
  each = max(said, key=lambda one: len(one.source))
  seen = maps.attention(opened, each.source, each.target)
  state = opened.snapshot.state
  model = nnx.merge(opened.snapshot.program.graphdef, state.params, state.settings)
  tokens = np.array([each.source])
  block, positions = model.encoder.blocks[0], np.arange(tokens.shape[1])[None]
  x = model.encoder.read(tokens, positions, None)
  context = block.context(x)
  everything = np.ones((1, tokens.shape[1], tokens.shape[1]), bool)
  span = model.encoder.span(positions, positions, everything)
  k, _ = block.attention.keys_values(context)
  weights = block.attention.weights(context, k, span)[0]
  np.testing.assert_allclose(seen.encoder[0], weights, atol=1e-5)


def test_maps_are_drawn_of_the_first_lines(run, say, monkeypatch):
  monkeypatch.setattr(translate, "MAPS", 2)
  texts = ["", "four ü", *["one two"] * 9]
  shutil.rmtree(run / "figures", ignore_errors=True)
  out, err = say(run, *texts, "--maps", "--beam", 1)
  assert len(out) == 11
  names = {path.name for path in (run / "figures").iterdir()}
  kinds = itertools.product(range(2, 4), ("cross", "encoder", "decoder"), ("png", "svg"))
  assert names == {f"line-{number}-{kind}.{end}" for number, kind, end in kinds}
  assert "note: the attention of the first 2 lines is drawn, not of all 10" in err
  assert [line for line in err if line.endswith("figures/line-2-cross.png")]
  assert (run / "figures/line-2-cross.png").read_bytes().startswith(b"\x89PNG")
  svg = (run / "figures/line-2-cross.svg").read_text(encoding="utf-8")
  for part in ("line 2: four ü", "[EOS]", "token that is written", "layer 0", "head 1"):
    assert part in svg


def test_names_of_tokens_are_no_mathematics(found):
  opened, _ = found
  # What is written is "$5$", whatever the model would have said.
  tokens = Sentences(opened, Search(1), 1).target.ids(["$5$"])[0]
  seen = maps.attention(opened, [*tokens, EOS], [*tokens, EOS])
  name, figure = next(maps.figures(seen, "line 1: a price of $5$"))
  assert name == "cross"
  svg = io.StringIO()
  figure.savefig(svg, format="svg")
  assert "a price of $5$" in svg.getvalue()
  assert "".join(seen.source[:-1]) == "␣$5$"


def untrained(run, path, **sections):
  """A run that was saved at its beginning, with the tokenizer of another: its d_ff and weights."""
  path.mkdir()
  for name in ("tokenizer.json", "tokenizer.sha256"):
    shutil.copy(run / name, path)
  config = open_run(run).config
  for name, section in sections.items():
    config[name] = {**config.get(name, {}), **section} if isinstance(section, dict) else section
  encoding, size = make_encoding(config), build(Size, config["model"], "model")
  kind = OfTranslator(280, 280, length=10)
  fit = matched(kind, encoding, size)
  options = build(Training, config["train"], "train")
  compiled = program(kind.build(encoding, fit), options, 100, mesh_for(np.array([1])))
  state = compiled.init(3)
  with Run(path, config, metric="validation/bleu") as record:
    record.save(1, state, {"validation/bleu": 1.0})
    record.finish({"d_ff": fit.d_ff})
  return fit.d_ff, state.params


@pytest.mark.parametrize("match", ["flops", "parameters"])
def test_a_size_that_was_matched_is_the_one_of_the_checkpoint(run, match, tmp_path):
  path = tmp_path / "run"
  model = {"match": match, "match_to": "none", "d_model": 64, "d_ff": 128}
  width, params = untrained(run, path, model=model)
  assert width != 128
  assert_equal(open_translator(path).snapshot.state.params, params)
  (path / "summary.json").unlink()  # as if it had been stopped
  if match == "parameters":
    assert_equal(open_translator(path).snapshot.state.params, params)
  else:
    with pytest.raises(UserError, match="has not finished: which d_ff"):
      open_translator(path)


def test_an_encoding_s_positions_are_enough(run, say, tmp_path):
  path = tmp_path / "run"
  task = {"max_length": None}
  untrained(run, path, encoding="learned", learned={"length": 20}, rpr={}, task=task)
  out, err = say(path, "one", "one " * 50, "--beam", 1)
  assert len(out) == 2
  assert err[0] == (
    "note: 1 line is translated only up to 20 tokens, which is as much as the model reads (its "
    "encoding has 20 positions); the first is line 2"
  )
  opened = open_translator(path)
  (found,) = Sentences(opened, Search(1, max_length=99), 1)(["one " * 50])
  assert (len(found.source), len(found.target)) == (20, 20)
  seen = maps.attention(opened, found.source, found.target)
  np.testing.assert_allclose(seen.cross.sum(-1), 1, atol=1e-5)


def test_pieces_are_what_tokens_say(found):
  opened, _ = found
  text = "one ü [EOS] $ 字"
  (tokens,) = Sentences(opened, Search(1), 1).source.ids([text])
  names = maps.pieces(opened.tokenizers[0])(tokens)
  said = "".join(names).replace("␣", " ").encode().decode("unicode_escape").encode("latin-1")
  assert said.decode() == " " + text
  assert "\\xe5" in names
  assert maps.pieces(opened.tokenizers[0])([1, EOS]) == ["[BOS]", "[EOS]"]


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("RUN one --beam 0", "argument --beam: must be a whole number of at least 1, not 0"),
    ("RUN one --max-length 0", "argument --max-length: must be a whole number of at least 1"),
    ("RUN one --batch 2.5", "argument --batch: must be a whole number of at least 1, not 2.5"),
    ("RUN one --length-penalty nan", "argument --length-penalty: must be a number of at least 0"),
    ("RUN one --file x", "either texts or --file, not both; --help shows"),
    ("RUN one -", "- is standard input and must stand alone"),
    ("", "the following arguments are required: RUN"),
    ("nowhere one", "nowhere is not a run's folder: it has no config.yaml"),
    ("RUN --file nowhere", "nowhere: there is no such file (looked in "),
    ("RUN --file .", ".: cannot be read: Is a directory"),
    ("RUN --file latin", "latin, line 2: not valid UTF-8; save it as UTF-8"),
    ("RUN --file broken.gz", "broken.gz: not a whole gzip file; make it again"),
  ],
)
def test_mistakes_are_one_sentence(run, home, argv, message, monkeypatch, capsys):
  Path("latin").write_bytes("one\nGrüße\n".encode("latin-1"))
  Path("broken.gz").write_bytes(gzip.compress(b"one\n" * 100)[:-9])
  argv = [str(run) if each == "RUN" else each for each in argv.split()]
  monkeypatch.setattr(sys, "argv", ["translate", *argv])
  with pytest.raises(SystemExit) as end:
    translate.main()
  assert end.value.code == 2
  err = capsys.readouterr().err
  assert err.startswith(f"posexp: error: {message}")
  assert err.count("\n") == 1


def test_a_folder_that_cannot_translate_is_one_sentence(run, home, tmp_path):
  def spoiled(name, spoil):
    shutil.copytree(run, tmp_path / name)
    spoil(tmp_path / name)
    with pytest.raises(UserError) as error:
      typed(tmp_path / name, "one")
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(str(tmp_path / name))

  def other_tokenizer(path):
    text = (path / "tokenizer.json").read_text(encoding="utf-8")
    (path / "tokenizer.json").write_text(text + "\n", encoding="utf-8")

  def classification(path):
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["task"] = {"kind": "text_classification", "train": "train.jsonl"}
    (path / "config.yaml").write_text(yaml.safe_dump(config))

  assert spoiled("classes", classification) == (
    " is a run of text_classification; posexp.translate needs a translation run"
  )
  assert spoiled("early", lambda path: shutil.rmtree(path / "checkpoints")) == (
    " has no checkpoint: it was not trained up to its first evaluation"
  )
  assert "this is not the tokenizer that the run was trained with" in spoiled(
    "other", other_tokenizer
  )
  assert ": tokenizer.json is missing" in spoiled(
    "none", lambda path: (path / "tokenizer.json").unlink()
  )


def test_help_is_quick_and_needs_no_jax():
  code = (
    "import sys; from posexp import translate; sys.argv = ['translate', '--help']\n"
    "try: translate.main()\nexcept SystemExit as end: assert not end.code\n"
    "assert not {'jax', 'numpy', 'matplotlib'} & set(sys.modules)"
  )
  begun = time.perf_counter()
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert (done.returncode, done.stderr) == (0, "")
  assert "--length-penalty" in done.stdout
  assert time.perf_counter() - begun < 5  # a fraction of a second on a machine that is not busy
