"""A constituency parser: an encoder, scores of labeled spans, the best tree (Kitaev & Klein 2018).

A sentence stands between START and STOP. A fencepost lies between two neighboring tokens, and the
vector of a span of words is the difference of its two fenceposts.

Shapes: B sentences, N words of the longest one, L = N + 2 tokens, F width, K labels, S spans.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, LayerNorm, Linear, TokenEmbedding
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import TermScale
from posexp.kernels.gradients import matmul
from posexp.models.backbones import LSTM
from posexp.models.block import check_wordless
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.parsing import chart
from posexp.parsing.encoded import UNKNOWN


@dataclasses.dataclass(frozen=True)
class ParserSpec:
  """All that a parser is built from; equal specifications build equal models."""

  vocab_size: int  # of words and tags together
  num_labels: int  # including label 0, which means no phrase
  encoding: Encoding
  size: Size
  loss: Literal["margin", "crf"] = "margin"
  hidden: int = 250  # the width of the network that scores labels
  positions: Positions = CONSECUTIVE
  characters: int | None = None  # the width of a letter's vector, if words are read by letters

  def build(self, rngs: Rngs) -> Parser:
    """Build the model with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    return Parser(self, rngs=rngs)

  def inputs(self, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the shapes of the model's inputs: one sentence of `length` tokens."""
    tokens = jax.ShapeDtypeStruct((1, length, 2), jnp.int32)
    return tokens, jax.ShapeDtypeStruct((1, length), bool)


class Letters(nnx.Module):
  """A word's vector made of its letters: the last states of an LSTM in each direction.

  Like the CharLSTM of Kitaev & Klein 2018 (section 4.3), but without dropout of whole letters.
  """

  def __init__(self, letters: int, width: int, features: int, *, rngs: Rngs):
    half = features // 2
    init = nnx.initializers.normal(1.0)
    self.table = nnx.Param(init(rngs.params(), (letters, width)))
    linear = Encoding().linear
    self.forward = LSTM(linear, width, half, rngs=rngs.fork())
    self.backward = LSTM(linear, width, features - half, backward=True, rngs=rngs.fork())

  def __call__(self, tokens: Array, *_: Array | None) -> Array:
    """Read letters int [B,L,C], 0 after the last one -> [B,L,F]."""
    letters = tokens.reshape(-1, tokens.shape[-1])
    x, mask = self.table[...][letters], letters > 0
    last = [lstm(x, mask)[1] for lstm in (self.forward, self.backward)]
    return jnp.concatenate(last, axis=-1).reshape(*tokens.shape[:2], -1)


class Scorer(nnx.Module):
  """The scores of labels of a span: M2 relu(norm(M1 v + c1)) + c2, and 0 for label 0 (section 2.3).

  v is a difference of fenceposts, so M1 is applied to N + 1 fenceposts instead of N (N + 1) / 2
  spans.
  """

  def __init__(self, features: int, hidden: int, num_labels: int, *, rngs: Rngs):
    self.first = Linear(features, hidden, rngs=rngs.fork())
    self.norm = LayerNorm(hidden)
    self.second = Linear(hidden, num_labels - 1, rngs=rngs.fork())

  def project(self, fenceposts: Array) -> Array:
    """Multiply fenceposts by M1, [...,F] -> [...,hidden]."""
    return matmul(fenceposts, self.first.kernel[...])

  def __call__(self, difference: Array) -> Array:
    """Return scores [...,K] of differences [...,hidden] of projected fenceposts."""
    hidden = jax.nn.relu(self.norm(difference + self.first.bias[...]))
    scores = self.second(hidden)
    return jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(1, 0)])


