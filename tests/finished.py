"""Finished runs that several files read: the first process that asks for one trains it, once."""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import filelock
import order

from posexp.runs import read_run

WORDS = ("red", "green", "blue", "gray", "pink")
SIZES = {"train": 500, "validation": 40, "test": 60}
LEARN = ["train.steps=240", "train.evaluate_every=220", "train.average=2", "train.warmup=20"]
LEARN += ["train.learning_rate=1e-2", "train.batch_size=256", "train.schedule=cosine"]
LEARN += ["model.dropout=0", "model.d_model=32"]


def pairs(folder: Path) -> list[str]:
  """Sentences and their words in reverse order, in capitals; returns options of a tiny model.

  Files are named from the current directory on, so that elsewhere a run has no data.
  """
  rng = random.Random(0)
  for split, size in SIZES.items():
    said = [rng.choices(WORDS, k=rng.randrange(1, 7)) for _ in range(size)]
    for language, text in (
      ("en", [" ".join(words) for words in said]),
      ("de", [" ".join(words[::-1]).upper() for words in said]),
    ):
      (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in text))
  files = [f"task.{split}={folder / split}" for split in SIZES]
  options = ["task=translation", *files, *order.MODEL, "task.vocab_size=330"]
  options += ["train.batch_size=512", "task.bleu_pairs=20", "task.beam=2", "task.max_length=32"]
  return [*options, "wandb.mode=disabled"]


def translator(path: Path) -> tuple[str, dict[str, int]]:
  """Copies the run of a translator to a folder; returns what it said and what was compiled."""
  shared = Path(os.environ.get("POSEXP_TESTS_SHARED", tempfile.gettempdir())) / "translator"
  with filelock.FileLock(f"{shared}.lock"):
    if not shared.exists():
      part = Path(tempfile.mkdtemp(dir=shared.parent))
      with order.home(part), order.compilations() as counts:
        typed = order.command(*pairs(Path()), *LEARN, "encoding=rpr", "runs=runs")
        assert (typed.status, typed.err) == (0, "")
        Path("said.json").write_text(json.dumps([typed.out, counts]))
      part.rename(shared)
  shutil.copytree(order.only(shared / "runs"), path)
  assert read_run(path).summary["test/exact_match"] > 0.8
  return tuple(json.loads((shared / "said.json").read_text()))
