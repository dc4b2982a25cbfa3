"""How figures look and where they are kept: PNG to be seen anywhere, SVG to be enlarged."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from posexp.errors import UNPRINTABLE, printable, writing
from posexp.reporting.palette import COLORS
from posexp.status import doing

MARKERS = {  # of matplotlib, by the names that Vega has for them
  "circle": "o", "square": "s", "diamond": "D", "cross": "P", "triangle-up": "^",
  "triangle-down": "v", "triangle-left": "<", "triangle-right": ">",
}  # fmt: skip
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
  "text.parse_math": False,  # a $ in a name is a dollar, nothing is a formula
  "text.usetex": False,
  "svg.fonttype": "none",  # text stays text
  "svg.hashsalt": "posexp",  # equal figures are equal files
}

matplotlib.rcParams.update(STYLE)  # nothing else draws in these processes
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")  # `fit_fonts` says it in words

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # another weight will do

NOT_PLAIN = "(?i)bold|italic|oblique|color"  # in the name of a font's file


def panels(
  rows: int, columns: int, *, width: float, height: float, title: str, **options: Any
) -> tuple[Figure, np.ndarray]:
  """Return a figure of panels, whose size is in inches, and their axes [rows,columns]."""
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
  """Draw a matrix in colors over `limits`, by default with zero in the middle.

  It has a color bar if it has a label.
  """
  largest = float(np.abs(values).max()) or 1.0
  low, high = limits or (-largest, largest)
  look: dict[str, Any] = {"aspect": aspect, "interpolation": "nearest"}
  image = axes.imshow(values, cmap=cmap, vmin=low, vmax=high, **look)
  axes.grid(False)
  for axis in (axes.xaxis, axes.yaxis):  # no tick between two cells
    axis.set_major_locator(MaxNLocator(integer=True))
  if label:
    axes.figure.colorbar(image, ax=axes, label=label)
  return image


def numbers(axes: Axes, values: np.ndarray, form: str, dark: np.ndarray, size: int = 8) -> None:
  """Write numbers that are not masked into the cells of a heat map, white where it is `dark`."""
  for (row, column), value in np.ma.ndenumerate(values):
    color = "w" if dark[row, column] else "k"
    text = f"{value:{form}}"
    axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)


def band(
  axes: Axes, x: Sequence[float], mean: np.ndarray, low: np.ndarray, high: np.ndarray, **line: Any
) -> None:
  """Draw a line of means with a band around it."""
  axes.fill_between(x, low, high, color=line["color"], alpha=0.17, linewidth=0)
  axes.plot(x, mean, linewidth=1.3, **line)


def line_style(rank: int) -> dict[str, str]:
  """Return the color and the dashes of one line among many."""
  dashes = DASHES[rank // len(COLORS) % len(DASHES)]
  return {"color": COLORS[rank % len(COLORS)], "linestyle": dashes}


def log2_axis(axes: Axes, ticks: Sequence[int]) -> None:
  """Make x logarithmic, with these numbers on it."""
  axes.set_xscale("log", base=2)
  axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45 if len(ticks) > 6 else 0)
  axes.minorticks_off()


def fit_fonts(figure: Figure) -> set[str]:
  """Choose installed fonts for characters that the default font lacks; return those in none."""
  every: list[Text] = figure.findobj(Text)
  for text in every:  # of which an SVG allows no control character
    if UNPRINTABLE.search(text.get_text()):
      text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
  texts = [text for text in every if not text.get_text().isascii()]
  families, missing = _fonts_for(frozenset("".join(text.get_text() for text in texts)))
  for text in texts if families else ():
    text.set_fontfamily([*dict.fromkeys([*text.get_fontfamily(), *families])])
  return missing


@functools.lru_cache
def _fonts_for(characters: frozenset[str]) -> tuple[list[str], set[str]]:
  """Return families that have the characters that the default font lacks, those without serifs
  first, and the characters that no font has.
  """
  default = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
  # A selector of variants changes the character before it, as marks of format do.
  seen = {
    each
    for each in characters
    if not (each.isspace() or "\ufe00" <= each <= "\ufe0f" or unicodedata.category(each) == "Cf")
  }
  left = seen - _had(default, characters)
  families, manager = [], font_manager.fontManager
  files = {*font_manager.findSystemFonts()} if left else set()
  for path in files - {entry.fname for entry in manager.ttflist}:
    with contextlib.suppress(OSError, RuntimeError):  # of a broken file
      manager.addfont(path)  # which was installed after matplotlib had listed them
  for entry in sorted(manager.ttflist, key=lambda entry: ("Sans" not in entry.name, entry.name)):
    if left and entry.fname in files and not re.search(NOT_PLAIN, entry.fname):
      with contextlib.suppress(OSError, RuntimeError):
        font = FT2Font(entry.fname)
        if font.scalable and (more := _had(font, left)):
          families.append(entry.name)
          left -= more
  return families, left


def _had(font: FT2Font, characters: Iterable[str]) -> set[str]:
  """Return the characters that a font has."""
  return {character for character in characters if font.get_char_index(ord(character))}


def drawn(figure: Figure, kind: str, **look: Any) -> bytes:
  """Return the content of a figure's file in a format, without the date, the same every time.

  Texts are in fonts that have them; a note says so where there is none. `look` is of `savefig`.
  """
  missing = fit_fonts(figure)
  if missing and kind != "svg":  # which a browser draws with its own fonts
    _warn_of_boxes(frozenset(missing))
  out, dated = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
  figure.savefig(out, format=kind, dpi=130 if kind == "png" else "figure", metadata=dated, **look)
  figure.set_layout_engine(None)  # the same layout again, without working it out
  return out.getvalue()


@functools.cache  # one warning, however many figures have these characters
def _warn_of_boxes(characters: frozenset[str]) -> None:
  shown = [each if each.isprintable() else f"U+{ord(each):04X}" for each in sorted(characters)[:8]]
  print(
    f"note: no installed font has {' '.join(shown)}: PNG and PDF show boxes; install one, such as "
    "Debian's packages fonts-noto-cjk, fonts-noto-core and fonts-symbola",
    file=sys.stderr,
  )


def save(
  figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
  """Write a figure in several formats; return the paths.

  Raises:
    UserError: the folder cannot be written.
  """
  doing(f"drawing {name}")
  paths = [folder / f"{name}.{kind}" for kind in kinds]
  with writing("the folder of figures", folder):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, path in zip(kinds, paths, strict=True):
      path.unlink(missing_ok=True)  # if it is a link, what it leads to stays
      path.write_bytes(drawn(figure, kind))
  return paths
