"""Figures of an encoding and of attention: each function draws one, from arrays.

Shapes: N draws, H heads, O offsets, L positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from posexp.analysis.attention_weights import AttentionByOffset
from posexp.analysis.plotting import band, heat, line_style, panels
from posexp.analysis.probe import Profile, Shares, inner_products, relative_to_zero
from posexp.analysis.wavelengths import Spectra
from posexp.encodings import sinusoids
from posexp.reporting.palette import BLUE, COLORS, GRAY, ORANGE

MOST_NAMES = 32  # of tokens on one axis
FAR = 32  # tokens, up to which attention to either side is drawn


def vectors(name: str, found: np.ndarray, tokens: Sequence[str] = ()) -> Figure:
  """Draw the vectors [L,F] of positions, and the inner products of all pairs of them.

  The axes name the tokens of a text, if the positions are those of one.
  """
  title = f"{name}: vectors p of positions, and their inner products"
  figure, ((left, right),) = panels(1, 2, width=5.2, height=3.6, title=title)
  products = found @ found.T
  heat(left, found, label="value")
  limits = products.min(), products.max()
  heat(right, products, label="pᵢ · pⱼ", cmap="viridis", limits=limits, aspect="equal")
  left.set(xlabel="channel", ylabel="position")
  right.set(xlabel="position j", ylabel="position i")
  every = -(-len(tokens) // MOST_NAMES)
  for axis in (left.yaxis, right.yaxis, right.xaxis) if tokens else ():
    axis.set_ticks(range(0, len(tokens), every), tokens[::every], fontsize=8)
  if max(map(len, tokens), default=0) > 1:
    right.tick_params(axis="x", rotation=90)
  return figure


def products_by_offset(
  name: str, variants: Mapping[str, Mapping[str | None, np.ndarray]]
) -> Figure:
  """Draw inner products by offset: a panel for each option that is varied, by its title."""
  title = (
    f"{name}: inner product of two positions' vectors by their offset\n"
    "mean over positions, band from the 10th to the 90th percent; 1 is a vector with itself"
  )
  figure, axes = panels(1, len(variants), width=4.4, height=3.2, sharey=True, title=title)
  for each, (varied, members) in zip(axes[0], variants.items(), strict=True):
    for (label, member), color in zip(members.items(), COLORS, strict=False):
      mean, low, high = inner_products(member)
      band(each, np.arange(len(mean)), mean, low, high, color=color, label=label)
    each.set(xlabel="offset", title=varied)
    if None not in members:
      each.legend()
  axes[0][0].set_ylabel("pᵢ · pⱼ / mean |p|²")
  return figure


def shares(name: str, found: Mapping[str, Shares]) -> Figure:
  """Draw how much of the logits of positions among themselves depends on the offset alone."""
  title = f"{name}: what j − i alone explains of the variance of (pᵢ W_Q) · (pⱼ W_K)"
  figure, ((axes,),) = panels(1, 1, width=6.2, height=3.3, title=title)
  places = np.arange(len(found))
  whole = [share.whole for share in found.values()]
  axes.bar(places - 0.2, whole, 0.3, color=ORANGE, label="all heads")
  for place, value in zip(places, whole, strict=True):
    if np.isfinite(value):
      axes.text(place - 0.2, value + 0.02, f"{value:.2f}", ha="center", va="bottom", fontsize=8)
  for head in zip(*(share.heads for share in found.values()), strict=True):
    axes.plot(places + 0.2, head, "o", color=BLUE, alpha=0.6, markersize=4.5, clip_on=False)
  axes.plot([], [], "o", color=BLUE, label="each head")
  axes.set_xticks(places, list(found))
  axes.set(ylim=(0, 1.12), ylabel="share explained by the offset")
  axes.grid(False, axis="x")
  axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def wavelengths(name: str, base: float, found: Spectra, trained_length: int | None) -> Figure:
  """Draw the wavelength of each plane, and its ratio to 2π base^(2t/r)."""
  widest = max(omega.shape[1] for omega in found.values())
  title = f"{name}: positions that a turn takes in each plane that turns"
  figure, ((left, right),) = panels(1, 2, width=4.6, height=3.4, title=title)
  of_base = 2 * np.pi / sinusoids.frequencies(2 * widest, base)
  left.plot(np.arange(widest), of_base, ":", color=GRAY, label=f"base = {base:g}")
  for (label, omega), color in zip(found.items(), COLORS * len(found), strict=False):
    planes = omega.shape[1]
    plain, x = sinusoids.frequencies(2 * planes, base), np.arange(planes)
    for head, each in enumerate(np.where(omega > 0, omega, np.nan)):
      style = {"color": color, "linewidth": 1.3, "marker": ".", "markersize": 4}
      left.plot(x, 2 * np.pi / each, **style, label=(label or "effective") if not head else None)
      right.plot(x, plain / each, **style)
  if trained_length:
    left.axhline(trained_length, color=BLUE, linewidth=0.8, alpha=0.5, label="trained length")
  left.set(yscale="log", xlabel="plane", ylabel="wavelength (positions)")
  left.yaxis.set_major_formatter("{x:,g}")
  right.set(xlabel="plane", ylabel=f"times the wavelength of base {base:g}")
  for axes in (left, right):
    axes.xaxis.get_major_locator().set_params(integer=True)
  handles, labels = left.get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower left", ncols=4)
  return figure


def logits_by_offset(name: str, profile: Profile, near: int) -> Figure:
  """Draw the logit at offsets closer than `near`, whole and by term: a panel for each head."""
  whole = {"query and key drawn apart": profile.logits, "query equal to the key": profile.same}
  what, alone = "log of the weight", "whole and with one term alone"
  if profile.softmax:
    what, alone = "logit", "whole less that at offset 0, and each term alone"
    whole = {label: relative_to_zero(each, profile.offsets) for label, each in whole.items()}
  rows = {what: whole}
  if len(profile.terms) > 1:
    drawn = {term: each for term, each in profile.terms.items() if np.abs(each).max() > 1e-6}
    rows |= {f"term {term}": {None: table} for term, table in drawn.items()}
  every = profile.logits.shape[1]
  heads = min(every, len(COLORS))
  title = (
    f"{name}: {what} by offset (key − query), {alone}\n"
    "mean over random queries and keys, band of ± 1 standard deviation"
    f"{f'; the first {heads} of {every} heads' if every > heads else ''}"
  )
  figure, axes = panels(
    len(rows), heads, width=2.6, height=2.1, sharex=True, sharey="row", title=title
  )
  chosen = np.abs(profile.offsets) < near
  for row, (ylabel, series) in zip(axes, rows.items(), strict=True):
    row[0].set_ylabel(ylabel)
    for head, each in enumerate(row):
      for (label, values), color in zip(series.items(), COLORS, strict=False):
        drawn = values[:, head, chosen]
        mean, deviation = drawn.mean(0), drawn.std(0)
        low, high = mean - deviation, mean + deviation
        band(each, profile.offsets[chosen], mean, low, high, color=color, label=label)
      each.axhline(0, color=GRAY, linewidth=0.6)
  for head in range(heads):
    axes[0][head].set_title(f"head {head}")
    axes[-1][head].set_xlabel("offset")
  _legend(figure)
  return figure


def weights_by_offset(name: str, layers: Mapping[str, Profile], near: int) -> Figure:
  """Draw the attention weight at offsets closer than `near`, if keys differ in position alone."""
  title = f"{name}: attention weight by offset\nfor random queries, keys alike but for position"
  lines = {}
  for layer, profile in layers.items():
    chosen = np.abs(profile.offsets) < near
    logits = profile.logits[..., chosen]
    if profile.sinks is not None:
      sinks = np.broadcast_to(profile.sinks[..., None], (*logits.shape[:2], 1))
      logits = np.concatenate([logits, sinks], axis=-1)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True))[..., : chosen.sum()].mean(0)
    lines[layer] = profile.offsets[chosen], weights, np.full(chosen.sum(), 1 / chosen.sum())
  return by_head(title, lines, "offset (key − query)", "attention weight")


def attention_on_text(name: str, found: AttentionByOffset, item: str, causal: bool) -> Figure:
  """Draw attention by offset on real sequences, which are called `item`, up to FAR to either side.

  For a causal stack, draw it by distance up to the farthest key; with a memory, a line marks the
  distance from which on every key is in the memory.
  """
  what, sign = ("distance (query − key)", -1) if causal else ("offset (key − query)", 1)
  chosen = found.offsets <= 0 if causal else np.abs(found.offsets) <= FAR
  title = (
    f"{name}: attention by {what.split()[0]} on {found.examples} {item}s of the validation split"
  )
  memory = causal and -found.offsets.min() >= found.length
  if causal:
    title += f", of {found.length} tokens"
  if memory:
    title += "\nright of the line every key stands in the memory, left of it those of early queries"
  lines = {
    f"layer {layer}": (sign * found.offsets[chosen], mass[:, chosen], uniform[chosen])
    for layer, (mass, uniform) in enumerate(zip(found.mass, found.uniform, strict=True))
  }
  figure = by_head(title, lines, f"{what}, in tokens", "share of attention")
  drawn = found.mass[..., chosen]
  for axes, shares in zip(figure.axes, found.in_memory, strict=True) if causal else ():
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(0, -found.offsets.min())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(max(drawn[drawn > 0].min(), 1e-6), 1)
    if memory:
      axes.axvline(found.length - 0.5, color=GRAY, linewidth=0.8)
      axes.set_title(f"{axes.get_title()}: {shares.mean():.0%} in the memory")
  return figure


def rows(name: str, tables: Mapping[str, np.ndarray], k: int | None) -> Figure:
  """Draw the length of every row of the tables [...,rows,D] that the encoding trains.

  Tables of 2k + 1 rows are of the offsets −k … k.
  """
  lines = {}
  for table_name, table in tables.items():
    count = table.shape[-2]
    first = -k if k is not None and count == 2 * k + 1 else 0
    lengths = np.linalg.norm(table, axis=-1).reshape(-1, count)
    lines[table_name] = first + np.arange(count), lengths, None
  title = f"{name}: length of each row of its tables"
  xlabel = "row" if all(x[0] == 0 for x, *_ in lines.values()) else "offset (key − query)"
  return by_head(title, lines, xlabel, "length of the vector")


def by_head(
  title: str,
  lines: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray | None]],
  xlabel: str,
  ylabel: str,
) -> Figure:
  """Draw a panel for each label: over x [O] a line for each head [H,O], and uniform weights [O]."""
  figure, axes = panels(1, len(lines), width=4.2, height=3.0, sharey=True, title=title)
  for each, (label, (x, values, uniform)) in zip(axes[0], lines.items(), strict=True):
    for head, line in enumerate(values):
      name = f"head {head}" if len(values) > 1 else None
      each.plot(x, line, linewidth=1.3, label=name, **line_style(head))
    if uniform is not None:
      each.plot(x, uniform, ":", color=GRAY, label="uniform")
    each.set(title=label, xlabel=xlabel)
  axes[0][0].set_ylabel(ylabel)
  ends = [(values.min(), values.max()) for _, values, _ in lines.values()]
  if 0 <= min(ends)[0] < 0.3 * max(high for _, high in ends):  # or small differences would be lost
    axes[0][0].set_ylim(bottom=0)
  _legend(figure)
  return figure


def frequencies(name: str, found: np.ndarray, counts: np.ndarray) -> Figure:
  """Draw the learned frequencies [V,M] of words against how often the words occur [V].

  Dots of a large vocabulary are pixels in a SVG, too, or it would have megabytes.
  """
  title = f"{name}: learned |ω| of a word's dimensions"
  figure, ((axes,),) = panels(1, 1, width=6.0, height=3.6, title=title)
  seen = counts > 0
  for share, color in zip((0.9, 0.5, 0.1), COLORS, strict=False):
    quantile = np.quantile(np.abs(found[seen]), share, axis=1)
    (dots,) = axes.plot(counts[seen], quantile, ".", color=color, markersize=3, alpha=0.5)
    dots.set(label=f"{share:.0%} below", rasterized=seen.sum() > 1000)
  axes.set(xscale="log", xlabel="how often the word occurs in the training texts")
  drawn = np.abs(found[seen])
  if drawn.any() and not drawn.all():  # a frequency of 0 has no logarithm, but a place of its own
    axes.set_yscale("symlog", linthresh=drawn[drawn > 0].min())
  elif drawn.any():
    axes.set_yscale("log")
  axes.set(ylabel="|ω| (radians a position)")
  axes.xaxis.set_major_formatter("{x:g}")
  axes.yaxis.set_major_formatter("{x:g}")
  _legend(figure)
  return figure


def _legend(figure: Figure) -> None:
  fullest = max(figure.axes, key=lambda axes: len(axes.get_legend_handles_labels()[0]))
  handles, labels = fullest.get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower left", ncols=int(figure.get_figwidth() / 1.5))
