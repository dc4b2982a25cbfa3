"""A run's folder: its identity, its lock, its rows and its summary."""

import contextlib
import json
import logging
import os

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf
from states import CONFIG, SCORE, make_state, python, save

from posexp.errors import UserError
from posexp.runs import RunWriter, digest, folder, read_run, read_summary

# Identity


def having(**sections):
  """CONFIG, with other options in some of its sections, or another encoding."""
  made = {**CONFIG, **sections}
  for name, section in sections.items():
    if isinstance(section, dict):
      made[name] = CONFIG.get(name, {}) | section
  return made


JOINT, MOVED = {"joint": True}, {"train": "/data/a.csv", "test": "/data/b.csv"}
COMPLEX = {"encoding": "complex"}
DIGESTS = [  # two configs, the digest of the data, and whether their runs are the same
  ({"seed": 7, "runs": "/elsewhere", "rerun": True, "wandb": {"mode": "online"}}, {}, "", True),
  ({"train": {"accumulate": 1, "shard": "none"}}, {"train": {"shard": "parameters"}}, "", True),
  ({"train": {"clip": 1}}, {}, "", True),  # which is 1.0
  ({"encoding": "none"}, {}, "", False),
  ({"rpr": {"k": 5}}, {}, "", False),
  ({"rpr": {"keys": False}}, {}, "", False),
  ({"rpr": {"k": True}}, {}, "", False),
  ({"train": {"learning_rate": 2e-3}}, {}, "", False),
  ({"train": {"clip": None}}, {}, "", False),
  ({"train": {"accumulate": 2}}, {}, "", False),  # other units are dropped
  ({"task": {"tokenizer": "bpe"}}, {}, "", False),  # all but translators have always had it
  ({"task": JOINT | {"tokenizer": "bpe"}}, {"task": JOINT}, "", True),
  ({"task": JOINT | {"tokenizer": "char"}}, {"task": JOINT}, "", False),
  ({"task": MOVED}, {}, "", False),
  ({"task": MOVED}, {}, "abc", True),
  ({"task": {"train": 64}}, {"task": {"train": 256}}, "abc", False),  # which are no paths
  # New options at their neutral values change nothing.
  (COMPLEX | {"complex": {"wrap": None, "distances": "none"}}, COMPLEX | {"complex": {}}, "", True),
  *(
    (COMPLEX | {"complex": {"wrap": 8}}, COMPLEX | before, "", False)
    for before in ({}, {"complex": {}}, {"complex": None})
  ),
]


@pytest.mark.parametrize(("one", "other", "data", "same"), DIGESTS)
def test_a_digest_is_of_what_changes_results(one, other, data, same):
  found = digest(having(**one), data or None)
  assert (found == digest(having(**other), data or None)) is same
  assert digest(dict(reversed(having(**one).items())), data or None) == found
  assert found != digest(having(**one), "of other data")
  path = folder(having(**one) | {"seed": 3, "runs": "runs"}, data or None)
  assert path.parts == ("runs", "own", having(**one)["encoding"], found, "seed=3")


@pytest.mark.parametrize(
  ("encoding", "options", "other"),
  [
    ("rpr", {"k": 4}, False),
    ("path", {"rank": 4}, True),
    ("dape", {"base": "kerple"}, False),
    ("dape", {"base": "fire"}, True),
    ("by_layer", {"pattern": ["rope", "fire width=4"]}, True),
    ("by_layer", {"pattern": "gemma3"}, False),
  ],
)
def test_another_rule_of_weight_decay_is_another_run_where_it_changes_one(encoding, options, other):
  def digest_of(**train):
    return digest({"encoding": encoding, encoding: options, "train": {"weight_decay": 0.1} | train})

  assert digest_of() == digest_of(decayed="kernels")  # as earlier runs were trained
  assert (digest_of() != digest_of(decayed="matrices")) is other
  none = [digest_of(weight_decay=0.0, decayed=rule) for rule in ("kernels", "matrices")]
  assert none[0] == none[1]


# The folder


def test_the_config_is_kept(tmp_path):
  config = {**CONFIG, "train": {"learning_rate": 3.3e-5, "note": "1e-3", "list": [1, None]}}
  with RunWriter(tmp_path / "run", config):
    pass
  assert read_run(tmp_path / "run").config == config
  assert OmegaConf.load(tmp_path / "run/config.yaml") == OmegaConf.create(config)


