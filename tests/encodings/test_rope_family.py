"""RoPE's family beside its definition and the arrays of Hugging Face 5.24.0, YaRN and GRAPE."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from seed import SEED, some

import posexp
from posexp.analysis import encoding_figures, properties, wavelengths
from posexp.encodings import Span
from posexp.encodings.maps import mapped
from posexp.encodings.rngs import Rngs
from posexp.encodings.rotary import RoPE
from posexp.encodings.sinusoids import angles, scaled_up, turns
from posexp.models.block import MultiHeadAttention
from posexp.models.size import Size

GUIDE = Path(__file__).parents[2] / "docs/encodings.md"
GOLDEN = np.load(Path(__file__).with_name("rope.npz"))
OPTIONS = json.loads(str(GOLDEN["options"]))
SHORT = {"trained_length": 5, "factor": 4.0}
FEW = {"short_factors": (1.0, 1.5, 2.0, 3.0), "long_factors": (1.0, 2.0, 4.0, 8.0)}
DYNAMIC = SHORT | {"scaling": "dynamic"}
PAIRED = [
  {"base": 500.0, "share": 0.25},
  {"base": 500.0, "share": 0.5, "layout": "half"},
  DYNAMIC | {"learned": "head", "attention_factor": 1.2},
  SHORT | FEW | {"scaling": "longrope"},
  {"layout": "half", "map": "self_extend", "map_window": 4, "map_group": 3},
  {"map": "string", "map_shift": 6, "map_window": 2, "learned": "model", "p": 0.75},
]
EVERY = jnp.ones((1, 1, 9), bool)
AT = np.array([0, 1, 4, 5, 9, 30, 31])


@pytest.mark.parametrize("name", [name for name in OPTIONS if f"spectra/{name}" in GOLDEN])
def test_frequencies_are_those_of_the_references(name):
  encoding = RoPE(**OPTIONS[name])
  got = encoding.frequencies(16, GOLDEN[f"length/{name}"])[0]
  np.testing.assert_allclose(got, GOLDEN[f"spectra/{name}"], rtol=1e-6)
  np.testing.assert_allclose(encoding.radius, GOLDEN[f"radius/{name}"], rtol=1e-12)


@pytest.mark.parametrize(
  ("clipped", "kept"), [(1, [1] * 4), (2, [1, 1, 1, 0]), (9, [1, 0.75, 0.25, 0])]
)
def test_slow_planes_are_clipped_softly(clipped, kept):
  plain, ours = (RoPE(**DYNAMIC, clipped=each) for each in (0, clipped))
  n = np.array([5, 20])
  got, expected = (each.frequencies(8, n) for each in (ours, plain))
  np.testing.assert_allclose(got, expected * kept, rtol=1e-15)
  assert clipped < 2 or not got[:, -1].any()


@pytest.mark.parametrize("name", [name for name in OPTIONS if f"distance/{name}" in GOLDEN])
def test_distances_are_mapped_by_their_rules(name):
  got = np.asarray(mapped(RoPE(**OPTIONS[name]).distance, *[jnp.arange(24)[None]] * 2)[0])
  np.testing.assert_array_equal(np.tril(got), np.tril(GOLDEN[f"distance/{name}"]))
  np.testing.assert_array_equal(got, -got.T)


def test_learned_frequencies_are_those_of_the_references():
  omega, at = RoPE().frequencies(8), jnp.asarray(GOLDEN["lerope/positions"])[..., None]
  found = angles(at, scaled_up(turns(omega), jnp.float32(omega), GOLDEN["lerope/alpha"]))
  np.testing.assert_allclose(jnp.cos(found), GOLDEN["lerope/cos"][..., :4], atol=1e-5)
  name = "grape/m_per_head_scale16"
  encoding = RoPE(learned="head", learned_rate=1 / 16, layout="half")
  relation = encoding.relation(2, 8, causal=True, rngs=None)
  relation.change.alpha[...] = jnp.float32(GOLDEN[f"{name}/log_freq"] - 16 * np.log(omega))
  graphdef, params, rest = nnx.split(relation, nnx.Param, ...)
  back = np.repeat([1.0, -1.0], 4)  # GRAPE's code turns the other way
  q, k, dout = (jnp.float32(GOLDEN[f"grape/in/{each}"]) for each in ("q", "k", "dout"))
  span = Span(*[jnp.arange(9)[None]] * 2, EVERY)
  score = jax.jit(lambda params, *qk: nnx.merge(graphdef, params, rest).score(*qk, span))
  got, backward = jax.vjp(score, params, q * back, k * back)
  np.testing.assert_allclose(got, GOLDEN[f"{name}/logits_bhij"], atol=1e-5)
  slopes = jax.tree.leaves(backward(dout))
  for slope, each in zip(slopes, ("log_freq", "q", "k"), strict=True):
    expected = GOLDEN[f"{name}/grad_{each}"] * (1.0 if each == "log_freq" else back)
    np.testing.assert_allclose(slope, expected, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize(
  ("options", "causal"), some([(each, n % 2 == 0) for n, each in enumerate(PAIRED)], 3), ids=str
)
def test_each_pair_is_turned_by_its_own_angle(options, causal):
  encoding = RoPE(**options)

  def formula(p, q, k, i, j):
    change = next((np.exp(x) for path, x in p.items() if path.endswith("alpha")), np.ones((1, 1)))
    n = (i if causal else np.full(len(i), j.max())) - j.min() + 1
    omega = encoding.frequencies(8, n)[:, None] * change  # [Q,1 or H,M]
    turning = 2 * omega.shape[2]
    far = np.asarray(mapped(encoding.distance, i[None], j[None])[0])
    turn = np.exp(1j * np.einsum("ij,ihm->ihjm", far, omega))
    turn = np.broadcast_to(turn, (len(i), q.shape[2], len(j), turning // 2))
    order = "C" if encoding.layout == "half" else "F"
    one, other = np.reshape(np.arange(turning), (2, -1), order=order)
    a, b = (each[..., one] + 1j * each[..., other] for each in (q, k))
    logits = np.einsum("bihm,bjhm,ihjm->bhij", a, b.conj(), turn).real
    logits += np.einsum("bihd,bjhd->bhij", q[..., turning:], k[..., turning:])
    return logits * encoding.radius**2 / 8**0.5

  oracle.check(encoding, formula, causal=causal)


def test_the_page_of_encodings_says_where_implementations_differ():
  exec("\n".join(re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)), {})


def test_wavelengths_are_shown_by_length_and_layer():
  found = {}
  for options in ({"scaling": "linear", "factor": 2.0, "p": 0.75}, DYNAMIC, {"learned": "layer"}):
    cut = (("triangles", "p" in options),)
    stack = properties.stack(properties.Case(RoPE(**options), options=cut))
    found |= (spectra := wavelengths.spectra(stack))
    assert encoding_figures.wavelengths("rope", 1e4, spectra, 64).axes
  assert [*found] == ["", "n=5", "n=10", "n=20", "layer 0", "layer 1"]
  assert wavelengths.row({"": found[""]})["wavelengths"] == "12.6 126 1,257 ∞ positions a turn"


def test_still_channels_are_those_of_the_key_before():
  q, k = np.random.default_rng(SEED).normal(size=(2, 2, 7, 3, 8)).astype(np.float32)
  kind = {"causal": True, "rngs": Rngs(params=0, encoding=1)}
  shifted, plain = (
    jax.jit(posexp.encoding("rope", share=0.5, key_shift=each).relation(3, 8, **kind).score)
    for each in (True, False)
  )
  span = Span.within(None, jnp.ones((1, 1, 7), bool), True)
  moved = k.copy()
  moved[:, 1:, :, 4:] = k[:, :-1, :, 4:]
  np.testing.assert_allclose(shifted(q, k, span), plain(q, moved, span), atol=1e-5)
  documents = jnp.array([0, 0, 0, 1, 1, 1, 1])  # the first key of each has its own channels
  apart = Span.within(None, (documents[:, None] == documents)[None], True)
  moved[:, 3, :, 4:] = k[:, 3, :, 4:]
  expected = jnp.where(apart.visible[:, None], plain(q, moved, apart), 0)
  got = jnp.where(apart.visible[:, None], shifted(q, k, apart), 0)
  np.testing.assert_allclose(got, expected, atol=1e-5)


def turned(x, positions, layout, share):
  """Arrays [B,L,H,8] whose first channels are turned by positions [L], in float64."""
  planes = int(share * 4)
  rows = np.arange(2 * planes).reshape((2, planes) if layout == "half" else (planes, 2))
  one, other = rows if layout == "half" else rows.T
  angle = np.outer(positions, 1e4 ** (-np.arange(planes) / planes))[:, None]
  found = np.array(x, np.float64)
  found[..., one] = x[..., one] * np.cos(angle) - x[..., other] * np.sin(angle)
  found[..., other] = x[..., other] * np.cos(angle) + x[..., one] * np.sin(angle)
  return found


@pytest.mark.parametrize(("layout", "share"), some([("interleaved", 0.5), ("half", 1.0)], 1))
def test_values_turn_and_their_sums_turn_back(layout, share):
  own, asked = {"layout": layout, "share": share}, AT[3:]
  stretched = {"scaling": "linear", "attention_factor": 1.5}  # of queries and keys alone
  relation = RoPE(values=True, **own, **stretched).relation(2, 8, causal=True, rngs=None)
  q, k, v = np.random.default_rng(SEED).normal(size=(3, 2, 7, 2, 8))
  seen = asked[:, None] >= AT
  span = Span(*(jnp.asarray(each)[None] for each in (asked, AT, seen)))

  @jax.jit
  def found(*given):
    return relation.score(*given[:2], span), relation.attend(*given, span, lambda weights: weights)

  logits, got = found(*map(jnp.float32, (q[:, 3:], k, v)))
  weights = np.exp(np.asarray(logits, np.float64)) * seen
  weights /= weights.sum(-1, keepdims=True)
  expected = turned(np.einsum("bhij,bjhd->bihd", weights, turned(v, AT, **own)), -asked, **own)
  np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("layout", "share"), some([("interleaved", 0.5), ("half", 1.0)], 1))
def test_every_second_head_has_the_imaginary_part(layout, share):
  own, planes = {"layout": layout, "share": share}, int(share * 4)
  size = Size(d_model=32, num_heads=4, num_kv_heads=2)
  rngs = Rngs(params=SEED, encoding=1)
  encoding = RoPE(imaginary=True, **own)
  layer = MultiHeadAttention(encoding, size, causal=True, cross=False, rngs=rngs)
  x = jnp.float32(np.random.default_rng(SEED).normal(size=(2, 7, 32)))
  q = np.asarray(x @ layer.query.linear.kernel[...], np.float64).reshape(2, 7, 2, 8)
  k = layer.keys_values(x)[0]
  rows = np.arange(2 * planes).reshape((2, planes) if layout == "half" else (planes, 2))
  one, other = rows if layout == "half" else rows.T
  a, b = (each[..., one] + 1j * each[..., other] for each in (q, np.asarray(k, np.float64)))
  waves = np.exp(1j * np.subtract.outer(AT, AT)[:, :, None] * 1e4 ** (-np.arange(planes) / planes))
  product = np.einsum("bihm,bjhm,ijm->bhij", a, b.conj(), waves)
  still = np.einsum("bihd,bjhd->bhij", q[..., 2 * planes :], k[..., 2 * planes :])
  expected = np.stack([product.real + still, product.imag + still], 2).reshape(2, 4, 7, 7)
  span = Span(*[jnp.asarray(AT)[None]] * 2, jnp.ones((1, 1, 7), bool))
  got = layer.relation.score(layer.queries(x), jnp.repeat(k, 2, 2), span)
  np.testing.assert_allclose(got, expected / 8**0.5, atol=1e-5)


@pytest.mark.parametrize(("layout", "share"), some([("interleaved", 0.5), ("half", 1.0)], 1))
def test_one_turning_key_serves_all_heads(layout, share):
  own, turning = {"layout": layout, "share": share}, int(share * 8)
  size, encoding = Size(d_model=16, num_heads=2, bias="qkv"), RoPE(keys="one", **own)
  rngs = Rngs(params=SEED, encoding=1)
  layer = MultiHeadAttention(encoding, size, causal=True, cross=False, rngs=rngs)
  x = jnp.float32(np.random.default_rng(SEED).normal(size=(2, 7, 16)))
  k, kernel = layer.keys_values(x)[0], np.asarray(layer.key.linear.kernel[...], np.float64)
  assert kernel.shape == (16, turning + 2 * (8 - turning))
  common, content = np.split(np.asarray(x, np.float64) @ kernel, [turning], axis=-1)
  asked = np.asarray(layer.queries(x), np.float64)
  logits = np.einsum("bihd,bjhd->bhij", asked[..., turning:], content.reshape(2, 7, 2, -1))
  padded = np.pad(common, [(0, 0), (0, 0), (0, 8 - turning)])[:, :, None]
  one, other = turned(asked, AT, **own), turned(padded, AT, **own)[:, :, 0]
  logits += np.einsum("bihd,bjd->bhij", one[..., :turning], other[..., :turning])
  span = Span(*[jnp.asarray(AT)[None]] * 2, jnp.ones((1, 1, 7), bool))
  got = layer.relation.score(layer.queries(x), k, span)
  np.testing.assert_allclose(got, logits / 8**0.5, atol=1e-5)
