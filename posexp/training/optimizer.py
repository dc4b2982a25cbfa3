"""AdamW, its schedule, and the options of training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Literal

import jax
import optax

from posexp.config.checks import Count, Positive, Share, Whole, at_least, check


@dataclasses.dataclass(frozen=True)
class Training:
  """The options of training, the same for every encoding."""

  batch_size: Count = 32
  epochs: Count = 6
  steps: Count | None = None  # overrides epochs
  learning_rate: Positive = 1e-3
  schedule: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
  warmup: Whole = 100
  weight_decay: Annotated[float, at_least(0)] = 0.1
  clip: Positive | None = 1.0  # largest norm of a gradient; None is any
  label_smoothing: Share = 0.0
  evaluate_every: Count | None = None  # steps; None is once an epoch
  log_every: Count = 50
  patience: Count | None = None  # evaluations without a better one; None never stops early
  average: Count | None = None  # the last evaluated checkpoints, instead of the best one
  accumulate: Count = 1  # parts of a batch that a step works on, one after the other
  shard: Literal["none", "parameters"] = "none"  # what is divided beside the batches

  def __post_init__(self):
    check(self)


@functools.lru_cache
def make_schedule(options: Training, steps: int) -> optax.Schedule:
  """Learning rate by step: it rises linearly for `warmup` steps, then falls until `steps`.

  `rsqrt` falls as √(warmup / step) (Vaswani et al. 2017, section 5.3, with the peak for scale). It
  is compiled whole: on the host each of its operations would be compiled by itself.
  """
  peak, warmup = options.learning_rate, min(options.warmup, steps - 1)
  fall = {
    "cosine": lambda: optax.cosine_decay_schedule(peak, steps - warmup),
    "linear": lambda: optax.linear_schedule(peak, 0.0, steps - warmup),
    "rsqrt": lambda: lambda step: peak * (max(warmup, 1) / (max(warmup, 1) + step)) ** 0.5,
    "constant": lambda: optax.constant_schedule(peak),
  }[options.schedule]()
  # The first step is taken at peak / warmup, not at a rate of zero.
  rise = optax.linear_schedule(peak / max(warmup, 1), peak, max(warmup - 1, 1))
  return jax.jit(optax.join_schedules([rise, fall], [warmup]))


def decayed(params) -> object:
  """Which parameters weight decay acts on: matrices of linear maps.

  Not on vectors of words and positions, norms, biases, periods and phases, where it would pull
  toward a meaning.
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in str(path[-1]), params)


@functools.lru_cache
def make_optimizer(options: Training, steps: int) -> optax.GradientTransformation:
  """AdamW (Loshchilov & Hutter 2019), gradients clipped by their global norm.

  Equal options give the same object, so that compiled steps are shared between runs.
  """
  clip = optax.identity() if options.clip is None else optax.clip_by_global_norm(options.clip)
  return optax.chain(
    clip,
    optax.adamw(
      make_schedule(options, steps), b2=0.98, weight_decay=options.weight_decay, mask=decayed
    ),
  )
