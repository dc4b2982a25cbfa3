"""What Weights & Biases gets of a run, seen by a stub of its server."""

import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tracked import CONFIG, said_by_posexp, send, steps_of, train
from wandb_stub import API_KEY, Refused

from posexp.config.command_line import compose
from posexp.config.composed import resolve
from posexp.errors import UserError
from posexp.runs import RunWriter, digest, folder
from posexp.sweeps.launch import launch
from posexp.tracking import chosen, repeat, tracker
from posexp.wandb import run as wandb_run
from posexp.wandb.run import Wandb

pytestmark = pytest.mark.usefixtures("light")


def wandb_folders(config=CONFIG):
  return sorted(path.name for path in folder(config).glob("wandb/*run-*"))


def test_facts_of_a_run_are_neither_metrics_nor_how_they_are_shown():
  layout = {key: {} for key in ("step", "headline", "metrics", "gates")}
  assert tracker.facts({"parameters": 3, "test/loss": 1.0} | layout) == {"parameters": 3}
  assert tracker.facts(None) == {}


def test_what_is_logged_online(stub, capfd):
  line = train([10, 20, 30], project="mine", entity="team", tags=("paper",), notes="why")
  [(name, logged)] = stub.runs.items()
  identity = digest(CONFIG)
  assert line == f"{stub.url}/team/mine/runs/{name}"
  assert (logged.entity, logged.project) == ("team", "mine")
  assert logged.field("groupName") == f"mr/rpr/{identity}"
  assert logged.field("displayName") == f"mr/rpr/{identity}/seed=1"
  assert logged.field("jobType") == "train"
  assert logged.field("tags") == ["mr", "rpr", "paper"]
  assert logged.field("notes") == "why"
  assert logged.config == {
    "encoding": "rpr",
    "rpr": {"k": 4, "keys": True},
    "task": {"kind": "text_classification", "name": "mr", "folds": None},
    "model": {"d_model": 128},
    "seed": 1,
    "parameters": 1234,
    "devices": "1 cpu",
  }
  assert logged.axes == {f"{name}/*": "step" for name in ("train", "validation", "time", "memory")}
  assert logged.history == [
    {"_step": step, "step": step, "validation/accuracy": step / 100, "time/seconds": step}
    for step in (10, 20, 30)
  ]
  assert logged.summary["validation/accuracy"] == 0.75
  assert logged.summary["test/accuracy"] == 0.5
  assert logged.exit_code == 0
  assert capfd.readouterr() == ("", "")


def test_a_table_that_cannot_be_sent_costs_nothing_else(stub, monkeypatch):
  def refuse(variables):
    raise Refused(403, "no artifacts here")

  monkeypatch.setattr(stub, "_CreateArtifact", refuse)
  monkeypatch.setattr(stub, "_ArtifactType", refuse)
  train([10], samples={"samples": [{"source": "one", "hypothesis": "eins"}]})
  [logged] = stub.training
  assert steps_of(logged)[0] == 10
  assert (logged.summary["test/accuracy"], logged.exit_code) == (0.5, 0)


def test_a_job_that_fails_ends_as_failed_and_leaves_the_next_alone(stub, capfd):
  errors = {UserError("NaN"): 1, SystemExit(143): 143}
  for seed, error in enumerate(errors):
    with pytest.raises(type(error)):
      train([10, 20], error=error, config={**CONFIG, "seed": seed})
  train([10], config={**CONFIG, "seed": len(errors)})
  *failed, next_one = stub.runs.values()
  assert [run.exit_code for run in failed] == [*errors.values()]
  assert [steps_of(run) for run in failed] == [[10, 20]] * len(errors)
  assert (steps_of(next_one), next_one.exit_code) == ([10], 0)
  assert len({run.field("groupName") for run in stub.runs.values()}) == 1
  assert len({run.field("displayName") for run in stub.runs.values()}) == len(stub.runs)
  assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_resumed_run_is_one_run_with_every_row_once(stub, mode):
  with pytest.raises(SystemExit):
    train([10, 20, 30], error=SystemExit(143))
  # Stopped at 30, with a checkpoint at 20: step 30 is done again.
  with RunWriter(folder(CONFIG), CONFIG) as run:
    run.rewind(20)
  line = train([30, 40], mode=mode)
  if mode == "offline":  # what the server has is not sent twice
    send(line)
  [logged] = stub.training
  assert steps_of(logged) == [10, 20, 30, 40]
  assert logged.exit_code == 0


