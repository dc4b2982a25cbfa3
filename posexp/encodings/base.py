"""What a positional encoding is: the four parts of a Transformer that it may replace.

A Transformer is an embedding, linear maps, norms, and a relation between queries and keys.
An encoding departs from the plain Transformer in one or more of these and in nothing else,
so `Encoding` is a factory of the plain parts and every encoding overrides what it changes.

Shapes: B batch, L length, Q queries, K keys, H heads, D head width, F model width (d_model).
Masks are True where something counts. Offsets are key position − query position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import check
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.kernels import cudnn
from posexp.kernels.gradients import add_bias, matmul, normalized, scores, softmax, weighted_sum

HIDDEN = -1e30  # gives a weight of 0, but is finite: a term that is off multiplies it by 0


def scaled(q: Array) -> Array:
  """Return q / √D, with D the size of the last axis."""
  return q * (q.shape[-1] ** -0.5)


def capped(logits: Array, cap: float | None) -> Array:
  """Return c·tanh(logits/c), which is below c, but HIDDEN for HIDDEN; without a cap, the logits."""
  if cap is None:
    return logits
  return jnp.where(logits > HIDDEN / 2, cap * jnp.tanh(logits / cap), HIDDEN)


def width_of(embed: Any, default: int) -> int:
  """Return how many features the word vectors of an embedding have; `default` without one."""
  table = getattr(embed, "word_table", None)
  return default if table is None else table.shape[1]


def whole(features: int, num_heads: int) -> int:
  """Return the width of a head.

  Raises:
    ValueError: features do not divide into num_heads.
  """
  if features % num_heads:
    raise ValueError(f"d_model={features} is not divisible by num_heads={num_heads}")
  return features // num_heads


def summed(vectors: Array, tokens: Array) -> Array:
  """Sum the vectors of the words of each token, [B,L,I,F] -> [B,L,F], if tokens are [B,L,I]."""
  return vectors if tokens.ndim == 2 else vectors.sum(2)


class Matrix(nnx.Param):
  """The matrix of a linear map. Weight decay acts on these parameters, and on no others."""


class TokenEmbedding(nnx.Module):
  """A vector per word. The word table starts with variance 1/scale², its output with variance 1.

  Tokens [B,L,I] are several words each, such as a word and its tag: their vectors are summed.
  """

  def __init__(self, vocab_size: int, features: int, *, scale: float, rngs: Rngs):
    self.scale = scale
    init = nnx.initializers.normal(1 / scale)
    self.table = nnx.Param(init(rngs.params(), (vocab_size, features)))

  @property
  def word_table(self) -> nnx.Param:
    """The table [V,D] that vectors trained elsewhere can replace; `scale` multiplies it."""
    return self.table

  def __call__(self, tokens: Array, *_: Array | None) -> Array:
    return summed(self.table[...][tokens], tokens) * self.scale


class Linear(nnx.Module):
  """x W + b, in the dtype of x. Glorot uniform, as in Vaswani et al. 2017's code."""

  def __init__(self, in_features: int, out_features: int, *, bias: bool = True, rngs: Rngs):
    init = nnx.initializers.glorot_uniform()
    self.kernel = Matrix(init(rngs.params(), (in_features, out_features)))
    self.bias = nnx.Param(jnp.zeros(out_features)) if bias else None

  def matrix(self) -> Array:
    """Return W, [in_features, out_features]."""
    return self.kernel[...]

  def __call__(self, x: Array) -> Array:
    y = matmul(x, self.matrix().astype(x.dtype))
    return y if self.bias is None else add_bias(y, self.bias[...].astype(x.dtype))


class LayerNorm(nnx.Module):
  """Layer normalization (Ba et al. 2016), computed in float32.

  Features may be `parts` interleaved vectors, each of which is then normalized on its own.
  """

  def __init__(self, features: int, *, parts: int = 1, epsilon: float = 1e-6, bias: bool = True):
    self.parts, self.epsilon = parts, epsilon
    self.scale = nnx.Param(jnp.ones(features))
    self.bias = nnx.Param(jnp.zeros(features)) if bias else None

  def __call__(self, x: Array) -> Array:
    scale = self.scale[...]
    bias = jnp.zeros_like(scale) if self.bias is None else self.bias[...]
    return normalized(x.astype(jnp.float32), scale, bias, self.parts, self.epsilon).astype(x.dtype)


def lengths_or_mask(span: Span) -> tuple[Array, bool]:
  """Return which keys queries see: (lengths int [1 or B], causal), or (mask bool, False).

  It returns lengths if padding comes last and, in causal attention, queries are the keys; else a
  mask [1 or B,1 or Q,K].
  """
  if span.padding_last and (span.self_attention or not span.causal):
    return span.mask[:, 0].sum(-1, dtype=jnp.int32), span.causal
  return span.visible, False


class Setting(nnx.Variable):
  """An untrained input of compiled programs: models that differ in it alone share a program."""


