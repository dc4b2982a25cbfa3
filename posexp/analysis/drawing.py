"""The figures of an encoding and the numbers that they show, as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from posexp.analysis import attention_weights, card, encoding_figures, plotting, probe, wavelengths
from posexp.analysis.probe import ProbeModel, Profile
from posexp.encodings import Encoding
from posexp.errors import writing
from posexp.models.transformer import Stack
from posexp.reporting.text import cell
from posexp.training.restore import TrainedModel

MOST_BATCHES = 8  # of text that attention is looked at on


def saved(figure: Figure, out: Path, name: str, tokens: Sequence[str] = ()) -> list[Path]:
  """Write a figure and the numbers that it shows; return the files."""
  files, table = plotting.save(figure, out, name), out / f"{name}.csv"
  with writing("the folder of figures", out):
    table.write_text(as_csv(figure, tokens), encoding="utf-8")
  return [*files, table]


def as_csv(figure: Figure, tokens: Sequence[str] = ()) -> str:
  """Return the numbers of the lines, bars and heat maps of a figure: panel, series, x, y and value.

  A cell of a heat map has its column as x, its row as y. With `tokens`, two more columns hold the
  token at x and the token at y, where these are positions.
  """
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow(["panel", "series", "x", "y", "value", *["x token", "y token"] * bool(tokens)])
  for number, axes in enumerate(figure.axes):
    panel = cell(axes.get_title()) or number
    named = [each.startswith("position") for each in (axes.get_xlabel(), axes.get_ylabel())]
    for image in axes.images:
      for place, value in np.ma.ndenumerate(image.get_array()):
        at = place[::-1]
        pairs = zip(at, named, strict=True) if tokens else ()
        names = [cell(tokens[i]) if is_position else "" for i, is_position in pairs]
        writer.writerow([panel, "", *at, f"{value:.6g}", *names])
    for bars in axes.containers:
      for bar in bars:
        x = bar.get_x() + bar.get_width() / 2
        writer.writerow([panel, cell(bars.get_label()), f"{x:g}", f"{bar.get_height():.6g}", ""])
    for line in axes.lines:
      if line.get_transform() == axes.transData:  # others guide the eye
        label = str(line.get_label())
        label = "" if label.startswith("_") else cell(label)
        for x, y in zip(*line.get_data(), strict=True):
          writer.writerow([panel, label, f"{x:g}", f"{y:.6g}", ""])
  return out.getvalue()


def draw_vectors(
  name: str,
  encoding: Encoding,
  vectors: np.ndarray,
  tokens: Sequence[str],
  width: int,
  stack: Stack | None,
  trained: TrainedModel | None,
) -> Iterator[tuple[str, Figure]]:
  """Yield figures of the vectors [L,F] of positions, and of their products in a first layer.

  Beside untrained vectors stand those of other widths and bases.
  """
  if np.ptp(vectors, axis=0).max() < 1e-9:  # there are none
    return
  yield "vectors", encoding_figures.vectors(name, vectors, tokens)
  if trained:
    variants = {f"those of the run, d = {width}": {None: vectors}}
  else:
    variants = probe.variants(encoding, width, len(vectors))
  yield "products-by-offset", encoding_figures.products_by_offset(name, variants)
  if stack is not None:
    shares = probe.shares_by_maps(vectors, stack.blocks[0].attention)
    yield "share-of-offset", encoding_figures.shares(name, shares)


def draw_frequencies(
  name: str, embed: nnx.Module, trained: TrainedModel | None
) -> Iterator[tuple[str, Figure]]:
  """Yield a figure of the frequency that training gave each word, where it gave any."""
  frequency = getattr(embed, "frequency", None)
  if trained and isinstance(frequency, nnx.Variable) and len(frequency[...]) > 1:
    table, counts = embed.rate * np.asarray(frequency[...], np.float64), trained.data.word_counts
    yield "frequencies-by-word", encoding_figures.frequencies(name, table, counts)


def draw_attention(
  name: str,
  model: ProbeModel,
  profiles: Mapping[int, Profile],
  trained: TrainedModel | None,
  length: int,
) -> Iterator[tuple[str, Figure]]:
  """Yield figures of attention by offset, for random inputs and on a run's texts."""
  encoding, stack = model
  if turning := wavelengths.spectra(stack):
    layers = zip(encoding.layers(len(stack.blocks)), stack.blocks, strict=True)
    first = next(layer.encoding for layer, block in layers if wavelengths.rotation_of(block))
    trained_length = getattr(first, "trained_length", None)
    yield "wavelengths", encoding_figures.wavelengths(name, first.base, turning, trained_length)
  if any(each.spread >= card.ROUNDING for each in profiles.values()):
    at = -next(iter(profiles.values())).offsets.min()
    # Where offsets are not all that matters, another query would have other logits.
    asked = name if encoding.relative else f"{name}, query at position {at}"
    one = not trained and len(profiles) == 1
    named = {"random weights" if one else f"layer {n}": each for n, each in profiles.items()}
    for layer, profile in named.items():
      ending = "" if one else f"-{layer.replace(' ', '-')}"
      figure = encoding_figures.logits_by_offset(f"{asked}, {layer}", profile, length)
      yield f"logits-by-offset{ending}", figure
    yield "weights-by-offset", encoding_figures.weights_by_offset(asked, named, length)
  if tables := probe.tables(stack):
    yield "rows", encoding_figures.rows(name, tables, getattr(encoding, "k", None))
  if trained:
    batches: dict[int, list] = {}
    for batch in trained.data.texts("validation", trained.snapshot.batch_size):
      batches.setdefault(batch["tokens"].shape[1], []).append(batch)
    width, most = max(batches.items(), key=lambda item: len(item[1]))
    filling = -(-stack.size.memory // width)  # batches until a memory holds all that it can
    read = most[: filling + MOST_BATCHES]
    whole, positions = trained.snapshot.model(), trained.spec.positions
    attention = attention_weights.by_offset(whole, positions, read, MOST_BATCHES)
    drawn = encoding_figures.attention_on_text(name, attention, trained.data.item, stack.causal)
    yield "attention-on-text", drawn
