"""Models: a Stack with something on top."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.models import cross_entropy
from posexp.models.cross_entropy import Reader
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.transformer import Size, Stack, drop


class Classifier(nnx.Module):
  """An encoder whose output is averaged over real tokens, or read at the first one ([CLS])."""

  def __init__(
    self,
    vocab_size: int,
    num_classes: int,
    encoding: Encoding,
    size: Size,
    *,
    first: bool = False,
    positions: Positions = CONSECUTIVE,
    rngs: nnx.Rngs,
  ):
    self.stack = Stack(vocab_size, encoding, size, reach=positions.reach, rngs=rngs.fork())
    self.head = Linear(size.d_model, num_classes, rngs=rngs.fork())
    self.first = first
    self.positions = positions

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The encoder alone."""
    return (self.stack,)

  def __call__(
    self,
    tokens: Array,
    mask: Array,
    *,
    kept: dict[str, Array] | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> Array:
    """tokens [B,L], mask bool [B,L] with a real token in every row -> logits [B,C], float32.

    `rngs` are for training: the stream `dropout`, and `positions` where these are random.
    """
    if rngs is None:
      positions = self.positions.evaluating(mask)
    else:
      positions = self.positions.training(mask, rngs.positions)
    hidden = self.stack(tokens, mask, positions=positions, kept=kept, rngs=rngs)
    hidden = hidden.astype(jnp.float32)
    if self.first:
      summary = hidden[:, 0]
    else:
      counted = mask[:, :, None].astype(hidden.dtype)
      summary = (hidden * counted).sum(1) / counted.sum(1)
    return self.head(drop(summary, self.stack.size.dropout, rngs))

  metrics = ("loss", "accuracy")

  def loss(
    self, batch: dict[str, Array], *, label_smoothing: float, rngs: nnx.Rngs
  ) -> tuple[dict[str, Array], Array]:
    """Means over a batch of tokens [B,L], mask [B,L], labels [B], weight [B]; and the weight."""
    logits = self(batch["tokens"], batch["mask"], rngs=rngs)
    labels, weight = batch["labels"], batch["weight"]
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), label_smoothing)
    values = {
      "loss": optax.softmax_cross_entropy(logits, targets),
      "accuracy": logits.argmax(-1) == labels,
    }
    total = weight.sum()
    return {name: (value * weight).sum() / total for name, value in values.items()}, total

  def predict(
    self, batch: dict[str, Array], kept: dict[str, Array] | None = None
  ) -> dict[str, Array]:
    """For every example: its loss [B] and the class with the largest logit, answer [B]."""
    logits = self(batch["tokens"], batch["mask"], kept=kept)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return {"loss": loss, "answer": logits.argmax(-1)}


