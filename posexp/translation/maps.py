"""Maps of the attention of a translator while it writes a translation, as numbers and figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from flax import nnx
from jax import Array
from matplotlib.figure import Figure

from posexp.analysis.attention_weights import watch
from posexp.analysis.plotting import heat, panels
from posexp.data.batches import Batch, Sequences, padded_length
from posexp.data.tokenizer import Tokenizer
from posexp.translation.encoded import BOS, Pairs
from posexp.translation.lines import Hypothesis, LineTranslator

# Inches: of a token where there is room, of a row of panels, between two names.
TOKEN, WIDEST, APART = 0.14, 30.0, 0.09


class AttentionMap(NamedTuple):
  """Weights of attention in a translation: those of a query sum to 1 minus its sink's share."""

  name: str  # "cross", "encoder" or "decoder"
  weights: np.ndarray  # [layers,H,Q,K]
  queries: list[str]  # Q tokens; in the decoder the written ones
  keys: list[str]  # K tokens


def of_translation(translator: LineTranslator, found: Hypothesis) -> list[AttentionMap]:
  """Return the attention in one pass over the source and the translation that was found for it."""
  batch = pair(found.source, found.target, translator.limit)
  seen = weights(translator.snapshot.model(), batch)
  texts = token_names(translator.source, found.source)
  written = token_names(translator.target, found.target)
  read = token_names(translator.target, [BOS, *found.target[:-1]])
  axes = {"encoder": (texts, texts), "decoder": (written, read), "cross": (written, texts)}
  return [
    AttentionMap(name, kind[:, :, : len(queries), : len(keys)], queries, keys)
    for (name, (queries, keys)), kind in zip(axes.items(), jax.device_get(seen), strict=True)
  ]


def pair(source: Sequence[int], target: Sequence[int], limit: int | None = None) -> Batch:
  """Return the batch of a source, which ends with [EOS], and its translation, which may be cut."""
  one = Pairs(Sequences.of([source[:-1]]), Sequences.of([target[:-1]]))
  batch = one.batch(np.zeros(1, int), padded_length(int(one.lengths[0]), limit), 1)
  batch["labels"][0, len(target) - 1] = target[-1]
  return batch


@nnx.jit
def weights(model: nnx.Module, batch: dict[str, Array]) -> tuple[Array, ...]:
  """Return the weights of each map of a batch of one pair, with padding."""
  model = nnx.clone(model)
  (encoder, _), (decoder, cross) = map(watch, model.stacks)
  model(batch)
  return tuple(jnp.stack([each.weights[0] for each in seen]) for seen in (encoder, decoder, cross))


def token_names(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
  """Return the text of each token; ␣ marks the beginning of a word."""
  name, decoder = tokenizer.library.id_to_token, tokenizers.decoders.ByteLevel()
  return [decoder.decode([name(token)]).replace(" ", "␣") for token in tokens]


def drawn(found: AttentionMap, title: str) -> Figure:
  """Draw weights [layers,H,Q,K]: a panel for each head of each layer, in one scale of color."""
  layers, heads, *_ = found.weights.shape
  queries, keys = found.queries, found.keys
  inch = min(TOKEN, WIDEST / (heads * len(keys)), WIDEST / (layers * len(queries)))
  width, height = (max(inch * len(tokens), 0.9) for tokens in (keys, queries))
  title = textwrap.shorten(title, 200, placeholder=" …")
  what = "cross-attention" if found.name == "cross" else f"self-attention of the {found.name}"
  figure, axes = panels(
    layers,
    heads,
    width=width + 0.15,
    height=height + 0.3,
    title=f"{title}\n{what}",
    sharex=True,
    sharey=True,
  )
  every = max(1, int(np.ceil(APART / inch)))  # of so many names one is written
  limits = 0, float(found.weights.max())
  for (layer, head), each in np.ndenumerate(axes):
    image = heat(each, found.weights[layer, head], cmap="Blues", limits=limits)
    each.set_xticks(range(0, len(keys), every), keys[::every], rotation=90, fontsize=7)
    each.set_yticks(range(0, len(queries), every), queries[::every], fontsize=7)
    each.tick_params(length=0)
    each.set_title(f"head {head}" if layer == 0 else "")
    each.set_ylabel(f"layer {layer}" if head == 0 else "")
  figure.supylabel("token that is read" if found.name == "encoder" else "token that is written")
  figure.supxlabel("token that is attended to")
  figure.colorbar(image, ax=axes, label="attention weight", fraction=0.02, pad=0.01, aspect=30)
  return figure
