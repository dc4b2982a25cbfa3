"""Lines translated by a trained run, from its folder alone; and what it attends to meanwhile."""

import io
import itertools
import json
import shutil
import sys

import finished
import fuzz
import numpy as np
import pytest
from flax import nnx

from posexp.data.lines import Line
from posexp.encodings import Span
from posexp.errors import UserError
from posexp.runs import read_run
from posexp.training.restore import open_alone
from posexp.translation import command as translate
from posexp.translation import maps
from posexp.translation.encoded import EOS
from posexp.translation.lines import LineTranslator
from posexp.translation.search import Search

pytestmark = pytest.mark.usefixtures("opened_once")


@pytest.fixture(scope="module")
def run(home):
  """The folder of a finished run alone: its data are not there."""
  finished.translator(home / "alone")
  return home / "alone"


@pytest.fixture(scope="module")
def translator(run):
  return LineTranslator(open_alone(run, "translate", rows=16), Search(3), 16)


@pytest.fixture(scope="module")
def tested(run):
  """The sources of the test split, and what the run made of them."""
  text = (run / "predictions/test.jsonl").read_text(encoding="utf-8")
  return [json.loads(row) for row in text.splitlines()]


def say(*argv, given=b""):
  """Types a command, and returns the lines of standard output and those of standard error."""
  status, out, err = fuzz.typed("translate", *argv, given=given)
  assert status == 0
  assert not out or out.endswith("\n")
  return out.split("\n")[:-1], err.splitlines()


def test_it_says_what_the_run_said_of_its_test_split(run, tested):
  given = "".join(f"{row['source']}\n" for row in tested)
  out, err = say(run, "--scores", given=given.encode())
  scores, said = zip(*(line.split("\t") for line in out), strict=True)
  assert list(said) == [" ".join(row["hypothesis"].split()) for row in tested]
  assert list(map(float, scores)) == pytest.approx([row["score"] for row in tested], abs=1e-3)
  assert len(set(said)) > 5
  assert err == []


def test_lines_come_in_any_of_the_ways_and_leave_in_order(run, tested):
  lines = [row["source"] for row in tested[:5]]
  lines[2:2] = ["", "  "]
  expected, _ = say(run, *lines)
  assert expected[2:4] == ["", ""]
  assert all(expected[:2] + expected[4:])
  assert say(run, given="\n".join([*lines, ""]).encode())[0] == expected
  assert say(run, given=("\ufeff" + "\r\n".join(lines)).encode())[0] == expected
  scored, _ = say(run, *lines, "--scores")
  assert scored[2:4] == ["\t", "\t"]
  assert say(run) == ([], [])
  assert say(run, "", " ") == (["", ""], [])