class Translator(nnx.Module):
  """An encoder, and a causal decoder that attends to what it encoded (Vaswani et al. 2017).

  A batch has source int [B,S] with source_mask bool [B,S]; target int [B,T], which begins with
  [BOS], with mask bool [B,T]; labels int [B,T], the token that follows each of target; and weight
  [B], 0 for a padded row. Both masks have a real token in every row, tokens before padding.

  Raises:
    ValueError: the size does not suit the encoding, or positions are not consecutive in evaluation.
  """

  metrics = ("loss", "nll", "accuracy")

  def __init__(
    self,
    source_vocab: int,
    target_vocab: int,
    encoding: Encoding,
    size: Size,
    *,
    positions: Positions = CONSECUTIVE,
    rngs: nnx.Rngs,
  ):
    if positions.evaluation != "consecutive":
      raise ValueError(
        "a translation grows word by word, so set positions.evaluation=consecutive, not "
        f"{positions.evaluation}"
      )

    def stack(vocab_size: int, **kind: bool) -> Stack:
      return Stack(vocab_size, encoding, size, reach=positions.reach, rngs=rngs.fork(), **kind)

    self.encoder = stack(source_vocab)
    self.decoder = stack(target_vocab, causal=True, cross=True)
    self.head = Linear(size.d_model, target_vocab, rngs=rngs.fork())
    self.positions = positions

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The encoder, then the decoder."""
    return self.encoder, self.decoder

  def encode(
    self,
    source: Array,
    mask: Array,
    *,
    kept: dict[str, Array] | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> tuple:
    """Source tokens [B,S] with their mask: what every layer of the decoder attends to."""
    positions = None if rngs is None else self.positions.training(mask, rngs.positions)
    encoded = self.encoder(source, mask, positions=positions, kept=kept, rngs=rngs)
    return self.decoder.source(encoded, mask)

  @property
  def reader(self) -> Reader:
    """What reads target words off the decoder's output."""
    return Reader(self.head.matrix(), self.head.bias[...])

  def hidden(
    self,
    batch: dict[str, Array],
    *,
    kept: dict[str, Array] | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> Array:
    """The decoder's output [B,T,F]. `kept` [layers,H]: of the encoder, then the decoder."""
    first = second = None
    if kept is not None:
      layers = len(self.encoder.blocks)
      first = {term: heads[:layers] for term, heads in kept.items()}
      second = {term: heads[layers:] for term, heads in kept.items()}
    source = self.encode(batch["source"], batch["source_mask"], kept=first, rngs=rngs)
    positions = None if rngs is None else self.positions.training(batch["mask"], rngs.positions)
    return self.decoder(
      batch["target"], batch["mask"], positions=positions, source=source, kept=second, rngs=rngs
    )

  def __call__(self, batch: dict[str, Array], *, kept: dict[str, Array] | None = None) -> Array:
    """Logits float32 [B,T,V] of the labels."""
    return self.reader.logits(self.hidden(batch, kept=kept))

  def loss(
    self, batch: dict[str, Array], *, label_smoothing: float, rngs: nnx.Rngs
  ) -> tuple[dict[str, Array], Array]:
    """Means over the real target tokens of a batch, and how many they are.

    "loss" is cross-entropy in nats against smoothed labels, "nll" against the labels.
    """
    weight = batch["mask"] * batch["weight"][:, None]
    total = weight.sum()
    hidden = self.hidden(batch, rngs=rngs)
    sums = cross_entropy.summed(hidden, self.reader, batch["labels"], weight, label_smoothing)
    values = {"loss": sums.loss, "nll": sums.nll, "accuracy": sums.right}
    return {name: value / total for name, value in values.items()}, total

  def predict(
    self, batch: dict[str, Array], kept: dict[str, Array] | None = None
  ) -> dict[str, Array]:
    """For every pair, each [B]: its loss (the sum over its tokens), tokens, and right ones."""
    nll, right = cross_entropy.scores(self(batch, kept=kept), batch["labels"])
    mask = batch["mask"]
    return {
      "loss": (nll * mask).sum(-1),
      "tokens": mask.sum(-1),
      "right": (right & mask).sum(-1),
    }


class Kind(Protocol):
  """What of a task and its data a model's size depends on; equal kinds have equal hashes."""

  length: int  # of the longest inputs, in tokens

  def build(
    self, encoding: Encoding, size: Size, positions: Positions = CONSECUTIVE
  ) -> Callable[..., nnx.Module]:
    """A function of `rngs` that builds the model: the same object whenever the model is the same.

    The model has `loss` and `predict`, and `metrics`, the names of what `loss` gives.
    """

  @property
  def inputs(self) -> tuple:
    """The shapes of what the model is called with, for one text of the greatest length."""


@dataclasses.dataclass(frozen=True)
class OfClassifier:
  """The `Kind` of a classifier."""

  vocab_size: int
  num_classes: int
  first: bool  # is the class read at the first token?
  length: int

  def build(self, encoding, size, positions=CONSECUTIVE):
    return classifier(self.vocab_size, self.num_classes, encoding, size, self.first, positions)

  @property
  def inputs(self):
    return _shape(self.length, jnp.int32), _shape(self.length, bool)


@dataclasses.dataclass(frozen=True)
class OfTranslator:
  """The `Kind` of a translator; its tokens are those of the target."""

  source_vocab: int
  target_vocab: int
  length: int

  def build(self, encoding, size, positions=CONSECUTIVE):
    return translator(self.source_vocab, self.target_vocab, encoding, size, positions)

  @property
  def vocab_size(self) -> int:
    return self.target_vocab

  @property
  def inputs(self):
    tokens, mask = _shape(self.length, jnp.int32), _shape(self.length, bool)
    return ({"source": tokens, "source_mask": mask, "target": tokens, "mask": mask},)


def _shape(length: int, dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((1, length), dtype)


@functools.lru_cache
def classifier(
  vocab_size: int,
  num_classes: int,
  encoding: Encoding,
  size: Size,
  first: bool,
  positions: Positions = CONSECUTIVE,
) -> Callable[..., Classifier]:
  """A function of `rngs` that builds the model: the same object whenever the model is the same."""
  return functools.partial(
    Classifier, vocab_size, num_classes, encoding, size, first=first, positions=positions
  )


@functools.lru_cache
def translator(
  source_vocab: int,
  target_vocab: int,
  encoding: Encoding,
  size: Size,
  positions: Positions = CONSECUTIVE,
) -> Callable[..., Translator]:
  """As `classifier`."""
  return functools.partial(
    Translator, source_vocab, target_vocab, encoding, size, positions=positions
  )
