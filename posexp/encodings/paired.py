"""Networks whose features come in pairs: complex numbers, or content and position.

F features are F/2 pairs, neighbors in memory, so that cutting them into heads leaves every pair
whole. A linear map that treats all pairs alike has 2×2 blocks, made of two matrices A and B:
[[A, B], [−B, A]] is complex multiplication, [[A, 0], [0, B]] keeps the two streams apart. The dot
product of two such vectors is Re⟨q, k⟩ in the one case and content + position in the other.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.additive import Table
from posexp.encodings.base import Encoding, LayerNorm, Linear, Relation, Words, scaled

SHARED = ("none", "word", "dimension")
STREAMS = ("content", "position")


def half(features: int) -> int:
  """The number of pairs.

  Raises:
    ValueError: features is odd.
  """
  if features % 2:
    raise ValueError(f"features come in pairs here, so a width of {features} must be even")
  return features // 2


def interleave(first: Array, second: Array) -> Array:
  """Two arrays [..., M] as pairs that are neighbors, [..., 2M]."""
  return jnp.stack(jnp.broadcast_arrays(first, second), axis=-1).reshape(*first.shape[:-1], -1)


class Paired(Linear):
  """Two matrices A, B [in/2, out/2] that make a map of pairs."""

  def __init__(self, in_features: int, out_features: int, *, bias: bool = True, rngs: nnx.Rngs):
    shape = (half(in_features), half(out_features))
    self.kernel_a = nnx.Param(self.init()(rngs.params(), shape))
    self.kernel_b = nnx.Param(self.init()(rngs.params(), shape))
    self.bias = nnx.Param(jnp.zeros(out_features)) if bias else None

  @staticmethod
  def init() -> nnx.Initializer:
    """Draws A and B."""
    return nnx.initializers.glorot_uniform()

  def blocks(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The four blocks: row is the part that comes in, column the part that goes out."""
    raise NotImplementedError

  def matrix(self) -> Array:
    (aa, ab), (ba, bb) = self.blocks()
    rows = jnp.stack([interleave(aa, ab), interleave(ba, bb)], axis=1)
    return rows.reshape(2 * aa.shape[0], 2 * aa.shape[1])


class ComplexLinear(Paired):
  """(A + iB)(x + iy) + c: Re = Ax − By, Im = Bx + Ay (Wang et al. 2020, appendix B).

  Each of A and B has half of Glorot's variance, so that E|Wz|² is kept (Trabelsi et al. 2018).
  """

  @staticmethod
  def init():
    return nnx.initializers.variance_scaling(0.5, "fan_avg", "uniform")

  def blocks(self):
    a, b = self.kernel_a[...], self.kernel_b[...]
    return (a, b), (-b, a)


class SplitLinear(Paired):
  """Content to content by A, position to position by B (Kitaev & Klein 2018, section 3)."""

  def blocks(self):
    a, b = self.kernel_a[...], self.kernel_b[...]
    return (a, jnp.zeros_like(a)), (jnp.zeros_like(b), b)


class RealPart(Relation):
  """Re⟨q, k⟩ / √n for n = D/2 complex features."""

  def score(self, q, k, span):
    return super().score(q * 2**0.5, k, span)


class Modulus(RealPart):
  """|⟨q, k⟩| / √n, the modulus of the complex inner product (Wang et al. 2020, appendix B)."""

  def score(self, q, k, span):
    turned = interleave(-q[..., 1::2], q[..., 0::2])  # i q: Re⟨iq, k⟩ is −Im⟨q, k⟩
    real = super().score(q, k, span).astype(jnp.float32)
    imaginary = super().score(turned, k, span).astype(jnp.float32)
    square = real * real + imaginary * imaginary
    # The root's slope at 0 is infinite: the inner `where` keeps NaN out of the gradient.
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def falling(key: Array, shape: tuple[int, int]) -> Array:
  """Frequencies 10000^(−c/n) for dimension c of n; with one dimension, drawn from that range."""
  rows, pairs = shape
  exponent = jnp.arange(pairs) / pairs if pairs > 1 else jax.random.uniform(key, shape)
  return jnp.broadcast_to(10000.0**-exponent, (rows, pairs))


