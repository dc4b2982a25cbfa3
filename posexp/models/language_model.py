"""A language model: a causal stack that reads a text in segments, with or without a memory."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.encodings.base import Encoding
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import TermScale
from posexp.models import cross_entropy
from posexp.models.attention import filled_up, since_start
from posexp.models.cache import Memory
from posexp.models.cross_entropy import Writer
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack

Carry = Memory | tuple[()]  # (), so no buffers, without a memory


@dataclasses.dataclass(frozen=True)
class LanguageModelSpec:
  """All that a language model is built from; equal specifications build equal models.

  No parameter depends on `size.memory`, so a trained model can be measured with another memory.
  """

  vocab_size: int
  encoding: Encoding
  size: Size
  positions: Positions = CONSECUTIVE
  scored: Literal["full", "half"] = "full"  # which targets of a segment training counts

  def build(self, rngs: Rngs) -> LanguageModel:
    """Build the model with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    return LanguageModel(self, rngs=rngs)

  def check(self, segment: int) -> None:
    """Raise ValueError if memory and segment have more tokens than there are positions."""
    slots, limit = self.size.memory + segment, self.encoding.limit
    if self.positions.evaluation == "consecutive" and limit is not None and slots > limit:
      raise ValueError(f"{slots} tokens, but the encoding has {limit} positions")
    if self.positions.evaluation != "consecutive" and slots > self.positions.reach:
      raise ValueError(f"{slots} tokens, but positions.reach={self.positions.reach}")

  def inputs(self, length: int) -> tuple[jax.ShapeDtypeStruct]:
    """Return the shapes of the model's inputs: one segment of `length` tokens."""
    return (jax.ShapeDtypeStruct((1, length), jnp.int32),)


class LanguageModel(Writer):
  """A predictor of the next token at every token of a segment (Dai et al. 2019, section 3).

  A batch has, of B lanes, tokens and labels int [B,T]; mask bool [B,T] of the targets that count;
  weight [B], 0 for a row without any; fresh bool [B] where nothing stands before the segment; and,
  where tokens see their own document alone, documents int [B,T]. Without a memory these have
  positions of their own, from 0. `slots` int [B], if a batch has it, is for how many tokens random
  positions are drawn, of which a row takes the first; otherwise they are drawn for the tokens that
  are read.

  Raises:
    ValueError: the size does not suit the encoding.
  """

  def __init__(self, spec: LanguageModelSpec, *, rngs: Rngs):
    self.stack = Stack(
      spec.vocab_size,
      spec.encoding,
      spec.size,
      causal=True,
      max_position=spec.positions.reach,
      rngs=rngs.fork(),
    )
    self.head = self.make_head(spec.vocab_size, spec.size, rngs.fork())
    self.positions, self.scored = spec.positions, spec.scored

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The only stack."""
    return (self.stack,)

  def initial_carry(self, rows: int) -> Carry:
    """Return an empty memory, or () if the model has none."""
    slots = self.stack.size.memory
    return self.stack.empty_memory(rows, slots) if slots else ()

  def hidden(
    self,
    batch: dict[str, Array],
    carry: Carry,
    *,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> tuple[Array, Carry]:
    """Return the stack's output [B,T,F] and the next memory."""
    tokens, documents = batch["tokens"], batch.get("documents")
    memory = carry.cleared(batch["fresh"]) if carry else self.stack.empty_memory(len(tokens), 0)
    length = memory.documents.shape[1] + tokens.shape[1]
    counted = np.ones((1, length), bool)
    if "slots" in batch:  # training has one draw for all rows
      slots = batch["slots"] if rngs is None else batch["slots"].max(keepdims=True)
      counted = jnp.arange(length) < slots[:, None]
    positions = self.positions.of(counted, rngs)
    if positions is None and documents is not None and not carry:
      positions = since_start(documents)
    if positions is None and not carry and self.stack.limit and "mask" in batch:
      tokens = tokens[:, : self.stack.limit]
    hidden, memory = self.stack.recur(
      tokens, memory, documents=documents, positions=positions, term_scale=term_scale, rngs=rngs
    )
    return filled_up(hidden, batch.get("mask", tokens)), memory if carry else ()

  def __call__(self, tokens: Array) -> Array:
    """Return logits float32 [B,T,V] of the token after each one of a text's first segment."""
    batch = {"tokens": tokens, "fresh": jnp.ones(len(tokens), bool)}
    return self.reader.logits(self.hidden(batch, self.initial_carry(len(tokens)))[0])

  def loss(
    self, batch: dict[str, Array], carry: Carry, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, Carry]:
    """Return `means` over the targets that count, the number of these, and the next memory."""
    weight = batch["mask"] * batch["weight"][:, None]
    if self.scored == "half":  # only targets that see at least half a segment
      length = weight.shape[1]
      weight *= jnp.arange(length) >= length // 2
    hidden, carry = self.hidden(batch, carry, rngs=rngs)
    return *self.means(hidden, batch["labels"], weight, label_smoothing), carry

  def predict(
    self, batch: dict[str, Array], carry: Carry = (), term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], Carry]:
    """Return each target's nll in nats, 0 if it does not count, and whether it is right, [B,T].

    All logits of a segment are formed at once.
    """
    hidden, carry = self.hidden(batch, carry, term_scale=term_scale)
    nll, right = cross_entropy.scores(self.reader.logits(hidden), batch["labels"])
    mask = batch["mask"]
    return {"nll": nll * mask, "right": right & mask}, carry
