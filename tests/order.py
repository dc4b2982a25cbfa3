"""A task that only order decides: which of the words a and b comes first.

Each text stands there twice, with a and b exchanged, so that a bag of its words says nothing.
"""

import collections
import contextlib
import functools
import io
import itertools
import json
import logging
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import hydra
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posexp.config import plugins
from posexp.config.command_line import GROUPS, parse, shared
from posexp.config.overrides import read
from posexp.sweeps.jobs import members
from posexp.sweeps.sweep import Member

COLORS = ("red", "green", "blue", "gray", "pink")
SIZES = {"train": 400, "validation": 60, "test": 100}
# Of runs of any length one program is compiled, which other files find on disk.
STEADY = ["train.schedule=constant", "train.warmup=2", "model.dropout=0.1"]
SHORT = [*STEADY, "train.steps=12", "train.evaluate_every=4", "train.log_every=3"]
BRIEF = [*STEADY, "train.steps=6", "train.evaluate_every=3", "train.log_every=1"]
BRIEF += ["encoding=rpr", "rpr.k=2", "wandb.mode=disabled"]
NUMBERS = ["task=numbers", "task.examples=200", "task.places=3", "task.digits=2", "task.beam=1"]
NUMBERS += ["task.beyond=[3]", "train.batch_size=256", "task.bleu_pairs=4"]
NUMBERS += ["task.vocab_size=1000"]  # so that sentences are of two lengths
MODEL = ["model.d_model=16", "model.num_heads=2", "model.num_layers=1", "model.d_ff=32"]


def write(folder: Path, longest: int = 7) -> list[str]:
  """Writes the files of the task, and returns the options of a tiny model that reads them."""
  rng = random.Random(0)
  for split, size in SIZES.items():
    rows = [row for _ in range(size // 2) for row in pair(rng, longest)]
    rng.shuffle(rows)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{split}.jsonl").write_text(text)
  files = [f"task.{split}={folder / split}.jsonl" for split in SIZES]
  named = ["task=text_classification", "task.name=order"]
  return [*named, *files, *MODEL, "wandb.mode=disabled"]


def pair(rng: random.Random, longest: int) -> list[dict[str, str]]:
  """Two texts of the same 2 to `longest` words."""
  words = rng.choices(COLORS, k=rng.randrange(longest - 1))
  i, j = sorted(rng.sample(range(len(words) + 2), 2))
  rows = []
  for first, second in ("ab", "ba"):
    text = [*words]
    text.insert(i, first)
    text.insert(j, second)
    rows.append({"text": " ".join(text), "label": first})
  return rows


@contextlib.contextmanager
def home(path: Path) -> Iterator[None]:
  """In it `path` is the current directory, and holds what is kept between runs."""
  with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(path / "cache")}), contextlib.chdir(path):
    yield


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
  """In it a run that has been opened is not restored again by what opens it in the same way."""
  from posexp.training import restore

  with contextlib.ExitStack() as stack:
    for name in ("open_trained", "open_alone"):
      stack.enter_context(mock.patch.object(restore, name, functools.cache(getattr(restore, name))))
    yield


def work(module: ModuleType, *argv: object) -> Any:
  """What a command returns for what is typed, in this process."""
  do = getattr(module, module.__name__.rpartition(".")[2])
  return do(module.arguments([*map(str, argv)]))


by_hydra, kept = hydra.compose, {}  # what Hydra composes from choices of files


def composed_once(name: str, overrides: Sequence[str], **more: Any) -> DictConfig:
  """What Hydra composes, which takes it a tenth of a second: configs that differ in values alone,
  and read no folder of the user's, share it.
  """
  lines, given = list(overrides), read(overrides)
  values = [
    o.type is OverrideType.CHANGE
    and not (
      o.key_or_group in GROUPS or "/" in o.key_or_group or o.package or o.is_sweep_override()
    )
    for o in given
  ]
  if any("hydra" in line or "${" in line for line in lines) or plugins.found("config"):
    return by_hydra(name, lines, **more)
  choices = [line for line, is_value in zip(lines, values, strict=True) if not is_value]
  key = (*choices, *((each.name, each.sha256) for each in plugins._found.values()))
  if key not in kept:
    kept[key] = pickle.dumps(by_hydra(name, choices, **more))
  cfg = pickle.loads(kept[key])
  try:
    for o in itertools.compress(given, values):
      OmegaConf.update(cfg, o.key_or_group, o.value())
  except OmegaConfBaseException:
    return by_hydra(name, lines, **more)  # which says what is wrong
  cfg.hydra.overrides.task = lines
  cfg.hydra.job.override_dirname = ",".join(sorted(lines))
  cfg.hydra.runtime.cwd = os.getcwd()
  return cfg


