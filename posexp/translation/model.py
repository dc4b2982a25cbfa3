"""A translator: an encoder, and a decoder that attends to its output (Vaswani et al. 2017)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from posexp.encodings.base import Encoding
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import TermScale
from posexp.models import cross_entropy
from posexp.models.cross_entropy import Writer
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack


@dataclasses.dataclass(frozen=True)
class TranslatorSpec:
  """All that a translator is built from; equal specifications build equal models."""

  source_vocab: int
  target_vocab: int
  encoding: Encoding
  size: Size
  positions: Positions = CONSECUTIVE
  slots: int | None = None  # target tokens that random positions are drawn for; None: those read

  @property
  def vocab_size(self) -> int:
    """The size of the target's vocabulary."""
    return self.target_vocab

  def build(self, rngs: Rngs) -> Translator:
    """Build the model with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    return Translator(self, rngs=rngs)

  def inputs(self, length: int) -> tuple[dict[str, jax.ShapeDtypeStruct]]:
    """Return the shapes of the model's inputs: one pair of `length` tokens each."""
    tokens, mask = (jax.ShapeDtypeStruct((1, length), kind) for kind in (jnp.int32, bool))
    return ({"source": tokens, "source_mask": mask, "target": tokens, "mask": mask},)


class Translator(Writer):
  """An encoder, and a causal decoder that attends to its output (Vaswani et al. 2017).

  A batch has source int [B,S] with source_mask bool [B,S]; target int [B,T], which begins with
  [BOS], with mask bool [B,T]; labels int [B,T], the token after each target token; and weight [B],
  0 for a padded row. Both masks have a real token in every row, and padding last.

  Raises:
    ValueError: the size does not suit the encoding, or positions are not consecutive in evaluation.
  """

  def __init__(self, spec: TranslatorSpec, *, rngs: Rngs):
    positions = spec.positions
    if positions.evaluation != "consecutive":
      raise ValueError(
        "a translation grows word by word, so set positions.evaluation=consecutive, not "
        f"{positions.evaluation}"
      )

    def stack(vocab_size: int, **kind: Any) -> Stack:
      given = spec.encoding, spec.size
      return Stack(vocab_size, *given, max_position=positions.reach, rngs=rngs.fork(), **kind)

    self.encoder = stack(spec.source_vocab)
    self.decoder = stack(spec.target_vocab, causal=True, cross=True)
    self.head = self.make_head(spec.target_vocab, spec.size, rngs.fork())
    self.positions, self.slots = positions, spec.slots

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The encoder, then the decoder."""
    return self.encoder, self.decoder

  def encode(
    self,
    source: Array,
    mask: Array,
    *,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> tuple:
    """Encode source tokens [B,S] with their mask into keys and values for every decoder layer."""
    positions = self.positions.of(mask, rngs)
    encoded = self.encoder(source, mask, positions=positions, term_scale=term_scale, rngs=rngs)
    return self.decoder.source(encoded, mask)

  def hidden(
    self, batch: dict[str, Array], *, term_scale: TermScale | None = None, rngs: Rngs | None = None
  ) -> Array:
    """Return the decoder's output [B,T,F]. `term_scale` [layers,H] begins with the encoder's."""
    first = second = None
    if term_scale is not None:
      layers = len(self.encoder.blocks)
      first = {term: heads[:layers] for term, heads in term_scale.items()}
      second = {term: heads[layers:] for term, heads in term_scale.items()}
    source = self.encode(batch["source"], batch["source_mask"], term_scale=first, rngs=rngs)
    length = batch["target"].shape[1]
    # Those of as many tokens whatever the batch: their gaps would say how long its targets are.
    slots = self.slots or length
    positions = self.positions.of(jnp.arange(max(length, slots))[None] < slots, rngs)
    return self.decoder(
      batch["target"],
      batch["mask"],
      positions=positions if positions is None else positions[:, :length],
      source=source,
      term_scale=second,
      rngs=rngs,
    )

  def __call__(self, batch: dict[str, Array], *, term_scale: TermScale | None = None) -> Array:
    """Return logits float32 [B,T,V] of the labels."""
    return self.reader.logits(self.hidden(batch, term_scale=term_scale))

  def initial_carry(self, rows: int) -> tuple:
    """Return (), since batches are independent."""
    return ()

  def loss(
    self, batch: dict[str, Array], carry: tuple, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, tuple]:
    """Return `means` over the real target tokens of a batch, the number of these, and carry."""
    weight = batch["mask"] * batch["weight"][:, None]
    hidden = self.hidden(batch, rngs=rngs)
    return *self.means(hidden, batch["labels"], weight, label_smoothing), carry

  def predict(
    self, batch: dict[str, Array], carry: tuple = (), term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], tuple]:
    """Return each pair's summed loss, tokens and right tokens, [B] each; and carry."""
    nll, right = cross_entropy.scores(self(batch, term_scale=term_scale), batch["labels"])
    mask = batch["mask"]
    of_tokens = {"loss": nll * mask, "tokens": mask, "right": right & mask}
    return {name: value.sum(-1) for name, value in of_tokens.items()}, carry
