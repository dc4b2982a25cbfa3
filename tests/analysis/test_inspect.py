"""Cards and figures: what they say is what the formulas say, for every encoding that is listed."""

import dataclasses
import functools
import re
from types import SimpleNamespace

import head_distances
import jax
import numpy as np
import order
import pytest
import untrained
from flax import nnx
from scipy.spatial import distance
from seed import some

import posexp
from posexp import inspect
from posexp.analysis import (
  attention_weights,
  card,
  drawing,
  encoding_figures,
  inspection,
  probe,
  wishes,
)
from posexp.encodings import ENCODINGS, Encoding
from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.bias import ALiBi
from posexp.encodings.by_layer import ByLayer
from posexp.encodings.relative import RPR
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.backbones import CNNSize, FastTextSize, LSTMSize
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.training.restore import open_trained

SIZE = Size(d_model=32, num_heads=2, d_ff=32, num_layers=1)
TINY = Size(d_model=8, num_heads=2, d_ff=8, num_layers=2, dropout=0.0)
OPTIONS = ["model.d_model=32", "model.num_heads=2", "model.d_ff=32", "model.num_layers=1"]


pytestmark = pytest.mark.usefixtures("few_positions")


def shapes(encoding):
  """An untrained model without numbers."""
  causal = encoding.causal_only
  build = probe.builder(encoding, SIZE, causal)
  return probe.ProbeModel(encoding, nnx.eval_shape(lambda: build(Rngs(params=0, encoding=1))))


PARTS = {
  "none": [], "sinusoidal": ["input"], "rpr": ["attention"],
  "transformer_xl": ["attention", "shared"], "complex": ["input", "linear", "norms", "attention"],
}  # fmt: skip


def test_every_encoding_enters_somewhere_but_none():
  for name, encoding in ENCODINGS.items():
    found = card.parts(shapes(encoding()))
    assert found == PARTS.get(name, found), name
    assert found or name == "none", name


# What is nothing, vectors; the last in decoders alone, by what is read. For offsets see below.
CARDS = ("none", "learned", "cope")
REST = [pytest.param(name, marks=pytest.mark.slow) for name in ENCODINGS if name not in CARDS]


@pytest.mark.parametrize("name", [*CARDS, *REST])
def test_every_encoding_has_its_card_by_existing(name):
  encoding = ENCODINGS[name]()
  model = probe.untrained(encoding, SIZE)
  (found,) = inspection.layer_profiles(model, None, 128).values()
  covered = card.coverage(model, found)
  assert (covered["covers"] == "nothing") == (name == "none")
  assert ("error" in covered["beyond"]) == (encoding.limit is not None)


@pytest.mark.parametrize("encoding", [RPR(k=3), Encoding()], ids=str)
def test_behavior_is_measured(encoding):
  found = card.behavior(probe.untrained(encoding, SIZE))
  assert (found["permuting words"] == "permutes the outputs") == (encoding == Encoding())
  assert (found["shifting all"] == "changes nothing") == encoding.relative


WISHES = {  # unique, equal steps, bounded
  "none": ("no",), "index": ("yes", "yes", "no"), "normalized": ("yes", "no", "yes"),
  "sinusoidal": ("yes", "yes", "yes"), "rpr": ("no", "yes", "yes"), "alibi": ("yes", "yes", "no"),
}  # fmt: skip


@pytest.mark.parametrize("name", some([*WISHES], 2))
def test_the_three_wishes_are_measured(name):
  model = probe.untrained(ENCODINGS[name](), SIZE)
  found = wishes.rows(inspection.drawn_again(model))
  assert tuple(re.split("[:, ]", each)[0] for each in found.values()) == WISHES[name]


def test_positions_that_end_are_said_to():
  model = probe.untrained(Learned(length=40), SIZE)
  found = wishes.rows(inspection.drawn_again(model))
  assert "equal steps" not in found
  assert found["bounded"] == "ends at position 39"


@pytest.mark.parametrize(
  ("size", "name", "feels"),
  [
    (FastTextSize(), "sinusoidal", False), (LSTMSize(), "none", True), (CNNSize(), "none", True),
  ],
)  # fmt: skip
def test_networks_feel_order_or_not(size, name, feels):
  (found,) = card.permuted(probe.network(ENCODINGS[name](), size)).values()
  assert found.startswith("changes the outputs, by" if feels else "changes nothing")


def test_costs_are_those_beside_none():
  found = card.costs(shapes(Learned()))
  assert found["against none"].startswith(f"{512 * 32:+,} parameters, ")
  assert "over 64 tokens" in card.costs(shapes(RPR()))["FLOPs"]
  assert "over 20 tokens" in card.costs(shapes(Learned(length=20)))["FLOPs"]


