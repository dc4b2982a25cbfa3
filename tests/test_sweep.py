"""Sweeps: what becomes of each run, what is skipped, retried and said, and the named ones."""

import copy
import datetime
import functools
import random
import re
import shlex
import statistics
from pathlib import Path
from unittest import mock

import jax
import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf
from order import command

from posexp.config import CONFIGS, command_line, resolve
from posexp.config.command_line import compose
from posexp.encodings import ENCODINGS, make_encoding
from posexp.runs import RunWriter, folder, read_run
from posexp.sweeps.jobs import members
from posexp.sweeps.sweep import Member, forget
from posexp.tasks import make_task

EXPERIMENTS = {  # how many groups and seeds each has, and the size of its small form
  "complex_order_ablation": (14, 5),
  "complex_order_backbones": (20, 5),
  "complex_order_lm": (4, 3),
  "content_position": (4, 5),
  "content_position_parsing": (5, 5),
  "context_length": (13, 5),
  "field_translation": (17, 5),
  "naive_positions": (5, 5),
  "seven_encodings_trec": (7, 5),
  "shaw_absolute": (2, 10),
  "shaw_clip_k": (6, 5),
  "shaw_keys_values": (4, 10),
  "sinusoid_base": (6, 5),
  "sinusoid_combination": (3, 10),
  "transformer_xl_recurrence": (12, 5),
  "transformer_xl_terms": (7, 5),
  "transformer_xl_terms_lm": (7, 5),
}


class Trainer:
  """Stands in for training: writes the folder of a run, with scores that its config decides."""

  def __init__(self):
    self.trained = []  # (encoding, seed)
    self.broken = {}  # what to raise for which of them

  def __call__(self, config):
    found = config["encoding"], config["seed"]
    self.trained.append(found)
    with RunWriter(folder(config), config, rerun=config["rerun"]) as run:
      if found in self.broken:
        raise self.broken[found]
      run.finish(scores(*found))


def scores(encoding, seed):
  accuracy = (0.5 if encoding == "none" else 0.8) + 0.01 * seed**2
  return {"test/accuracy": accuracy, "test/macro_f1": accuracy / 2}


@pytest.fixture
def trainer(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  made = Trainer()
  monkeypatch.setattr("posexp.train.train", made)
  return made


# Seeds


def test_seeds_are_runs_as_typed_one_by_one(trainer):
  assert command("encoding=rpr", "seeds=3").status == 0
  assert trainer.trained == [("rpr", 0), ("rpr", 1), ("rpr", 2)]
  assert command("-m", "encoding=rpr", "seed=2,1,0").out.count(": finished already, in runs/") == 3
  assert len(trainer.trained) == 3
  for path in Path("runs").glob("*/*/*/seed=*"):
    assert "seeds" not in read_run(path).config


def test_the_number_of_seeds_is_no_part_of_a_config():
  assert resolve(compose(["seeds=3"])) == resolve(compose())


def test_a_typed_seed_wins_over_the_seeds_of_a_file(trainer):
  argv = ["experiment=shaw_clip_k_small", "rpr.k=2"]
  assert command(*argv, "seed=7").status == 0
  assert trainer.trained == [("rpr", 7)]
  assert command(*argv, "hydra.mode=RUN").status == 0
  assert trainer.trained[1:] == [("rpr", 0)]
  assert command(*argv, "seeds=2").status == 0
  assert trainer.trained[2:] == [("rpr", 1)]


def test_seeds_beside_the_seed_of_a_file(trainer, tmp_path):
  (tmp_path / "experiment").mkdir()
  text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '4,5'}}}\n"
  (tmp_path / "experiment/mine.yaml").write_text(text)
  typed = command("hydra.searchpath=[file://.]", "experiment=mine", "seeds=3")
  message = "posexp: error: seeds=3 stands for seeds 0 to 2: drop it, or drop seed=...\n"
  assert typed == (2, "", message)
  assert trainer.trained == []


# States


SWEEP = ["-m", "encoding=none,rpr", "rpr.k=2,4", "seeds=2"]
TABLE = [
  "",
  "mr: test accuracy by encoding, rpr.k",
  "           n    mean    sd    95 % interval    against none    p (Holm)",
]


