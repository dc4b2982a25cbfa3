"""Run folders made by hand, as a sweep would leave them."""

import copy
import hashlib
import json

import yaml

CONFIG = {
  "task": {"kind": "text_classification", "name": "toy", "train": None, "fold": None},
  "model": {"d_model": 16, "dropout": 0.1},
  "train": {"epochs": 2, "learning_rate": 0.001},
  "wandb": {"mode": "disabled"},
  "runs": "runs",
  "rerun": False,
}
# Six seeds each of a good group and of another.
A = [0.91, 0.93, 0.90, 0.96, 0.94, 0.92]
B = [0.79, 0.80, 0.80, 0.81, 0.80, 0.79]
LOGGED = "2026-01-02 03:04:05,678 INFO step 20/20\n"


def write(
  root, encoding, seed, score=None, *, options=None, log=LOGGED, metric="test/accuracy", **more
):
  """One run; without a score it has not finished. `more` are a summary's, or "task.fold" and such
  of the config."""
  config = copy.deepcopy(CONFIG)
  for key in [key for key in more if "." in key]:
    section, _, name = key.partition(".")
    config[section][name] = more.pop(key)
  config = {"encoding": encoding, encoding: options or {}, **config, "seed": seed}
  data = more.pop("data", "")
  text = json.dumps({k: v for k, v in config.items() if k != "seed"}) + data
  digest = hashlib.sha256(text.encode()).hexdigest()[:12]
  path = root / config["task"]["name"] / encoding / digest / f"seed={seed}"
  path.mkdir(parents=True)
  (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
  rows = [
    {"step": step, "train/loss": 1 / step, "time/tokens_per_second": 100.0 * step}
    | ({"validation/accuracy": (score or 0.5) - 1 / step, "validation/loss": 1 / min(step, 10)})
    for step in (5, 10, 20)
  ]
  (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (path / "train.log").write_text(log)
  if score is not None:
    summary = {metric: score, "parameters": 1000, "flops_per_token": 5000.0, "steps": 20}
    summary |= {"stopped_at": 20, "time/seconds": 4.0, "devices": "1 cpu"} | more
    (path / "summary.json").write_text(json.dumps(summary))
  return path


def sweep(root, groups, **more):
  """Runs of {("rpr", 4): scores by seed}; an encoding alone has no options."""
  for name, scores in groups.items():
    encoding, k = name if isinstance(name, tuple) else (name, None)
    seeded = scores.items() if isinstance(scores, dict) else enumerate(scores)
    for seed, score in seeded:
      write(root, encoding, seed, score, options=None if k is None else {"k": k}, **more)
  return root


def report(*argv):
  """Types a report, of which it returns the results."""
  from posexp.report import arguments, report

  return report(arguments(list(map(str, argv))))