@pytest.mark.parametrize(
  "end",
  [
    "wandb:\n  mode: disabled",
    "# a remark\nwandb: {mode: disabled}",
    "tags:\n- a\n- b",
    "note: 'two\nlines'",  # the second of which begins no section
    "note: 'two\nlines: 3'",
    "note: |\n  seed: 3\nseed: 7",  # of two the last counts
  ],
)
def test_a_config_is_read_by_its_sections_as_it_is_at_once(tmp_path, end):
  text = f"{yaml.safe_dump(CONFIG)}{end}\n"
  (tmp_path / "config.yaml").write_text(text)
  assert read_run(tmp_path).config == yaml.safe_load(text)


@pytest.mark.parametrize("change", [{"rpr": {"k": 9}}, {"seed": 1}])
def test_a_folder_of_another_config_is_refused(tmp_path, change):
  with RunWriter(tmp_path, CONFIG):
    pass
  with pytest.raises(UserError, match="holds a run of another config"):
    RunWriter(tmp_path, {**CONFIG, **change}).__enter__()
  with RunWriter(tmp_path, having(task={"train": "/moved/a.csv"})):
    pass


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
  first = python(
    "import time; from posexp.runs import RunWriter\n"
    f"with RunWriter({str(tmp_path)!r}, {CONFIG!r}):\n"
    "  print('open', flush=True); time.sleep(60)"
  )
  assert first.stdout.readline() == "open\n"
  with pytest.raises(UserError, match=rf"trained by another process \(pid {first.pid}\)"):
    RunWriter(tmp_path, CONFIG | {"rerun": True}).__enter__()
  first.kill()
  first.communicate()
  with RunWriter(tmp_path, CONFIG):
    assert read_summary(tmp_path) is None
    with pytest.raises(UserError, match=rf"pid {os.getpid()}"):
      RunWriter(tmp_path, CONFIG).__enter__()


def test_rerun_clears_what_the_run_owns_and_nothing_else(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    run.log(1, {SCORE: 0.5})
    save(run, 1, 0.5)
    run.finish({"test/accuracy": 0.5})
  for name in ("notes.txt", "tokenizer.json", "predictions/test.jsonl", "wandb/id"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  other = CONFIG | {"rpr": {"k": 8, "keys": True}, "rerun": True}
  with RunWriter(tmp_path, other) as run:
    assert read_summary(tmp_path) is None
    assert run.history == []
    assert run.checkpoints.restore(make_state(1)) is None
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".lock", ".pid", "config.yaml", "metrics.jsonl", "notes.txt", "train.log"]


def test_a_folder_is_made_when_it_is_opened(tmp_path):
  run = RunWriter(tmp_path, CONFIG)
  assert read_summary(tmp_path) is None
  assert list(tmp_path.iterdir()) == []
  with run:
    run.finish({"step": np.int32(7), "test/accuracy": np.float32(0.1), "devices": "1 cpu"})
  assert read_summary(tmp_path) == {
    "step": 7,
    "test/accuracy": float(np.float32(0.1)),
    "devices": "1 cpu",
  }


def test_what_posexp_logs_and_how_a_run_fails_is_in_its_own_log(tmp_path):
  log = logging.getLogger("posexp")

  def fail():
    with RunWriter(tmp_path, CONFIG):
      log.warning("step %d", 3)
      raise ZeroDivisionError("why")

  with pytest.raises(ZeroDivisionError):
    fail()
  log.warning("of another run")
  text = (tmp_path / "train.log").read_text()
  assert "step 3" in text
  assert "ZeroDivisionError: why" in text
  assert "of another run" not in text


@pytest.mark.parametrize("error", [UserError("no column"), KeyboardInterrupt(), OSError(28, "x")])
def test_a_start_that_fails_leaves_no_folder(tmp_path, error):
  def fail(name, config=CONFIG, rows=0):
    with contextlib.suppress(type(error), UserError), RunWriter(tmp_path / name, config) as run:
      (run.path / "tokenizer.json").touch()
      for step in range(rows):
        run.log(step, {"a": 1})
      raise error

  fail("a/b/c")
  assert not any(tmp_path.iterdir())
  fail("step", rows=1)
  fail("step")
  fail("step", {**CONFIG, "seed": 1})  # another run's, which is refused
  assert read_run(tmp_path / "step").history == [{"step": 0, "a": 1}]
  (tmp_path / "left").mkdir()
  (tmp_path / "left/notes.txt").touch()
  fail("left")
  assert [path.name for path in (tmp_path / "left").iterdir()] == ["notes.txt"]


def test_a_summary_stays_that_differs_in_costs_and_in_place_alone(tmp_path):
  first = {"test/accuracy": 0.5, "time/seconds": 9.0, "devices": "1 cpu", "versions": "posexp 1"}
  elsewhere = {**first, "time/seconds": 1.0, "versions": "posexp 2", "processor": "Z80"}
  better = {**first, "test/accuracy": 0.6}
  for summary, kept in ((first, first), (elsewhere, first), (better, better)):
    with RunWriter(tmp_path, CONFIG) as run:
      run.finish(summary)
    assert read_run(tmp_path).summary == kept


# Rows


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("nothing", "nothing: there is no such folder"),
    ("empty", "empty is not a run's folder: it has no config.yaml"),
    ("rows", "rows is not a run's folder: it has no config.yaml"),
    ("a b/seed=0/config.yaml", "a b/seed=0/config.yaml is a file: name the folder of a run"),
    ("a b", "a b is not a run's folder, but holds some: name one, as 'a b/seed=0', 'a b/seed=1'"),
    (".", ". is not a run's folder, but holds some: name one, as 'a b/seed=0', 'a b/seed=1', c/d/"),
  ],
)
def test_what_is_no_run_is_told_with_the_runs_that_were_meant(tmp_path, monkeypatch, path, message):
  monkeypatch.chdir(tmp_path)
  for name in ("a b/seed=0", "a b/seed=1", "c/d/seed=0", "e/seed=0", "empty"):
    (tmp_path / name).mkdir(parents=True)
    if name != "empty":
      (tmp_path / name / "config.yaml").touch()
  (tmp_path / "rows").mkdir()
  (tmp_path / "rows/metrics.jsonl").touch()  # of a run that has lost its config
  with pytest.raises(UserError) as error:
    read_run(path)
  assert str(error.value).startswith(message)


