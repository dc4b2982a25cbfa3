"""The card of an encoding: where it enters, what it costs, what it covers, what leaves it alone."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posexp.analysis.probe import (
  WORDS,
  Profile,
  Subject,
  builder,
  moved,
  positions_in,
  refusal,
  relative_to_zero,
)
from posexp.encodings.base import Encoding, Relation
from posexp.tasks.contract import ModelSpec
from posexp.training import matching

PARTS = {
  "embed": "the embedding",
  "linear": "every linear map",
  "norm": "every norm",
  "relation": "how queries meet keys and values, in every layer",
  "shared": "what all layers share of it",
}
SEEN = 1e-4  # differences below are rounding


def parts(encoding: Encoding, subject: Subject) -> list[str]:
  """The parts of a Transformer in which the encoding departs from none."""
  size, causal = subject.size, subject.causal
  width, heads = size.d_model, size.num_heads

  def make(of: Encoding, part: str) -> Any:
    rngs = nnx.Rngs(params=0, encoding=0)
    if part == "embed":
      return of.embed(WORDS, width, scale=1.0, causal=causal, rngs=rngs)
    if part == "linear":
      return of.linear(width, width, rngs=rngs)
    if part == "norm":
      return of.norm(width, rngs=rngs)
    return getattr(of, part)(heads, width // heads, causal=causal, rngs=rngs)

  def form(of: Encoding, part: str) -> Any:
    found = nnx.eval_shape(lambda: make(of, part))
    return nnx.graphdef(found) if isinstance(found, nnx.Module) else found

  return [part for part in PARTS if form(encoding, part) != form(Encoding(), part)]


def paragraphs(encoding: Encoding) -> list[str]:
  """The class's docstring, a string for each paragraph."""
  if type(encoding) is Encoding:
    return ["no positions"]
  text = inspect.getdoc(type(encoding)) or ""
  return [" ".join(each.split()) for each in text.split("\n\n") if each.strip()]


def paper(encoding: Encoding) -> str | None:
  """The first reference of the docstring: in parentheses with a year, or names before a year."""
  text = " ".join(paragraphs(encoding))
  year = r"(?:19|20)\d\d"
  found = re.search(rf"\(([^()]*\b{year}[^()]*)\)", text)
  found = found or re.search(rf"((?:[A-Z][\w-]+(?:, | & | ))+(?:et al\. )?{year})", text)
  return found[1] if found else None


def added(encoding: Encoding, subject: Subject, spec: ModelSpec, length: int) -> dict[str, str]:
  """What it adds against none, in parameters and in FLOPs."""
  size = subject.size
  if refusal(encoding, size, False):
    # No classifier can be built, but the stack of a decoder can.
    own, none = (
      matching.costs(builder(each, size, True), spec.inputs(length), length)
      for each in (encoding, Encoding())
    )
    return {
      "parameters": f"{own['parameters'] - none['parameters']:+,} against none, in a decoder",
      "FLOPs": f"{own['flops'] / 1e6:.3f} M a token, forward, over {length} tokens; "
      f"{(own['flops'] - none['flops']) / 1e3:+,.1f} k against none "
      f"({own['flops'] / none['flops'] - 1:+.1%})",
    }
  own, none = (
    matching.facts(dataclasses.replace(spec, encoding=each, size=size), length, size)
    for each in (encoding, Encoding())
  )
  count, base = own["parameters"], none["parameters"]
  cost, plain = own["flops_per_token"], none["flops_per_token"]
  return {
    "parameters": f"{count:,} with {spec.vocab_size:,} words; {count - base:+,} against none "
    f"({count / base - 1:+.1%})",
    "FLOPs": f"{cost / 1e6:.3f} M a token, forward, over {length} tokens; "
    f"{(cost - plain) / 1e3:+,.1f} k against none ({cost / plain - 1:+.1%})",
  }


def covered(found: Profile, where: list[str], limit: int | None) -> dict[str, str]:
  """Which positions or offsets it tells apart, and what happens beyond."""
  reach = int(found.offsets.max(initial=0)) or int(-found.offsets.min())
  end = f"an error beyond position {limit - 1}" if limit is not None else None
  flat = spread(found) < SEEN
  if flat and not {"embed", "relation"} & set(where):
    return {"covers": "nothing", "beyond": "nothing new: longer texts are only longer"}
  if flat and "embed" in where:
    covers = f"positions {'0 to ' + str(limit - 1) if limit is not None else 'without end'}"
    beyond = end or "vectors by the same formula, which training has not seen"
    return {"covers": f"{covers}, by vectors at the input", "beyond": beyond}
  if flat:
    beyond = end or "see the description"
    return {"covers": "its logits at the start tell no offsets apart", "beyond": beyond}
  sides, tails = [], []
  for side, name in ((-1, "back"), (1, "ahead")):
    chosen = np.flatnonzero(side * found.offsets >= 0)[::side]
    if len(chosen) > 1:
      tails.append(max(_tail(each[..., chosen]) for each in (found.logits, found.alike)))
      sides.append(f"{tails[-1]} {name}")
  # A last bucket may only seem to be the last where the looking ends.
  if max(tails) > 0.75 * reach:
    return {
      "covers": f"offsets to {' and '.join(sides)}, as far as was looked",
      "beyond": end or "the same formula goes on, to offsets that training has not seen",
    }
  same = "what is farther has the logit of the last of these, so no offset is new"
  return {"covers": f"offsets to {' and '.join(sides)}", "beyond": end or same}


