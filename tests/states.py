"""A run's config, a state in which every number is known, and a process to kill."""

import functools
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

CONFIG = {
  "encoding": "rpr",
  "rpr": {"k": 4, "keys": True},
  "task": {
    "kind": "text_classification",
    "name": "own",
    "train": "a.csv",
    "validation": None,
    "test": "b.csv",
  },
  "train": {"learning_rate": 1e-3, "clip": 1.0},
  "seed": 0,
  "runs": "runs",
  "rerun": False,
  "wandb": {"mode": "disabled"},
}
SCORE = "validation/accuracy"


@struct.dataclass
class State:
  step: Any
  params: Any
  opt_state: Any


@functools.cache
def moments(width, dtype):
  """The shapes of an optimizer's state for the weights of `make_state`."""
  weights, bias = jax.ShapeDtypeStruct((4, width), dtype), jax.ShapeDtypeStruct((3,), jnp.float32)
  params = {"blocks": {0: {"w": weights}}, "bias": bias}
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
  return jax.eval_shape(optimizer.init, params)


def make_state(step, width=8, dtype=jnp.float32):
  """A state in which every number follows from the step."""
  weights, bias = np.full((4, width), step, dtype), np.full(3, 1 / step, np.float32)
  filled = jax.tree.map(lambda leaf: np.full(leaf.shape, step, leaf.dtype), moments(width, dtype))
  params = {"blocks": {0: {"w": weights}}, "bias": bias}
  return jax.device_put(State(np.int32(step), params, filled))


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def python(code, *args, **env):
  return subprocess.Popen(
    [sys.executable, "-c", code, *args],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
  )


def evaluated(score, loss=1.0):
  """The metrics of an evaluation."""
  return {SCORE: score, "validation/loss": loss, "other": 1}


def save(run, step, score):
  """Saves the state of a step; `score` may be a score and a loss, or None if it has none."""
  if score is not None:
    score = evaluated(*score) if isinstance(score, tuple) else evaluated(score)
  run.save(step, make_state(step), score)
  run.checkpoints.wait()
