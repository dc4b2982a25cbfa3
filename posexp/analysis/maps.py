"""What a translator attends to while it writes one translation: found, and drawn."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posexp.analysis.sentences import padded
from posexp.data.tokenizer import BOS, PAD
from posexp.plotting import panels
from posexp.training.restore import TrainedModel

INCH = 0.14  # of a token, where there is room
WIDEST = 30.0  # inches of all panels of a row together
LEAST = 0.09  # inches between two names of tokens


class Maps(NamedTuple):
  """Attention weights; a row is a query's, and sums to 1."""

  source: list[str]  # S tokens, [EOS] last
  read: list[str]  # T tokens that the decoder reads, [BOS] first
  written: list[str]  # the T tokens that it writes at these
  encoder: np.ndarray  # [layers,H,S,S]
  decoder: np.ndarray  # [layers,H,T,T]
  cross: np.ndarray  # [layers,H,T,S]


def attention(opened: TrainedModel, source: Sequence[int], target: Sequence[int]) -> Maps:
  """One teacher-forced pass over a translation, from tokens as `Sentences` gives them."""
  batch = pair(source, target, opened.spec.encoding.limit)
  state = opened.snapshot.state
  seen = jax.device_get(look(opened.snapshot.program.graphdef)(state.params, state.settings, batch))
  first, second = (pieces(text) for text in opened.tokenizers)
  s, t = len(source), len(target)
  return Maps(
    first(source),
    second([BOS, *target[:-1]]),
    second(target),
    seen["encoder"][:, :, :s, :s],
    seen["decoder"][:, :, :t, :t],
    seen["cross"][:, :, :t, :s],
  )


def pair(source: Sequence[int], target: Sequence[int], limit: int | None = None) -> dict[str, Any]:
  """The batch of a source and its translation, both of which end with [EOS] or were cut."""

  def row(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    fill = padded(len(tokens), limit) - len(tokens)
    real = np.pad(np.ones((1, len(tokens)), bool), ((0, 0), (0, fill)))
    return np.pad(np.array([tokens], np.int32), ((0, 0), (0, fill)), constant_values=PAD), real

  (read, real), (labels, mask) = row(source), row(target)
  return {
    "source": read,
    "source_mask": real,
    "target": row([BOS, *target[:-1]])[0],
    "labels": labels,
    "mask": mask,
    "weight": np.ones(1, np.float32),
  }


@functools.lru_cache(maxsize=4)
def look(graphdef: nnx.GraphDef) -> Callable[..., dict[str, Array]]:
  """(params, settings, a batch of one pair) -> the weights of `Maps`, with those of padding."""

  @jax.jit
  def seen(params: Any, settings: Any, batch: dict[str, Array]) -> dict[str, Array]:
    model = nnx.merge(graphdef, params, settings)
    found: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
    for name, stack in zip(("encoder", "decoder"), model.stacks, strict=True):
      for block in stack.blocks:
        watch(block.attention.relation, found[name])
        if block.cross is not None:
          watch(block.cross.relation, found["cross"])
    model(batch)
    return {name: jnp.stack(each)[:, 0] for name, each in found.items()}

  return seen


def watch(relation: Any, seen: list[Array]) -> None:
  """Keeps what a relation's `weights` returns, [B,H,Q,K]."""
  plain = relation.weights

  def weights(q: Array, k: Array, span: Any) -> Array:
    seen.append(plain(q, k, span))
    return seen[-1]

  relation.weights = weights


def pieces(text: str) -> Callable[[Sequence[int]], list[str]]:
  """A function of tokens, from a tokenizer's JSON: what each says by itself.

  ␣ stands where a word begins, and \\xc3 for a byte that is part of a character.
  """
  from tokenizers import Tokenizer

  tokenizer, table = Tokenizer.from_str(text), alphabet()

  def names(tokens: Sequence[int]) -> list[str]:
    found = (bytes(table[letter] for letter in tokenizer.id_to_token(each)) for each in tokens)
    return [each.decode(errors="backslashreplace").replace(" ", "␣") for each in found]

  return names


@functools.cache
def alphabet() -> dict[str, int]:
  """The byte that each letter of byte-level BPE stands for (Radford et al. 2019)."""
  shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
  hidden = [byte for byte in range(256) if byte not in shown]
  return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def figures(maps: Maps, title: str) -> Iterator[tuple[str, Figure]]:
  """A figure for the cross-attention and one for the self-attention of either side."""
  title = textwrap.shorten(title, 200, placeholder=" …").replace("$", r"\$")
  asks, answers = "token that is written", "token that was written before"
  yield (
    "cross",
    draw(
      maps.cross,
      maps.written,
      maps.source,
      asks,
      "token of the source",
      f"{title}\ncross-attention of the decoder to the source",
    ),
  )
  yield (
    "encoder",
    draw(
      maps.encoder,
      maps.source,
      maps.source,
      "token that looks",
      "token looked at",
      f"{title}\nself-attention of the encoder",
    ),
  )
  yield (
    "decoder",
    draw(
      maps.decoder,
      maps.written,
      maps.read,
      asks,
      answers,
      f"{title}\nself-attention of the decoder",
    ),
  )


def draw(
  weights: np.ndarray,
  rows: Sequence[str],
  columns: Sequence[str],
  asks: str,
  answers: str,
  title: str,
) -> Figure:
  """Weights [layers,H,Q,K], a panel for each head of each layer, in one scale of color."""
  layers, heads, queries, keys = weights.shape
  inch = min(INCH, WIDEST / (heads * keys), WIDEST / (layers * queries))
  figure, axes = panels(
    layers,
    heads,
    width=max(inch * keys, 0.9) + 0.15,
    height=max(inch * queries, 0.9) + 0.3,
    title=title,
    sharex=True,
    sharey=True,
  )
  for layer, head in np.ndindex(layers, heads):
    each = axes[layer, head]
    image = each.imshow(
      weights[layer, head],
      cmap="Blues",
      vmin=0,
      vmax=float(weights.max()),
      aspect="auto",
      interpolation="nearest",
    )
    each.grid(False)
    if layer == 0:
      each.set_title(f"head {head}")
    if head == 0:
      each.set_ylabel(f"layer {layer}")
    name(each, rows, columns, max(1, round(np.ceil(LEAST / inch))))
  figure.supylabel(asks, fontsize=9)
  figure.supxlabel(answers, fontsize=9)
  figure.colorbar(image, ax=axes, label="attention weight", fraction=0.02, pad=0.01, aspect=30)
  return figure


def name(axes: Axes, rows: Sequence[str], columns: Sequence[str], every: int) -> None:
  """Names of tokens, of every so many where there is no room for all."""
  axes.set_xticks(range(0, len(columns), every), columns[::every], rotation=90, fontsize=7)
  axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize=7)
  axes.tick_params(length=0)
  for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
    label.set_parse_math(False)  # a $ is a dollar
