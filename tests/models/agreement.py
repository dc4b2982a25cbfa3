"""How far posexp's language model with the weights of the authors' is from their losses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.relative import TransformerXL
from posexp.models.language_model import LanguageModel, LanguageModelSpec
from posexp.models.size import Size

EPSILON = 1e-5  # that PyTorch's norms add to the variance


class Case(NamedTuple):
  """Options of the authors' model."""

  memory: int  # `mem_len`
  same_length: bool = False
  clamp: int | None = None  # `clamp_len`
  untied: bool = False  # `untie_r` of their TensorFlow code
  norm: str = "post"  # pre: `pre_lnorm`

  def __str__(self):
    parts = [f"memory {self.memory}"]
    parts += ["same length"] * self.same_length + [f"clamp {self.clamp}"] * bool(self.clamp)
    return ", ".join([*parts, *["untied"] * self.untied, f"{self.norm}-norm"])


CASES = (
  Case(0),
  Case(4),
  Case(4, norm="pre"),
  Case(10, same_length=True),
  Case(10, clamp=3),
  Case(10, same_length=True, clamp=3, untied=True),
  Case(10),
)


class Theirs(NamedTuple):
  """What the authors' code has written: B rows of L tokens in segments of T."""

  about: dict
  cases: list[Case]
  segment: int  # T
  heads: int
  text: np.ndarray  # int [B,L+1]
  losses: np.ndarray  # nats, [cases,B,L]
  weights: dict[str, np.ndarray]  # by their names
  biases: np.ndarray  # u and v of each layer, [2,layers,H,D], where they are untied
  gradients: dict[str, np.ndarray]  # of the last segment's mean loss in the last case


def read(file: Path) -> Theirs:
  """Return what such a file holds."""
  with np.load(file) as found:
    about = json.loads(str(found["about"]))
    named = {
      kind: {name.partition("/")[2]: found[name] for name in found if name.startswith(f"{kind}/")}
      for kind in ("weight", "gradient")
    }
    return Theirs(
      about,
      [Case(**case) for case in about.pop("cases")],
      int(found["segment"]),
      int(found["heads"]),
      found["text"].astype(np.int32),
      found["losses"],
      named["weight"],
      found["biases"],
      named["gradient"],
    )


def model_of(theirs: Theirs, case: Case, attention: str = "auto") -> LanguageModel:
  """posexp's model of a case, with the authors' weights and attention in some form.

  Their pre-norm has no norm after the last layer, and here it is taken away.
  """
  vocab, features = theirs.weights["word_emb.emb_layers.0.weight"].shape
  layers = theirs.biases.shape[1]
  size = Size(
    d_model=features,
    num_heads=theirs.heads,
    d_ff=len(theirs.weights["layers.0.pos_ff.CoreNet.0.bias"]),
    num_layers=layers,
    dropout=0.0,
    norm=case.norm,
    norm_epsilon=EPSILON,
    memory=case.memory,
    same_length=case.same_length,
    attention=attention,
  )
  encoding = TransformerXL(clamp=case.clamp, share_biases=not case.untied)
  model = LanguageModelSpec(vocab, encoding, size).build(nnx.Rngs(0))
  if case.norm == "pre":
    model.stack.norm = None
  own = {"r_w_bias": theirs.biases[0], "r_r_bias": theirs.biases[1]} if case.untied else {}
  load(model, params(theirs.weights | own, theirs.heads))
  return model


def load(model: LanguageModel, values: Mapping[str, np.ndarray]) -> None:
  """Set every parameter to the value of its path, which must have its shape."""
  for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    value = values["/".join(map(str, path))]
    assert param[...].shape == value.shape, path
    param[...] = jnp.asarray(value)


def segments(theirs: Theirs) -> Iterator[dict[str, Array]]:
  """Yield the batches, one segment of every row after the other."""
  rows = len(theirs.text)
  for start in range(0, theirs.text.shape[1] - 1, theirs.segment):
    here = slice(start, start + theirs.segment)
    yield {
      "tokens": jnp.asarray(theirs.text[:, :-1][:, here]),
      "labels": jnp.asarray(theirs.text[:, 1:][:, here]),
      "mask": jnp.ones((rows, theirs.segment), bool),
      "weight": jnp.ones(rows),
      "fresh": jnp.full(rows, start == 0),
    }


