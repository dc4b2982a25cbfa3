"""What holds for every encoding. One that is listed in ENCODINGS is tested here by being listed.

It is asked with its default options. Which encodings are asked, and which of their variants, is
drawn by a seed; slow tests ask all of them.
"""

import contextlib
import functools
import re
from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BLIND, CASES, DEFAULTS, NEAR, UNDEFINED, UNTRAINED
from flax import nnx
from seed import SEED, drawn, some
from small import SMALL, B, L, case_of, rngs, some_tokens, stack

from posexp.analysis import conformance, properties
from posexp.analysis.conformance import compilation, far_positions
from posexp.analysis.properties import EXACT, VOCAB, paths
from posexp.encodings import ENCODINGS, Encoding, additive, distance, relative, rotation
from posexp.encodings.reflections import PaTH
from posexp.encodings.sinusoids import sinusoids
from posexp.models.classifier import ClassifierSpec
from posexp.models.size import Size
from posexp.models.transformer import Stack

OTHERS = [case for case in CASES if case not in DEFAULTS]
# These enter as `sinusoidal` and as `alibi` do, with other numbers.
ALIKE = ("index", "binary", "clock", "kerple", "sandwich")
UNLIKE = [name for name in ENCODINGS if name not in ALIKE]
# What keys carry, sums over keys, and distances of layers or of hypotheses: one encoding of each.
OWN_FORMS = ["rpr", "transformer_xl", "complex", "fox", "dape", "cope", "delta", "by_layer"]
REST = [name for name in UNLIKE if name not in OWN_FORMS]
SLOW = [pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in OTHERS]
SLOW_UNTRAINED = [case for case in SLOW if case.values[0] in UNTRAINED]

REAL, CLASSES = 3, 3  # REAL: how long the shorter row is
DIFFERENT = 1e-3
# Relations of many operations: their gradients compile faster as a whole.
LARGE = ("FIRE", "RPR", "TransformerXL", "Complex", "TUPE")
MASK = np.arange(L) < np.array([[REAL], [L]])
# Which encodings are asked for a property, where not every variant of their options is. Formulas
# and their gradients, with few queries and with gaps, are held by tests of single families
# (tests/oracle.py), forms for long sequences and terms by tests of their own.
SOME = [case for case in DEFAULTS if case.id in ("rpr", "split")]
# Beside the defaults, those that weigh keys in another way, or hand a memory more than positions.
OWN_WEIGHTS = [case for case in CASES if "score" in case.id or "untie_cls" in case.id]
OWN_MEMORY = [case for case in CASES if case.id.startswith("transformer_xl {")]
# Beside the defaults, those that enter elsewhere than by the logits, or share what the logits need.
INPUTS = ("index", "normalized", "binary", "clock", "learned", "sinusoidal", "complex", "split")
SHARED = ("share", "table", "clamp")
OWN_STEPS = [
  case for case in OTHERS if case.id.startswith(INPUTS) or any(s in case.id for s in SHARED)
]
ASKED = {  # the others of DEFAULTS
  **dict.fromkeys((properties.shift, conformance.weights, conformance.columns), CASES),
  properties.padding: DEFAULTS + OWN_WEIGHTS,
  properties.memory: DEFAULTS + OWN_MEMORY,
  properties.cached_decoding: DEFAULTS + OWN_STEPS,
  properties.long_texts: [case for case in DEFAULTS if case.id == "transformer_xl"],
  properties.gradients: SOME,
  properties.terms: SOME,
}
# These are drawn for all that is not cheap, since properties share what is compiled. Where others
# are: each way to enter attention over a source; relations that do not have all their formula
# compared, with few queries and with gaps, by tests/oracle.py.
DRAWN = drawn(OWN_FORMS, 2) + drawn(REST, 1)
LIGHT = drawn(("rpr", "fox", "dape", "cope"), 1)  # for what is compiled in many ways
FEW = {  # the others of DRAWN
  properties.batch_mates: LIGHT,
  properties.explicit_positions: DRAWN[:2],
  properties.cross_attention: drawn(("learned", "transformer_xl", "complex", "split", "cope"), 1),
  properties.long_texts: (),  # of which tests/models/test_long_attention.py draws
  properties.spans: drawn(("transformer_xl", "rpr", "complex", "split"), 1),
  properties.bfloat16: DRAWN[:1],
  properties.gradients: ("rpr",),
  properties.terms: ("rpr", "split"),
  conformance.effect: LIGHT,
  far_positions: ("xpos",),
  compilation: LIGHT,
}
ALIKE_ON_BOTH = {properties.shift, conformance.weights, conformance.columns}
BOTH = {properties.batch_mates, properties.explicit_positions, *ALIKE_ON_BOTH}


