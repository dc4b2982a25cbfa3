"""Finished runs kept together in one file, from which reports are drawn again.

Of each run it holds the config, the summary, the rows of metrics, and what each example adds to its
scores: no checkpoints and no predictions, so that a hundred runs are a small file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from posexp import reading, storage
from posexp.errors import UserError, counted
from posexp.runs.identity import settings
from posexp.runs.run import Run, parsed_config, parsed_summary, read_run

NAME = "records.parquet"  # of the file, where a folder is asked for records
COLUMNS = ("folder", "config", "summary", "metrics", "examples")
# Sections of a config that say where it ran.
PRIVATE = ("runs", "rerun", "tracker", "wandb", "distributed", "distributed_timeout")
RUNS, TEXT, VALUES = 20_000, 128 * reading.MB, 2_000_000  # at most, in one file
SHOWN = 3  # rows that an error names
LEVELS = 4  # of a run's folder that its record keeps: task, encoding, digest, seed
OF_TRIAL = 2  # more: trials, and a digest of its own


def held(path: Path) -> Path | None:
  """Return the file of records that a path names: itself, or the one in a folder; None if none."""
  if path.suffix == ".parquet":
    return path
  return path / NAME if (path / NAME).is_file() else None


def write_records(
  path: Path,
  runs: Sequence[Run],
  examples: Callable[[Run], dict[str, Any]] = lambda run: {},
  about: Mapping[str, Any] | None = None,
) -> int:
  """Write records of those runs that have finished; return how many these are.

  `examples` returns the packed scores of a run's examples, by split and metric. `about` is what the
  file says of all of them, as JSON among the metadata of its schema.

  Raises:
    UserError: none has.
    OSError: the file cannot be written.
  """
  import pyarrow
  from pyarrow import parquet

  finished = [run for run in runs if run.summary is not None]
  if not finished:
    raise UserError("none of the runs has finished, and only finished ones are recorded")
  rows = [
    (
      "/".join(run.path.absolute().parts[-(LEVELS + OF_TRIAL * bool(run.trial)) :]),
      yaml.safe_dump(_public(run.config), sort_keys=False, allow_unicode=True),
      json.dumps(run.summary, ensure_ascii=False),
      "".join(json.dumps(row) + "\n" for row in run.history),
      json.dumps(examples(run)),
    )
    for run in sorted(finished, key=lambda run: run.path)
  ]
  table = pyarrow.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
  if about is not None:
    table = table.replace_schema_metadata({"posexp": json.dumps(about, ensure_ascii=False)})
  with storage.replacing(path) as temporary:
    parquet.write_table(table, temporary, compression="zstd", compression_level=19)
  return len(finished)


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return a config without the options that say where a run was trained, and by whom."""
  kept = {key: value for key, value in config.items() if key not in PRIVATE}
  plugins = config.get("plugins") or {}
  named = {key: plugin | {"path": Path(plugin["path"]).name} for key, plugin in plugins.items()}
  return kept | ({"plugins": named} if named else {})


def read_records(path: Path, trials: bool = False) -> list[Run]:
  """Return the runs of a file of records. Their paths say where they were, and are no folders.

  Trials of tuned sweeps are left out unless `trials` asks for them.

  Raises:
    UserError: it is missing, or holds anything else.
  """
  import pyarrow

  data = reading.read(path)
  if data is None:
    raise UserError(f"{path}: there is no such file")
  rows: list[tuple[str, ...]] = []
  size = values = 0
  try:
    for batch in reading.batches(path, io.BytesIO(data), COLUMNS, RUNS):
      columns = [batch.column(name).to_pylist() for name in COLUMNS[:-1]]
      older = COLUMNS[-1] not in batch.schema.names
      columns.append(["{}"] * len(batch) if older else batch.column(COLUMNS[-1]).to_pylist())
      rows += zip(*columns, strict=True)
      texts = [text.encode(errors="replace") for column in columns for text in column]
      size, values = size + sum(map(len, texts)), values + sum(map(reading.count, texts))
      if size > TEXT or values > VALUES:
        raise UserError(f"{path}: more than {TEXT:,} bytes, or {VALUES:,} numbers; part it")
    if not rows:
      raise ValueError("no text in it")
  except (pyarrow.ArrowException, ValueError, LookupError, OSError, AttributeError) as error:
    raise UserError(
      f"{path}: there are no records of runs in it; python -m posexp.report RUNS --records FILE "
      "writes them"
    ) from error
  runs = [_run(path, *row) for row in rows]
  return [run for run in runs if trials or not run.trial]


def _run(file: Path, folder: str, *texts: str) -> Run:
  path = file / PurePosixPath(*(part for part in PurePosixPath(folder).parts if part != ".."))
  written, summary, metrics, examples = (text.encode(errors="replace") for text in texts)
  config = parsed_config(path, written)
  try:
    packed = dict(reading.parse(examples))
    if not all(isinstance(metric, dict) for split in packed.values() for metric in split.values()):
      raise ValueError("scores of another kind")
  except (TypeError, ValueError, AttributeError) as error:
    raise UserError(f"{path}: its scores of examples are damaged") from error
  run = Run(path, config, settings(config), parsed_summary(path, summary), metrics, packed)
  _ = run.history  # which says now whether it is damaged
  return run


def recorded(source: str) -> Run:
  """Return the run in a folder, or in a row of records, FILE:ROW with rows counted from 0.

  Raises:
    UserError: there is none.
  """
  name, colon, row = source.rpartition(":")
  if Path(source).is_dir() or not (file := held(Path(name if colon else source))):
    return read_run(source)
  runs = read_records(file, trials=True)
  if not row.isdecimal() or int(row) >= len(runs):
    rows = (f"{file}:{i} is {run.path.relative_to(file)}" for i, run in enumerate(runs[:SHOWN]))
    raise UserError(f"{source}: name one of {counted(len(runs), 'row')}: {', '.join(rows)}")
  return runs[int(row)]