def test_rows_come_back_bit_by_bit(tmp_path):
  values = {"a": 0.1 + 0.2, "b": np.float32(0.1), "c": jnp.float32(1 / 3), "d": 5e-324, "n": 3}
  with RunWriter(tmp_path, CONFIG) as run:
    run.log(1, values)
    run.log(2, {"e": float("nan"), "f": float("inf")})
    written = list(run.history)
  first, second = read_run(tmp_path).history
  assert first == written[0]
  assert first == {"step": 1, **{key: np.asarray(value).item() for key, value in values.items()}}
  assert np.isnan(second["e"])
  assert second["f"] == np.inf


@pytest.mark.parametrize("torn", ['{"step": 3, "a"', '{"step": 3}', "\0\0\0\n", "\udcff\n", "7\n"])
def test_a_torn_last_row_is_dropped(tmp_path, torn):
  with RunWriter(tmp_path, CONFIG) as run:
    run.log(1, {"a": 1})
    run.log(2, {"a": 2})
  with (tmp_path / "metrics.jsonl").open("a", errors="surrogateescape") as file:
    file.write(torn)
  assert [row["step"] for row in read_run(tmp_path).history] == [1, 2]
  with RunWriter(tmp_path, CONFIG) as run:
    run.rewind(2)
    run.log(3, {"a": 3})
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert rows == [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 3, "a": 3}]


def test_a_finished_run_that_goes_on_from_an_earlier_step_is_finished_no_more(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    run.log(1, {"a": 1})
    run.log(2, {"a": 2})
    run.finish({"step": 1})
    run.rewind(2)
  assert read_run(tmp_path).summary == {"step": 1}
  with RunWriter(tmp_path, CONFIG) as run:
    run.rewind(1)  # and is killed before its next row
  assert (read_run(tmp_path).summary, len(read_run(tmp_path).history)) == (None, 1)


def test_a_damaged_row_among_others_is_not_passed_over_but_no_result_needs_it(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    run.finish({"step": 3})
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
  assert read_run(tmp_path).summary == {"step": 3}
  (tmp_path / "run.sha256").unlink()  # as of an earlier version
  with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
    _ = read_run(tmp_path).history