class Relation(nnx.Module):
  """How queries meet keys and values in one attention layer. This one ignores positions.

  `terms` names what the relation is the sum of. Each is multiplied by `span.keep(term)`, so that
  a trained model can be measured without it.
  """

  terms: ClassVar[tuple[str, ...]] = ("content",)
  sums_to_one: bool | None = True  # the weights of each query; None: some may be negative
  cap: float | None = None  # c: the softmax is of c·tanh(e/c) for logits e
  sinks: bool = False  # a span has a logit of each query's sink
  uses_hidden: ClassVar[bool] = True  # queries and keys are made of hidden states; else q is None

  def bind(self, query: Callable[[Array], Array], key: Callable[[Array], Array]) -> None:
    """Receive the layer's maps of queries and keys, once, for a relation that needs them.

    They map [1 or B,L,F] to [1 or B,L,H·D], without biases and norms. Keys that several heads of
    queries share are repeated.
    """

  def qk_and_bias(self, q: Array, k: Array, span: Span) -> tuple[Array, Array, Array | None]:
    """Return queries, keys [B,·,H,E] and a bias [1 or B,H,Q,K] or None: logits are q·k + bias."""
    return span.keep("content", axis=2) * scaled(q), k, None

  def score(self, q: Array, k: Array, span: Span) -> Array:
    """Return scaled logits [B,H,Q,K] of q [B,Q,H,D] and k [B,K,H,D], not yet masked."""
    query, key, bias = self.qk_and_bias(q, k, span)
    logits = scores(query, key)
    return logits if bias is None else add_bias(logits, bias)

  def weights(self, q: Array, k: Array, span: Span) -> Array:
    """Return attention weights [B,H,Q,K], in float32: the masked softmax of the logits."""
    logits = self.score(q, k, span).astype(jnp.float32)
    sinks = None if span.sinks is None else span.sinks.swapaxes(1, 2)[..., None]
    return softmax(capped(logits, self.cap), span.visible[:, None], sinks)

  def combine(self, weights: Array, v: Array, span: Span) -> Array:
    """Sum values v [B,K,H,D] by weights [B,H,Q,K]: [B,Q,H,D]; it is linear in the weights."""
    return weighted_sum(weights, v)

  @property
  def supports_fused(self) -> bool:
    """Whether `fused` computes the same as `attend`, which it cannot with a cap or sinks.

    It does if `fused` is overridden, or none of the methods that it replaces is. This is derived
    rather than declared, since a subclass that overrides `score` alone would inherit a declaration
    that is no longer true.
    """
    kind, parts = type(self), ("score", "weights", "combine", "attend")
    own = kind.fused is not Relation.fused
    if self.cap is not None or self.sinks:
      return False
    return own or all(getattr(kind, part) is getattr(Relation, part) for part in parts)

  def fused(self, q: Array, k: Array, v: Array, span: Span) -> Array:
    """Return the whole of attention, [B,Q,H,D], by a kernel of cuDNN where there is a GPU.

    A bias is formed, in the dtype of queries; logits and weights are not.
    """
    query, key, bias = self.qk_and_bias(q, k, span)
    return cudnn.attend(query, key, v, bias, *lengths_or_mask(span))

  def attend(
    self, q: Array, k: Array, v: Array, span: Span, dropout: Callable[[Array], Array]
  ) -> Array:
    """Return the whole of attention, [B,Q,H,D]: the definition that any faster form must equal."""
    weights = dropout(self.weights(q, k, span)).astype(v.dtype)
    return self.combine(weights, v, span)


class Layer(NamedTuple):
  """The encoding of one layer, and how far its tokens see.

  Windows and chunks count tokens, not positions.
  """

  encoding: Encoding
  # A token sees the last so many tokens, itself included; in an encoder, window // 2 to each side.
  window: int | None = None
  # It sees the tokens of its own chunk of so many, of which the first begins with its document.
  chunk: int | None = None


class Columns(NamedTuple):
  """Maps of a layer's input [B,L,F] to arrays [B,L,...] of each key and of each query, or None."""

  key: Callable[[Array], Any] | None = None
  query: Callable[[Array], Any] | None = None


# The parts of a Transformer, each with the method of Encoding that makes it.
FACTORIES = {"input": "embed", "linear": "linear", "norms": "norm", "attention": "relation"}


