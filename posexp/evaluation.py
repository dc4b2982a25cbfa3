"""A model measured on a split: one result per example, and the metrics that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from posexp.training import Batch, shard


def predict(
  function: Callable[[Batch], dict[str, Array]], batches: Iterable[Batch], mesh: Mesh
) -> dict[str, np.ndarray]:
  """What `function` gives for every example, and its label, in the order of the data [N]."""
  found = [
    {**function(batch), "label": batch["labels"], "index": batch["index"]}
    for batch, _ in shard(batches, mesh)
  ]
  columns = {
    name: np.concatenate([batch[name] for batch in jax.device_get(found)]) for name in found[0]
  }
  real = columns["index"] >= 0
  order = np.argsort(columns["index"][real])
  return {name: column[real][order] for name, column in columns.items()}


def classification(found: dict[str, np.ndarray]) -> dict[str, float]:
  """Mean loss (nats), accuracy, and F1 averaged over the classes that occur, all alike."""
  label, prediction = found["label"], found["prediction"]
  right = label == prediction
  # Each occurrence of a class as label or prediction; 2·right / occurrences is its F1.
  occurrences = np.bincount(np.concatenate([label, prediction]))
  f1 = 2 * np.bincount(label[right], minlength=len(occurrences)) / np.maximum(occurrences, 1)
  return {
    "loss": float(np.mean(found["loss"], dtype=np.float64)),
    "accuracy": float(np.mean(right)),
    "macro_f1": float(np.mean(f1[occurrences > 0])),
  }
