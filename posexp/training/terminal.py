"""What a run says of itself on the terminal: a header before it, a table after it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posexp.config import show as typed
from posexp.errors import counted, near

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
    "task": f"{config['task']['name']}: {splits}; {data.about[0]}",
    "": data.about[1],
    "encoding": f"{name}{': ' if given else ''}{given}",
    "model": f"{facts['parameters']:,} parameters{against}; "
    f"{facts['flops_per_token'] / 1e6:.2f} MFLOPs a token{times}",
    " ": f"d_model {size['d_model']}, {counted(size['num_heads'], 'head')}, "
    f"{counted(size['num_layers'], 'layer')}, "
    f"d_ff {facts['d_ff']}{match}, {size['norm']}-norm, {size['dtype']}"
    + (f", {facts['attention']} attention" if facts["attention"] != "reference" else ""),
    "training": f"{facts['steps']:,} steps of {train['batch_size']:,} {data.unit}, "
    f"seed {config['seed']}, on {facts['devices']}",
    "run": near(folder),
    "wandb": tracking,
  }
  for label, text in rows.items():
    log.info("%s", f"{label:<10}{text}".rstrip())
  for note in data.notes:
    log.info("%s", f"{'note':<10}{note}")


def result(lines: Iterable[str]) -> None:
  """The final table."""
  log.info("")
  for each in lines:
    log.info("%s", each)