def test_a_profile_is_the_logit_of_the_formula_and_shows_offsets_that_share_a_vector():
  model = probe.untrained(RPR(k=3), SIZE)
  found = probe.profile(model, 20)
  assert found.offsets.tolist() == list(range(-19, 20))
  np.testing.assert_allclose(found.logits, sum(found.terms.values()), atol=1e-5)
  assert np.ptp(found.terms["content"], axis=-1).max() < 1e-5
  keys = found.terms["keys"]
  np.testing.assert_array_equal(keys[..., :16], keys[..., [16] * 16])  # −19 … −4 as −3
  assert np.ptp(keys, axis=-1).max() > 0.01
  assert np.abs(found.terms["values"]).max() == 0
  covered = card.coverage(model, found)
  assert covered["covers"] == "offsets to 3 back and 3 ahead"
  assert "no offset is new" in covered["beyond"]


def test_figures_of_a_run_show_its_table_and_no_other(monkeypatch):
  encoding, (_, start) = Learned(length=16), probe.untrained(Learned(length=16), SIZE)
  stack, run = probe.perturbed(start), SimpleNamespace(data=SimpleNamespace(word_counts=np.eye(2)))
  (table,) = [
    np.asarray(leaf[...], np.float64)
    for _, leaf in nnx.to_flat_state(nnx.state(stack.embed, nnx.Param))
    if leaf[...].shape == (16, 32)
  ]
  vectors = (inspection.position_vectors(encoding, each.embed, 128, run) for each in (stack, start))
  found, other = (
    dict(drawing.draw_vectors("learned", encoding, vector, [], 32, None, trained))
    for vector, trained in zip(vectors, (run, None), strict=True)
  )
  np.testing.assert_allclose(found["vectors"].axes[0].images[0].get_array(), table, atol=1e-5)
  (axes,) = found["products-by-offset"].axes
  (line,) = axes.lines
  np.testing.assert_allclose(line.get_ydata(), probe.inner_products(table)[0], atol=1e-5)
  assert axes.get_title() == "those of the run, d = 32"
  (axes,) = other["products-by-offset"].axes
  assert axes.get_title() == "by width"
  for each in axes.lines:
    assert np.abs(each.get_ydata() - line.get_ydata()).max() > 0.01


def test_rows_are_offsets_where_a_table_has_them():
  for k, count, xlabel, first in ((3, 7, "offset (key − query)", -3), (None, 7, "row", 0)):
    (axes,) = encoding_figures.rows("x", {"keys": np.ones((count, 4))}, k).axes
    assert (axes.get_xlabel(), axes.lines[0].get_xdata()[0]) == (xlabel, first)


@pytest.mark.parametrize(
  ("options", "name"),
  [
    ([], ""),
    (["encoding=rpr"], ""),
    (["model.d_model=4", "encoding=rpr"], "model.d_model=4"),
    (["rpr.k=2", "model=tiny"], "model=tiny,rpr.k=2"),
    (["plug=a/b"], "plug=a-b-3497e227"),
  ],
)
def test_other_options_have_a_folder_of_their_own(options, name):
  assert inspect.folder_name(options) == name
  long = [f"rpr.k={number:090}" for number in range(2)]
  assert len({inspect.folder_name([each]) for each in long}) == 2


def test_figures_are_not_replaced_without_a_word(tmp_path, monkeypatch, capsys):
  drawn = ["one", "one", "two"]

  def draw(config, run, out, show, **shown):
    (tmp_path / "rows.svg").write_text(drawn.pop(0))
    return [tmp_path / "rows.svg"]

  monkeypatch.setattr(inspection, "inspect", draw)
  for said in (False, False, True):
    inspect.inspect(["encoding=rpr", f"out={tmp_path}"])
    assert ("replaced 1 file that showed something else" in capsys.readouterr().out) == said


