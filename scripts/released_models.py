"""Small models of released families, with random weights, and what the reference makes of them.

    python scripts/released_models.py tests/released/models

needs PyTorch and transformers (5.24 or newer). Every parameter is drawn, also those that usually
start at 0 or 1, so that a tensor in the wrong place shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WORDS, LENGTH, LONG, NEW = 23, 9, 21, 6
SMALL = {"vocab_size": WORDS, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 3, "max_position_embeddings": 64, "pad_token_id": 0}
SMALL |= {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = SMALL | {"num_key_value_heads": 1, "rms_norm_eps": 1e-3, "head_dim": 6}
BERT = SMALL | {"layer_norm_eps": 1e-3}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 100.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"rope_theta": 100.0, "mscale": 0.7, "mscale_all_dim": 0.4}
DEBERTA = BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "legacy": True}
DEBERTA |= {"position_biased_input": False, "share_att_key": True, "position_buckets": 4}
DEBERTA |= {"norm_rel_ebd": "layer_norm", "max_relative_positions": -1}


class Case(NamedTuple):
  """A model: the names of its classes in transformers, and its config."""

  kind: str  # "Llama": LlamaConfig and LlamaForCausalLM
  config: dict[str, Any]
  head: str = "CausalLM"


CASES = {
  "llama": Case("Llama", GROUPED | {"rope_parameters": LLAMA3, "attention_bias": True}),
  "mistral": Case("Mistral", GROUPED | {"sliding_window": 4}),
  "qwen2": Case(
    "Qwen2", GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
  ),
  "qwen3": Case("Qwen3", GROUPED | {"tie_word_embeddings": True, "rope_parameters": YARN}),
  "smollm3": Case("SmolLM3", SMALL | {"num_key_value_heads": 3, "no_rope_layers": [1, 0]}),
  "gpt2": Case(
    "GPT2",
    {"vocab_size": WORDS, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 40, "n_inner": 10}
    | {"bos_token_id": 1, "eos_token_id": 2},
  ),
  "bert": Case("Bert", BERT, "MaskedLM"),
  "roberta": Case("Roberta", BERT | {"pad_token_id": 1, "type_vocab_size": 1}, "MaskedLM"),
  "olmo2": Case("Olmo2", SMALL | {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}),
  "gemma2": Case(
    "Gemma2",
    GROUPED
    | {"sliding_window": 4, "query_pre_attn_scalar": 7}
    | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
  ),
  "gemma3": Case(
    "Gemma3Text",
    GROUPED
    | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    | {"query_pre_attn_scalar": 7},
  ),
  "modernbert": Case(
    "ModernBert",
    SMALL
    | {"norm_eps": 1e-3, "local_attention": 4, "num_hidden_layers": 3}
    | {"cls_token_id": 3, "sep_token_id": 4},
    "MaskedLM",
  ),
  "gpt_neox": Case("GPTNeoX", SMALL | {"rotary_pct": 0.5, "layer_norm_eps": 1e-3}),
  "phi3": Case("Phi3", SMALL | {"num_key_value_heads": 1, "sliding_window": 6}),
  "deberta": Case("DebertaV2", DEBERTA, "MaskedLM"),
  "gpt_oss": Case(
    "GptOss",
    GROUPED
    | {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"rope_parameters": YARN | {"truncate": False, "mscale": None}},
  ),
}
# One key changed of a case above, which posexp is to follow.
CHANGED = [
  ("llama", {"hidden_act": "gelu"}),
  ("llama", {"hidden_act": "gelu_new", "mlp_bias": True}),
  ("llama", {"hidden_act": "relu", "attention_bias": False}),
  ("llama", {"tie_word_embeddings": True, "head_dim": None}),
  ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}}),
  ("llama", {"rope_parameters": YARN | {"beta_fast": 3, "attention_factor": 1.3}}),
  ("llama", {"rope_parameters": YARN | {"truncate": False, "mscale": None}}),
  ("llama", {"num_key_value_heads": 3, "rms_norm_eps": 1e-5}),
  ("mistral", {"sliding_window": None}),
  ("qwen2", {"use_sliding_window": False}),
  ("qwen2", {"layer_types": ["sliding_attention", "full_attention"]}),
  ("qwen3", {"attention_bias": True}),
  ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
  ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2, "attention_bias": True}),
  ("smollm3", {"use_sliding_window": True, "sliding_window": 4, "mlp_bias": True}),
  ("gpt2", {"activation_function": "relu"}),
  ("gpt2", {"scale_attn_weights": False}),
  ("gpt2", {"n_inner": None, "tie_word_embeddings": False}),
  ("bert", {"hidden_act": "relu"}),
  ("bert", {"type_vocab_size": 3, "layer_norm_eps": 1e-12}),
  ("bert", {"tie_word_embeddings": False}),
  ("roberta", {"hidden_act": "gelu_new", "pad_token_id": 3}),
  ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
  ("gemma2", {"attn_logit_softcapping": None}),
  ("gemma2", {"final_logit_softcapping": None, "attention_bias": True}),
  ("gemma2", {"use_bidirectional_attention": True, "tie_word_embeddings": False}),
  ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}),
  ("gemma3", {"final_logit_softcapping": 4.0, "attn_logit_softcapping": 2.0}),
  ("gemma3", {"query_pre_attn_scalar": 12, "attention_bias": True}),
  ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
  ("modernbert", {"classifier_bias": True, "decoder_bias": False, "classifier_activation": "relu"}),
  ("modernbert", {"hidden_activation": "gelu_new", "local_attention": 7}),
  ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
  ("gpt_neox", {"hidden_act": "gelu_fast", "tie_word_embeddings": True}),
  ("deberta", {"pos_att_type": ["c2p"]}),
  ("deberta", {"pos_att_type": "p2c|c2p", "share_att_key": False, "norm_rel_ebd": "none"}),
  ("deberta", {"position_buckets": -1, "max_relative_positions": 6, "type_vocab_size": 2}),
  ("gpt_oss", {"attention_bias": False, "num_experts_per_tok": 1, "rope_parameters": None}),
  ("gpt_oss", {"layer_types": ["full_attention"] * 2, "tie_word_embeddings": True}),
]


def make(case: Case, folder: Path, each_grad: int = 1, seed: int = 0) -> None:
  """Write a model and `expected.npz`: logits, a loss, and gradients by each n-th parameter."""
  import torch
  import transformers

  torch.manual_seed(seed)
  config = getattr(transformers, f"{case.kind}Config")(**case.config)
  config._attn_implementation = config._experts_implementation = "eager"
  name = "Gemma3" if case.kind == "Gemma3Text" else case.kind
  head = "LMHeadModel" if case.kind == "GPT2" else f"For{case.head}"
  model = getattr(transformers, f"{name}{head}")(config).eval()
  with torch.no_grad():
    for key, each in model.named_parameters():
      drawn = torch.randn(each.shape) * 0.3
      each.copy_(drawn + (1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0))
  model.save_pretrained(folder)
  random = np.random.default_rng(seed)
  tokens = random.integers(5, WORDS, (2, LENGTH))
  mask = np.ones((2, LENGTH), int)
  mask[1, LENGTH - 3 :] = 0
  pad = config.pad_token_id or 0
  found = {"tokens": np.where(mask, tokens, pad), "mask": mask}
  found["long"] = random.integers(5, WORDS, (1, LONG))
  of = {key: torch.tensor(each) for key, each in found.items()}
  logits = model(input_ids=of["tokens"], attention_mask=of["mask"]).logits
  causal = case.head == "CausalLM"
  if causal:
    labels, counts, scored = of["tokens"][:, 1:], of["mask"][:, 1:] > 0, logits[:, :-1]
  else:
    labels, counts, scored = of["tokens"], of["mask"] > 0, logits
  loss = torch.nn.functional.cross_entropy(scored[counts], labels[counts])
  loss.backward()
  found |= {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
  found["long_logits"] = model(input_ids=of["long"]).logits.detach().numpy()
  if causal:
    model.generation_config.eos_token_id = None  # ends are words as others
    options = {"do_sample": False, "max_new_tokens": NEW}
    written = model.generate(of["long"], attention_mask=of["long"] * 0 + 1, **options)
    found["greedy"] = written[:, LONG:].numpy()
  grads = {key: each.grad for key, each in model.named_parameters() if each.grad is not None}
  found |= {f"grad/{key}": grads[key].numpy() for key in [*grads][::each_grad]}
  small = {
    key: np.asarray(each, "int32" if each.dtype.kind == "i" else "float32")
    for key, each in found.items()
  }
  np.savez_compressed(folder / "expected.npz", **small)


def main() -> None:
  """Make all cases in a folder."""
  for name, case in CASES.items():
    make(case, folder := Path(sys.argv[1], name), each_grad=7)
    (folder / "generation_config.json").unlink(missing_ok=True)
  print(json.dumps({name: case.kind for name, case in CASES.items()}))


if __name__ == "__main__":
  main()
