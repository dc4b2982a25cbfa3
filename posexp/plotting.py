"""How figures look and where they are kept: PNG to be seen anywhere, SVG to be enlarged."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from posexp.errors import WAYS_OUT, UserError

# Okabe and Ito's colors, told apart by all readers, and two more; gray is for what things are
# compared with.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#D55E00", "#6A3D9A", "#8C564B")
GRAY = "#888888"
DASHES = ("-", "--", ":")
STYLE = {
  "font.size": 9,
  "axes.titlesize": 9,
  "figure.labelsize": 9,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "grid.color": "#e5e5e5",
  "grid.linewidth": 0.6,
  "legend.frameon": False,
  "svg.fonttype": "none",  # text stays text
  "svg.hashsalt": "posexp",  # equal figures are equal files
}

matplotlib.rcParams.update(STYLE)  # nothing else draws in these processes
# The font may lack a script, which a browser shows in the SVG all the same.
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")


def panels(
  rows: int, columns: int, *, width: float, height: float, title: str, **options: Any
) -> tuple[Figure, np.ndarray]:
  """A figure of rows × columns panels of so many inches each, and their axes [rows,columns]."""
  size = (max(width * columns + 0.6, 5.0), height * rows + 0.9)
  figure = Figure(figsize=size, layout="constrained")
  axes = figure.subplots(rows, columns, squeeze=False, **options)
  room = int(13 * size[0])  # letters in a line
  title = "\n".join(part for line in title.split("\n") for part in textwrap.wrap(line, room))
  figure.suptitle(title, fontsize=10, x=0.02, ha="left")
  return figure, axes


def heat(
  axes: Axes,
  values: np.ndarray,
  *,
  cmap: str = "RdBu_r",
  limits: tuple[float, float] | None = None,
  label: str = "",
  aspect: str = "auto",
) -> AxesImage:
  """Draws a matrix in colors over `limits`, by default with zero in the middle.

  It has a color bar if it has a label.
  """
  largest = float(np.abs(values).max()) or 1.0
  low, high = limits or (-largest, largest)
  image = axes.imshow(
    values, cmap=cmap, vmin=low, vmax=high, aspect=aspect, interpolation="nearest"
  )
  axes.grid(False)
  if label:
    axes.figure.colorbar(image, ax=axes, label=label)
  return image


def numbers(axes: Axes, values: np.ndarray, form: str, dark: np.ndarray, size: int = 8) -> None:
  """Writes numbers that are not masked into the cells of a heat map, white where it is `dark`."""
  for (row, column), value in np.ma.ndenumerate(values):
    look = {"color": "w" if dark[row, column] else "k", "fontsize": size}
    axes.text(column, row, f"{value:{form}}", ha="center", va="center", **look)


def line_style(rank: int) -> dict[str, str]:
  """The color and the dashes of one line among many."""
  dashes = DASHES[rank // len(COLORS) % len(DASHES)]
  return {"color": COLORS[rank % len(COLORS)], "linestyle": dashes}


def log2_axis(axes: Axes, ticks: Sequence[int]) -> None:
  """Makes x logarithmic, with these numbers on it."""
  axes.set_xscale("log", base=2)
  axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45 if len(ticks) > 6 else 0)
  axes.minorticks_off()


def save(
  figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
  """Writes a figure in several formats; returns the paths.

  Raises:
    UserError: the folder cannot be written.
  """
  paths = [folder / f"{name}.{kind}" for kind in kinds]
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
      path.unlink(missing_ok=True)  # if it is a link, what it leads to stays
    for kind, path in zip(kinds, paths, strict=True):
      dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
      figure.savefig(path, dpi=130 if kind == "png" else "figure", metadata=dated)
      figure.set_layout_engine("none")  # the same layout again, without working it out
  except OSError as error:
    way_out = WAYS_OUT.get(error.errno, "choose another place")
    raise UserError(
      f"{folder}: figures cannot be written there: {error.strerror}; {way_out}"
    ) from error
  return paths
