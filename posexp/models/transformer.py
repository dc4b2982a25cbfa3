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

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Relation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span, TermScale
from posexp.models import attention
from posexp.models.attention import Kind, filled_up, limited, since_start, within_window
from posexp.models.block import Block
from posexp.models.cache import Cache, Memory
from posexp.models.convolution import in_cache, in_row, slots_before
from posexp.models.feed_forward import drop
from posexp.models.norms import norm_of
from posexp.models.size import Size, checked


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
    layers = checked(encoding, size, causal, cross)
    scale = size.d_model**0.5 if size.embed_scale == "sqrt" else 1.0
    head_dim = size.width_of_head
    self.embed = encoding.embed(
      vocab_size, size.d_model, scale=scale, causal=causal, rngs=rngs.fork()
    )
    encodings = list(dict.fromkeys(layer.encoding for layer in layers))
    streams = rngs.fork()
    shared = [
      each.shared(size.num_heads, head_dim, causal=causal, rngs=streams, embed=self.embed)
      for each in encodings
    ]
    several = len(shared) > 1 and any(each is not None for each in shared)
    self.shared = nnx.List(shared) if several else shared[0]
    self.kinds = tuple(
      Kind(encodings.index(layer.encoding), layer.window, layer.chunk) for layer in layers
    )
    self.blocks = nnx.List(
      Block(layer, size, causal=causal, cross=cross, first=i == 0, rngs=rngs.fork())
      for i, layer in enumerate(layers)
    )
    for block in self.blocks:
      block.attention.form = attention.for_layer(
        size.attention, block.attention.relation, head_dim, size.dtype, size.dropout, max_position
      )
    self.norm = norm_of(encoding, size.d_model, size, rngs.fork()) if size.norm != "post" else None
    draws = nnx.initializers.normal(0.02)
    shape = (size.token_types, size.d_model)
    self.types = nnx.Param(draws(rngs.params(), shape)) if size.token_types else None
    self.embed_norm = (
      norm_of(encoding, size.d_model, size, rngs.fork()) if size.embed_norm else None
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
    types: Array | None = None,
    padding_last: bool = True,
    rngs: Rngs | None = None,
  ) -> Array:
    """Read a whole sequence: tokens [B,L], mask bool [B,L] of real tokens -> [B,L,F].

    Padding comes after the real tokens unless `padding_last` is False, and may go on beyond the
    encoding's positions. `types` int [B,L] are rows of `size.token_types`; None means row 0.

    `term_scale` [layers,H] says how much of each named term of the relation every head keeps.

    Raises:
      ValueError: the sequence is longer than the encoding's positions.
    """
    length = tokens.shape[1]
    ends = positions is None and mask is not None and padding_last
    if ends and length > (self.limit or length):
      given: dict[str, Any] = {"source": source, "term_scale": term_scale, "rngs": rngs}
      given["types"] = None if types is None else types[:, : self.limit]
      return filled_up(self(tokens[:, : self.limit], mask[:, : self.limit], **given), mask)
    if positions is None:
      self.check(length)
    real = jnp.ones((1, length), bool) if mask is None else mask
    known = {
      "max_position": self.max_position,
      "padding_last": padding_last and self.size.window is None,
    }
    visible = real[:, None] if self.size.window is None else within_window(real, self.size)
    whole = Span.within(positions, visible, self.causal, **known)
    x = self.read(tokens, whole.query, rngs, mask, types)
    places = jnp.arange(length)
    within = None if padding_last or mask is None else places - real.argmax(1, keepdims=True)
    spans = self.spans(
      lambda kind: limited(whole, kind, places, places, self.causal, within),
      term_scale=term_scale,
    )
    mix = in_row(None if padding_last else real - 1, self.size.conv)
    for i, (block, span) in enumerate(zip(self.blocks, spans, strict=True)):
      x = block(x, block.held(x, mix), span, source and source[i], rngs)
    return self.finish(x)

  def step(
    self,
    tokens: Array,
    cache: Cache,
    *,
    source: tuple | None = None,
    seen: Array | None = None,
    count: Array | None = None,
  ) -> tuple[Array, Cache]:
    """Read the next tokens [B,Q] of a cached sequence -> ([B,Q,F], cache); NaN once it is full.

    The cache keeps the first `count` of them, by default all.

    With `seen`, bool [B,Q,K], the tokens are alternatives for one place instead. Each sees the
    slots where `seen` is True, which must include its own; the cache must not be rolling.

    Raises:
      ValueError: more tokens than the cache has slots.
    """
    size = cache.positions.shape[1]
    if tokens.shape[1] > size:
      raise ValueError(f"{tokens.shape[1]} tokens, but the cache has {size} slots")
    own = cache.length + jnp.arange(tokens.shape[1])
    positions = cache.positions[:, own]
    # JAX clamps indices: without NaN a full cache would silently overwrite its last slots.
    x = jnp.where(own[:, None] < size, self.read(tokens, positions, None), jnp.nan)
    alternatives = 1 if seen is None else tokens.shape[1]
    reach = max(self.max_position or 0, size // alternatives)

    def of_kind(kind: Kind) -> Span:
      rolls, held = cache.rolls(kind.window), jnp.arange(size)
      if rolls:
        held = cache.length + jnp.arange(1 - kind.window, tokens.shape[1])
      mask = seen if seen is not None else (held <= own[:, None])[None]
      if self.size.same_length and seen is None:
        mask &= held > own[:, None] - self.size.memory
      if rolls:
        mask &= held >= 0
      key = cache.positions[:, jnp.maximum(held, 0)] if rolls else cache.positions
      first = None if rolls else cache.length
      span = Span(positions, key, mask, max_position=reach, first=first)
      return limited(span, kind, own // alternatives, held // alternatives, causal=True)

    kept = tokens.shape[1] if count is None else count
    slots, layers = slots_before(own, self.size.conv - 1, seen), []
    for i, (block, span) in enumerate(zip(self.blocks, self.spans(of_kind), strict=True)):
      window = self.kinds[i].window
      inputs, k, v, columns = block.held(x, in_cache(cache, i, window, slots))
      new = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), columns
      (k, v, columns), left = cache.added(i, new, window, kept)
      layers.append(left)
      held = inputs, k.transpose(0, 3, 1, 2), v.swapaxes(1, 2), columns
      x = block(x, held, span, source and source[i])
    keys, values, columns = zip(*layers, strict=True)
    length = cache.length + kept
    return self.finish(x), cache.replace(keys=keys, values=values, columns=columns, length=length)

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
    places = jnp.arange(past + length)
    within = None if documents is None else since_start(held)
    spans = self.spans(
      lambda kind: limited(span, kind, places[past:], places, True, within),
      term_scale=term_scale,
    )
    # Without documents, all that is there is of one.
    groups = held if documents is not None else jnp.minimum(held, 0) if past else None
    mix = in_row(groups, self.size.conv)
    layers = []
    for block, kept, span in zip(self.blocks, memory.layers, spans, strict=True):
      context = jnp.concatenate([kept.astype(x.dtype), x], axis=1)
      layers.append(jax.lax.stop_gradient(context[:, length:]))
      x = block(x, block.held(context, mix), span, rngs=rngs)
    return self.finish(x), Memory(tuple(layers), held[:, length:])

  def source(self, encoded: Array, mask: Array) -> tuple:
    """Return keys, values and their span for each layer, from an encoder's output [B,S,F].

    In `mask`, bool [B,S], padding comes after the real tokens.
    """
    length = mask.shape[1]
    # One row of positions and of the mask serves every query.
    span = Span(
      jnp.zeros((1, 1), int), jnp.arange(length)[None], mask[:, None, :], padding_last=True
    )
    return tuple((*block.cross.keys_values(encoded), span) for block in self.blocks)

  def empty_cache(
    self, batch: int, length: int, positions: Array | None = None, *, rolling: bool = True
  ) -> Cache:
    """Return an empty cache for `length` tokens.

    If it is `rolling`, layers with a window hold no more than it; alternatives need all slots.

    Raises:
      ValueError: the encoding has fewer positions.
    """
    if positions is None:
      self.check(length)
      positions = jnp.arange(length)[None]
    windows = [kind.window for kind in self.kinds]
    makers = [block.columns if block.conv else block.attention.key_columns for block in self.blocks]
    return Cache.empty(self.size, windows, makers, batch, length, positions, rolling)

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
    self,
    tokens: Array,
    positions: Array,
    rngs: Rngs | None,
    mask: Array | None = None,
    types: Array | None = None,
  ) -> Array:
    """Embed tokens: [B,L,F], in the dtype of the blocks."""
    embedded = self.embed(tokens, positions, mask)
    if self.types is not None:
      embedded = embedded + self.types[...][0 if types is None else types]
    if self.embed_norm is not None:
      embedded = self.embed_norm(embedded)
    return drop(embedded, self.size.dropout, rngs).astype(self.size.dtype)

  def ready(self, span: Span, *, layer: int = 0, whole_only: bool = False) -> Span:
    """Add a layer's shared value, or the function that makes it, to a span."""
    form = "reference" if whole_only else self.blocks[layer].attention.form
    return attention.ready(span, self.shared_of(layer), form)

  def shared_of(self, layer: int) -> Callable[[Span], object] | None:
    """Return the function for the value that a layer shares: see `Encoding.shared`."""
    shared = self.shared
    return shared[self.kinds[layer].shared] if isinstance(shared, nnx.List) else shared

  def spans(
    self, of_kind: Callable[[Kind], Span], *, term_scale: TermScale | None = None
  ) -> list[Span]:
    """Return the span of each layer, made once for layers of a kind, with its factors of terms."""
    whole_only = term_scale is not None
    made = {
      kind: self.ready(of_kind(kind), layer=self.kinds.index(kind), whole_only=whole_only)
      for kind in dict.fromkeys(self.kinds)
    }
    spans = [made[kind] for kind in self.kinds]
    if term_scale is None:
      return spans
    factors = {term: each.astype(self.size.dtype) for term, each in term_scale.items()}
    return [
      span.replace(term_scale={term: factor[i] for term, factor in factors.items()})
      for i, span in enumerate(spans)
    ]

  @property
  def relation(self) -> Relation:
    """The relation of the first layer."""
    return self.blocks[0].attention.relation

  @property
  def distinct(self) -> list[int]:
    """The first layer of each encoding; [0] if all layers have the same."""
    encodings = [kind.shared for kind in self.kinds]
    return [encodings.index(encoding) for encoding in dict.fromkeys(encodings)]

  def finish(self, x: Array) -> Array:
    """Normalize the last layer's output, if blocks normalize their inputs."""
    return x if self.norm is None else self.norm(x)
