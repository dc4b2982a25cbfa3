"""AdamW, its schedule, and the options of training."""

from __future__ import annotations

import dataclasses
import functools

import jax
import optax

SCHEDULES = ("cosine", "linear", "rsqrt", "constant")
SHARDS = ("none", "parameters")
COUNTS = ("batch_size", "epochs", "steps", "evaluate_every", "log_every", "patience", "average")
COUNTS += ("accumulate",)


@dataclasses.dataclass(frozen=True)
class Training:
  """The options of training, the same for every encoding."""

  batch_size: int = 32
  epochs: int = 6
  steps: int | None = None  # overrides epochs
  learning_rate: float = 1e-3
  schedule: str = "cosine"
  warmup: int = 100
  weight_decay: float = 0.1
  clip: float | None = 1.0  # largest norm of a gradient; None is any
  label_smoothing: float = 0.0
  evaluate_every: int | None = None  # steps; None is once an epoch
  log_every: int = 50
  patience: int | None = None  # evaluations without a better one; None never stops early
  average: int | None = None  # the last evaluated checkpoints, instead of the best one
  accumulate: int = 1  # parts of a batch that a step works on, one after the other
  shard: str = "none"  # what is divided among the devices beside the batches

  def __post_init__(self):
    for option in COUNTS:
      if (value := getattr(self, option)) is not None and value < 1:
        raise ValueError(f"{option} must be at least 1, not {value}")
    for option in ("learning_rate", "clip"):
      if (value := getattr(self, option)) is not None and value <= 0:
        raise ValueError(f"{option} must be above 0, not {value}")
    for option in ("warmup", "weight_decay"):
      if (value := getattr(self, option)) < 0:
        raise ValueError(f"{option} must be at least 0, not {value}")
    if not 0 <= self.label_smoothing < 1:
      raise ValueError(f"label_smoothing must be from 0 to below 1, not {self.label_smoothing}")
    for option, known in (("schedule", SCHEDULES), ("shard", SHARDS)):
      if (value := getattr(self, option)) not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}, not {value!r}")


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