def listed():
  """Every property with every encoding that is asked for it, of decoders and of encoders."""
  for each in conformance.PROPERTIES:
    for param in ASKED.get(each.check, DEFAULTS):
      (encoding,) = param.values
      near = each.declared == "relative" and encoding in BLIND | NEAR
      sides = (each._replace(declared="") if near else each).sides(encoding)
      sides = [causal for causal in sides[::-1] if UNDEFINED.get(encoding) is not causal]
      once = each.check not in BOTH or param not in DEFAULTS
      for turn, causal in enumerate(sides[:1] if once else sides):
        side = "causal" if causal else "encoder"
        # In a decoder, which cannot look at padding, other rows have less to change. Positions that
        # are given enter words on both sides alike, and `shift` asks attention for them on both.
        quick = not turn and param in DEFAULTS and param.id in FEW.get(each.check, DRAWN)
        marks = [] if quick else [pytest.mark.slow]
        name = f"{each.name}-{side}-{param.id}"
        yield pytest.param(each.check, case_of(encoding, causal), id=name, marks=marks)


LISTED = list(listed())


@pytest.fixture(autouse=True, scope="module")
def _sinusoids_are_one_program():
  """Not one for each of their many operations."""
  program = functools.cache(lambda omega: jax.jit(lambda x: sinusoids(x, np.array(omega))))
  with contextlib.ExitStack() as patches:
    for user in (additive, distance, relative, rotation):
      compiled = mock.patch.object(user, "sinusoids", lambda x, omega: program(tuple(omega))(x))
      patches.enter_context(compiled)
    yield


@pytest.mark.parametrize(("check", "case"), LISTED)
def test_it_holds(check, case):
  assert list(check(case)) == []


def arrays_of(jaxpr):
  """Size and shape of all arrays that a program makes, those of its subprograms included."""
  for equation in jaxpr.eqns:
    for made in equation.outvars:
      yield made.aval.size, made.aval.str_short()
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from arrays_of(inner)


