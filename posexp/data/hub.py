"""Data sets of the Hugging Face hub, at a pinned commit and kept on disk once they were here."""

import hashlib
import json
import os
import queue
import re
import ssl
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from posexp import storage
from posexp.data.files import Rows, pick
from posexp.errors import UserError

if TYPE_CHECKING:
  import datasets

PATIENCE = 3.0  # seconds in which the hub must answer


def read(
  repository: str, revision: str, splits: dict[str, str], text: str, label: str
) -> dict[str, Rows]:
  """Rows by our names of the splits; `splits` gives the hub's name for each.

  What was read once is kept, so that the next run needs neither the hub nor `datasets`.

  Raises:
    UserError: the hub does not answer, or has no such data set, split or column.
  """
  asked = json.dumps([repository, revision, splits, text, label])
  name = f"hub/{repository.replace('/', '--')}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
  found = storage.cached(f"{name}.json", lambda: _load(repository, revision, splits, text, label))
  return {split: [(text, label) for text, label in rows] for split, rows in found.items()}


def _load(repository, revision, splits, text, label) -> dict[str, Rows]:
  loaded = load(
    repository,
    revision,
    way_out="task=text_classification task.train=FILE, or take task=mr",
  )
  return {ours: _rows(repository, loaded, theirs, text, label) for ours, theirs in splits.items()}


def load(
  repository: str,
  revision: str,
  *,
  subset: str | None = None,
  data_files: dict[str, str] | None = None,
  way_out: str,
) -> "datasets.DatasetDict":
  """All splits of a data set, on disk, at a commit or at what a branch stands for now.

  Raises:
    UserError: the hub does not answer, and then `way_out` says what can be had without; or it has
      no such data set.
  """
  endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
  if not answers(f"{endpoint}/api/datasets/{repository}"):
    raise UserError(
      f"task.hub={repository}: the Hugging Face hub does not answer at {endpoint}; connect once "
      f"(the data is kept from then on), or give files of your own with {way_out}, which needs no "
      "network"
    )
  import datasets
  import huggingface_hub

  if not sys.stderr.isatty():
    datasets.disable_progress_bars()
  try:
    commit = revision
    if not re.fullmatch("[0-9a-f]{40}", revision):
      commit = huggingface_hub.HfApi().dataset_info(repository, revision=revision).sha
    loaded = datasets.load_dataset(repository, subset, revision=commit, data_files=data_files)
  except Exception as error:  # of many libraries: network, repository, format
    reason = str(error.__cause__ or error).strip().split("\n")[0]
    raise UserError(f"task.hub={repository}: cannot be loaded at {revision}: {reason}") from error
  # Where the hub fails, `datasets` takes the newest copy it has, of whatever commit.
  copies = {
    Path(file["filename"]).parent.name for data in loaded.values() for file in data.cache_files
  }
  if copies != {commit}:
    raise UserError(
      f"task.hub={repository}: the hub failed, and no copy at {revision} is here; try again"
    )
  return loaded


def split_of(
  repository: str, loaded: "datasets.DatasetDict", split: str
) -> tuple["datasets.Dataset", str]:
  """A split of what was loaded, and how errors name it; UserError if there is none."""
  if split not in loaded:
    raise UserError(f"task.hub={repository}: no split {split!r}; it has {', '.join(loaded)}")
  return loaded[split], f"task.hub={repository}, split {split}"


def _rows(repository, loaded, split: str, text: str, label: str) -> Rows:
  data, where = split_of(repository, loaded, split)
  columns = dict.fromkeys(data.column_names)
  for column, option in ((text, "text"), (label, "label")):
    pick(columns, column, option, where)
  labels = data[label][:]
  if any(value in (None, -1) for value in labels):
    raise UserError(f"{where}: its labels are hidden; choose another split")
  names = getattr(data.features[label], "names", None)  # a ClassLabel counts where we want words
  return [
    (words or "", names[value] if names else str(value))
    for words, value in zip(data[text][:], labels, strict=True)
  ]


def answers(url: str, patience: float = PATIENCE) -> bool:
  """Whether anything at all answers at `url` within `patience` seconds, through a proxy or not."""
  if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}:
    return False
  answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
  # In a thread of its own, because no timeout covers the look-up of the host's name.
  threading.Thread(target=lambda: answer.put(_asked(url, patience)), daemon=True).start()
  try:
    return answer.get(timeout=patience)
  except queue.Empty:
    return False


def _asked(url: str, patience: float) -> bool:
  try:
    urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=patience).close()
  except urllib.error.HTTPError:
    return True  # an answer, if not a kind one; the loader will say more
  except (OSError, ValueError) as error:
    return isinstance(getattr(error, "reason", None), ssl.SSLError)
  return True
