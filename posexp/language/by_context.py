"""The reach of a trained language model: the loss of the same targets by their context."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from posexp import storage
from posexp.analysis import plotting
from posexp.analysis.plotting import band, line_style, log2_axis, panels
from posexp.errors import near
from posexp.language import windows
from posexp.reporting.palette import GRAY
from posexp.reporting.significance import estimate
from posexp.reporting.text import tabulated, wrapped
from posexp.runs.context_losses import (
  BEFORE,
  EXCESS,
  ContextLosses,
  bits_per_byte,
  write_context_losses,
)
from posexp.training.restore import TrainedModel, with_options


class Curve(NamedTuple):
  """The losses of one model on the same N targets, with each context that it can read."""

  name: str  # "memory 128" or "no memory"
  nats: dict[int, np.ndarray]  # by context, float64 [N]
  bytes: np.ndarray  # int [N]: the bytes of each target
  refused: dict[int, str]  # by context, why the model cannot read it
  blocks: int  # the number of equal runs of neighboring targets; N if they are drawn apart

  def mean(self, context: int) -> float:
    return float(self.nats[context].mean())

  def half(self, values: np.ndarray) -> float:
    """Return half the width of the 95 % t interval of the mean of values [N], which takes the means
    of blocks as draws; NaN if there is only one block.
    """
    of_blocks = estimate(values.reshape(self.blocks, -1).mean(1))
    return math.nan if of_blocks.sd is None else of_blocks.half or 0.0

  def gain(self, context: int, before: int) -> tuple[float, float]:
    """Return the drop of the loss per doubling of the context, and half its interval."""
    values = (self.nats[before] - self.nats[context]) / math.log2(context / before)
    return float(values.mean()), self.half(values)

  def bands(self) -> dict[int, float]:
    """Return half-intervals of means, without shared variation (Cousineau 2005, Morey 2008)."""
    count = len(self.nats)
    shared = np.mean([*self.nats.values()], axis=0) if count > 1 else 0.0
    factor = math.sqrt(count / max(1, count - 1))
    return {context: factor * self.half(each - shared) for context, each in self.nats.items()}


def up_to(beyond: int, trained: int) -> list[int]:
  """Return contexts from 16 tokens to `beyond` segments of `trained` tokens: a doubling apart up to
  a segment, and half a doubling beyond it.
  """
  short = [trained >> power for power in range(1, 32) if trained >> power > BEFORE]
  steps = range(2 * math.ceil(math.log2(beyond)) + 1)
  long = [round(trained * 2 ** (step / 2)) for step in steps]
  return sorted(
    {BEFORE, *short, *(length for length in long if length < beyond * trained), beyond * trained}
  )


def sampled(
  trained: TrainedModel, split: str, contexts: Sequence[int], positions: int | None, *, rows: bool
) -> tuple[ContextLosses, Curve]:
  """Return losses of targets drawn at random, by the number of tokens read before them.

  With `rows`, targets are drawn in rows of neighbors, which takes less time, but their contexts are
  only nearly as long as asked for. Otherwise each target is read by itself, with exact contexts.

  Raises:
    UserError: the split is too short for the longest context.
  """
  snapshot, stream = trained.snapshot, trained.data.streams[split]
  given = snapshot, stream, trained.data.vocabulary.bytes_of, contexts
  sample = windows.by_context(*given, positions, windows.ROW if rows else 1)
  nats = {context: each.astype(np.float64) for context, each in sample.nats.items()}
  blocks = len(sample.place) // (windows.ROW if rows else 1)
  reasons = {context: windows.refused(snapshot, stream, context) for context in sorted(contexts)}
  refused = {context: why for context, why in reasons.items() if why}
  memory = trained.spec.size.memory
  name = f"memory {memory}" if memory else "no memory"
  return sample, Curve(name, nats, sample.bytes, refused, blocks)


def beyond_training(found: Mapping[str, float], longest: int) -> str:
  """Return how a model holds on beyond its training length, from the scores of `ContextLosses` with
  up to `longest` tokens; "" where it has not read more than in training.
  """
  if "context/slope" not in found:
    return ""
  end = found["context/holds_to"]
  held = f"from {end:,.0f} tokens on" if end < longest else f"nowhere up to {longest:,} tokens"
  return (
    f"beyond the training length the loss changes by {found['context/slope']:+.4f} nats per "
    f"doubling; it exceeds its minimum by {EXCESS} nats {held}"
  )


def table(curves: Sequence[Curve]) -> str:
  """Format a row for each context of each curve."""
  rows: list[list[str]] = []
  for curve in curves:
    for before, context in itertools.pairwise([None, *curve.nats]):
      nats = curve.nats[context]
      loss, bits = _pm(curve.mean(context), curve.half(nats)), bits_per_byte(nats, curve.bytes)
      gain = "" if before is None else _pm(*curve.gain(context, before), "+")
      rows.append([curve.name, f"{context:,}", loss, f"{bits:.4f}", gain])
    rows += [[curve.name, f"{each:,}", "n/a", "", why] for each, why in curve.refused.items()]
  heads = ["", "context", "loss (nats)", "bits per byte", "gain of a doubling"]
  return tabulated((heads, rows), "plain")


def _pm(value: float, half: float, sign: str = "") -> str:
  return f"{value:{sign}.4f} ± {half:.4f}" if math.isfinite(half) else f"{value:{sign}.4f}"


def measure(args: argparse.Namespace, trained: TrainedModel) -> None:
  """Carry out `posexp.context`: print tables of a run and draw a figure.

  Losses with exact contexts are kept in the run's folder, for the report and for RECL.

  Raises:
    UserError: a split is too short, or the memory is refused.
  """
  lengths = args.at or up_to(args.beyond, trained.data.length)
  models = [with_options(trained, {"model.memory": each}) for each in args.memory or ()]
  curves, said = [], []
  for model in models or [trained]:
    sample, curve = sampled(model, args.split, lengths, args.positions, rows=bool(args.beyond))
    curves.append(curve)
    scores = sample.scores(trained.data.length)
    if held := beyond_training(scores, max(curve.nats, default=0)):
      said.append(wrapped(f"{curve.name}: {held}"))
    if sample.nats:
      write_context_losses(trained.run.path, _file(args, model), sample)
  title = _title(trained, args, len(curves[0].bytes))
  lines = "\n".join(map(wrapped, title.split("\n")))
  print(lines, table(curves), *said, sep="\n\n")
  if drawn := [curve for curve in curves if curve.nats]:
    segment, memory = trained.data.length, trained.run.config["model"]["memory"]
    marks = sorted({segment, segment + memory})  # the spans of attention in training
    folder = storage.unlinked(trained.run.path / "figures")
    files = plotting.save(figure(title, drawn, marks), folder, f"context-{_file(args, trained)}")
    print("", *map(near, files), sep="\n")


def _file(args: argparse.Namespace, model: TrainedModel) -> str:
  """Return the name of a kept file: the split, and options that differ from training."""
  options = [word.replace("/", " ") for word in args.options]
  if model.spec.size.memory != model.run.config["model"]["memory"]:
    options.append(f"model.memory={model.spec.size.memory}")
  return ",".join(dict.fromkeys([args.split, *options]))


def _title(trained: TrainedModel, args: argparse.Namespace, targets: int) -> str:
  name, memory = trained.run.config["encoding"], trained.run.config["model"]["memory"]
  by = f"trained on segments of {trained.data.length:,} tokens"
  by += f" with a memory of {memory:,}" if memory else ""
  by += "".join(f", {option}" for option in args.options)
  what = f"{targets:,} targets of {args.split} drawn at random, the same with each context"
  rows = f"rows of {windows.ROW} targets" if args.beyond else "targets"
  step = int(trained.snapshot.state.step)
  return f"{name}, step {step:,}, {by}\n{what}; 95 % intervals over {rows}, of gains in pairs"


def figure(title: str, curves: Sequence[Curve], trained_on: Sequence[int]) -> Figure:
  """Draw the loss by context, a line for each curve.

  Bands leave out the spread that all contexts share. Dotted lines mark the lengths `trained_on`.
  """
  drawing, ((axes,),) = panels(1, 1, width=5.0, height=3.4, title=title)
  for rank, curve in enumerate(curves):
    contexts, halves = [*curve.nats], curve.bands()
    mean = np.array([curve.mean(context) for context in contexts])
    half = np.nan_to_num([halves[context] for context in contexts])
    look = line_style(rank) | {"marker": "o", "markersize": 3, "label": curve.name}
    band(axes, np.array(contexts), mean, mean - half, mean + half, **look)
  log2_axis(axes, sorted({context for curve in curves for context in curve.nats}))
  axes.set(xlabel="tokens before the target", ylabel="loss (nats per token)")
  for length in trained_on:
    axes.axvline(length, color=GRAY, linestyle=":", linewidth=1)
  axes.plot([], [], ":", color=GRAY, label="trained on")
  axes.legend()
  return drawing
