"""The card of an encoding: where it enters, what it costs, what it covers, what leaves it alone."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from posexp.analysis import probe
from posexp.analysis.probe import VOCABULARY, ProbeModel, Profile
from posexp.encodings.base import Encoding, Relation
from posexp.models.transformer import Size, Stack
from posexp.tasks.contract import ModelSpec
from posexp.training import matching

PARTS = {
  "embed": "the embedding",
  "linear": "every linear map",
  "norm": "every norm",
  "relation": "how queries meet keys and values, in every layer",
  "shared": "what all layers share of it",
}
ROUNDING = 1e-4  # differences below are rounding
WIDTH = 96  # of a line
INDENT = 17  # of the text after a row's label


def rows(
  model: ProbeModel, profile: Profile, spec: ModelSpec, length: int, options: str
) -> dict[str, str]:
  """The labeled rows of the card; what an encoding does is measured, untrained, for what it can be.

  `profile` is of its first layer; costs are those of `spec`, for sequences of `length` tokens.
  """
  encoding, size = model.encoding, model.stack.size
  enters = parts(encoding, size, model.stack.causal)
  found = {
    "options": options,
    "paper": paper(encoding),
    "enters": "; ".join(PARTS[part] for part in enters) or "nowhere",
    "terms": ", ".join(model.stack.relation.terms),
    **costs(spec, length),
    **coverage(profile, enters, encoding.limit),
    **modes(encoding, size),
  }
  for causal in (True, False):  # a decoder shows what caching does, an encoder all else
    if not probe.refusal(encoding, size, causal):
      found |= behavior(probe.untrained(encoding, size, causal))
  return {label: text for label, text in found.items() if text}


def parts(encoding: Encoding, size: Size, causal: bool) -> list[str]:
  """The parts of a Transformer in which the encoding departs from none."""

  def structures(encoding: Encoding) -> list[Any]:
    stack = nnx.eval_shape(lambda: probe.builder(encoding, size, causal)(nnx.Rngs(0)))
    block = stack.blocks[0]
    found = (
      stack.embed,
      block.feed_forward.up,
      block.feed_forward_norm,
      stack.relation,
      stack.shared,
    )
    return [nnx.graphdef(each) if isinstance(each, nnx.Module) else each for each in found]

  both = zip(PARTS, structures(encoding), structures(Encoding()), strict=True)
  return [part for part, own, none in both if own != none]


def paragraphs(encoding: Encoding) -> list[str]:
  """The paragraphs of the class's docstring, each on one line."""
  if type(encoding) is Encoding:
    return ["no positions"]
  text = inspect.getdoc(type(encoding)) or ""
  return [" ".join(each.split()) for each in text.split("\n\n") if each.strip()]


def paper(encoding: Encoding) -> str | None:
  """The first reference of the docstring: in parentheses with a year, or names before a year."""
  text, year = " ".join(paragraphs(encoding)), r"(?:19|20)\d\d"
  found = re.search(rf"\(([^()]*\b{year}[^()]*)\)", text)
  found = found or re.search(rf"((?:[A-Z][\w-]+(?:, | & | ))+(?:et al\. )?{year})", text)
  return found[1] if found else None


def costs(spec: ModelSpec, length: int) -> dict[str, str]:
  """Parameters and FLOPs of a model for sequences of `length` tokens, and what its encoding adds.

  Of an encoding that has no encoder they are those of a decoder without a head.
  """
  specs = [dataclasses.replace(spec, encoding=each) for each in (spec.encoding, Encoding())]
  if probe.refusal(spec.encoding, spec.size, causal=False):
    builders = [probe.builder(each.encoding, each.size, causal=True) for each in specs]
    own, none = (matching.costs(build, spec.inputs(length), length) for build in builders)
    whole, share = "", ", in a decoder"
  else:
    own, none = (matching.counts(each, length) for each in specs)
    whole = f"{own['parameters']:,} with {spec.vocab_size:,} words; "
    share = f" ({own['parameters'] / none['parameters'] - 1:+.1%})"
  return {
    "parameters": f"{whole}{own['parameters'] - none['parameters']:+,} against none{share}",
    "FLOPs": f"{own['flops'] / 1e6:.3f} M a token, forward, over {length} tokens; "
    f"{(own['flops'] - none['flops']) / 1e3:+,.1f} k against none "
    f"({own['flops'] / none['flops'] - 1:+.1%})",
  }


