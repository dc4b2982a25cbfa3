"""Texts keep the spelling that was typed, and what is printed to be pasted means what it says."""

import importlib
import re
import shlex
from pathlib import Path

import order
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from posexp.config import command_line, plugins, resolve
from posexp.config.checks import show, typed
from posexp.config.command_line import compose
from posexp.config.overrides import read
from posexp.errors import UserError
from posexp.sweeps.jobs import values
from posexp.wandb.run import Wandb

ROOT = Path(__file__).parents[2]
# Which Hydra's grammar or YAML takes for something else, or for a number of another look.
NAMES = [
  "2026_11", "2026_11_26", "12e4567", "1.10", "3.10", "1_1", "1e3", "007", "0x10", "inf", "NaN",
  "-inf", "NULL", "Null", "None", "TRUE", "on", "yes", "1:30", "2026-11-26", "+5", ".5", "5.",
]  # fmt: skip
# Which a shell or Hydra's grammar takes to pieces.
HOSTILE = [
  "", " ", "a ", " a", "a,b", "[a]", "[2026] a", "{a: b}", "(a)", "a(b", "a=b", "x/seed=0", "it's",
  '"a"', "'a'", "\"a'", "$HOME", "${x}", "\\${x}", "a${", "\\", "a\\", "\\\\", "C:\\new\\", "\\(",
  "!a", "-x", "--x", "~x", "#a", "a;b|c&d", "`a`", "*?<>", "a\tb", "null", " null", "true", "f(x)",
  "choice(a)", "range(0,3)", "int(3)", "café (copie).csv", "日本 [1]", "é,b", "😀=1", "a: b", "%@^",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t"), max_size=12)


def given_by(*lines):
  """What a text, a list of texts and numbers become in a config without files."""
  cfg = OmegaConf.create({"text": None, "texts": [], "number": 1.0, "numbers": [1], "count": None})
  for o in read(lines):
    OmegaConf.update(cfg, o.key_or_group, o.value())
  return OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_looks_like_a_number_stays_as_it_is_typed(name):
  found = given_by(f"text={name}", f"texts=[{name}, a]", f"number={name}")
  assert (found["text"], found["texts"]) == (name, [name, "a"])
  assert Wandb(notes=found["text"]).notes == name
  assert show(name) == name
  assert values(read([f"text={name},b"])[0]) == [f"text={name}", "text=b"]


def test_a_choice_of_lists_needs_no_quotes_within():
  (line,) = read(["by_layer.pattern=[none window=8,none],[rope base=2]"])
  written = ['["none window=8","none"]', '["rope base=2"]']
  assert values(line) == [f"by_layer.pattern={each}" for each in written]


@pytest.mark.parametrize(
  ("line", "value"),
  [
    ("text=null", None), ("text='null'", "null"), ("text=true", True), ("text=3", 3),
    ("text='1.10 '", "1.10 "), ("text=1.10 ", "1.10 "), ("text= a b ", " a b "), ("text=", ""),
    ("number=0.5", 0.5), ("number=1e-3", "1e-3"), ("numbers=[1_0]", ["1_0"]),
    ("text=[a=b.py,x (1).csv]", ["a=b.py", "x (1).csv"]), ("text=[a,'b,c']", ["a", "b,c"]),
  ],
)  # fmt: skip
def test_what_a_value_is(line, value):
  found = given_by(line)[line.partition("=")[0]]
  assert (found, type(found)) == (value, type(value))


def check_pasted(text):
  for key, value in (("text", text), ("texts", [text, "b"])):
    (line,) = shlex.split(typed(key, value))
    found = given_by(line)[key]
    shown = [found] if key == "text" else found
    assert [each if isinstance(each, str) else show(each) for each in shown] == (
      [text] if key == "text" else value
    ), line
    assert found is not None


@pytest.mark.parametrize("text", [*HOSTILE, *NAMES])
def test_an_option_that_is_shown_can_be_pasted(text):
  check_pasted(text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXT)
def test_an_option_with_any_text_can_be_pasted(text):
  check_pasted(text)


READ_OTHERWISE = ["\\${x}", "\\\\", "\\(", "null", " null", "true"]
READ_OTHERWISE += ["choice(a)", "range(0,3)", "int(3)"]
OPEN = [each for each in HOSTILE if each not in READ_OTHERWISE and not set(each) & set(",[]{}'\"")]


@pytest.mark.parametrize("text", OPEN)
def test_what_the_grammar_does_not_know_is_a_text_or_refused_with_what_to_type(text):
  try:
    found = given_by(f"text={text}")["text"]
  except UserError as error:
    (line,) = shlex.split(str(error).rpartition("as in ")[2])
    found = given_by(line)["text"]
  assert found == text


def test_texts_of_a_run_and_of_a_sweep_stay_texts(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  argv = ["-m", "wandb.notes=1.10,007", "train.learning_rate=1e-3,2e-3", "+wandb.entity=1_0"]
  argv += ["wandb.project=2026_11", "wandb.tags=[2026_11_26,12e4567,1.10]"]
  found = order.planned(*argv)
  wandb = found[0].config["tracker"]["wandb"]
  assert (wandb["project"], wandb["tags"]) == ("2026_11", ["2026_11_26", "12e4567", "1.10"])
  assert wandb["entity"] == "1_0"
  notes = [run.config["tracker"]["wandb"]["notes"] for run in found]
  assert notes == ["1.10", "1.10", "007", "007"]
  assert found[0].options == "wandb.notes=1.10 train.learning_rate=1e-3"
  assert [run.config["train"]["learning_rate"] for run in found[:2]] == [0.001, 0.002]


# Files


FILE = "mine/experiment/a.yaml"
MINE = "hydra.searchpath=[file://mine]"


@pytest.fixture
def mine(tmp_path, monkeypatch):
  """A function that writes an experiment of the user's own."""
  monkeypatch.chdir(tmp_path)

  def write(name, content):
    path = Path("mine/experiment", f"{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)

  return write


def test_texts_of_a_file_are_as_they_are_written(mine):
  names = ", ".join(NAMES)
  mine(
    "2026_11", f"seed: 3\nwandb: {{tags: [{names}]}}\ntrain: {{learning_rate: 2e-3, steps: 1_0}}\n"
  )
  config = resolve(compose([MINE, "experiment=2026_11"]))
  assert (config["seed"], config["tracker"]["wandb"]["tags"]) == (3, NAMES)
  assert config["train"]["learning_rate"] == "2e-3"  # a number, once it is read
  mine("../encoding/slow", "encoding: rope\nrope: {base: 500}\n")
  config = resolve(compose([MINE, "encoding=slow"]))
  assert (config["encoding"], config["rope"]["base"]) == ("rope", 500)
  mine("sweep", "hydra: {mode: MULTIRUN, sweeper: {params: {wandb.notes: 1.10, seed: '0,1'}}}\n")
  found = order.planned(MINE, "experiment=sweep")
  assert [run.config["tracker"]["wandb"]["notes"] for run in found] == ["1.10", "1.10"]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"seed: caf\xe9\n", f"{FILE}: a config file is a mapping in UTF-8"),
    ("- 1\n", f"{FILE}: a config file is a mapping in UTF-8"),
    ("seed: ${oc.env:NO_SUCH_VARIABLE}\n", "seed: a config does not read the environment variab"),
    ("rpr.k: 3\n", f"{FILE}: rpr.k is k in the section rpr"),
    ("plugins: a.py\n", f"{FILE}: plugins are loaded by the command alone"),
    ("defaults: [{override model: tiny}]\n", f"{FILE}: a choice is overridden with a slash"),
    ("model: tiny\n", f"{FILE}: model: tiny stands under defaults, in a line - override /model: t"),
    ("hydra: {sweeper: {params: {seed: '0,1'}}}\n", "hydra.sweeper.params has no effect"),
    ("hydra: {run: {dir: x}}\n", f"{FILE}, hydra.run.dir: posexp does not heed"),
    ("a: 3\n", "a=3: there is no option a; did you mean transformer_xl.a, with encoding=tr"),
  ],
)  # fmt: skip
def test_a_file_that_cannot_be_obeyed_is_named(mine, content, message):
  mine("a", content)
  typed = order.command(MINE, "experiment=a", "--cfg", "job")
  if typed.status == 0:
    typed = order.command(MINE, "experiment=a")
  assert typed.refusal.startswith(message)


