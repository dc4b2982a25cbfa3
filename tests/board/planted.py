"""A leaderboard with a small suite, whose runs are not trained but have planted scores."""

import json
import shutil
from pathlib import Path

import numpy as np
import yaml

from posexp.board import page, rows, trust, verification
from posexp.board.command import arguments, leaderboard
from posexp.board.standings import Board, of_file
from posexp.board.suite import Suite
from posexp.config import plugins
from posexp.diagnostics.answering import LEARNED
from posexp.reporting.paired_predictions import Examples
from posexp.runs import RunWriter, folder, read_run
from posexp.runs.lengths import extrapolation
from posexp.runs.records import read_records

LENGTHS = [2, 4, 5, 6]
OPTIONS = ["model=tiny", "task.longest=4", f"task.lengths={LENGTHS}", "task.examples=20"]
OPTIONS = [option.replace(" ", "") for option in OPTIONS]
OPTIONS += ["train.batch_size=8", "train.steps=4", "train.evaluate_every=4"]
SIDE = {"low": 0, "high": 1}
COLUMNS = {
  "copy": {"need": "copy", "options": ["task=copy", *OPTIONS], "learning_rate": 1e-3,
           "within": {"score": "test/exact_match", **SIDE},
           "beyond": {"score": "beyond/area", **SIDE}},
  "majority": {"need": "nothing", "control": "A/A", "options": ["task=majority", *OPTIONS],
               "learning_rate": 1e-3, "within": {"score": "test/exact_match", **SIDE}},
}  # fmt: skip
SUITE = {
  "suite": "tiny",
  "whole": {"seeds": 3, "trial_seeds": [1000], "rates": [0.5, 1, 2], "option": True},
  "quick": {"seeds": 2, "trial_seeds": [1000], "rates": [0.5, 1, 2], "option": False},
  "columns": COLUMNS,
}
PLUGIN = """
import dataclasses, posexp
@dataclasses.dataclass(frozen=True)
class Mine(posexp.Encoding):
  pace: float = 0.1
  alternative = ("pace", 0.5)
ENCODINGS = {"mine": Mine}
"""
GOOD = {"rope": 0.97, "none": 0.5, "mine": 0.97, "alibi": 0.75}  # exact match beyond training
ARGS = ["--suite", "suite.yaml", "--out", "out", "--records", "published"]


def packed(right):
  return Examples(right.astype(float), np.ones(len(right)), "all").packed()


def examples_of(run):
  """Which examples a run was given as right, beside its summary."""
  file = run.path / "examples.json"
  return json.loads(file.read_text()) if file.exists() else {}


def planted(tmp_path, monkeypatch):
  """Go to a folder with a suite, and return a `train` which plants scores instead.

  `train.trained` are the configs that it was given, and `train.checked` the encodings whose
  properties were to be checked.
  """
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(plugins, "_found", {})
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE))
  Path("mine.py").write_text(PLUGIN)
  checked, trained = [], []
  for module in (trust, verification):
    monkeypatch.setattr(module, "check_properties", lambda *given: checked.append(given))
  monkeypatch.setattr(rows, "packed_examples", examples_of)
  monkeypatch.setattr(page, "drawn", lambda found, side: "<svg></svg>")  # which is others' to draw

  def train(config):
    if train.stops == len(trained):
      raise KeyboardInterrupt
    trained.append(config)
    name, rate = config["encoding"], config["train"]["learning_rate"]
    random = np.random.default_rng([config["seed"], sum(map(ord, config["task"]["name"]))])
    summary, examples = {"step": 4}, {}
    row = {"validation/exact_match": 0.9 + 0.01 * (rate == 2e-3) - 1e-9 * config["seed"]}
    row |= {"validation/loss": 0.5, "time/seconds": float(len(trained))} | train.validation(config)
    row["time/cpu_seconds"] = 3.0 + (name == "rope")
    if config.get("trial"):
      summary["headline"] = ["validation/exact_match"]
    else:
      for split, lengths in (("test", LENGTHS[:2]), ("beyond", LENGTHS[2:])):
        even = split == "test" or config["task"]["name"] == "majority"
        right = random.random(40) < (0.999 if even else GOOD[name] - 0.05 * random.random())
        parts = right.reshape(2, 20).mean(axis=1)
        each = zip(lengths, parts.tolist(), strict=True)
        summary |= {f"{split}/exact_match/{n}": value for n, value in each}
        summary[f"{split}/exact_match"] = float(right.mean())
        examples[split] = {"exact_match": packed(right)}
      summary["gates"] = {"beyond": {"metric": "test/exact_match", "least": LEARNED}}
      summary |= extrapolation(summary)
    with RunWriter(folder(config), config) as run:
      (run.path / "examples.json").write_text(json.dumps(examples))
      run.log(4, row)
      run.finish(summary | row | {"parameters": 100, "flops_per_token": 200, "processor": "one"})

  def again(file, numbers, place, files):
    runs = read_records(file, trials=True)
    configs = [runs[number].config | {"runs": str(place)} for number in numbers]
    return [train(config) or read_run(folder(config)) for config in configs]

  monkeypatch.setattr(verification, "train_again", again)
  train.stops, train.trained, train.checked = None, trained, checked
  train.validation = lambda config: {}
  monkeypatch.setattr("posexp.train.train", train)
  return train


def typed(*words):
  leaderboard(arguments([*words, *ARGS, *["workers=1"] * ("--verify" not in words)]))


def publish(*names):
  Path("published").mkdir(exist_ok=True)
  for name in names:
    shutil.copy(f"out/{name}.parquet", "published")


def tiny():
  return Suite.read(Path("suite.yaml"))


def board(*names, track="default"):
  every = [each for name in names for each in of_file(Path(f"out/{name}.parquet"), tiny())]
  return Board.of(tiny(), every, track)
