"""The card of an encoding: the parts it enters, its cost, its reach, and how outputs change."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.analysis import probe
from posexp.analysis.probe import VOCABULARY, ProbeModel, Profile
from posexp.config import show_options
from posexp.encodings import name_of
from posexp.encodings.base import Encoding
from posexp.models.backbones import Backbone
from posexp.models.transformer import Stack
from posexp.reporting.text import wrapped
from posexp.training import matching

PARTS = {
  "input": "the embedding",
  "linear": "every linear map",
  "norms": "every norm",
  "attention": "how queries meet keys and values, in every layer",
  "shared": "what all layers share of it",
}
ROUNDING = 1e-4  # differences below are rounding
WORDS = 8  # of the text of which behavior is measured
LENGTH = 64  # tokens of the sequence of which FLOPs are counted
INDENT = 17  # of the text after a row's label
MODES = {"encoder": (False, 0), "decoder": (True, 0), "memory": (True, 1)}  # causal, its slots
DETAILS = {*MODES, "terms", "FLOPs", "measured with"}  # which the short card leaves out


def lines(name: str, encoding: Encoding, rows: dict[str, str], *, whole: bool) -> list[str]:
  """Return the card as it is printed: the name, what the encoding is, and labeled rows.

  The short one has the encoding's docstring up to its formula, and no `DETAILS`.
  """
  kind = type(encoding)
  about = "no positions" if kind is Encoding else inspect.cleandoc(kind.__doc__ or "")
  if about.startswith(f"{kind.__name__}("):  # dataclasses sign a class that has no docstring
    about = ""
  if whole:
    shown = {label: text for label, text in rows.items() if label != "suits"}
  else:
    paragraphs = about.split("\n\n")
    formula = next((i for i, paragraph in enumerate(paragraphs) if "=" in paragraph), 0)
    about = "\n\n".join(paragraphs[: formula + 1])
    shown = {label: text for label, text in rows.items() if label not in DETAILS}
  shown_lines = [wrapped(text, f"{label:<{INDENT}}") for label, text in shown.items()]
  return [name, *([textwrap.indent(about, "  ")] if about else []), "", *shown_lines]


def entered(parts: Iterable[str]) -> str:
  """Return the parts of a Transformer in words."""
  return "; ".join(PARTS[part] for part in parts) or "nowhere"


def rows(
  model: ProbeModel,
  first: Mapping[str, int],
  profiles: Mapping[int, Profile],
  text: np.ndarray | None = None,
) -> dict[str, str]:
  """Measure the rows of the card.

  Args:
    model: the stack of a run, or an untrained one.
    first: the first layer of each kind, by the name of all of them.
    profiles: profiles by layer, those of `first` among them.
    text: as in `behavior`.
  """
  encoding, stack = model
  refusals = {
    mode: probe.refusal(encoding, dataclasses.replace(stack.size, memory=slots), causal)
    for mode, (causal, slots) in MODES.items()
  }
  suited = [mode for mode, why in refusals.items() if not why]
  unsuited = [mode for mode, why in refusals.items() if why]
  return {
    "enters": entered(parts(model)),
    **by_layer(encoding, stack),
    **costs(model),
    **of_each({name: coverage(model, profiles[layer], layer) for name, layer in first.items()}),
    "suits": ", ".join(suited) + f"; not {', '.join(unsuited)}: --all says why" * bool(unsuited),
    **{mode: f"no: {why}" if why else "yes" for mode, why in refusals.items()},
    **behavior(model, text),
  }


def of_each(found: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
  """Return rows of the card that say what was found of each kind of layer, by its name."""
  if len(found) == 1:
    return {label: text for rows in found.values() for label, text in rows.items()}
  every: dict[str, list[str]] = {}
  for layers, rows in found.items():
    for label, text in rows.items():
      every.setdefault(label, []).append(f"{layers}: {text}")
  return {label: "; ".join(texts) for label, texts in every.items()}


def kinds(encoding: Encoding, stack: Stack) -> dict[str, list[int]]:
  """Return the layers of each kind, by its encoding, options and the terms of its logits."""
  layers_of: dict[str, list[int]] = {}
  for i, layer in enumerate(encoding.layers(len(stack.blocks))):
    limits = {"window": layer.window, "chunk": layer.chunk}
    limits = {name: value for name, value in limits.items() if value is not None}
    label = " ".join(filter(None, [described(layer.encoding), show_options(limits)]))
    terms = ", ".join(stack.blocks[i].attention.relation.terms) or "none"
    layers_of.setdefault(f"{label} ({terms})", []).append(i)
  return layers_of


def first_layers(encoding: Encoding, stack: Stack) -> dict[str, int]:
  """Return the first layer of each kind, by the name of all of them, as in "layers 0, 3"."""
  every = kinds(encoding, stack).values()
  return {f"layer{'s' * (len(each) > 1)} {ranges(each)}": each[0] for each in every}


def by_layer(encoding: Encoding, stack: Stack) -> dict[str, str]:
  """Return the terms of a layer's logits or, if layers differ, the encoding and terms of each."""
  layers_of = kinds(encoding, stack)
  if len(layers_of) == 1:
    return {"terms": ", ".join(stack.relation.terms) or "none"}
  return {"layers": "; ".join(f"{ranges(layers)}: {label}" for label, layers in layers_of.items())}


def described(encoding: Encoding) -> str:
  """Return an encoding's name with the options that are not at their defaults."""
  given = {
    field.name: value
    for field in dataclasses.fields(encoding)
    if (value := getattr(encoding, field.name)) != field.default
  }
  return " ".join(filter(None, [name_of(encoding), show_options(given)]))


