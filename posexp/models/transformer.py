"""The Transformer (Vaswani et al. 2017), made of its encoding's parts, whichever encoding it is.

Modes differ only in the source of keys and values and in the span that they get:

| mode     | keys and values of            | span                                               |
|----------|-------------------------------|----------------------------------------------------|
| encoder  | the sequence                  | its positions; real tokens                         |
| causal   | the sequence                  | … that are not ahead                               |
| step     | the cache, this step's added  | its slots that are not ahead, or the ones to see   |
| recur    | [memory; segment]             | the memory's slots, and keys that are not ahead    |
| cross    | the encoder's output          | the source's real tokens; no offsets               |
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax import Array

from posexp.encodings.base import Encoding, Relation, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span, TermScale
from posexp.models import attention
from posexp.models.block import Block, Size, drop


@struct.dataclass
class Cache:
  """Keys and values of all slots for each layer, in the layout that products read."""

  keys: tuple[Array, ...]  # [B,H,D,K]
  values: tuple[Array, ...]  # [B,H,K,D]
  positions: Array  # int [1 or B,K]: the position of each slot
  length: Array  # int: the number of filled slots


@struct.dataclass
class Memory:
  """The inputs [B,M,F] of every layer for earlier tokens; gradients stop here."""

  layers: tuple[Array, ...]
  documents: Array  # int [B,M]: the document of each slot, −1 if the slot is empty

  def cleared(self, fresh: Array) -> Memory:
    """Empty the rows where `fresh`, bool [B], is True."""
    return self.replace(documents=jnp.where(fresh[:, None], -1, self.documents))


def of_layer(span: Span, term_scale: TermScale | None, i: int, dtype: Any) -> Span:
  """Add layer i's factors of terms, of [layers,H] for each term, to the span."""
  if term_scale is None:
    return span
  return span.replace(term_scale={term: each[i].astype(dtype) for term, each in term_scale.items()})


def visible(real: Array, size: Size) -> Array:
  """Return which keys each query may see, bool [1 or B,1 or L,L], of real tokens bool [1 or B,L].

  With a window w (Kitaev & Klein 2018, section 4.2) it sees keys at most w places away; with
  relaxed ends, the first two and the last two tokens also see all tokens and are seen by all.
  """
  if size.window is None:
    return real[:, None]
  place = jnp.arange(real.shape[1])
  near = jnp.abs(place[:, None] - place)[None] <= size.window
  if size.window_ends == "relaxed":
    end = (place < 2) | (place >= real.sum(1, keepdims=True) - 2)
    near = near | end[:, :, None] | end[:, None]
  # Padding may be far from every real token, but each query must see a key.
  return (near | ~real[:, :, None]) & real[:, None]


def filled_up(hidden: Array, mask: Array) -> Array:
  """Add outputs [B,L,F] for the tokens of mask bool [1 or B,L] that have no position.

  They are 0 for padding, and NaN for a token, which should not be there.
  """
  rest = mask[:, hidden.shape[1] :, None]
  if not rest.shape[1]:
    return hidden
  rest = jnp.where(rest, jnp.nan, jnp.zeros((), hidden.dtype))
  rest = jnp.broadcast_to(rest, (len(hidden), rest.shape[1], hidden.shape[2]))
  return jnp.concatenate([hidden, rest], axis=1)


