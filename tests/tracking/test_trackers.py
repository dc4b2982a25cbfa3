"""What trackers of one's own get of a run, and several trackers at once."""

import dataclasses
import json
import sys
from collections.abc import Callable
from unittest import mock

import pytest

from posexp.config.command_line import compose
from posexp.config.composed import resolve
from posexp.errors import UserError
from posexp.runs import digest
from posexp.tracking import TrackedRun, Tracker, Trackers


@dataclasses.dataclass(frozen=True)
class Opens(Tracker):
  """One that opens what a function gives."""

  opened: Callable[[], TrackedRun]

  def open(self, run, config, facts):
    config.clear()  # which is seen here alone
    return self.opened()


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
  trackers = {"full": Opens(lambda: Full("there")), "rows": Opens(lambda: Rows("here"))}
  with Trackers(trackers, None, config := {"seed": 0}, {}) as opened:
    assert config == {"seed": 0}
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
  with Trackers({"broken": Opens(opened)}, None, {}, {}) as run:
    run.log(1, {"train/loss": 0.5})
  [record] = caplog.records
  assert record.getMessage() == f"broken gets nothing of this run: {said}"


def test_a_tracker_that_cannot_be_opened_ends_those_before_it():
  first, second = mock.Mock(), mock.Mock(side_effect=UserError("no disk"))
  with pytest.raises(UserError, match="no disk"):
    Trackers({"first": Opens(lambda: first), "second": Opens(second)}, None, {}, {})
  first.close.assert_called_once_with(1)
