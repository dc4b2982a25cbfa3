"""The command line: what runs, what is refused and in which words, and the exit status."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import order
import pytest
from mistakes import MISTAKES
from seed import some
from states import python

from posexp.config import CONFIGS

MINE = "hydra.searchpath=[file://mine]"


@pytest.fixture
def command(tmp_path, monkeypatch):
  """A function that types a command line; it returns what came of it, and the configs."""
  monkeypatch.chdir(tmp_path)

  def run(*argv, job=lambda config: None):
    configs = []

    def noted(config):
      configs.append(config)
      job(config)

    try:
      return order.command(*argv, job=noted), configs
    except KeyboardInterrupt:  # which would end all tests
      pytest.fail("an interrupt has come through")

  return run


@pytest.fixture
def mine(tmp_path):
  """A folder of the user's own configs."""
  (tmp_path / "mine/experiment").mkdir(parents=True)
  (tmp_path / "mine/task").mkdir()
  (tmp_path / "mine/experiment/clip.yaml").write_text(
    "# @package _global_\n# How far?\n# Run: now\ndefaults:\n  - override /encoding: rpr\n"
    "hydra:\n  mode: MULTIRUN\n  sweeper:\n    params: {rpr.k: '2,4'}\n"
  )
  (tmp_path / "mine/experiment/clip_too.yaml").write_text(
    "# @package _global_\ndefaults:\n  - clip\n"
  )
  (tmp_path / "mine/task/own.yaml").write_text("name: own\n")
  (tmp_path / "mine/hydra/launcher").mkdir(parents=True)
  (tmp_path / "mine/hydra/launcher/other.yaml").write_text(
    "_target_: hydra_plugins.other.Launcher\n"
  )
  return "mine"


def test_values_that_are_lost_to_the_same_option_typed_again_are_said(command):
  typed = "encoding=none,rope", "seeds=2", "seeds=2", "encoding=rpr"
  (status, _, err), configs = command("-m", *typed)
  assert (status, [config["encoding"] for config in configs]) == (0, ["rpr", "rpr"])
  assert err == "posexp: of encoding=none,rope and encoding=rpr the last counts\n"


@pytest.mark.parametrize(
  ("argv", "encodings"),
  some(
    [
      (["~rpr.k", "encoding=rpr"], ["rpr"]),
      (["++rpr.k=3", "encoding=rpr"], ["rpr"]),
      (["hydra.verbose=false", "hydra/launcher=basic"], ["sinusoidal"]),
      (["encoding=rpr", "-m", "rpr.k=2,4"], ["rpr", "rpr"]),
      (["-m", "seed=range(0,3)"], ["sinusoidal"] * 3),
      (["-m", "encoding=choice(rpr,split)", "split.length=9"], ["rpr", "split"]),
      ([MINE, "experiment=clip"], ["rpr", "rpr"]),
      ([MINE, "experiment=clip", "rpr.keys=false", "seed=1,2"], ["rpr"] * 4),
      ([MINE, "experiment=clip", "hydra.mode=RUN", "rpr.k=3"], ["rpr"]),
      ([MINE, "experiment=clip", "encoding=none,rpr"], ["none", "rpr", "rpr"]),
      ([MINE, "-m", "experiment=clip", "rpr.k=1"], ["rpr"]),
      (["seeds=2", "encoding=rpr"], ["rpr"] * 2),
      (["-m", "encoding=none,rpr", "seeds=3"], ["none"] * 3 + ["rpr"] * 3),
      (["encoding=rpr", "seeds=2", "-m", "rpr.k=2,4"], ["rpr"] * 4),
      ([MINE, "task=own"], ["sinusoidal"]),
    ],
    5,
  ),
)
def test_all_that_hydra_offers_goes_through(command, mine, argv, encodings):
  (status, _, err), configs = command(*argv)
  assert (status, err) == (0, "")
  assert [config["encoding"] for config in configs] == encodings
  assert {*os.listdir()} <= {mine, "runs"}  # Hydra leaves nothing


ENCODINGS = ", ".join(sorted(file.stem for file in (CONFIGS / "encoding").glob("*.yaml")))


@pytest.mark.parametrize(("argv", "message"), some(MISTAKES, 12))
def test_mistakes_are_one_sentence_before_anything_runs(command, mine, argv, message):
  typed, configs = command(*argv.replace("MINE", MINE).split())
  assert typed.refusal.startswith(message)
  assert configs == []


@pytest.mark.parametrize(
  "option",
  [
    "hydra.launcher._target_=nothing.Here", "hydra.job.chdir=true", "+hydra.callbacks.x=1",
    "hydra.output_subdir=x", "hydra={run:{dir:x}}", "hydra/callbacks=x", "++hydra.job.env_set.A=b",
  ],
)  # fmt: skip
def test_an_option_of_hydra_that_is_not_heeded_is_refused(command, option):
  typed, configs = command("-m", "seed=0,1", option)
  assert typed.refusal.startswith(f"{option}: posexp does not heed this option of Hydra's; ")
  assert configs == []


