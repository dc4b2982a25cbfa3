"""Named experiments: the runs of each, and what its file says."""

import functools
import re

import order
import pytest
from hydra.types import RunMode
from seed import some

from posexp.config import CONFIGS, resolve
from posexp.config.command_line import compose
from posexp.encodings import ENCODINGS, make_encoding
from posexp.tasks import make_task

EXPERIMENTS = {  # how many groups and seeds each has, and the task of its small form
  "complex_order_ablation": (14, 5, "mr"),
  "complex_order_backbones": (20, 5, "mr"),
  "complex_order_lm": (4, 3, "reviews"),
  "complex_order_wmt16": (3, 5, "numbers"),
  "content_position": (4, 5, "mr"),
  "content_position_parsing": (5, 5, "grammar"),
  "context_extension": (21, 5, "source_code"),
  "context_extension_parents": (2, 5, "source_code"),
  "context_length": (13, 5, "reviews"),
  "field_translation": (17, 5, "numbers"),
  "layers": (24, 5, "source_code"),
  "naive_positions": (5, 5, "numbers"),
  "seven_encodings_trec": (7, 5, "mr"),
  "shaw_absolute": (2, 10, "numbers"),
  "shaw_clip_k": (6, 5, "numbers"),
  "shaw_keys_values": (4, 10, "numbers"),
  "sinusoid_base": (6, 5, "numbers"),
  "sinusoid_combination": (3, 10, "numbers"),
  "tied_queries": (4, 5, "numbers"),
  "transformer_xl_recurrence": (12, 5, "reviews"),
  "transformer_xl_terms": (7, 5, "mr"),
  "transformer_xl_terms_lm": (7, 5, "reviews"),
}
PARSED = "content_position_parsing"
EXTENDED = ("context_extension", "context_extension_parents")  # whose small form must tell as much


@functools.cache
def planned(*argv):
  """The runs of a sweep, less duplicates, which only options of some encodings make."""
  found = order.planned(*argv)
  distinct = [member for member in found if member.duplicate_of is None]
  assert len(distinct) == len(found) or "complex.order" in str(argv) + found[0].options
  return distinct


def test_the_experiments_are_these():
  names = {file.stem for file in (CONFIGS / "experiment").glob("*.yaml")}
  asked = (*EXPERIMENTS, "diagnostics")
  assert names == {name + end for name in asked for end in ("", "_small")}


def test_diagnostics_are_all_tasks_with_all_encodings():
  for size, tasks, encodings in (("", 7, 20), ("_small", 4, 8)):
    params = compose([f"experiment=diagnostics{size}"]).hydra.sweeper.params
    names = params.encoding.split(",")
    assert {*names} <= {*ENCODINGS}
    assert (len({*params.task.split(",")}), len({*names})) == (tasks, encodings)
  runs = planned("experiment=diagnostics_small", "encoding=none,rpr", "seeds=1")
  assert len({(run.config["task"]["name"], run.config["encoding"]) for run in runs}) == 2 * 4
  assert {run.config["model"]["d_model"] for run in runs} == {64}


@pytest.mark.parametrize("name", some(EXPERIMENTS, 2))
def test_an_experiment_is_a_sweep_of_different_runs(name):
  files = [f"task.train={__file__}"] if name == PARSED else []  # only its digest is asked for
  runs = planned(f"experiment={name}", *files, "init=null", "seeds=1")
  assert len(runs) == len({member.path.parent for member in runs}) == EXPERIMENTS[name][0]
  for member in runs:
    make_encoding(member.config)


@pytest.mark.parametrize("name", some(EXPERIMENTS, 3))
def test_its_small_size_varies_the_same_with_less_of_everything_else(name):
  large, small = (compose([f"experiment={name}{size}"]) for size in ("", "_small"))
  assert small.hydra.mode == large.hydra.mode == RunMode.MULTIRUN
  assert large.seeds == EXPERIMENTS[name][1]
  assert small.hydra.sweeper.params.keys() == large.hydra.sweeper.params.keys()
  config = resolve(small)
  assert make_task(config).name == EXPERIMENTS[name][2]
  make_encoding(config)
  assert config["model"]["d_model"] == 64 + 64 * (name in EXTENDED)
  assert small.seeds in (3, large.seeds)


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
  assert "params" not in small or name in EXTENDED


def test_the_rows_of_the_complex_order_table():
  rows = {
    (c["order"], c["initial_phase"], c["shared_period"], c["shared_amplitude"], c["weights"])
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
