"""A language model of one's own around posexp's stack: trained by optax, decoded with a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import posexp

WORDS, LENGTH = 13, 12  # the word 0 is padding


class Model(nnx.Module):
  def __init__(self, encoding, *, rngs):
    size = posexp.Size(d_model=32, num_heads=4, d_ff=64, num_layers=2, dropout=0.1)
    self.stack = posexp.Stack(WORDS, encoding, size, causal=True, rngs=rngs)
    self.out = nnx.Linear(32, WORDS, rngs=rngs)

  def __call__(self, tokens, mask, rngs=None):  # int, bool [B,L] -> logits [B,L,WORDS]
    return self.out(self.stack(tokens, mask, rngs=rngs))

  def step(self, tokens, cache):  # the next tokens, int [B,Q], and a cache of those before
    x, cache = self.stack.step(tokens, cache)
    return self.out(x[:, -1]), cache


def counting(random, rows):
  """Draw texts that count in steps of 1 to 4, of 4 to LENGTH words, and the mask of the words."""
  first, by = random.integers(0, 12, (rows, 1)), random.integers(1, 5, (rows, 1))
  mask = np.arange(LENGTH) < random.integers(4, LENGTH + 1, (rows, 1))
  return np.where(mask, (first + by * np.arange(LENGTH)) % 12 + 1, 0), mask


@nnx.jit
def update(model, optimizer, tokens, mask, key):
  def loss_of(model):
    logits = model(tokens[:, :-1], mask[:, :-1], nnx.Rngs(dropout=key))  # without: no dropout
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return losses.mean(where=mask[:, 1:])

  loss, gradients = nnx.value_and_grad(loss_of)(model)
  optimizer.update(model, gradients)
  return loss


def train(encoding, steps=200):
  random, model = np.random.default_rng(0), Model(encoding, rngs=nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
  losses = []
  for key in jax.random.split(jax.random.key(0), steps):
    losses.append(update(model, optimizer, *counting(random, 32), key))
  return model, np.array(losses)


def continued(model, tokens, count):
  """Return tokens int [B,L] and the `count` likeliest ones after them, one by one."""
  step, cache = nnx.jit(Model.step), model.stack.empty_cache(len(tokens), tokens.shape[1] + count)
  logits, cache = step(model, tokens, cache)
  for _ in range(count):
    tokens = jnp.concatenate([tokens, logits.argmax(-1, keepdims=True)], axis=1)
    logits, cache = step(model, tokens[:, -1:], cache)
  return tokens


if __name__ == "__main__":
  model, losses = train(posexp.encoding("rope"))
  print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
  print(continued(model, jnp.array([[1, 3], [2, 6]]), 6))
