"""Figures of an encoding: each function draws one, from arrays that `probe` found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from posexp.analysis.probe import OnText, Profile, Shares, inner_products, relative_to_zero
from posexp.plotting import BLUE, COLORS, GRAY, ORANGE, heat, panels

MOST = 8  # panels in a row
KINDS = {
  "identity": "$W_Q = W_K = I$",
  "random": "random",
  "tied orthogonal": "$W_Q = W_K$\northogonal",
  "trained": "trained,\nlayer 0",
}


def vectors(name: str, found: np.ndarray, of: str) -> Figure:
  """Positions × channels."""
  figure, axes = panels(1, 1, width=6.4, height=3.6, title=f"{name}: vectors of positions{of}")
  axes = axes[0][0]
  heat(axes, found, label="value")
  axes.set_xlabel("channel")
  axes.set_ylabel("position")
  return figure


def gram(name: str, found: np.ndarray) -> Figure:
  """The inner products of all positions' vectors."""
  figure, axes = panels(1, 1, width=4.6, height=3.9, title=f"{name}: inner products pᵢ · pⱼ")
  axes = axes[0][0]
  product = found @ found.T
  image = axes.imshow(product, cmap="viridis", interpolation="nearest")
  figure.colorbar(image, ax=axes, label="pᵢ · pⱼ")
  axes.grid(False)
  axes.set_xlabel("position j")
  axes.set_ylabel("position i")
  return figure


def products_by_offset(name: str, families: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
  """Inner product against offset, a panel for each option that is varied."""
  figure, axes = panels(
    1,
    len(families),
    width=4.4,
    height=3.2,
    sharey=True,
    title=f"{name}: inner product of two positions' vectors by their offset\n"
    "mean over positions, band from the 10th to the 90th percent; 1 is a vector with itself",
  )
  for each, (title, family) in zip(axes[0], families.items(), strict=True):
    for (label, found), color in zip(family.items(), COLORS, strict=False):
      mean, low, high = inner_products(found)
      offsets = np.arange(len(mean))
      each.plot(offsets, mean, color=color, label=label, linewidth=1.4)
      each.fill_between(offsets, low, high, color=color, alpha=0.18, linewidth=0)
    each.set_xlabel("offset")
    each.set_title(title)
    each.legend()
  axes[0][0].set_ylabel("pᵢ · pⱼ / mean |p|²")
  return figure


def shares(name: str, found: Mapping[str, list[Shares]]) -> Figure:
  """How much of the logits that positions make among themselves is a function of the offset."""
  figure, axes = panels(
    1,
    1,
    width=6.2,
    height=3.3,
    title=f"{name}: what j − i alone explains of the variance of $(p_i W_Q) \\cdot (p_j W_K)$",
  )
  axes = axes[0][0]
  for place, (_, kind) in enumerate(found.items()):
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
  axes.set_xticks(range(len(found)), [KINDS[kind] for kind in found])
  axes.set_ylim(0, 1.12)
  axes.set_ylabel("share explained by the offset")
  axes.grid(False, axis="x")
  axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def _heads(count: int) -> range:
  return range(min(count, MOST))


def _ends(profile: Profile, near: int) -> np.ndarray:
  return np.flatnonzero(np.abs(profile.offsets) < near)


def logits_by_offset(name: str, layers: Mapping[str, Profile], near: int) -> Figure:
  """The expected logit against the offset, a row of panels for each layer."""
  heads = _heads(next(iter(layers.values())).logits.shape[1])
  figure, axes = panels(
    len(layers),
    len(heads),
    width=2.6,
    height=2.1,
    sharex=True,
    sharey=True,
    title=f"{name}: logit by offset (key − query), less that at offset 0\n"
    "mean over random queries and keys, band of ± 1 standard deviation",
  )
  for row, (layer, profile) in zip(axes, layers.items(), strict=True):
    chosen = _ends(profile, near)
    offsets = profile.offsets[chosen]
    for head, each in zip(heads, row, strict=True):
      for color, label, drawn in (
        (BLUE, "query and key drawn apart", profile.logits),
        (ORANGE, "query equal to the key", profile.alike),
      ):
        logits = relative_to_zero(drawn, profile.offsets)[:, head, chosen]
        mean, deviation = logits.mean(0), logits.std(0)
        each.fill_between(
          offsets, mean - deviation, mean + deviation, color=color, alpha=0.16, linewidth=0
        )
        style = "-" if drawn is profile.logits else "--"
        each.plot(offsets, mean, style, color=color, linewidth=1.3, label=label)
      each.axhline(0, color=GRAY, linewidth=0.6)
      each.set_title(f"{layer}, head {head}" if len(layers) > 1 else f"head {head}")
    row[0].set_ylabel("logit")
  for each in axes[-1]:
    each.set_xlabel("offset")
  _legend(figure, axes)
  return figure


def weights_by_offset(name: str, layers: Mapping[str, Profile], near: int) -> Figure:
  """The expected attention weight against the offset: a panel per layer, a line per head.

  All keys are alike but for their positions, which alone decide.
  """
  figure, axes = panels(
    1,
    len(layers),
    width=5.2 if len(layers) == 1 else 4.0,
    height=3.1,
    sharey=True,
    title=f"{name}: attention weight by offset\nfor random queries, keys alike but for position",
  )
  for each, (layer, profile) in zip(axes[0], layers.items(), strict=True):
    chosen = _ends(profile, near)
    offsets = profile.offsets[chosen]
    weights = relative_to_zero(profile.logits, profile.offsets)[..., chosen]
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).mean(0)
    for head, color in zip(_heads(len(weights)), 2 * COLORS, strict=False):
      each.plot(
        offsets, weights[head], color=color, linewidth=1.3, label=f"head {head}",
        linestyle="-" if head < len(COLORS) else "--",
      )  # fmt: skip
    each.axhline(1 / len(chosen), color=GRAY, linestyle=":", label="uniform")
    each.set_xlabel("offset (key − query)")
    each.set_title(layer)
    if weights.min() < 0.3 * weights.max():  # or small differences would be lost
      each.set_ylim(bottom=0)
  axes[0][0].set_ylabel("attention weight")
  axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def terms_by_offset(name: str, profile: Profile, near: int, layer: str) -> Figure:
  """The logit that each term gives alone."""
  heads = _heads(profile.logits.shape[1])
  found = {term: each for term, each in profile.terms.items() if np.abs(each).max() > 1e-6}
  figure, axes = panels(
    len(found),
    len(heads),
    width=2.6,
    height=1.9,
    sharex=True,
    sharey="row",
    title=f"{name}: what each term adds to the logit, by offset{layer}\n"
    "mean over random queries and keys, band of ± 1 standard deviation",
  )
  chosen = _ends(profile, near)
  offsets = profile.offsets[chosen]
  for row, (term, logits), color in zip(axes, found.items(), 2 * COLORS, strict=False):
    for head, each in zip(heads, row, strict=True):
      mean, deviation = (
        logits[:, head, chosen].mean(0),
        logits[:, head, chosen].std(0),
      )
      each.fill_between(
        offsets, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0
      )
      each.plot(offsets, mean, color=color, linewidth=1.3)
      each.axhline(0, color=GRAY, linewidth=0.6)
    row[0].set_ylabel(f"{term}\nlogit")
  for head, each in zip(heads, axes[0], strict=True):
    each.set_title(f"head {head}")
  for each in axes[-1]:
    each.set_xlabel("offset")
  return figure


