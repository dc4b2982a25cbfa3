"""How figures look and where they are kept: PNG to be seen anywhere, SVG to be enlarged."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from posexp.errors import UserError

# Okabe & Ito's colors, told apart by all readers, and two more for those who see them; gray is for
# what things are compared with.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#D55E00", "#6A3D9A", "#8C564B")
GRAY = "#888888"
STYLE = {
  "font.size": 9,
  "axes.titlesize": 9,
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


def panels(rows: int, columns: int, *, width: float, height: float, title: str, **options):
  """A figure of rows × columns panels of so many inches each: (figure, axes [rows,columns])."""
  size = (max(width * columns + 0.6, 5.0), height * rows + 0.9)
  figure = Figure(figsize=size, layout="constrained")
  FigureCanvasAgg(figure)
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
  numbers: str = "",
  **options,
) -> AxesImage:
  """Draws a matrix in colors, with a bar of them if it has a label.

  Colors range over `limits`; None puts zero in the middle. `numbers` is the format of the values,
  which are written into their cells if it is given.
  """
  reach = float(np.nanmax(np.abs(values), initial=0)) or 1.0
  low, high = limits or (-reach, reach)
  options = {"aspect": "auto", "interpolation": "nearest"} | options
  image = axes.imshow(values, cmap=cmap, vmin=low, vmax=high, **options)
  axes.grid(False)
  if label:
    axes.figure.colorbar(image, ax=axes, label=label)
  for (row, column), value in np.ndenumerate(values) if numbers else ():
    if np.isfinite(value):
      color, text = "w" if abs(value) > 0.6 * high else "k", format(value, numbers)
      axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
  return image


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
  """Writes a figure as PNG and as SVG; returns their paths.

  Raises:
    UserError: the folder cannot be written.
  """
  paths = [folder / f"{name}.png", folder / f"{name}.svg"]
  try:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(paths[0], dpi=130)
    figure.set_layout_engine("none")  # the same layout again, without working it out
    figure.savefig(paths[1], metadata={"Date": None})
  except OSError as error:
    raise UserError(f"{folder}: figures cannot be written there: {error.strerror}") from error
  return paths