def test_the_card_does_not_wait_for_the_figures(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(drawing, "saved", lambda *_: pytest.fail(capsys.readouterr().out))
  with pytest.raises(pytest.fail.Exception, match="\nshifting all "):
    inspect.inspect(["encoding=rpr", f"out={tmp_path}"])


def test_vectors_that_are_multiplied_with_words_are_found_too():
  found = probe.position_vectors(
    probe.untrained(Sinusoidal(combine="product"), SIZE).stack.embed, 10
  )
  assert np.abs(found).max() == pytest.approx(1, abs=1e-5)
  assert np.ptp(found, axis=0).max() > 1


def test_the_share_that_offsets_explain():
  i, j = np.indices((20, 20))
  assert probe.share_by_offset(np.cos(0.3 * (i - j))) == pytest.approx(1)
  assert probe.share_by_offset(1.0 * i + j) < 0.1
  assert np.isnan(probe.share_by_offset(np.ones((5, 5))))
  stack = probe.untrained(Sinusoidal(), SIZE).stack
  waves = probe.position_vectors(stack.embed, 40)
  found = probe.shares_by_maps(waves, stack.blocks[0].attention)
  assert found["identity"].whole == pytest.approx(1)
  assert found["tied orthogonal"].whole == pytest.approx(1)
  # Orthogonal maps keep all inner products, but the part of them that a head sees is no such sum.
  assert max(found["tied orthogonal"].heads) < 0.99
  assert found["random"].whole < 0.5


@pytest.fixture(scope="module")
def classifier(home):
  """A function from an encoding's name to the folder of a run."""
  data = order.write(home)
  return functools.cache(
    lambda encoding: untrained.run(home / encoding, f"encoding={encoding}", *data, *OPTIONS)
  )


def draw_only(kinds, monkeypatch):
  """Writes figures in some formats, where they are not what is looked at."""
  monkeypatch.setattr(
    drawing.plotting, "save", functools.partial(drawing.plotting.save, kinds=kinds)
  )


RELATIVE = {"logits-by-offset-layer-0", "weights-by-offset", "rows"}


def test_a_run_is_looked_into(classifier, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  draw_only(("png",), monkeypatch)
  run = classifier("complex")
  (run / "metrics.jsonl").write_text("lost\n")  # which only a report reads
  files = inspect.inspect([str(run)])
  drawn = {path.stem for path in files}
  assert drawn >= {"attention-on-text", "frequencies-by-word", "share-of-offset"}
  assert not drawn & RELATIVE
  assert {path.parent for path in files} == {run / "figures"}
  assert "attention-on-text.png" in capsys.readouterr().out


def test_attention_on_text_adds_up(classifier):
  run = open_trained(classifier("complex"))
  batches = list(run.data.texts("validation", run.snapshot.batch_size))
  found = attention_weights.by_offset(
    run.snapshot.model(), run.spec.positions, batches, len(batches)
  )
  np.testing.assert_allclose(found.mass.sum(-1), 1, atol=1e-5)
  assert found.uniform.sum() == pytest.approx(1, abs=1e-5)
  assert found.examples == run.data.sizes["validation"]


@pytest.fixture(scope="module")
def language_model(home):
  """A run with segments of 16 tokens and a memory of 24."""
  lines = (f"line {i} of {i * i} words\n" for i in range(400))
  (home / "text.txt").write_text("".join(lines))
  data = ["task=language_modeling", f"task.train={home / 'text.txt'}", "task.segment=16"]
  options = ["encoding=rpr", "rpr.k=2", "model.memory=24", "train.batch_size=4"]
  return untrained.run(home / "run", *options, *data, *OPTIONS)


def test_attention_into_a_memory_adds_up(language_model):
  run = open_trained(language_model)
  batches = list(run.data.texts("validation", 4))
  found = attention_weights.by_offset(
    run.snapshot.model(), run.spec.positions, batches, len(batches) - 2
  )
  assert (found.length, found.offsets.min()) == (16, -39)
  np.testing.assert_allclose(found.mass.sum(-1), 1, atol=1e-5)
  assert found.mass[..., found.offsets > 0].max() == 0
  # Two segments have filled the memory, so that query i sees 24 + i + 1 keys.
  seen = 24 + np.arange(16) + 1
  assert found.uniform[:, found.offsets == 0] == pytest.approx(np.mean(1 / seen), rel=0.01)
  assert found.in_memory == pytest.approx(np.full((1, 2), np.mean(24 / seen)), abs=0.1)
  far = found.mass[..., found.offsets <= -16].sum(-1)
  assert np.all((far > 0) & (far < found.in_memory))


def test_a_language_model_is_looked_into(language_model, monkeypatch, capsys):
  draw_only(("svg",), monkeypatch)
  drawn = {path.stem for path in inspect.inspect([f"run={language_model}", "--all"])}
  assert drawn >= {"attention-on-text", *RELATIVE}
  card = " ".join(capsys.readouterr().out.split())
  assert "encoder yes decoder yes memory yes" in card
  figure = (language_model / "figures/attention-on-text.svg").read_text()
  assert re.search(r"layer 0: \d+% in the memory", figure)


def test_each_layer_is_measured_within_its_own_window_in_texts_of_any_length():
  encoding = ByLayer(["rope window=2", "rope"])
  spec = LanguageModelSpec(9, encoding, TINY, Positions())
  ones = np.ones((2, 160), np.int32)  # so long that a decoder attends in halves
  batch = {"tokens": ones, "labels": ones, "mask": ones > 0, "weight": np.ones(2)}
  batch["fresh"] = batch["weight"] > 0
  model = spec.build(Rngs(params=0, encoding=1))
  seen = attention_weights.by_offset(model, Positions(), [batch], 1)
  np.testing.assert_allclose(seen.mass.sum(-1), 1, atol=1e-5)
  np.testing.assert_allclose(seen.uniform.sum(-1), 1, atol=1e-5)
  assert (seen.uniform[:, seen.offsets == -2] > 0).ravel().tolist() == [False, True]


def test_a_profile_is_of_the_logits_of_which_the_layer_makes_weights():
  def profile(encoding, causal=True, **options):
    model = probe.untrained(encoding, dataclasses.replace(TINY, **options), causal=causal)
    return probe.profile(model, 6)

  plain, scaled = profile(ALiBi()), profile(ALiBi(), logits_scale=4.0)
  made = 4 * plain.terms["content"] + plain.terms["bias"]
  np.testing.assert_allclose(scaled.logits, made, atol=1e-5)
  bounded = profile(ALiBi(), logits_cap=0.5)
  np.testing.assert_allclose(bounded.logits, 0.5 * np.tanh(plain.logits / 0.5), atol=1e-5)
  # A head that sees one side only sees nothing of the other below a cap, either.
  sides = profile(ALiBi(two_sided="divided"), causal=False, logits_cap=0.5)
  ahead, behind = sides.offsets > 0, sides.offsets < 0
  weights = np.asarray(jax.nn.softmax(sides.logits, axis=-1))
  assert (weights[:, :, ahead].max((0, 2)) > 0).tolist() == [False, True]
  assert (weights[:, :, behind].max((0, 2)) > 0).tolist() == [True, False]
  assert profile(ByLayer(["rope window=2", "rope"])).offsets.tolist() == [-1, 0]


def test_a_profile_needs_no_hidden_states():
  split = posexp.encoding("split", form="position_only")
  assert probe.profile(probe.untrained(split, TINY), 4).spread > 0


def test_heads_are_as_far_apart_as_scipy_says():
  draw = np.random.default_rng(0)
  first, second = (draw.dirichlet(np.ones(5), (2, heads, 5)).astype("f") for heads in (3, 4))
  real = np.arange(5) < np.array([[5], [2]])
  expected = np.zeros((3, 4))
  for row, query in np.argwhere(real):
    pair = first[row, :, None, query], second[row, None, :, query]
    expected += distance.jensenshannon(*pair, base=2, axis=-1)
  np.testing.assert_allclose(head_distances.summed(first, second, real), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_run_is_compared_with_others_head_by_head(classifier, tmp_path, capsys):
  run, same, other = classifier("complex"), classifier("complex"), classifier("rpr")
  files = head_distances.compare(run, [same, other], tmp_path)
  assert {path.name for path in files} == {f"attention-likeness.{kind}" for kind in ("png", "svg")}
  rows = re.findall(r"^layer 0, head \d +(\S+) +(\S+)$", capsys.readouterr().out, re.MULTILINE)
  found = np.array(rows, float)
  assert found.shape == (2, 2)
  assert (found[:, 0] < 1e-3).all()
  assert ((found[:, 1] > 0) & (found[:, 1] < 1)).all()


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("encoding=sinusoidal model.d_model=30", "model.d_model=30 is not divisible by num_heads=4"),
    ("run=nowhere", "nowhere: there is no such folder"),
    ("run=x rpr.k=4 encoding=rpr", "run=x has options of its own: leave rpr.k=4 out"),
    ("x" * 300, "x" * 40),  # longer than a path may be
    (". .", "run=. run=.: give one folder, text or number with each of them"),
    ("run=", "run=: give one folder, text or number with each of them"),
    ("positions=1", "positions=1: give a whole number from 2 to 4,096"),
    ("text=ab positions=3", "positions= and text= exclude each other"),
    ("text=ab", "text=ab: two words are needed; try text='the dog chased Wang Wei'"),
    ("-m encoding=rpr,none", "-m: no such flag; write options as option=value"),
  ],
)
def test_mistakes_are_one_sentence(argv, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError) as error:
    inspect.inspect(argv.split())
  assert str(error.value).startswith(message)
  assert "\n" not in str(error.value)
