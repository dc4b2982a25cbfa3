"""Runs of translation that were saved before their first step: all that needs no training."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from untrained import state as untrained_state

from posexp.config import build, resolve
from posexp.config.command_line import compose
from posexp.data import tokenizer
from posexp.encodings import make_encoding
from posexp.models.backbones import make_size
from posexp.models.translator import TranslatorSpec
from posexp.runs import RunWriter
from posexp.runs.metrics import score
from posexp.training.devices import mesh_for
from posexp.training.matching import matched
from posexp.training.optimizer import Training
from posexp.training.step import program

TEXTS = ["one two three four", "eins zwei drei vier", "ü $5$"]
OPTIONS = ["task=translation", "task.train=gone.jsonl", "task.max_length=10", "encoding=rpr"]
OPTIONS += ["model.d_model=16", "model.num_heads=2", "model.d_ff=16", "model.num_layers=1"]


def untrained(path: Path, *options: str) -> tuple[int, Any]:
  """Writes the folder of a run, and returns its d_ff and its weights."""
  path.mkdir()
  config = resolve(compose([*OPTIONS, *options]))
  text = tokenizer.train(TEXTS * 2, "bpe", 280, tokenizer.ENDS["bpe"], decodes=True)
  (path / "tokenizer.json").write_text(text, encoding="utf-8")
  (path / "tokenizer.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())
  vocabulary = tokenizer.Tokenizer(text).vocab_size
  encoding, size = make_encoding(config), make_size(config)
  spec = matched(TranslatorSpec(vocabulary, vocabulary, encoding, size), 10)
  training = build(Training, config["train"], "train")
  compiled = program(spec, training, 100, mesh_for(np.array([1])))
  state = untrained_state(compiled, spec)
  with RunWriter(path, config) as run:
    run.metric = score("validation/bleu")
    run.save(1, state, {"validation/bleu": 1.0, "validation/loss": 1.0})
    run.finish({"d_ff": spec.size.d_ff})
  return spec.size.d_ff, state.params
