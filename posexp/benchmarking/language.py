"""A language model: the decoder for encodings that no encoder can have, on training's own step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.models import token_scores
from posexp.transformer import Size, Stack


class Language(nnx.Module):
  """A causal stack that says the next token. A batch has tokens, labels [B,L] and mask [B,L]."""

  metrics = ("loss",)

  def __init__(self, vocab_size: int, encoding: Encoding, size: Size, *, rngs: nnx.Rngs):
    self.stack = Stack(vocab_size, encoding, size, causal=True, rngs=rngs.fork())
    self.head = Linear(size.d_model, vocab_size, rngs=rngs.fork())

  def scores(self, batch: dict[str, Array], rngs: nnx.Rngs | None = None) -> Array:
    """−log p of the labels, [B,L]."""
    hidden = self.stack(batch["tokens"], batch["mask"], rngs=rngs)
    kernel = self.head.matrix().astype(hidden.dtype)
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)
    return token_scores(logits + self.head.bias[...], batch["labels"])[0]

  def loss(
    self, batch: dict[str, Array], *, label_smoothing: float, rngs: nnx.Rngs
  ) -> tuple[dict[str, Array], Array]:
    """The mean over the real tokens, and how many they are. Labels are not smoothed."""
    nll = self.scores(batch, rngs)
    total = batch["mask"].sum()
    return {"loss": (nll * batch["mask"]).sum() / total}, total

  def predict(
    self, batch: dict[str, Array], kept: dict[str, Array] | None = None
  ) -> dict[str, Array]:
    """The loss of every text, [B]."""
    return {"loss": (self.scores(batch) * batch["mask"]).sum(-1)}


@functools.lru_cache
def language(vocab_size: int, encoding: Encoding, size: Size) -> Callable[..., Language]:
  """A function of `rngs` that builds the model: the same object whenever the model is the same."""
  return functools.partial(Language, vocab_size, encoding, size)
