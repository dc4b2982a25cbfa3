"""What every task keeps to, also one of one's own: `posexp.tasks.contract`, by listing.

A new task is tested by being listed in `CASES`, with the options of a run of a few steps.
"""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import guide
import jax
import kinds
import numpy as np
import order
import pytest
from flax import nnx
from order import MODEL, command, interrupted, only, timeless

from posexp.config import plugins, resolve
from posexp.config.command_line import compose
from posexp.diagnostics.diagnostic import Diagnostic
from posexp.encodings.rngs import Rngs
from posexp.parsing.task import Parsing
from posexp.runs import read_run
from posexp.tasks import tasks
from posexp.tasks.results import score_of
from posexp.tasks.text_classification import LabeledTexts
from posexp.training.devices import mesh_for
from posexp.training.setup import Setup
from posexp.training.step import keys
from posexp.translation.task import Translation

pytestmark = pytest.mark.usefixtures("home")

TESTS = Path(__file__).parents[1]
OWN = ("first", "running")  # of the guide, and of running.py


def first(folder: Path) -> list[str]:
  """Options of the task in the guide, with a score of its own of which less is better."""
  score = '  score: ClassVar[str] = "validation/mistakes"\n'
  code = guide.FILES["first.py"].replace("  headline:", f"{score}  headline:")
  (folder / "first.py").write_text(code)
  return ["plugins=first.py", "task=first"]


FEW = ["task.examples=6", "task.longest=4", "task.lengths=[4,6]", "train.batch_size=8"]
CASES = {
  "text_classification": lambda: order.write(Path()),
  "translation": lambda: kinds.pairs(Path()),
  "language_modeling": lambda: kinds.text(Path()),
  "copy": lambda: ["task=copy", *FEW],
  "scan": lambda: kinds.commands(Path()),
  "echo": lambda: ["task=echo", "task.back=5", "task.segment=4", "model.memory=4"],
  "parsing": lambda: kinds.sentences(Path()),
  "first": lambda: first(Path()),
  "running": lambda: [f"plugins={TESTS}/running.py", "task=running", "train.batch_size=8"],
}


# To compile a model takes most of the time: those of posexp's own tasks are slow. The model of
# text_classification is stopped by tests/whole/test_train.py, too.
OWN_FIRST = [
  pytest.param(name, marks=() if name == "running" else pytest.mark.slow) for name in CASES
]


@dataclasses.dataclass(frozen=True)
class Case:
  """A task that is ready to be trained."""

  options: list[str]
  setup: Setup
  data: Any

  def build(self):
    """A model that has not been trained."""
    return self.setup.model_for(self.data).build(Rngs(**keys(0)))

  @functools.cached_property
  def model(self):
    return self.build()

  @property
  def batch_size(self):
    return self.setup.training.batch_size

  def batches(self, count, seed=0, start=0):
    return list(itertools.islice(self.data.batches(self.batch_size, seed=seed, start=start), count))

  def loss(self, batch):
    """The metrics of a batch without dropout, their weight, and the next carry."""
    self.model.eval()
    return loss(self.model, batch)


@nnx.jit  # as eager operations it takes four times as long
def loss(model, batch):
  rngs, carry = Rngs(dropout=0, positions=0), model.initial_carry(len(batch["mask"]))
  return model.loss(batch, carry, label_smoothing=0.1, rngs=rngs)


@pytest.fixture(scope="module", params=CASES)
def case(request, home):
  options = [*kinds.RUN, "train.evaluate_every=3", *CASES[request.param]()]
  plugins.load([option.partition("=")[2] for option in options if option.startswith("plugins=")])
  typed = [option for option in options if not option.startswith("plugins=")]
  setup = Setup.of(resolve(compose([*typed, "model.dropout=0", "encoding=rpr", "rpr.k=2"])))
  folder = Path("data", request.param)
  folder.mkdir(parents=True)
  return Case(options, setup, setup.task.prepare(folder))


def test_every_task_is_listed():
  alike = {name for name, cls in tasks().items() if issubclass(cls, Diagnostic)}  # but for draw
  for kind in (Parsing, Translation, LabeledTexts):  # but for where their data come from
    alike |= {name for name, cls in tasks().items() if issubclass(cls, kind)}
  of_files = {"text_classification", "translation", "parsing"}
  assert set(CASES) == (set(tasks()) | set(OWN)) - (alike - {"copy", *of_files})


def test_batches_are_a_function_of_seed_and_step(case):
  whole = case.batches(5)
  for one, other in zip(case.batches(3, start=2), whole[2:], strict=True):
    jax.tree.map(np.testing.assert_array_equal, one, other)
  other = case.batches(5, seed=1)
  assert any(
    not np.array_equal(a["index"], b["index"]) for a, b in zip(whole, other, strict=True)
  ) or not np.array_equal(whole[0]["tokens"], other[0]["tokens"])


