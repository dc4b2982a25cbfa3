"""What TensorBoard gets of a run."""

import contextlib
import io

import pytest
from tracked import CONFIG, FACTS

from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.tensorboard.run import TensorBoard
from posexp.tracking import Trackers, chosen


def read(config):
  """What TensorBoard itself reads of a run."""
  reader = "tensorboard.backend.event_processing.event_accumulator"
  reader = pytest.importorskip(reader, reason="of an extra")
  found = reader.EventAccumulator(str(folder(config) / "tensorboard"), {"tensors": 0})
  return found.Reload()


@contextlib.contextmanager
def begun(config=CONFIG):
  """A run that goes on from step 20, and its trackers, of which TensorBoard is the one."""
  pytest.importorskip("tensorboardX", reason="of an extra")
  with RunWriter(folder(config), config) as run:
    run.rewind(20)
    with Trackers({"tensorboard": TensorBoard()}, run, config, FACTS) as opened:
      yield run, opened


def train(steps, rows=(), config=CONFIG):
  with begun(config) as (run, opened):
    for step in steps:
      row = {"validation/accuracy": step / 100, "time/seconds": float(step)}
      run.log(step, row)
      opened.log(step, row)
    best = {"step": 20, "validation/accuracy": 0.2, "time/seconds": 20.0}  # an earlier step
    opened.summarize({**best, "test/accuracy": 0.5, "headline": {}, **FACTS})
    opened.samples({"samples": rows})
  return opened.lines["tensorboard"]


def test_tensorboard_reads_every_step_of_a_resumed_run_once(apart):
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
  with begun() as (_, run):
    for step in (1, 2):
      run.log(step, {f"train/{number}": 1.0 for number in range(300)})
  assert [record.getMessage() for record in caplog.records] == [
    "tensorboard gets no more of this run: OSError: [Errno 28] No space left on device"
  ]


def test_a_diverged_trial_is_summarized(apart, caplog):
  with begun() as (_, run):
    run.log(1, {"train/loss": 1.0})
    run.summarize({"diverged": "the loss is not finite at step 3", "time/seconds": 1.0})
  assert not caplog.records
  assert [each.value for each in read(CONFIG).Scalars("time/seconds")] == [1.0]


def test_without_tensorboardx(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
  with pytest.raises(UserError, match=r"tensorboardX: type .* 'posexp\[tensorboard\]'"):
    chosen({"tracker": {"tensorboard": {}}})
