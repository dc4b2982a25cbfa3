"""A language model of one's own with RoPE, RPR or Transformer-XL attention."""

import jax
import jax.numpy as jnp
from flax import nnx

import posexp


class Block(nnx.Module):
  def __init__(self, encoding, width, rngs):
    self.attention = posexp.Attention(encoding, width, 4, causal=True, rngs=rngs)
    self.norms = nnx.List(nnx.RMSNorm(width, rngs=rngs) for _ in range(2))
    self.up = nnx.Linear(width, 4 * width, rngs=rngs)
    self.down = nnx.Linear(4 * width, width, rngs=rngs)

  def __call__(self, x):
    x = x + self.attention(self.norms[0](x))
    return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
  def __init__(self, encoding, words=100, width=64, layers=2, *, rngs):
    self.embed = nnx.Embed(words, width, rngs=rngs)
    self.blocks = nnx.List(Block(encoding, width, rngs) for _ in range(layers))

  def __call__(self, tokens):  # int [B,L] -> logits [B,L,words]
    x = self.embed(tokens)
    for block in self.blocks:
      x = block(x)
    return self.embed.attend(x)


if __name__ == "__main__":
  for name, options in {"rope": {}, "rpr": {"k": 4}, "transformer_xl": {}}.items():
    model = Model(posexp.encoding(name, **options), rngs=nnx.Rngs(0))
    print(name, model(jnp.ones((1, 8), int)).shape)
