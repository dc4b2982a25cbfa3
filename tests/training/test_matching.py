"""Counts of parameters and FLOPs, and the widths at which encodings are equal in one of them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import order
import pytest
import untrained
from seed import some
from states import assert_equal

from posexp.encodings import ENCODINGS, Encoding, make_encoding
from posexp.encodings.complex_order import Complex
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rngs import abstract_model
from posexp.errors import UserError
from posexp.models.backbones import CNNSize, LSTMSize
from posexp.models.classifier import ClassifierSpec
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.training import matching
from posexp.training.matching import counts, facts, matched
from posexp.training.restore import open_alone

LENGTH = 16
SIZE = Size(d_model=32, num_heads=4, d_ff=256, num_layers=1)
ENCODERS = [encoding for cls in ENCODINGS.values() if not (encoding := cls()).causal_only]
WIDE = dataclasses.replace(SIZE, d_ff=1024)  # room for encodings that are larger than none


def spec(encoding, size):
  return ClassifierSpec(300, 2, encoding, size)


def count(encoding, size):
  return counts(spec(encoding, size), LENGTH)


def match(encoding, size):
  """The size that is found."""
  return matched(spec(encoding, size), LENGTH).size


MATCHED = [
  (encoding, WIDE, ("parameters", "flops")[number % 2]) for number, encoding in enumerate(ENCODERS)
]
CNN = CNNSize(filters=300, d_model=64)


@pytest.mark.parametrize(
  ("encoding", "given", "what"), [*some(MATCHED, 1), (Complex(), CNN, "flops")]
)
def test_every_encoding_is_within_a_percent_of_the_reference(encoding, given, what):
  goal = count(Encoding(), given)[what]
  size = match(encoding, dataclasses.replace(given, match=what))
  assert abs(count(encoding, size)[what] / goal - 1) < 0.01
  assert dataclasses.replace(size, **{given.varied: getattr(given, given.varied)}) == given


@pytest.mark.parametrize("encoding", [Encoding(), Complex()])
def test_operations_of_a_loop_are_counted_as_often_as_it_runs(encoding):
  size = LSTMSize(d_model=300, hidden=128)
  by_hand = 2 * 4 * 128 * (300 + 128)  # without gates, biases, and what is done once a text
  assert count(encoding, size)["flops"] == pytest.approx(by_hand, rel=0.03)


def test_a_loop_is_counted_in_each_of_its_steps_and_a_running_sum_by_its_numbers():
  def loop(x, w):
    return jax.lax.scan(lambda h, _: (h @ -w, h.sum()), x, length=5)

  x = jax.ShapeDtypeStruct((8, 8), "float32")
  once, step = 8 * 8, 2 * 8**3 + 8 * 8 - 1  # −w is the same in all steps
  assert matching.operations(loop, x, x) == pytest.approx(once + 5 * step, rel=0.01)
  assert matching.operations(jax.checkpoint(jnp.cumsum), x) == 8 * 8


def test_the_closest_width_is_chosen():
  size = match(TransformerXL(), dataclasses.replace(WIDE, match="parameters"))
  # Transformer-XL has W_kR [32,32], u and v [4,8] beside none; a unit of d_ff has 2·32 + 1.
  assert WIDE.d_ff - size.d_ff == round((32 * 32 + 2 * 32) / 65)
  assert match(TransformerXL(), SIZE) == SIZE  # where nothing is asked


def test_the_reference_may_be_another_encoding():
  size = match(RPR(k=2), dataclasses.replace(WIDE, match="parameters", match_to="rpr"))
  assert size.d_ff - WIDE.d_ff == round(2 * (33 - 5) * 8 / 65)
  same = match(RPR(), dataclasses.replace(WIDE, match="parameters", match_to="rpr"))
  assert same == WIDE


def test_what_cannot_be_matched_is_one_sentence():
  tiny = Size(d_model=32, num_heads=4, d_ff=8, num_layers=1, match="parameters")
  with pytest.raises(UserError, match="no width comes closer") as error:
    match(TransformerXL(), tiny)
  assert str(error.value).startswith("model.match=parameters: with d_ff=1 the model has ")


def test_flops_are_those_of_the_formula():
  def by_hand(d_ff):  # without norms, biases, softmax and ReLU, which are a few percent
    projections, attention = 4 * 2 * 32 * 32, 2 * 2 * 16 * 32
    return projections + attention + 2 * 2 * 32 * d_ff

  counted = [count(Encoding(), dataclasses.replace(SIZE, d_ff=n))["flops"] for n in (64, 256)]
  assert counted[1] == pytest.approx(by_hand(256), rel=0.08)
  assert counted[1] - counted[0] == pytest.approx(by_hand(256) - by_hand(64), rel=0.04)


def test_facts_compare_with_none_at_the_size_that_was_given():
  given = dataclasses.replace(WIDE, match="parameters")
  found = facts(matched(spec(TransformerXL(), given), LENGTH), LENGTH, given)
  assert found["parameters_of_none"] == count(Encoding(), WIDE)["parameters"]
  assert found["parameters"] == pytest.approx(found["parameters_of_none"], rel=0.01)
  assert found["flops_per_token"] > found["flops_per_token_of_none"]
  assert found["d_ff"] < WIDE.d_ff


def test_operations_are_counted_on_the_cpu_whichever_device_trains(monkeypatch):
  """A GPU's plugin counts nothing: its analysis is None."""
  counted = jax.stages.Lowered.cost_analysis

  def of_cpu(lowered):
    return counted(lowered) if jax.config.jax_default_device is not None else None

  monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", of_cpu)
  counts.cache_clear()
  assert count(RPR(), SIZE)["flops"] > count(Encoding(), SIZE)["flops"] > 0


def test_a_machine_without_the_cpu_says_how_to_add_it(monkeypatch):
  def left_out(**_):
    raise RuntimeError("Unknown backend cpu")

  monkeypatch.setattr(jax, "local_devices", left_out)
  with pytest.raises(UserError, match=r"leaves out the CPU.*,cpu$"):
    matching.costs(lambda rngs: None, (), 1)


def test_the_forms_of_attention_are_those_of_every_layer():
  layers = make_encoding(
    {"encoding": "by_layer", "by_layer": {"pattern": ["none window=2", "none"]}}
  )
  size = dataclasses.replace(SIZE, num_layers=2)
  model = abstract_model(LanguageModelSpec(300, layers, size).build)
  assert [matching.forms(model, n) for n in (16, 300)] == ["reference", "blocked, halves"]
  model = abstract_model(ClassifierSpec(300, 2, Encoding(), LSTMSize()).build)
  assert matching.forms(model, 300) == "none"


@pytest.mark.slow
def test_a_size_that_was_matched_is_the_one_of_the_checkpoint(home):
  matched = ["model.match=parameters", "model.match_to=none", "model.d_ff=128", "encoding=rpr"]
  path = untrained.run(home / "run", *order.NUMBERS, *order.MODEL, *matched)
  kept = (path / "config.yaml").read_text()
  params = open_alone(path, "translate").snapshot.state.params
  width = params["encoder"]["blocks"][0]["feed_forward"]["up"]["bias"].shape[0]
  assert width != 128
  (path / "config.yaml").write_text(kept.replace("match: parameters", "match: flops"))
  with pytest.raises(UserError, match="has not finished: which d_ff"):
    open_alone(path, "translate")
  (path / "summary.json").write_text(json.dumps({"d_ff": width}))
  assert_equal(open_alone(path, "translate").snapshot.state.params, params)
