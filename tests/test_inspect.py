"""Cards and figures: what they say is what the formulas say, for every encoding that is listed."""

import json
import random

import matplotlib.image
import numpy as np
import pytest
from omegaconf import OmegaConf

from posexp import inspect
from posexp.analysis import card, probe
from posexp.config import compose, resolve
from posexp.encodings import ENCODINGS, Encoding
from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.relative import RPR, TransformerXL
from posexp.errors import UserError
from posexp.models.classifier import ClassifierSpec
from posexp.models.transformer import Size
from posexp.train import train

pytestmark = pytest.mark.usefixtures("compile_quickly")

SIZE = Size(d_model=32, num_heads=2, d_ff=32, num_layers=1)
OPTIONS = ["model.d_model=32", "model.num_heads=2", "model.d_ff=32", "model.num_layers=1"]

UNPUBLISHED = {"none", "index", "normalized", "binary", "clock"}


def subject(encoding):
  return probe.untrained(encoding, SIZE, probe.refusal(encoding, SIZE, False) is not None)


@pytest.mark.parametrize("name", list(ENCODINGS))
def test_every_encoding_has_its_card_by_existing(name):
  encoding = ENCODINGS[name]()
  of = subject(encoding)
  where = card.parts(encoding, of)
  assert bool(where) == (name != "none")
  assert (card.paper(encoding) is None) == (name in UNPUBLISHED)
  covered = card.covered(probe.profile(of, 40), where, encoding.limit)
  assert (covered["covers"] == "nothing") == (name == "none")
  assert ("error" in covered["beyond"]) == (encoding.limit is not None)
  added = card.added(encoding, of, ClassifierSpec(50, 2, encoding, of.size), 8)
  assert "against none" in added["parameters"]
  assert "against none" in added["FLOPs"]
  text = "\n".join(card.lines(name, encoding, {"covers": covered["covers"]}))
  assert text.startswith(f"{name}: ")
  assert max(map(len, text.splitlines())) <= 96


@pytest.mark.parametrize("encoding", [RPR(k=3), Learned(), Encoding()], ids=str)
def test_behavior_is_measured(encoding):
  found = card.behavior(subject(encoding))
  assert found["padding"] == "changes nothing"
  assert (found["permuting words"] == "permutes the outputs") == (encoding == Encoding())
  assert (found["shifting all"] == "changes nothing") == encoding.relative
  assert card.behavior(probe.untrained(encoding, SIZE, True))["caching"] == "changes nothing"


@pytest.mark.parametrize(
  ("encoding", "where"),
  [
    (Encoding(), []),
    (Sinusoidal(), ["embed"]),
    (RPR(), ["relation"]),
    (TransformerXL(), ["relation", "shared"]),
    (TransformerXL(share_biases=False), ["relation"]),
    (ENCODINGS["complex"](), ["embed", "linear", "norm", "relation"]),
  ],
  ids=str,
)
def test_where_it_enters(encoding, where):
  assert card.parts(encoding, subject(encoding)) == where


def test_offsets_that_share_a_vector_are_found():
  of = subject(RPR(k=5))
  covered = card.covered(probe.profile(of, 40), ["relation"], None)
  assert covered["covers"] == "offsets to 5 back and 5 ahead"
  assert "no offset is new" in covered["beyond"]


def test_a_profile_is_the_logit_of_the_formula():
  encoding = RPR(k=3)
  of = subject(encoding)
  found = probe.profile(of, 8)
  assert found.offsets.tolist() == list(range(-7, 8))
  np.testing.assert_allclose(found.logits, sum(found.terms.values()), atol=1e-5)
  assert np.ptp(found.terms["content"], axis=-1).max() < 1e-5
  keys = found.terms["keys"]
  np.testing.assert_array_equal(keys[..., :4], keys[..., [4] * 4])  # −7 … −4 as −3
  assert np.ptp(keys, axis=-1).max() > 0.01
  assert np.abs(found.terms["values"]).max() == 0


def test_position_vectors_are_those_of_the_formula():
  of = subject(Sinusoidal(layout="half"))
  found = probe.chosen(probe.position_vectors(of.stack().embed, 10))
  phase = np.arange(10)[:, None] * 10000.0 ** (-np.arange(16) / 16)
  np.testing.assert_allclose(found, np.hstack([np.sin(phase), np.cos(phase)]), atol=1e-6)


def test_a_product_s_vectors_are_found_too():
  of = subject(Sinusoidal(combine="product"))
  found = probe.chosen(probe.position_vectors(of.stack().embed, 10))
  assert np.abs(found).max() == pytest.approx(1, abs=1e-5)
  assert np.ptp(found, axis=0).max() > 1


def test_the_share_that_offsets_explain():
  i, j = np.indices((20, 20))
  assert probe.share_by_offset(np.cos(0.3 * (i - j))) == pytest.approx(1)
  assert probe.share_by_offset(1.0 * i + j) < 0.1
  assert np.isnan(probe.share_by_offset(np.ones((5, 5))))
  waves = probe.chosen(probe.position_vectors(subject(Sinusoidal()).stack().embed, 40))
  found = probe.shares_by_maps(waves, 2, None)
  assert found["identity"][0].whole == pytest.approx(1)
  assert all(each.whole == pytest.approx(1) for each in found["tied orthogonal"])
  # Orthogonal maps keep all inner products, but the part of them that a head sees is no such sum.
  assert max(max(each.heads) for each in found["tied orthogonal"]) < 0.99
  assert np.mean([each.whole for each in found["random"]]) < 0.5


