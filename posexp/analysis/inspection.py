"""The whole of an inspection: which card and which figures there are for an encoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from posexp import config as configuration
from posexp import plotting
from posexp.analysis import card, figures, probe
from posexp.encodings import Encoding
from posexp.encodings.base import Words
from posexp.errors import UserError
from posexp.models.classifier import ClassifierSpec
from posexp.models.transformer import Size
from posexp.tasks.contract import ModelSpec
from posexp.training.devices import prepare

LENGTH = 64  # of the texts for which FLOPs are counted, where there is no run
VOCABULARY = 10_000
LAYERS = 6  # that are drawn
DIMENSIONS = (32, 128, 512)
BASES = (100.0, 10_000.0, 1_000_000.0)


def report(
  config: dict[str, Any], encoding: Encoding, run: Path | None, out: Path, length: int
) -> tuple[list[str], list[Path]]:
  """The lines of the card, and the files of the figures.

  Raises:
    UserError: the encoding does not suit the model, the run cannot be opened, or the folder `out`
      cannot be written.
  """
  prepare()
  # Programs run once here, so that it takes longer to optimize them than to run them.
  jax.config.update("jax_disable_most_optimizations", True)
  name = config["encoding"]
  if run is None:
    size = configuration.build(Size, config["model"], "model")
    trained, spec, texts = None, ClassifierSpec(VOCABULARY, 2, encoding, size), LENGTH
    subject = fresh(encoding, size)
  else:
    from posexp.training.restore import open_trained

    trained = open_trained(run)
    spec, texts = trained.spec, trained.data.length
    graphdef, *state = nnx.split(trained.model().stacks[0], nnx.Param, ...)
    subject = probe.Subject(encoding, spec.size, False, graphdef, tuple(state))
  shown = range(min(spec.size.num_layers, LAYERS)) if trained else range(1)
  profiles = {
    f"layer {layer}" if trained else "before training": probe.profile(subject, 2 * length, layer)
    for layer in shown
  }
  if trained is None and "relation" in card.parts(encoding, subject) and flat(profiles):
    # Its tables start at zero: only moved away from there they show what they can do.
    profiles = {"weights drawn": probe.profile(probe.moved(subject), 2 * length)}
  first = next(iter(profiles.values()))
  rows = facts(encoding, subject, spec, texts, first)
  given = ", ".join(f"{k}={configuration.show(v)}" for k, v in (config.get(name) or {}).items())
  rows = {"options": given or None, **rows}
  files = []
  for title, figure in draw(name, encoding, subject, profiles, rows, length, trained):
    files += plotting.save(figure, out, title)
  return card.lines(name, encoding, rows), files


def fresh(encoding: Encoding, size: Size) -> probe.Subject:
  """An untrained encoder, or a decoder where there is no encoder.

  Raises:
    UserError: there is neither.
  """
  refusals = [probe.refusal(encoding, size, causal) for causal in (False, True)]
  if all(refusals):
    raise UserError(f"model: {refusals[0]}")
  return probe.untrained(encoding, size, causal=refusals[0] is not None)


def facts(
  encoding: Encoding,
  subject: probe.Subject,
  spec: ModelSpec,
  texts: int,
  profile: probe.Profile,
) -> dict[str, str | None]:
  """The rows of the card."""
  where = card.parts(encoding, subject)
  terms = subject.stack().blocks[0].attention.relation.terms
  rows = {
    "paper": card.paper(encoding),
    "enters": "; ".join(card.PARTS[part] for part in where) or "nowhere",
    "terms": ", ".join(terms),
    **card.added(encoding, subject, spec, texts),
    **card.covered(profile, where, encoding.limit),
    **card.modes(encoding, subject.size),
  }
  untrained = {
    causal: probe.untrained(encoding, subject.size, causal)
    for causal in (False, True)
    if not probe.refusal(encoding, subject.size, causal)
  }
  measured = {}
  for causal in sorted(untrained, reverse=True):  # caching of a decoder, the rest of an encoder
    measured |= card.behavior(untrained[causal])
  return rows | measured


def draw(
  name: str,
  encoding: Encoding,
  subject: probe.Subject,
  profiles: dict[str, probe.Profile],
  rows: dict[str, Any],
  length: int,
  trained: Any,
) -> Iterator[tuple[str, Figure]]:
  """All figures that there are for an encoding, by name."""
  count = probe.positions_in(encoding, length)
  word = int(trained.data.word_counts.argmax()) if trained else 1
  vectors = jax.jit(
    lambda state: probe.position_vectors(subject.stack(state).embed, count, word)
  )(subject.state)  # fmt: skip
  found = probe.chosen(vectors)
  if np.ptp(found, axis=0).max() > 1e-9:
    yield from of_vectors(name, encoding, subject, found, trained)
  first = next(iter(profiles.values()))
  if not flat(profiles):
    # Where offsets are not all that matters, another query would have other logits.
    asked = name if encoding.relative else f"{name}, query at position {-first.offsets.min()}"
    yield "logits-by-offset", figures.logits_by_offset(asked, profiles, length)
    yield "weights-by-offset", figures.weights_by_offset(asked, profiles, length)
    if len(first.terms) > 1:
      for layer, profile in profiles.items():
        tail = f"-{layer.replace(' ', '-')}" if trained else ""
        where = f", {layer}" if trained else ""
        drawn = figures.terms_by_offset(asked, profile, length, where)
        yield f"terms-by-offset{tail}", drawn
  when = "after training" if trained else "before training"
  if tables := tables_of(subject):
    offsets = all(each.shape[-2] % 2 for each in tables.values())
    yield "rows", figures.rows(name, tables, offsets, when)
  if trained:
    yield from of_run(name, trained)


def flat(profiles: dict[str, probe.Profile]) -> bool:
  """Whether no logit depends on the offset."""
  return all(card.spread(each) < card.SEEN for each in profiles.values())


def of_vectors(
  name: str, encoding: Encoding, subject: probe.Subject, found: np.ndarray, trained: Any
) -> Iterator[tuple[str, Figure]]:
  """What there is to see of an encoding that gives each position a vector."""
  embed = subject.stack().embed
  apart = any(isinstance(each, Words) for _, each in nnx.iter_modules(embed))
  of = f"{'' if apart else ' with one word'}, {'after' if trained else 'before'} training"
  yield "vectors", figures.vectors(name, found, of)
  yield "gram", figures.gram(name, found)
  yield "products-by-offset", figures.products_by_offset(name, families(encoding, subject, found))
  maps = None
  if trained:
    attention = subject.stack().blocks[0].attention
    maps = tuple(
      np.asarray(each(found.astype(np.float32)), np.float64)
      for each in (attention.query, attention.key)
    )
  shares = probe.shares_by_maps(found, subject.size.num_heads, maps)
  yield "share-of-offset", figures.shares(name, shares)


def families(
  encoding: Encoding, subject: probe.Subject, found: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
  """Vectors of several widths, and of several bases where there are bases."""
  own = subject.size.d_model
  count = len(found)
  asked: dict[tuple[str, str], tuple[Encoding, int]] = {}
  for width in DIMENSIONS:
    asked["by width", f"d = {width}"] = (encoding, width)
  for base in BASES:
    if (other := probe.with_option(encoding, base=base)) is not None:
      asked[f"by base, d = {own}", f"base = {base:g}"] = (other, own)

  def embedded(of: Encoding, width: int) -> Any:
    rngs = nnx.Rngs(params=0, encoding=1)
    embed = of.embed(probe.WORDS, width, scale=1.0, causal=subject.causal, rngs=rngs)
    return probe.position_vectors(embed, count, 1)

  drawn = jax.jit(lambda: [embedded(*each) for each in asked.values()])()
  result: dict[str, dict[str, np.ndarray]] = {}
  for (family, label), each in zip(asked, drawn, strict=True):
    result.setdefault(family, {})[label] = probe.chosen(each)
  return result


def tables_of(subject: probe.Subject) -> dict[str, np.ndarray]:
  """Tables of vectors [..., rows, D] that the first layer's relation, or all layers, train."""
  stack = subject.stack()
  found = {}
  width = subject.size.d_model // subject.size.num_heads
  for label, module in (("", stack.blocks[0].attention.relation), ("shared ", stack.shared)):
    if not isinstance(module, nnx.Module):
      continue
    for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
      title = label + "/".join(map(str, path))
      value = np.asarray(leaf[...], np.float64)
      table = value.ndim >= 2 and value.shape[-1] == width and value.shape[-2] > 4
      if table and not re.search("kernel", title) and value[..., 0].size <= 4096:
        found[title] = value
  return found


def of_run(name: str, trained: Any) -> Iterator[tuple[str, Figure]]:
  """What only a trained model can show."""
  batches: dict[int, list] = {}
  for batch in trained.data.texts("validation", trained.snapshot.batch_size):
    batches.setdefault(batch["tokens"].shape[1], []).append(batch)
  most = max(batches.values(), key=len)[:8]
  stack = trained.model().stacks[0]
  yield "attention-on-text", figures.mass(name, probe.on_text(stack, trained.spec.positions, most))
  frequency = getattr(stack.embed, "frequency", None)
  if isinstance(frequency, nnx.Variable) and len(frequency[...]) > 1:
    table = np.asarray(frequency[...], np.float64)
    yield "frequencies-by-word", figures.frequencies(name, table, trained.data.word_counts)
