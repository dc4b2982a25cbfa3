"""Figures of an encoding and of attention: each function draws one, from arrays.

Shapes: N draws, H heads, O offsets, L positions.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posexp.analysis.attention import ByOffset, Maps
from posexp.analysis.probe import Profile, Shares, inner_products, relative_to_zero
from posexp.plotting import BLUE, COLORS, GRAY, GREEN, ORANGE, heat, panels

MOST_HEADS = len(COLORS)  # that are drawn
MAPS = {
  "identity": "$W_Q = W_K = I$",
  "random": "random",
  "tied orthogonal": "$W_Q = W_K$\northogonal",
  "trained": "trained,\nlayer 0",
}
# Inches of attention maps: of a token where there is room, of a row of panels, between two names.
TOKEN, WIDEST, APART = 0.14, 30.0, 0.09


def vectors(name: str, found: np.ndarray, of: str) -> Figure:
  """Positions × channels."""
  figure, axes = panels(1, 1, width=6.4, height=3.6, title=f"{name}: vectors of positions{of}")
  heat(axes[0][0], found, label="value")
  axes[0][0].set(xlabel="channel", ylabel="position")
  return figure


def gram(name: str, found: np.ndarray) -> Figure:
  """The inner products of all positions' vectors."""
  figure, axes = panels(1, 1, width=4.6, height=3.9, title=f"{name}: inner products pᵢ · pⱼ")
  products = found @ found.T
  limits = products.min(), products.max()
  heat(axes[0][0], products, label="pᵢ · pⱼ", cmap="viridis", limits=limits, aspect="equal")
  axes[0][0].set(xlabel="position j", ylabel="position i")
  return figure


