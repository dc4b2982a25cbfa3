"""Data sets of the Hugging Face hub, at a pinned commit, and cached on disk once they were read."""

import functools
import hashlib
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posexp.data import store
from posexp.data.splits import Row, Split
from posexp.errors import UserError
from posexp.status import doing

if TYPE_CHECKING:
  import datasets

Parse = Callable[[str, dict], Row]  # of a row's place, for errors, and its columns

PATIENCE = 3.0  # seconds in which the hub must answer
OFFLINE = "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"  # heeded by huggingface_hub
REASON = 200  # characters of the reason of another library for not loading


class Query(NamedTuple):
  """The part of a data set that is read; as JSON, it identifies the content."""

  repository: str
  subset: str | None  # the hub's name for a part of the data set
  revision: str  # a commit, or a branch
  data_files: dict[str, str] | None  # files of the repository by split, instead of its own splits
  splits: dict[str, str]  # the hub's name of each split, by ours
  first: str  # the columns of rows
  second: str | None = None  # None for texts alone

  def __str__(self) -> str:
    return json.dumps(self, sort_keys=True)


def read(query: Query, parses: dict[str, Parse], way_out: str) -> dict[str, Split]:
  """Return the splits of a data set, from disk if they have been read before.

  Args:
    query: the data set and its splits.
    parses: for each split, the function from named columns to a row.
    way_out: what errors suggest where the hub does not answer.

  Raises:
    UserError: the hub does not answer, or has no such data set, split or column.
  """

  def fill(folder: Path) -> None:
    for split, rows in records(query, way_out).items():
      with open(folder / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as file:
        for where, record in rows:
          file.write(json.dumps(parses[split](where, record), ensure_ascii=False) + "\n")

  digest = hashlib.sha256(str(query).encode()).hexdigest()[:16]
  folder = store.kept(f"hub/{query.repository.replace('/', '--')}-{digest}", fill)
  return {split: functools.partial(_stored, folder / f"{split}.jsonl") for split in query.splits}


def records(query: Query, way_out: str) -> dict[str, Iterator[tuple[str, dict]]]:
  """Return the rows of each split as columns by name, with their places; nothing of them is cached
  here.

  Raises:
    UserError: as `read`.
  """
  loaded, rows = _load(query, way_out), {}
  for split, named in query.splits.items():
    name = split if query.data_files else named
    if name not in loaded:
      raise UserError(f"task.hub={query.repository}: no split {name!r}; it has {', '.join(loaded)}")
    where = f"task.hub={query.repository}, split {name}"
    rows[split] = _records(loaded[name], query, where)
  return rows


def _stored(path: Path) -> Iterator[Row]:
  with open(path, "rb") as file:
    for number, line in enumerate(file, start=1):
      try:
        first, second = json.loads(line)
        yield first + "", second + ""
      except (ValueError, TypeError):
        raise UserError(
          f"{path}, line {number}: damaged; remove the folder, and the data are fetched again"
        ) from None


def _records(data: "datasets.Dataset", query: Query, where: str) -> Iterator[tuple[str, dict]]:
  """Yield the place of each row and its columns; class labels are given by their names."""
  number = itertools.count(1)
  names = {
    column: data.features[column].names
    for column in (query.first, query.second)
    if hasattr(data.features.get(column), "names")
  }
  for columns in data.iter(batch_size=1_000):
    for column in names:
      if any(value in (None, -1) for value in columns[column]):
        raise UserError(f"{where}: its labels are hidden; choose another split")
      columns[column] = [names[column][value] for value in columns[column]]
    for values in zip(*columns.values(), strict=True):
      yield f"{where}, row {next(number)}", dict(zip(columns, values, strict=True))


def _load(query: Query, way_out: str) -> "datasets.DatasetDict":
  """Return all splits, on disk, at the commit of the query or the newest one of its branch."""
  endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
  option = f"task.hub={query.repository}"
  ways = f"or give files of your own with {way_out}, which needs no network"
  doing(f"asking {endpoint} for {query.repository}")
  if why := trouble(endpoint, query.repository):
    raise UserError(f"{option}: the Hugging Face hub {why} (the data is kept from then on), {ways}")
  doing(f"downloading {query.repository} from {endpoint}")
  import datasets
  import huggingface_hub

  if not sys.stderr.isatty():
    datasets.disable_progress_bars()
  commit = query.revision
  try:
    if not re.fullmatch("[0-9a-f]{40}", commit):
      commit = huggingface_hub.HfApi().dataset_info(query.repository, revision=commit).sha
    loaded = datasets.load_dataset(
      query.repository, query.subset, revision=commit, data_files=query.data_files
    )
  except Exception as error:  # of many libraries: network, repository, format
    reason = textwrap.shorten(str(error.__cause__ or error), REASON, placeholder=" …")
    raise UserError(
      f"{option}: cannot be loaded at {query.revision}: {reason}; check its name, try again, {ways}"
    ) from error
  # Where the hub fails, `datasets` takes the newest copy that it has, of any commit.
  files = itertools.chain.from_iterable(data.cache_files for data in loaded.values())
  if {Path(file["filename"]).parent.name for file in files} != {commit}:
    raise UserError(f"{option}: the hub failed, and no copy at {query.revision} is here; try again")
  return loaded


def trouble(endpoint: str, repository: str) -> str:
  """Return why a hub does not answer for a data set, and the way out; "" if it does.

  It must answer within `PATIENCE` seconds, through a proxy or not.
  """
  for name in OFFLINE:
    if os.environ.get(name, "").upper() in {"1", "TRUE", "YES", "ON"}:
      return f"is not asked, as {name} is set; unset it to connect once"
  import huggingface_hub
  from huggingface_hub.errors import HfHubHTTPError

  try:
    huggingface_hub.HfApi(endpoint).dataset_info(repository, timeout=PATIENCE)
  except HfHubHTTPError as error:  # other answers than these are explained where data are loaded
    code = error.response.status_code
    busy = code == 429 or code >= 500
    return f"answers {code} at {endpoint}; try again later" if busy else ""
  except ValueError:
    return f"is not what answers at {endpoint}; log in to the network once"
  except Exception as error:  # the library that asks is another one in each version
    reason = textwrap.shorten(str(error), REASON, placeholder=" …")
    return f"does not answer at {endpoint} ({reason}); connect once"
  return ""