class Parser(nnx.Module):
  """A parser that learns to score gold trees above all others, by a margin or as a CRF.

  A batch has tokens int [B,L,I]: a word and, if I = 2, its tag, whose vectors are summed, or the
  letters of a word; mask bool [B,L] of START, words and STOP; gold int [B,N,N], the label of the
  words i to j inclusive, 0 for no phrase and −1 for one that no tree can have; weight [B]; and
  `rare` [B,L], the probability that the first of I becomes the unknown word in training.

  Raises:
    ValueError: the size does not suit the encoding or cannot be halved, or the encoding has no
      word vectors for letters to replace.
  """

  metrics = ("loss",)

  def __init__(self, spec: ParserSpec, *, rngs: Rngs):
    size = spec.size
    least = 4 if spec.encoding.paired else 2
    if size.d_model % least:
      raise ValueError(
        f"d_model={size.d_model} must be a multiple of {least}: a fencepost is halves"
      )
    check_wordless(size)
    reach = spec.positions.reach
    self.stack = Stack(spec.vocab_size, spec.encoding, size, max_position=reach, rngs=rngs.fork())
    self.scorer = Scorer(size.d_model, spec.hidden, spec.num_labels, rngs=rngs.fork())
    if spec.characters is not None:
      read_letters(self.stack, spec.vocab_size, spec.characters, rngs.fork())
    self.positions, self.kind = spec.positions, spec.loss

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The only stack, the encoder."""
    return (self.stack,)

  def initial_carry(self, rows: int) -> tuple:
    """Return (), since batches are independent."""
    return ()

  def __call__(
    self,
    tokens: Array,
    mask: Array,
    *,
    term_scale: TermScale | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Compute fenceposts float32 [B,N+1,F] of tokens [B,L] or [B,L,I] with mask bool [B,L].

    A fencepost is the first half of the token before it and the second half of the token after it.
    `rngs` are for training: the stream `dropout` and, if positions are random, `positions`.
    """
    positions = self.positions.of(mask, rngs)
    hidden = self.stack(tokens, mask, positions=positions, term_scale=term_scale, rngs=rngs)
    before, behind = jnp.split(hidden.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([before[:, :-1], behind[:, 1:]], axis=-1)

  def loss(
    self, batch: dict[str, Array], carry: tuple, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, tuple]:
    """Return the mean over sentences, the number of sentences, and the carry.

    The task refuses label smoothing, so `label_smoothing` is 0.
    "loss" is the score of the best tree, plus 1 for each span whose label is not gold's, minus the
    score of the gold tree. As a CRF it is −log p of the gold tree made binary; all its binary forms
    count as separate trees of equal probability.
    """
    tokens, mask = batch["tokens"], batch["mask"]
    unknown = uniform(rngs.dropout(), *mask.shape) < batch["rare"]
    words = jnp.where(unknown, UNKNOWN, tokens[..., 0])
    tokens = jnp.concatenate([words[..., None], tokens[..., 1:]], axis=-1)
    projected = self.scorer.project(self(tokens, mask, rngs=rngs))
    gold = jnp.asarray(batch["gold"], jnp.int32)

    values = self.losses(projected, gold, words_of(mask))
    weight = batch["weight"]
    count = weight.sum()
    return {"loss": (values * weight).sum() / count}, count, carry

  def predict(
    self, batch: dict[str, Array], carry: tuple = (), term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], tuple]:
    """Return each sentence's loss [B] and best tree, spans (i, j, label) [B,2N−1,3]; and carry.

    Spans are half-open, of words counted from 0; those with label 0 are not phrases.
    """
    projected = self.scorer.project(self(batch["tokens"], batch["mask"], term_scale=term_scale))
    gold, lengths = jnp.asarray(batch["gold"], jnp.int32), words_of(batch["mask"])
    spans = self.parse(projected, lengths)
    return {"loss": self.losses(projected, gold, lengths), "spans": spans}, carry

  def parse(self, projected: Array, lengths: Array) -> Array:
    """Return the best trees of projected fenceposts [B,N+1,·], int [B,2N−1,3]."""
    scores = chart.of_differences(lambda each: self.scorer(each).max(-1), projected)
    spans = chart.best_trees(scores, lengths)
    labels = with_root(self.scores(projected, spans)).argmax(-1)
    labels = jnp.where(spans[..., 1] > 0, labels, 0)
    return jnp.concatenate([spans, labels[..., None]], axis=-1)

  def scores(self, projected: Array, spans: Array) -> Array:
    """Return label scores [B,S,K] of spans int [B,S,2], from projected fenceposts [B,N+1,·]."""
    start, end = jnp.moveaxis(jax.nn.one_hot(spans, projected.shape[1]), 2, 0)
    # A product, since the gradient of a look-up would write one number after another.
    return self.scorer(jnp.matmul(end - start, projected, precision=jax.lax.Precision.HIGHEST))

  def reduced(self, scores: Array, gold: Array) -> Array:
    """Reduce label scores [...,K] to one number for the loss, given gold labels int [...]."""
    if self.kind == "crf":
      return jax.nn.logsumexp(scores, axis=-1)
    labels = jnp.arange(scores.shape[-1])
    return jnp.where(labels == gold[..., None], scores, scores + 1).max(-1)

  def losses(self, projected: Array, gold: Array, lengths: Array) -> Array:
    """Return the loss of each sentence [B], from projected fenceposts [B,N+1,·].

    With a margin, only the spans of the best tree and of the gold tree have a gradient. Scoring
    these again costs less than keeping what a gradient through the chart would need.
    """
    row = jnp.arange(len(gold))
    labeled, labels = labeled_spans(gold)
    own = jnp.take_along_axis(self.scores(projected, labeled), labels[..., None], axis=-1)[..., 0]
    scores = chart.of_differences(
      lambda difference, gold: self.reduced(self.scorer(difference), gold), projected, gold
    )
    if self.kind == "crf":
      whole = jnp.stack([jnp.zeros_like(lengths), lengths], axis=-1)
      root = self.reduced(with_root(self.scores(projected, whole[:, None])), gold[:, :1, 0])
      best = chart.log_partition(scores.at[lengths - 1, row, 0].set(root[:, 0]), lengths)
    else:
      spans = chart.best_trees(scores, lengths)
      i, j = spans[..., 0], spans[..., 1]
      scored = self.reduced(with_root(self.scores(projected, spans)), gold[row[:, None], i, j - 1])
      best = jnp.where(j > 0, scored, 0).sum(1)
    return best - jnp.where(labels > 0, own, 0).sum(1)


