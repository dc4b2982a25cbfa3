"""Words as waves, and a complex network that reads them (Wang et al. 2020)."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, Positive, between
from posexp.encodings.base import FACTORIES, Encoding, LayerNorm, Linear, Relation, summed
from posexp.encodings.paired import Paired, half, interleave
from posexp.encodings.relative import Biases, FourTerms, TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import angles, turns
from posexp.kernels.gradients import scores, wave

Shared = Literal["none", "word", "dimension"]


@dataclasses.dataclass(frozen=True)
class Complex(Encoding):
  """Word order in complex embeddings, and a truly complex network (Wang et al. 2020).

  Word j is r_j e^{i(ω_j pos + θ_j)} in every dimension. With order=false it is the paper's
  vanilla, r_j e^{iω_j}, a phase that ignores the position. `initial_phase` adds θ (the paper does
  better without). Period and amplitude have a value for each word and dimension (`none`), or share
  one among all words (`word`) or all dimensions of a word (`dimension`).

  In a complex `network` linear maps are complex, norms and nonlinearities act on each part, and a
  classifier reads both parts. `weights` are a matrix for the real and one for the imaginary part
  (`complex`), or one real matrix for both (`shared`). The score is Re⟨q, k⟩ (`real`), |⟨q, k⟩|
  (`modulus`, as in the paper) or |Σ q k| (`unconjugated`, as in its code). A `real` network is the
  cheaper variant: [r cos φ; r sin φ] is read by an ordinary Transformer.

  `distances=transformer_xl` adds the terms of Transformer-XL (section 4.3): u, v and W_kR R are
  real, and both parts of a query meet them. `real` sums (q + u)·k + (q + v)·W_kR R over the parts,
  the others take |⟨q + u(1 + i), k⟩| + |(q + v(1 + i)) W_kR R|. `wrap` is the number of positions
  after which waves restart, as that code does at each segment. So a memory can be read, if its
  length and the segment's are multiples of `wrap`.

  `frequencies=sinusoids` holds ω at 10000^(−2c/D), as sinusoids have it, for all words. `decay`
  below 1 multiplies the amplitude at a position by decay^pos, so that waves die away.

  ω is `frequency_rate` times a parameter. So a step of Adam changes it by this share of the
  learning rate, which matters since a word at position n then turns by n times as much.

  Unlike the authors' code, positions start at 0 and go up (one of its models counts down), ω is
  trained in every model, and a residual adds its own input. These parts of its language model are
  left out: pre-norm layers without a residual, a score in which one product counts twice in place
  of another, roots with an infinite slope at 0, an output that is a modulus over 1.5, and a layer
  in each block that is never read.
  """

  alternative = ("shared_period", "dimension")
  relative: ClassVar[bool] = False
  paired: ClassVar[bool] = True
  in_blocks: ClassVar[tuple[str, ...]] = ("score", "distances")
  order: bool = True
  initial_phase: bool = False
  shared_period: Shared = "none"
  shared_amplitude: Shared = "none"
  score: Literal["real", "modulus", "unconjugated"] = "real"
  weights: Literal["complex", "shared"] = "complex"
  network: Literal["complex", "real"] = "complex"
  distances: Literal["none", "transformer_xl"] = "none"
  wrap: Count | None = None
  frequency_rate: Positive = 1.0
  frequencies: Literal["learned", "sinusoids"] = "learned"
  decay: Annotated[float, between(1e-3, 1)] = 1.0

  def __post_init__(self):
    super().__post_init__()
    if not self.order and self.wrap is not None:
      raise ValueError("order=false has no waves, so leave wrap at null")
    if not self.order and self.frequency_rate != 1:
      raise ValueError("order=false has no frequencies, so leave frequency_rate at 1")
    if not self.order and (self.decay != 1 or self.frequencies != "learned"):
      raise ValueError("order=false has no positions, so leave decay and frequencies alone")
    if self.frequencies != "learned" and (self.shared_period != "none" or self.frequency_rate != 1):
      raise ValueError(
        "frequencies=sinusoids has the same ω for all words, so leave shared_period and "
        "frequency_rate alone"
      )
    if self.network == "real" and (self.score, self.weights) != ("real", "complex"):
      raise ValueError("network=real has no complex maps, so leave score and weights alone")
    if not self.order and (self.initial_phase or self.shared_period != "none"):
      raise ValueError("order=false has no period, so leave initial_phase and shared_period alone")

  @property
  def acts_in(self) -> tuple[str, ...]:
    if self.network == "complex":
      return tuple(FACTORIES)
    return ("input",) if self.distances == "none" else ("input", "attention")

  @property
  def order_blind(self) -> bool:
    return not self.order

  @property
  def recurrent(self) -> bool:
    return not self.order or (self.wrap is not None and self.distances != "none")

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    return ComplexEmbedding(self, vocab_size, features, scale, rngs)

  def linear(self, in_features, out_features, *, bias=True, rngs):
    if self.network == "real":
      return super().linear(in_features, out_features, bias=bias, rngs=rngs)
    linear = ComplexLinear if self.weights == "complex" else OneLinear
    return linear(in_features, out_features, bias=bias, rngs=rngs)

  def norm(self, features, *, epsilon=1e-6, rngs):
    return LayerNorm(features, parts=1 if self.network == "real" else 2, epsilon=epsilon)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    if self.distances != "none":
      terms, width = self.terms(head_dim)
      return terms(TransformerXL(), num_heads, width, causal, rngs=rngs)
    if self.network == "real":
      return Relation()
    half(head_dim)
    return SCORES[self.score]()

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    if self.distances == "none":
      return None
    biases = Biases if self.network == "real" else Doubled
    return biases(TransformerXL().terms, num_heads, self.terms(head_dim)[1], rngs=rngs)

  def terms(self, head_dim: int) -> tuple[type[FourTerms], int]:
    """Return the relation with distances, and the width of u and v."""
    return (FourTerms, head_dim) if self.network == "real" else (TERMS[self.score], half(head_dim))

  def cross(self, num_heads, head_dim):
    return super().cross(num_heads, head_dim) if self.network == "real" else SCORES[self.score]()


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


class OneLinear(Linear):
  """A(x + iy) + c + ic: a real matrix and bias for both parts, as in Wang et al. 2020's code."""

  def __init__(self, in_features: int, out_features: int, *, bias: bool = True, rngs: Rngs):
    super().__init__(half(in_features), half(out_features), bias=bias, rngs=rngs)

  def __call__(self, x):
    parts = x.reshape(*x.shape[:-1], -1, 2)
    y = jnp.einsum("...mp,mn->...np", parts, self.kernel[...].astype(x.dtype))
    if self.bias is not None:
      y = y + self.bias[...].astype(x.dtype)[:, None]
    return y.reshape(*x.shape[:-1], -1)


