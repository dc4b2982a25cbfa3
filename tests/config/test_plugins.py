"""Encodings and tasks of one's own, from a file or from an installed package."""

import copy
import functools
import importlib
import re
import textwrap
from importlib.metadata import EntryPoint

import fuzz
import guide
import jax.numpy as jnp
import order
import pytest
import yaml
from hydra.core.config_store import ConfigStore
from states import python

from posexp.config import command_line, plugins, resolve
from posexp.config.command_line import compose
from posexp.encodings import ENCODINGS, make_encoding
from posexp.errors import UserError
from posexp.runs import digest
from posexp.train import train
from posexp.training.optimizer import make_optimizer
from posexp.training.setup import Setup

DISTANCE = guide.FILES["distance.py"]
CLASS = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass A:\n  x: int = 1\n"


@pytest.fixture(autouse=True, scope="module")
def hydra_forgets():
  """After these tests Hydra knows no plugins of theirs."""
  compose()  # which has Hydra store what is its own
  store = ConfigStore.instance()
  before = copy.deepcopy(store.repo)
  yield
  store.repo = before


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch, tmp_path):
  """Every test begins in an empty folder, and without plugins."""
  monkeypatch.setattr(plugins, "_found", {})
  monkeypatch.chdir(tmp_path)


def write(name, text):
  with open(name, "w") as file:
    file.write(textwrap.dedent(text))


def composed(*overrides):
  return resolve(compose(overrides))


def test_options_come_from_the_dataclass_and_are_checked_as_those_of_posexp():
  before = composed("encoding=rpr")
  write("distance.py", DISTANCE)
  plugins.load(["distance.py"])
  assert composed("encoding=rpr") == before  # which knows of no plugins
  config = composed("encoding=distance", "distance.price=0.5")
  assert config["distance"] == {"price": 0.5}
  assert make_encoding(config).price == 0.5
  assert config["plugins"]["encoding"]["name"] == "distance"
  with pytest.raises(UserError, match=r"distance\.price=high: must be a number"):
    make_encoding(config | {"distance": {"price": "high"}})


def test_the_digest_holds_the_content_of_the_file_and_not_its_place(tmp_path):
  (tmp_path / "sub").mkdir()
  found = []
  for name, text in (
    ("distance.py", DISTANCE),
    ("sub/distance.py", DISTANCE),
    ("distance.py", f"{DISTANCE}\n"),
  ):
    plugins._found.clear()
    write(name, text)
    plugins.load([name])
    found.append(digest(composed("encoding=distance")))
  assert found[0] == found[1] != found[2]


def test_what_a_run_was_trained_with_must_be_named_again_and_be_the_same():
  write("distance.py", DISTANCE)
  plugins.load(["distance.py"])
  config = composed("encoding=distance")
  plugins._found.clear()
  with pytest.raises(UserError, match=r"name that file, with plugins=distance\.py"):
    make_encoding(config)
  write("distance.py", f"{DISTANCE}\n")
  plugins.load(["distance.py"])
  with pytest.raises(UserError, match=r"distance\.py has another content than the run was trained"):
    make_encoding(config)


def priced(line):
  """The file of the guide, with another line where its relation is made."""
  return DISTANCE.replace("return Priced(self.price)", line)


def source(body):
  return f"import posexp\nclass A(posexp.Source):\n  {body}\nSOURCES = {{'a': A}}"


def launcher(body):
  tables = "LAUNCHERS = {'mine': A}\nCONFIGS = 'options'"
  return f"import posexp\nclass A(posexp.Launcher):\n  variable = 'A'\n  {body}\n{tables}"


