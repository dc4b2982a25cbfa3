"""A model in Python, with its tokenizer: `posexp.load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.data.corpus import kept_vocabulary
from posexp.encodings.rngs import abstract_model
from posexp.encodings.rotation import PairRotation
from posexp.errors import UserError
from posexp.models.language_model import LanguageModel
from posexp.released import PREFIX
from posexp.released.weights import Released, parameters, tensors
from posexp.tasks.language_modeling import LanguageModeling
from posexp.training.from_folder import plain
from posexp.training.released_options import changed
from posexp.training.restore import open_alone, with_options


class Loaded(nnx.Module):
  """A model that maps tokens to logits, with its tokenizer.

    model = posexp.load("hf:FOLDER")
    logits = model(tokens, mask)  # [B,L,V]

  `model` is posexp's own module, and `tokenizer` that of the checkpoint (a `tokenizers.Tokenizer`,
  None where the folder has none) or of the run.
  """

  def __init__(self, model: nnx.Module, tokenizer: Any, source: tuple[Released, Any] | None = None):
    self.model, self.tokenizer = model, tokenizer
    self._source = source

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
    another encoder, unless they are given. Without a mask, given positions that do not go up by one
    begin another document. `types` int [B,L] are an encoder's token types.

    Raises:
      ValueError: there are more tokens than positions, or types of a model without them.
    """
    tokens = jnp.asarray(tokens)
    mask = None if mask is None else jnp.asarray(mask).astype(bool)
    positions = None if positions is None else jnp.asarray(positions)
    stack = self.model.stack
    if positions is None:
      stack.check(tokens.shape[1])
    if types is not None and stack.types is None:
      raise ValueError("this model has no token types")
    if self._source is not None:  # whose frequencies may follow the longest text of a batch
      longest = tokens.shape[1] if positions is None else int(positions.max()) + 1
      for block in stack.blocks:
        if isinstance(block.attention.relation, PairRotation):
          block.attention.relation.fix(longest)
    if isinstance(self.model, LanguageModel):
      return _causal(self.model, tokens, mask, positions)
    return _encoder(self.model, tokens, mask, positions, types)

  def greedy(self, tokens: Array, count: int) -> Array:
    """Return the `count` likeliest tokens after tokens int [B,L] of a decoder, by a cache."""
    text, cache = jnp.asarray(tokens), None
    cache = self.model.stack.empty_cache(len(text), text.shape[1] + count)
    found = []
    for _ in range(count):
      text, cache = _next(self.model, text, cache)
      found.append(text)
    return jnp.concatenate(found, axis=1)

  def tensors(self, params: Any = None) -> dict[str, np.ndarray]:
    """Return the parameters, or gradients like them, by the names and shapes of the file.

    Raises:
      ValueError: the model is that of a run, which has no such file.
    """
    if self._source is None:
      raise ValueError("this model does not come from a folder of safetensors")
    params = nnx.state(self.model, nnx.Param) if params is None else params
    return tensors(*self._source, params)


@nnx.jit
def _causal(
  model: LanguageModel, tokens: Array, mask: Array | None, positions: Array | None
) -> Array:
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
  tokens: Array,
  mask: Array | None,
  positions: Array | None,
  types: Array | None,
) -> Array:
  if positions is None and model.padding >= 0:
    real = tokens != model.padding
    positions = jnp.where(real, jnp.cumsum(real, axis=1), 0) - 1
  given = {"positions": positions} | ({} if types is None else {"types": types})
  return model(tokens, mask, **given)


@nnx.jit
def _next(model: LanguageModel, tokens: Array, cache: Any) -> tuple[Array, Any]:
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
  return plain("/".join(map(str, path)))


def load(name: str | Path, *options: str) -> Loaded:
  """Load a released model, "hf:FOLDER" or "hf:OWNER/NAME", or a run of a language model.

    posexp.load("hf:FOLDER", "rope.scaling=yarn", "rope.factor=4", "rope.trained_length=8192")

  Options are those of its encoding, and `model.dtype`, which is that of the weights unless given.

  Raises:
    UserError: it cannot be read, or an option does not suit it.
  """
  if wrong := [each for each in options if "=" not in each]:
    raise UserError(f"{wrong[0]}: give an option with its value, as in rope.base=10000")
  typed = dict(each.split("=", 1) for each in options)
  if not str(name).startswith(PREFIX):
    trained = open_alone(Path(name), LanguageModeling, "posexp.load reads language models")
    trained = with_options(trained, typed) if typed else trained
    return Loaded(trained.snapshot.model(), kept_vocabulary(trained.run.path))
  released = Released.open(str(name))
  dtype = "bfloat16" if released.dtype == "bfloat16" else "float32"
  model, encoding = changed(released, {"model.dtype": dtype} | typed)
  spec = released.spec(model, encoding)
  found = {plain(key): each for key, each in parameters(released, released.spec()).items()}
  made = filled(spec.build, found, spec.size.dtype)
  return Loaded(made, released.tokenizer(), (released, spec))