class Stack(nnx.Module):
  """An encoder, a decoder or a language model, without the output layer."""

  def __init__(
    self,
    vocab_size: int,
    encoding: Encoding,
    size: Size,
    *,
    causal: bool = False,
    cross: bool = False,
    max_position: int | None = None,
    rngs: Rngs,
  ):
    """Build the stack; `rngs` has the streams `params` and `encoding`.

    Positions given to the stack must be below `max_position`; None means consecutive positions.

    Raises:
      ValueError: the size does not suit the encoding or the kind of stack.
    """
    if not isinstance(size, Size):
      raise ValueError(f"model={size.backbone} classifies and can do nothing else")
    if size.window is not None and (cross or causal):
      raise ValueError(f"window={size.window} is for encoders alone")
    if size.memory and (cross or not causal):
      raise ValueError(f"memory={size.memory} is for language models")
    if size.memory and not encoding.recurrent:
      raise ValueError(
        f"memory={size.memory} would give what the memory holds the same absolute positions as the "
        "segment; train with memory=0 and a longer task.segment, which sees as far, or choose "
        "positions that enter attention alone: sinusoidal.at=attention or an encoding of offsets"
      )
    scale = size.d_model**0.5 if size.embed_scale == "sqrt" else 1.0
    head_dim = whole(size.d_model, size.num_heads)
    self.embed = encoding.embed(
      vocab_size, size.d_model, scale=scale, causal=causal, rngs=rngs.fork()
    )
    self.shared = encoding.shared(
      size.num_heads, head_dim, causal=causal, rngs=rngs.fork(), embed=self.embed
    )
    self.blocks = nnx.List(
      Block(encoding, size, causal=causal, cross=cross, rngs=rngs.fork())
      for _ in range(size.num_layers)
    )
    attention.check(size.attention, self.relation, head_dim, size.dtype, size.dropout, max_position)
    self.norm = (
      encoding.norm(size.d_model, epsilon=size.norm_epsilon, rngs=rngs.fork())
      if size.norm == "pre"
      else None
    )
    self.limit = encoding.limit
    self.max_position = max_position
    self.causal = causal
    self.size = size

  def __call__(
    self,
    tokens: Array,
    mask: Array | None = None,
    *,
    positions: Array | None = None,
    source: tuple | None = None,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Read a whole sequence: tokens [B,L], mask bool [B,L] of real tokens -> [B,L,F].

    Padding comes after the real tokens, and may go on beyond the encoding's positions.

    `term_scale` [layers,H] says how much of each named term of the relation every head keeps.

    Raises:
      ValueError: the sequence is longer than the encoding's positions.
    """
    length = tokens.shape[1]
    if positions is None and mask is not None and length > (self.limit or length):
      given = {"source": source, "term_scale": term_scale, "rngs": rngs}
      return filled_up(self(tokens[:, : self.limit], mask[:, : self.limit], **given), mask)
    if positions is None:
      self.check(length)
    real = jnp.ones((1, length), bool) if mask is None else mask
    known = {"max_position": self.max_position, "padding_last": self.size.window is None}
    span = Span.within(positions, visible(real, self.size), self.causal, **known)
    x = self.read(tokens, span.query, rngs, mask)
    span = self.ready(span, whole_only=term_scale is not None)
    for i, block in enumerate(self.blocks):
      k, v = block.attention.keys_values(block.context(x))
      here = of_layer(span, term_scale, i, x.dtype)
      x = block(x, k, v, here, source and source[i], rngs)
    return self.finish(x)

  def step(
    self, tokens: Array, cache: Cache, *, source: tuple | None = None, seen: Array | None = None
  ) -> tuple[Array, Cache]:
    """Read the next tokens [B,Q] of a cached sequence -> ([B,Q,F], cache); NaN once it is full.

    With `seen`, bool [B,Q,K], the tokens are alternatives for one place instead. Each sees the
    slots where `seen` is True, which must include its own.

    Raises:
      ValueError: more tokens than the cache has slots.
    """
    size = cache.positions.shape[1]
    if tokens.shape[1] > size:
      raise ValueError(f"{tokens.shape[1]} tokens, but the cache has {size} slots")
    slots = jnp.arange(size)
    own = cache.length + jnp.arange(tokens.shape[1])
    positions = cache.positions[:, own]
    # JAX clamps indices: without NaN a full cache would silently overwrite its last slots.
    x = jnp.where(own[:, None] < size, self.read(tokens, positions, None), jnp.nan)
    alternatives = 1 if seen is None else tokens.shape[1]
    if seen is None:
      seen = (slots <= own[:, None])[None]
      if self.size.same_length:
        seen &= slots > own[:, None] - self.size.memory
    reach = self.max_position or size // alternatives
    span = self.ready(Span(positions, cache.positions, seen, max_position=reach))
    keys, values = list(cache.keys), list(cache.values)
    for i, block in enumerate(self.blocks):
      k, v = block.attention.keys_values(block.context(x))
      k, v = k.transpose(0, 2, 3, 1).astype(keys[i].dtype), v.swapaxes(1, 2).astype(values[i].dtype)
      keys[i] = jax.lax.dynamic_update_slice(keys[i], k, (0, 0, 0, cache.length))
      values[i] = jax.lax.dynamic_update_slice(values[i], v, (0, 0, cache.length, 0))
      k, v = keys[i].transpose(0, 3, 1, 2), values[i].swapaxes(1, 2)
      x = block(x, k, v, span, source and source[i])
    length = cache.length + tokens.shape[1]
    return self.finish(x), Cache(tuple(keys), tuple(values), cache.positions, length)

  def recur(
    self,
    tokens: Array,
    memory: Memory,
    *,
    documents: Array | None = None,
    positions: Array | None = None,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> tuple[Array, Memory]:
    """Read the next segment [B,L] -> ([B,L,F], memory) (Dai et al. 2019, section 3.2).

    Tokens see all tokens before them, including the memory's; with `documents` int [B,L], only
    those of their own document. Document −1 is padding, which no other token sees. `positions` int
    [1 or B,M+L] are those of the memory's slots and the segment; None means consecutive ones.
    `term_scale` is as in `__call__`. With `size.same_length` a token sees at most M keys including
    its own, wherever it stands in the segment, as in the authors' PyTorch code; in their TensorFlow
    code it sees M + 1.

    Raises:
      ValueError: memory and segment together are longer than the encoding's positions.
    """
    past, length = memory.documents.shape[1], tokens.shape[1]
    consecutive = positions is None
    if consecutive:
      self.check(past + length)
      positions = jnp.arange(past + length)[None]
    own = positions[:, past:]
    x = self.read(tokens, own, rngs)
    held = jnp.zeros(tokens.shape, int) if documents is None else documents
    held = jnp.concatenate([memory.documents, held], axis=1)
    mask = (held >= 0)[:, None] if documents is None else documents[:, :, None] == held[:, None]
    if self.size.same_length:
      mask &= jnp.arange(length)[:, None] < jnp.arange(past + length)
    span = Span(
      own,
      positions,
      mask,
      causal=True,
      max_position=self.max_position,
      consecutive=consecutive,
      self_attention=consecutive and past == 0,
      padding_last=past == 0 and documents is None,
    )
    span = self.ready(span, whole_only=term_scale is not None)
    layers = []
    for i, (block, before) in enumerate(zip(self.blocks, memory.layers, strict=True)):
      context = jnp.concatenate([before.astype(x.dtype), x], axis=1)
      layers.append(jax.lax.stop_gradient(context[:, length:]))
      k, v = block.attention.keys_values(block.context(context))
      x = block(x, k, v, of_layer(span, term_scale, i, x.dtype), rngs=rngs)
    return self.finish(x), Memory(tuple(layers), held[:, length:])

  def source(self, encoded: Array, mask: Array) -> tuple:
    """Return every layer's keys and values of an encoder's output [B,S,F] with mask [B,S].

    Padding comes after the real tokens.
    """
    length = mask.shape[1]
    # One row of positions and of the mask serves every query.
    span = Span(
      jnp.zeros((1, 1), int), jnp.arange(length)[None], mask[:, None, :], padding_last=True
    )
    return tuple((*block.cross.keys_values(encoded), span) for block in self.blocks)

  def empty_cache(self, batch: int, length: int, positions: Array | None = None) -> Cache:
    """Return an empty cache for `length` tokens.

    Raises:
      ValueError: the encoding has fewer positions.
    """
    if positions is None:
      self.check(length)
      positions = jnp.arange(length)[None]
    size = self.size
    heads, head_dim = size.num_heads, size.d_model // size.num_heads
    # Separate buffers: a donated one may not appear twice.
    keys, values = (
      tuple(jnp.zeros((batch, heads, *shape), size.dtype) for _ in self.blocks)
      for shape in ((head_dim, length), (length, head_dim))
    )
    return Cache(keys, values, positions, jnp.zeros((), jnp.int32))

  def empty_memory(self, batch: int, length: int) -> Memory:
    """Return an empty memory of `length` slots."""
    shape = (batch, length, self.size.d_model)
    layers = tuple(jnp.zeros(shape, self.size.dtype) for _ in self.blocks)
    return Memory(layers, jnp.full((batch, length), -1, jnp.int32))

  def check(self, length: int) -> None:
    """Raise ValueError if the encoding has fewer than `length` positions."""
    if self.limit is not None and length > self.limit:
      raise ValueError(
        f"a sequence of {length} tokens, but the encoding has {self.limit} positions"
      )

  def read(
    self, tokens: Array, positions: Array, rngs: Rngs | None, mask: Array | None = None
  ) -> Array:
    """Embed tokens: [B,L,F], in the dtype of the blocks."""
    embedded = self.embed(tokens, positions, mask)
    return drop(embedded, self.size.dropout, rngs).astype(self.size.dtype)

  def ready(self, span: Span, *, whole_only: bool = False) -> Span:
    """Add to a span what its layers share, or the function for it: see `attention.ready`."""
    form = "reference" if whole_only else self.size.attention
    return attention.ready(span, self.shared, form)

  @property
  def relation(self) -> Relation:
    """The relation of the first layer; all layers have one of the same kind."""
    return self.blocks[0].attention.relation

  def finish(self, x: Array) -> Array:
    """Normalize the last layer's output, if blocks normalize their inputs."""
    return x if self.norm is None else self.norm(x)