def test_rerun_is_another_run(stub):
  train([10, 20])
  train([10], rerun=True)
  first, second = stub.runs.values()
  assert (steps_of(first), steps_of(second)) == ([10, 20], [10])


def test_a_key_in_netrc_is_a_login(stub, monkeypatch, tmp_path):
  monkeypatch.delenv("WANDB_API_KEY")
  host = stub.url.removeprefix("http://")
  (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {API_KEY}\n")
  (tmp_path / "netrc").chmod(0o600)
  assert train([10]).startswith(stub.url)


KILLED = """
import os, sys
sys.path[:0] = {paths!r}
import tracked
for seed, mode in enumerate({modes!r}):
  if not (child := os.fork()):
    config = {{**tracked.CONFIG, "seed": seed}}
    kill = lambda: os.kill(os.getpid(), 9)
    tracked.train([10, 20], during=kill, mode=mode, config=config)
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
"""


@pytest.mark.slow
def test_a_run_that_was_killed_is_whole(stub):
  here, modes = Path(__file__).parents[1], ("online", "offline")
  code = KILLED.format(paths=[str(here), str(here.parent)], modes=modes)
  subprocess.run([sys.executable, "-c", code], check=True)
  for seed, mode in enumerate(modes):
    config = {**CONFIG, "seed": seed}
    [killed] = wandb_folders(config)
    line = train([30], mode=mode, config=config)
    assert killed in wandb_folders(config)  # no session is removed
    if mode == "offline":
      send(line)
    logged = list(stub.training)[seed]
    assert steps_of(logged) == [10, 20, 30]
  assert len(list(stub.training)) == len(modes)


@pytest.mark.slow
def test_what_was_logged_offline_is_sent_before_a_run_goes_on_online(stub):
  train([10, 20], mode="offline")
  line = train([30])
  assert line.startswith("offline (what was logged offline before is not sent yet); send with: ")
  with pytest.raises(UserError, match="offline before is not sent yet"):
    train([40], mode="online")
  send(line)
  assert train([40]).startswith(stub.url)
  [logged] = stub.training
  assert steps_of(logged) == [10, 20, 30, 40]


def test_disabled_costs_nothing(tmp_path):
  code = (
    "import os, sys\nfrom posexp.runs import RunWriter\n"
    "from posexp.tracking import Trackers, chosen\n"
    "for mode in ('disabled', 'auto'):\n"
    f"  with RunWriter(os.path.join({str(tmp_path / 'a/b/c/d')!r}, mode), {CONFIG!r}) as run:\n"
    "    options = chosen({'tracker': {'wandb': {'mode': mode}}})\n"
    f"    with Trackers(options, run, {CONFIG!r}, {{}}) as opened:\n"
    "      opened.log(1, {'a': 1}); opened.summarize({}); print(opened.lines['wandb'])\n"
    "  os.environ['WANDB_DISABLED'] = 'true'\n"
    "assert not {'wandb', 'tensorboardX'} & sys.modules.keys()"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (0, "disabled\ndisabled\n", "")
  assert not list((tmp_path / "a/b/c/d").glob("*/wandb"))


@pytest.mark.parametrize(
  ("settled", "options", "line"),
  [
    ("mode = offline", {}, "offline; send with: "),
    ("mode = disabled", {}, "disabled"),
    ("mode = offline", {"mode": "online"}, "URL/tester/posexp/runs/"),
    ("project = thesis\nentity = team", {"project": "own"}, "URL/team/own/runs/"),
  ],
)
def test_what_w_and_b_has_settled_is_heeded(stub, capfd, settled, options, line):
  Path("wandb").mkdir()
  Path("wandb/settings").write_text(f"[default]\n{settled}\n")
  assert train([10], **options).startswith(line.replace("URL", stub.url))
  assert capfd.readouterr() == ("", "")


def test_a_setting_that_w_and_b_refuses(apart, monkeypatch):
  monkeypatch.setenv("WANDB_SILENT", "maybe")
  with pytest.raises(UserError, match="from the environment: silent: Input should be a valid bool"):
    train([10])


@pytest.mark.parametrize(
  ("said", "typed", "found"),
  [
    ({"MODE": "dryrun"}, [], {"mode": "dryrun"}),
    ({"MODE": "dryrun"}, ["mode=online"], {"mode": "online"}),
    ({"DISABLED": "true"}, [], {"mode": "auto", "settled_mode": "disabled"}),
    ({"DISABLED": "true"}, ["mode=offline"], {"settled_mode": "offline"}),
    ({"PROJECT": "my-thesis"}, ["project=posexp"], {"project": "posexp"}),
    ({}, [], {"project": None, "all_tags": [], "mode": "auto", "entity": None}),
    ({"TAGS": "a, b,"}, [], {"all_tags": ["a", "b"]}),
    ({"TAGS": "a"}, ["tags=[c]"], {"all_tags": ["c"]}),
    ({"ENTITY": "team", "NOTES": "why"}, ["notes=own"], {"entity": "team", "notes": "own"}),
    ({"RUN_GROUP": "ours"}, ["group=mine", "name=n"], {"group": "mine", "name": "n"}),
    ({}, [], {"console": "off", "log_model": False}),
    ({"CONSOLE": "wrap", "LOG_MODEL": "true"}, [], {"console": "wrap", "log_model": True}),
    ({"LOG_MODEL": "1"}, [], {"log_model": 1}),
    (
      dict.fromkeys(["MODE", "PROJECT", "TAGS", "CONSOLE", "LOG_MODEL", "DISABLED", "RUN_ID"], ""),
      [],
      {**vars(Wandb()), "named_by": None},
    ),
    ({"LOG_MODEL": "all"}, [], "^WANDB_LOG_MODEL=all: wandb.log_model=all: must be true or false"),
    (
      {"MODE": "shared"},
      [],
      "^WANDB_MODE=shared: wandb.mode must be one of auto, online, offline, disabled, dryrun, run,",
    ),
    ({"MODE": "shared"}, ["mode=onlin"], "^wandb.mode must be one of auto, online, offline, disab"),
    ({"PROJECT": "a/b"}, [], "^WANDB_PROJECT=a/b: wandb.project must be a name without"),
    ({"TAGS": "x" * 65}, [], "^WANDB_TAGS=x*: wandb.tags must have 1 to 64 letters"),
    ({}, ["timeout=0"], "wandb.timeout must be above 0, not 0"),
    ({}, ["timeout=long"], "wandb.timeout=long: must be a number"),
  ],
)
def test_what_is_typed_goes_before_the_environment(apart, monkeypatch, said, typed, found):
  for name, value in said.items():
    monkeypatch.setenv(f"WANDB_{name}", value)
  config = resolve(compose([f"wandb.{each}" for each in typed]))
  if isinstance(found, str):
    with pytest.raises(UserError, match=found):
      chosen(config)
  else:
    wandb = chosen(config)["wandb"]
    assert {key: getattr(wandb, key) for key in found} == found
    assert digest({**CONFIG, "tracker": config["tracker"]}) == digest(CONFIG)


SAID = {  # variables that W&B's docs name, a value, and the field of the run that has it
  "PROJECT": ("thesis", "project"), "ENTITY": ("team", "entity"), "NAME": ("first", "displayName"),
  "RUN_GROUP": ("ours", "groupName"), "JOB_TYPE": ("test", "jobType"), "NOTES": ("why", "notes"),
  "TAGS": ("a,b", "tags"), "HOST": ("node7", "host"), "PROGRAM": ("train.py", "program"),
}  # fmt: skip


def test_what_the_environment_says_of_a_run_is_heeded_or_said(stub, monkeypatch, caplog, capfd):
  heeded = {name: value for name, (value, _) in SAID.items()}
  for name, value in {**heeded, "RUN_ID": "mine", "SILENT": "false", "QUIET": "false"}.items():
    monkeypatch.setenv(f"WANDB_{name}", value)
  for name in wandb_run.UNHEEDED:
    monkeypatch.setenv(name, "1")
  monkeypatch.delenv("WANDB_X_DISABLE_MACHINE_INFO")
  options = compose(["wandb.mode=online"])["wandb"]
  with caplog.at_level(logging.WARNING, "posexp"):
    train([10], during=lambda: __import__("wandb").termwarn("something is odd"), **options)
  logged = stub.runs["mine"]
  found = {field: logged.field(field) for _, field in SAID.values()}
  assert found == {field: value for value, field in SAID.values()} | {
    "tags": ["mr", "rpr", "a", "b"]
  }
  said = [f"{name} is not heeded: {why}" for name, why in wandb_run.UNHEEDED.items()]
  assert said_by_posexp(caplog) == [*said, "W&B: something is odd"]
  assert capfd.readouterr() == ("", "")


def test_a_sweep_is_refused_where_the_environment_names_one_run(apart, monkeypatch, capsys):
  monkeypatch.setenv("WANDB_RUN_ID", "mine")
  argv = ["posexp-train", "-m", "encoding=none", "seeds=2", "model=tiny", "task=numbers"]
  monkeypatch.setattr(sys, "argv", argv)
  assert launch(lambda config: pytest.fail("trained")) == 2
  message = "WANDB_RUN_ID names one run (wandb): unset it, or leave -m and seeds out"
  assert message in capsys.readouterr().err


def test_an_agent_that_repeats_a_finished_config_gets_its_result(stub, monkeypatch):
  repeat({"wandb": Wandb()}, folder(CONFIG), CONFIG)  # no agent, nothing to do
  train([10, 20], mode="disabled")
  given = {"rpr.k": {"value": 4}, "seed": {"value": 1}, "wandb_version": 1}
  Path("given.yaml").write_text(json.dumps(given))
  said = {"SWEEP_ID": "grid", "RUN_ID": "trial", "PROJECT": "swept", "DIR": "elsewhere"}
  for name, value in {**said, "SWEEP_PARAM_PATH": "given.yaml"}.items():
    monkeypatch.setenv(f"WANDB_{name}", value)
  repeat({"wandb": Wandb()}, folder(CONFIG), CONFIG)
  [(name, logged)] = stub.runs.items()
  assert (name, logged.project, logged.exit_code) == ("trial", "swept", 0)
  assert steps_of(logged) == [10, 20]
  assert logged.summary["test/accuracy"] == 0.5
  # Once, and by the name by which the searches of W&B's sweeps find it.
  assert (logged.config["rpr"], logged.config["rpr.k"]) == ({"keys": True}, 4)


def test_the_sweep_of_the_documents_is_one_of_posexp(apart):
  text = (Path(__file__).parents[2] / "docs/wandb.md").read_text("utf-8")
  sweep = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", text, re.M | re.S)[1])
  env, *python, first, second, given = sweep["command"]
  assert (env, given) == ("${env}", "${args_no_hyphens}")
  assert python == ["python", "-m", "posexp.train"]
  ranges = {name: each.get("values") or [each["min"]] for name, each in sweep["parameters"].items()}
  config = resolve(compose([first, second, *(f"{key}={r[-1]}" for key, r in ranges.items())]))
  assert (config["encoding"], config["rpr"]["k"]) == ("rpr", 8)
  assert config["train"]["learning_rate"] == 1e-4


def test_the_command_is_right_for_runs_elsewhere(monkeypatch, tmp_path):
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path / "here")
  config = {**CONFIG, "runs": str(tmp_path / "all my runs")}
  line = train([10], config=config, mode="offline")
  *command, path = shlex.split(line[line.index("python") :])
  assert command == ["python", "-m", "posexp.sync"]
  assert Path(path) == folder(config)
