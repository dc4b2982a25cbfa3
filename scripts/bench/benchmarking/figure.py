"""Cost against length, drawn."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarking.cases import PASSES
from benchmarking.rows import Row
from posexp.analysis.plotting import MARKERS, panels

DASHES = ("-", "--", ":", "-.")
QUANTITIES = {
  "microseconds": "µs of a token",
  "ratio": "",
  "temporaries_mib": "temporaries, MiB",
}


def cost(rows: Sequence[Row], device: str) -> Figure | None:
  """Return a row of panels for each pass and width, a line for each label; None for one length.

  Each encoding has its color and its marker, and each way of computing it a dash.
  """
  groups: dict[tuple, dict[str, list[Row]]] = {}
  for row in rows:
    if row["pass"] not in ("seeds", "start"):
      key = (row["pass"], row["model"], row["dtype"], row["d_model"])
      groups.setdefault(key, {}).setdefault(row["label"], []).append(row)
  groups = {
    key: lines
    for key, lines in groups.items()
    if len({row["length"] for line in lines.values() for row in line}) > 1
  }
  if not groups:
    return None
  from posexp.reporting.vega import looks  # whose pandas starts threads: see `posexp.machine`

  figure, axes = panels(
    len(groups),
    len(QUANTITIES),
    width=3.6,
    height=3.0,
    title=f"Cost against length on {device}",
  )
  for (key, lines), across in zip(groups.items(), axes, strict=True):
    work, model, dtype, d_model = key
    kinds = [(line[0]["encoding"], line[0]["options"]) for line in lines.values()]
    ways = [(line[0]["attention"], line[0]["by"]) for line in lines.values()]
    encodings, several = list(dict.fromkeys(kinds)), list(dict.fromkeys(ways))
    drawn = looks([name for name, _ in encodings])
    for kind, way, (label, found) in zip(kinds, ways, lines.items(), strict=True):
      look = drawn[encodings.index(kind)]
      found = sorted(found, key=lambda row: row["length"])
      for each, name in zip(across, QUANTITIES, strict=True):
        points = [(row["length"], of(row, name)) for row in found if of(row, name) is not None]
        if points:
          each.plot(
            *zip(*points, strict=True),
            color=look.color,
            marker=MARKERS[look.shape],
            linestyle=DASHES[several.index(way) % len(DASHES)],
            markersize=3.5,
            linewidth=1.2,
            label=label,
          )
    lengths = sorted({row["length"] for line in lines.values() for row in line})
    for each, (name, text) in zip(across, QUANTITIES.items(), strict=True):
      each.set_xscale("log", base=2)
      each.set_xticks(lengths, [str(length) for length in lengths])
      each.minorticks_off()
      if name != "ratio":
        each.set_yscale("log")
        each.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        each.yaxis.set_major_formatter("{x:g}")
        each.yaxis.set_minor_formatter("")
      each.set_xlabel("tokens in a sequence")
      each.set_ylabel(text)
    across[1].set_ylabel(f"× {next(iter(lines.values()))[0]['against']}")
    across[0].set_title(f"{PASSES[work]}\n{model}, d_model {d_model}, {dtype}", loc="left")
    across[-1].legend(fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
  return figure


def of(row: Row, name: str) -> float | None:
  """Return a quantity of a row."""
  return 1e6 / row["tokens_per_s"] if name == "microseconds" else row[name]
