"""What a run says of itself on the terminal: a header before it, a table after it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from posexp.config import show as typed

log = logging.getLogger("posexp")


def header(
  config: dict[str, Any], data: Any, facts: dict[str, Any], folder: Path, tracking: str
) -> None:
  """What is about to be trained, on what, how large it is, and where it is kept."""
  name, size, train = config["encoding"], config["model"], config["train"]
  splits = ", ".join(f"{count:,} {split}" for split, count in data.sizes.items())
  given = ", ".join(f"{key}={typed(value)}" for key, value in (config.get(name) or {}).items())
  own = facts["parameters"] - facts["parameters_of_none"]
  cost = facts["flops_per_token"] / facts["flops_per_token_of_none"] - 1
  against, times = (f", {own:+,} against none", f" ({cost:+.1%})") if name != "none" else ("", "")
  match = "" if size["match"] == "none" else f" (for the {size['match']} of {size['match_to']})"
  rows = {
    "task": f"{config['task']['name']}: {splits}; {data.num_classes} classes",
    "": f"vocabulary {data.vocab_size:,}, longest text {data.longest} tokens",
    "encoding": f"{name}{': ' if given else ''}{given}",
    "model": f"{facts['parameters']:,} parameters{against}; "
    f"{facts['flops_per_token'] / 1e6:.2f} MFLOPs a token{times}",
    " ": f"d_model {size['d_model']}, {size['num_heads']} heads, {size['num_layers']} layers, "
    f"d_ff {facts['d_ff']}{match}, {size['norm']}-norm, {size['dtype']}",
    "training": f"{facts['steps']:,} steps of {train['batch_size']} texts, "
    f"seed {config['seed']}, on {facts['devices']}",
    "run": near(folder),
    "wandb": tracking,
  }
  for label, text in rows.items():
    log.info("%s", f"{label:<10}{text}".rstrip())
  for note in data.notes:
    log.info("%s", f"{'note':<10}{note}")


def result(summary: dict[str, Any]) -> None:
  """The final table: the best checkpoint on both splits, beside the bag of words."""
  rows = (
    ("accuracy", ""),
    ("macro_f1", ""),
    ("loss", ""),
    ("accuracy", "baseline/"),
    ("macro_f1", "baseline/"),
  )
  log.info("")
  log.info("%s", f"{'at step ' + format(summary['step'], ','):<34}{'validation':>12}{'test':>10}")
  for name, prefix in rows:
    label = f"{'bag of words, ' if prefix else ''}{name.replace('macro_f1', 'macro F1')}"
    values = (summary[f"{prefix}{split}/{name}"] for split in ("validation", "test"))
    log.info("%s", f"{label:<34}" + "{:>12.4f}{:>10.4f}".format(*values))
  ahead = [
    100 * (summary[f"{split}/accuracy"] - summary[f"baseline/{split}/accuracy"])
    for split in ("validation", "test")
  ]
  log.info("%s", f"{'accuracy against it, points':<34}" + "{:>+12.2f}{:>+10.2f}".format(*ahead))


def near(path: Path) -> str:
  """A path as short as the current directory allows."""
  relative = os.path.relpath(path)
  return str(path) if relative.startswith("..") else relative