# Documents


def documents():
  """Each command line in a block of README.md and docs."""
  for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
    for block in re.findall(
      r"^```\w*\n(.*?)^```$", file.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
      for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("python -m posexp."):
          yield pytest.param(line, id=f"{file.name}: {line[17:50]}")


ALSO = "python -m posexp.export RUN FOLDER plugins=mine.py"
WINGS = {f"posexp.{each.name}": each.module for each in plugins.entries("command")[0]}


@pytest.mark.parametrize("line", [*documents(), ALSO])
def test_a_command_of_the_documents_is_read_as_it_is_pasted(line, monkeypatch):
  name, *argv = shlex.split(line.partition(" < ")[0], comments=True)[2:]
  monkeypatch.setattr("posexp.config.plugins.load", lambda files: [*files])
  if hasattr(module := importlib.import_module(WINGS.get(name, name)), "arguments"):
    module.arguments(argv)
  else:
    own = ("RUN", "FOLDER", "runs/", "run=", "out=", "hf:")
    kept = (
      w
      for w, before in zip(argv, ["", *argv], strict=False)
      if before == "--again" or not w.startswith(own)
    )
    command_line.parse([*kept])


def test_the_experiment_in_the_documents_is_a_sweep(mine):
  text = (ROOT / "docs/sweeps.md").read_text("utf-8")
  name, content = re.search(
    r'^```yaml title="mine/experiment/(\w+).yaml"\n(.*?)^```', text, re.M | re.S
  ).groups()
  assert yaml.safe_load(content)
  command = next(line for line in text.splitlines() if line.endswith(f"experiment={name}"))
  for written in (content, content.partition("\n")[2]):  # with its first line, and without
    mine(name, written)
    found = order.planned(*shlex.split(command)[3:])
    assert [run.config["rpr"]["k"] for run in found] == [2] * 3 + [4] * 3 + [8] * 3
    assert {run.config["tracker"]["wandb"]["project"] for run in found} == {"2026_11"}


@pytest.mark.parametrize("lines", [
  ["encoding=rope", "task=copy", "rope.base=1.10", "task.lengths=[4,6]", "labels={a: b}", "seed=4"],
  ["experiment=shaw_clip_k", "~rpr.k", "++train.clip=2", "runs=a b", "tune.option=true"],
])  # fmt: skip
def test_configs_of_other_tests_are_as_hydra_composes_each(lines, monkeypatch):
  expected = OmegaConf.to_yaml(compose(lines))
  monkeypatch.setattr("hydra.compose", order.composed_once)
  for _ in range(2):
    assert OmegaConf.to_yaml(compose(lines)) == expected