STATE = "train = lambda self, runs, cfg: (each for each in [(runs[0], '{}', '')])"
WRONG = [
  ("x = (\n", r"mine\.py, line 1: '\(' was never closed"),
  ("x = 1\ny = z\n", r"mine\.py, line 2: NameError: name 'z' is not defined"),
  ("ENCODINGS = [1]\n", r"mine\.py must end with a table: ENCODINGS = "),
  ("class A:\n  x: int\nENCODINGS = {'a': A}", r"mine\.py: a is no frozen dataclass: "),
  (f"{CLASS}ENCODINGS = {{'a': A()}}", r"mine\.py: a is an instance: write A, without \(\)"),
  (f"{CLASS}ENCODINGS = {{'model': A}}", r"mine\.py: the name model exists already in posexp"),
  (f"{CLASS}ENCODINGS = {{'a/b': A}}", r"mine\.py: 'a/b' is no name: write a let"),
  (f"{CLASS}ENCODINGS = {{3: A}}", r"mine\.py: 3 is no name: "),
  (
    CLASS.replace("int = 1", "complex = 1j") + "ENCODINGS = {'a': A}",
    r"mine\.py: the default of a\.x is of the type complex; an option is ",
  ),
  (
    CLASS.replace("x: int = 1", "x: dict = dataclasses.field(default_factory=dict)")
    + "ENCODINGS = {'a': A}",
    r"mine\.py: the default of a\.x is of the type dict; an option is ",
  ),
  ("OPTIMIZERS = {'a': 1}", r"mine\.py: a is no function"),
  ("OPTIMIZERS = {'adamw': print}", r"mine\.py: the name adamw exists already in posexp; choose"),
  ("COMMANDS = {'a': lambda x: x}", r"mine\.py: a is no function without arguments"),
  ("import sys\nsys.exit(3)\n", r"mine\.py, line 2: SystemExit: 3"),
  ("class A: pass\nLAUNCHERS = {'a': A}", r"mine\.py: a is no class of posexp\.Launcher"),
  ("TRACKERS = {'a': print}", r"mine\.py: a is no frozen dataclass: "),
  ("CONFIGS = {'a': 'options'}", r"mine\.py: a is no folder beside the file"),
  ("CONFIGS = 'no'", r"mine\.py: no is no folder beside the file"),
  (f"{CLASS}ENCODINGS = {{'a': A}}", r"encoding a: the class A must inherit posexp\.Encoding"),
  (priced("return Price(1)"), "mine.py, line 28: NameError: name 'Price' is not defined"),
  (priced("pass"), "encoding distance of mine.py: AttributeError: 'NoneType' object has no"),
  (priced("import no_such_module"), "mine.py, line 28: ModuleNotFoundError: No module named"),
  (
    priced("Priced.terms = 'distance'\n    return Priced(1)"),
    r"encoding distance of mine.py: TypeError: terms must be a tuple, as in terms = \('dista",
  ),
  (priced("raise ValueError('price is odd')"), "distance.price is odd"),
  (
    source("record = lambda self: None"),
    "source a of mine.py: .*run and results, not None\n",
  ),
  (source("pass"), "source a of mine.py: .*a source must have a method record\n"),
  (source("__init__ = lambda self: None"), "source a of mine.py: .*1 positional argument but 2 we"),
  (
    launcher("pass"),
    "launcher mine of mine.py: NotImplementedError: a launcher must have a method",
  ),
  (launcher(STATE.format("DONE")), ".*the state of a run is one of "),
  (launcher(STATE.format("done")), "2 of 2 runs failed"),  # the other has no end
]
TYPED = {  # by a word of the file
  "SOURCES": "init=a:b",
  "adamw": "encoding=none",
  "LAUNCHERS": "-m seed=0,1 hydra/launcher=mine",
  "raise": "-m encoding=distance distance.price=1,2",
  "Distance": "encoding=distance",
  "": "encoding=a",
}


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_in_a_file_of_ones_own_is_one_sentence(tmp_path, text, message):
  (tmp_path / "options/hydra/launcher").mkdir(parents=True)
  write("options/hydra/launcher/mine.yaml", "queue: long\n")
  write("mine.py", text)
  typed = next(typed for word, typed in TYPED.items() if word in text)
  done = order.command("plugins=mine.py", *typed.split(), job=train)
  assert re.match(f"posexp: error: {message}", done.err)
  assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", ["evaluate", "score", "generate", "parse", "inspect", "check"])
@pytest.mark.parametrize("files", ["[a.py,b.py]", "runs/x y/seed=0.py"])
def test_files_are_named_in_one_way_in_every_command(monkeypatch, name, files):
  loaded, typed = [], f"plugins={files}"
  monkeypatch.setattr("posexp.config.plugins.load", lambda given: loaded.extend(given))
  if name in ("inspect", "check"):  # as train
    command_line.parse([typed, "encoding=rpr"])
  else:
    homes = {"parse": "parsing.command", "score": "language.score", "generate": "language.generate"}
    module = importlib.import_module(f"posexp.{homes.get(name, name)}")
    module.arguments(["RUN", "TEXT", typed])
  assert loaded == files.strip("[]").split(",")
  with pytest.raises(UserError, match=r"write a list, plugins=\[a\.py,b\.py\]"):
    command_line.parse(["plugins=", "encoding=rpr"])


def test_an_array_of_a_plugins_own_leaves_a_cpu_as_many_devices_as_cores(tmp_path):
  (tmp_path / "own.py").write_text("import jax.numpy as jnp\nA = jnp.arange(4)\nTASKS = {'a': A}\n")
  code = "import sys, jax; from posexp.config import plugins\ntry: plugins.load(sys.argv[1:])\n"
  code += "finally: print(jax.local_device_count())"
  command = python(code, str(tmp_path / "own.py"), NPROC="3", XLA_FLAGS="")
  assert command.communicate()[0] == "3\n"


