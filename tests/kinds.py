"""The least run of each kind of task: its files, and its options."""

import itertools
import json
from pathlib import Path

import order

from posexp.diagnostics import scan
from posexp.parsing import grammar, trees

# Without an encoding, whose parameters are not counted against a model without one.
RUN = [*order.MODEL, *order.STEADY, "encoding=none", "wandb.mode=disabled"]
RUN += ["train.steps=6", "train.evaluate_every=2", "train.log_every=1"]
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def pairs(folder: Path) -> list[str]:
  """Options of a translator, on sentences of one length of batches."""
  file = folder / "pairs.jsonl"
  drawn = itertools.chain(*(itertools.product(WORDS, repeat=count) for count in (2, 3)))
  rows = ({"en": " ".join(s), "de": " ".join(WORDS[word] for word in s)} for s in drawn)
  file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  options = ["task=translation", f"task.train={file}", "task.vocab_size=400", "task.beam=1"]
  return [*options, "task.bleu_pairs=4", "train.batch_size=256"]


def text(folder: Path) -> list[str]:
  """Options of a language model with a memory, on one file of text."""
  lines = (f"line {i} of {i * i} words\n" for i in range(300))
  (folder / "text.txt").write_text("".join(lines))
  options = ["task=language_modeling", f"task.train={folder / 'text.txt'}", "task.segment=16"]
  return [*options, "model.memory=8", "train.batch_size=8", "task.validation_tokens=64"]


def sentences(folder: Path) -> list[str]:
  """Options of a parser, on short sentences of one length of batches."""
  short = [tree for tree in grammar.draw(400, seed=0) if len(tree.words) <= 6]
  (folder / "trees.mrg").write_text("".join(f"{trees.brackets(tree)}\n" for tree in short))
  return ["task=parsing", f"task.train={folder / 'trees.mrg'}", "train.batch_size=8"]


def commands(folder: Path) -> list[str]:
  """Options of SCAN, on files of short commands."""
  for split, (least, most) in {"train": (1, 3), "test": (4, 4)}.items():
    found = ((x, y) for x, y in scan.commands().items() if least <= len(y.split()) <= most)
    lines = (f"IN: {command} OUT: {actions}\n" for command, actions in found)
    (folder / f"{split}.txt").write_text("".join(itertools.islice(lines, 200)))
  files = [f"task.{split}={folder / split}.txt" for split in ("train", "test")]
  return ["task=scan", *files, "train.batch_size=8"]