LOG, LAUNCH = "hydra.job_logging.", "hydra.launcher."
CALL = "{(): posexp.config.plugins.load, files: [x.py]}"
TARGET = "{_target_: posexp.config.plugins.load, files: [x.py]}"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (f"hydra: {{job_logging: {{handlers: {{x: {CALL}}}}}}}", f"{LOG}handlers.x.()=posexp."),
    (f"hydra: {{job_logging: {{filters: {{x: {CALL}}}}}}}", f"{LOG}filters.x.()=posexp."),
    (
      "hydra: {job_logging: {handlers: {x: {class: logging.FileHandler, filename: y, mode: w}}}}",
      f"{LOG}handlers.x.class=logging.FileHandler: ",
    ),
    ("hydra: {job_logging: {handlers: 'ext://x.y'}}", f"{LOG}handlers=ext://x.y: "),
    (
      "hydra: {job_logging: {formatters: {simple: {format: 'ext://x.y'}}}}",
      f"{LOG}formatters.simple.format=ext://x.y: ",
    ),
    (
      "hydra: {job_logging: {root: {handlers: ['ext://x.y']}}}",
      f'{LOG}root.handlers=["ext://x.y"]',
    ),
    ("defaults: [override /hydra/launcher: bad]", f"{LAUNCH}nested[0]._target_=posexp.config."),
    ("defaults: [override /hydra/sweeper: bad]", "hydra.sweeper.sampler._target_=os.system: "),
    (
      "defaults: [override /hydra/launcher: slurm]\nhydra: {launcher: {setup: [touch x]}}",
      f"{LAUNCH}setup: it can run commands, so a file cannot set it; type {LAUNCH}setup=...",
    ),
    (
      "labels: {a: '${oc.decode:${oc.env:WANDB_API_KEY}}'}",
      "labels.a: a config does not read the environment vari",
    ),
    ("name: [1\nb: 2", "a config file is not valid YAML: while parsing"),
  ],
)
def test_a_config_file_runs_no_code_reads_no_secret_and_is_yaml(command, mine, text, message):
  basic = "_target_: hydra._internal.core_plugins.basic_{0}.Basic{1}\n{2}\n"
  rows = ("launcher", "Launcher", f"nested: [{TARGET}]"), ("sweeper", "Sweeper", "")
  for group, name, rest in rows:
    rest = rest or "max_batch_size: null\nparams: null\nsampler: {_target_: os.system}"
    Path(mine, f"hydra/{group}").mkdir(parents=True, exist_ok=True)
    Path(mine, f"hydra/{group}/bad.yaml").write_text(basic.format(group, name, rest))
  Path(mine, "experiment/bad.yaml").write_text(text)
  Path("x.py").write_text("raise SystemExit('this has been run')")
  Path("y").write_text("precious")
  typed, configs = command(MINE, "experiment=bad", "--cfg", "job")
  assert typed.refusal.startswith(message)
  assert (configs, Path("y").read_text()) == ([], "precious")


@pytest.mark.parametrize(("argv", "unbuffered"), some([([], ""), ([], "1"), (["--help"], "")], 1))
def test_a_log_that_cannot_be_printed_is_no_success(tmp_path, argv, unbuffered):
  code = "import logging, sys; from posexp.sweeps.launch import launch\n"
  code += "sys.exit(launch(lambda config: logging.getLogger('posexp').info('x')))"
  env = os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(Path(__file__).parents[2])}
  argv, full = [sys.executable, "-c", code, *argv], Path("/dev/full")
  with full.open("w") as stdout:
    done = subprocess.run(
      argv, env=env, cwd=tmp_path, text=True, stdout=stdout, stderr=subprocess.PIPE
    )
  assert done.returncode in (1, 2)
  assert re.fullmatch(r"posexp: error: .*No space left on device; .*\n", done.stderr)


@pytest.mark.parametrize("end", [ZeroDivisionError("a bug"), SystemExit(7)])
def test_a_bug_in_a_run_keeps_its_traceback_and_any_other_exit_its_status(command, end):
  def job(config):
    raise end

  with pytest.raises(type(end)) as raised:
    command("seed=1", job=job)
  assert raised.value is end


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_a_sweep_with_a_sentence(command, monkeypatch, sent, status):
  # Ctrl-C is ignored in the background jobs of a shell, which the tests may be among.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    (ended, out, err), configs = command(
      "-m", "seed=0,1", job=lambda config: signal.raise_signal(sent)
    )
  finally:
    signal.signal(signal.SIGINT, before)
  assert (ended, len(configs)) == (status, 1)
  assert out == "sweep     2 runs: 2 waiting\njob 1/2: seed=0\n"
  assert err == "posexp: interrupted; the same command goes on from here\n"


