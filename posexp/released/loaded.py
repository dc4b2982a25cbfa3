"""A model in Python, with its tokenizer: `posexp.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.rngs import abstract_model
from posexp.encodings.rotation import PairRotation
from posexp.encodings.sinusoids import REACH, Turns
from posexp.errors import UserError
from posexp.models.language_model import LanguageModel
from posexp.training.restore import open_alone
from posexp.training.sources import path_of, source


class Loaded(nnx.Module):
  """A model that maps tokens to logits, with its tokenizer.

    model = posexp.load("hf:FOLDER")
    logits = model(tokens, mask)  # [B,L,V]

  `model` is posexp's own module, and `tokenizer` that of the checkpoint (a `tokenizers.Tokenizer`,
  None where the folder has none) or of the run.
  """

  def __init__(
    self,
    model: nnx.Module,
    tokenizer: Any,
    tensors: Callable[[Any], dict[str, np.ndarray]] | None = None,
    vocab_size: int | None = None,
  ):
    self.model, self.tokenizer = model, tokenizer
    self._tensors, self._vocab_size = tensors, vocab_size

  def __call__(
    self,
    tokens: Array,
    mask: Array | None = None,
    *,
    positions: Array | None = None,
    types: Array | None = None,
  ) -> Array:
    """Map tokens int [B,L] to logits [B,L,V]; an encoder without a head, to hidden states [B,L,F].

    Padding, where `mask` [B,L] is 0 or False, may stand on either side, and its own output means
    nothing. Positions int [1 or B,L] count real tokens in a decoder and in RoBERTa, and slots in
    another encoder, unless they are given. They begin at 0 even in RoBERTa, whose positions begin
    at padding + 1, which is 2, in transformers. Without a mask, given positions that do not go up
    by one begin another document. `types` int [B,L] are an encoder's token types.

    If the frequencies of a released model depend on the length, the length is the largest position
    of a real token in the batch, plus 1, as in transformers.

    Raises:
      ValueError: a token, position or type is not one of the model's. Within `jax.jit`, where
        numbers are not known, this is not checked.
    """
    tokens = self._tokens(tokens)
    mask = None if mask is None else jnp.asarray(mask).astype(bool)
    stack = self.model.stack
    if positions is None:
      stack.check(tokens.shape[1])
    else:
      limit = stack.limit
      real = True if limit is None or mask is None else mask
      padding = getattr(self.model, "padding", -1)
      real = real if padding < 0 else real & (tokens != padding)
      bounds = (1 - REACH, REACH) if limit is None else (0, limit)
      positions = _whole(positions, "position", *bounds, real)
    if types is not None:
      if stack.types is None:
        raise ValueError("this model has no token types")
      types = _whole(types, "token type", 0, stack.types.shape[0])
    turning = self._turning(lambda: _length(tokens, mask, positions, self.model))
    if isinstance(self.model, LanguageModel):
      return _causal(self.model, turning, tokens, mask, positions)
    return _encoder(self.model, turning, tokens, mask, positions, types)

  def greedy(self, tokens: Array, count: int) -> Array:
    """Return the `count` likeliest tokens after tokens int [B,L] of a decoder, by a cache.

    Each is the likeliest by the logits of the whole text before it.

    Raises:
      ValueError: a token is none of the model's, there are too many, or `count` is below 1.
    """
    text = self._tokens(tokens)
    if count < 1:
      raise ValueError(f"count must be at least 1, not {count}")
    length = text.shape[1]
    cache = self.model.stack.empty_cache(len(text), length + count)
    likeliest = []
    for _ in range(count):
      text, cache = _next(self.model, self._turning(lambda now=length: now), text, cache)
      likeliest.append(text)
      length += 1
    return jnp.concatenate(likeliest, axis=1)

  def _tokens(self, tokens: Array) -> Array:
    ids = _whole(tokens, "token", 0, self._vocab_size or REACH)
    if ids.ndim != 2 or not ids.shape[1]:
      raise ValueError(f"tokens must be [B,L] with L of at least 1, not {[*ids.shape]}")
    return ids

  def _turning(self, length: Callable[[], int]) -> dict[int, Turns]:
    """Return the frequencies of layers that follow the length, by their numbers."""
    blocks = enumerate(self.model.stack.blocks) if self._tensors is not None else ()
    relations = {number: block.attention.relation for number, block in blocks}
    follow = {
      number: relation
      for number, relation in relations.items()
      if isinstance(relation, PairRotation) and relation.rope.by_length
    }
    return {number: each.of_length(length()) for number, each in follow.items()}

  def tensors(self, params: Any = None) -> dict[str, np.ndarray]:
    """Return the parameters, or gradients shaped like them, by the names and shapes of the file.

    Raises:
      ValueError: the model is that of a run, which has no such file.
    """
    if self._tensors is None:
      raise ValueError("this model does not come from a folder of safetensors")
    params = nnx.state(self.model, nnx.Param) if params is None else params
    return self._tensors(params)


def _whole(given: Array, what: str, least: int, end: int, real: Array | bool = True) -> Array:
  """Return integers; raise ValueError unless those of `real` slots are from `least` below `end`."""
  if isinstance(given, jax.core.Tracer):
    return given
  numbers = np.asarray(given)  # before JAX cuts them to 32 bits
  if numbers.dtype.kind not in "iu":
    raise ValueError(f"a {what} must be a whole number, and these are {numbers.dtype}")
  wrong = (numbers < least) | (numbers >= end)
  if not isinstance(real, jax.core.Tracer):
    wrong = wrong & np.asarray(real)
  if wrong.any():
    first = np.broadcast_to(numbers, wrong.shape)[wrong][0]
    raise ValueError(f"{what} {first}: this model has those from {max(least, 0)} to {end - 1:,}")
  return jnp.asarray(numbers)


def _length(tokens: Array, mask: Array | None, positions: Array | None, model: nnx.Module) -> int:
  """Return the largest position of a real token in a batch, plus 1.

  Raises:
    ValueError: it depends on numbers that are not known yet.
  """
  if positions is None and mask is None:
    return tokens.shape[1]
  if any(isinstance(array, jax.core.Tracer) for array in (mask, positions)):
    raise ValueError(
      "the frequencies of this model follow the length, so its mask and positions must be known: "
      "leave them out of what jax.jit traces"
    )
  real = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask)
  if positions is not None:
    places = np.asarray(positions)
  elif isinstance(model, LanguageModel):
    places = np.cumsum(real, axis=1) - 1
  else:
    places = np.arange(tokens.shape[1])[None]
  return int(np.where(real, places, 0).max(initial=0)) + 1


def _turned(model: nnx.Module, turning: dict[int, Turns]) -> nnx.Module:
  """Return a model some of whose layers turn by these frequencies."""
  if not turning:
    return model
  model = nnx.clone(model)
  for number, each in turning.items():
    model.stack.blocks[number].attention.relation.fixed = each
  return model


@nnx.jit
def _causal(
  model: LanguageModel,
  turning: dict[int, Turns],
  tokens: Array,
  mask: Array | None,
  positions: Array | None,
) -> Array:
  model = _turned(model, turning)
  documents = None
  if mask is not None:
    documents = jnp.where(mask, 0, -1)
    counted = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    positions = counted if positions is None else positions
  elif positions is not None:
    jumps = jnp.diff(positions, axis=1, prepend=positions[:, :1] - 1) != 1
    documents = jnp.broadcast_to(jnp.cumsum(jumps, axis=1), tokens.shape)
  empty = model.stack.empty_memory(len(tokens), 0)
  hidden, _ = model.stack.recur(tokens, empty, documents=documents, positions=positions)
  return model.reader.logits(hidden)


@nnx.jit
def _encoder(
  model: nnx.Module,
  turning: dict[int, Turns],
  tokens: Array,
  mask: Array | None,
  positions: Array | None,
  types: Array | None,
) -> Array:
  model = _turned(model, turning)
  if positions is None and model.padding >= 0:
    real = tokens != model.padding
    positions = jnp.where(real, jnp.cumsum(real, axis=1), 0) - 1
  given = {"positions": positions} | ({} if types is None else {"types": types})
  return model(tokens, mask, **given)


@nnx.jit
def _next(
  model: LanguageModel, turning: dict[int, Turns], tokens: Array, cache: Any
) -> tuple[Array, Any]:
  model = _turned(model, turning)
  hidden, cache = model.stack.step(tokens, cache)
  return model.reader.logits(hidden[:, -1:]).argmax(-1), cache


def filled(build: Any, found: dict[str, Any], dtype: str) -> nnx.Module:
  """Return a model with parameters by their paths, each read and put on the device in turn."""
  model = abstract_model(build)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)
  if missing := [path for path, _ in nnx.to_flat_state(params) if named(path) not in found]:
    raise UserError(
      f"{named(missing[0])} is no parameter of the released model: it must be trained"
    )
  leaves = sorted(nnx.to_flat_state(params), key=lambda each: -each[1].size)
  for path, leaf in leaves:
    there = found[named(path)].shape
    if there != leaf.shape:
      raise UserError(
        f"{named(path)} is {[*there]} in the released model and {[*leaf.shape]} with these options"
      )
  flat = {  # large ones first, while there is room for their copies
    path: leaf.replace(jax.device_put(np.asarray(found[named(path)], dtype)))
    for path, leaf in leaves
  }
  return nnx.merge(graphdef, nnx.from_flat_state(flat.items()), rest)


def named(path: tuple[Any, ...]) -> str:
  """Return a parameter's path as a text."""
  return path_of("/".join(map(str, path)))


def load(name: str | Path, *options: str) -> Loaded:
  """Load a released model, "hf:FOLDER" or "hf:OWNER/NAME", or a run of a language model.

    posexp.load("hf:FOLDER", "rope.scaling=yarn", "rope.factor=4", "rope.trained_length=8192")

  Options are those of its encoding, and `model.dtype`, which is that of the weights unless given.

  Raises:
    UserError: it cannot be read, or an option does not suit it.
  """
  if wrong := [option for option in options if "=" not in option]:
    raise UserError(f"{wrong[0]}: give an option with its value, as in rope.base=10000")
  if (released := source(name)) is not None:
    return released.load(options)
  trained = open_alone(Path(name), "generate", options)
  task: Any = trained.setup.task
  tokenizer = task.vocabulary(trained.run.path)
  return Loaded(trained.snapshot.model(), tokenizer, vocab_size=tokenizer.size)
