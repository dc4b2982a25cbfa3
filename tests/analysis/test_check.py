"""`posexp.check` finds planted mistakes, and says in which smallest case."""

import functools
import sys

import pytest
from seed import some

from posexp import check
from posexp.analysis import conformance, properties
from posexp.analysis.conformance import PROPERTIES, compilation
from posexp.analysis.properties import Case
from posexp.config import plugins
from posexp.encodings import ENCODINGS, Relation, all_encodings
from posexp.errors import UserError
from posexp.models import transformer

MISTAKES = """\
import dataclasses

import jax
import jax.numpy as jnp

from posexp.encodings import Columns, Encoding, Relation
from posexp.encodings.columns import sums_between


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


class Gated(Relation):
  "Sums what keys carry."

  def score(self, q, k, span):
    return super().score(q, k, span) + sums_between(span.key_columns, span)


class Crowd(Relation):
  "Scales logits by the number of rows."

  def score(self, q, k, span):
    return super().score(q, k, span) * jnp.log(1.0 + q.shape[0])


class Grace(Relation):
  "Counts distances from 9 on alone, which is no mistake."

  terms = ("content", "far")

  def score(self, q, k, span):
    far = jnp.maximum(jnp.abs(span.offset)[:, None] - 8, 0)
    return super().score(q, k, span) - span.keep("far") * 0.1 * far


class Double(Relation):
  "Weighs twice."

  def weights(self, q, k, span):
    return 2 * super().weights(q, k, span)


class Smeared(Relation):
  "Gives a query the distances of the one before, by a shift that XLA compiles wrongly on a CPU."

  def score(self, q, k, span):
    rows = -0.1 * jnp.abs(span.offset[0])
    return super().score(q, k, span) + rows.at[1:].set(rows[:-1])[None, None]


class Misspelled(Relation):
  "Has a method that nothing calls."

  def scores(self, q, k, span):
    return super().score(q, k, span) - 0.1 * jnp.abs(span.offset)[:, None]


def off_by_one(x):
  "Takes the gate of the key before."
  return jnp.roll(x[..., :2], 1, axis=1)


def made(relation, columns=None):
  @dataclasses.dataclass(frozen=True)
  class Made(Encoding):
    def relation(self, num_heads, head_dim, *, causal, rngs):
      return relation()

    def columns(self, features, num_heads, head_dim, *, causal, rngs):
      return Columns(columns)

  return Made


ENCODINGS = {"late": made(Late), "leaky": made(Leaky), "cut": made(Cut), "double": made(Double)}
ENCODINGS |= {"crowd": made(Crowd), "grace": made(Grace)}
ENCODINGS |= {"smear": made(Smeared), "gate": made(Gated, off_by_one)}
ENCODINGS |= {"misspelled": made(Misspelled)}
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
    ("smear", compilation, properties.explicit_positions),
    *some(
      [
        ("late", properties.cached_decoding, properties.padding),
        ("leaky", properties.padding, properties.explicit_positions),
        ("crowd", properties.batch_mates, properties.terms),
        ("cut", properties.gradients, properties.padding),
        ("double", conformance.weights, properties.padding),
        ("gate", properties.cached_decoding, conformance.weights),
        ("gate", conformance.columns, properties.explicit_positions),
      ],
      1,
    ),
  ],
)
def test_a_planted_mistake_is_found(name, finds, passes):
  plugins.load(["wrong.py"])
  case = Case(all_encodings()[name](), causal=True, length=3, layers=2, heads=2)
  assert next(finds(case), None) is not None
  assert list(passes(case)) == []


def test_a_misspelled_method_is_named_and_has_no_effect(caplog):
  plugins.load(["wrong.py"])
  assert [each.getMessage() for each in caplog.records] == [
    "wrong.py: Misspelled.scores is nothing that posexp calls; did you mean score? "
    "A method of your own may begin with _"
  ]
  case = Case(all_encodings()["misspelled"](), causal=True, length=3, layers=2, heads=2)
  assert [*conformance.effect(case)]
  assert not [*properties.terms(case)]


def test_a_term_that_acts_on_far_keys_alone_is_no_mistake():
  plugins.load(["wrong.py"])
  assert [*properties.terms(Case(all_encodings()["grace"](), causal=True))] == []


def wider(span, kind, *places, limited=transformer.limited, **options):
  """What `limited` returns, but windows over a cache are one key wider."""
  window = kind.window and kind.window + (span.query.shape[1] < span.key.shape[1])
  return limited(span, kind._replace(window=window), *places, **options)


def shifted(self, of_kind, *, spans=transformer.Stack.spans, **options):
  """What `Stack.spans` returns, but over a cache each layer has the span of the next one."""
  found = spans(self, of_kind, **options)
  return found if found[0].consecutive else found[1:] + found[:1]


@pytest.mark.parametrize(
  ("first", "home", "name", "mistake"),
  some(
    [
      ("none window=2", transformer, "limited", wider),
      ("kerple", transformer.Stack, "spans", shifted),
    ],
    1,
  ),
)
def test_a_mistake_in_what_a_cache_reads_is_found(monkeypatch, first, home, name, mistake):
  monkeypatch.setattr(transformer.Cache, "rolls", lambda *_: False)
  monkeypatch.setattr(home, name, mistake)
  encoding = ENCODINGS["by_layer"]([first, "alibi"])
  assert list(properties.cached_decoding(Case(encoding, causal=True, length=3, heads=2)))


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


FROM_FILES = """\
import csv, dataclasses, functools, hashlib, sqlite3
from pathlib import Path
import posexp
from posexp.tasks.text_classification import Classification, LabeledData