def losses(theirs: Theirs, case: Case, attention: str = "auto") -> np.ndarray:
  """posexp's, in nats: [B,L]."""
  graphdef, state = nnx.split(model_of(theirs, case, attention))
  predict = jax.jit(lambda batch, carry: nnx.merge(graphdef, state).predict(batch, carry))
  carry, found = nnx.merge(graphdef, state).initial_carry(len(theirs.text)), []
  for batch in segments(theirs):
    scores, carry = predict(batch, carry)
    found.append(np.asarray(scores["nll"]))
  return np.concatenate(found, axis=1)


def gradients(theirs: Theirs, case: Case) -> dict[str, np.ndarray]:
  """posexp's by path, of the mean loss of the last segment; those of tied weights, added up."""
  graphdef, values, rest = nnx.split(model_of(theirs, case), nnx.Param, ...)

  def loss(values: nnx.State, batch: dict[str, Array], carry: Array) -> tuple[Array, Array]:
    model = nnx.merge(graphdef, values, rest)
    found, _, carry = model.loss(batch, carry, label_smoothing=0.0, rngs=nnx.Rngs(0))
    return found["loss"], carry

  carry = nnx.merge(graphdef, values, rest).initial_carry(len(theirs.text))
  step = jax.jit(jax.grad(loss, has_aux=True))
  for batch in segments(theirs):
    found, carry = step(values, batch, carry)
  flat = {"/".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(found)}
  both = flat["stack/embed/table"] + flat["head/kernel"].T
  return flat | {"stack/embed/table": both, "head/kernel": both.T}


def params(weights: Mapping[str, np.ndarray], num_heads: int) -> dict[str, np.ndarray]:
  """Parameter by path, from weights by the names of `MemTransformerLM.state_dict()`.

  It is for a model without adaptive embedding and softmax (`div_val` 1, `d_embed` = `d_model`, no
  cutoffs), whose u and v are [H,D], or [layers,H,D] where layers have their own. Their matrices are
  [out, in]; ours are [in, out]. W_kR maps to all heads at once; ours is [F,H,D].
  """
  weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
  table = weights["word_emb.emb_layers.0.weight"]
  found = {
    "stack/embed/table": table,
    "head/kernel": weights.get("crit.out_layers.0.weight", table).T,
    "head/bias": weights["crit.out_layers.0.bias"],
  }
  layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
  for i in range(layers):
    here = {
      name.removeprefix(f"layers.{i}."): value
      for name, value in weights.items()
      if name.startswith(f"layers.{i}.")
    }
    found |= {f"stack/blocks/{i}/{path}": value for path, value in block(here, num_heads).items()}
  for ours, theirs in {"u": "r_w_bias", "v": "r_r_bias"}.items():
    if weights[theirs].ndim == 2:
      found[f"stack/shared/{ours}"] = weights[theirs]
      continue
    for i, bias in enumerate(weights[theirs]):
      found[f"stack/blocks/{i}/attention/relation/biases/{ours}"] = bias
  return found


def block(weights: Mapping[str, np.ndarray], num_heads: int) -> dict[str, np.ndarray]:
  """Return the parameters of one layer."""
  query, key, value = np.split(weights["dec_attn.qkv_net.weight"], 3)
  distance = weights["dec_attn.r_net.weight"].T
  return {
    "attention/query/kernel": query.T,
    "attention/key/kernel": key.T,
    "attention/value/kernel": value.T,
    "attention/out/kernel": weights["dec_attn.o_net.weight"].T,
    "attention/relation/distance_kernel": distance.reshape(len(distance), num_heads, -1),
    "attention_norm/scale": weights["dec_attn.layer_norm.weight"],
    "attention_norm/bias": weights["dec_attn.layer_norm.bias"],
    "feed_forward/up/kernel": weights["pos_ff.CoreNet.0.weight"].T,
    "feed_forward/up/bias": weights["pos_ff.CoreNet.0.bias"],
    "feed_forward/down/kernel": weights["pos_ff.CoreNet.3.weight"].T,
    "feed_forward/down/bias": weights["pos_ff.CoreNet.3.bias"],
    "feed_forward_norm/scale": weights["pos_ff.layer_norm.weight"],
    "feed_forward_norm/bias": weights["pos_ff.layer_norm.bias"],
  }