@pytest.mark.parametrize(("terminal", "count"), [(False, 4), (True, 1)])
def test_lines_are_answered_before_more_are_read(run, monkeypatch, capsys, terminal, count):
  """A window at a time, or one by one where they are typed, of an input that has no end."""
  monkeypatch.setattr("posexp.data.lines.WINDOW", 2)
  monkeypatch.setattr(sys, "stdin", io.StringIO())
  sys.stdin.isatty = lambda: terminal
  answered = []

  def endless():
    for number in itertools.count():
      answered.append(len(capsys.readouterr().out.splitlines()))
      if number == 12:
        raise UserError("enough")
      yield Line(f"text {number}", "red blue" if number % 3 else "")

  monkeypatch.setattr("posexp.data.lines.given_lines", lambda _: endless())
  with pytest.raises(UserError, match="enough"):
    translate.translate(translate.arguments([str(run), "--batch", "2"]))
  assert answered == [0, *([0] * (count - 1) + [count]) * (12 // count)]


def test_a_beam_can_be_asked_for(run, translator, tested):
  pairs = zip(tested[:20], tested[20:], strict=False)
  texts = [f"{one['source']} {other['source']}" for one, other in pairs]  # beams of which differ
  expected = [each.text for each in translator(texts)]
  assert say(run, *texts, "--beam", 3, "--batch", 16) == (expected, [])


def test_a_long_line_is_translated_up_to_what_the_model_reads(run):
  most, long = read_run(run).config["task"]["max_length"], " ".join(["red"] * 40)
  (whole, short, _), err = say(run, long, "red", long + " blue", "--batch", 2)
  opened = open_alone(run, "translate", rows=2)
  translator = LineTranslator(opened, opened.setup.task.search, 2)
  (found,) = translator([long])
  assert (len(found.source), found.source[-1]) == (most, EOS)
  assert whole != short
  assert err == [f"note: 2 lines cut to {most} tokens, which is as much as the model reads"]


def test_maps_are_drawn_of_the_first_lines(run, monkeypatch):
  monkeypatch.setattr(translate, "MAPS", 1)
  texts = ["", "red ü", *["blue pink"] * 5]
  shutil.rmtree(run / "figures", ignore_errors=True)
  out, err = say(run, *texts, "--maps")
  assert len(out) == 7
  names = {path.name for path in (run / "figures").iterdir()}
  kinds = itertools.product(("cross", "encoder", "decoder"), ("png", "svg"))
  assert names == {f"line-2-{kind}.{end}" for kind, end in kinds}
  assert [line for line in err if line.endswith("figures/line-2-cross.png")]
  assert (run / "figures/line-2-cross.png").read_bytes().startswith(b"\x89PNG")
  svg = (run / "figures/line-2-cross.svg").read_text(encoding="utf-8")
  for part in ("line 2: red ü", "[EOS]", "token that is written", "layer 0", "head 1"):
    assert part in svg


def test_maps_are_of_the_translation_that_was_found(translator):
  for each in translator(["red blue gray", "gray pink"]):
    assert not each.cut
    batch = maps.pair(each.source, each.target)
    loss = translator.snapshot.program.predict(translator.snapshot.state, batch)[0]["loss"]
    assert -float(loss[0]) == pytest.approx(each.score, abs=1e-4)
    encoder, decoder, cross = maps.of_translation(translator, each)
    s, t = len(each.source), len(each.target)
    assert encoder.weights.shape == (1, 2, s, s)
    assert decoder.weights.shape == (1, 2, t, t)
    assert cross.weights.shape == (1, 2, t, s)
    for seen in (encoder, decoder, cross):
      np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-5)
      assert seen.weights.min() >= 0
      assert (len(seen.queries), len(seen.keys)) == seen.weights.shape[2:]
    assert (np.triu(decoder.weights, 1) == 0).all()
    assert (decoder.keys[0], cross.keys[-1]) == ("[BOS]", "[EOS]")
    assert decoder.keys[1:] == decoder.queries[:-1]


def test_maps_are_the_weights_of_the_model(translator):
  """Those of the first layer of the encoder, from its parts."""
  (each,) = translator(["red blue gray"])
  seen, *_ = maps.of_translation(translator, each)

  @nnx.jit
  def weights(model, tokens):
    block, positions = model.encoder.blocks[0], np.arange(tokens.shape[1])[None]
    read, k, *_ = block.held(model.encoder.read(tokens, positions, None))
    everything = np.ones((1, tokens.shape[1], tokens.shape[1]), bool)
    span = model.encoder.ready(Span(positions, positions, everything))
    return block.attention.relation.weights(block.attention.queries(read), k, span)[0]

  expected = weights(translator.snapshot.model(), np.array([each.source]))
  np.testing.assert_allclose(seen.weights[0], expected, atol=1e-5)


def test_names_of_tokens_are_no_mathematics(translator):
  (found,), text = translator(["pink"]), "one [EOS] $5$"
  # What is written is this text, whatever the model would have said.
  tokens = [*translator.target.ids([text])[0], EOS]
  *_, cross = maps.of_translation(translator, found._replace(source=tokens, target=tokens))
  svg = io.StringIO()
  maps.drawn(cross, "line 1: a price of $5$").savefig(svg, format="svg")
  assert "a price of $5$" in svg.getvalue()
  assert "".join(cross.keys[:-1]) == "␣one␣[EOS]␣$5$"


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("RUN one --beam 0", "--beam must be at least 1, not 0; --help shows"),
    ("RUN caf\udce9", "text 1: not valid UTF-8, or half a surrogate pair; correct it"),
    ("RUN one --batch 2.5", "argument --batch: invalid int value: '2.5'"),
    ("", "the following arguments are required: RUN"),
    ("nowhere one", "nowhere: there is no such folder"),
    ("RUN", "standard input, line 2: not valid UTF-8; save the file as UTF-8"),
  ],
)
def test_mistakes_are_one_sentence(run, argv, message):
  latin = "one\nGrüße\n".encode("latin-1")
  argv = [str(run) if each == "RUN" else each for each in argv.split()]
  assert fuzz.typed("translate", *argv, given=latin).refusal.startswith(message)


def test_a_folder_that_cannot_translate_is_one_sentence(run, tmp_path):
  folder = shutil.copytree(run, tmp_path / "run")
  shutil.rmtree(folder / "checkpoints")
  refusal = fuzz.typed("translate", folder, "one").refusal
  assert "run has no checkpoint: what it had is lost; put it back" in refusal