import kept_beside

NAMES = Path("names.yaml").read_text().split()


@dataclasses.dataclass(frozen=True)
class FromFiles(Classification):
  name: str = "from_files"
  file: str = "data/rows.csv"

  def prepare(self, folder):
    (folder / "kept.txt").write_text("of the run")
    (folder / "kept.txt").read_text()
    with open(self.file) as file:
      rows = [tuple(row) for row in csv.reader(file)]
    splits = ("train", "validation", "test")
    ids = dict.fromkeys(splits, [[1, 2]] * len(rows))
    return LabeledData.of(dict.fromkeys(splits, rows), ids, vocab_size=3, label_names=NAMES)


TASKS = {"from_files": FromFiles}
"""


def test_files_of_a_task_are_part_of_its_identity(tmp_path, monkeypatch, capsys):
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "rows.csv").write_text("red a,a\nred b,b\n")
  (tmp_path / "names.yaml").write_text("a b")
  (tmp_path / "kept_beside.py").touch()
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "kept_beside", raising=False)
  argv = ["task=from_files", "plugins=own.py"]
  (tmp_path / "own.py").write_text(FROM_FILES)
  assert not check.check(argv)
  said = capsys.readouterr().out
  assert "data/rows.csv, kept_beside.py, names.yaml are read and are no part" in " ".join(
    said.split()
  )
  assert "files = [self.file, 'kept_beside.py', 'names.yaml']" in said
  method = said[said.index("  def data_digest") :].rstrip()
  for end, holds in ((method, True), (method.replace("self.file, ", ""), False)):
    monkeypatch.setattr(plugins, "_found", {})
    text = FROM_FILES.replace("\n\nTASKS", f"\n{end}\n\n\nTASKS")
    (tmp_path / "own.py").write_text(text)
    assert check.check(argv) is holds
  assert "data/rows.csv is read" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_built_is_refused_in_one_sentence(monkeypatch):
  monkeypatch.setattr(Relation, "__init__", lambda self: 1 / 0)
  with pytest.raises(ZeroDivisionError):  # a mistake in one's own code has its traceback
    check.check(["encoding=none"])
  with pytest.raises(UserError, match="no such flag"):
    check.check(["-m", "encoding=rpr,none"])
  with pytest.raises(UserError, match="no such encoding"):
    check.check(["encoding=late"])
