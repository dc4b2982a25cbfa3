"""Packaging: what is built finds its configs wherever it is, and the lock fits the project."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import index_page
import pytest
import yaml
from packaging.requirements import Requirement

import posexp

ROOT = Path(__file__).parents[2]
RELATIVE = re.compile(r"\]\((?!https?:|#)[^)\s]+\)")  # links that an index cannot follow
CONFIGS = {str(file.relative_to(ROOT)) for file in ROOT.glob("configs/**/*.yaml")}


def python(*argv, cwd, path):
  """Runs Python in `cwd` with `path` before everything else; returns its output."""
  env = os.environ | {"PYTHONPATH": str(path), "PYTHONIOENCODING": "ascii"}
  command = [sys.executable, *argv]
  done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  return done.stdout


def build(target, source, folder):
  python("-m", "hatchling", "build", "-t", target, "-d", str(folder), cwd=source, path="")
  (built,) = folder.iterdir()
  return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
  return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
  folder = tmp_path_factory.mktemp("source")
  with tarfile.open(sdist) as archive:
    archive.extractall(folder, filter="data")
  (source,) = folder.iterdir()
  return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
  """A folder from which `posexp` is imported."""
  installed = tmp_path_factory.mktemp("installed")
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(installed)
  return installed


TYPED = """
import sys
import posexp.config
from posexp.sweeps.launch import launch

print(posexp.__file__, posexp.config.CONFIGS)
mine = "hydra.searchpath=[file://mine] experiment=three"
for argv in ("--cfg job encoding=rpr rpr.k=4", f"--cfg job {mine}", "--help"):
  sys.argv[1:] = argv.split()
  print("---")
  assert launch(print) == 0
"""


def test_configs_are_found_from_anywhere_and_those_of_the_user_beside_them(home, tmp_path):
  (tmp_path / "mine/experiment").mkdir(parents=True)
  text = "# @package _global_\ndefaults:\n  - override /encoding: rpr\nrpr: {k: 3}\n"
  (tmp_path / "mine/experiment/three.yaml").write_text(text)
  found, *configs, shown = python("-c", TYPED, cwd=tmp_path, path=home).split("---\n")
  package, folder = map(Path, found.split())
  said = python("-OO", "-m", "posexp.report", "--version", cwd=tmp_path, path=home)
  assert said == f"posexp {posexp.__version__}\n"
  assert package.parent == Path(home, "posexp")
  assert {f"configs/{file.relative_to(folder)}" for file in folder.rglob("*.yaml")} == CONFIGS
  four, three = map(yaml.safe_load, configs)
  assert (four["encoding"], four["rpr"]["k"], four["task"]["name"]) == ("rpr", 4, "mr")
  assert (three["encoding"], three["rpr"]["k"]) == ("rpr", 3)
  assert "\n  encoding" in shown
  assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_wheel_has_the_version_the_license_and_the_command(wheel):
  assert wheel.name.startswith(f"posexp-{posexp.__version__}-")
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    scripts = next(name for name in names if name.endswith("entry_points.txt"))
    assert "posexp-train = posexp.train:main" in archive.read(scripts).decode()
    shown = archive.read(scripts.replace("entry_points.txt", "METADATA")).decode()
  about, _, readme = shown.partition("\n\n")
  for line in ("Author: The posexp authors", "Classifier: Programming Language :: Python :: 3.13"):
    assert line in about
  assert readme.startswith("# posexp")
  assert not RELATIVE.search(readme)
  assert any(name.endswith("licenses/LICENSE") for name in names)
  assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"posexp"}


def test_on_an_index_links_lead_to_the_repository_that_a_workflow_builds():
  address = index_page.repository({"GITHUB_SERVER_URL": "https://a.b", "GITHUB_REPOSITORY": "c/d"})
  text = (ROOT / "README.md").read_text("utf-8")
  shown = index_page.described(text, address)
  assert not RELATIVE.search(shown)
  targets = re.findall(r"https://a\.b/c/d/(?:raw|blob)/HEAD/([^)#]+)", shown)
  assert len(targets) == len(RELATIVE.findall(text)) > 25
  assert all((ROOT / target).exists() for target in targets)
  assert index_page.described("[a](b.md), ![c](d.svg), [e](#f)", None) == "a, c, [e](#f)"


def test_an_sdist_has_what_its_commands_and_tests_need(sdist):
  with tarfile.open(sdist) as archive:
    names = {name.partition("/")[2] for name in archive.getnames()}
  needed = {"Makefile", "requirements.lock", "pyproject.toml", "README.md", "LICENSE"}
  pages = {str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.*")}
  assert needed | CONFIGS | pages | {"mkdocs.yml", "tests/whole/test_packaging.py"} <= names
  assert not [name for name in names if name.startswith((".venv", "runs", ".git/"))]


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_the_lock_has_hashes_no_address_and_fits_the_project(python):
  lock = (ROOT / "requirements.lock").read_text()
  assert "://" not in lock
  entries = re.split(r"\n(?=\S)", lock.strip())
  assert all("--hash=sha256:" in entry for entry in entries)
  here = {"python_version": python, "python_full_version": f"{python}.0"}

  def for_it(lines):
    asked = map(Requirement, lines)
    return [each for each in asked if each.marker is None or each.marker.evaluate(here)]

  locked = {each.name: each for each in for_it(entry.split("\\")[0] for entry in entries)}
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = project["optional-dependencies"]
  (own,) = [each for each in for_it(extras["dev"]) if each.name == "posexp"]
  wanted = [*project["dependencies"], *extras["dev"], *(w for e in own.extras for w in extras[e])]
  for each in [each for each in for_it(wanted) if each.name != "posexp"]:
    version = str(locked[each.name].specifier).removeprefix("==")
    assert each.specifier.contains(version), each


def test_make_says_what_python_lacks(tmp_path):
  for name in ("Makefile", "requirements.lock", "pyproject.toml"):
    shutil.copy(ROOT / name, tmp_path)
  fake = tmp_path / "python"
  fake.write_text("#!/bin/sh\nexit 1\n")
  fake.chmod(0o755)
  command = ["make", "train", f"PYTHON={fake}"]
  # A make that calls this test must not pass on its own variables.
  env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
  done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
  message = "posexp needs Python 3.11 or newer: name one, as in make train PYTHON=python3.12"
  assert (done.returncode, done.stdout.strip()) == (2, message)
  assert not (tmp_path / ".venv").exists()