def spread(found: Profile) -> float:
  """The largest difference that an offset makes to a logit."""
  both = (relative_to_zero(each, found.offsets) for each in (found.logits, found.alike))
  return max(float(np.abs(each).max()) for each in both)


def _tail(logits: np.ndarray) -> int:
  """The first distance from which on all logits [N,H,O] are alike."""
  apart = np.abs(logits - logits[..., -1:]).max(axis=(0, 1)) > SEEN * (1 + np.abs(logits).max())
  return int(np.flatnonzero(apart)[-1]) + 1 if apart.any() else 0


def modes(encoding: Encoding, size: Any) -> dict[str, str]:
  """Which Transformers may have it."""
  found = {}
  for name, causal in (("encoder", False), ("decoder", True)):
    refused = refusal(encoding, size, causal)
    found[name] = f"no: {refused}" if refused else "yes"
  plain = type(encoding.cross(size.num_heads, size.d_model // size.num_heads)) is Relation
  score = "plain" if plain else "its own score, without positions"
  found["cross"] = f"{score}: positions of another sequence have no offset to one's own"
  return found


def behavior(subject: Subject) -> dict[str, str]:
  """What permuting words, shifting, padding and caching do to a stack's outputs, measured.

  All weights are `moved`.
  """
  length, cut, shift = 8, 5, 3
  length = positions_in(subject.encoding, length)
  shift = min(shift, positions_in(subject.encoding, length + shift) - length)
  draw = np.random.default_rng(0)
  state = moved(subject).state
  tokens = draw.permutation(np.arange(1, WORDS))[None, :length]
  order = np.roll(np.arange(length), 3)
  positions, everything = np.arange(length)[None], np.ones((1, length), bool)

  @jax.jit
  def run(state, tokens, mask, positions):
    return subject.stack(state)(tokens, mask, positions=positions).astype(jnp.float32)

  @jax.jit
  def step(state, token, cache):
    output, cache = subject.stack(state).step(token, cache)
    return output.astype(jnp.float32), cache

  def says(a, b) -> str:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    change = np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))
    limit = SEEN if subject.size.dtype == "float32" else 0.05
    return "changes nothing" if change < limit else f"changes the outputs, by {change:.0%}"

  whole = run(state, tokens, everything, positions)
  other = tokens.copy()
  other[:, cut:] = other[:, cut:][:, ::-1] % (WORDS - 1) + 1
  real = np.arange(length)[None] < cut
  padded = [run(state, each, real, positions)[:, :cut] for each in (tokens, other)]
  permuted = run(state, tokens[:, order], everything, positions)
  order_seen = says(permuted, whole[:, order])
  found = {
    "permuting words": "permutes the outputs" if "nothing" in order_seen else order_seen,
    "shifting all": says(run(state, tokens, everything, positions + shift), whole)
    if shift
    else "there is no position to shift to",
    "padding": says(*padded),
  }
  if subject.causal:
    cache = subject.stack(state).empty_cache(1, length)
    outputs = []
    for i in range(length):
      output, cache = step(state, tokens[:, i : i + 1], cache)
      outputs.append(output)
    found["caching"] = says(np.concatenate(outputs, axis=1), whole)
  return found


def lines(name: str, encoding: Encoding, rows: dict[str, str | None], width: int = 96) -> list[str]:
  """The card as it is printed."""
  title, *rest = paragraphs(encoding) or [name]
  found = [f"{name}: {title}"]
  found = textwrap.wrap(found[0], width, subsequent_indent="  ")
  for paragraph in rest:
    found += ["", *textwrap.wrap(paragraph, width, initial_indent="  ", subsequent_indent="  ")]
  found.append("")
  for label, text in rows.items():
    if text is None:
      continue
    indent = " " * 17
    found += textwrap.wrap(f"{label:<17}{text}", width, subsequent_indent=indent)
  return found
