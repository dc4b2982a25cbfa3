"""A task whose model remembers: it reads streams of tokens, a piece in each step."""

import dataclasses
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posexp.encodings.base import Linear
from posexp.models import cross_entropy
from posexp.models.transformer import Stack
from posexp.tasks.contract import Task

VOCAB, LENGTH, SIZE = 11, 8, 12


class Reader(nnx.Module):
  """Says the next token, from the piece and from a running mean of all pieces before, [B,F]."""

  metrics = ("loss",)

  def __init__(self, spec, rngs):
    self.stack = Stack(VOCAB, spec.encoding, spec.size, causal=True, rngs=rngs.fork())
    self.head = Linear(spec.size.d_model, VOCAB, rngs=rngs.fork())

  @property
  def stacks(self):
    return (self.stack,)

  def initial_carry(self, rows):
    return {"memory": jnp.zeros((rows, self.stack.size.d_model))}

  def __call__(self, tokens, mask, memory=0, rngs=None):
    hidden = self.stack(tokens, mask, rngs=rngs).astype(jnp.float32) * mask[:, :, None]
    return self.head(hidden + memory), hidden.sum(1) / mask.sum(1, keepdims=True)

  def read(self, batch, carry, rngs=None):
    logits, mean = self(batch["tokens"], batch["mask"], carry["memory"][:, None], rngs)
    nll, _ = cross_entropy.scores(logits[:, :-1], batch["tokens"][:, 1:])
    real = batch["mask"][:, 1:] * batch["weight"][:, None]
    return nll * real, real, {"memory": 0.5 * carry["memory"] + mean}

  def loss(self, batch, carry, *, label_smoothing, rngs):
    nll, real, carry = self.read(batch, carry, rngs)
    return {"loss": nll.sum() / real.sum()}, real.sum(), carry

  def predict(self, batch, carry, term_scale=None):
    nll, real, carry = self.read(batch, carry)
    return {"loss": nll.sum(1), "tokens": real.sum(1), "memory": carry["memory"]}, carry


@dataclasses.dataclass(frozen=True)
class ReaderSpec:
  encoding: object
  size: object
  positions: object

  vocab_size: ClassVar[int] = VOCAB

  def build(self, rngs):
    return Reader(self, rngs)

  def inputs(self, length):
    return tuple(jax.ShapeDtypeStruct((1, length), kind) for kind in (jnp.int32, bool))


class Streams:
  """Random tokens: batches go on for ever, and each split is a few pieces of as many streams."""

  item, unit, notes = "piece", "streams", ()
  longest = length = LENGTH
  sizes: ClassVar[dict[str, int]] = {"train": 400, "validation": SIZE, "test": SIZE}
  about = ("the next token", f"vocabulary {VOCAB}")

  def model(self, encoding, size, positions):
    return ReaderSpec(encoding, size, positions)

  def rows_of(self, batch_size):
    return np.array([batch_size])

  def steps_per_epoch(self, batch_size):
    return self.sizes["train"] // batch_size

  def batch(self, size, *key):
    tokens = np.random.default_rng(key).integers(1, VOCAB, (size, LENGTH), dtype=np.int32)
    mask, weight = np.ones((size, LENGTH), bool), np.ones(size, np.float32)
    return {"tokens": tokens, "mask": mask, "weight": weight, "index": np.arange(size)}

  def batches(self, batch_size, *, seed, start=0):
    for step in itertools.count(start):
      yield self.batch(batch_size, seed, step)

  def evaluation(self, split, batch_size):
    for first in range(0, SIZE, batch_size):
      batch = self.batch(batch_size, SIZE, first, len(split))
      batch["index"] = np.where(batch["index"] + first < SIZE, batch["index"] + first, -1)
      yield batch


@dataclasses.dataclass(frozen=True)
class Running(Task):
  """No options but its name."""

  score: ClassVar[str] = "validation/loss"
  headline: ClassVar[tuple[str, ...]] = ("test/loss",)

  name: str = "running"

  def smallest_model(self, encoding, size, positions):
    return ReaderSpec(encoding, size, positions)

  def prepare(self, folder):
    return Streams()

  def scores(self, found):
    return {"loss": float(found["loss"].sum() / found["tokens"].sum())}


TASKS = {"running": Running}