def rows(name: str, tables: Mapping[str, np.ndarray], offsets: bool, when: str) -> Figure:
  """The length of every row of the tables that the encoding trains."""
  figure, axes = panels(
    1, len(tables), width=3.6, height=2.9, title=f"{name}: length of each row of its tables, {when}"
  )
  for each, (title, table) in zip(axes[0], tables.items(), strict=True):
    lengths = np.linalg.norm(table, axis=-1).reshape(-1, table.shape[-2])
    start = -(lengths.shape[1] // 2) if offsets else 0
    for number, (line, color) in enumerate(zip(lengths, 2 * COLORS, strict=False)):
      label = f"head {number}" if len(lengths) > 1 else None
      each.plot(start + np.arange(len(line)), line, "-o", markersize=3, color=color, label=label)
    each.set_title(title)
    each.set_xlabel("offset" if offsets else "row")
    each.set_ylim(bottom=0)
    if len(lengths) > 1:
      each.legend(fontsize=7)
  axes[0][0].set_ylabel("length of the vector")
  return figure


def frequencies(name: str, found: np.ndarray, counts: np.ndarray) -> Figure:
  """The learned frequencies [V,M] of words against how often the words occur [V]."""
  figure, axes = panels(
    1, 1, width=6.0, height=3.6, title=f"{name}: learned frequencies |ω| of words"
  )
  axes = axes[0][0]
  seen = counts > 0
  size = np.abs(found[seen])
  for share, color in ((0.9, ORANGE), (0.5, BLUE), (0.1, "#009E73")):
    axes.plot(
      counts[seen], np.quantile(size, share, axis=1), ".", color=color, markersize=3, alpha=0.5,
      label=f"{share:.0%} of a word's dimensions are below",
    )  # fmt: skip
  axes.set_xscale("log")
  axes.set_yscale("log")
  axes.set_xlabel("how often the word occurs in the training texts")
  axes.set_ylabel("|ω| (radians a position)")
  axes.legend(markerscale=4, loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def mass(name: str, found: OnText, near: int = 32) -> Figure:
  """Attention mass against offset on real text, a panel for each layer."""
  layers, heads = found.mass.shape[:2]
  figure, axes = panels(
    layers,
    2,
    width=4.2,
    height=2.5,
    sharex=True,
    title=f"{name}: attention by offset on {found.texts} texts of the validation split",
  )
  chosen = np.abs(found.offsets) <= near
  offsets = found.offsets[chosen]
  for layer, row in enumerate(axes):
    for head, color in zip(_heads(heads), 2 * COLORS, strict=False):
      style = "-" if head < len(COLORS) else "--"
      for each, values in zip(row, (found.mass, found.logits), strict=True):
        line = values[layer, head, chosen]
        each.plot(offsets, line, style, color=color, linewidth=1.2, label=f"head {head}")
    row[0].plot(offsets, found.uniform[chosen], ":", color=GRAY, label="uniform")
    row[0].set_ylabel(f"layer {layer}\nshare of attention")
    row[0].set_ylim(bottom=0)
    row[1].set_ylabel("mean logit")
  for each in axes[-1]:
    each.set_xlabel("offset (key − query), in tokens")
  _legend(figure, axes)
  return figure


def _legend(figure: Figure, axes: np.ndarray) -> None:
  handles, labels = axes[0][0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower left", ncols=min(len(labels), 5), frameon=False)
