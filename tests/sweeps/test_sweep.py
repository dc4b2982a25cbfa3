"""Sweeps: what becomes of each run, what is skipped, retried and said."""

import contextlib
import logging
import random
import shlex
import statistics
from pathlib import Path

import jax
import pytest
from order import command, planned
from seed import SEED

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.config.composed import resolved
from posexp.runs import RunWriter, folder, read_run
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, Member, Sweep, attempt
from posexp.training.setup import Setup


def scores(encoding, seed):
  accuracy = (0.5 if encoding == "none" else 0.8) + 0.01 * seed**2
  return {"test/accuracy": accuracy, "test/macro_f1": accuracy / 2}


def read(*lines):
  """The config of a run, as training reads it."""
  return Setup.of(resolve(compose(lines))).config


@pytest.fixture
def trainer(tmp_path, monkeypatch):
  """Stands in for training: writes the folder of a run, with scores that its config decides."""
  monkeypatch.chdir(tmp_path)

  def train(config):
    found = config["encoding"], config["seed"]
    train.trained.append(found)
    with RunWriter(folder(config), config) as run:
      if found in train.broken:
        raise train.broken[found]
      run.finish(scores(*found))

  train.trained, train.broken = [], {}  # (encoding, seed), and what to raise for which of them
  monkeypatch.setattr("posexp.train.train", train)
  return train


# Elsewhere


@pytest.mark.parametrize("end", ["finished", "stopped", "trained still"])
def test_a_run_that_another_process_trains_is_no_failure(trainer, monkeypatch, end):
  argv = ["-m", "encoding=rpr", "seed=0,1"]
  first = planned(*argv)[0]
  with contextlib.ExitStack() as other:
    run = other.enter_context(RunWriter(first.path, first.config))
    run.log(1, {"a": 1})

    def meanwhile(config):
      if config["seed"] == 1 and end != "trained still":
        if end == "finished":
          run.finish(scores("rpr", 0))
        other.close()
      return trainer(config)

    monkeypatch.setattr("posexp.train.train", meanwhile)
    typed = command(*argv)
  assert (typed.status, typed.err) == (0, "")
  assert f"job 1/2: elsewhere: {first.path} is being trained by another process" in typed.out
  assert typed.out.count("job 1/2: done") == (end != "trained still")
  assert ("another process still trains seed=0" in typed.out) == (end == "trained still")
  assert trainer.trained.count(("rpr", 0)) == (2 if end == "stopped" else 1)


# Seeds


def test_seeds_are_runs_as_typed_one_by_one(trainer):
  assert command("encoding=rpr", "seeds=3").status == 0
  assert trainer.trained == [("rpr", 0), ("rpr", 1), ("rpr", 2)]
  assert command("-m", "encoding=rpr", "seed=2,1,0").out.count(": finished already, in runs/") == 3
  assert len(trainer.trained) == 3
  for path in Path("runs").glob("*/*/*/seed=*"):
    assert "seeds" not in read_run(path).config


def test_a_typed_seed_wins_over_the_seeds_of_a_file(trainer):
  argv = ["experiment=shaw_clip_k_small", "rpr.k=2"]
  assert command(*argv, "seed=7").status == 0
  assert trainer.trained == [("rpr", 7)]
  assert command(*argv, "hydra.mode=RUN").status == 0
  assert trainer.trained[1:] == [("rpr", 0)]
  assert command(*argv, "seeds=2").status == 0
  assert trainer.trained[2:] == [("rpr", 1)]


# States


SWEEP = ["-m", "encoding=none,rpr", "rpr.k=2,4", "seeds=2"]
TABLE = [
  "",
  "mr: test accuracy by encoding, rpr.k",
  "           n    mean    sd    95 % interval               against none        p    p (Holm)",
]


def test_a_run_that_is_done_says_how_long_the_others_will_take(caplog, tmp_path):
  sweep = Sweep([Member(number, "", "", {}, tmp_path / str(number)) for number in range(1, 5)])
  sweep.begun -= 100
  with caplog.at_level(logging.INFO, logger="posexp"):
    for member, state in zip(sweep.runs, (DONE, FAILED, RUNNING, DONE), strict=True):
      sweep.turn(member, state, "why")
  assert caplog.messages[0] == "job 1/4: done; about 5 min left"
  assert caplog.messages[3] == "job 4/4: done; about 33 s left"