def run_of(folder, encoding):
  """The folder of a run of a few steps."""
  draw = random.Random(0)
  words = ["good", "bad", "film", "plot", "very", "not"]
  with (folder / "train.jsonl").open("w") as file:
    for label in ["good", "bad"] * 60:
      text = " ".join([label, *draw.choices(words, k=draw.choice([5, 6]))])
      file.write(json.dumps({"text": text, "label": label}) + "\n")
  data = ["task=text_classification", f"task.train={folder / 'train.jsonl'}", "wandb.mode=disabled"]
  steps = ["train.steps=2", "train.warmup=1", f"runs={folder / 'runs'}"]
  train(resolve(compose([f"encoding={encoding}", *data, *steps, *OPTIONS])))
  return next((folder / "runs").glob("*/*/*/seed=0"))


@pytest.mark.parametrize("encoding", ["rpr", "complex"])
def test_a_run_is_looked_into(encoding, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.chdir(tmp_path)
  run = run_of(tmp_path, encoding)
  files = inspect.inspect(inspect.request([f"run={run}", f"encoding={encoding}", "length=16"]))
  drawn = {path.stem for path in files}
  assert "attention-on-text" in drawn
  assert ("frequencies-by-word" in drawn) == (encoding == "complex")
  assert ("rows" in drawn) == (encoding == "rpr")
  assert ("share-of-offset" in drawn) == (encoding != "rpr")
  assert {path.parent.parts[-1] for path in files} == {f"{encoding}-{run.parent.name}-seed=0"}
  assert "attention-on-text.png" in capsys.readouterr().out


def test_attention_on_text_adds_up(tmp_path, monkeypatch):
  from posexp.training.restore import open_trained

  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  trained = open_trained(run_of(tmp_path, "none"))
  batches = list(trained.data.texts("validation", trained.snapshot.batch_size))
  found = probe.on_text(trained.model().stacks[0], trained.spec.positions, batches)
  np.testing.assert_allclose(found.mass.sum(-1), 1, atol=1e-5)
  assert found.uniform.sum() == pytest.approx(1, abs=1e-5)
  assert found.texts == trained.data.sizes["validation"]


def typed(*argv, out):
  return inspect.inspect(inspect.request([*argv, *OPTIONS, f"out={out}"]))


@pytest.mark.parametrize(
  ("encoding", "drawn"),
  [
    ("sinusoidal", {"vectors", "gram", "products-by-offset", "share-of-offset"}),
    ("rpr", {"logits-by-offset", "weights-by-offset", "terms-by-offset", "rows"}),
    ("xpos", {"logits-by-offset", "weights-by-offset"}),
    ("none", set()),
  ],
)
def test_figures_are_drawn(encoding, drawn, tmp_path, capsys):
  files = typed(f"encoding={encoding}", "length=16", out=tmp_path)
  assert {path.name for path in files} == {f"{n}.{kind}" for n in drawn for kind in ("png", "svg")}
  for file in files:
    if file.suffix == ".png":
      pixels = matplotlib.image.imread(file)[..., :3]
      assert min(pixels.shape[:2]) > 300
      assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    else:
      text = file.read_text()
      assert text.count("<text") > 5
      assert encoding in text
  out = capsys.readouterr().out
  assert out.startswith(f"{encoding}: ")
  assert "permuting words" in out


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("encoding=rprr", "encoding=rprr: no such encoding; did you mean rpr?"),
    ("encoding=rpr rpr.kk=3", "rpr.kk=3: there is no option rpr.kk; did you mean rpr.k?"),
    ("rpr.k=4", "rpr.k is set, but encoding=sinusoidal; choose encoding=rpr or drop rpr.k"),
    ("encoding=rpr rpr.k=-1", "rpr.k must be at least 0, not -1"),
    ("encoding=sinusoidal model.d_model=30", "model: d_model=30 is not divisible by num_heads=4"),
    ("length=2", "length=2: must be a whole number, 4 or more"),
    ("run=nowhere", "nowhere is not a run's folder: it has no config.yaml"),
    ("-m encoding=rpr,none", "posexp.inspect looks at one encoding: leave -m and --cfg out"),
  ],
)
def test_mistakes_are_one_sentence(argv, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError) as error:
    inspect.inspect(inspect.request(argv.split()))
  assert str(error.value).startswith(message)
  assert "\n" not in str(error.value)


def test_options_must_not_contradict_the_run(tmp_path):
  config = resolve(compose(["encoding=rpr", "rpr.k=8"]))
  (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(config))
  asked = inspect.request(["encoding=rpr", "rpr.k=8", f"run={tmp_path}"])
  assert asked.config["rpr"]["k"] == 8
  with pytest.raises(UserError, match=r"rpr\.k=4, but the run has rpr\.k=8; leave one of them"):
    inspect.request(["encoding=rpr", "rpr.k=4", f"run={tmp_path}"])
