"""`posexp.check` finds planted mistakes, and says in which smallest case."""

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from seed import some

from posexp import check
from posexp.analysis import conformance, properties
from posexp.analysis.conformance import PROPERTIES, compilation, far_positions
from posexp.analysis.properties import Case
from posexp.config import plugins
from posexp.encodings import ENCODINGS, Columns, Encoding, Relation
from posexp.encodings.columns import sums_between
from posexp.errors import UserError
from posexp.models import transformer


def planted(columns=None, terms=("content",), **changes):
  """An encoding whose relation changes what these methods of a plain one return."""

  def changed(name, change):
    return lambda self, q, k, span: change(getattr(Relation, name)(self, q, k, span), q, k, span)

  methods = {name: changed(name, change) for name, change in changes.items()}

  @dataclasses.dataclass(frozen=True)
  class Planted(Encoding):
    def relation(self, num_heads, head_dim, *, causal, rngs):
      return type("Changed", (Relation,), methods | {"terms": terms})()

    def columns(self, features, num_heads, head_dim, *, causal, rngs):
      return Columns(columns)

  return Planted


@dataclasses.dataclass(frozen=True)
class Drawn(Encoding):
  """Draws from the stream of all other parts, in the last of its methods."""

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    rngs.params()
    return Columns()


def far(span):
  return 0.1 * jnp.abs(span.offset)[:, None]


def late(x, q, k, span):
  """Counts queries from the first key on, also where a cache holds keys before them."""
  return x - 0.1 * jnp.abs(jnp.arange(k.shape[1]) - jnp.arange(q.shape[1])[:, None])


def cut(x, q, k, span):
  """Takes no gradient through what a query does to distances."""
  return x - 10 * jax.lax.stop_gradient(q.mean(-1)).swapaxes(1, 2)[..., None] * far(span)


def smeared(x, q, k, span):
  """Gives a query the distances of the one before, by a shift that a CPU's XLA compiles wrongly."""
  rows = -0.1 * jnp.abs(span.offset[0])
  return x + rows.at[1:].set(rows[:-1])[None, None]


def whole(x, q, k, span):
  """Factors over all positions at once, which overflow far away."""
  query, key, bias = x
  fall, rise = (
    jnp.exp(0.01 * sign * (at - span.query[:, :1]))[:, :, None, None]
    for at, sign in ((span.query, -1), (span.key, 1))
  )
  return query * fall, key * rise, bias


def gated(x, q, k, span):
  return x + sums_between(span.key_columns, span)


PLANTED = {
  "late": planted(score=late),
  # By the number of keys, padding included; by that of rows.
  "leaky": planted(score=lambda x, q, k, span: x - 10 * far(span) / k.shape[1]),
  "crowd": planted(score=lambda x, q, k, span: x * jnp.log(1.0 + q.shape[0])),
  "cut": planted(score=cut),
  "drawn": Drawn,
  "double": planted(weights=lambda x, q, k, span: 2 * x),
  "gate": planted(lambda x: jnp.roll(x[..., :2], 1, axis=1), score=gated),  # of the key before
  "smear": planted(score=smeared),
  "whole": planted(qk_and_bias=whole),
  "forgetful": planted(terms=("content", "extra"), score=lambda x, q, k, span: x - 3 * far(span)),
}


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
  """In an empty folder."""
  monkeypatch.setattr(plugins, "_found", {})
  monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
  ("name", "finds", "passes"),
  [
    ("smear", compilation, properties.explicit_positions),
    ("whole", far_positions, properties.padding),
    *some(
      [
        ("late", properties.cached_decoding, properties.padding),
        ("leaky", properties.padding, properties.explicit_positions),
        ("crowd", properties.batch_mates, properties.terms),
        ("cut", properties.gradients, properties.padding),
        ("double", conformance.weights, properties.padding),
        ("drawn", properties.same_start, properties.padding),
        ("forgetful", properties.terms, properties.padding),
        ("gate", properties.cached_decoding, conformance.weights),
        ("gate", conformance.columns, properties.explicit_positions),
      ],
      1,
    ),
  ],
)
def test_a_planted_mistake_is_found(name, finds, passes):
  case = Case(PLANTED[name](), causal=True, length=3, layers=2, heads=2)
  assert next(finds(case), None) is not None
  assert list(passes(case)) == []