def test_a_signal_that_arrives_in_the_collection_of_garbage_is_not_lost(command):
  def _xla_gc_callback(*_):
    gc.callbacks.clear()
    signal.raise_signal(signal.SIGTERM)

  def job(config):
    gc.callbacks.append(_xla_gc_callback)
    gc.collect()
    for _ in range(500):  # a signal just before a sleep ends none
      time.sleep(0.01)

  kept = [*gc.callbacks]
  try:
    (ended, _, _), _ = command("-m", "seed=0,1", job=job)
  finally:
    gc.callbacks[:] = kept
  assert ended == 143


@pytest.mark.parametrize(("asked", "said"), [("install=bash", "complete -o"), ("install=x", "")])
def test_a_shell_gets_what_completes_options(command, asked, said):
  (status, out, err), _ = command("--shell-completion", asked)
  assert (status, said in out) == ((0, True) if said else (2, True))
  assert bool(err) == (not said)


def test_only_our_own_info_is_shown(command):
  def job(config):
    for name in ("posexp", "absl", "orbax.checkpoint", "jax", "another"):
      logging.getLogger(name).info("info of %s", name)
    logging.getLogger("another").warning("a warning")

  assert command(job=job)[0].out == "info of posexp\na warning\n"


def test_help_shows_choices_and_options_with_their_comments(command, mine):
  Path("mine/task/latin.yaml").write_bytes(b"# Caf\xe9s.\nname: latin\n")
  (status, out, err), configs = command("--help", MINE, "encoding=rpr", "rpr.k=5")
  assert (status, configs, err) == (0, [], "")
  listed = re.search(r"^encoding=NAME:\n(.*?)^  encoding: rpr$", out, re.MULTILINE | re.DOTALL)[1]
  assert ", ".join(re.findall(r"^  (\w+)  .*\w", listed, re.MULTILINE)) == ENCODINGS
  assert max(map(len, out.splitlines())) <= 100
  assert re.search(r"\n  clip +How far\?\n", out)
  assert re.search(r"\n  shaw_clip_k +How far must relative positions reach\?\n", out)
  assert "shaw_clip_k_small" not in out
  assert re.search(r"\n  latin +Caf.s\.\n", out)
  assert re.search(r"\n  own\n", out)
  lines = [" ".join(line.split()) for line in out.splitlines()]
  assert "encoding: rpr" in lines
  assert any(line.startswith("k: 5 # ") for line in lines)
  assert any(line.startswith("seed: 0 # ") for line in lines)
  assert any(
    line.startswith("min_count: 2 # ") for line in lines
  )  # of a file that mr.yaml includes
  assert not any(line.startswith("hydra") for line in lines)
  index, shown = out.split("sections, each by itself")[1].split("\n\n", 1)
  assert {*re.findall(r"\w+", index)} > {"run", "encoding", "experiment", "task", "rpr", "xpos"}
  (status, some, _), _ = command("--help", "rpr", MINE, "encoding=rpr", "rpr.k=5", "run")
  assert [part in shown for part in some.strip("\n").split("\n\n")] == [True, True]
  assert some.startswith("  rpr:\n    k: 5 ")


def test_what_needs_no_model_is_quick():
  code = (
    "import sys\n"
    "from posexp.sweeps.launch import launch\n"
    "import posexp.train\n"
    "status = []\n"
    "for argv in ('--help', '--cfg job', 'encoding=rprr', 'a.b=3', 'encoding=none'):\n"
    "  sys.argv[1:] = argv.split()\n"
    "  status.append(launch(print))\n"
    "heavy = {'jax', 'flax', 'optax', 'orbax', 'datasets', 'wandb', 'sklearn', 'numpy'}\n"
    "print(status, heavy & set(sys.modules))\n"
  )
  assert python(code).communicate()[0].splitlines()[-1] == "[0, 0, 2, 2, 0] set()"


def test_what_goes_on_after_an_interrupt_is_not_what_starts_over():
  def interrupted(config):
    raise KeyboardInterrupt

  typed = order.command("encoding=none", "rerun=true", job=interrupted)
  assert typed.status == 130
  assert typed.err.endswith("interrupted; the same command without rerun=true goes on from here\n")


BEFORE_MEMORY = """
import os
import posexp.train

posexp.train.machine.keep_freed = lambda: print(len(os.listdir("/proc/self/task")))
posexp.train.main()
"""
CHECKED = """
import jax
from jax._src.xla_bridge import backends_are_initialized
from posexp.config.command_line import parse, shared
from posexp.sweeps.jobs import members

for typed in (["encoding=rpr"], ["model.dtype=bfloat16", "model.dropout=0"]):
  args = parse(["-m", "seed=0,1", *typed])
  members(args, shared(args.overrides))
  print(backends_are_initialized())
print(jax.local_device_count())
"""


def test_memory_is_kept_before_a_thread_starts_and_runs_are_checked_before_a_device_is_taken():
  assert python(BEFORE_MEMORY, "--help").communicate()[0].startswith("1\n")
  # Only the second asks for the kind of device, and a CPU is as many as it has cores.
  assert python(CHECKED, NPROC="3").communicate()[0] == "False\nTrue\n3\n"
