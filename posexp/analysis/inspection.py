"""An encoding examined: its card and its figures, before training or of a trained run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from posexp import config as configuration
from posexp.analysis import (
  attention_weights,
  card,
  encoding_figures,
  plotting,
  probe,
  values,
  wavelengths,
  wishes,
)
from posexp.analysis.probe import ProbeModel, Profile
from posexp.config.arguments import keep
from posexp.encodings import Encoding, make_encoding
from posexp.errors import UserError, writing
from posexp.models.backbones import make_size, refusal
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.status import doing
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained

LENGTH = 128  # positions, or offsets to either side, that are looked at unless a number is given
MOST_LAYERS = 6  # that are drawn
MOST_BATCHES = 8  # of text that attention is looked at on


def inspect(
  config: dict[str, Any],
  run: Path | None,
  out: Path,
  positions: int | None = None,
  text: str | None = None,
  whole_card: bool = True,
) -> tuple[list[str], list[Path]]:
  """Return the lines of the card, and the files of figures and numbers in the folder `out`.

  They show the first `positions` positions or, if there is a `text`, one position for each of its
  tokens, which then name the positions.

  Raises:
    UserError: the encoding does not suit the model, the run cannot be opened, or the folder cannot
      be written.
  """
  prepare()
  # Programs run once here, so that it takes longer to optimize them than to run them.
  jax.config.update("jax_disable_most_optimizations", True)
  name, encoding, size = config["encoding"], make_encoding(config), make_size(config)
  labels = values.tokens(text) if text else [*map(str, range(positions or LENGTH))]
  length, trained = len(labels), run and open_trained(run)
  doing("measuring what the figures show")
  whole = trained and trained.snapshot.model()
  step = trained and trained.snapshot.state.step
  title = f"{name}, trained (step {step:,})" if trained else f"{name}, untrained"
  options = configuration.show_options(config.get(name)) or "none"
  words = first_words(trained) if trained else None
  if isinstance(size, Size):
    model = ProbeModel(encoding, whole.stacks[0]) if trained else probe.untrained(encoding, size)
    embed, profiles = model.stack.embed, layer_profiles(model, trained, length)
    rows = card.rows(model, next(iter(profiles.values())), words)
    rows |= wavelengths.row(wavelengths.spectra(model.stack))
    rows |= wishes.rows(model if trained else drawn_again(model)) if whole_card else {}
    title += ", encoder" if trained and len(whole.stacks) > 1 else ""
  else:
    if why := refusal(name, encoding, size):
      raise UserError(why)
    network = whole.network if trained else probe.network(encoding, size)
    embed, model, profiles = network.embed, None, {}
    enters = [part for part in encoding.acts_in if part in ("input", "linear")]
    left_out = f"none in model={size.backbone}, so what acts there is left out"
    rows = {"enters": card.entered(enters), "attention": left_out}
    rows |= card.permuted(network, words)
  vectors = position_vectors(encoding, embed, length, trained)
  tokens = labels[: len(vectors)] if text else []
  stack = model and model.stack
  drawn = [draw_vectors(title, encoding, vectors, tokens, size.d_model, stack, trained)]
  if model:
    drawn.append(draw_attention(title, model, profiles, trained, length))
  keep(encoding=name, card={"options": options} | rows)
  lines = card.lines(name, encoding, {"options": options} | rows, whole=whole_card)
  if positions or text:
    shown = [values.of_pairs(encoding, stack is not None and stack.causal, labels)]
    if "input" in encoding.acts_in:
      shown.insert(0, values.of_positions(vectors, labels[: len(vectors)]))
    lines += [line for each in shown if each for line in ("", *each)]
  figures = itertools.chain(*drawn, draw_frequencies(title, embed, trained))
  return lines, [path for name, figure in figures for path in saved(figure, out, name, tokens)]


def first_words(trained: TrainedModel) -> np.ndarray:
  """Return the first words of the longest text of a batch, int [1,L] or [1,L,I]."""
  batch = next(iter(trained.data.texts("validation", trained.snapshot.batch_size)))
  lengths = np.asarray(batch["mask"]).sum(axis=1)
  row = int(lengths.argmax())
  return np.asarray(batch["tokens"])[row : row + 1, : min(int(lengths[row]), card.WORDS)]


def saved(figure: Figure, out: Path, name: str, tokens: Sequence[str] = ()) -> list[Path]:
  """Write a figure and the numbers that it shows; return the files."""
  files, table = plotting.save(figure, out, name), out / f"{name}.csv"
  with writing("the folder of figures", out):
    table.write_text(values.as_csv(figure, tokens), encoding="utf-8")
  return [*files, table]


def position_vectors(
  encoding: Encoding, embed: Callable[..., Any], length: int, trained: TrainedModel | None
) -> np.ndarray:
  """Return the vectors of positions, of the most frequent word where they depend on words."""
  word = int(trained.data.word_counts.argmax()) if trained else 1
  return probe.position_vectors(embed, probe.available(encoding, length), word)


def layer_profiles(
  model: ProbeModel, trained: TrainedModel | None, length: int
) -> dict[str, Profile]:
  """Return the profile of each layer of a trained model, or of the first layer of another."""
  if trained:
    layers = range(min(model.stack.size.num_layers, MOST_LAYERS))
    return {f"layer {layer}": probe.profile(model, 2 * length, layer) for layer in layers}
  return {"random weights": probe.profile(drawn_again(model), 2 * length)}


def drawn_again(model: ProbeModel) -> ProbeModel:
  """Return a model with perturbed weights, since tables that start at zero would show nothing."""
  return model._replace(stack=probe.perturbed(model.stack))


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
  profiles: Mapping[str, Profile],
  trained: TrainedModel | None,
  length: int,
) -> Iterator[tuple[str, Figure]]:
  """Yield figures of attention by offset, for random inputs and on a run's texts."""
  encoding, stack = model
  if turning := wavelengths.spectra(stack):
    layers = zip(encoding.layers(len(stack.blocks)), stack.blocks, strict=True)
    first = next(layer.encoding for layer, block in layers if wavelengths.rotation_of(block))
    trained_length = getattr(first, "trained_length", None)
    yield "wavelengths", wavelengths.draw(name, first.base, turning, trained_length)
  if any(each.spread >= card.ROUNDING for each in profiles.values()):
    at = -next(iter(profiles.values())).offsets.min()
    # Where offsets are not all that matters, another query would have other logits.
    asked = name if encoding.relative else f"{name}, query at position {at}"
    for layer, profile in profiles.items():
      ending = f"-{layer.replace(' ', '-')}" if trained else ""
      figure = encoding_figures.logits_by_offset(f"{asked}, {layer}", profile, length)
      yield f"logits-by-offset{ending}", figure
    yield "weights-by-offset", encoding_figures.weights_by_offset(asked, profiles, length)
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
