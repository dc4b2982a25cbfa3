"""An encoding examined: its card and its figures, before training or of a trained run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from posexp import config as configuration
from posexp import plotting
from posexp.analysis import attention, card, figures, probe
from posexp.analysis.probe import ProbeModel, Profile
from posexp.encodings import Encoding, make_encoding
from posexp.encodings.base import TokenEmbedding
from posexp.errors import UserError
from posexp.models.classifier import ClassifierSpec
from posexp.models.transformer import Size
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained

# Of the texts for which costs are counted, where there is no run.
VOCABULARY, LENGTH = 10_000, 64
MOST_LAYERS = 6  # that are drawn
MOST_BATCHES = 8  # of text that attention is looked at on


def inspect(
  config: dict[str, Any], run: Path | None, out: Path, length: int
) -> tuple[list[str], list[Path]]:
  """The lines of the card, and the files of the figures.

  `length` positions are looked at, or offsets to either side.

  Raises:
    UserError: the encoding does not suit the model, the run cannot be opened, or the folder `out`
      cannot be written.
  """
  prepare()
  # Programs run once here, so that it takes longer to optimize them than to run them.
  jax.config.update("jax_disable_most_optimizations", True)
  name = config["encoding"]
  encoding = make_encoding(config)
  trained = run and open_trained(run)
  if trained:
    model = ProbeModel(encoding, trained.model().stacks[0])
    spec, tokens = trained.spec, trained.data.length
  else:
    size = configuration.build(Size, config["model"], "model")
    model = untrained(encoding, size)
    spec, tokens = ClassifierSpec(VOCABULARY, 2, encoding, size), LENGTH
  profiles = layer_profiles(model, 2 * length, trained)
  options = ", ".join(f"{k}={configuration.show(v)}" for k, v in (config.get(name) or {}).items())
  rows = card.rows(model, next(iter(profiles.values())), spec, tokens, options)
  drawn = draw(name, model, profiles, length, trained)
  files = [path for title, figure in drawn for path in plotting.save(figure, out, title)]
  return card.lines(name, encoding, rows), files


def untrained(encoding: Encoding, size: Size) -> ProbeModel:
  """An untrained encoder, or a decoder where the encoding has no encoder.

  Raises:
    UserError: there is neither.
  """
  refusals = [probe.refusal(encoding, size, causal) for causal in (False, True)]
  if all(refusals):
    raise UserError(f"model: {refusals[0]}")
  return probe.untrained(encoding, size, causal=refusals[0] is not None)


def layer_profiles(
  model: ProbeModel, length: int, trained: TrainedModel | None
) -> dict[str, Profile]:
  """Profiles of a trained model's layers, or of the first layer of one that is not trained."""
  if trained:
    layers = range(min(model.stack.size.num_layers, MOST_LAYERS))
    return {f"layer {layer}": probe.profile(model, length, layer) for layer in layers}
  found = probe.profile(model, length)
  changed = card.parts(model.encoding, model.stack.size, model.stack.causal)
  if found.spread < card.ROUNDING and "relation" in changed:
    # Its tables start at zero: only with other weights they show what they can do.
    drawn = model._replace(stack=probe.perturbed(model.stack))
    return {"weights drawn": probe.profile(drawn, length)}
  return {"before training": found}


def draw(
  name: str,
  model: ProbeModel,
  profiles: Mapping[str, Profile],
  length: int,
  trained: TrainedModel | None,
) -> Iterator[tuple[str, Figure]]:
  """All figures that there are for an encoding, by name."""
  encoding, stack = model
  when = "after training" if trained else "before training"
  word = int(trained.data.word_counts.argmax()) if trained else 1
  vectors = probe.position_vectors(stack.embed, probe.available(encoding, length), word)
  if np.ptp(vectors, axis=0).max() > 1e-9:
    yield from of_vectors(name, model, vectors, when)
  if any(each.spread >= card.ROUNDING for each in profiles.values()):
    first = next(iter(profiles.values()))
    # Where offsets are not all that matters, another query would have other logits.
    asked = name if encoding.relative else f"{name}, query at position {-first.offsets.min()}"
    yield "logits-by-offset", figures.logits_by_offset(asked, profiles, length)
    yield "weights-by-offset", figures.weights_by_offset(asked, profiles, length)
    for layer, profile in profiles.items() if len(first.terms) > 1 else ():
      ending, where = (f"-{layer.replace(' ', '-')}", f", {layer}") if trained else ("", "")
      figure = figures.terms_by_offset(asked, profile, length, where)
      yield f"terms-by-offset{ending}", figure
  if tables := probe.tables(stack):
    yield "rows", figures.rows(name, tables, when)
  if trained:
    yield from of_run(name, stack, trained)


def of_vectors(
  name: str, model: ProbeModel, vectors: np.ndarray, when: str
) -> Iterator[tuple[str, Figure]]:
  """What there is to see of an encoding that gives each position a vector."""
  stack = model.stack
  apart = any(isinstance(each, TokenEmbedding) for _, each in nnx.iter_modules(stack.embed))
  of = f"{'' if apart else ' with one word'}, {when}"
  yield "vectors", figures.vectors(name, vectors, of)
  yield "gram", figures.gram(name, vectors)
  variants = probe.variants(model, len(vectors))
  yield "products-by-offset", figures.products_by_offset(name, variants)
  maps = None
  if when == "after training":
    attends, inputs = stack.blocks[0].attention, vectors.astype(np.float32)
    maps = tuple(np.asarray(f(inputs), np.float64) for f in (attends.query, attends.key))
  shares = probe.shares_by_maps(vectors, stack.size.num_heads, maps)
  yield "share-of-offset", figures.shares(name, shares)


def of_run(name: str, stack: Any, trained: TrainedModel) -> Iterator[tuple[str, Figure]]:
  """What only a trained model can show."""
  batches: dict[int, list] = {}
  for batch in trained.data.texts("validation", trained.snapshot.batch_size):
    batches.setdefault(batch["tokens"].shape[1], []).append(batch)
  most = max(batches.values(), key=len)[:MOST_BATCHES]
  found = attention.by_offset(stack, trained.spec.positions, most)
  yield "attention-on-text", figures.attention_on_text(name, found)
  frequency = getattr(stack.embed, "frequency", None)
  if isinstance(frequency, nnx.Variable) and len(frequency[...]) > 1:
    table = np.asarray(frequency[...], np.float64)
    yield "frequencies-by-word", figures.frequencies(name, table, trained.data.word_counts)
