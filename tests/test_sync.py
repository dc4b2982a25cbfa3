"""Runs and their means sent to Weights & Biases from folders, seen by a stub of the server."""

import fcntl
import json
import statistics
from pathlib import Path

import pytest
import run_folders
from scipy import stats
from tracked import CONFIG, steps_of, train, wandb_sync
from wandb_stub import Refused

from posexp import sync
from posexp.errors import UserError
from posexp.runs import folder

SCORES = {("rpr", 2): [0.5, 0.6, 0.9], ("rpr", 4): [0.8], "none": [0.4]}


pytestmark = pytest.mark.usefixtures("light")


def send(*typed):
  return dict(sync.sync(sync.arguments(list(typed))))


def aggregates(stub):
  """By what tells them apart."""
  return {
    (run.config["encoding"], run.config.get("rpr", {}).get("k")): run for run in stub.aggregates
  }


def test_a_run_is_sent_as_training_sends_it(stub, capsys):
  options = {"project": "mine", "entity": "team", "tags": ["paper"], "notes": "why"}
  config = {**CONFIG, "wandb": options}
  rows = [{"source": "one", "hypothesis": "eins"}]
  train([10, 20, 30], config=config, samples={"samples": rows}, **options)
  config = {**config, "seed": 2}
  train([10, 20, 30], config=config, mode="disabled", **options)
  (folder(config) / "predictions").mkdir()
  (folder(config) / "predictions/test.jsonl").write_text(json.dumps(rows[0]) + "\n")
  texts = [{"index": 0, "prompt": "This", "text": " film"}]
  (folder(config) / "predictions/generated.jsonl").write_text(json.dumps(texts[0]) + "\n")
  assert send("runs") == {"in W&B already": 1, "sent": 2}
  first, second = stub.training
  for field in ("groupName", "jobType", "tags", "notes"):
    assert second.field(field) == first.field(field)
  assert second.field("displayName") == first.field("displayName").replace("seed=1", "seed=2")
  assert (second.entity, second.project, second.exit_code) == ("team", "mine", 0)
  assert second.config == first.config | {"seed": 2}
  assert second.axes == first.axes
  assert second.history[:3] == first.history[:3]
  assert steps_of(second) == steps_of(first)
  assert second.table("samples") == first.table("samples") == rows
  assert second.table("continuations") == texts
  ours = ("validation/accuracy", "test/accuracy", "parameters", "devices", "step")
  assert [second.summary[key] for key in ours] == [first.summary[key] for key in ours]
  group, at = folder(config).parent, f"{stub.url}/team/mine/runs"
  sent = list(stub.runs)[1]
  assert capsys.readouterr().out.splitlines() == [
    f"{group}/seed=1: in W&B already",
    f"{group}/seed=2: 3 rows, {at}/{sent}",
    f"{group}: aggregate of 2, {at}/{group.name}-aggregate",
    "runs and groups: 2 sent, 1 in W&B already",
  ]


def test_what_is_new_is_sent(stub):
  train([10, 20], mode="disabled")
  (folder(CONFIG) / "summary.json").rename(folder(CONFIG) / "later")
  assert send() == {"sent": 1}
  [logged] = stub.training
  assert (steps_of(logged), logged.exit_code, stub.aggregates) == ([10, 20], 1, [])
  assert send() == {"in W&B already": 1}
  train([30], mode="disabled")
  assert send() == {"sent": 2}
  [logged] = stub.training
  assert (steps_of(logged), logged.exit_code) == ([10, 20, 30], 0)
  assert logged.summary["test/accuracy"] == 0.5
  assert send() == {"in W&B already": 2}
  assert send("--project", "other") == {"sent": 2}


def test_what_wandb_sync_has_sent_is_not_sent_twice(stub):
  rows = [{"source": "one", "hypothesis": "eins"}]
  train([10, 20], mode="offline", samples={"samples": rows})
  (folder(CONFIG) / "predictions").mkdir()
  (folder(CONFIG) / "predictions/test.jsonl").write_text(json.dumps(rows[0]) + "\n")
  wandb_sync(*folder(CONFIG).glob("wandb/offline-run-*"))
  [logged] = stub.training
  before = logged.history
  assert send() == {"sent": 2}
  assert logged.history == before
  assert [row["step"] for row in before if "step" in row] == [10, 20]
  train([30], mode="offline")
  assert send() == {"sent": 2}
  assert [row["step"] for row in logged.history if "step" in row] == [10, 20, 30]


def test_a_group_is_one_run_of_means_and_updated_whichever_run_is_named(stub, tmp_path):
  run_folders.sweep(tmp_path / "runs", SCORES)
  assert send() == {"sent": 8}
  found = aggregates(stub)
  assert_means(found, stub)
  assert_points(found)
  run = run_folders.write(tmp_path / "runs", "rpr", 7, 0.9, options={"k": 4})
  assert send(str(run)) == {"sent": 2}
  assert len(stub.aggregates) == 3
  logged = aggregates(stub)[("rpr", 4)]
  assert (logged.summary["n/test/accuracy"], logged.config["seeds"]) == (2, [0, 7])
  [point] = logged.table("toy_test_accuracy_by_group")
  assert (point["x"], point["n"]) == ("rpr k=4", 2)
  assert point["mean"] == pytest.approx(0.85)
  low, _ = stats.t.interval(0.95, 1, 0.85, stats.sem([0.8, 0.9]))
  assert point["low"] == pytest.approx(low)