def test_an_installed_package_offers_encodings_by_entry_points(monkeypatch, tmp_path):
  write("far.py", f"{DISTANCE}import functools\nPART = functools.partial(print)\n")
  info = tmp_path / "far-1.2.dist-info"
  info.mkdir()
  (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 1.2\n")
  entries = "far = far:Distance\nbroken = far:Nothing"
  optimizers = "[posexp.optimizers]\npart = far:PART\n"
  (info / "entry_points.txt").write_text(f"[posexp.encodings]\n{entries}\n{optimizers}")
  monkeypatch.syspath_prepend(tmp_path)
  plugins.installed.cache_clear()
  plugins.entries.cache_clear()
  config = composed("encoding=far", "far.price=2")
  assert config["plugins"]["encoding"]["package"] == "far 1.2"
  assert make_encoding(config).price == 2
  assert plugins.found("optimizer")["part"].file == tmp_path / "far.py"  # not functools.py
  plugins._found.clear()
  with pytest.raises(UserError, match=r"is of the package far 1\.2, which is not installed"):
    make_encoding(config)
  monkeypatch.undo()


def test_what_posexp_itself_brings_by_entry_points_is_built_in(monkeypatch, tmp_path):
  write("near_by.py", f"{DISTANCE}CONFIGS = 'options'\n")
  monkeypatch.syspath_prepend(tmp_path)
  named = {"encoding": ("near", "near_by:Distance"), "config": ("near", "near_by:CONFIGS")}
  own = {group: [EntryPoint(*entry, f"posexp.{group}s")] for group, entry in named.items()}
  monkeypatch.setattr(plugins, "entries", lambda group: (own[group], []))
  assert plugins.table("encoding", {})["near"].__name__ == "Distance"
  assert plugins.table("config", {}) == {"near": tmp_path / "options"}
  assert plugins.record({"encoding": "near"}) == {}
  own["encoding"].append(EntryPoint("lost", "near_by:Lost", "posexp.encodings"))
  assert [*plugins.table("encoding", {})] == ["near", "lost"]  # which is imported when it is used


def test_a_checkout_has_what_it_declares_whatever_was_installed_from_it(monkeypatch):
  monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
  plugins.entries.cache_clear()
  assert plugins.table("task", {})["parsing"].__module__ == "posexp.parsing.sources"
  plugins.entries.cache_clear()


MINE = """\
import optax
import posexp


def half(learning_rate, momentum=0.5):
  return optax.sgd(lambda step: learning_rate(step) / 2, momentum)


def hello():
  "Say how many encodings there are: and stop."
  print(f"hello {len(posexp.ENCODINGS)}")


def wrong():
  "Fail."
  return hallo


OPTIMIZERS = {"half": half}
COMMANDS = {"hello": hello, "wrong": wrong}
CONFIGS = "options"
"""


def test_a_file_brings_an_optimizer_commands_and_configs(tmp_path):
  write("mine.py", MINE)
  (tmp_path / "options/experiment").mkdir(parents=True)
  write("options/experiment/two.yaml", "seed: 2\ntrain: {optimizer: half, weight_decay: 0}\n")
  done = order.command("plugins=mine.py", "experiment=two", "--cfg", "job")
  assert (yaml.safe_load(done.out)["seed"], done.err) == (2, "")
  config = composed("experiment=two")
  setup = Setup.of(config)
  assert make_optimizer(setup.training, 9).init({"kernel": jnp.zeros(2)})
  assert config["plugins"]["optimizer"]["name"] == "half"
  assert digest(config) != digest({**config, "plugins": {}})
  with pytest.raises(UserError, match=r"optimizer_options .*: half takes momentum, not 'b'"):
    Setup.of(composed("experiment=two", "+train.optimizer_options.b=1"))
  says = functools.partial(fuzz.typed, "__main__")
  assert says("hello", "plugins=mine.py") == (0, f"hello {len(ENCODINGS)}\n", "")
  said = "posexp: error: mine.py, line 16: NameError: name 'hallo' is not defined\n"
  assert says("wrong", "plugins=mine.py") == (2, "", said)
  assert "  hello        Say how many encodings there are\n" in says("plugins=mine.py").out
  listed = says("plugins", "plugins=mine.py").out
  assert re.findall(r"^(\w+) +(\w+) +mine\.py$", listed, re.MULTILINE) == [
    ("optimizer", "half"),
    ("command", "hello"),
    ("command", "wrong"),
    ("config", "options"),
  ]
  plugins._found.clear()
  with pytest.raises(UserError, match=r"^optimizer half is not one of posexp's: it was loaded "):
    Setup.of(config)
  (tmp_path / "options/task").mkdir()
  write("options/task/mr.yaml", "name: mine\n")
  done = order.command("plugins=mine.py")
  assert (
    done.err
    == "posexp: error: options/task/mr.yaml: posexp has task/mr.yaml already; choose another name\n"
  )
