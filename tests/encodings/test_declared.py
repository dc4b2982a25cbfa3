"""What the class of an encoding declares is obeyed, also of one of the user's own."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest

import posexp
from posexp.analysis import properties
from posexp.analysis.conformance import far_positions
from posexp.config import plugins
from posexp.encodings import ENCODINGS, Encoding, Relation, check_limit
from posexp.encodings.rngs import abstract_model
from posexp.models.classifier import ClassifierSpec
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack

SIZE = Size(d_model=8, num_heads=2, d_ff=8, num_layers=1, dropout=0.0)


def why(build):
  """The sentence by which a model is refused, or None."""
  try:
    abstract_model(build)
  except ValueError as error:
    return str(error)
  return None


@pytest.fixture
def own(monkeypatch):
  """Makes an encoding of the user's own, called `own`, that declares some facts."""

  def made(**facts):
    options = [("both", bool, False), ("rows", int, 12)]
    kind = {"bases": (Encoding,), "namespace": facts, "frozen": True}
    cls = dataclasses.make_dataclass("Own", options, **kind)
    monkeypatch.setattr(plugins, "table", lambda group, built_in: built_in | {"own": cls})
    return cls()

  return made


CAUSAL = "own is defined for causal attention only, not for an encoder"
NO_MEMORY = "memory=4 would give what the memory holds the same absolute positions"


def stack(encoding, causal, **size):
  return lambda rngs: Stack(
    9, encoding, dataclasses.replace(SIZE, **size), causal=causal, rngs=rngs
  )


@pytest.mark.parametrize(
  ("facts", "build", "message"),
  [
    ({"causal_only": True}, lambda e: ClassifierSpec(9, 2, e, SIZE).build, CAUSAL),
    ({"causal_only": True}, lambda e: lambda r: posexp.Attention(e, 8, 2, rngs=r), CAUSAL),
    ({"causal_only": True}, lambda e: LanguageModelSpec(9, e, SIZE).build, None),
    (
      {"causal_only": True, "both_sides_by": "both"},
      lambda e: stack(e, causal=False),
      f"{CAUSAL}, unless own.both=true",
    ),
    ({"relative": False}, lambda e: stack(e, True, memory=4), NO_MEMORY),
    ({"recurrent": False}, lambda e: stack(e, True, memory=4), NO_MEMORY),
    ({"relative": False, "recurrent": True}, lambda e: stack(e, True, memory=4), None),
  ],
)
def test_a_model_is_refused_as_is_declared(own, facts, build, message):
  encoding = own(**facts)
  found = why(build(encoding))
  assert found == message or found.startswith(message)


@pytest.mark.parametrize(
  ("facts", "message"),
  [
    (
      {"limit": 12, "limited_by": "rows"},
      "own.rows=12 gives 12 positions: texts are long; raise own.rows, or cut them",
    ),
    ({"limit": 12, "limited_by": "nothing"}, "own has 12 positions: texts are long; cut them"),
    ({}, None),
  ],
)
def test_a_limit_is_told_by_its_option(own, facts, message):
  encoding = own(**facts)
  check_limit(encoding, 12, "", "")
  if message is None:
    return check_limit(encoding, 10**9, "", "")
  with pytest.raises(ValueError, match=f"^{message}$"):
    check_limit(encoding, 13, "texts are long", "cut them")
  assert Positions("randomized", 20, "drawn").limit(encoding.limit) == 12
  return None


@pytest.mark.parametrize("name", [n for n, cls in ENCODINGS.items() if cls().causal_only])
def test_built_in_encodings_are_refused_by_their_declaration(name):
  found = why(stack(ENCODINGS[name](), causal=False))
  assert found.startswith(f"{name} is defined for causal attention only, not for an encoder")
  assert ("kerple.symmetric=true" in found) == (name == "kerple")


class Blind(Relation):
  """Its queries and keys are not made of hidden states."""

  uses_hidden: ClassVar[bool] = False

  def score(self, q, k, span):
    shape = len(k), k.shape[2], *span.offset.shape[1:]
    return span.keep("content") * jnp.broadcast_to(-0.3 * jnp.abs(span.offset)[:, None], shape)


def test_hidden_states_are_those_that_a_relation_declares(own):
  encoding = own(relation=lambda self, *_, **__: Blind())
  case = properties.Case(encoding, causal=True, length=4, layers=1, heads=2)
  assert [*properties.terms(case), *far_positions(case)] == []
  assert properties.stack(case).blocks[0].attention.query is None


@pytest.mark.parametrize("parts", [("attn",), "attention"])
def test_parts_that_there_are_not_are_refused(own, parts):
  with pytest.raises(ValueError, match="acts_in must be a tuple of some of input, linear, norms"):
    own(acts_in=parts)
