"""What TensorBoard and trackers of one's own get of a run; and several trackers at once."""

import contextlib
import dataclasses
import io
import json
import sys

import pytest
from tracked import CONFIG, FACTS

from posexp.config.command_line import compose
from posexp.config.composed import resolve
from posexp.errors import UserError
from posexp.runs import RunWriter, digest, folder
from posexp.tracking import TrackedRun, Tracker, Trackers, chosen
from posexp.tracking.tensorboard import TensorBoard


def read(config):
  """What TensorBoard itself reads of a run."""
  reader = "tensorboard.backend.event_processing.event_accumulator"
  reader = pytest.importorskip(reader, reason="of an extra")
  found = reader.EventAccumulator(str(folder(config) / "tensorboard"), {"tensors": 0})
  return found.Reload()


@contextlib.contextmanager
def begun():
  """A run that is trained anew, as TensorBoard gets it."""
  trackers = {"tensorboard": TensorBoard()}
  with RunWriter(folder(CONFIG), CONFIG) as run, Trackers(trackers, run, CONFIG, FACTS) as each:
    yield each


def train(steps, rows=(), config=CONFIG):
  with RunWriter(folder(config), config) as run:
    run.rewind(20)
    with Trackers({"tensorboard": TensorBoard()}, run, config, FACTS) as opened:
      for step in steps:
        row = {"validation/accuracy": step / 100, "time/seconds": float(step)}
        run.log(step, row)
        opened.log(step, row)
      best = {"step": 20, "validation/accuracy": 0.2, "time/seconds": 20.0}  # an earlier step
      opened.summarize({**best, "test/accuracy": 0.5, "headline": {}, **FACTS})
      opened.samples({"samples": rows})
  return opened.lines["tensorboard"]


def test_tensorboard_reads_every_step_of_a_resumed_run_once(apart):
  pytest.importorskip("tensorboardX", reason="of an extra")
  train([10, 20, 30])
  line = train([30, 40], [{"source": "one", "hypothesis": "eins"}])
  assert line == f"tensorboard --logdir {folder(CONFIG)}/tensorboard"
  found = read(CONFIG)
  curve = found.Scalars("validation/accuracy")
  assert [(e.step, round(e.value, 6)) for e in curve] == [
    (10, 0.1),
    (20, 0.2),
    (30, 0.3),
    (40, 0.4),
  ]
  assert curve[1].wall_time - curve[0].wall_time == pytest.approx(10)
  assert [e.step for e in found.Scalars("time/seconds")] == [10, 20, 30, 40]
  assert [(e.step, e.value) for e in found.Scalars("test/accuracy")] == [(20, 0.5)]
  config, samples = (
    found.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
    for name in ("config", "samples")
  )
  assert "    encoding: rpr\n" in config
  assert '"hypothesis": "eins"' in samples


def test_tensorboard_tells_runs_apart_by_options_that_not_all_have(apart):
  pytest.importorskip("tensorboardX", reason="of an extra")
  other = {**{key: value for key, value in CONFIG.items() if key != "rpr"}, "encoding": "none"}
  for config in (other, CONFIG):
    train([10], config=config)
    [plugin] = [read(config).SummaryMetadata("_hparams_/session_start_info").plugin_data]
    assert (b"rpr.k" in plugin.content) == (config is CONFIG)
    assert b"parameters" in plugin.content
    # TensorBoard would take the options of all runs from this list of one run's.
    assert "_hparams_/experiment" not in read(config).summary_metadata


def test_a_full_disk_costs_tensorboard_alone(apart, monkeypatch, caplog):
  pytest.importorskip("tensorboardX", reason="of an extra")
  full = io.BufferedWriter(io.FileIO("/dev/full", "w"))
  monkeypatch.setattr("tensorboardX.record_writer.open_file", lambda _: full)
  with begun() as run:
    for step in (1, 2):
      run.log(step, {f"train/{number}": 1.0 for number in range(300)})
  assert [record.getMessage() for record in caplog.records] == [
    "tensorboard gets no more of this run: OSError: [Errno 28] No space left on device"
  ]


def test_a_diverged_trial_is_summarized(apart, caplog):
  pytest.importorskip("tensorboardX", reason="of an extra")
  with begun() as run:
    run.log(1, {"train/loss": 1.0})
    run.summarize({"diverged": "the loss is not finite at step 3", "time/seconds": 1.0})
  assert not caplog.records
  assert [each.value for each in read(CONFIG).Scalars("time/seconds")] == [1.0]


def test_without_tensorboardx(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
  with pytest.raises(UserError, match=r"tensorboardX: type .* 'posexp\[tensorboard\]'"):
    chosen({"tracker": {"tensorboard": {}}})


@dataclasses.dataclass(frozen=True)
class Opens(Tracker):
  """One that opens what it is given."""

  opened: TrackedRun

  def open(self, run, config, facts):
    return self.opened


class Rows(TrackedRun):
  """A run whose rows end up on standard output."""

  def log(self, step, metrics):
    print(json.dumps({"step": step, **metrics}))


class Full(TrackedRun):
  """One whose disk is full."""

  def log(self, step, metrics):
    metrics.clear()  # which is seen here alone
    raise OSError("no space left")

  def close(self, status):
    sys.exit("this is never called")


def test_one_that_fails_costs_neither_the_run_nor_the_others(capsys, caplog):
  trackers = {"full": Opens(Full("there")), "rows": Opens(Rows("here"))}
  with Trackers(trackers, None, {}, {}) as opened:
    assert opened.lines == {"full": "there", "rows": "here"}
    opened.log(1, {"train/loss": 0.5})
    opened.log(2, {"train/loss": 0.4})
  said = capsys.readouterr().out
  assert (len(said.splitlines()), said.count("train/loss")) == (2, 2)
  [record] = caplog.records
  assert record.getMessage() == "full gets no more of this run: OSError: no space left"


@pytest.mark.parametrize(
  ("typed", "found"),
  [
    ("none", []),
    ("[]", []),
    ("tensorboard", ["tensorboard"]),
    ("[wandb,tensorboard]", ["wandb", "tensorboard"]),
  ],
)
def test_the_choice_is_no_part_of_a_runs_identity(typed, found):
  config = resolve(compose([f"tracker={typed}"]))
  assert list(config.get("tracker", {})) == found
  assert "wandb" not in config
  assert digest(config) == digest(resolve(compose()))


@pytest.mark.parametrize(
  ("opened", "said"),
  [
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda: None, "AttributeError: 'NoneType' object has no attribute 'line'"),
  ],
)
def test_a_mistake_in_a_tracker_of_ones_own_costs_no_run(caplog, opened, said):
  class Broken(Tracker):
    def open(self, run, config, facts):
      return opened()

  with Trackers({"broken": Broken()}, None, {}, {}) as opened:
    opened.log(1, {"train/loss": 0.5})
  [record] = caplog.records
  assert record.getMessage() == f"broken gets nothing of this run: {said}"


def test_a_tracker_that_cannot_be_opened_ends_those_before_it():
  closed = []

  @dataclasses.dataclass(frozen=True)
  class Opens(Tracker):
    fails: bool

    def open(self, run, config, facts):
      if self.fails:
        raise UserError("no disk")
      opened = TrackedRun()
      opened.close = closed.append
      return opened

  with pytest.raises(UserError, match="no disk"):
    Trackers({"first": Opens(False), "second": Opens(True)}, None, {}, {})
  assert closed == [1]