@pytest.mark.parametrize("encoding", some([p for p in DEFAULTS if p.id in UNLIKE], 3))
def test_no_array_of_a_step_has_a_vector_for_each_pair_of_query_and_key(encoding):
  length, width = 64, 32
  size = Size(**SMALL | {"d_model": SMALL["num_heads"] * width, "d_ff": 48, "num_layers": 1})
  causal = UNDEFINED.get(encoding) is False
  model = nnx.eval_shape(lambda: Stack(VOCAB, encoding, size, causal=causal, rngs=rngs()))
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  def loss(params, rest):
    return nnx.merge(graphdef, params, rest)(jnp.ones((B, length), int)).sum()

  program = jax.make_jaxpr(jax.value_and_grad(loss))(params, rest)
  tables = {f"float32[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(params)}
  most = length**2 * width
  if isinstance(encoding, PaTH):  # a definition, which keeps queries after each of √length keys
    most *= B * SMALL["num_heads"] / 4
  assert max(made for made in arrays_of(program.jaxpr) if made[1] not in tables)[0] < most


def difference(a, b):
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  assert a.shape == b.shape
  assert np.isfinite(a).all()
  assert np.isfinite(b).all()
  return np.abs(a - b).max()


@pytest.mark.parametrize("encoding", some(DEFAULTS, 1))
def test_a_full_cache_gives_nan(encoding):
  model, tokens = stack(encoding, causal=True), some_tokens()
  cache = model.empty_cache(B, L)
  for start, end in ((0, REAL), (REAL, L), (0, 1)):
    output, cache = properties.compiled(model, "step", tokens[:, start:end], cache, source=None)
    assert (np.isnan if (start, end) == (0, 1) else np.isfinite)(output).all()
  with pytest.raises(ValueError, match=f"{L} tokens, but the cache has 4 slots"):
    model.step(tokens, model.empty_cache(B, 4))


@pytest.mark.parametrize(
  "encoding",
  some([p for p in DEFAULTS if not (p.values[0].relative or p.values[0] in BLIND | NEAR)], 2),
)
def test_what_is_not_relative_depends_on_where_counting_starts(encoding):
  case = case_of(encoding, UNDEFINED.get(encoding) is False)
  assert max(apart.amount for apart in properties.shift(case)) > DIFFERENT
  if UNDEFINED.get(encoding) is not True and not encoding.recurrent:
    case = case_of(encoding, causal=True)
    assert max(apart.amount for apart in properties.memory(case)) > DIFFERENT


@pytest.mark.parametrize("encoding", some(DEFAULTS, 2) + SLOW)
def test_the_rest_of_a_sequence_is_read(encoding):
  model, tokens = stack(encoding), some_tokens()
  others = some_tokens(1).at[0, :REAL].set(tokens[0, :REAL])
  alone = properties.compiled(model, "__call__", tokens[:, :REAL])
  apart = difference(model(others)[0, :REAL], alone[0])
  assert apart > DIFFERENT or encoding.causal_only


@pytest.mark.parametrize("encoding", some(DEFAULTS, 8) + SLOW)
def test_order_matters_unless_there_is_no_position(encoding):
  model, tokens = stack(encoding), some_tokens()
  order = np.array([2, 0, 1, *range(REAL, L)])
  apart = difference(model(tokens[:, order], MASK), model(tokens, MASK)[:, order])
  if encoding in BLIND:
    assert apart < EXACT
  else:
    assert apart > DIFFERENT


@pytest.mark.parametrize("encoding", some(DEFAULTS, 1) + SLOW_UNTRAINED)
def test_gradients_are_finite_and_reach_every_parameter(encoding):
  reader = Encoding() if encoding.causal_only else encoding
  model = ClassifierSpec(VOCAB, CLASSES, reader, Size(**SMALL)).build(rngs())
  if encoding.causal_only:  # then it reads a causal stack
    model.stack = Stack(VOCAB, encoding, Size(**SMALL), causal=True, rngs=rngs().fork())
  tokens, padding = some_tokens(), 0
  tokens = jnp.where(MASK, tokens, padding)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  def loss(params):
    logits = nnx.merge(graphdef, params, rest)(tokens, MASK)
    return -jax.nn.log_softmax(logits)[jnp.arange(B), jnp.array([0, 2])].sum()

  gradient = jax.grad(loss)
  gradients = paths((jax.jit(gradient) if type(encoding).__name__ in LARGE else gradient)(params))
  untrained = UNTRAINED.get(encoding)
  for path, gradient in gradients.items():
    assert np.isfinite(gradient).all(), path
    if untrained and re.search(untrained, path):
      assert np.abs(gradient).max() < 1e-6, path
    else:
      assert np.abs(gradient).max() > 1e-5, path
    if path.startswith("stack/embed/") and len(gradient) == VOCAB:
      assert not gradient[padding].any(), path  # the masked word, which no other position has
      assert gradient[int(tokens[0, 1])].any(), path
  assert not untrained or any(re.search(untrained, path) for path in gradients)


@pytest.mark.parametrize("encoding", some([p for p in DEFAULTS if p.id in UNLIKE], 4))
def test_memory_and_cache_are_of_the_models_dtype(encoding):
  if UNDEFINED.get(encoding) is True:
    pytest.skip("not defined there")
  tokens = some_tokens()[:, :REAL]

  def made():
    size = Size(**SMALL, dtype="bfloat16")
    model = Stack(VOCAB, encoding, size, causal=True, rngs=rngs())
    cache, memory = model.empty_cache(B, L), model.empty_memory(B, L)
    return cache, memory, model.step(tokens, cache), model.recur(tokens, memory)

  cache, memory, stepped, recurred = jax.eval_shape(made)
  assert stepped[0].dtype == recurred[0].dtype == jnp.bfloat16
  for before, after in ((cache, stepped[1]), (memory, recurred[1])):
    same = jax.tree.map(lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype), before, after)
    assert all(jax.tree.leaves(same))


def own(part):
  """Encodings that have a part of their own, and none at all."""
  cases = [p for p in DEFAULTS if getattr(type(p.values[0]), part) is not getattr(Encoding, part)]
  return pytest.mark.parametrize("encoding", [DEFAULTS[0], *cases])


@own("norm")
def test_post_norm_normalizes_what_comes_out(encoding):
  size, causal = Size(**SMALL | {"norm": "post"}), encoding.causal_only
  model = Stack(VOCAB, encoding, size, causal=causal, rngs=rngs())
  assert model.norm is None
  output = np.asarray(model(some_tokens()))
  parts = 2 if encoding.paired else 1
  for part in range(parts):
    np.testing.assert_allclose(output[..., part::parts].mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(output[..., part::parts].std(-1), 1, atol=1e-3)


@own("embed")
def test_no_embedding_scale_means_words_of_variance_one(encoding):
  model, scaled = (
    Stack(VOCAB, encoding, Size(**size), causal=encoding.causal_only, rngs=rngs())
    for size in (SMALL | {"embed_scale": "none"}, SMALL)
  )
  tokens, positions = some_tokens(), jnp.arange(L)[None]
  assert difference(model.embed(tokens, positions), scaled.embed(tokens, positions)) < EXACT


@pytest.mark.parametrize(
  ("test", "cases", "count"),
  [
    (test_it_holds, [case for case in LISTED if case.marks], 1),
    (test_order_matters_unless_there_is_no_position, OTHERS, 1),
  ],
)
def test_it_is_so_of_cases_drawn(test, cases, count):
  for number in np.random.default_rng(SEED).choice(len(cases), count, replace=False):
    print(cases[number].id)
    test(*cases[number].values)