def coverage(profile: Profile, enters: list[str], limit: int | None) -> dict[str, str]:
  """Which positions or offsets the encoding tells apart, and what happens beyond these.

  `enters` are its `parts`; `limit` is the number of its positions.
  """
  end = limit and f"an error beyond position {limit - 1}"
  if profile.spread < ROUNDING:
    if "embed" in enters:
      ends = f"0 to {limit - 1}" if limit else "without end"
      covers = f"positions {ends}, by vectors at the input"
      beyond = end or "vectors by the same formula, which training has not seen"
    elif "relation" in enters:
      covers = "its logits at the start tell no offsets apart"
      beyond = end or "see the description"
    else:
      covers, beyond = "nothing", "nothing new: longer texts are only longer"
    return {"covers": covers, "beyond": beyond}
  offsets = profile.offsets
  last = {}
  for name, chosen in (("back", np.flatnonzero(offsets <= 0)[::-1]), ("ahead", offsets >= 0)):
    found = [last_distinct(each[..., chosen]) for each in (profile.logits, profile.same)]
    if np.count_nonzero(offsets[chosen]):
      last[name] = max(found)
  covers = "offsets to " + " and ".join(f"{count} {side}" for side, count in last.items())
  # The last distance may only seem to be the last where the profile ends.
  if max(last.values()) > 0.75 * np.abs(offsets).max():
    covers += ", as far as was looked"
    beyond = "the same formula goes on, to offsets that training has not seen"
  else:
    beyond = "what is farther has the logit of the last of these, so no offset is new"
  return {"covers": covers, "beyond": end or beyond}


def last_distinct(logits: np.ndarray) -> int:
  """The first distance from which on all logits [N,H,distances] are equal."""
  apart = np.abs(logits - logits[..., -1:]).max(axis=(0, 1))
  apart = apart > ROUNDING * (1 + np.abs(logits).max())
  return int(np.flatnonzero(apart)[-1]) + 1 if apart.any() else 0


def modes(encoding: Encoding, size: Size) -> dict[str, str]:
  """Which Transformers may have it."""
  refusals = {
    name: probe.refusal(encoding, size, causal)
    for name, causal in (("encoder", False), ("decoder", True))
  }
  found = {name: f"no: {why}" if why else "yes" for name, why in refusals.items()}
  plain = type(encoding.cross(size.num_heads, size.d_model // size.num_heads)) is Relation
  score = "plain" if plain else "its own score, without positions"
  found["cross"] = f"{score}: positions of another sequence have no offset to one's own"
  return found


def behavior(model: ProbeModel) -> dict[str, str]:
  """What permuting words, shifting, padding and caching do to a stack's outputs, measured.

  All weights are `perturbed`.
  """
  encoding, stack = model.encoding, probe.perturbed(model.stack)
  length = probe.available(encoding, 8)
  cut, shift = 5, probe.available(encoding, length + 3) - length
  draw = np.random.default_rng(0)
  tokens = draw.permutation(np.arange(1, VOCABULARY))[None, :length]
  order = np.roll(np.arange(length), 3)
  positions, everything = np.arange(length)[None], np.ones((1, length), bool)
  limit = ROUNDING if stack.size.dtype == "float32" else 0.05

  @nnx.jit
  def run(stack: Stack, tokens, mask, positions):
    return stack(tokens, mask, positions=positions).astype(jnp.float32)

  def change(a: np.ndarray, b: np.ndarray) -> str | None:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))
    return f"changes the outputs, by {size:.0%}" if size >= limit else None

  whole = run(stack, tokens, everything, positions)
  other = tokens.copy()
  other[:, cut:] = other[:, cut:][:, ::-1] % (VOCABULARY - 1) + 1
  real = positions < cut
  padded = [run(stack, each, real, positions)[:, :cut] for each in (tokens, other)]
  permuted = run(stack, tokens[:, order], everything, positions)
  shifted = run(stack, tokens, everything, positions + shift)
  nothing = "changes nothing"
  found = {
    "permuting words": change(permuted, whole[:, order]) or "permutes the outputs",
    "shifting all": (change(shifted, whole) or nothing)
    if shift
    else "there is no position to shift to",
    "padding": change(*padded) or nothing,
  }
  if stack.causal:
    by_step = probe.decoded(stack, tokens, step=nnx.jit(Stack.step))
    found["caching"] = change(by_step, whole) or nothing
  return found


def lines(name: str, encoding: Encoding, rows: dict[str, str]) -> list[str]:
  """The card as it is printed: the description, then the rows."""
  title, *rest = paragraphs(encoding) or [name]
  found = textwrap.wrap(f"{name}: {title}", WIDTH, subsequent_indent="  ")
  for paragraph in rest:
    found += ["", *textwrap.wrap(paragraph, WIDTH, initial_indent="  ", subsequent_indent="  ")]
  found.append("")
  for label, text in rows.items():
    found += textwrap.wrap(f"{label:<{INDENT}}{text}", WIDTH, subsequent_indent=" " * INDENT)
  return found
