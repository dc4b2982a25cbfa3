"""Random values of any type for any option, typed on the command line: answered in one sentence.

Training itself is left out: what is typed is read, checked and built in shape, and the folder of
the run is opened. POSEXP_FUZZ=<seconds> tries as many values as that time allows.
"""

import functools
from pathlib import Path
from unittest import mock

import fuzz
import order
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from order import command

from posexp.config import encodings_node, options
from posexp.config.checks import show
from posexp.config.command_line import compose
from posexp.config.schema import flat
from posexp.errors import UserError

READY = "everything is ready"
EXAMPLES = 3  # others with another seed
TASKS = {  # each with the least that it needs
  "text_classification": ["task=text_classification", "task.train=train.jsonl"],
  "translation": ["task=translation", "task.train=train.jsonl"],
  "numbers": ["task=numbers"],
  "mr": ["task=mr"],
}
SECTIONS = ("task", "model", "train", "positions")
SWEEPS = (0, 1, 2, 3, 10**5, 10**12)  # seeds and workers that take no time
NUMBERS = st.one_of(
  st.integers(),
  st.floats(),
  st.sampled_from([0, -1, 1, 2, 3, 2**31 - 1, 2**31, 10**12, 10**400, 1e308, 1e-45, 0.5, 1.0]),
)
WORDS = st.sampled_from(["none", "auto", "true", "yes", "数", "ü b", "", " ", "x" * 300, "a,b"])
SCALARS = st.one_of(NUMBERS, st.booleans(), st.none(), WORDS, st.text(max_size=8))
VALUES = st.recursive(
  SCALARS,
  lambda inner: st.one_of(
    st.lists(inner, max_size=3),
    st.dictionaries(st.sampled_from(["a", "k", "length"]), inner, max_size=2),
  ),
  max_leaves=4,
)


@st.composite
def typed(draw) -> list[str]:
  """What is typed: a task and an encoding, and a value or two for options of theirs."""
  task = draw(st.sampled_from(sorted(TASKS)))
  encoding = draw(st.sampled_from(sorted(encodings_node())))
  sections = [encoding, *SECTIONS]
  keys = [key for key in keys_of(task) if key.partition(".")[0] in sections or "." not in key]
  argv = [*TASKS[task], f"encoding={encoding}", "wandb.mode=disabled"]
  for _ in range(draw(st.integers(1, 2))):
    key = draw(st.sampled_from([*keys, *SECTIONS, encoding, "encoding", "experiment"]))
    value = draw(VALUES)
    if key in ("seeds", "workers"):
      value = draw(st.sampled_from(SWEEPS))
    text = show(value) if draw(st.booleans()) else str(value)[:300]
    if key == "runs":  # which stay where they are
      text = text.replace("/", "").replace("..", "")
    argv.append(f"{key}={text}")
  return argv


@functools.cache
def keys_of(task: str) -> list[str]:
  """The options that there are for a task."""
  return [
    key
    for key in flat(options(compose(TASKS[task])))
    if key.partition(".")[0] not in ("plugins", "defaults", "experiment")
  ]


def answered(argv: list[str]) -> None:
  """Types it, and checks that the answer is a sentence and that no file was harmed."""
  before = {file: file.read_bytes() for file in Path().glob("*.jsonl")}
  with mock.patch("posexp.training.loop.run_training", side_effect=UserError(READY)):
    status, _, err = command(*argv)
  assert status in (1, 2), argv
  assert err.startswith("posexp: error: "), (argv, err)
  assert err.count("\n") == 1, (argv, err)
  assert len(err) < 1000, (argv, err)
  assert before == {file: file.read_bytes() for file in Path().glob("*.jsonl")}


def test_any_value_of_any_option_gets_an_answer(home):
  order.write(home)
  quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
  for rng in fuzz.rounds(1):

    @seed(rng.getrandbits(64))
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=quiet)
    @given(typed())
    def check(argv):
      answered(argv)

    check()


@pytest.mark.parametrize("name", ["日本 語", "é", "-x", "日" * 66])
def test_names_and_paths_need_no_quotes(home, name):
  order.write(home)
  Path("訓練 é.jsonl").write_bytes(Path("train.jsonl").read_bytes())
  data = ["task=text_classification", "task.train=訓練 é.jsonl", "wandb.mode=disabled"]
  with mock.patch("posexp.training.loop.run_training", side_effect=UserError(READY)) as begun:
    status, _, err = command(*data, "runs=ラン フォルダ", f"task.name={name}")
  assert (status, err) == (2, f"posexp: error: {READY}\n")
  assert begun.call_args[0][0].path.parts[:2] == ("ラン フォルダ", name)