class RealPart(Relation):
  """Re⟨q, k⟩ / √n for n = D/2 complex features."""

  def qk_and_bias(self, q, k, span):
    return super().qk_and_bias(q * 2**0.5, k, span)


class Modulus(RealPart):
  """|⟨q, k⟩| / √n, the modulus of the complex inner product (Wang et al. 2020, appendix B)."""

  def score(self, q, k, span):
    return modulus(super().score(q, k, span), super().score(turned(q), k, span))


def turned(q: Array) -> Array:
  """Return i q, for complex numbers [...,2n] as pairs: Re⟨iq, k⟩ is −Im⟨q, k⟩."""
  return interleave(-q[..., 1::2], q[..., 0::2])


def conjugate(z: Array) -> Array:
  """Return the conjugates of complex numbers [...,2n] as pairs."""
  return z * np.tile([1, -1], z.shape[-1] // 2).astype(z.dtype)


def modulus(real: Array, imaginary: Array) -> Array:
  """Return √(x² + y²), in float32."""
  real, imaginary = real.astype(jnp.float32), imaginary.astype(jnp.float32)
  square = real * real + imaginary * imaginary
  # The root's slope at 0 is infinite: the inner `where` keeps NaN out of the gradient.
  return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


class Unconjugated(Modulus):
  """|Σ q k| / √n, without the conjugate, as in the authors' code."""

  def score(self, q, k, span):
    return super().score(q, conjugate(k), span)


SCORES = {"real": RealPart, "modulus": Modulus, "unconjugated": Unconjugated}


class Doubled(Biases):
  """u and v of Transformer-XL, for both parts of a query: [H,2n] each."""

  def __call__(self, span):
    return tuple(interleave(bias, bias) for bias in super().__call__(span))


class RealTerms(FourTerms):
  """Transformer-XL's terms, summed over real and imaginary parts, / √n."""

  def distances(self, span, dtype):
    rows = super().distances(span, dtype)
    return interleave(rows, rows)

  def qk_and_bias(self, q, k, span):
    query, key, bias = super().qk_and_bias(q, k, span)
    return query * 2**0.5, key, bias * 2**0.5


class ModulusTerms(FourTerms):
  """|⟨q + u, k⟩| + |(q + v) W_kR R(i−j)|, / √n: moduli are added, as in the authors' code."""

  def score(self, q, k, span):
    u, v = span.shared
    words = self.query(span, q, "a", u, "c") * 2**0.5
    places = self.query(span, q, "b", v, "d") * 2**0.5
    content = modulus(scores(words, k), scores(turned(words), k))
    return content + modulus(*(self.by_distance(places[..., part::2], span) for part in (0, 1)))


class UnconjugatedTerms(ModulusTerms):
  """`ModulusTerms` without the conjugate of k, as in the authors' code."""

  def score(self, q, k, span):
    return super().score(q, conjugate(k), span)


TERMS = {"real": RealTerms, "modulus": ModulusTerms, "unconjugated": UnconjugatedTerms}


def falling(key: Array, shape: tuple[int, int]) -> Array:
  """Return frequencies 10000^(−c/n) for dimension c of n; drawn from that range if n is 1."""
  rows, pairs = shape
  exponent = jnp.arange(pairs) / pairs if pairs > 1 else jax.random.uniform(key, shape)
  return jnp.broadcast_to(10000.0**-exponent, (rows, pairs))


class ComplexEmbedding(nnx.Module):
  """r_j e^{i(ω_j pos + θ_j)} for word j, as pairs (Wang et al. 2020, eq. 3 to 6).

  Amplitudes, periods and initial phases are each [V or 1, F/2 or 1]: a row for each word or one
  for all, a column for each dimension or one for all. Tokens [B,L,I] are sums of waves.
  """

  def __init__(self, encoding: Complex, vocab_size: int, features: int, scale: float, rngs):
    self.pairs = pairs = half(features)
    self.scale, self.wrap = scale, encoding.wrap

    def shape(shared: str) -> tuple[int, int]:
      return 1 if shared == "word" else vocab_size, 1 if shared == "dimension" else pairs

    amplitude = nnx.initializers.normal(1 / scale)
    around = nnx.initializers.uniform(2 * np.pi)
    phased = encoding.initial_phase or not encoding.order
    self.amplitude = nnx.Param(amplitude(rngs.params(), shape(encoding.shared_amplitude)))
    self.rate = encoding.frequency_rate  # times `frequency` is ω
    self.decay, fixed = encoding.decay, encoding.frequencies == "sinusoids"
    self.fixed = tuple(10000.0 ** -(np.arange(pairs) / pairs)) if fixed else None
    self.frequency = (
      nnx.Param(falling(rngs.encoding(), shape(encoding.shared_period)) / self.rate)
      if encoding.order and not fixed
      else None
    )
    self.phase = nnx.Param(around(rngs.encoding(), (vocab_size, pairs))) if phased else None

  @property
  def word_table(self) -> nnx.Param:
    """The amplitudes; see `TokenEmbedding`."""
    return self.amplitude

  def __call__(self, tokens: Array, positions: Array, mask: Array | None = None) -> Array:
    def of(table: nnx.Param) -> Array:  # [B or 1,L or 1,F/2 or 1]
      rows = table[...]
      return rows[None] if rows.shape[0] == 1 else rows[tokens]

    phase = 0.0
    if tokens.ndim > positions.ndim:
      positions = positions[..., None]
    if self.wrap is not None:
      positions = positions % self.wrap
    far = positions[..., None].astype(jnp.float32)
    if self.fixed is not None:
      phase = phase + angles(positions[..., None], turns(np.array(self.fixed)))
    elif self.frequency is not None:
      phase = phase + self.rate * of(self.frequency) * far
    if self.phase is not None:
      phase = phase + of(self.phase)
    amplitude = of(self.amplitude) * self.scale
    if self.decay != 1:
      amplitude = amplitude * jnp.exp(np.log(self.decay).astype(np.float32) * far)
    shape = (*tokens.shape, self.pairs)
    real, imaginary = (amplitude * part for part in wave(phase))
    waves = interleave(jnp.broadcast_to(real, shape), jnp.broadcast_to(imaginary, shape))
    return summed(waves, tokens)