def test_a_sweep_says_what_becomes_of_its_runs(trainer):
  trainer.broken["rpr", 1] = ValueError("a first line\nand a second")
  status, out, err = command(*SWEEP)
  lines = out.splitlines()
  folders = [folder(resolve(compose(["encoding=rpr", f"rpr.k={k}", "seed=1"]))) for k in (2, 4)]
  reason = "failed: ValueError: a first line; its traceback is in"
  assert lines[:9] == [
    "sweep     6 runs: 6 waiting; 2 duplicates",
    "job 3/8: encoding=none rpr.k=4 seed=0: the same run as job 1",
    "job 4/8: encoding=none rpr.k=4 seed=1: the same run as job 2",
    "job 1/8: encoding=none rpr.k=2 seed=0",
    "job 1/8: done",
    "job 2/8: encoding=none rpr.k=2 seed=1",
    "job 2/8: done",
    "job 5/8: encoding=rpr rpr.k=2 seed=0",
    "job 5/8: done",
  ]
  assert lines[10] == f"job 6/8: {reason} {folders[0]}/train.log"
  assert lines[14] == f"job 8/8: {reason} {folders[1]}/train.log"
  assert "Traceback" not in out
  for path in folders:
    written = (path / "train.log").read_text()
    assert written.count("Traceback (most recent call last):") == 1
    assert written.endswith("ValueError: a first line\nand a second\n")
  assert [line.split()[:-1] for line in lines[-4:-2]] == [
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
    "job 1/8: encoding=none rpr.k=2 seed=0: finished already, in "
    f"{folder(resolve(compose(['encoding=none'])))}"
  )
  assert len(out.splitlines()) == 1 + 8 + 2 + 7
  assert out.splitlines()[11:14] == TABLE
  assert out.splitlines()[16].split()[:6] == ["none", "2", "50.50", "0.71", "44.15", "to"]
  assert out.splitlines()[17] == "more: python -m posexp.report runs/mr"


def test_rerun_trains_a_duplicate_once_and_a_finished_run_again(trainer):
  argv = ["-m", "encoding=none,rpr", "rpr.k=2,4"]
  assert command(*argv).status == 0
  trainer.trained.clear()
  status, out, _ = command(*argv, "rerun=true")
  assert status == 0
  assert trainer.trained == [("none", 0), ("rpr", 0), ("rpr", 0)]
  assert out.splitlines()[0] == "sweep     3 runs: 3 waiting; 1 duplicate"
  assert "job 2/4: encoding=none rpr.k=4: the same run as job 1" in out


def test_a_failure_outside_of_a_run_keeps_its_traceback_in_its_folder(trainer, monkeypatch):
  def breaks(config):
    raise KeyError("oops")

  monkeypatch.setattr("posexp.train.train", breaks)
  status, out, _ = command("-m", "seed=0,1")
  assert (status, "Traceback" in out) == (1, False)
  log = re.search(r"\njob 1/2: failed: KeyError: 'oops'; its traceback is in (.*)\n", out)[1]
  assert Path(log).read_text().endswith("\nKeyError: 'oops'\n")


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


VARIED = ["task=numbers,mr", "encoding=rpr,none", "rpr.k=2,4", "train.weight_decay=0,${seed}"]


@pytest.mark.parametrize("more", [[], ["++train.clip=2"]])
def test_the_config_of_each_run_is_as_hydra_composes_it(more):
  args = command_line.parse(["-m", *VARIED, "seed=0,3", "model.dropout=0.2", *more])
  found = members(args, command_line.shared(args.overrides))
  assert len(found) == 32
  for run in random.Random(0).sample(found, 2):
    assert run.config == resolve(compose([*shlex.split(run.options), "model.dropout=0.2", *more]))


def test_runs_that_differ_in_values_alone_are_composed_once(monkeypatch):
  asked = []
  monkeypatch.setattr(
    "posexp.sweeps.jobs.compose", lambda lines: asked.append(lines) or compose(lines)
  )
  args = command_line.parse(["-m", "encoding=rpr,none", "model.dropout=0,0.1,0.2", "seed=0,1,2"])
  assert len(members(args, command_line.shared(args.overrides))) == 18
  assert len(asked) == 2


# Named experiments


composed = functools.cache(compose)


def quickly(overrides):
  """The config that overrides give: files are read once, and values are set in a copy.

  The options of every encoding are in each config, so that its name is such a value too.
  """
  read = command_line.read(overrides)
  files = tuple(o.input_line for o in read if o.key_or_group in ("experiment", "model", "task"))
  cfg = copy.deepcopy(composed(files))
  for o in read:
    if o.input_line not in files:
      OmegaConf.update(cfg, o.key_or_group, o.value())
  return cfg


@functools.cache
def planned(*argv):
  """The runs of a sweep, less duplicates, which only options of some encodings make."""
  args = command_line.parse(argv)
  with (
    mock.patch("posexp.sweeps.jobs.compose", quickly),
    mock.patch.object(command_line, "compose", quickly),
  ):
    found = members(args, command_line.shared(args.overrides))
  distinct = [member for member in found if member.duplicate_of is None]
  assert len(distinct) == len(found) or "complex.order" in str(argv) + found[0].options
  return distinct


def test_a_number_is_the_same_option_in_quotes():
  args = command_line.parse(["-m", "encoding=rpr", 'rpr.k=4,"4"', 'rpr.keys=true,"TRUE"'])
  found = members(args, command_line.shared(args.overrides))
  assert [member.duplicate_of for member in found[1:]] == 3 * [found[0]]
  assert found[3].config["rpr"]["k"] == 4
  assert found[3].config["rpr"]["keys"] is True


def test_a_process_keeps_the_programs_of_eight_groups(monkeypatch):
  cleared = []
  monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(number))
  groups = set()
  for number in range(40):
    forget(groups, Member(number, "", f"rpr.k={number // 2}", {}, Path()))  # two seeds each
  assert cleared == [16, 32]


