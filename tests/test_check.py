"""`posexp.check` finds three planted mistakes, and says in which smallest case."""

import functools

import pytest

from posexp import check
from posexp.analysis import conformance, properties
from posexp.analysis.conformance import PROPERTIES
from posexp.analysis.properties import Case
from posexp.config import plugins
from posexp.encodings import Relation, all_encodings
from posexp.errors import UserError

MISTAKES = """\
import dataclasses

import jax
import jax.numpy as jnp

from posexp.encodings import Encoding, Relation


class Late(Relation):
  "Counts queries from the first key on, also where a cache holds keys before them."

  def score(self, q, k, span):
    offset = jnp.arange(k.shape[1]) - jnp.arange(q.shape[1])[:, None]
    return super().score(q, k, span) - 0.1 * jnp.abs(offset)


class Leaky(Relation):
  "Divides distances by the number of keys, padding included."

  def score(self, q, k, span):
    distance = jnp.abs(span.offset)[:, None] / k.shape[1]
    return super().score(q, k, span) - distance


class Cut(Relation):
  "Takes no gradient through what a query does to distances."

  def score(self, q, k, span):
    scale = jax.lax.stop_gradient(q.mean(-1)).swapaxes(1, 2)[..., None]
    return super().score(q, k, span) - scale * jnp.abs(span.offset)[:, None]


def made(relation):
  @dataclasses.dataclass(frozen=True)
  class Made(Encoding):
    def relation(self, num_heads, head_dim, *, causal, rngs):
      return relation()

  return Made


ENCODINGS = {"late": made(Late), "leaky": made(Leaky), "cut": made(Cut)}
"""


@pytest.fixture(autouse=True)
def planted(tmp_path, monkeypatch):
  """In a folder with the file of the mistakes."""
  monkeypatch.setattr(plugins, "_found", {})
  monkeypatch.chdir(tmp_path)
  (tmp_path / "wrong.py").write_text(MISTAKES)


@pytest.mark.parametrize(
  ("name", "finds", "passes"),
  [
    ("late", properties.cached_decoding, properties.padding),
    ("leaky", properties.padding, properties.explicit_positions),
    ("cut", properties.gradients, properties.padding),
  ],
)
def test_a_planted_mistake_is_found(name, finds, passes):
  plugins.load(["wrong.py"])
  case = Case(all_encodings()[name](), causal=True, length=3, layers=1, heads=2)
  assert next(finds(case), None) is not None
  assert list(passes(case)) == []


def test_the_command_shows_the_smallest_counterexample(monkeypatch, capsys):
  asked = (properties.padding, properties.cached_decoding)
  some = tuple(each for each in PROPERTIES if each.check in asked)
  monkeypatch.setattr(conformance, "PROPERTIES", some)
  # What is shrunk has the shapes of the tests above, which are compiled.
  monkeypatch.setattr(conformance, "Case", functools.partial(Case, length=3, layers=2, heads=2))
  assert not check.check(["encoding=late", "plugins=wrong.py"])
  first, padding, *cached, last = capsys.readouterr().out.splitlines()
  assert first == "late"
  assert padding.split(maxsplit=2)[:2] == ["padding", "holds"]
  assert " ".join(cached).startswith(
    "cached decoding     fails         2 tokens, 1 layer, 1 head, causal: token by token: row 0"
  )
  assert last.startswith("1 does not hold")


def test_what_cannot_be_built_is_refused_in_one_sentence(monkeypatch):
  monkeypatch.setattr(Relation, "__init__", lambda self: 1 / 0)
  with pytest.raises(ZeroDivisionError):  # a mistake in one's own code has its traceback
    check.check(["encoding=none"])
  with pytest.raises(UserError, match="no such flag"):
    check.check(["-m", "encoding=rpr,none"])
  with pytest.raises(UserError, match="no such encoding"):
    check.check(["encoding=late"])