def test_evaluation_covers_every_example_once(case):
  for split in ("validation", "test"):
    for batch_size in {case.batch_size, case.batch_size // 2}:
      found = np.concatenate([b["index"] for b in case.data.evaluation(split, batch_size)])
      assert sorted(found[found >= 0]) == list(range(case.data.sizes[split]))


def padded(batch, rows, columns):
  """A batch with more rows, of weight 0, and with more padding behind its tokens."""
  found = {}
  least = batch["mask"].shape[1] - 2  # a parser's words; what is shorter is not a length
  for name, value in batch.items():
    wider = [(0, 0)] + [(0, columns * (size >= least)) for size in value.shape[1:]]
    value = np.pad(value, wider)
    found[name] = np.concatenate([value, value[:rows]])
  found["weight"] = np.pad(batch["weight"], (0, rows))
  return found


@pytest.mark.parametrize("case", OWN_FIRST, indirect=True)
def test_padding_changes_no_loss(case):
  batch = case.batches(1)[0]
  values, weight, _ = case.loss(batch)
  more, same, _ = case.loss(padded(batch, 3, 4))
  assert set(values) == set(case.model.metrics)
  np.testing.assert_allclose(weight, same)
  for name in values:
    np.testing.assert_allclose(more[name], values[name], rtol=2e-5, atol=1e-6)


def test_a_step_leaves_what_it_is_given(case):
  batch, model = case.batches(1)[0], nnx.eval_shape(case.build)
  before = model.initial_carry(len(batch["mask"]))
  values, weight, after = nnx.eval_shape(loss, model, batch)
  assert {value.shape for value in (*values.values(), weight)} == {()}
  described = [jax.tree.map(lambda x: (x.shape, x.dtype), each) for each in (before, after)]
  assert described[0] == described[1]
  found, _ = nnx.eval_shape(lambda model: model.predict(batch, before), model)
  assert {len(value) for value in found.values()} == {len(batch["mask"])}


@pytest.fixture(scope="module")
def run(case):
  """The folder of a run that was never stopped."""
  runs = Path("runs", case.setup.task.name)
  typed = command(*case.options, f"runs={runs}")
  assert (typed.status, typed.err) == (0, "")
  return only(runs), typed.out


def result(path):
  run = read_run(path)
  return [timeless(row) for row in run.history], timeless(run.summary)


@pytest.mark.parametrize("case", OWN_FIRST, indirect=True)
def test_a_run_that_is_stopped_goes_on_bitwise(case, run):
  argv = [*case.options, f"runs=stopped/{case.setup.task.name}"]
  with interrupted(at=5):
    assert command(*argv).status == 130
  typed = command(*argv)
  assert (typed.status, typed.err) == (0, "")
  assert "going on from step 3\n" in typed.out
  assert result(only(f"stopped/{case.setup.task.name}")) == result(run[0])


@pytest.mark.parametrize("case", OWN_FIRST, indirect=True)
def test_a_summary_holds_what_tables_show(case, run):
  path, out = run
  task, summary = case.setup.task, read_run(path).summary
  assert any(key in summary for key in task.headline)  # BLEU is left out where it says nothing
  chosen = next(key for key in (task.score, "validation/chrf") if key in summary)
  assert "\n".join(task.table(summary)) + "\n" in out
  rows = [row for row in read_run(path).history if chosen in row]
  sign = 1 if score_of(task.metrics, chosen).metric.higher_is_better else -1
  best = max(rows, key=lambda row: (sign * row[chosen], -row["validation/loss"]))
  assert summary["step"] == best["step"]


# A model that carries something


@nnx.jit
def read(model, batch, carry):
  return model.read(batch, carry)


def remembering(**options):
  """The data of the task, and a program that is compiled once for equal options."""
  plugins.load([TESTS / "running.py"])
  setup = Setup.of(resolve(compose(["task=running", *MODEL, "model.dropout=0", "encoding=none"])))
  data = setup.task.prepare(Path())
  training = setup.training.__class__(batch_size=8, clip=None, **options)
  setup = setup._replace(training=training)
  mesh = mesh_for(np.array([8]), training.accumulate)
  return data, setup.program(setup.model_for(data), data, mesh)


def test_a_carry_goes_from_step_to_step_and_through_evaluation():
  data, run = remembering()
  state = run.init(0)
  memory = jax.device_get(state.carry["memory"])
  assert not memory.any()
  batches = list(itertools.islice(data.batches(8, seed=0), 2))
  for batch in batches:
    model = nnx.merge(run.graphdef, jax.tree.map(np.array, state.params), state.settings)
    _, _, expected = read(model, batch, {"memory": memory})
    state = run.update(state, batch, keys(0)["dropout"])
    memory = jax.device_get(state.carry["memory"])
    np.testing.assert_allclose(memory, expected["memory"], rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_carry_what_the_whole_does():
  found = []
  for count in (1, 2):
    data, run = remembering(accumulate=count)
    state = run.init(0)
    for batch in itertools.islice(data.batches(8, seed=0), 2):
      state = run.update(state, batch, keys(0)["dropout"])
    found.append(jax.device_get((state.carry, state.window.sums)))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found)