def assert_means(found, stub):
  """The means of three seeds, and of one."""
  logged, scores = found[("rpr", 2)], SCORES[("rpr", 2)]
  low, high = stats.t.interval(0.95, 2, statistics.fmean(scores), stats.sem(scores))
  expected = {"mean": statistics.fmean(scores), "sd": statistics.stdev(scores), "n": 3}
  expected |= {"low": low, "high": high}
  for part, value in expected.items():
    assert logged.summary[f"{part}/test/accuracy"] == pytest.approx(value)
  assert logged.config["seeds"] == [0, 1, 2]
  assert logged.config["rpr"] == {"k": 2}
  assert logged.config["parameters"] == 1000
  assert "seed" not in logged.config
  [run] = {run.field("groupName") for run in stub.training if run.config.get("rpr") == {"k": 2}}
  assert logged.field("groupName") == run
  assert "test/accuracy" not in logged.summary  # by which W&B would count the group as a seed
  alone = found[("none", None)].summary
  assert (alone["mean/test/accuracy"], alone["n/test/accuracy"]) == (0.4, 1)
  assert not [key for key in alone if key.startswith(("sd/", "low/", "high/"))]


def assert_points(found):
  """The tables that figures are drawn from."""
  by_k = "toy_test_accuracy_by_rpr_k"
  for k, n, mean in ((2, 3, 2 / 3), (4, 1, 0.8)):
    [point] = found[("rpr", k)].table(by_k)
    assert (point["x"], point["series"], point["n"]) == (k, "rpr", n)
    assert point["mean"] == pytest.approx(mean)
  assert by_k not in found[("none", None)].summary
  by_group = [run.table("toy_test_accuracy_by_group")[0] for run in found.values()]
  assert {(p["x"], p["series"], p["low"] is None) for p in by_group} == {
    ("none", "none", True),
    ("rpr k=2", "rpr k=2", False),
    ("rpr k=4", "rpr k=4", True),
  }
  curve = found[("rpr", 2)].table("toy_validation_accuracy_by_step")
  assert [(p["x"], p["series"], p["n"]) for p in curve] == [(s, "rpr k=2", 3) for s in (5, 10, 20)]
  assert [p["mean"] for p in curve] == pytest.approx([2 / 3 - 1 / s for s in (5, 10, 20)])


def test_scores_by_length(stub, tmp_path):
  for seed in (0, 1):
    lengths = {f"beyond/exact_match/{part}": 0.1 * seed for part in ("11-15", "6", "7")}
    metric = "test/exact_match"
    more = {"task.kind": "numbers", "beyond/exact_match": 0.5, **lengths}
    run_folders.write(tmp_path / "runs", "rpr", seed, 0.9, metric=metric, **more)
  send()
  [logged] = stub.aggregates
  found = logged.table("toy_beyond_exact_match_by_length")
  assert [(p["x"], p["place"], p["n"]) for p in found] == [
    ("6", 0, 2),
    ("7", 1, 2),
    ("11-15", 2, 2),
  ]
  assert [p["mean"] for p in found] == pytest.approx([0.05] * 3)


def test_one_that_cannot_be_sent_does_not_stop_the_others(stub, tmp_path, capsys, monkeypatch):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1, 0.2, 0.3, 0.4]})
  wrong, taken, refused, _ = sorted(Path("runs/toy/none").glob("*/seed=*"))
  config = (wrong / "config.yaml").read_text()
  (wrong / "config.yaml").write_text(config.replace("mode: disabled", "prject: x"))
  upsert = stub._UpsertBucket

  def refuse(variables):
    if variables["displayName"] and variables["displayName"].endswith("seed=2"):
      raise Refused(400, "this run was deleted")
    return upsert(variables)

  monkeypatch.setattr(stub, "_UpsertBucket", refuse)
  monkeypatch.setattr("sys.argv", ["posexp-sync"])
  with (taken / ".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(SystemExit) as end:
      sync.main()
  assert end.value.code == 1
  first, second, third, fourth, _, last = capsys.readouterr().out.splitlines()
  assert first.startswith(f"{wrong}: not sent: wandb.prject=x: there is no option wandb.prject")
  assert second.startswith(f"{taken}: not sent: {taken} is being trained by another process")
  assert third.startswith(f"{refused}: not sent: ")
  assert "this run was deleted" in third
  assert "seed=3: 3 rows, " in fourth
  assert last.startswith("runs and groups: ")
  assert last.endswith("not sent")
  assert [run.config["seed"] for run in stub.training] == [3]


def test_a_dry_run_sends_nothing(stub, tmp_path, capsys):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1, None]})
  assert send("--dry-run") == {"sent": 3}
  assert stub.runs == {}
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].endswith("seed=0: 3 rows, to be sent")
  assert lines[2].endswith(": aggregate of 1, to be sent")
  assert lines[3] == "runs and groups: 3 sent (a dry run)"


def test_without_w_and_b(stub, tmp_path, monkeypatch):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1]})
  stub.authorized = False
  with pytest.raises(UserError, match="W&B cannot be had: W&B does not accept the API key; wandb"):
    send()
  monkeypatch.delenv("WANDB_API_KEY")
  with pytest.raises(UserError, match="W&B cannot be had: not logged in; wandb login keeps a key"):
    send()
  with pytest.raises(UserError, match=r"wandb\.project must be a name without any of"):
    send("--project", "a/b")
  with pytest.raises(UserError, match="nowhere: there is no such folder"):
    send("nowhere")
  assert not (tmp_path / "runs/toy/none/wandb").exists()


def test_a_server_that_goes_away_ends_it(stub, tmp_path, monkeypatch):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1, 0.2, 0.3]})
  reached = []

  def reach(url, deadline):
    reached.append(url)
    if len(reached) > 2:
      raise ConnectionError(f"{url} cannot be reached")

  monkeypatch.setattr("posexp.tracking.connection.reach", reach)
  with pytest.raises(UserError, match="cannot be reached: the rest is not sent"):
    send()
  assert len(stub.training) == 1
