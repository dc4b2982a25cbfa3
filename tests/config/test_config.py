"""Configuration: every file composes, dataclasses are schemas, and names are looked up."""

import dataclasses

import pytest
from omegaconf import OmegaConf
from seed import drawn, some
from yaml.constructor import ConstructorError

from posexp.config import (
  CONFIGS,
  build,
  composed,
  encodings_node,
  options,
  resolve,
)
from posexp.config.command_line import compose
from posexp.config.schema import closest, flat
from posexp.encodings import ENCODINGS, make_encoding
from posexp.errors import UserError
from posexp.runs import folder
from posexp.tasks import make_task
from posexp.training.optimizer import Training
from posexp.training.setup import Setup

GROUPS = {}  # names of files by group; test_sweep.py is about those of experiments
for file in sorted(CONFIGS.glob("*/*.yaml")):
  if file.parent.name != "experiment":
    GROUPS.setdefault(file.parent.name, []).append(file.stem)
# Each file in one of as few configs as there can be, with a file of every other group.
TOGETHER = [
  {group: names[number % len(names)] for group, names in GROUPS.items()}
  for number in range(max(map(len, GROUPS.values())))
]
OF_FILES = ("text_classification", "translation", "language_modeling", "parsing")


@pytest.mark.parametrize("chosen", some(TOGETHER, 12), ids=lambda chosen: "-".join(chosen.values()))
def test_every_file_composes_and_builds(chosen):
  own_files = ["task.train=train"] if chosen["task"] in OF_FILES else []
  config = resolve(compose([*(f"{group}={name}" for group, name in chosen.items()), *own_files]))
  assert make_task(config).name == config["task"]["name"] == chosen["task"]
  assert config["encoding"] == chosen["encoding"]
  assert dataclasses.asdict(make_encoding(config)) == config[config["encoding"]]


def test_files_are_read_as_omegaconf_reads_them():
  for file in [CONFIGS / "train.yaml", *drawn(sorted(CONFIGS.glob("*/*.yaml")), 12)]:
    assert composed.mapping(file) == OmegaConf.load(file)
  assert composed.mapping("a: [1e-3, 2026-11-26, on]").a == [0.001, "2026-11-26", True]
  with pytest.raises(ConstructorError, match="a key twice"):
    composed.mapping("a: 1\na: 2")


def test_an_encoding_s_file_repeats_the_defaults_of_its_class():
  files = sorted(file.stem for file in (CONFIGS / "encoding").glob("*.yaml"))
  assert sorted(ENCODINGS) == files == sorted(encodings_node())
  for name, cls in ENCODINGS.items():
    assert cls(**encodings_node()[name]) == cls()


def test_defaults_repeat_those_of_the_dataclasses():
  from posexp.models.backbones import make_size
  from posexp.models.size import Size
  from posexp.wandb.run import Wandb

  config = resolve(compose())
  assert build(Training, config["train"], "train") == Training()
  assert build(Wandb, config["tracker"]["wandb"], "wandb") == Wandb()
  assert make_size(config) == Size()


def test_only_the_chosen_encoding_s_section_is_kept():
  config = resolve(compose(["encoding=rpr", "rpr.k=4"]))
  assert config["rpr"] == dict(encodings_node()["rpr"]) | {"k": 4}
  assert not set(config) & {"learned", "sinusoidal", "none", "hydra", "defaults"}
  assert list(config)[:4] == ["encoding", "rpr", "task", "model"]
  assert make_encoding(config).k == 4


