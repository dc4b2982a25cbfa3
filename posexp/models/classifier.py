"""A classifier: a network that turns a text into a vector, and a linear map to classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from posexp.data.word_vectors import WordVectors
from posexp.encodings.base import Encoding, Linear
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.encodings.span import TermScale
from posexp.errors import UserError
from posexp.models.backbones import AnySize, Backbone, FastTextSize, mean
from posexp.models.block import check_wordless, word_table
from posexp.models.feed_forward import drop
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack


@dataclasses.dataclass(frozen=True)
class ClassifierSpec:
  """All that a classifier is built from; equal specifications build equal models."""

  vocab_size: int
  num_classes: int
  encoding: Encoding
  size: AnySize
  first: bool = False  # True if a Transformer's class is read at the first token
  positions: Positions = CONSECUTIVE
  vectors: WordVectors | None = None  # the initial vectors of words

  def build(self, rngs: Rngs) -> Classifier:
    """Build the model with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    model = Classifier(self, rngs=rngs)
    if self.vectors is not None:
      # All other vectors are scaled to the size of the given ones (Kim 2014, section 3.2). Embedded
      # words are later multiplied by `input_scale`, so these are divided by it.
      vectors, input_scale = self.vectors, self.size.input_scale
      table, scale = word_table(model.embed)
      drawn = table[...] * (vectors.scale / input_scale)
      table[...] = drawn.at[vectors.rows].set(vectors.values / (scale * input_scale))
    return model

  def read_vectors(self, path: str, words: Sequence[str]) -> WordVectors:
    """Read the vectors that a file has for the words of the vocabulary.

    Raises:
      UserError: the file cannot be read or has another width, or words have no vectors to replace.
    """
    embed = abstract_model(self.build).embed
    table = word_table(embed)
    if table is None or table[0].shape[0] != self.vocab_size:
      raise UserError("model.vectors: the encoding has no vector for each word; leave it at null")
    width, own = table[0].shape[1], self.size.d_model
    halves = "" if width == own else f", for the first of {own // width} parts of a word,"
    return WordVectors.read(path, words, width, f"model.d_model={own}{halves}")

  @property
  def notes(self) -> tuple[str, ...]:
    """Remarks on the model for the header."""
    said = [] if self.vectors is None else [self.vectors.note]
    if isinstance(self.size, FastTextSize) and self.encoding.order_blind:
      said.append("the mean of words is the same in any order, and positions only add to it")
    return tuple(said)

  def inputs(self, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the shapes of the model's inputs: one sequence of `length` tokens."""
    shape = (1, length)
    return jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, bool)


class Classifier(nnx.Module):
  """A classifier of an encoder's output, averaged over real tokens or read at the first ([CLS]).

  A network without attention takes the encoder's place if `size` says so.
  """

  def __init__(self, spec: ClassifierSpec, *, rngs: Rngs):
    words, encoding, size, reach = spec.vocab_size, spec.encoding, spec.size, spec.positions.reach
    untied = any(getattr(each, "untie_cls", False) for each in encoding.mixed)
    if untied and spec.positions.kind != "consecutive":
      raise ValueError(
        "untie_cls=true takes the token at the first position for [CLS], which is anywhere with "
        f"positions={spec.positions.kind}; leave it at false"
      )
    forked = rngs.fork()
    if isinstance(size, Size):
      check_wordless(size)
      self.stack = Stack(words, encoding, size, max_position=reach, rngs=forked)
    else:
      self.network = Backbone(words, encoding, size, rngs=forked)
    bias = not isinstance(size, Size) or "head" in size.biased
    self.head = Linear(size.width, spec.num_classes, bias=bias, rngs=rngs.fork())
    self.first, self.positions, self.dropout = spec.first, spec.positions, size.dropout

  @property
  def embed(self) -> Callable[..., Array]:
    """The embedding of tokens."""
    return (self.stack if self.stacks else self.network).embed

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The encoder, if it is a Transformer."""
    return (self.stack,) if hasattr(self, "stack") else ()

  def __call__(
    self,
    tokens: Array,
    mask: Array,
    *,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Map tokens [B,L], mask bool [B,L] with a real token in every row, to logits float32 [B,C].

    `rngs` are for training: the stream `dropout` and, if positions are random, `positions`.
    """
    positions = self.positions.of(mask, rngs)
    if not self.stacks:
      summary = self.network(tokens, mask, positions=positions)
    else:
      hidden = self.stack(tokens, mask, positions=positions, term_scale=term_scale, rngs=rngs)
      hidden = hidden.astype(jnp.float32)
      summary = hidden[:, 0] if self.first else mean(hidden, mask)
    return self.head(drop(summary, self.dropout, rngs))

  metrics = ("loss", "accuracy")

  def initial_carry(self, rows: int) -> tuple:
    """Return (), since batches are independent."""
    return ()

  def loss(
    self, batch: dict[str, Array], carry: tuple, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, tuple]:
    """Return means over tokens [B,L], mask [B,L], labels [B], weight [B]; their weight; carry."""
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
    self, batch: dict[str, Array], carry: tuple = (), term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], tuple]:
    """Return the loss [B] of each example and its likeliest class, `answer` [B]; and carry."""
    logits = self(batch["tokens"], batch["mask"], term_scale=term_scale)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return {"loss": loss, "answer": logits.argmax(-1)}, carry