def read_letters(stack: Stack, letters: int, width: int, rngs: Rngs) -> None:
  """Make a stack read words by their letters, each with a vector of this width.

  Encodings build embeddings of their own around a table of words, which is replaced here, so that
  no encoding has to know of letters.

  Raises:
    ValueError: the stack's embedding has no vector for each word.
  """
  embed = stack.embed
  words = getattr(embed, "words", embed)
  if not isinstance(words, TokenEmbedding):
    raise ValueError("letters make the vector of a word, and the encoding has none")
  made = Letters(letters, width, words.table.shape[1], rngs=rngs)
  if words is embed:
    stack.embed = made
  else:
    embed.words = made


def uniform(key: Array, rows: int, columns: int) -> Array:
  """Draw numbers in [0, 1), float32 [rows,columns]; none depends on the size of the array."""

  def number(row: Array, column: Array) -> Array:
    return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, row), column))

  of_row = jax.vmap(number, in_axes=(None, 0))
  return jax.vmap(of_row, in_axes=(0, None))(jnp.arange(rows), jnp.arange(columns))


def words_of(mask: Array) -> Array:
  """Count the words between START and STOP, int [B]; 1 in a row that is all padding."""
  return jnp.maximum(mask.sum(1, dtype=jnp.int32) - 2, 1)


def with_root(scores: Array) -> Array:
  """Exclude label 0 for the first of the spans, the whole sentence, from scores [B,S,K]."""
  return scores.at[:, 0, 0].set(chart.NEVER)


def labeled_spans(gold: Array) -> tuple[Array, Array]:
  """Return spans [B,2N−1,2] and labels [B,2N−1] of gold int [B,N,N]; label 0 fills the rest."""
  batch, size, _ = gold.shape
  flat = gold.reshape(batch, -1)
  # The filling lies beyond the last place.
  fill = size * size
  place = jax.vmap(lambda row: jnp.flatnonzero(row > 0, size=2 * size - 1, fill_value=fill))(flat)
  labels = jnp.take_along_axis(flat, place, axis=1, mode="fill", fill_value=0)
  return jnp.stack([place // size, place % size + 1], axis=-1), labels