def test_the_experiments_are_these():
  names = {file.stem for file in (CONFIGS / "experiment").glob("*.yaml")}
  asked = (*EXPERIMENTS, "diagnostics")
  assert names == {name + end for name in asked for end in ("", "_small")}


@pytest.mark.parametrize(("size", "tasks", "encodings"), [("", 7, 20), ("_small", 4, 8)])
def test_diagnostics_are_all_tasks_with_all_encodings(size, tasks, encodings):
  params = composed((f"experiment=diagnostics{size}",)).hydra.sweeper.params
  names = params.encoding.split(",")
  assert {*names} <= {*ENCODINGS}
  assert (len({*params.task.split(",")}), len({*names})) == (tasks, encodings)
  runs = planned(f"experiment=diagnostics{size}", "encoding=none,rpr", "seeds=1")
  assert len({(run.config["task"]["name"], run.config["encoding"]) for run in runs}) == 2 * tasks
  assert {run.config["model"]["d_model"] for run in runs} == {64}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_a_sweep_of_different_runs(name):
  files = [f"task.train={__file__}"] if name in PARSED else []  # only its digest is asked for
  runs = planned(f"experiment={name}", *files, "seeds=1")
  assert len(runs) == len({member.path.parent for member in runs}) == EXPERIMENTS[name][0]
  for member in runs:
    make_encoding(member.config)


def test_the_run_of_an_experiment_is_as_typed_alone():
  """One of each of four experiments drawn by date."""
  chance = random.Random(str(datetime.date.today()))
  for name in chance.sample([name for name in EXPERIMENTS if name not in PARSED], 4):
    typed = f"experiment={name}"
    run = chance.choice(planned(typed, "seeds=1"))
    assert run.config == resolve(compose([typed, *shlex.split(run.options)]))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_small_size_varies_the_same_with_less_of_everything_else(name):
  large, small = (composed((f"experiment={name}{size}",)) for size in ("", "_small"))
  assert small.hydra.mode == large.hydra.mode == RunMode.MULTIRUN
  assert large.seeds == EXPERIMENTS[name][1]
  assert small.hydra.sweeper.params == large.hydra.sweeper.params
  config = resolve(small)
  tasks = {"numbers": TRANSLATED, "reviews": MODELED, "grammar": PARSED}
  expected = next((task for task, names in tasks.items() if name in names), "mr")
  assert make_task(config).name == expected
  make_encoding(config)
  assert config["model"]["d_model"] == 64
  assert small.seeds in (3, large.seeds)


MODELED = (
  "complex_order_lm",
  "context_length",
  "transformer_xl_recurrence",
  "transformer_xl_terms_lm",
)
PARSED = ("content_position_parsing",)
TRANSLATED = (
  "field_translation",
  "naive_positions",
  "shaw_absolute",
  "shaw_clip_k",
  "shaw_keys_values",
  "sinusoid_base",
  "sinusoid_combination",
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_asks_how_long_it_takes_and_what_is_published(name):
  text = (CONFIGS / f"experiment/{name}.yaml").read_text()
  question, run, time, published = re.findall(r"^# (?!@)(?! )(.*)", text, re.MULTILINE)[:4]
  assert question.endswith("?")
  assert run.split(" task.train=")[0] == f"Run: python -m posexp.train experiment={name}"
  assert re.match(r"Time: .*\d+ (minutes|hours)", time)
  assert published.startswith("Published: ")
  small = (CONFIGS / f"experiment/{name}_small.yaml").read_text()
  assert f"\n# Run: python -m posexp.train experiment={name}_small\n" in small
  assert re.search(r"\n# Time: .*\d+ minutes", small)
  assert "params" not in small


def test_what_is_typed_wins_over_an_experiment():
  runs = planned("experiment=shaw_clip_k", "rpr.k=2,3", "task=mr", "train.epochs=1", "seeds=2")
  assert [m.options for m in runs] == [f"rpr.k={k} seed={s}" for k in (2, 3) for s in (0, 1)]
  config = runs[0].config
  assert (config["task"]["name"], config["train"]["epochs"]) == ("mr", 1)
  assert config["rpr"]["table"] == 64


def test_all_k_of_shaw_s_table_share_one_program():
  import jax
  from flax import nnx

  found = set()
  for member in planned("experiment=shaw_clip_k", "seeds=1"):
    relation = make_encoding(member.config).relation(2, 8, causal=False, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(relation)
    found.add((graphdef, str(jax.tree.map(lambda leaf: leaf.shape, nnx.to_pure_dict(state)))))
  assert len(found) == 1


def test_the_rows_of_the_complex_order_table():
  rows = {
    (
      c["order"],
      c["initial_phase"],
      c["shared_period"],
      c["shared_amplitude"],
      c["weights"],
    )
    for c in (m.config["complex"] for m in planned("experiment=complex_order_ablation", "seeds=1"))
  }
  parts = [
    (True, False, "none", "none"),
    (True, True, "none", "none"),
    (True, False, "dimension", "none"),
    (True, False, "word", "none"),
    (True, False, "none", "dimension"),
    (True, False, "none", "word"),
    (False, False, "none", "none"),
  ]
  assert rows == {(*part, weights) for part in parts for weights in ("complex", "shared")}