class Wave(nnx.Module):
  """r_j e^{i(ω_j pos + θ_j)} for word j, as pairs (Wang et al. 2020, eq. 3 to 6).

  Amplitudes, periods and initial phases are each [V or 1, F/2 or 1]: a row for each word or one
  for all, a column for each dimension or one for all.
  """

  def __init__(self, encoding: Complex, vocab_size: int, features: int, scale: float, rngs):
    self.pairs = pairs = half(features)
    self.scale = scale

    def shape(shared: str) -> tuple[int, int]:
      return 1 if shared == "word" else vocab_size, 1 if shared == "dimension" else pairs

    amplitude = nnx.initializers.normal(1 / scale)
    around = nnx.initializers.uniform(2 * np.pi)
    phased = encoding.initial_phase or not encoding.order
    self.amplitude = nnx.Param(amplitude(rngs.params(), shape(encoding.shared_amplitude)))
    self.frequency = (
      nnx.Param(falling(rngs.encoding(), shape(encoding.shared_period))) if encoding.order else None
    )
    self.phase = nnx.Param(around(rngs.encoding(), (vocab_size, pairs))) if phased else None

  def __call__(self, tokens: Array, positions: Array, mask: Array | None = None) -> Array:
    def of(table: nnx.Param) -> Array:  # [B or 1,L or 1,F/2 or 1]
      rows = table[...]
      return rows[None] if rows.shape[0] == 1 else rows[tokens]

    phase = 0.0
    if self.frequency is not None:
      phase = phase + of(self.frequency) * positions[..., None].astype(jnp.float32)
    if self.phase is not None:
      phase = phase + of(self.phase)
    amplitude = of(self.amplitude) * self.scale
    shape = (*tokens.shape, self.pairs)
    real, imaginary = amplitude * jnp.cos(phase), amplitude * jnp.sin(phase)
    return interleave(jnp.broadcast_to(real, shape), jnp.broadcast_to(imaginary, shape))


@dataclasses.dataclass(frozen=True)
class Complex(Encoding):
  """Word order in complex embeddings, and a truly complex network (Wang et al. 2020).

  Word j is r_j e^{i(ω_j pos + θ_j)} in every dimension. With order=false it is the paper's
  vanilla, r_j e^{iω_j}, a phase that ignores the position. `initial_phase` adds θ (the paper is
  better without). Period and amplitude have a value for each word and dimension (`none`), or share
  one among all words (`word`) or all dimensions of a word (`dimension`). The score is Re⟨q, k⟩
  (`real`) or |⟨q, k⟩| (`modulus`, as in the paper). Linear maps are complex, norms and
  nonlinearities act on each part, and a classifier reads both parts.
  """

  relative: ClassVar[bool] = False
  paired: ClassVar[bool] = True
  order: bool = True
  initial_phase: bool = False
  shared_period: str = "none"
  shared_amplitude: str = "none"
  score: str = "real"

  def __post_init__(self):
    for option in ("shared_period", "shared_amplitude"):
      if (value := getattr(self, option)) not in SHARED:
        raise ValueError(f"{option} must be one of {', '.join(SHARED)}, not {value!r}")
    if self.score not in ("real", "modulus"):
      raise ValueError(f"score must be real or modulus, not {self.score!r}")
    if not self.order and (self.initial_phase or self.shared_period != "none"):
      raise ValueError("order=false has no period, so leave initial_phase and shared_period alone")

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    return Wave(self, vocab_size, features, scale, rngs)

  def linear(self, in_features, out_features, *, bias=True, rngs):
    return ComplexLinear(in_features, out_features, bias=bias, rngs=rngs)

  def norm(self, features, *, rngs):
    return LayerNorm(features, parts=2)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    half(head_dim)
    return Modulus() if self.score == "modulus" else RealPart()


class TwoStreams(nnx.Module):
  """The word's vector and the position's, interleaved."""

  def __init__(self, words: Words, table: Table):
    self.words = words
    self.table = table

  def __call__(self, tokens: Array, positions: Array, mask: Array | None = None) -> Array:
    return interleave(*jnp.broadcast_arrays(self.words(tokens), self.table(positions)))


class Streams(Relation):
  """q·k of the chosen streams, each on the scale of both."""

  def __init__(self, terms: tuple[str, ...]):
    self.terms = terms

  def score(self, q, k, span):
    if span.kept is None and self.terms == STREAMS:
      return jnp.einsum("bqhd,bkhd->bhqk", scaled(q), k)
    logits = 0
    for term in self.terms:
      stream = slice(STREAMS.index(term), None, 2)
      dot = jnp.einsum("bqhd,bkhd->bhqk", scaled(q)[..., stream], k[..., stream])
      logits += span.keep(term) * dot
    return logits


@dataclasses.dataclass(frozen=True)
class Split(Encoding):
  """Content and position in streams of their own (Kitaev & Klein 2018, section 3, factored).

  Every map is block-diagonal, so q·k = q_c·k_c + q_p·k_p. `attention` keeps both terms or only
  one. Positions are learned, `length` of them, from N(0, 1). Each stream has a norm of its own:
  the authors normalize both together, by which words leak into the position stream.
  """

  relative: ClassVar[bool] = False
  paired: ClassVar[bool] = True
  length: int = 512
  attention: str = "both"

  def __post_init__(self):
    if self.length < 1:
      raise ValueError(f"length must be at least 1, not {self.length}")
    if self.attention not in ("both", "content", "position"):
      raise ValueError(f"attention must be both, content or position, not {self.attention!r}")

  @property
  def limit(self) -> int:
    return self.length

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = Words(vocab_size, half(features), scale=scale, rngs=rngs)
    return TwoStreams(words, Table(self.length, half(features), stddev=1.0, rngs=rngs))

  def linear(self, in_features, out_features, *, bias=True, rngs):
    return SplitLinear(in_features, out_features, bias=bias, rngs=rngs)

  def norm(self, features, *, rngs):
    return LayerNorm(features, parts=2)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    half(head_dim)
    return Streams(STREAMS if self.attention == "both" else (self.attention,))
