"""Positions of several models in the same figures: of released models, of which nothing else is
read, and of runs.

Shapes: H heads, O offsets, L positions, F model width, R rows.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from posexp.analysis import card, encoding_figures, probe, wavelengths
from posexp.analysis.drawing import saved
from posexp.analysis.inspection import position_vectors
from posexp.analysis.plotting import panels
from posexp.encodings import make_encoding
from posexp.encodings.base import Layer
from posexp.encodings.bias import T5, ALiBi, slopes
from posexp.encodings.disentangled import DeBERTa
from posexp.encodings.rngs import Rngs
from posexp.encodings.rotary import RoPE
from posexp.encodings.rotation import Rotation
from posexp.errors import UserError, counted
from posexp.models.size import Size
from posexp.released import PREFIX
from posexp.released.folder import open_folder
from posexp.released.positions import Positions, positions, width
from posexp.reporting.palette import COLORS, GRAY
from posexp.reporting.text import wrapped
from posexp.status import doing
from posexp.training.devices import prepare
from posexp.training.restore import open_trained

MOST_ROWS = 1024  # of a table that are drawn unless a number is given
MOST_PLANES = 16  # whose wavelengths the card has
LENGTH = 128  # offsets to either side
Lines = tuple[np.ndarray, np.ndarray]  # x [O] and, for each head, values [H,O]


class Shown(NamedTuple):
  """What is shown of one model."""

  name: str
  rows: dict[str, str]  # of its card
  layers: list[Layer]
  reach: int | None  # positions of training, if they are known
  vectors: np.ndarray | None = None  # [L,F], of positions
  offsets: np.ndarray | None = None  # [R,F], vectors of offsets from −R/2 on
  spectra: wavelengths.Spectra = types.MappingProxyType({})
  base: float = 1.0  # of the first rotation
  bias: Mapping[str, Lines] = types.MappingProxyType({})  # by offset (key − query)
  buckets: Mapping[str, Lines] = types.MappingProxyType({})  # by row of the table


def inspect(models: Sequence[str], out: Path, count: int | None) -> tuple[list, list[Path]]:
  """Return the lines of the cards of models, and the files of figures and numbers in `out`.

  Args:
    models: released models by their names, "hf:FOLDER", and folders of runs.
    out: where figures go.
    count: positions, or offsets to either side, that are drawn.

  Raises:
    UserError: a model cannot be opened, or its positions are none that posexp has.
  """
  prepare()
  shown = [
    of_released(name, count) if name.startswith(PREFIX) else of_run(Path(name), count)
    for name in models
  ]
  lines = []
  for each in shown:
    lines += ["", *(wrapped(text, f"{label:<{card.INDENT}}") for label, text in each.rows.items())]
  files = [path for title, figure in figures(shown) for path in saved(figure, out, title)]
  return lines[1:], files


def of_released(name: str, count: int | None) -> Shown:
  """Return the card and the figures of a released model.

  Raises:
    UserError: as `inspect`.
  """
  doing(f"reading the positions of {name}")
  there = positions(open_folder(name))
  encoding = make_encoding(there.encoding)
  layers = [*encoding.layers(there.model["num_layers"])]
  try:
    shown = Shown(name, _about(there, layers), layers, getattr(encoding, "trained_length", None))
    shown = shown._replace(**_turning(layers, width(there.model), there.causal))
  except ValueError as error:
    raise UserError(f"{there.name}: its config.json asks for {error}") from None
  tables, heads = there.tables, there.model["num_heads"]
  length = count or LENGTH
  if isinstance(encoding, T5):
    shown = shown._replace(
      bias={label: _by_bucket(encoding, table, label == "decoder", length)
            for label, table in tables.items()},
      buckets={label: (np.arange(len(table)), table.T) for label, table in tables.items()},
    )  # fmt: skip
  elif isinstance(encoding, ALiBi):
    offsets = np.arange(1 - length, 1)
    shown = shown._replace(bias={"": (offsets, slopes(heads)[:, None] * offsets)})
  elif isinstance(encoding, DeBERTa):
    shown = shown._replace(offsets=tables["shared"])
  elif tables:
    vectors = tables["embed/vector"][: count or MOST_ROWS]
    shown = shown._replace(vectors=vectors, reach=len(tables["embed/vector"]))
  shown.rows.update(_waves(shown.spectra), **_temperature(layers))
  if isinstance(encoding, ALiBi):
    shown.rows["slopes"] = " ".join(f"{slope:.4g}" for slope in slopes(heads))
  shown.rows["read"] = ", ".join(["config.json", *there.read])
  if there.ignored:
    shown.rows["not read"] = ", ".join(there.ignored)
  return shown


def _about(found: Positions, layers: Sequence[Layer]) -> dict[str, str]:
  """Return rows of the card on a model and the positions of its layers."""
  model = Size(**{key: value for key, value in found.model.items() if value is not None})
  kinds: dict[str, list[int]] = {}
  for number, layer in enumerate(layers):
    window = f", window {layer.window:,}" if layer.window else ""
    kinds.setdefault(f"{_described(layer)}{window}", []).append(number)
  parts = [
    label if len(kinds) == 1 else f"{_layers(numbers)}: {label}" for label, numbers in kinds.items()
  ]
  sizes = f"{model.num_layers} layers, d_model {model.d_model:,}, {model.num_heads} heads of width"
  fewer = model.num_kv_heads not in (None, model.num_heads)
  fewer = f", {model.num_kv_heads} of keys and values" if fewer else ""
  return {
    "model": f"{found.name} ({found.family}): {sizes} {width(found.model)}{fewer}",
    "positions": "; ".join(parts),
  }


def _turning(layers: Sequence[Layer], head_dim: int, causal: bool) -> dict[str, Any]:
  """Return the frequencies of the rotations of layers, each kind once, and the first base."""
  kinds: dict[RoPE, list[int]] = {}
  for number, layer in enumerate(layers):
    if isinstance(layer.encoding, RoPE):
      kinds.setdefault(layer.encoding, []).append(number)
  spectra = {}
  for rope, numbers in kinds.items():
    relation = rope.relation(1, head_dim, causal=causal, rngs=Rngs(encoding=0))
    assert isinstance(relation, Rotation)
    place = _layers(numbers) if len(kinds) > 1 else ""
    for label, omega in relation.spectra().items():
      spectra[", ".join(filter(None, [place, label]))] = omega
  first = next(iter(kinds), None)
  if first is None:
    return {}
  lengths = [rope.trained_length for rope in kinds if rope.trained_length]
  return {"spectra": spectra, "base": first.base, "reach": max(lengths, default=None)}


def _temperature(layers: Sequence[Layer]) -> dict[str, str]:
  """Return the factor by which a scaling multiplies logits, if it does."""
  factors = {layer.encoding.radius for layer in layers if isinstance(layer.encoding, RoPE)} - {1.0}
  texts = [f"{each:.6g} on queries and keys, {each**2:.6g} on logits" for each in sorted(factors)]
  return {"temperature": "; ".join(texts)} if texts else {}


def _by_bucket(encoding: T5, table: np.ndarray, causal: bool, length: int) -> Lines:
  """Return the bias of each head [H,O] by offset, of a table [R,H]."""
  offsets = np.arange(1 - length, 1 if causal else length)
  return offsets, table[encoding.rows_of(offsets, causal=causal)].T


def of_run(path: Path, count: int | None) -> Shown:
  """Return the card and the figures of a trained run.

  Raises:
    UserError: it cannot be opened, or it is no Transformer.
  """
  trained = open_trained(path)
  config, size = trained.run.config, trained.spec.size
  name, encoding = config["encoding"], trained.spec.encoding
  if not isinstance(size, Size):
    raise UserError(f"{path}: a run of model={size.backbone} has no layers to stand beside others")
  stack = trained.snapshot.model().stacks[0]
  layers = [*encoding.layers(size.num_layers)]
  model = probe.ProbeModel(encoding, stack)
  rows = {"model": f"{name}, step {trained.snapshot.state.step:,} ({path})"}
  rows |= card.by_layer(encoding, stack) | _waves(spectra := wavelengths.spectra(stack))
  shown = Shown(name, rows, layers, getattr(encoding, "trained_length", None), spectra=spectra)
  ropes = (layer.encoding for layer in layers if hasattr(layer.encoding, "base"))
  shown = shown._replace(base=getattr(next(ropes, None), "base", 1.0))
  if "input" in encoding.acts_in:
    vectors = position_vectors(encoding, stack.embed, count or MOST_ROWS, trained)
    shown = shown._replace(vectors=vectors)
  if "bias" in stack.relation.terms:
    profile = probe.profile(model, count or LENGTH)
    shown = shown._replace(bias={"": (profile.offsets, profile.terms["bias"][0])})
  return shown


def figures(found: Sequence[Shown]) -> Iterator[tuple[str, Figure]]:
  """Yield the figures of models, each kind once: several models stand in it side by side."""
  models = dict(zip(_names([each.name for each in found]), found, strict=True))
  title = ", ".join(models)
  yield "stack", stack(title, models)
  yield from _tables(title, models)
  turning = {name: model for name, model in models.items() if model.spectra}
  if turning:
    spectra = {
      ", ".join(filter(None, [name] * (len(models) > 1) + [label])): omega
      for name, each in turning.items()
      for label, omega in each.spectra.items()
    }
    first = next(iter(turning.values()))
    reach = first.reach if len(turning) == 1 else None
    yield "wavelengths", encoding_figures.wavelengths(title, first.base, spectra, reach)
  for part, file, xlabel, what in (
    ("bias", "bias-by-offset", "offset (key − query)", "bias by offset, which is added to logits"),
    ("buckets", "bias-by-bucket", "bucket", "bias by bucket of offsets"),
  ):
    lines = {
      ", ".join(filter(None, [name, label])): (*each, None)
      for name, model in models.items()
      for label, each in getattr(model, part).items()
    }
    if lines:
      yield file, encoding_figures.by_head(f"{title}: {what}", lines, xlabel, "bias")


def _tables(title: str, models: Mapping[str, Shown]) -> Iterator[tuple[str, Figure]]:
  """Yield the figures of tables of positions, and of offsets."""
  vectors = {name: model.vectors for name, model in models.items() if model.vectors is not None}
  offsets = {name: model.offsets for name, model in models.items() if model.offsets is not None}
  for name, table in (vectors | offsets).items():
    ending = f"-{_file(name)}" if len(vectors | offsets) > 1 else ""
    yield f"vectors{ending}", encoding_figures.vectors(name, table)
  if vectors:
    variants = {name: {None: vector} for name, vector in vectors.items()}
    yield "products-by-offset", encoding_figures.products_by_offset(title, variants)
    yield "rows", encoding_figures.rows(title, vectors, None)
  if offsets:
    lines = {}
    for name, table in offsets.items():
      places = np.arange(len(table)) - len(table) // 2
      lines[name] = places, np.linalg.norm(table, axis=1)[None], None
    text = f"{title}: length of each row of the table of offsets"
    xlabel = "row, counted from that of offset 0 (query − key; far ones share rows)"
    yield "rows-of-offsets", encoding_figures.by_head(text, lines, xlabel, "length of the vector")


def stack(title: str, models: dict[str, Shown]) -> Figure:
  """Draw each layer of models as a bar as long as it sees, in a color for each kind of positions.

  A layer without a window sees all, which is the whole width.
  """
  kinds = [_described(layer) for model in models.values() for layer in model.layers]
  plain = [kind for kind in dict.fromkeys(kinds) if kind != "none"]
  colors = {kind: COLORS[i % len(COLORS)] for i, kind in enumerate(plain)} | {"none": GRAY}
  most = max(len(model.layers) for model in models.values())
  text = f"{title}: positions of each layer, and how many tokens it sees back"
  height = min(max(0.16 * most, 1.6), 12.0)
  figure, axes = panels(1, len(models), width=3.6, height=height, title=text, sharey=True)
  for each, (name, model) in zip(axes[0], models.items(), strict=True):
    windows = [layer.window or layer.chunk for layer in model.layers]
    end = 4 * max(filter(None, windows), default=model.reach or 1024)
    for number, (layer, window) in enumerate(zip(model.layers, windows, strict=True)):
      each.barh(
        number, (window or end) - 0.8, left=0.8, height=0.8, color=colors[_described(layer)]
      )
    each.set_xscale("log", base=2)
    ticks = sorted({1, *filter(None, windows)})
    each.set_xticks([*ticks, end], [*(f"{tick:,}" for tick in ticks), "all"])
    each.minorticks_off()
    each.grid(False)
    each.set(title=name, xlabel="tokens", xlim=(0.8, end))
  axes[0][0].set(ylabel="layer", ylim=(most - 0.5, -0.5))
  axes[0][0].yaxis.get_major_locator().set_params(integer=True)
  handles = [Patch(color=colors[kind], label=kind) for kind in dict.fromkeys(kinds)]
  figure.legend(handles=handles, loc="outside lower left", ncols=1)
  return figure


def _described(layer: Layer) -> str:
  """Return an encoding with its options, of which long lists are counted."""
  return re.sub(
    r"\[[^]]{40,}\]",
    lambda found: f"[{counted(found[0].count(',') + 1, 'number')}]",
    card.described(layer.encoding),
  )


def _layers(numbers: list[int]) -> str:
  return f"layer{'s' * (len(numbers) > 1)} {card.ranges(numbers)}"


def _waves(spectra: wavelengths.Spectra) -> dict[str, str]:
  """Return a row of the card: the wavelengths of all planes, or the shortest and the longest."""
  if max((omega.shape[1] for omega in spectra.values()), default=0) <= MOST_PLANES:
    return wavelengths.row(spectra)
  lines = []
  for label, omega in spectra.items():
    planes = wavelengths.shown(omega[0])
    lines.append(f"{label}{': ' * bool(label)}{planes[0]} to {planes[-1]} in {len(planes)} planes")
  return {"wavelengths": f"{'; '.join(lines)}, in positions a turn"}


def _names(given: Sequence[str]) -> list[str]:
  """Return a short name of each model: the last part of its own, with a number if it is there."""
  short = [each.rstrip("/").rpartition("/")[2].removeprefix(PREFIX) for each in given]
  return [
    f"{name} ({number})" if short.count(name) > 1 else name
    for number, name in enumerate(short, start=1)
  ]


def _file(name: str) -> str:
  return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)