@dataclasses.dataclass(frozen=True)
class Encoding:
  """A positional encoding, given by its options. This one is none at all.

  Every factory receives random streams of its own: `rngs.params()` for what every Transformer
  has, `rngs.encoding()` for what only this encoding has. So all other parameters start equal,
  whichever encoding is chosen.
  """

  relative: ClassVar[bool] = True  # only offsets matter, not where counting starts
  paired: ClassVar[bool] = False  # features come in pairs (complex, or content and position)
  causal_only: ClassVar[bool] = False  # undefined where queries see keys ahead of them
  keeps_state: ClassVar[bool] = False  # of all tokens before, so that windows make no sense
  both_sides_by: ClassVar[str] = ""  # the option that, if it is true, defines it there, too
  limited_by: ClassVar[str] = "length"  # the option that sets the limit
  in_blocks: ClassVar[tuple[str, ...]] = ()  # options that act in a Transformer's blocks alone
  # The main option, and the value beside its default that a tuned sweep tries; None without one.
  alternative: ClassVar[tuple[str, Any] | None] = None

  def __post_init__(self):
    """Raise ValueError for an option that its annotation does not allow, or parts there are not."""
    check(self)
    if not {*self.acts_in} <= {*FACTORIES}:
      parts = ", ".join(FACTORIES)
      raise ValueError(f"acts_in must be a tuple of some of {parts}, not {self.acts_in!r}")

  @property
  def acts_in(self) -> tuple[str, ...]:
    """The parts of a Transformer that it changes, as in FACTORIES.

    The default is the parts whose factories its class replaces. A class declares them itself where
    its options decide.
    """
    kind = type(self)
    return tuple(
      part for part, of in FACTORIES.items() if getattr(kind, of) is not getattr(Encoding, of)
    )

  @property
  def order_blind(self) -> bool:
    """Whether the mean of embedded words ignores their order, as where positions are added."""
    return "input" not in self.acts_in

  @property
  def recurrent(self) -> bool:
    """Whether the keys of a memory can be read at other positions than those they were made at.

    They can if positions enter attention alone. In the stream, positions would stay as they were,
    so that tokens of the memory and of the segment would have the same ones.
    """
    return self.relative

  @property
  def limit(self) -> int | None:
    """The number of positions; None if unlimited."""
    return None

  @property
  def least_layers(self) -> int:
    """The fewest layers in which all different ones occur, as in a pattern; fewer are refused."""
    return 1

  @property
  def mixed(self) -> Sequence[Encoding]:
    """The encodings of a pattern of layers; by default this one alone."""
    return [self]

  def layers(self, count: int) -> Sequence[Layer]:
    """Return a `Layer` for each of a Transformer's layers; by default all are this encoding.

    Encodings of layers act in attention alone. Equal ones share what `shared` makes.
    """
    return [Layer(self)] * count

  def embed(
    self, vocab_size: int, features: int, *, scale: float, causal: bool = False, rngs: Rngs
  ) -> Callable[..., Array]:
    """Build the embedding of words and, if they enter there, of positions.

    It maps (tokens [B,L], positions [1 or B,L], mask [B,L] or None) to float32 [B,L,features].
    Tokens [B,L,I] are words that are summed; each token has its position once.
    """
    return TokenEmbedding(vocab_size, features, scale=scale, rngs=rngs)

  def linear(
    self, in_features: int, out_features: int, *, bias: bool = True, rngs: Rngs
  ) -> Callable[[Array], Array]:
    """Build a linear map, [..., in_features] -> [..., out_features]."""
    return Linear(in_features, out_features, bias=bias, rngs=rngs)

  def key_map(
    self, features: int, heads: int, head_dim: int, *, bias: bool = True, rngs: Rngs
  ) -> Callable[[Array], Array]:
    """Build self-attention's map of keys, [..., features] -> [..., heads·head_dim]."""
    return self.linear(features, heads * head_dim, bias=bias, rngs=rngs)

  def query_map(
    self, features: int, heads: int, kv_heads: int, head_dim: int, *, bias: bool = True, rngs: Rngs
  ) -> Callable[[Array], Array]:
    """Build self-attention's map of queries, [..., features] -> [..., heads·head_dim]."""
    return self.linear(features, heads * head_dim, bias=bias, rngs=rngs)

  def norm(self, features: int, *, epsilon: float = 1e-6, rngs: Rngs) -> Callable[[Array], Array]:
    """Build a normalization, [..., features] -> [..., features]."""
    return LayerNorm(features, epsilon=epsilon)

  def relation(self, num_heads: int, head_dim: int, *, causal: bool, rngs: Rngs) -> Relation:
    """Return the relation of one self-attention layer."""
    return Relation()

  def rows_of(self, offsets: np.ndarray, *, causal: bool) -> np.ndarray | None:
    """Return which row of its tables each offset (key − query) looks up, if there are such tables.

    It serves only to show the tables to readers. Offsets that look up no row are masked.
    """
    return None

  def columns(
    self, features: int, num_heads: int, head_dim: int, *, causal: bool, rngs: Rngs
  ) -> Columns:
    """Return maps of a layer's input to arrays beside q, k and v; by default there are none.

    The arrays are in `span.key_columns`, which are cached with keys, and `span.query_columns`.
    """
    return Columns()

  def cross(self, num_heads: int, head_dim: int) -> Relation:
    """Return the relation of one cross-attention layer, where offsets have no meaning."""
    return Relation()

  def shared(
    self,
    num_heads: int,
    head_dim: int,
    *,
    causal: bool,
    rngs: Rngs,
    embed: Callable[..., Array] | None = None,
  ) -> Callable[[Span], Any] | None:
    """Return a function of the span that computes `span.shared` for all layers; None without one.

    `embed` is the embedding that the method of this name built; the function may use its
    parameters.
    """
    return None
