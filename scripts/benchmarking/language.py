"""A language model: the decoder for encodings that no encoder can have, on training's own step."""

from __future__ import annotations

import dataclasses

from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.models import cross_entropy
from posexp.models.cross_entropy import Reader
from posexp.models.transformer import Size, Stack


class Language(nnx.Module):
  """A causal stack that says the next token. A batch has tokens, labels [B,L] and mask [B,L]."""

  metrics = ("loss",)

  def __init__(self, vocab_size: int, encoding: Encoding, size: Size, *, rngs: nnx.Rngs):
    self.stack = Stack(vocab_size, encoding, size, causal=True, rngs=rngs.fork())
    self.head = Linear(size.d_model, vocab_size, rngs=rngs.fork())

  @property
  def reader(self) -> Reader:
    """What reads words off the stack's output."""
    return Reader(self.head.matrix(), self.head.bias[...])

  def initial_carry(self, rows: int) -> tuple:
    """Nothing: no memory is kept."""
    return ()

  def loss(
    self, batch: dict[str, Array], carry: tuple, *, label_smoothing: float, rngs: nnx.Rngs
  ) -> tuple[dict[str, Array], Array, tuple]:
    """The mean over the real tokens, and how many they are."""
    hidden = self.stack(batch["tokens"], batch["mask"], rngs=rngs)
    weight, total = batch["mask"], batch["mask"].sum()
    sums = cross_entropy.summed(hidden, self.reader, batch["labels"], weight, label_smoothing)
    return {"loss": sums.loss / total}, total, carry

  def predict(
    self, batch: dict[str, Array], carry: tuple = (), term_scale: dict[str, Array] | None = None
  ) -> tuple[dict[str, Array], tuple]:
    """The loss of every text, [B]."""
    logits = self.reader.logits(self.stack(batch["tokens"], batch["mask"]))
    nll, _ = cross_entropy.scores(logits, batch["labels"])
    return {"loss": (nll * batch["mask"]).sum(-1)}, carry


@dataclasses.dataclass(frozen=True)
class LanguageSpec:
  """All that the model is built from."""

  vocab_size: int
  encoding: Encoding
  size: Size

  def build(self, rngs: nnx.Rngs) -> Language:
    """The model, with weights drawn from `rngs`."""
    return Language(self.vocab_size, self.encoding, self.size, rngs=rngs)
