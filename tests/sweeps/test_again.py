"""A run, or a row of records, that is trained again by one command."""

import random
import re
import shlex
import shutil
from pathlib import Path

import order
import pytest
import yaml
from seed import SEED

from posexp.config import resolve
from posexp.config.command_line import check_heeded, compose
from posexp.config.overrides import read
from posexp.errors import UserError
from posexp.runs import RunWriter, digest, folder, read_run, read_runs
from posexp.runs.records import read_records, recorded, write_records
from posexp.sweeps.launch import again, typed_for
from posexp.training import costs
from posexp.training.setup import Setup

FINDINGS = Path(__file__).parents[2] / "docs/findings"


@pytest.fixture(scope="module")
def run(home):
  """The folder of a run of one's own files, of which nothing was trained but all is said."""
  setup = Setup.of(resolve(compose([*order.write(home), *order.BRIEF, "seed=1"])))
  path = folder(setup.config, **setup.data_digests())
  with RunWriter(path, setup.config) as writer:
    writer.log(6, {"validation/accuracy": 0.5})
    writer.finish({"step": 6, "test/accuracy": 0.5, **costs.machine()})
  return path


def stood_for(found):
  """The words of the command line that a command says it stands for."""
  line = re.search("^posexp: this is python -m posexp.train (.*)$", found.err, re.MULTILINE)
  return shlex.split(line[1])


@pytest.mark.parametrize(
  ("typed", "word"),
  [
    ("task=translation task.train=pairs.csv task.name=translation", "task.name=translation"),
    ("task=mr train=diagnostic train.steps=6", "train=diagnostic"),  # with epochs of its own
  ],
)
def test_what_a_config_is_typed_as_is_the_same_run_and_can_be_typed(typed, word):
  config = resolve(compose([*typed.split(), "encoding=rpr"]))
  lines = [f"{key}={value}" for key, value in typed_for(config).items()]
  assert word in lines
  check_heeded(read(lines), ["rpr"])
  assert digest(resolve(compose(lines))) == digest(config)


def test_a_run_is_trained_again_beside_itself_as_the_same_run(run):
  """To the same numbers: see tests/whole/test_parents.py."""
  configs = []
  found = order.command("--again", str(run), job=configs.append)
  assert found.status == 0, found.err
  assert "note" not in found.err
  words = stood_for(found)
  assert order.command(*words, job=configs.append).status == 0
  for setup in map(Setup.of, configs):
    same = Path("again", *run.parts[1:])  # of the same digest
    assert folder(setup.config, **setup.data_digests()) == same
  assert {"encoding=rpr", "rpr.k=2", "seed=1", "model.dropout=0.1", "runs=again"} <= {*words}
  assert not [word for word in words if word.startswith(("model.norm", "positions", "wandb"))]


def test_a_row_of_records_is_trained_again_with_other_options(run, capsys):
  write_records(Path("kept.parquet"), read_runs([Path("runs")])[0])
  changes = ["rpr.k=3", "seed=0", "train.steps=2", "runs=other"]
  found = order.command("--again", "kept.parquet:0", *changes, "--cfg", "job")
  assert found.status == 0, found.err
  config = yaml.safe_load(found.out)
  assert (config["rpr"]["k"], config["seed"], config["train"]["steps"]) == (3, 0, 2)
  assert config["model"].items() <= read_run(run).config["model"].items()
  assert "rpr.k=2" not in stood_for(found)
  words = " ".join(o.input_line for o in again("kept.parquet:0", read(["encoding=none,index"])))
  assert words.endswith("encoding=none,index")
  assert "rpr" not in words  # an option that none of these runs has
  assert capsys.readouterr().err.startswith("posexp: this is python -m posexp.train -m task=")


def test_what_an_older_version_did_not_have_or_had_alone_is_said(run, tmp_path):
  older = tmp_path / "0123456789ab" / run.name
  shutil.copytree(run, older, ignore=shutil.ignore_patterns("run.sha256"))
  config = yaml.safe_load((older / "config.yaml").read_text())
  del config["train"]["clip"]
  (older / "config.yaml").write_text(yaml.safe_dump(config))
  found = order.command("--again", str(older), "--cfg", "job")
  assert found.status == 0
  assert "this is another run than 0123456789ab: it did not have train.clip=1.0" in found.err
  summary = older / "summary.json"
  summary.write_text(summary.read_text().replace("posexp ", "posexp 0.0.1 and "))
  found = order.command("--again", str(older), "--cfg", "job")
  assert re.search(r"note: it was trained by posexp 0\.0\.1 .*, and is now by posexp", found.err)
  config["model"]["gone"] = 3
  (older / "config.yaml").write_text(yaml.safe_dump(config))
  found = order.command("--again", str(older))
  assert (found.status, found.err.count("\n")) == (2, 1)
  assert "model.gone=3, an option that this version does not have, by posexp 0.0.1" in found.err


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("kept.parquet", r"name one of 1 row: kept.parquet:0 is order/rpr/\w+/seed=1$"),
    ("kept.parquet:1", "name one of 1 row: kept.parquet:0 is order/rpr/"),
    ("none.parquet:0", "none.parquet: there is no such file"),
    ("none", "none: there is no such folder"),
    ("runs", "runs is not a run's folder, but holds some: name one, as runs/"),
  ],
)
def test_what_is_no_run_is_one_sentence(run, source, message):
  write_records(Path("kept.parquet"), read_runs([Path("runs")])[0])
  with pytest.raises(UserError, match=message):
    again(source, [])


@pytest.mark.parametrize(
  "finding", ["relative_distances/records", "absolute_positions/records", "relative_distances/clip"]
)
def test_a_row_of_a_finding_has_the_digest_that_it_had(finding, capsys):
  """But where the encoding has had an option less, which is said."""
  file = FINDINGS / f"{finding}.parquet"
  source = f"{file}:{random.Random(SEED).randrange(len(read_records(file)))}"
  words = [each.input_line for each in again(source, [])]
  setup = Setup.of(resolve(compose(words)))
  same = digest(setup.config, **setup.data_digests()) == recorded(source).digest
  said = f"another run than {recorded(source).digest}: it did not have rpr.absolute=none"
  assert (said not in capsys.readouterr().err) == same == (finding != "relative_distances/clip")
