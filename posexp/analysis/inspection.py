"""An encoding examined: its card and its figures, before training or of a trained run.

The card needs no matplotlib, which is imported once the card is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posexp import config as configuration
from posexp.analysis import card, probe, values, wavelengths, wishes
from posexp.analysis.probe import ProbeModel, Profile
from posexp.config.arguments import keep
from posexp.encodings import Encoding, make_encoding
from posexp.errors import UserError
from posexp.models.backbones import make_size, refusal
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.status import doing
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained

LENGTH = 128  # positions, or offsets to either side, that are looked at unless a number is given
MOST_LAYERS = 6  # that are drawn


def inspect(
  config: dict[str, Any],
  run: Path | None,
  out: Path,
  show: Callable[[list[str]], None],
  positions: int | None = None,
  text: str | None = None,
  whole_card: bool = True,
) -> list[Path]:
  """Show the lines of the card, and return the files of figures and numbers in the folder `out`.

  Both show the first `positions` positions or, if there is a `text`, one position for each of its
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
  state = f"trained (step {trained.snapshot.state.step:,})" if trained else "untrained"
  options = configuration.show_options(config.get(name)) or "none"
  words = first_words(trained) if trained else None
  if isinstance(size, Size):
    model = ProbeModel(encoding, whole.stacks[0]) if trained else probe.untrained(encoding, size)
    first = card.first_layers(encoding, model.stack)
    embed, profiles = model.stack.embed, layer_profiles(model, trained, length, first.values())
    rows = card.rows(model, first, profiles, words)
    rows |= wavelengths.row(wavelengths.spectra(model.stack))
    rows |= granted(model if trained else drawn_again(model), first) if whole_card else {}
    state += ", encoder" if trained and len(whole.stacks) > 1 else ""
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
  stack, title = model and model.stack, f"{name}, {state}"
  keep(encoding=name, card={"options": options} | rows)
  lines = card.lines(name, encoding, {"options": options} | rows, whole=whole_card)
  show(lines + in_numbers(encoding, stack, vectors, labels) if positions or text else lines)
  from posexp.analysis import drawing  # slow to import

  figures = itertools.chain(
    drawing.draw_vectors(title, encoding, vectors, tokens, size.d_model, stack, trained),
    drawing.draw_attention(title, model, profiles, trained, length) if model else (),
    drawing.draw_frequencies(title, embed, trained),
  )
  return [path for name, figure in figures for path in drawing.saved(figure, out, name, tokens)]


def granted(model: ProbeModel, first: Mapping[str, int]) -> dict[str, str]:
  """Return the rows of the three wishes: of each kind of layer, by its first one, or of all layers
  at once where vectors of positions are what is measured.
  """
  every = [*first.items()]
  asked = every[:1] if "input" in model.encoding.acts_in else every
  return card.of_each({name: wishes.rows(model, layer) for name, layer in asked})


def in_numbers(
  encoding: Encoding, stack: Stack | None, vectors: np.ndarray, labels: Sequence[str]
) -> list[str]:
  """Return lines with the vectors [L,F] of positions and the table rows of their pairs, if any."""
  shown = [values.of_pairs(encoding, stack is not None and stack.causal, labels)]
  if "input" in encoding.acts_in:
    shown.insert(0, values.of_positions(vectors, labels[: len(vectors)]))
  lines = [line for each in shown if each for line in ("", *each)]
  few = len(labels) <= values.MOST  # of more positions no numbers are printed
  return lines or ["", "nothing in numbers: no vectors of positions, and no rows of a table"] * few


def first_words(trained: TrainedModel) -> np.ndarray:
  """Return the first words of the longest text of a batch, int [1,L] or [1,L,I]."""
  batch = next(iter(trained.data.texts("validation", trained.snapshot.batch_size)))
  lengths = np.asarray(batch["mask"]).sum(axis=1)
  row = int(lengths.argmax())
  return np.asarray(batch["tokens"])[row : row + 1, : min(int(lengths[row]), card.WORDS)]


def position_vectors(
  encoding: Encoding, embed: Callable[..., Any], length: int, trained: TrainedModel | None
) -> np.ndarray:
  """Return the vectors of positions, of the most frequent word where they depend on words."""
  word = int(trained.data.word_counts.argmax()) if trained else 1
  return probe.position_vectors(embed, probe.available(encoding, length), word)


def layer_profiles(
  model: ProbeModel, trained: TrainedModel | None, length: int, kinds: Iterable[int] = (0,)
) -> dict[int, Profile]:
  """Return profiles by layer: of the first layer of each kind, and of a trained model of more."""
  drawn = model if trained else drawn_again(model)
  more = range(min(model.stack.size.num_layers, MOST_LAYERS)) if trained else ()
  return {layer: probe.profile(drawn, 2 * length, layer) for layer in sorted({*kinds, *more})}


def drawn_again(model: ProbeModel) -> ProbeModel:
  """Return a model with perturbed weights, since tables that start at zero would show nothing."""
  return model._replace(stack=probe.perturbed(model.stack))
