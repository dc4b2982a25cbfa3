"""Cross-entropy over a vocabulary; training takes it in parts, without logits [B,T,V].

Shapes: B batch, T tokens, F model width, V words.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax import Array

from posexp.encodings.base import Linear, capped
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import total
from posexp.models.block import word_table
from posexp.models.size import Size
from posexp.models.transformer import Stack

# The most logits to form at once: 16 MiB fit in a CPU's cache.
AT_ONCE = 2**22


class Reader(struct.PyTreeNode):
  """An output layer: a linear map onto a vocabulary, whose logits may be capped."""

  kernel: Array  # [F,V]
  bias: Array | None  # [V]
  cap: float | None = struct.field(pytree_node=False, default=None)

  def logits(self, hidden: Array) -> Array:
    """Return logits float32 [...,V] of hidden [...,F]."""
    kernel = self.kernel.astype(hidden.dtype)
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)
    return capped(logits if self.bias is None else logits + self.bias, self.cap)


class Writer(nnx.Module):
  """A model that writes tokens: its `head` is a linear map onto their vocabulary.

  Without a head, the words' table of the last stack is the output layer, without a factor.
  """

  metrics = ("loss", "nll", "accuracy")
  head: Linear | None
  stacks: tuple[Stack, ...]

  def make_head(self, vocab_size: int, size: Size, rngs: Rngs) -> Linear | None:
    """Build the head, once there are stacks; None if embeddings are tied.

    Raises:
      ValueError: embeddings are tied, and the encoding has no vector of d_model for each word.
    """
    if not size.tie_embeddings:
      return Linear(size.d_model, vocab_size, bias="head" in size.biased, rngs=rngs)
    table = word_table(self.stacks[-1].embed)
    if table is None or table[0].shape != (vocab_size, size.d_model):
      raise ValueError(
        f"tie_embeddings needs a vector of d_model={size.d_model} numbers for each word, which the "
        "encoding does not have; leave it at false"
      )
    return None

  @property
  def reader(self) -> Reader:
    """The output layer."""
    cap = self.stacks[-1].size.head_cap
    if self.head is None:
      table, _ = word_table(self.stacks[-1].embed)
      return Reader(table[...].T, None, cap)
    bias = self.head.bias
    return Reader(self.head.matrix(), None if bias is None else bias[...], cap)

  def means(
    self, hidden: Array, labels: Array, weight: Array, label_smoothing: float
  ) -> tuple[dict[str, Array], Array]:
    """Return the weighted means over tokens of the numbers in `Sums`, and the sum of the weights.

    "loss" is cross-entropy in nats against smoothed labels, "nll" against the labels.
    """
    # The last segment of a text may have no target that counts.
    total = jnp.maximum(weight.sum(), 1)
    sums = summed(hidden, self.reader, labels, weight, label_smoothing)
    return dict(zip(self.metrics, (value / total for value in sums), strict=True)), weight.sum()


class Sums(NamedTuple):
  """Weighted sums over tokens."""

  loss: Array  # in nats, against smoothed labels
  nll: Array  # in nats, against the labels
  right: Array  # tokens whose label is the likeliest word


def scores(logits: Array, labels: Array) -> tuple[Array, Array]:
  """Return −log p of the labels in nats, and whether they are the likeliest words, [B,T] each."""
  return against(labels, logits, jax.nn.logsumexp(logits, axis=-1))


def against(labels: Array, logits: Array, normalizer: Array) -> tuple[Array, Array]:
  """Compute `scores` from the normalizer, log Σ e^logits [B,T]."""
  logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  # The same as `argmax(-1) == labels`, ties included, which takes a CPU nine times as long.
  before = jnp.arange(logits.shape[-1]) < labels[..., None]
  right = ~jnp.where(before, logits >= logit, logits > logit).any(-1)
  return normalizer - logit[..., 0], right


def summed(
  hidden: Array, reader: Reader, labels: Array, weight: Array, label_smoothing: float
) -> Sums:
  """Return sums over hidden [B,T,F], labels int [B,T], weight [B,T]. Only `loss` has a gradient.

  Label smoothing spreads that share of the probability evenly over all words (Szegedy et al. 2016).
  """
  batch, length, _ = hidden.shape
  parts = -(-hidden[..., 0].size * reader.kernel.shape[1] // AT_ONCE)
  size = -(-length // min(parts, length))
  more = -length % size

  def cut(x: Array) -> Array:  # [parts,B,size,...]
    x = jnp.pad(x, [(0, 0), (0, more), *[(0, 0)] * (x.ndim - 2)])
    return x.reshape(batch, -1, size, *x.shape[2:]).swapaxes(0, 1)

  # Cut along T, so that each device has its own rows of every part.
  tokens = cut(hidden), cut(labels), cut(weight.astype(jnp.float32))
  loss, rest = in_parts(tokens[0], reader, *tokens[1:], label_smoothing)
  return Sums(loss, *jax.lax.stop_gradient(rest))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def in_parts(hidden, reader, labels, weight, label_smoothing):
  """Return `Sums` as (loss, (nll, right)), over tokens cut into parts: hidden [parts,B,t,F]."""
  return forward(hidden, reader, labels, weight, label_smoothing)[0]


def forward(hidden, reader, labels, weight, label_smoothing):
  """Compute the sums and the gradient of the loss at once, so that logits need not be kept."""

  def step(carry, part):
    sums, of_reader = carry
    rows, labels, weight = part
    logits = reader.logits(rows)
    top = logits.max(-1, keepdims=True)
    # Without the barrier, XLA computes exponentials for the sum and again for the gradient.
    exponentials = jax.lax.optimization_barrier(jnp.exp(logits - top))
    partition = exponentials.sum(-1, keepdims=True)
    normalizer = (jnp.log(partition) + top)[..., 0]
    nll, right = against(labels, logits, normalizer)
    # The mean of −log p over the vocabulary, without forming the smoothed distribution.
    uniform = normalizer - logits.mean(-1)
    loss = (1 - label_smoothing) * nll + label_smoothing * uniform
    totals = Sums(*((values * weight).sum() for values in (loss, nll, right)))
    words = jnp.arange(logits.shape[-1])
    target = jnp.where(words == labels[..., None], 1 - label_smoothing, 0)
    target += label_smoothing / len(words)
    of_logits = (exponentials / partition - target) * weight[..., None]
    if reader.cap is not None:  # the derivative of c·tanh(e/c)
      of_logits *= 1 - (logits / reader.cap) ** 2
    of_bias = None if reader.bias is None else total(of_logits, words.shape)
    of_logits = of_logits.astype(rows.dtype)
    of_rows = of_logits @ reader.kernel.T.astype(rows.dtype)
    of_kernel = jnp.einsum("btf,btv->fv", rows, of_logits, preferred_element_type=jnp.float32)
    of_reader = jax.tree.map(jnp.add, of_reader, Reader(of_kernel, of_bias, reader.cap))
    return (Sums(*map(jnp.add, sums, totals)), of_reader), of_rows

  start = Sums(*jnp.zeros(3)), jax.tree.map(jnp.zeros_like, reader)
  ((loss, *rest), of_reader), of_hidden = jax.lax.scan(step, start, (hidden, labels, weight))
  return (loss, tuple(rest)), (of_hidden, of_reader)


def backward(label_smoothing, kept, grad):
  of_loss, _ = grad
  of_hidden, of_reader = jax.tree.map(lambda each: (of_loss * each).astype(each.dtype), kept)
  return of_hidden, of_reader, None, None


in_parts.defvjp(forward, backward)