def planned(*argv: str) -> list[Member]:
  """The runs that a command line stands for."""
  args = parse(argv)
  return members(args, shared(args.overrides))


class Typed(NamedTuple):
  """What came of a command line."""

  status: int
  out: str
  err: str

  @property
  def refusal(self) -> str:
    """The sentence of a mistake, which is all that is said."""
    assert self.status == 2, self
    assert not self.out, self
    assert self.err.startswith("posexp: error: "), self
    assert self.err.count("\n") == 1, self
    return self.err.removeprefix("posexp: error: ")


def command(*argv: str, job: Callable[[dict[str, Any]], Any] | None = None) -> Typed:
  """Types a command line, which trains, or does another job with each config."""
  from posexp.sweeps.launch import launch
  from posexp.train import look, means, train

  logs = [logging.getLogger(name) for name in (None, "posexp", "jax")]
  before = [(log.handlers[:], log.level) for log in logs]
  out, err = io.StringIO(), io.StringIO()
  try:
    with (
      mock.patch.object(sys, "argv", ["posexp", *argv]),
      # Configuring logging closes all handlers there are, absl's with pytest's own stderr in it.
      mock.patch.object(logging, "_handlerList", []),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      status = launch(job or train, means, look)
  finally:
    for log, (handlers, level) in zip(logs, before, strict=True):
      log.handlers[:] = handlers
      log.setLevel(level)
  return Typed(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def compilations() -> Iterator[collections.Counter]:
  """Counts, by name, the functions that are compiled."""
  import jax

  counts = collections.Counter()

  def heard(event, seconds, **kwargs):
    if event == "/jax/core/compile/backend_compile_duration":
      counts[kwargs["fun_name"].removeprefix("jit(").removesuffix(")")] += 1

  jax.monitoring.register_event_duration_secs_listener(heard)
  try:
    yield counts
  finally:
    jax.monitoring.unregister_event_duration_listener(heard)


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[None]:
  """In it a run is stopped, as by Ctrl-C, when it is to log this step."""

  from posexp.runs import RunWriter

  log = RunWriter.log

  def leave(self: RunWriter, step: int, metrics: dict[str, Any]) -> None:
    if step == at:
      raise KeyboardInterrupt
    log(self, step, metrics)

  with mock.patch.object(RunWriter, "log", leave):
    yield


def summaries(runs: Path | str) -> dict[Path, dict[str, Any]]:
  """The summaries of finished runs, by their folders."""
  return {path.parent: json.loads(path.read_text()) for path in Path(runs).rglob("summary.json")}


def only(runs: Path | str) -> Path:
  """The folder of the one run in a folder of runs."""
  (path,) = Path(runs).glob("*/*/*/seed=*")
  return path


def timeless(values: dict[str, Any]) -> dict[str, Any]:
  """Less what is measured in time or in memory, when it was, and by which commit."""
  varied = ("time/", "memory/", "ended", "versions")
  return {key: values[key] for key in values if not key.startswith(varied)}


def result(path: Path) -> tuple[list[dict], dict, str]:
  """The rows, the summary and the predictions of a run, less what is measured in time or memory.

  A row of a step at which a session ended has nothing else.
  """
  from posexp.runs import read_run

  run = read_run(path)
  predictions = (path / "predictions/test.jsonl").read_text()
  rows = [row for row in map(timeless, run.history) if row.keys() > {"step"}]
  return rows, timeless(run.summary), predictions
