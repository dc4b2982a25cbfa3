"""JSON Lines, CSV, TSV, Parquet and text files, each also gzipped, read as streams."""

import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from posexp.errors import UserError

Records = Iterator[tuple[str, dict]]  # ("line 7", {column: value})


def records(path: str) -> Records:
  """The rows of a table one by one, each with its place in the file.

  Raises:
    UserError: naming the file and the line of what cannot be read.
  """
  parse = reader(path)
  with _filled(path) as file:
    yield from parse(path, file)


def parallel(paths: dict[str, str]) -> Records:
  """The lines of two text files by name; only \\n and \\r\\n end one.

  Raises:
    UserError: a file cannot be read, a line is not UTF-8, or there are more lines in one.
  """
  with contextlib.ExitStack() as stack:
    files = [(path, stack.enter_context(_filled(path))) for path in paths.values()]
    rows = itertools.zip_longest(*(lines(path, file) for path, file in files))
    for number, row in enumerate(rows, start=1):
      if None in row:
        counts = [number - 1] * 2
        counts[row.index(None) - 1] = number + sum(1 for _ in rows)
        first, second = (
          f"{path} has {n:,}" for path, n in zip(paths.values(), counts, strict=True)
        )
        raise UserError(
          f"{first} lines, but {second}; each line must be the translation of the one in the other "
          "file"
        )
      texts = (line.removesuffix("\n").removesuffix("\r") for line in row)
      yield f"line {number}", dict(zip(paths, texts, strict=True))


def digest(paths: dict[str, str]) -> str:
  """sha256 over the contents of files by their roles, wherever they lie.

  Raises:
    UserError: a file cannot be read or is empty.
  """
  total = hashlib.sha256()
  for role, path in sorted(paths.items()):
    with _filled(path) as file:
      total.update(f"{role}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
  return total.hexdigest()


def is_table(path: str) -> bool:
  """Whether a file has columns, going by its name."""
  return _ending(path) in _READERS


def reader(path: str) -> Callable[[str, BinaryIO], Records]:
  """The function that reads this kind of table; UserError if `path` names no table."""
  if not is_table(path):
    raise UserError(
      f"{path}: unknown kind of file; its name must end in {', '.join(_READERS)}, or so with .gz"
    )
  return _READERS[_ending(path)]


@contextlib.contextmanager
def _filled(path: str) -> Iterator[BinaryIO]:
  """As `opened`, and the file is not empty."""
  with opened(path) as file:
    if not any(block.strip() for block in iter(lambda: file.read(1 << 16), b"")):
      raise UserError(f"{path}: the file is empty; give one with at least one row")
    file.seek(0)
    yield file


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
  """A file, unzipped while it is read.

  Raises:
    UserError: it is missing, cannot be read or is half a gzip file.
  """
  try:
    with (gzip.open if path.endswith(".gz") else open)(Path(path).expanduser(), "rb") as file:
      yield file
  except FileNotFoundError:
    raise UserError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
  except (gzip.BadGzipFile, EOFError, zlib.error):
    raise UserError(f"{path}: not a whole gzip file; make it again") from None
  except OSError as error:
    raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def lines(path: str, file: BinaryIO) -> Iterator[str]:
  """Decoded lines with their ends; only \\n ends one.

  Raises:
    UserError: a line is not UTF-8.
  """
  for number, line in enumerate(file, start=1):
    try:
      yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
      raise UserError(f"{path}, line {number}: not valid UTF-8; save the file as UTF-8") from None


def _json_lines(path: str, file: BinaryIO) -> Records:
  for number, line in enumerate(lines(path, file), start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except ValueError:
      record = None
    if not isinstance(record, dict):
      raise UserError(f"{path}, line {number}: not a JSON object; each line must be one")
    yield f"line {number}", record


def _csv(path: str, file: BinaryIO, **dialect) -> Records:
  """Rows below a header; "NA" and "null" are texts like any other."""
  csv.field_size_limit(sys.maxsize)
  # A carriage return alone ends a line, too.
  parts = (part for line in lines(path, file) for part in re.split(r"(?<=\r)(?=[^\n])", line))
  rows = csv.reader(parts, strict=True, **dialect)
  try:
    header = next(rows)
    for fields in rows:
      if not fields:  # a blank line
        continue
      if len(fields) != len(header):
        raise UserError(
          f"{path}, line {rows.line_num}: {len(fields)} fields where the header has "
          f"{len(header)}; quote a field that holds the separator"
        )
      yield f"line {rows.line_num}", dict(zip(header, fields, strict=True))
  except csv.Error as error:
    raise UserError(f"{path}, line {rows.line_num}: broken CSV: {error}") from None


def _tsv(path: str, file: BinaryIO) -> Records:
  """Tabs separate fields, and quotation marks are text, as in most published TSV files."""
  return _csv(path, file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _parquet(path: str, file: BinaryIO) -> Records:
  import pyarrow
  import pyarrow.parquet

  # Parquet is read from its end; seeking in a gzipped file unzips it over and over.
  seekable = io.BytesIO(file.read()) if path.endswith(".gz") else file
  number = itertools.count(1)
  try:
    for batch in pyarrow.parquet.ParquetFile(seekable).iter_batches(batch_size=10_000):
      for record in batch.to_pylist():
        yield f"row {next(number)}", record
  except (pyarrow.ArrowException, OSError):
    raise UserError(f"{path}: not a whole Parquet file; make it again") from None


_READERS = {
  ".jsonl": _json_lines,
  ".json": _json_lines,
  ".csv": _csv,
  ".tsv": _tsv,
  ".parquet": _parquet,
}
TABLES = tuple(_READERS)  # the endings of the names of tables


def _ending(path: str) -> str:
  return Path(path.removesuffix(".gz")).suffix.lower()
