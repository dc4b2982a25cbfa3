"""Models: a Stack with something on top."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.positions import CONSECUTIVE, Positions
from posexp.transformer import Size, Stack, drop


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
    """For every example: its loss [B] and the class with the largest logit, prediction [B]."""
    logits = self(batch["tokens"], batch["mask"], kept=kept)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return {"loss": loss, "prediction": logits.argmax(-1)}


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