def test_a_folder_under_home_is_found_whatever_the_shell(monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  config = resolve(compose(["runs=~/thesis", "init=~/thesis/seed=0"]))
  assert (config["runs"], config["init"]) == ("/home/me/thesis", "/home/me/thesis/seed=0")


@pytest.mark.parametrize(
  ("typed", "size"),
  [([], 2048), (["word"], 2048), (["byte"], None), (["char"], None), (["bpe", "300"], 300)],
)
def test_a_default_may_depend_on_another_option(typed, size):
  names = ("task.tokenizer", "task.vocab_size")
  overrides = [f"{name}={value}" for name, value in zip(names, typed, strict=False)]
  assert resolve(compose(["task=reviews", *overrides]))["task"]["vocab_size"] == size


OWN = "task=text_classification"
LEAST = {"epochs": None, "least_epochs": 6, "least_steps": 1000, "patience": 10}
TALKS = LEAST | {"least_epochs": 30, "least_steps": 500}
USUAL = {"epochs": 6, "least_epochs": None, "least_steps": None, "patience": None}


@pytest.mark.parametrize(
  ("typed", "name", "train"),
  [
    ([OWN, "task.train=a/tickets.csv.gz"], "tickets", LEAST),
    ([OWN, "task.train=a/train.csv"], "a", LEAST),
    ([OWN, "task.train=train.csv"], "text_classification", LEAST),
    ([OWN, "task.train=mr.csv", "train.steps=9"], "text_classification", USUAL | {"steps": 9}),
    ([OWN, "task.train=b.csv", "train.epochs=3"], "b", USUAL | {"epochs": 3}),
    ([OWN, "task.train=b.csv", "task.name=mine"], "mine", LEAST),
    ([OWN, "task.package=imdb"], "text_classification", USUAL),
    (["task=mr"], "mr", USUAL),
    (["task=translation", "task.train=talks"], "talks", TALKS),
    (["task=language_modeling", "task.train=b.txt"], "b", USUAL | {"epochs": 1, "steps": 2000}),
  ],
)
def test_files_of_one_s_own_name_the_task_and_are_trained_by_steps(typed, name, train):
  config = resolve(compose(typed))
  assert config["task"]["name"] == name
  assert {key: config["train"][key] for key in train} == train
  build(Training, config["train"], "train")


def test_runs_from_before_tasks_were_named_by_their_files_are_seen(home, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "b.csv").write_text("text,label\na b,x\nb a,y\n")
  typed = [OWN, "task.train=b.csv", "train.epochs=3"]

  def place(*more):
    setup = Setup.of(resolve(compose([*typed, *more])))
    return folder(setup.config, **setup.data_digests())

  before = place("task.name=text_classification")
  assert place().parts[1] == "b"
  before.parent.mkdir(parents=True)
  assert place() == before
  assert place("task.name=c").parts[1] == "c"


@dataclasses.dataclass(frozen=True)
class Options:
  size: int
  rate: float = 0.5
  on: bool = False
  name: str = "x"
  limit: int | None = None
  tags: tuple[str, ...] = ()
  sizes: list[int] = dataclasses.field(default_factory=list)
  pair: tuple[int, str] = (1, "a")

  def __post_init__(self):
    if self.size < 0:
      raise ValueError(f"size must be at least 0, not {self.size}")
    if self.name == "y":
      raise ValueError("neither of the two")


def test_build_converts_to_the_types_of_the_fields():
  section = {"size": "3", "rate": 1, "name": 5, "limit": 7, "tags": ["a", "b"], "sizes": [1]}
  built = build(Options, section, "it")
  assert built == Options(3, 1.0, False, "5", 7, ("a", "b"), [1])
  assert isinstance(built.rate, float)
  assert build(Options, {"size": 1, "limit": None}, "it") == Options(1)
  assert build(Options, {"size": 1, "pair": ["2", "b"]}, "it").pair == (2, "b")


@pytest.mark.parametrize(
  ("section", "message"),
  [
    ({"size": None}, "it.size=null: must be an integer"),
    ({"size": 1, "tags": "a"}, "it.tags=a: must be a list, each element text"),
    (
      {"size": 1, "sizes": ["a", True]},
      "it.sizes=[a,true]: must be a list, each element an integer",
    ),
    ({"size": 1, "pair": [1]}, "it.pair=[1]: must be a list of an integer, text"),
    ({"size": -1}, "it.size must be at least 0, not -1"),
    ({"size": 1, "name": "y"}, "it: neither of the two"),
    ({}, "it.size is missing: set it.size=..."),
    (None, "it.size is missing: set it.size=..."),
  ],
)
def test_build_says_what_is_wrong_in_one_sentence(section, message):
  """Beside what tests/mistakes.py types."""
  with pytest.raises(UserError) as error:
    build(Options, section, "it")
  assert str(error.value) == message


def test_each_option_is_found_by_its_name_its_initials_and_its_words():
  keys = [*flat(OmegaConf.to_container(options(compose()))), "encoding"]
  names = {key: key.rpartition(".")[2] for key in keys}
  for key, name in names.items():
    words = name.split("_")
    initials = "".join(word[0] for word in words)
    tries = [name, *(word for word in words if len(word) > 3 and word not in names.values())]
    tries += [initials] if len(words) > 1 and initials not in names.values() else []
    for typed in tries:
      assert key in closest(typed, [], keys), typed