MISSPELLED = """\
import posexp


class Forgetful(posexp.Encoding):
  def relations(self, *sizes, **options):
    return posexp.Relation()


ENCODINGS = {"forgetful": Forgetful}
"""


def test_a_misspelled_method_is_named_and_has_no_effect(caplog):
  Path("mine.py").write_text(MISSPELLED)
  plugins.load(["mine.py"])
  assert [each.getMessage() for each in caplog.records] == [
    "mine.py: Forgetful.relations is nothing that posexp calls; did you mean relation? "
    "A method of your own may begin with _"
  ]
  own = plugins.found("encoding")["forgetful"].value()
  sizes = {"causal": True, "length": 3, "layers": 2, "heads": 2}
  assert [*conformance.effect(Case(own, **sizes))]
  assert not [*conformance.effect(Case(PLANTED["late"](), **sizes))]


def test_a_term_that_acts_on_far_keys_alone_is_no_mistake():
  def grace(x, q, k, span):
    return x - span.keep("far") * jnp.maximum(far(span) - 0.8, 0)

  encoding = planted(terms=("content", "far"), score=grace)()
  assert [*properties.terms(Case(encoding, causal=True))] == []


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
  Path("wrong.py").write_text("from test_check import PLANTED as ENCODINGS\n")
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
import csv, dataclasses, functools, hashlib, itertools, sqlite3
from pathlib import Path
import posexp
from posexp.tasks.text_classification import Classification, LabeledData

import kept_beside

NAMES = Path("names.yaml").read_text().split()
COUNT = itertools.count()


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
  monkeypatch.setattr(sys, "path", [*sys.path])  # which has the folder of the file from then on
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
    plugins._declared.cache_clear()  # a file of posexp's own, which is read once
    plugins.entries.cache_clear()
    assert check.check(argv) is holds
  assert "data/rows.csv is read" in " ".join(capsys.readouterr().out.split())
  (tmp_path / "own.py").write_text(FROM_FILES.replace("[[1, 2]]", "[[next(COUNT) % 3]]"))
  assert not check.check(argv)
  assert "Examples of train, validation, test are others each time" in capsys.readouterr().out


DRAWN = """\
import dataclasses, numpy, posexp

@dataclasses.dataclass(frozen=True)
class Last(posexp.Diagnostic):
  symbols = 8
  name: str = "last"

  def draw(self, random, n):
    x = random.integers(8, size=n)
    return x, x[-1:]

TASKS = {"last": Last}
"""


@pytest.mark.parametrize(
  ("draws", "said"),
  [
    ("random.integers", "same examples holds"),
    ("numpy.random.default_rng().integers", "train, validation, test, beyond are others each"),
  ],
)
def test_what_a_diagnostic_draws_is_always_the_same(tmp_path, capsys, draws, said):
  (tmp_path / "own.py").write_text(DRAWN.replace("random.integers", draws))
  assert check.check(["task=last", "task.examples=4", "plugins=own.py"]) is ("holds" in said)
  assert said in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_built_is_refused_in_one_sentence(monkeypatch):
  monkeypatch.setattr(Relation, "__init__", lambda self: 1 / 0)
  with pytest.raises(ZeroDivisionError):  # a mistake in one's own code has its traceback
    check.check(["encoding=none"])
  with pytest.raises(UserError, match="no such flag"):
    check.check(["-m", "encoding=rpr,none"])
  with pytest.raises(UserError, match="no such encoding"):
    check.check(["encoding=late"])
