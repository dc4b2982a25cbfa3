"""A classifier: an encoder with a class read off its output."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.transformer import Size, Stack, drop


@dataclasses.dataclass(frozen=True)
class ClassifierSpec:
  """All that a classifier is built from; equal specifications build equal models."""

  vocab_size: int
  num_classes: int
  encoding: Encoding
  size: Size
  first: bool = False  # is the class read at the first token?
  positions: Positions = CONSECUTIVE

  def build(self, rngs: nnx.Rngs) -> Classifier:
    """The model, with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    return Classifier(
      self.vocab_size,
      self.num_classes,
      self.encoding,
      self.size,
      first=self.first,
      positions=self.positions,
      rngs=rngs,
    )

  def inputs(self, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of what the model is called with: one sequence of `length` tokens."""
    shape = (1, length)
    return jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, bool)


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
    self.stack = Stack(vocab_size, encoding, size, max_position=positions.reach, rngs=rngs.fork())
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
    term_scale: dict[str, Array] | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> Array:
    """tokens [B,L], mask bool [B,L] with a real token in every row -> logits [B,C], float32.

    `rngs` are for training: the stream `dropout`, and `positions` where these are random.
    """
    if rngs is None:
      positions = self.positions.evaluating(mask)
    else:
      positions = self.positions.training(mask, rngs.positions)
    hidden = self.stack(tokens, mask, positions=positions, term_scale=term_scale, rngs=rngs)
    hidden = hidden.astype(jnp.float32)
    if self.first:
      summary = hidden[:, 0]
    else:
      counted = mask[:, :, None].astype(hidden.dtype)
      summary = (hidden * counted).sum(1) / counted.sum(1)
    return self.head(drop(summary, self.stack.size.dropout, rngs))

  metrics = ("loss", "accuracy")

  def initial_carry(self, rows: int) -> tuple:
    """Nothing: batches have nothing to do with each other."""
    return ()

  def loss(
    self, batch: dict[str, Array], carry: tuple, *, label_smoothing: float, rngs: nnx.Rngs
  ) -> tuple[dict[str, Array], Array, tuple]:
    """Means over a batch of tokens [B,L], mask [B,L], labels [B], weight [B]; and the weight."""
    logits = self(batch["tokens"], batch["mask"], rngs=rngs)
    labels, weight = batch["labels"], batch["weight"]
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), label_smoothing)
    values = {
      "loss": optax.softmax_cross_entropy(logits, targets),
      "accuracy": logits.argmax(-1) == labels,
    }
    total = weight.sum()
    return {name: (value * weight).sum() / total for name, value in values.items()}, total, carry

  def predict(
    self, batch: dict[str, Array], carry: tuple = (), term_scale: dict[str, Array] | None = None
  ) -> tuple[dict[str, Array], tuple]:
    """For every example: its loss [B] and the class with the largest logit, answer [B]."""
    logits = self(batch["tokens"], batch["mask"], term_scale=term_scale)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return {"loss": loss, "answer": logits.argmax(-1)}, carry