def products_by_offset(name: str, variants: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
  """Inner product against offset, a panel for each option that is varied."""
  title = (
    f"{name}: inner product of two positions' vectors by their offset\n"
    "mean over positions, band from the 10th to the 90th percent; 1 is a vector with itself"
  )
  figure, axes = panels(1, len(variants), width=4.4, height=3.2, sharey=True, title=title)
  for each, (varied, members) in zip(axes[0], variants.items(), strict=True):
    for (label, found), color in zip(members.items(), COLORS, strict=False):
      mean, low, high = inner_products(found)
      band(each, np.arange(len(mean)), mean, low, high, color=color, label=label)
    each.set(xlabel="offset", title=varied)
    each.legend()
  axes[0][0].set_ylabel("pᵢ · pⱼ / mean |p|²")
  return figure


def shares(name: str, found: Mapping[str, list[Shares]]) -> Figure:
  """How much of the logits that positions make among themselves is a function of the offset."""
  title = f"{name}: what j − i alone explains of the variance of $(p_i W_Q) \\cdot (p_j W_K)$"
  figure, ((axes,),) = panels(1, 1, width=6.2, height=3.3, title=title)
  for place, kind in enumerate(found.values()):
    heads = np.concatenate([each.heads for each in kind])
    spread = np.linspace(-0.14, 0.14, len(heads)) if len(heads) > 1 else np.zeros(1)
    axes.plot(
      place + 0.2 + spread, heads, "o", color=BLUE, alpha=0.6, markersize=4.5,
      label="each head" if place == 0 else None, clip_on=False, zorder=3,
    )  # fmt: skip
    whole = np.mean([each.whole for each in kind])
    if np.isfinite(whole):
      axes.bar(place - 0.2, whole, 0.3, color=ORANGE, label="all heads" if place == 0 else None)
      axes.text(place - 0.2, whole + 0.02, f"{whole:.2f}", ha="center", va="bottom", fontsize=8)
  axes.set_xticks(range(len(found)), [MAPS[kind] for kind in found])
  axes.set(ylim=(0, 1.12), ylabel="share explained by the offset")
  axes.grid(False, axis="x")
  axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def logits_by_offset(name: str, layers: Mapping[str, Profile], near: int) -> Figure:
  """The expected logit at offsets closer than `near`, a row of panels for each layer."""
  rows = {
    f"{layer}\nlogit" if len(layers) > 1 else "logit": {
      "query and key drawn apart": relative_to_zero(each.logits, each.offsets),
      "query equal to the key": relative_to_zero(each.same, each.offsets),
    }
    for layer, each in layers.items()
  }
  title = f"{name}: logit by offset (key − query), less that at offset 0"
  figure = by_head(title, rows, next(iter(layers.values())).offsets, near, sharey=True)
  _legend(figure)
  return figure


def terms_by_offset(name: str, profile: Profile, near: int, layer: str) -> Figure:
  """The logit that each term gives alone, at offsets closer than `near`."""
  rows = {
    f"{term}\nlogit": {term: each}
    for term, each in profile.terms.items()
    if np.abs(each).max() > 1e-6
  }
  title = f"{name}: what each term adds to the logit, by offset{layer}"
  return by_head(title, rows, profile.offsets, near, sharey="row")


def by_head(
  title: str,
  rows: Mapping[str, Mapping[str, np.ndarray]],
  offsets: np.ndarray,
  near: int,
  sharey: Any,
) -> Figure:
  """Mean ± 1 sd over draws of labeled values [N,H,O]: a row for each label, a column per head."""
  heads = min(next(iter(next(iter(rows.values())).values())).shape[1], MOST_HEADS)
  title += "\nmean over random queries and keys, band of ± 1 standard deviation"
  figure, axes = panels(
    len(rows), heads, width=2.6, height=2.1, sharex=True, sharey=sharey, title=title
  )
  chosen = np.abs(offsets) < near
  for row, (ylabel, series) in zip(axes, rows.items(), strict=True):
    row[0].set_ylabel(ylabel)
    for head, each in enumerate(row):
      for (label, values), color, style in zip(series.items(), COLORS, ("-", "--"), strict=False):
        drawn = values[:, head, chosen]
        mean, deviation = drawn.mean(0), drawn.std(0)
        band(
          each, offsets[chosen], mean, mean - deviation, mean + deviation,
          color=color, linestyle=style, label=label,
        )  # fmt: skip
      each.axhline(0, color=GRAY, linewidth=0.6)
  for head in range(heads):
    axes[0][head].set_title(f"head {head}")
    axes[-1][head].set_xlabel("offset")
  return figure


def weights_by_offset(name: str, layers: Mapping[str, Profile], near: int) -> Figure:
  """The expected attention weight at offsets closer than `near`: a panel per layer.

  All keys are equal but for their positions, which alone decide.
  """
  width = 5.2 if len(layers) == 1 else 4.0
  title = f"{name}: attention weight by offset\nfor random queries, keys alike but for position"
  figure, axes = panels(1, len(layers), width=width, height=3.1, sharey=True, title=title)
  for each, (layer, profile) in zip(axes[0], layers.items(), strict=True):
    chosen = np.abs(profile.offsets) < near
    logits = profile.logits[..., chosen]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).mean(0)
    head_lines(each, profile.offsets[chosen], weights)
    each.axhline(1 / chosen.sum(), color=GRAY, linestyle=":", label="uniform")
    each.set(xlabel="offset (key − query)", title=layer)
    if weights.min() < 0.3 * weights.max():  # or small differences would be lost
      each.set_ylim(bottom=0)
  axes[0][0].set_ylabel("attention weight")
  axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def rows(name: str, tables: Mapping[str, np.ndarray], when: str) -> Figure:
  """The length of every row of the tables [...,rows,D] that the encoding trains."""
  title = f"{name}: length of each row of its tables, {when}"
  figure, axes = panels(1, len(tables), width=3.6, height=2.9, title=title)
  offsets = all(each.shape[-2] % 2 for each in tables.values())  # −k … k
  for each, (table_name, table) in zip(axes[0], tables.items(), strict=True):
    lengths = np.linalg.norm(table, axis=-1).reshape(-1, table.shape[-2])
    at = np.arange(lengths.shape[1]) - (lengths.shape[1] // 2 if offsets else 0)
    head_lines(each, at, lengths, marker="o", markersize=3)
    each.set(title=table_name, xlabel="offset" if offsets else "row")
    each.set_ylim(bottom=0)
    if len(lengths) > 1:
      each.legend(fontsize=7)
  axes[0][0].set_ylabel("length of the vector")
  return figure


def frequencies(name: str, found: np.ndarray, counts: np.ndarray) -> Figure:
  """The learned frequencies [V,M] of words against how often the words occur [V]."""
  title = f"{name}: learned frequencies |ω| of words"
  figure, ((axes,),) = panels(1, 1, width=6.0, height=3.6, title=title)
  seen = counts > 0
  for share, color in ((0.9, ORANGE), (0.5, BLUE), (0.1, GREEN)):
    axes.plot(
      counts[seen], np.quantile(np.abs(found[seen]), share, axis=1), ".", color=color,
      markersize=3, alpha=0.5, label=f"{share:.0%} of a word's dimensions are below",
    )  # fmt: skip
  axes.set(
    xscale="log", xlabel="how often the word occurs in the training texts",
    yscale="log", ylabel="|ω| (radians a position)",
  )  # fmt: skip
  axes.legend(markerscale=4, loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def attention_on_text(name: str, found: ByOffset, near: int = 32) -> Figure:
  """Attention and logits against offset on real text, a row of panels for each layer."""
  title = f"{name}: attention by offset on {found.examples} texts of the validation split"
  figure, axes = panels(len(found.mass), 2, width=4.2, height=2.5, sharex=True, title=title)
  chosen = np.abs(found.offsets) <= near
  offsets = found.offsets[chosen]
  for layer, (left, right) in enumerate(axes):
    head_lines(left, offsets, found.mass[layer][:, chosen])
    head_lines(right, offsets, found.logits[layer][:, chosen])
    left.plot(offsets, found.uniform[chosen], ":", color=GRAY, label="uniform")
    left.set_ylabel(f"layer {layer}\nshare of attention")
    left.set_ylim(bottom=0)
    right.set_ylabel("mean logit")
  for each in axes[-1]:
    each.set_xlabel("offset (key − query), in tokens")
  _legend(figure)
  return figure


def band(axes: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, **line):
  """A line of means with a band around it."""
  axes.fill_between(x, low, high, color=line["color"], alpha=0.17, linewidth=0)
  axes.plot(x, mean, linewidth=1.3, **line)


def head_lines(axes: Axes, x: np.ndarray, values: np.ndarray, **line) -> None:
  """A line for each of values [H,O], of the first MOST_HEADS."""
  for head, (each, color) in enumerate(zip(values, COLORS, strict=False)):
    label = f"head {head}" if len(values) > 1 else None
    axes.plot(x, each, color=color, linewidth=1.3, label=label, **line)


def _legend(figure: Figure) -> None:
  handles, labels = figure.axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower left", ncols=min(len(labels), 5))


def translation_maps(maps: Maps, title: str) -> Iterator[tuple[str, Figure]]:
  """A figure for the cross-attention and one for the self-attention of either side, by name."""
  title = textwrap.shorten(title, 200, placeholder=" …").replace("$", r"\$")
  source, read, written = maps.source, maps.read, maps.written
  writes = "token that is written"
  for name, weights, queries, keys, labels, what in (
    ("cross", maps.cross, written, source, (writes, "token of the source"),
     "cross-attention of the decoder to the source"),
    ("encoder", maps.encoder, source, source, ("token that looks", "token looked at"),
     "self-attention of the encoder"),
    ("decoder", maps.decoder, written, read, (writes, "token that was written before"),
     "self-attention of the decoder"),
  ):  # fmt: skip
    figure = weight_maps(weights, queries, keys, f"{title}\n{what}")
    figure.supylabel(labels[0], fontsize=9)
    figure.supxlabel(labels[1], fontsize=9)
    yield name, figure


def weight_maps(
  weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str
) -> Figure:
  """Weights [layers,H,Q,K], a panel for each head of each layer, in one scale of color."""
  layers, heads, *_ = weights.shape
  inch = min(TOKEN, WIDEST / (heads * len(keys)), WIDEST / (layers * len(queries)))
  width, height = (max(inch * len(tokens), 0.9) for tokens in (keys, queries))
  figure, axes = panels(
    layers, heads, width=width + 0.15, height=height + 0.3, title=title, sharex=True, sharey=True
  )
  every = max(1, int(np.ceil(APART / inch)))  # of so many names one is written
  for (layer, head), each in np.ndenumerate(axes):
    image = heat(each, weights[layer, head], cmap="Blues", limits=(0, float(weights.max())))
    each.set_xticks(range(0, len(keys), every), keys[::every], rotation=90, fontsize=7)
    each.set_yticks(range(0, len(queries), every), queries[::every], fontsize=7)
    each.tick_params(length=0)
    for label in (*each.get_xticklabels(), *each.get_yticklabels()):
      label.set_parse_math(False)  # a $ is a dollar
    each.set_title(f"head {head}" if layer == 0 else "")
    each.set_ylabel(f"layer {layer}" if head == 0 else "")
  figure.colorbar(image, ax=axes, label="attention weight", fraction=0.02, pad=0.01, aspect=30)
  return figure
