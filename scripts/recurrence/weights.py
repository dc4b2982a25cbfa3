"""The weights of the authors' Transformer-XL in PyTorch as those of posexp's language model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

ATTENTION, FEED_FORWARD = "dec_attn", "pos_ff"  # as they call them


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
