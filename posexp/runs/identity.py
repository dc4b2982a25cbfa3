"""The identity of a run: the digest of the options that decide its results, and its folder; and the
digests of a finished run's files, by which a changed one is noticed: run.sha256.

`sha256sum -c run.sha256` checks them, too. A run of an earlier version has no such file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexp import reading, storage
from posexp.config.checks import FOLDER, brief, show
from posexp.config.schema import flat
from posexp.errors import UserError

# Options and sections that do not change a run's results; earlier runs have the section wandb.
BOOKKEEPING = (
  "seed", "runs", "rerun", "tracker", "wandb", "distributed", "distributed_timeout", "plugins",
  "trial", "labels", "until", "margin",
)  # fmt: skip
DIVIDED = ("cpu_devices", "shard")  # of training: how devices share the work, whatever the result
PARTIAL = ("train.decayed",)  # what only the results of some encodings depend on
SEAL = "run.sha256"
CONFIG, ROWS, SUMMARY = SEALED = ("config.yaml", "metrics.jsonl", "summary.json")
FILES = ("train", "validation", "test", "folder")  # options of a task that are paths of data
# Options that change no result at these values, which are also what runs had before the option
# existed: such runs keep their digest.
NEUTRAL = {
  "train.accumulate": (1,),
  "train.least_epochs": (None,),
  "train.least_steps": (None,),
  "train.optimizer": ("adamw",),
  "train.optimizer_options": (None,),
  "train.decayed": ("kernels",),
  "model.backbone": ("transformer",),
  "model.vectors": (None,),
  "model.norm_epsilon": (1e-6,),
  "model.attention": ("auto",),
  "model.num_kv_heads": (None,),
  "model.head_dim": (None,),
  "model.feed_forward": ("relu",),
  "model.experts": (0,),
  "model.experts_used": (2,),
  "model.norm_kind": ("layer",),
  "model.first_norm": (True,),
  "model.qk_norm": (False,),
  "model.qk_norm_over": ("head",),
  "model.qk": ("free",),
  "model.output_gate": (False,),
  "model.sinks": ("none",),
  "model.own_value": ("kept",),
  "model.conv": (0,),
  "model.conv_of": ("keys_values",),
  "model.bias": ("feed_forward",),
  "model.embed_norm": (False,),
  "model.token_types": (0,),
  "model.tie_embeddings": (False,),
  "model.window": (None,),
  "model.window_ends": ("strict",),
  "model.triangles": (False,),
  "model.memory": (0,),
  "model.same_length": (False,),
  "model.logits_by": ("none",),
  "model.logits_length": (None,),
  "model.logits_growth": (None,),
  "model.logits_in": ("all",),
  "model.logits_scale": (1,),
  "model.logits_cap": (None,),
  "model.head_cap": (None,),
  "binary.at": ("input",),
  "clock.at": ("input",),
  "complex.distances": ("none",),
  "complex.frequency_rate": (1,),
  "complex.frequencies": ("learned",),
  "complex.decay": (1,),
  "complex.wrap": (None,),
  "dape.version": (1,),
  "deberta.share_maps": (False,),
  "deberta.norm_epsilon": (1e-7,),
  "index.at": ("input",),
  "learned.at": ("input",),
  "learned.first": (0,),
  "normalized.at": ("input",),
  "rope.trained_length": (None,),
  "rope.beta_fast": (None,),
  "rope.beta_slow": (None,),
  "rope.ramp": ("index",),
  "rope.truncate": (True,),
  "rope.short_factors": (None,),
  "rope.long_factors": (None,),
  "rope.attention_factor": (None,),
  "rope.p": (1,),
  "rope.learned": ("none",),
  "rope.learned_rate": (1,),
  "rope.map": ("none",),
  "rope.map_window": (None,),
  "rope.map_group": (None,),
  "rope.map_chunk": (None,),
  "rope.map_shift": (None,),
  "rope.key_shift": (False,),
  "rope.clipped": (0,),
  "rope.keys": ("each",),
  "rope.imaginary": (False,),
  "rope.values": (False,),
  "sinusoidal.at": ("input",),
  "task.anywhere": (False,),
  "task.context_targets": (None,),
  "task.contexts": (None,),
  "task.dates": (0.2,),
  "task.queries": (1,),
  "task.values": (1,),
  "task.years": (0.2,),
  "task.tokenizer": ("bpe",),
  "task.validated": ([], ()),
}
# Encodings in which other parameters decay as "matrices" than as "kernels".
DECAYED = re.compile(r"\b(fire|path|selective_rope)\b")
# Where the section has had this other option longer; elsewhere the option has always been there.
BESIDE = {"task.tokenizer": "joint"}


def digest(
  config: Mapping[str, Any], data_digest: str | None = None, vectors_digest: str | None = None
) -> str:
  """Return twelve hexadecimal digits, equal for configs that differ in nothing but the seed.

  `data_digest` identifies the content of the user's own files, and `vectors_digest` that of the
  vectors of words. They replace paths, so that files may be moved.
  """
  kept = decisive(config)
  if (kept.get("positions") or {}).get("kind") == "randomized":
    # Earlier runs drew positions for the widest row of all: their results are not those of today.
    kept["positions"] = kept["positions"] | {"drawn_for": "rows"}
  drawn = (kept.get("positions") or {}).get("kind", "consecutive") != "consecutive"
  if drawn and "accumulate" in (kept.get("train") or {}):
    # Earlier runs drew positions for each part of a batch.
    kept["positions"] = kept["positions"] | {"drawn_in": "step"}
  if data_digest is not None:
    task = {key: value for key, value in kept["task"].items() if not names_file(key, value)}
    kept["task"] = task | {"data": data_digest}
  if vectors_digest is not None:
    kept["model"] = kept["model"] | {"vectors": vectors_digest}
  text = json.dumps(_canonical(kept), sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def names_file(key: str, value: Any) -> bool:
  """Return whether an option of a task is the path of its data, which a digest replaces; a task of
  one's own may have a number under such a name.
  """
  return key in FILES and not isinstance(value, int | float)


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the part of a config that decides a run's results, with the paths of its data.

  The content of a plugin counts as an option of the encoding or the task that it defines, or of
  training, for an optimizer.
  """
  kept = {section: part for section, part in config.items() if section not in BOOKKEEPING}
  for option, neutral in NEUTRAL.items():
    section, _, key = option.partition(".")
    given = kept.get(section) or {}
    if key in given and given[key] in neutral and BESIDE.get(option, key) in given:
      kept[section] = {other: given[other] for other in given if other != key}
  train = kept.get("train") or {}
  name, options = config.get("encoding"), config.get(config.get("encoding")) or {}
  made_of = f"{name} {options.get('base')} {options.get('pattern')}"  # with encodings in options
  decays = train.get("weight_decay") and DECAYED.search(made_of)
  left_out = (*DIVIDED, *["decayed"] * (not decays))
  if train:
    kept["train"] = {key: value for key, value in train.items() if key not in left_out}
  if (init := kept.pop("init", None)) is not None:
    kept["init"] = init["run"]  # wherever its folder is
  for group, plugin in config.get("plugins", {}).items():
    section = {"task": "task", "optimizer": "train"}.get(group, plugin["name"])
    kept[section] = (kept.get(section) or {}) | {"sha256": plugin["sha256"][:12]}
  return kept


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the decisive part of a config with full keys: {"rpr.k": 4}.

  `model.backbone` comes first, even for a Transformer, whose digest leaves it out.
  """
  backbone = (config.get("model") or {}).get("backbone", NEUTRAL["model.backbone"][0])
  return {"model.backbone": backbone} | flat(decisive(config))


def spelled(value: Any) -> str:
  """Return the value of an option as one types it, the same for 1 and 1.0."""
  if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
    value = int(value)
  return show(value)


def number(text: str) -> float | None:
  """Return a value as a finite number, if it is one."""
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def folder(
  config: Mapping[str, Any], data_digest: str | None = None, vectors_digest: str | None = None
) -> Path:
  """Return the folder of a config's run: `<runs>/<task>/<encoding>/<digest>/seed=<n>`.

  A trial of a tuned sweep is in `trials/` of the run that it is to improve, whose digest is
  `config["trial"]`. The digests are those that `digest` takes.

  Raises:
    UserError: the task's name, or a part of `runs`, cannot be the name of a folder.
  """
  if any(len(part.encode()) > 255 for part in Path(config["runs"]).parts):
    raise UserError(f"runs={brief(config['runs'])}: the name of a folder has at most 255 bytes")
  name = str(config["task"]["name"])
  if not FOLDER.holds(name):
    raise UserError(f"task.name must be {FOLDER.words}, not {brief(name)}")
  place = Path(config["runs"], name, config["encoding"])
  if trial := config.get("trial"):
    place = place / trial / "trials"
  return place / digest(config, data_digest, vectors_digest) / f"seed={config['seed']}"


def _canonical(value: Any) -> Any:
  """Return the same JSON for equal numbers: 1 and 1.0 are one learning rate."""
  if isinstance(value, Mapping):
    return {str(key): _canonical(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_canonical(item) for item in value]
  return int(value) if isinstance(value, float) and value.is_integer() else value


def seal(folder: Path, summary: str) -> None:
  """Write the digests of a run's files, and of the `summary` that is about to be written."""
  contents = {name: reading.read(folder / name) for name in SEALED} | {SUMMARY: summary.encode()}
  lines = [
    f"{hashlib.sha256(data).hexdigest()}  {name}\n"
    for name, data in contents.items()
    if data is not None
  ]
  storage.write(folder / SEAL, "".join(lines))


def seal_of(folder: Path) -> dict[str, str]:
  """Return the SHA-256 of each file that a run sealed when it had written it."""
  lines = (reading.read(folder / SEAL) or b"").decode(errors="replace").splitlines()
  return dict(line.split()[::-1] for line in lines if len(line.split()) == 2)


def is_changed(seal: Mapping[str, str], name: str, data: bytes) -> bool:
  """Return whether a file was sealed with another content than it has now."""
  return name in seal and seal[name] != hashlib.sha256(data).hexdigest()


def is_whole(folder: Path) -> bool:
  """Return whether no sealed file of a run was changed."""
  seal = seal_of(folder)
  return not any(is_changed(seal, name, reading.read(folder / name) or b"") for name in SEALED)
