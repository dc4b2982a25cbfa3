"""Folders of small released models, with other configs, tensors, words and tokenizers."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

MODELS = Path(__file__).parent / "models"
ENGLISH, CHINESE = "the cat sat on the mat . a café \n", "小狗追了王伟，他跑得很快。"


def changed(folder: Path, name: str, config=None, words: int | None = None, **tensors) -> str:
  """Copies a model with other keys of its config, and other tensors (None: without).

  With `words`, it has so many of them. Returns what the model is called.
  """
  shutil.copytree(MODELS / name, folder, dirs_exist_ok=True)
  given = json.loads((folder / "config.json").read_text())
  held, random = load_file(folder / "model.safetensors"), np.random.default_rng(0)
  if words:
    for key, each in held.items():
      if len(each) == given["vocab_size"]:
        held[key] = random.normal(0, 0.3, (words, *each.shape[1:])).astype("float32")
    given["vocab_size"] = words
  held = {key: each for key, each in (held | tensors).items() if each is not None}
  save_file(held, folder / "model.safetensors", {"format": "pt"})
  (folder / "config.json").write_text(json.dumps(given | (config or {})))
  return f"hf:{folder}"


def decoder(folder: Path, tokenizer: Tokenizer, rows: int | None = None, **config) -> str:
  """Makes a decoder with this tokenizer, whose table has a row per token, of which 1 ends a text.

  Returns what the model is called.
  """
  special = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": 1}
  name = changed(folder, "llama", special | config, rows or tokenizer.get_vocab_size())
  tokenizer.save(str(folder / "tokenizer.json"))
  return name


def trained(model, trainer, **parts) -> Tokenizer:
  found = Tokenizer(model)
  for name, part in parts.items():
    setattr(found, name, part)
  found.train_from_iterator([ENGLISH * 9, CHINESE * 9], trainer)
  return found


def byte_level(special=("</s>",), prefix=False) -> Tokenizer:
  parts = {
    "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=prefix),
    "decoder": decoders.ByteLevel(),
    "post_processor": processors.ByteLevel(),
  }
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False
  )
  return trained(models.BPE(), trainer, **parts)
