"""Runs sent to Weights & Biases from their folders, seen by a stub of its server."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
import run_folders
from tracked import CONFIG, steps_of, train, wandb_sync
from wandb_stub import Refused

from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.wandb import command as sync
from posexp.wandb import server as wandb_server

pytestmark = pytest.mark.usefixtures("light")


def send(*typed):
  return dict(sync.sync(sync.arguments(list(typed))))


def test_a_run_is_sent_as_training_sends_it(stub, capsys):
  options = {"project": "mine", "entity": "team", "tags": ["paper"], "notes": "why"}
  config = {**CONFIG, "tracker": {"wandb": options}}
  rows = [{"source": "one", "hypothesis": "eins"}]
  train([10, 20, 30], config=config, samples={"samples": rows, "none": []}, **options)
  config = {**config, "seed": 2}
  train([10, 20, 30], config=config, mode="disabled", **options)
  (folder(config) / "predictions").mkdir()
  (folder(config) / "predictions/test.jsonl").write_text(json.dumps(rows[0]) + "\n")
  texts = [{"index": 0, "prompt": "This", "text": " film"}]
  (folder(config) / "predictions/generated.jsonl").write_text(json.dumps(texts[0]) + "\n")
  os.utime(folder(config) / "metrics.jsonl", (1e9, 1e9))
  assert send("runs") == {"in W&B already": 1, "sent": 1}
  first, second = stub.training
  for field in ("groupName", "jobType", "tags", "notes"):
    assert second.field(field) == first.field(field)
  assert second.field("displayName") == first.field("displayName").replace("seed=1", "seed=2")
  assert (second.entity, second.project, second.exit_code) == ("team", "mine", 0)
  assert second.config == first.config | {"seed": 2}
  assert second.axes == first.axes
  assert second.history[:3] == first.history[:3]
  assert steps_of(second) == steps_of(first)
  logged = [json.loads(line)["_timestamp"] for line in list(second.lines.values())[:3]]
  assert logged == [1e9 - 20, 1e9 - 10, 1e9]  # not when they were sent
  assert second.table("samples") == first.table("samples") == rows
  assert second.table("continuations") == texts
  ours = ("validation/accuracy", "test/accuracy", "parameters", "devices", "step")
  assert [second.summary[key] for key in ours] == [first.summary[key] for key in ours]
  group, at = folder(config).parent, f"{stub.url}/team/mine/runs"
  sent = list(stub.runs)[1]
  assert capsys.readouterr().out.splitlines() == [
    f"{group}/seed=1: in W&B already",
    f"{group}/seed=2: 3 rows, {at}/{sent}",
    "runs: 1 sent, 1 in W&B already",
  ]


def test_what_is_new_is_sent(stub):
  train([10, 20], mode="disabled")
  (folder(CONFIG) / "summary.json").rename(folder(CONFIG) / "later")
  assert send() == {"sent": 1}
  [logged] = stub.training
  assert (steps_of(logged), logged.exit_code) == ([10, 20], 1)
  assert send() == {"in W&B already": 1}
  train([30], mode="disabled")
  assert send() == {"sent": 1}
  [logged] = stub.training
  assert (steps_of(logged), logged.exit_code) == ([10, 20, 30], 0)
  assert logged.summary["test/accuracy"] == 0.5
  assert send() == {"in W&B already": 1}
  assert send("--project", "other") == {"sent": 1}


@pytest.mark.slow
def test_what_wandb_sync_has_sent_is_not_sent_twice(stub):
  rows = [{"source": "one", "hypothesis": "eins"}]
  train([10, 20], mode="offline", samples={"samples": rows})
  (folder(CONFIG) / "predictions").mkdir()
  (folder(CONFIG) / "predictions/test.jsonl").write_text(json.dumps(rows[0]) + "\n")
  wandb_sync(*folder(CONFIG).glob("wandb/offline-run-*"))
  [logged] = stub.training
  before = logged.history
  assert send() == {"sent": 1}
  assert logged.history == before
  assert [row["step"] for row in before if "step" in row] == [10, 20]
  train([30], mode="offline")
  assert send() == {"sent": 1}
  assert [row["step"] for row in logged.history if "step" in row] == [10, 20, 30]


@pytest.mark.slow
def test_offline_sessions_are_sent_as_w_and_b_recorded_them(stub, monkeypatch):
  monkeypatch.delenv("WANDB_X_DISABLE_META")
  monkeypatch.delenv("WANDB_X_DISABLE_MACHINE_INFO")
  monkeypatch.setenv("WANDB_HOST", "node7")
  monkeypatch.setenv("WANDB_PROGRAM", "-m posexp.train")
  with pytest.raises(SystemExit):
    train([10, 20, 30], error=SystemExit(143), mode="offline")
  with RunWriter(folder(CONFIG), CONFIG) as run:
    run.rewind(20)  # step 30 is done again
  rows = [{"source": "one", "hypothesis": "eins"}]
  train([30, 40], mode="offline", samples={"samples": rows})
  first, *_, last = sorted((folder(CONFIG) / "wandb").glob("offline-run-*"))
  if not last.name.startswith(first.name):
    last.rename(f"{first}-1")  # as W&B names it where both began in one second
  for name in ("HOST", "PROGRAM"):
    monkeypatch.delenv(f"WANDB_{name}")
  begun = time.time()
  assert (send(), send()) == ({"sent": 1}, {"in W&B already": 1})
  [logged] = stub.training
  assert [row["step"] for row in logged.history if "step" in row] == [10, 20, 30, 40]
  assert all(json.loads(line)["_timestamp"] < begun for line in logged.lines.values())
  assert (logged.field("host"), logged.field("program")) == ("node7", "-m posexp.train")
  assert (logged.summary["test/accuracy"], logged.exit_code) == (0.5, 0)
  assert logged.table("samples") == rows
  # One that W&B had begun to send is not sent whole again, but what it lacks is.
  mark = next(folder(CONFIG).glob("wandb/offline-run-*/*.synced"))
  mark.unlink()
  train([50], mode="offline")
  assert send() == {"sent": 1}
  assert [row["step"] for row in logged.history if "step" in row] == [10, 20, 30, 40, 50]
  assert mark.exists()


def test_offline_runs_go_where_they_were_logged_unless_another_place_is_named(stub, monkeypatch):
  Path("wandb").mkdir()
  Path("wandb/settings").write_text("[default]\nmode = offline\nproject = thesis\n")
  for seed, options in enumerate(({}, {"entity": "own"})):
    train([10], config={**CONFIG, "seed": seed, "tracker": {"wandb": options}}, **options)
  Path("wandb/settings").unlink()
  wandb_server.reset()
  monkeypatch.setenv("WANDB_ENTITY", "team")
  assert (send(), send()) == ({"sent": 2}, {"in W&B already": 2})
  assert [(run.entity, run.project) for run in stub.training] == [
    ("team", "thesis"),
    ("own", "thesis"),
  ]


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
  first, second, third, fourth, last = capsys.readouterr().out.splitlines()
  assert first.startswith(f"{wrong}: not sent: wandb.prject=x: there is no option wandb.prject")
  assert second.startswith(f"{taken}: not sent: {taken} is being trained by another process")
  assert third.startswith(f"{refused}: not sent: ")
  assert "this run was deleted" in third
  assert "seed=3: 3 rows, " in fourth
  assert last == "runs: 1 sent, 3 not sent"
  assert [run.config["seed"] for run in stub.training] == [3]


def test_a_dry_run_sends_nothing(stub, tmp_path, capsys):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1, None]})
  assert send("--dry-run") == {"sent": 2}
  assert stub.runs == {}
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].endswith("seed=0: 3 rows, to be sent")
  assert lines[2] == "runs: 2 sent (a dry run)"


def test_without_w_and_b(stub, tmp_path, monkeypatch):
  run_folders.sweep(tmp_path / "runs", {"none": [0.1]})
  stub.authorized = False
  with pytest.raises(UserError, match="W&B cannot be had: W&B does not accept the API key; wandb"):
    send()
  monkeypatch.delenv("WANDB_API_KEY")
  with pytest.raises(UserError, match="W&B cannot be had: not logged in; wandb login keeps a key"):
    send()
  with pytest.raises(UserError, match=r"^--project must be a name without any of"):
    send("--project", "a/b")
  monkeypatch.setenv("WANDB_PROJECT", "a/b")
  with pytest.raises(UserError, match=r"^WANDB_PROJECT must be a name without any of"):
    send()
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

  monkeypatch.setattr("posexp.wandb.server.reach", reach)
  with pytest.raises(UserError, match="cannot be reached: the rest is not sent"):
    send()
  assert len(stub.training) == 1
