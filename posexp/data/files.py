"""The user's own files: JSON Lines, CSV, TSV and Parquet, each of them also gzipped."""

import csv
import gzip
import hashlib
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from posexp.errors import UserError

Rows = list[tuple[str, str]]  # (text, label), in the order of the source
Records = Iterator[tuple[str, dict]]  # ("line 7", {column: value})


def read(path: str, text: str, label: str) -> Rows:
  """The rows of one file, from its columns `text` and `label`.

  Raises:
    UserError: naming the file and the line of what cannot be read.
  """
  rows = []
  for where, record in _reader(path)(path, _bytes(path)):
    row = f"{path}, {where}"
    words, name = pick(record, text, "text", row), pick(record, label, "label", row)
    if not isinstance(words, str | None):
      raise UserError(f"{row}: the text is {words!r}; it must be a string")
    if not isinstance(name, str | int | float) or name == "":
      raise UserError(f"{row}: the label is {name!r}; it must be a string or a number")
    try:
      f"{words}{name}".encode()
    except UnicodeEncodeError:  # JSON can say \ud83d alone
      raise UserError(f"{row}: half a surrogate pair, which is no character") from None
    rows.append((words or "", str(name)))
  if not rows:
    raise UserError(f"{path}: no rows below the header; give a file with at least one")
  return rows


def digest(paths: dict[str, str]) -> str:
  """sha256 over the contents of files by their roles; where they lie does not matter."""
  whole = hashlib.sha256()
  for role, path in sorted(paths.items()):
    _reader(path)
    whole.update(f"{role}:{hashlib.sha256(_bytes(path)).hexdigest()}\n".encode())
  return whole.hexdigest()


def pick(columns: dict[str, Any], name: str, option: str, where: str) -> Any:
  """The column `name`; `option` is the one that chose it and `where` is for the error."""
  if name in columns:
    return columns[name]
  near = get_close_matches(name, columns, n=1)
  way_out = f"did you mean task.{option}={near[0]}" if near else f"set task.{option} to one of them"
  raise UserError(
    f"{where}: no column {name!r}, but {', '.join(columns) or 'none at all'}; {way_out}"
  )


def _bytes(path: str) -> bytes:
  """The content of a file, unzipped."""
  try:
    content = Path(path).expanduser().read_bytes()
  except FileNotFoundError:
    raise UserError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
  except OSError as error:
    raise UserError(f"{path}: cannot be read: {error.strerror}") from None
  if path.endswith(".gz"):
    try:
      content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
      raise UserError(f"{path}: not a whole gzip file; make it again") from None
  if not content.strip():
    raise UserError(f"{path}: the file is empty; give one with at least one row")
  return content


def _decode(path: str, content: bytes) -> str:
  try:
    return content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = error.object.count(b"\n", 0, error.start) + 1
    raise UserError(f"{path}, line {line}: not valid UTF-8; save the file as UTF-8") from None


def _json_lines(path: str, content: bytes) -> Records:
  # Not splitlines(), which also cuts at characters that may stand inside a JSON string.
  for number, line in enumerate(_decode(path, content).split("\n"), start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except ValueError:
      record = None
    if not isinstance(record, dict):
      raise UserError(f"{path}, line {number}: not a JSON object; each line must be one")
    yield f"line {number}", record


def _csv(path: str, content: bytes, **dialect) -> Records:
  """Rows under a header; "NA" and "null" are texts like any other."""
  csv.field_size_limit(sys.maxsize)
  lines = csv.reader(io.StringIO(_decode(path, content), newline=""), strict=True, **dialect)
  try:
    header = next(lines)
    for fields in lines:
      if not fields:  # a blank line
        continue
      if len(fields) != len(header):
        raise UserError(
          f"{path}, line {lines.line_num}: {len(fields)} fields where the header has "
          f"{len(header)}; quote a field that holds the separator"
        )
      yield f"line {lines.line_num}", dict(zip(header, fields, strict=True))
  except csv.Error as error:
    raise UserError(f"{path}, line {lines.line_num}: broken CSV: {error}") from None


def _tsv(path: str, content: bytes) -> Records:
  """Tabs separate, and quotation marks mean themselves, as in most published TSV files."""
  return _csv(path, content, delimiter="\t", quoting=csv.QUOTE_NONE)


def _parquet(path: str, content: bytes) -> Records:
  import pyarrow
  import pyarrow.parquet

  try:
    table = pyarrow.parquet.read_table(io.BytesIO(content))
  except (pyarrow.ArrowException, OSError):
    raise UserError(f"{path}: not a whole Parquet file; make it again") from None
  for number, record in enumerate(table.to_pylist(), start=1):
    yield f"row {number}", record


_READERS = {
  ".jsonl": _json_lines,
  ".json": _json_lines,
  ".csv": _csv,
  ".tsv": _tsv,
  ".parquet": _parquet,
}


def _reader(path: str) -> Callable[[str, bytes], Records]:
  ending = Path(path.removesuffix(".gz")).suffix.lower()
  if ending not in _READERS:
    raise UserError(
      f"{path}: unknown kind of file; its name must end in {', '.join(_READERS)}, or so with .gz"
    )
  return _READERS[ending]