def ranges(numbers: list[int]) -> str:
  """Return ascending numbers with those that follow each other as one range: "0-2, 4"."""
  runs: list[list[int]] = []
  for number in numbers:
    if runs and runs[-1][-1] == number - 1:
      runs[-1].append(number)
    else:
      runs.append([number])
  return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def parts(model: ProbeModel) -> list[str]:
  """Return the parts of a Transformer that the encoding replaces, with the options that it has."""
  return [*model.encoding.acts_in, *["shared"] * (model.stack.shared is not None)]


def costs(model: ProbeModel) -> dict[str, str]:
  """Return what the encoding adds to the parameters and FLOPs of a stack without positions."""
  size = dataclasses.replace(model.stack.size, attention="reference")
  length = probe.available(model.encoding, LENGTH)
  inputs = (jax.ShapeDtypeStruct((1, length), jnp.int32),)
  own, none = (
    matching.costs(probe.builder(encoding, size, model.stack.causal), inputs, length)
    for encoding in (model.encoding, Encoding())
  )
  parameters, flops = (own[each] - none[each] for each in ("parameters", "flops"))
  share = f"{flops / none['flops']:+.1%}"
  return {
    "against none": f"{parameters:+,} parameters, {share} FLOPs",
    "FLOPs": f"{flops / 1e3:+,.1f} k a token against none ({share}), forward, over {length} tokens",
  }


def coverage(model: ProbeModel, profile: Profile, layer: int = 0) -> dict[str, str]:
  """Return which positions or offsets a layer tells apart, and how it treats those beyond."""
  offsets, limit = profile.offsets, model.encoding.limit
  if profile.spread >= ROUNDING:
    logits = np.concatenate([profile.logits, profile.same])
    sides = {"back": logits[..., offsets <= 0][..., ::-1], "ahead": logits[..., offsets >= 0]}
    last = {}  # the first distance from which on all logits are equal
    for side, distances in sides.items():
      apart = np.abs(distances - distances[..., -1:]).max(axis=(0, 1))
      new = np.flatnonzero(apart > ROUNDING * (1 + np.abs(distances).max()))
      if len(apart) > 1:
        last[side] = int(new[-1]) + 1 if len(new) else 0
    covers = "offsets to " + " and ".join(f"{count} {side}" for side, count in last.items())
    beyond = "what is farther has the logit of the last of these, so no offset is new"
    # The last distance may only seem to be the last where the profile ends.
    if max(last.values()) > 0.75 * np.abs(offsets).max():
      covers += ", as far as was looked"
      beyond = "the same formula goes on, to offsets that training has not seen"
  elif "input" in parts(model):
    covers = f"positions {f'0 to {limit - 1}' if limit else 'without end'}, by vectors at the input"
    beyond = "vectors by the same formula, which training has not seen"
  else:
    covers, beyond = "nothing", "nothing new: longer texts are only longer"
  own = model.stack.kinds[layer]
  if own.window is not None or own.chunk is not None:
    beyond = "what lies outside of the window or chunk is not seen"
  return {"covers": covers, "beyond": f"an error beyond position {limit - 1}" if limit else beyond}


def behavior(model: ProbeModel, text: np.ndarray | None = None) -> dict[str, str]:
  """Return how permuting words and shifting positions change the outputs of a stack, measured.

  The stack is that of the model, which reads the words of `text`, int [1,L] or [1,L,I]. Without a
  text all of its weights are `perturbed`, and it reads any words.
  """
  encoding, size, stack = model.encoding, model.stack.size, model.stack
  if text is None:
    stack = probe.perturbed(stack)
    text = any_words()
    weights = "random weights"
  else:
    weights = "the trained weights, on the first words of a validation text"
  length = probe.available(encoding, text.shape[1])
  shift = probe.available(encoding, length + 3) - length
  tokens = text[:, :length]
  order, positions = np.roll(np.arange(length), 3), np.arange(length)[None]
  limit = ROUNDING if size.dtype == "float32" else 0.05

  @nnx.jit
  def run(stack: Stack, tokens, positions):
    return stack(tokens, positions=positions).astype(jnp.float32)

  whole = run(stack, tokens, positions)
  permuted = run(stack, tokens[:, order], positions)
  shifted = run(stack, tokens, positions + shift)
  return {
    "permuting words": change(permuted, whole[:, order], limit) or "permutes the outputs",
    "shifting all": change(shifted, whole, limit) or "changes nothing",
    "measured with": weights,
  }


def permuted(network: Backbone, text: np.ndarray | None = None) -> dict[str, str]:
  """Return how permuting words changes the output of a network without attention."""
  tokens = any_words() if text is None else text
  mask = np.ones((1, tokens.shape[1]), bool)
  order = np.roll(np.arange(tokens.shape[1]), 3)
  whole, other = (network(jnp.asarray(words), mask) for words in (tokens, tokens[:, order]))
  return {"permuting words": change(other, whole, ROUNDING) or "changes nothing"}


def any_words() -> np.ndarray:
  """Return words of an untrained model, int [1,WORDS]."""
  return np.random.default_rng(0).permutation(np.arange(1, VOCABULARY))[None, :WORDS]


def change(a: Array, b: Array, limit: float) -> str | None:
  """Return by how much outputs differ from others, in words; None if by less than a limit."""
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  apart = np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))
  return f"changes the outputs, by {apart:.0%}" if apart >= limit else None
