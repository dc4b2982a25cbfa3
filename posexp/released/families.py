"""Families of released models: what their configs ask for, and where their files have it.

A family is a row of FAMILIES: a table of names, the keys of its config with the values that hold
where the config is silent, and a function from them to posexp's options. Names and formulas are
those of Hugging Face's code (transformers 5.24.0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from posexp.errors import UserError

Options = dict[str, Any]

# A module of posexp's model -> the file's. Those with a dot in front are in each layer, a + joins
# what the file has in one tensor, and ^ is in front of names without the family's prefix.
ATTENTION = {f".attention/{ours}": f"self_attn.{ours[0]}_proj" for ours in ("query", "key")}
ATTENTION |= {".attention/value": "self_attn.v_proj", ".attention/out": "self_attn.o_proj"}
LLAMA = ATTENTION | {
  "embed": "embed_tokens",
  ".attention_norm": "input_layernorm",
  ".feed_forward_norm": "post_attention_layernorm",
  ".feed_forward/gate": "mlp.gate_proj",
  ".feed_forward/up": "mlp.up_proj",
  ".feed_forward/down": "mlp.down_proj",
  "norm": "norm",
  "head": "^lm_head",
}
QK_NORMS = {".attention/query_norm": "self_attn.q_norm", ".attention/key_norm": "self_attn.k_norm"}
OLMO = LLAMA | QK_NORMS | {".attention_norm": "post_attention_layernorm"}
OLMO |= {".feed_forward_norm": "post_feedforward_layernorm"}
GEMMA = LLAMA | QK_NORMS | {".attention_out_norm": "post_attention_layernorm"}
GEMMA |= {".feed_forward_norm": "pre_feedforward_layernorm"}
GEMMA |= {".feed_forward_out_norm": "post_feedforward_layernorm"}
GPT2 = {
  "embed": "wte",
  "embed/vector": "wpe",
  ".attention_norm": "ln_1",
  ".attention/query+key+value": "attn.c_attn",
  ".attention/out": "attn.c_proj",
  ".feed_forward_norm": "ln_2",
  ".feed_forward/up": "mlp.c_fc",
  ".feed_forward/down": "mlp.c_proj",
  "norm": "ln_f",
  "head": "^lm_head",
}
NEOX = {
  "embed": "embed_in",
  ".attention_norm": "input_layernorm",
  ".attention/query+key+value": "attention.query_key_value",
  ".attention/out": "attention.dense",
  ".feed_forward_norm": "post_attention_layernorm",
  ".feed_forward/up": "mlp.dense_h_to_4h",
  ".feed_forward/down": "mlp.dense_4h_to_h",
  "norm": "final_layer_norm",
  "head": "^embed_out",
}
BERT = {
  "embed": "embeddings.word_embeddings",
  "embed/vector": "embeddings.position_embeddings",
  "types": "embeddings.token_type_embeddings.weight",
  "embed_norm": "embeddings.LayerNorm",
  ".attention/query": "attention.self.query",
  ".attention/key": "attention.self.key",
  ".attention/value": "attention.self.value",
  ".attention/out": "attention.output.dense",
  ".attention_norm": "attention.output.LayerNorm",
  ".feed_forward/up": "intermediate.dense",
  ".feed_forward/down": "output.dense",
  ".feed_forward_norm": "output.LayerNorm",
  "transform": "^cls.predictions.transform.dense",
  "transform_norm": "^cls.predictions.transform.LayerNorm",
  "head": "^cls.predictions.decoder",
  "bias": "^cls.predictions.bias",
}
ROBERTA = BERT | {"transform": "^lm_head.dense", "transform_norm": "^lm_head.layer_norm"}
ROBERTA |= {"head": "^lm_head.decoder", "bias": "^lm_head.bias"}
DEBERTA = BERT | {"shared": "encoder.rel_embeddings", "shared/norm": "encoder.LayerNorm"}
DEBERTA |= {f".attention/{each}": f"attention.self.{each}_proj" for each in ("query", "key")}
DEBERTA |= {".attention/value": "attention.self.value_proj"}
DEBERTA |= {".attention/relation/key": "attention.self.pos_key_proj"}
DEBERTA |= {".attention/relation/query": "attention.self.pos_query_proj"}
MODERN = {
  "embed": "embeddings.tok_embeddings",
  "embed_norm": "embeddings.norm",
  ".attention_norm": "attn_norm",
  ".attention/query+key+value": "attn.Wqkv",
  ".attention/out": "attn.Wo",
  ".feed_forward_norm": "mlp_norm",
  ".feed_forward/gate+up": "mlp.Wi",
  ".feed_forward/down": "mlp.Wo",
  "norm": "final_norm",
  "transform": "^head.dense",
  "transform_norm": "^head.norm",
  "head": "^decoder",
  "bias": "^decoder.bias",
}
# Tensors that are no parameters of what is read: buffers, poolers, other heads, copies.
IGNORED = (
  r"rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|embeddings\.position_ids|pooler\..*"
  r"|cls\.seq_relationship\..*|(cls\.predictions|lm_head)\.decoder\.bias|(lm|mask)_predictions\..*"
)
# Keys of a config that change no number of a model that is read.
FREE = {
  *("model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache"),
  *("_name_or_path", "_attn_implementation_autoset", "auto_map", "cache_implementation"),
  *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "return_dict"),
  *("output_attentions", "output_hidden_states", "output_past", "torchscript", "tokenizer_class"),
  *("task_specific_params", "gradient_checkpointing", "chunk_size_feed_forward", "pruned_heads"),
  *("initializer_range", "initializer_factor", "initializer_cutoff_factor", "language", "n_ctx"),
  *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "prefix"),
  *("decoder_start_token_id", "max_length", "min_length", "do_sample", "temperature", "top_k"),
  *("top_p", "num_beams", "repetition_penalty", "pretraining_tp", "max_sequence_length"),
  *("attention_dropout", "hidden_dropout", "classifier_dropout", "embedding_dropout"),
  *("mlp_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob"),
  *("attention_probs_dropout_prob", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"),
  *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "directionality"),
  *("pooler_size_per_head", "pooler_type", "classifier_pooling", "pad_token_id"),
}
# Keys that all families have, at the values at which the model is the one that is read.
FIXED = {"is_encoder_decoder": (False, None), "add_cross_attention": (False, None)}
FIXED |= {"is_decoder": (False, None), "tie_encoder_decoder": (False, None)}
ROPE = {"rope_theta": None, "rope_scaling": None, "rope_parameters": None}
ROPE |= {"original_max_position_embeddings": None, "max_position_embeddings": 2048}
DECODER = ROPE | {
  **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "hidden_act": "silu"},
  **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None},
  **{"head_dim": None, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
}
QWEN = DECODER | {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
QWEN |= {"max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096}
QWEN |= {"max_window_layers": 28, "layer_types": None}
GEMMAS = DECODER | {
  **{"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256},
  **{"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4},
  **{"hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192},
  **{"tie_word_embeddings": True, "attention_bias": False, "query_pre_attn_scalar": 256},
  **{"sliding_window": 4096, "layer_types": None, "final_logit_softcapping": 30.0},
}
ENCODER = {
  **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
  **{"intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512},
  **{"type_vocab_size": 2, "layer_norm_eps": 1e-12, "tie_word_embeddings": True},
}
# Hugging Face's activations -> posexp's, without a gate and with one.
TANH = ("gelu_tanh", "geglu_tanh")
ACTIVATIONS = {"silu": ("silu", "swiglu"), "swish": ("silu", "swiglu"), "relu": ("relu", "reglu")}
ACTIVATIONS |= dict.fromkeys(("gelu", "gelu_python"), ("gelu", "geglu"))
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), TANH)
KINDS = {"full_attention": False, "sliding_attention": True}  # of layers: whether it has a window
# What each scaling reads beside the base and `rope_type`.
SCALED: dict[str, tuple[str, ...]] = {
  "default": (),
  "linear": ("factor",),
  "dynamic": ("factor",),
  "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
  "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate"),
  "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
}
RENAMED = {"low_freq_factor": "beta_slow", "high_freq_factor": "beta_fast"}
RENAMED |= {"short_factor": "short_factors", "long_factor": "long_factors"}


class Asked:
  """A config, asked for its keys by name; a key that the family does not have is refused."""

  def __init__(self, name: str, config: Mapping[str, Any], family: Family):
    self.name, self.config, self.family = name, config, family
    known = family.keys.keys() | FREE | FIXED.keys() | family.fixed.keys() | {*family.free}
    if unknown := sorted(key for key in config if key not in known and key[:1] != "_"):
      raise self.refused(unknown[0], "which posexp does not know and will not ignore")
    for key, allowed in (FIXED | {**family.fixed}).items():
      if key not in family.free and config.get(key, allowed[0]) not in allowed:
        ours = f"posexp has {allowed[0]!r} alone, of what this key may ask for"
        raise self.refused(key, ours)

  def refused(self, key: str, why: str) -> UserError:
    """Return the error for a key of the config."""
    return UserError(f"{self.name}: its config.json has {key}={self.config.get(key)!r:.80}, {why}")

  def __call__(self, key: str) -> Any:
    """Return the value of a key, or the one that holds where the config is silent."""
    return self.config.get(key, self.family.keys[key])

  def number(self, key: str, least: float = 1) -> Any:
    """Return a number that must be there; UserError if it is none, or too small."""
    value = self(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
      raise self.refused(key, f"which must be a number from {least} up")
    return value

  def activation(self, key: str, gated: bool) -> str:
    """Return posexp's name of an activation; UserError if it has none."""
    if self(key) not in ACTIVATIONS:
      raise self.refused(key, f"and posexp has {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[self(key)][gated]

  def kinds(self, sliding: Callable[[int], bool]) -> list[bool]:
    """Return which layers have a window, by `layer_types` or else by their numbers."""
    count, given = self.number("num_hidden_layers"), self("layer_types")
    if given is None:
      return [sliding(layer) for layer in range(count)]
    if not isinstance(given, list) or len(given) != count or {*given} - KINDS.keys():
      raise self.refused("layer_types", f"which must be {count} of {', '.join(KINDS)}")
    return [KINDS[each] for each in given]


def bias(ask: Asked, **parts: str) -> str:
  """Return the parts with a bias, of those whose key of the config is true."""
  return "+".join(part for key, part in parts.items() if ask(key)) or "none"


def sizes(ask: Asked, **more: Any) -> Options:
  """Return the options that all families have."""
  return {
    "d_model": ask.number("hidden_size"),
    "num_layers": ask.number("num_hidden_layers"),
    "num_heads": ask.number("num_attention_heads"),
    "d_ff": ask.number("intermediate_size"),
    "dropout": 0.0,
    "embed_scale": "none",
    "tie_embeddings": bool(ask("tie_word_embeddings")),
  } | more


def decoder(ask: Asked, **more: Any) -> Options:
  """Return those of Llama and its heirs."""
  given = {"num_kv_heads": ask("num_key_value_heads"), "head_dim": ask("head_dim")}
  act = "hidden_activation" if "hidden_activation" in ask.family.keys else "hidden_act"
  given |= {"norm_kind": "rms", "norm_epsilon": ask.number("rms_norm_eps", 0)}
  return sizes(ask, feed_forward=ask.activation(act, True), bias="none", **given) | more


def rope(
  ask: Asked, base: float, given: Mapping[str, Any] | None = None, share: float | None = None
) -> Options:
  """Return the options of RoPE that a config asks for; `given` stands for its dictionary."""
  if given is None:
    given = ask("rope_scaling") or ask("rope_parameters") or {}
  if not isinstance(given, Mapping):
    raise ask.refused("rope_scaling" if ask("rope_scaling") else "rope_parameters", "no mapping")
  kind = given.get("rope_type", given.get("type", "default"))
  kind = {"su": "longrope"}.get(kind, kind)
  if kind not in SCALED:
    raise UserError(
      f"{ask.name}: its config.json has rope_type={kind!r}, and posexp has {', '.join(SCALED)}"
    )
  extra = {"rope_theta", "rope_type", "type", "original_max_position_embeddings"}
  extra |= {"partial_rotary_factor", *("mscale", "mscale_all_dim") * (kind == "yarn")}
  if unknown := sorted({*given} - {*SCALED[kind]} - extra):
    key = unknown[0]
    raise UserError(
      f"{ask.name}: its config.json has {key}={given[key]!r:.80} for rotations of "
      f"rope_type={kind}, which posexp does not know and will not ignore"
    )
  found = {"base": given.get("rope_theta") or base, "layout": "half"}
  part = given.get("partial_rotary_factor", 1 if share is None else share)
  if share is None and part != 1:
    raise UserError(
      f"{ask.name}: its config.json has partial_rotary_factor={part}, which "
      f"{ask.config['model_type']} does not have"
    )
  found |= {} if share is None else {"share": part}
  if kind == "default":
    return found
  longest = ask.number("max_position_embeddings")
  trained = ask("original_max_position_embeddings") or given.get("original_max_position_embeddings")
  trained = longest if kind == "dynamic" else trained or longest
  read = {key: given[key] for key in SCALED[kind] if given.get(key) is not None}
  if kind in ("yarn", "longrope"):
    read.setdefault("factor", longest / trained)
  if missing := [key for key in SCALED[kind][:3] if key not in read and kind != "yarn"]:
    raise UserError(f"{ask.name}: its config.json has no {missing[0]} for rope_type={kind}")
  scales = [given.get(key) for key in ("mscale", "mscale_all_dim")]
  if all(scales) and "attention_factor" not in read:
    top, bottom = (0.1 * each * math.log(max(read["factor"], 1)) + 1 for each in scales)
    read["attention_factor"] = top / bottom
  found |= {RENAMED.get(key, key): value for key, value in read.items()} | {"scaling": kind}
  return found | ({} if kind == "linear" else {"trained_length": trained})


def by_layer(layers: Sequence[tuple[Options | None, int | None]]) -> Options:
  """Return the encoding of layers, each with the options of its RoPE (None: no positions) and its
  window, as a config has it.
  """
  if len({repr(each) for each in layers}) == 1 and layers[0][1] is None:
    return {"encoding": "rope", "rope": layers[0][0]} if layers[0][0] else {"encoding": "none"}

  def words(layer: tuple[Options | None, int | None]) -> str:
    options, window = layer
    given = {} if options is None else options
    given = given if window is None else given | {"window": window}
    parts = [f"{key}={str(value).replace(' ', '')}" for key, value in given.items()]
    return " ".join(["none" if options is None else "rope", *parts])

  runs = [(len([*run]), each) for each, run in itertools.groupby(map(words, layers))]
  pattern = [each if count == 1 else f"{count} {each}" for count, each in runs]
  return {"encoding": "by_layer", "by_layer": {"pattern": pattern}}


def rotary(ask: Asked, base: float, windows: Sequence[int | None] | None = None) -> Options:
  """Return the encoding of a model whose layers have one RoPE, some with a window."""
  turns = rope(ask, ask("rope_theta") or base)
  return by_layer([(turns, each) for each in windows or [None]])


def llama(ask: Asked) -> tuple[Options, Options]:
  parts = bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")
  return decoder(ask, bias=parts), rotary(ask, 1e4)


def mistral(ask: Asked) -> tuple[Options, Options]:
  return decoder(ask), rotary(ask, 1e4, [ask("sliding_window")])


def qwen(ask: Asked) -> tuple[Options, Options]:
  window = ask("sliding_window") if ask("use_sliding_window") else None
  slides = ask.kinds(lambda layer: window is not None and layer >= ask("max_window_layers"))
  more = {"bias": "qkv"}
  if "attention_bias" in ask.family.keys:  # the third
    more = {"bias": bias(ask, attention_bias="qkv+out"), "qk_norm": True}
  return decoder(ask, **more), rotary(ask, 1e4, [window if each else None for each in slides])


def smollm(ask: Asked) -> tuple[Options, Options]:
  every, count = ask.number("no_rope_layer_interval"), ask.number("num_hidden_layers")
  turns = ask("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
  if not isinstance(turns, list) or len(turns) != count:
    raise ask.refused("no_rope_layers", f"which must be {count} numbers, one a layer")
  window = ask("sliding_window") if ask("use_sliding_window") else None
  slides = ask.kinds(lambda layer: window is not None and not turns[layer])
  one = rope(ask, ask("rope_theta") or 2e6)
  layers = zip(turns, slides, strict=True)
  found = by_layer([(one if turn else None, window if slide else None) for turn, slide in layers])
  parts = bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")
  return decoder(ask, bias=parts), found


def gemma(ask: Asked, **more: Any) -> Options:
  width = ask("head_dim") or ask.number("hidden_size") / ask.number("num_attention_heads")
  scale = math.sqrt(width / ask.number("query_pre_attn_scalar", 1e-6))
  more |= {"norm": "sandwich", "norm_kind": "rms_one", "embed_scale": "sqrt"}
  more |= {"bias": bias(ask, attention_bias="qkv+out"), "logits_scale": scale}
  return decoder(ask, head_cap=ask("final_logit_softcapping"), **more)


def gemma2(ask: Asked) -> tuple[Options, Options]:
  slides = ask.kinds(lambda layer: layer % 2 == 0)
  windows = [ask("sliding_window") if each else None for each in slides]
  return gemma(ask, logits_cap=ask("attn_logit_softcapping")), rotary(ask, 1e4, windows)


def by_kind(ask: Asked, slides: Sequence[bool], window: int, turns: Sequence[Options]) -> Options:
  """Return the encoding of layers, of which those that slide have the second of two RoPEs."""
  return by_layer([(turns[each], window if each else None) for each in slides])


def two_ropes(ask: Asked, bases: Sequence[float], scaled: Sequence[bool]) -> list[Options]:
  """Return the RoPE of full layers and that of sliding ones; `rope_scaling` is for the `scaled`."""
  nested = ask("rope_parameters") or {}
  if nested and not isinstance(nested.get("full_attention", nested.get("sliding_attention")), dict):
    raise ask.refused("rope_parameters", "which must have full_attention and sliding_attention")
  return [
    rope(ask, base, (nested.get(kind) or {}) | ((ask("rope_scaling") or {}) if scale else {}))
    for kind, base, scale in zip(KINDS, bases, scaled, strict=True)
  ]


def gemma3(ask: Asked) -> tuple[Options, Options]:
  pattern = ask.number("sliding_window_pattern")
  bases = ask("rope_theta") or 1e6, ask("rope_local_base_freq") or 1e4
  turns = two_ropes(ask, bases, (True, False))
  slides = ask.kinds(lambda layer: (layer + 1) % pattern != 0)
  return gemma(ask, qk_norm=True), by_kind(ask, slides, ask.number("sliding_window"), turns)


def olmo(ask: Asked) -> tuple[Options, Options]:
  more = {"norm": "output", "qk_norm": True, "qk_norm_over": "all"}
  return decoder(ask, bias=bias(ask, attention_bias="qkv+out"), **more), rotary(ask, 1e4)


def gpt2(ask: Asked) -> tuple[Options, Options]:
  width, heads = ask.number("n_embd"), ask.number("n_head")
  model = {"d_model": width, "num_heads": heads, "num_layers": ask.number("n_layer")}
  model |= {"d_ff": ask("n_inner") or 4 * width, "dropout": 0.0, "embed_scale": "none"}
  model |= {"feed_forward": ask.activation("activation_function", False), "bias": BLOCK}
  model |= {"norm_epsilon": ask.number("layer_norm_epsilon", 0)}
  model |= {"tie_embeddings": bool(ask("tie_word_embeddings"))}
  if not ask("scale_attn_weights"):
    model["logits_scale"] = math.sqrt(width / heads)
  return model, {"encoding": "learned", "learned": {"length": ask.number("n_positions")}}


def neox(ask: Asked) -> tuple[Options, Options]:
  model = sizes(ask, feed_forward=ask.activation("hidden_act", False))
  model |= {"norm_epsilon": ask.number("layer_norm_eps", 0)}
  model |= {"norm": "parallel" if ask("use_parallel_residual") else "pre"}
  model |= {"bias": "qkv+out+feed_forward" if ask("attention_bias") else "feed_forward"}
  turns = rope(ask, ask("rotary_emb_base") or 1e4, share=ask("rotary_pct"))
  width = model["d_model"] // model["num_heads"]
  channels = int(width * turns["share"])
  if channels % 2:
    raise ask.refused("rotary_pct", f"so {channels} channels of a head turn, which must be even")
  return model, by_layer([(turns | {"share": channels / width}, None)])


def encoder(ask: Asked, **more: Any) -> Options:
  model = sizes(ask, norm="post", feed_forward=ask.activation("hidden_act", False), bias=BLOCK)
  model |= {"norm_epsilon": ask.number("layer_norm_eps", 0), "embed_norm": True}
  return model | {"token_types": ask.number("type_vocab_size", 0)} | more


def bert(ask: Asked) -> tuple[Options, Options]:
  first = 0
  if ask.family.names is ROBERTA:
    first = ask.number("pad_token_id", 0) + 1
  rows = ask.number("max_position_embeddings") - first
  table = {"length": rows} | ({"first": first} if first else {})
  return encoder(ask), {"encoding": "learned", "learned": table}


def deberta(ask: Asked) -> tuple[Options, Options]:
  terms = ask("pos_att_type") or []
  terms = {*(terms.split("|") if isinstance(terms, str) else terms)}
  if not ask("relative_attention") or not terms <= {"c2p", "p2c"}:
    key = "pos_att_type" if ask("relative_attention") else "relative_attention"
    raise ask.refused(key, "and posexp has relative_attention with c2p and p2c alone")
  if ask("position_biased_input"):
    raise ask.refused("position_biased_input", "and posexp has no table of positions beside these")
  if ask("embedding_size") not in (None, ask("hidden_size")):
    raise ask.refused("embedding_size", "and posexp has that of hidden_size alone")
  farthest, buckets = ask("max_relative_positions"), ask("position_buckets")
  farthest = farthest if farthest >= 1 else ask.number("max_position_embeddings")
  shared, normed = bool(ask("share_att_key")), "layer_norm" in ask("norm_rel_ebd")
  given = {"k": farthest, "log_buckets": max(buckets, 0), "mirrored": False}
  given |= {"content_to_position": "c2p" in terms, "position_to_content": "p2c" in terms}
  given |= {"share_maps": shared, "biases": not shared, "normalized": normed}
  given |= {"norm_epsilon": ask.number("layer_norm_eps", 0)} if normed else {}
  return encoder(ask), {"encoding": "deberta", "deberta": given}


def modern(ask: Asked) -> tuple[Options, Options]:
  model = sizes(ask, feed_forward=ask.activation("hidden_activation", True))
  model |= {"norm_kind": "layer" if ask("norm_bias") else "layer_scale", "embed_norm": True}
  model |= {"norm_epsilon": ask.number("norm_eps", 0), "first_norm": False}
  model |= {"bias": bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")}
  bases = ask("global_rope_theta") or 1.6e5, ask("local_rope_theta") or 1e4
  every, turns = ask.number("global_attn_every_n_layers"), two_ropes(ask, bases, (True, True))
  slides = ask.kinds(lambda layer: layer % every != 0)
  return model, by_kind(ask, slides, ask.number("local_attention"), turns)


BLOCK = "qkv+out+feed_forward"


class Family(NamedTuple):
  """What the released models of one `model_type` have in common."""

  names: dict[str, str]
  options: Callable[[Asked], tuple[Options, Options]]  # of the model, and of the encoding
  keys: dict[str, Any]  # that it reads, with the values that hold where the config is silent
  base: str = "model."  # in front of names
  layer: str = "layers."  # and of those of a layer
  fixed: Mapping[str, tuple] = MappingProxyType(
    {}
  )  # keys with values at which nothing changes, the silent one first
  free: tuple[str, ...] = ()  # keys that this family does not read
  transposed: bool = True  # whether matrices are [out, in]
  by_heads: bool = False  # whether rows of joined matrices are in the order of heads
  causal: bool = True
  head: tuple[str, str] = ("", "")  # keys of an encoder's head: its activation, its first bias


BIASED = {"attention_bias": False, "mlp_bias": False}
ABSOLUTE = {"position_embedding_type": ("absolute", None)}
FAMILIES = {
  "llama": Family(LLAMA, llama, DECODER | BIASED),
  "mistral": Family(
    LLAMA,
    mistral,
    DECODER | {"num_key_value_heads": 8, "sliding_window": 4096, "intermediate_size": 14336},
    free=("layer_types",),
  ),
  "qwen2": Family(LLAMA, qwen, QWEN, free=("attention_bias",)),
  "qwen3": Family(LLAMA | QK_NORMS, qwen, QWEN | {"attention_bias": False, "head_dim": 128}),
  "smollm3": Family(
    LLAMA,
    smollm,
    QWEN
    | BIASED
    | {"num_key_value_heads": 4, "no_rope_layers": None, "no_rope_layer_interval": 4}
    | {"tie_word_embeddings": True, "hidden_size": 2048, "num_attention_heads": 16}
    | {"vocab_size": 128256, "num_hidden_layers": 36, "intermediate_size": 11008}
    | {"sliding_window": None},
  ),
  "gpt2": Family(
    GPT2,
    gpt2,
    {
      **{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
      **{"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
      **{"scale_attn_weights": True, "tie_word_embeddings": True},
    },
    base="transformer.",
    layer="h.",
    fixed={"scale_attn_by_inverse_layer_idx": (False,)},
    free=(
      "reorder_and_upcast_attn",
      *(
        f"summary_{each}"
        for each in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
      ),
    ),
    transposed=False,
  ),
  "bert": Family(
    BERT, bert, ENCODER, "bert.", "encoder.layer.", ABSOLUTE, causal=False, head=("hidden_act", "")
  ),
  "roberta": Family(
    ROBERTA,
    bert,
    ENCODER | {"vocab_size": 50265, "pad_token_id": 1},
    "roberta.",
    "encoder.layer.",
    ABSOLUTE,
    causal=False,
  ),
  "olmo2": Family(
    OLMO, olmo, DECODER | {"vocab_size": 50304, "rms_norm_eps": 1e-5, "attention_bias": False}
  ),
  "gemma2": Family(
    GEMMA,
    gemma2,
    GEMMAS | {"attn_logit_softcapping": 50.0},
    free=("use_bidirectional_attention", "hidden_act"),
  ),
  "gemma3_text": Family(
    GEMMA,
    gemma3,
    GEMMAS
    | {"vocab_size": 262208, "sliding_window_pattern": 6, "rope_local_base_freq": None}
    | {"max_position_embeddings": 131072, "final_logit_softcapping": None},
    fixed={"use_bidirectional_attention": (False, None)},
    free=("attn_logit_softcapping", "hidden_act"),
  ),
  "modernbert": Family(
    MODERN,
    modern,
    ROPE
    | {"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "layer_types": None}
    | {"num_hidden_layers": 22, "num_attention_heads": 12, "hidden_activation": "gelu"}
    | {"norm_eps": 1e-5, "norm_bias": False, "local_attention": 128, "decoder_bias": True}
    | {"global_attn_every_n_layers": 3, "global_rope_theta": None, "local_rope_theta": None}
    | {"classifier_activation": "gelu", "classifier_bias": False, "tie_word_embeddings": True}
    | {"max_position_embeddings": 8192}
    | BIASED,
    fixed=ABSOLUTE,
    free=(
      "layer_norm_eps",
      "deterministic_flash_attn",
      "repad_logits_with_grad",
      "sparse_prediction",
      "sparse_pred_ignore_index",
      "reference_compile",
    ),
    causal=False,
    head=("classifier_activation", "classifier_bias"),
  ),
  "gpt_neox": Family(
    NEOX,
    neox,
    ROPE
    | {"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "hidden_act": "gelu"}
    | {"num_attention_heads": 64, "intermediate_size": 24576, "layer_norm_eps": 1e-5}
    | {"tie_word_embeddings": False, "use_parallel_residual": True, "attention_bias": True}
    | {"rotary_emb_base": None, "rotary_pct": 0.25},
    base="gpt_neox.",
    free=("partial_rotary_factor", "is_decoder"),
    by_heads=True,
  ),
  "deberta-v2": Family(
    DEBERTA,
    deberta,
    ENCODER
    | {"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "type_vocab_size": 0}
    | {"num_attention_heads": 24, "intermediate_size": 6144, "layer_norm_eps": 1e-7}
    | {"relative_attention": False, "max_relative_positions": -1, "pos_att_type": None}
    | {"position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": False, "legacy": True}
    | {"position_biased_input": True, "embedding_size": None},
    "deberta.",
    "encoder.layer.",
    fixed={"conv_kernel_size": (0, None)},
    free=("conv_act",),
    causal=False,
    head=("hidden_act", ""),
  ),
}
