"""A trained model is measured with other options of its encoding, where its weights allow it."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from flax import nnx

from posexp.encodings import ENCODINGS
from posexp.encodings.rngs import Rngs
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.runs.checkpoints import difference
from posexp.training.devices import mesh_for, prepare
from posexp.training.evaluation import Snapshot
from posexp.training.optimizer import Training
from posexp.training.restore import TrainedModel, shapes, with_options
from posexp.training.setup import Setup
from posexp.training.step import State, keys, program, split

SIZE = Size(d_model=16, num_heads=2, d_ff=16, num_layers=1, dropout=0.0)


CONFIG = {"encoding": "rpr", "rpr": {"k": 4}, "model": {"d_model": 16, "num_heads": 2}}
TOKENS = np.arange(10)[None] % 7


def test_no_variable_of_jax_s_chooses_another_generator():
  jax.config.update("jax_default_prng_impl", "rbg")
  prepare()
  assert jax.config.jax_default_prng_impl == "threefry2x32"


@nnx.jit
def said(model):
  return model(TOKENS)


def trained():
  """A run of RPR, up to what it lacks here."""
  spec = LanguageModelSpec(11, ENCODINGS["rpr"](k=4), SIZE)
  compiled = program(spec, Training(), 1, mesh_for(np.array([1])))
  setup = Setup(CONFIG, spec.encoding, None, SIZE, spec.positions, Training())
  run = types.SimpleNamespace(config=CONFIG)
  _, params, settings = split(spec.build(Rngs(**keys(0))))
  return TrainedModel(run, setup, spec, Snapshot(compiled, State(0, params, settings, (), None), 1))


def test_options_that_are_traced_are_not_those_of_the_checkpoint():
  one = trained()
  other = with_options(one, {"rpr.k": 2, "rpr.table": "4", "model.memory": 6})
  outputs = [said(each.snapshot.model()) for each in (one, other)]
  assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
  spec = dataclasses.replace(one.spec, encoding=ENCODINGS["rpr"](k=2, table=4))
  graphdef, _, settings = nnx.split(spec.build(nnx.Rngs(0)), nnx.Param, ...)
  expected = said(nnx.merge(graphdef, one.snapshot.state.params, settings))
  np.testing.assert_allclose(outputs[1], expected, atol=1e-6)
  assert other.spec.size.memory == 6
  assert other.snapshot.program.carry(3).documents.shape == (3, 6)


TABLES = "blocks/0/attention/relation/tables"


@pytest.mark.parametrize(
  ("name", "one", "other", "differs"),
  [
    ("rope", {}, {"scaling": "ntk", "factor": 4.0, "map": "rerope", "map_window": 4}, None),
    ("rope", {}, {"base": 500.0, "share": 0.5, "layout": "half"}, None),
    ("transformer_xl", {}, {"clamp": 3, "base": 100.0}, None),
    ("rpr", {"k": 4}, {"k": 2, "table": 4, "beyond": "zero"}, None),
    ("sinusoidal", {"at": "attention"}, {"at": "attention", "base": 100.0, "layout": "half"}, None),
    ("alibi", {"learned": True}, {"learned": True, "two_sided": "direction"}, None),
    ("t5", {}, {"max_distance": 64}, None),
    ("kerple", {}, {"kind": "power"}, None),
    ("complex", {}, {"score": "modulus"}, None),
    ("rpr", {}, {"k": 4}, (f"{TABLES}/keys", "[33, 8]", "[9, 8]")),
    ("rpr", {}, {"values": False}, (f"{TABLES}/values", "[33, 8]", "missing")),
    ("learned", {}, {"length": 64}, ("embed/vector/rows", "[512, 16]", "[64, 16]")),
    ("alibi", {}, {"learned": True}, ("shared/slopes", "missing", "[2]")),
  ],
)
def test_an_option_fits_a_checkpoint_unless_a_parameter_knows_it(name, one, other, differs):
  encodings = (ENCODINGS[name](**options) for options in (one, other))
  found = difference(*(shapes(LanguageModelSpec(11, encoding, SIZE)) for encoding in encodings))
  said = differs and "stack/{} is {} in the checkpoint and {} in the model".format(*differs)
  assert found == said
