"""A model at one moment of its training, asked about the examples of a split."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.data.batches import Batch
from posexp.encodings.span import TermScale
from posexp.errors import NotFinite
from posexp.tasks.results import Outputs
from posexp.training.devices import shard
from posexp.training.processes import fetch
from posexp.training.step import Program, State

# Batches of `map` on a CPU, whose cores one search leaves idle: two take 0.7 of the time.
AT_ONCE = 2

DIVERGED = 1e6  # no weight of a model that learns is as large
SMALLER = "try a smaller train.learning_rate, a longer train.warmup or a smaller train.clip"
LOOK = "`python -m posexp.check` with the options of encoding and positions finds what overflows"
DIVERGING = f"its weights have diverged; {SMALLER}"
OVERFLOWING = f"its weights are finite, so its sums overflow at these lengths or positions; {LOOK}"


class Snapshot(NamedTuple):
  """A model with its weights, on its devices; tasks know it as `posexp.tasks.contract.Snapshot`."""

  program: Program
  state: State  # whole on every device
  batch_size: int  # of evaluation, as in training

  @property
  def graphdef(self) -> nnx.GraphDef:
    """The structure of the model."""
    return self.program.graphdef

  def model(self) -> nnx.Module:
    """Return the model itself."""
    return nnx.merge(self.graphdef, self.state.params, self.state.settings)

  def predict(
    self, batches: Iterable[Batch], term_scale: TermScale | None = None, split: str = ""
  ) -> Outputs:
    """Return the model's prediction for every example, in the order of the data, [N] or [N,...].

    `term_scale` says how much of each term of its relations it keeps, as in `Stack`; `split` is the
    name of the examples in an error.

    Raises:
      UserError: a number of it is not finite.
    """

    def outputs() -> Iterator[tuple[Batch, dict[str, Array]]]:
      carry = None
      for batch, _ in shard(batches, self.program.mesh):
        if carry is None:
          carry = self.program.carry(len(batch["mask"]))
        output, carry = self._alone(self.program.predict(self.state, batch, carry, term_scale))
        yield batch, output

    return self.finite(gathered(outputs()), split)

  def map(
    self,
    function: Callable[[Any, Any, dict[str, Array]], dict[str, Array]],
    batches: Iterable[Batch],
  ) -> Outputs:
    """Map batches, like `predict`, by any `function(params, settings, batch)` -> arrays [B,...]."""
    params, settings = self.state.params, self.state.settings
    one = self.program.mesh.size == 1

    def mapped(batch: dict[str, Array]) -> dict[str, Array]:
      return self._alone(function(params, settings, batch))

    def found() -> Iterator[tuple[Batch, dict[str, Array]]]:
      # Few batches are on the device at once, however many there are.
      begun: deque[tuple[Batch, Future[dict[str, Array]]]] = deque()
      with ThreadPoolExecutor(AT_ONCE if one and self._on_cpu else 1) as threads:
        for batch, _ in shard(batches, self.program.mesh):
          begun.append((batch, threads.submit(mapped, batch)))
          if len(begun) > AT_ONCE:
            batch, outputs = begun.popleft()
            yield batch, outputs.result()
        for batch, outputs in begun:
          yield batch, outputs.result()

    return self.finite(gathered(found()))

  @property
  def _on_cpu(self) -> bool:
    return self.program.mesh.devices.flat[0].platform == "cpu"

  def _alone(self, outputs: Any) -> Any:
    """Return what was computed; where a CPU is several devices, wait until it is there.

    Each device takes one of XLA's threads until the others arrive where rows are gathered. With
    several programs on their way, each may wait for a thread that another has, for ever.
    """
    wait = self._on_cpu and self.program.mesh.size > 1
    return jax.block_until_ready(outputs) if wait else outputs

  def finite(self, found: Outputs, split: str = "") -> Outputs:
    """Return the outputs; raise NotFinite where a number of them is not finite."""
    for name, column in found.items():
      wrong = ~np.isfinite(column).reshape(len(column), -1).all(1)
      if wrong.any():
        where = f"of the {split} split " if split else ""
        params = jax.tree.leaves(self.state.params)
        diverged = not all(jnp.abs(param).max(initial=0) < DIVERGED for param in params)
        raise NotFinite(
          f"{name} is not finite for {wrong.sum():,} of {len(wrong):,} examples {where}(the first "
          f"is number {wrong.argmax()}) at step {int(self.state.step):,}, so there is no result: "
          + (DIVERGING if diverged else OVERFLOWING)
        )
    return found


def gathered(found: Iterable[tuple[Batch, dict[str, Array]]]) -> Outputs:
  """Return the results of batches without padding, in the order of the data.

  Rows that are narrower than those of other batches are filled up with 0.
  """
  outputs = fetch([{**output, "index": batch["index"]} for batch, output in found])
  columns = {name: joined([output[name] for output in outputs]) for name in outputs[0]}
  real = columns["index"] >= 0
  order = np.argsort(columns["index"][real])
  return {name: column[real][order] for name, column in columns.items()}


def joined(arrays: list[np.ndarray]) -> np.ndarray:
  """Join arrays [B,...] along their first dimension, padded to the widest in every other one."""
  widest = np.max([each.shape[1:] for each in arrays], axis=0).astype(int)

  def filled(array: np.ndarray) -> np.ndarray:
    missing = widest - np.asarray(array.shape[1:], int)
    return np.pad(array, [(0, 0), *((0, int(count)) for count in missing)])

  return np.concatenate([filled(each) for each in arrays])
