"""A message names an option as it is typed, and what is not finite is no result."""

from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from posexp.config.checks import as_typed
from posexp.encodings import encoding
from posexp.errors import UserError
from posexp.language.sampling import Sampling, check_drawn, draw
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.training.evaluation import Snapshot
from posexp.training.loop import check_finite, not_finite, prepared, validation_metrics

SMALL = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1}


@pytest.mark.parametrize(
  ("message", "told"),
  [
    ("share=0.5 is odd", "rope.share=0.5 is odd"),
    ("share must be odd", "rope.share must be odd"),
    ("rope.share=0.5 is odd", "rope.share=0.5 is odd"),
    ("its share of d_model", "its share of model.d_model"),
    ("price is odd", "model: price is odd"),
    ("set task.length=3", "set task.length=3"),
  ],
)
def test_options_in_any_message(message, told):
  size = Size(**SMALL)
  parts = {"rope": encoding("rope", share=0.5), "model": size, "task": Positions()}
  assert as_typed(message, parts) == told


def snapshot(weight):
  state = type("State", (), {"params": {"w": jnp.array([weight])}, "step": jnp.array(3)})
  return Snapshot(None, state, 4)


@pytest.mark.parametrize(
  ("wrong", "weight", "advice"),
  [
    (np.nan, 1.0, "its sums overflow"),
    (np.inf, np.nan, "try a smaller"),
    (-np.inf, 1e30, "try a smaller"),
  ],
)
def test_what_is_not_finite_is_no_result(wrong, weight, advice):
  fine = {"loss": np.ones((3, 2), np.float32), "answer": np.arange(3)}
  assert snapshot(weight).finite(fine, "beyond") is fine
  fine["loss"][1, 1] = wrong
  with pytest.raises(UserError, match=f"so there is no result: its .*{advice}") as refused:
    snapshot(weight).finite(fine, "beyond")
  where = "1 of 3 examples of the beyond split (the first is number 1) at step 3"
  assert f"loss is not finite for {where}" in str(refused.value)
  with pytest.raises(UserError, match=r"^beyond/loss is (nan|inf|-inf), which is no result"):
    check_finite({"test/loss": 1.0, "gates": {}, "beyond/loss": wrong})


@pytest.mark.parametrize("wrong", [{}, {"mistakes": "many"}, {"mistakes": np.zeros(2)}])
def test_what_chooses_the_checkpoint_is_one_number(wrong):
  job = mock.Mock(**{"data.sizes": {"validation": 1}})
  job.run.metric.key = "validation/mistakes"
  job.setup.task.measure.return_value = {"loss": 1.0} | wrong
  with pytest.raises(UserError, match=r"^validation/mistakes chooses .* it measures validation/l"):
    validation_metrics(job, None)


@pytest.mark.parametrize(
  ("data", "message"),
  [(None, "`prepare` is missing, or has no return"), ({"train": 1, "test": 1}, "no split valid")],
)
def test_a_task_of_ones_own_has_data_in_all_splits(data, message):
  task = mock.Mock()
  task.prepare.return_value = data and mock.Mock(sizes=data)
  with pytest.raises(UserError, match=message):
    prepared(task, None)


def test_a_loss_that_is_not_finite_at_once_is_not_blamed_on_the_learning_rate():
  assert "learning_rate" not in str(not_finite(1))
  assert "posexp.check" in str(not_finite(1))
  assert "train.learning_rate" in str(not_finite(2))


def test_no_token_is_drawn_from_logits_that_are_not_finite():
  logits = jnp.array([[0.0, 9.0, 1.0], [0.0, jnp.nan, 1.0]])
  found = np.asarray(draw(logits, jnp.array(0), Sampling(temperature=0).options()))
  assert found.tolist() == [1, -1]
  assert check_drawn(found[:1]) is not None
  with pytest.raises(UserError, match="the model's logits are not finite here"):
    check_drawn(found)
