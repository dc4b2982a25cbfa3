"""Measures how much of the offset structure of sinusoids is left behind W_Q and W_K.

    python scripts/offset_structure.py runs/numbers/sinusoidal --records FILE.parquet

The product of two sinusoids p_i · p_j is a function of the offset j − i alone (Vaswani et al. 2017,
section 3.5). Behind the maps of a head, (p_i W_Q) · (p_j W_K), it need not be. The share is that of
the variance of these products which their mean for each offset explains: over as many positions as
the longest text of the run has, in the first layer of the first stack, on average over its heads;
with the weights that training started from, with trained ones, and with one random orthogonal map
in the place of both, which heads still cut into parts.

Records say which of these it was by the option `weights`, for `python -m posexp.report`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posexp.analysis import probe
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.block import MultiHeadAttention
from posexp.runs import Run, read_runs
from posexp.runs.identity import settings
from posexp.runs.metrics import Metric
from posexp.runs.records import write_records
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained
from posexp.training.step import keys

SHARE = Metric("offset_share", "share of offsets", percent=True)


def measured(trained: TrainedModel) -> Iterator[Run]:
  """Yield a run with each kind of weights."""
  run, heads = trained.run, trained.spec.size.num_heads
  stack = trained.snapshot.model().stacks[0]
  started = trained.spec.build(Rngs(**keys(run.seed))).stacks[0]
  vectors = probe.position_vectors(stack.embed, trained.data.longest, word=1)
  square = np.random.default_rng(run.seed).normal(size=(vectors.shape[1],) * 2)
  rotated = vectors @ np.linalg.qr(square)[0]
  products = {
    "start": mapped(vectors, started.blocks[0].attention),
    "trained": mapped(vectors, stack.blocks[0].attention),
    "tied": (rotated, rotated),
  }
  for weights, (q, k) in products.items():
    parts = zip(*(np.split(each, heads, axis=1) for each in (q, k)), strict=True)
    share = np.mean([probe.share_by_offset(a @ b.T) for a, b in parts])
    summary = {key: value for key, value in run.summary.items() if "/" not in key}
    summary |= {key: run.summary[key] for key in ("time/seconds", "test/exact_match")}
    summary |= {"test/offset_share": float(share), "metrics": [SHARE._asdict()]}
    config = run.config | {"weights": weights}
    yield Run(run.path, config, settings(config), summary | {"headline": ["test/offset_share"]})


def mapped(vectors: np.ndarray, layer: MultiHeadAttention) -> list[np.ndarray]:
  """Return queries and keys of nothing but positions [L,F]."""
  inputs = vectors.astype(np.float32)
  return [np.asarray(each(inputs), np.float64) for each in (layer.query, layer.key)]


def main() -> None:
  """Run the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path)
  parser.add_argument("--records", metavar="FILE", type=Path, required=True)
  args = parser.parse_args()
  prepare()
  finished = [run for run in read_runs(args.runs)[0] if run.summary is not None]
  found: list[Run] = []
  for run in finished:
    found += measured(open_trained(run.path))
    share = {each.settings["weights"]: each.score("test/offset_share") for each in found[-3:]}
    print(run.path, *(f"{weights} {value:.3f}" for weights, value in share.items()), flush=True)
  write_records(args.records, found)


if __name__ == "__main__":
  try:
    main()
  except UserError as error:
    sys.exit(f"offset_structure: {error}")