def test_a_sweep_says_what_becomes_of_its_runs(trainer):
  trainer.broken["rpr", 1] = ValueError("a first line\nand a second")
  status, out, err = command(*SWEEP)
  lines = [line.partition("; about")[0] for line in out.splitlines()]  # a machine may be slow
  folders = [folder(read("encoding=rpr", f"rpr.k={k}", "seed=1")) for k in (2, 4)]
  reason = "failed: ValueError: a first line; its traceback is in"
  assert lines[:9] == [
    "sweep     6 runs: 6 waiting; 2 duplicates",
    "job 3/8: encoding=none rpr.k=4 seed=0: the same run as job 1",
    "job 4/8: encoding=none rpr.k=4 seed=1: the same run as job 2",
    "job 1/8: encoding=none rpr.k=2 seed=0",
    "job 1/8: done, test accuracy 50.00",
    "job 2/8: encoding=none rpr.k=2 seed=1",
    "job 2/8: done, test accuracy 51.00",
    "job 5/8: encoding=rpr rpr.k=2 seed=0",
    "job 5/8: done, test accuracy 80.00",
  ]
  assert lines[10] == f"job 6/8: {reason} {folders[0]}/train.log"
  assert lines[14] == f"job 8/8: {reason} {folders[1]}/train.log"
  assert "Traceback" not in out
  for path in folders:
    written = (path / "train.log").read_text()
    assert written.count("Traceback (most recent call last):") == 1
    assert written.endswith("ValueError: a first line\nand a second\n")
  assert [line.split()[:-2] for line in lines[-4:-2]] == [
    ["rpr", f"k={k}", "1", "80.00", "—", "—", "+30.00"] for k in (2, 4)
  ]
  names = "encoding=rpr rpr.k=2 seed=1; encoding=rpr rpr.k=4 seed=1"
  assert (status, err) == (1, f"posexp: error: 2 of 6 runs failed: {names}\n")

  trainer.broken.clear()
  trainer.trained.clear()
  status, out, err = command(*SWEEP)
  assert (status, err) == (0, "")
  assert trainer.trained == [("rpr", 1), ("rpr", 1)]
  assert out.splitlines()[0] == "sweep     6 runs: 4 done, 2 waiting; 2 duplicates"
  assert out.splitlines()[1] == (
    f"job 1/8: encoding=none rpr.k=2 seed=0: finished already, in {folder(read('encoding=none'))}"
  )
  assert len(out.splitlines()) == 1 + 8 + 2 + 7
  assert out.splitlines()[11:14] == TABLE
  assert out.splitlines()[16].split()[:6] == ["none", "2", "50.50", "0.71", "44.15", "to"]
  assert out.splitlines()[17] == "more: python -m posexp.report runs/mr"


@pytest.mark.slow
def test_rerun_trains_a_duplicate_once_and_a_finished_run_again(trainer):
  argv = ["-m", "encoding=none,rpr", "rpr.k=2,4"]
  assert command(*argv).status == 0
  trainer.trained.clear()
  status, out, _ = command(*argv, "rerun=true")
  assert status == 0
  assert trainer.trained == [("none", 0), ("rpr", 0), ("rpr", 0)]
  assert out.splitlines()[0] == "sweep     3 runs: 3 waiting; 1 duplicate"
  assert "job 2/4: encoding=none rpr.k=4: the same run as job 1" in out


# The last table


def test_the_last_table_holds_means_and_deviations_of_each_task(trainer):
  _, out, _ = command("-m", "task=mr,numbers", "encoding=none,rpr", "seeds=3")
  lines = [line.split() for line in out.splitlines()]
  found = [scores("rpr", seed)["test/accuracy"] * 100 for seed in range(3)]
  mean, deviation = statistics.mean(found), statistics.stdev(found)
  row = ["rpr", "3", f"{mean:.2f}", f"{deviation:.2f}"]
  assert [line[:4] for line in lines].count(row) == 2
  assert "\nnumbers: test accuracy by encoding\n" in out
  assert out.endswith("posexp.report runs/mr runs/numbers\n")


VARIED = ["encoding=rpr,none", "rpr.k=2,4", "train.weight_decay=0,${seed}"]


def test_the_config_of_each_run_is_as_hydra_composes_it():
  more = ["seed=3", "model.dropout=0.2", "++train.clip=2"]
  found = planned("-m", *VARIED, *more)
  assert len(found) == 8
  run = random.Random(SEED).choice(found)
  assert run.config == read(*shlex.split(run.options), *more)


@pytest.mark.parametrize(("decay", "times"), [("0", 6), ("${seed}", 18)])
def test_runs_of_the_same_choices_are_composed_once_and_resolved_once_for_all_seeds(
  monkeypatch, decay, times
):
  asked = []
  for f in (compose, resolved):
    noted = lambda given, f=f: asked.append(f) or f(given)  # noqa: E731
    monkeypatch.setattr(f"posexp.sweeps.jobs.{f.__name__}", noted)
  typed = ["encoding=rpr,none", "model.dropout=0,0.1,0.2", f"train.weight_decay={decay}"]
  found = planned("-m", *typed, "seed=0,1,2")
  assert [each.config["seed"] for each in found] == 6 * [0, 1, 2]
  of_seed = [each.config["train"]["weight_decay"] for each in found]
  assert of_seed == (18 * [0] if decay == "0" else 6 * [0, 1, 2])
  assert (asked.count(compose), asked.count(resolved)) == (2, times)


def test_a_number_is_the_same_option_in_quotes():
  found = planned("-m", "encoding=rpr", 'rpr.k=4,"4"', 'rpr.keys=true,"TRUE"')
  assert [member.duplicate_of for member in found[1:]] == 3 * [found[0]]
  assert found[3].config["rpr"]["k"] == 4
  assert found[3].config["rpr"]["keys"] is True


def test_a_process_keeps_the_programs_of_eight_models(monkeypatch):
  cleared = []
  monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(number))
  monkeypatch.setattr("posexp.sweeps.sweep._programs", set())
  for number in range(40):  # of each model two runs, with seeds, rates and parents of their own
    config = {"seed": number, "train": {"learning_rate": number}, "rpr": {"k": number // 2}}
    config["init"] = {"path": f"seed={number}"}
    assert attempt(print, Member(number, "", "", config)) == (DONE, "")
  assert cleared == [16, 32]
