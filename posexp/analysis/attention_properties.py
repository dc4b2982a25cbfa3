"""The properties of what attention reads and weighs: columns of keys and queries, and weights."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from posexp.analysis.attention_weights import watch
from posexp.analysis.properties import EXACT, Case, Violation, compare, stack, tokens_of


def weights(case: Case) -> Iterator[Violation]:
  """Check that weights are of visible keys alone, none is negative, and those of a query sum to 1,
  unless a relation declares otherwise by `sums_to_one`: then to at most 1.
  """
  model, tokens = stack.__wrapped__(case), tokens_of(case)  # one of its own, which is watched
  seen, _ = watch(model)
  model(tokens, case.mask)
  for layer, (block, found) in enumerate(zip(model.blocks, seen, strict=True)):
    real = np.asarray(case.mask)[:, None, :, None]  # padding may see nothing
    given = np.where(real, np.asarray(found.weights, np.float64), 0)
    hidden = np.where(np.asarray(found.visible)[:, None], 0, np.abs(given)).max()
    if not hidden <= EXACT:
      yield Violation(f"layer {layer}: weights of keys that are not visible", float(hidden))
    if not given.min() >= -EXACT:
      yield Violation(f"layer {layer}: negative weights", float(-given.min()))
    sums = np.where(real[..., 0], given.sum(-1), 1)
    apart = np.abs(sums - 1) if block.attention.relation.sums_to_one else np.maximum(sums - 1, 0)
    if not apart.max() <= EXACT:
      yield Violation(f"layer {layer}: sums of weights", float(apart.max()))


def columns(case: Case) -> Iterator[Violation]:
  """Check that what a key or a query carries is made of its own token, so that it can be cached."""
  model, draw = stack(case), np.random.default_rng(11)
  shape = 2, case.length, case.d_model
  x = jnp.asarray(draw.normal(size=shape), jnp.float32)
  for i in model.distinct:
    layer = model.blocks[i].attention
    for who, make in (("key", layer.key_columns), ("query", layer.query_columns)):
      if make is None:
        continue
      whole = jax.tree.leaves(make(x))
      for token in range(case.length):
        alone = jax.tree.leaves(make(x[:, token : token + 1]))
        for one, every in zip(alone, whole, strict=True):
          what = f"layer {i}, columns of a {who} alone, token {token} of {case.length}"
          yield from compare(what, one, every[:, token : token + 1])
