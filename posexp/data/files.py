"""JSON Lines, CSV, TSV, Parquet and text files, each also gzipped, read as streams."""

import codecs
import contextlib
import functools
import gzip
import hashlib
import io
import itertools
import json
import os
import stat
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from posexp import reading
from posexp.data import separated, writing
from posexp.data.separated import LINE, by_name
from posexp.errors import UserError

Records = Iterator[tuple[str, dict]]  # ("line 7", {column: value})
Wanted = Collection[str]  # the columns that are read

BLOCK = 1 << 20  # bytes of running text that are read at a time
LONGEST = 2_000_000  # letters of a text
VALUES = 3_000_000  # of a line of JSON: commas of its texts among them
WORD = 20_000  # letters of a word: a byte-level BPE takes time with their square


def records(path: str, wanted: Wanted = ()) -> Records:
  """Read the rows of a table one by one, each with its place in the file.

  Without a header, the columns of a CSV or TSV are named 1, 2, ..., if those are `wanted`.

  Raises:
    UserError: naming the file and the line of what cannot be read; or there are no rows.
  """
  parse, place = reader(path), ""
  with opened(path) as file:
    for place, record in parse(path, file, wanted):
      yield place, record
  if not place:
    raise UserError(f"{path}: no rows below the header; give a file with at least one")


def parallel(paths: dict[str, str]) -> Records:
  """Yield the lines of two text files by name; only \\n and \\r\\n end one.

  Raises:
    UserError: a file cannot be read, a line is not UTF-8, or there are more lines in one.
  """
  with contextlib.ExitStack() as stack:
    files = [(path, stack.enter_context(opened(path))) for path in paths.values()]
    rows = itertools.zip_longest(*(lines(path, file) for path, file in files))
    for number, row in enumerate(rows, start=1):
      if None in row:
        names = [*paths.values()]
        shorter, longer = names[row.index(None)], names[row.index(None) - 1]
        raise UserError(
          f"{shorter} has {number - 1:,} lines, but {longer} has more; each line must be the "
          "translation of the one in the other file"
        )
      texts = (line.removesuffix("\n").removesuffix("\r") for line in row)
      yield f"line {number}", dict(zip(paths, texts, strict=True))


def digest(paths: dict[str, str]) -> str:
  """Return the sha256 over the contents of files by their roles, wherever they lie.

  It also depends on whether quotation marks are part of the texts.

  Raises:
    UserError: a file cannot be read or is empty.
  """
  total = hashlib.sha256()
  for role, path in sorted(paths.items()):
    total.update(f"{role}:{''.join(_content(path, version(path)))}\n".encode())
  return total.hexdigest()


def quoting(path: str) -> str:
  """Return how a TSV quotes its fields, as `separated.quoting` does; "" for any other file."""
  return _content(path, version(path))[1]


@functools.lru_cache  # a run asks three times, and a gigabyte takes a second
def _content(path: str, version: tuple[int, int, int] | None) -> tuple[str, str]:
  """Return the sha256 of a file, and how its fields are quoted."""
  with opened(path) as file:
    digest = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
    file.seek(0)
    if _ending(path) == ".tsv":
      return digest, separated.quoting(file)
    # Marks that enclose fields in a .csv may be text in a .tsv of the same bytes.
    if _ending(path) == ".csv" and b"\t" in file.readline(BLOCK) and separated.has_marks(file):
      file.seek(0)
      digest += "" if separated.quoting(file) else ":csv"
    return digest, ""


def notes(path: str, wanted: Wanted) -> Iterator[str]:
  """Yield a sentence on each thing that is not obvious in how a table is read."""
  if quoting(path):
    yield f"{path}: quotation marks enclose fields, as in a CSV, and are no part of the texts"
  if _ending(path) in (".csv", ".tsv"):
    named, numbered = next(records(path))[1], next(records(path, wanted))[1]
    if next(iter(named), None) == "":
      yield f"{path}: the first column has no name, and is taken for the names of rows"
    if named.keys() != numbered.keys():
      yield f"{path}: columns by number, so the first row is data: {', '.join(named)[:60]}"
    marked = any(str(each)[:1] == '"' == str(each)[-1:] for each in named.values())
    if marked and _ending(path) == ".tsv" and not quoting(path):
      yield f"{path}: quotation marks are part of the texts, as not all fields are in them"


def utf8(text: str, where: str) -> bytes:
  """Return a text in UTF-8.

  Raises:
    UserError: it has half a surrogate pair: JSON may hold one, and a terminal gives one for what is
      not UTF-8.
  """
  try:
    return text.encode()
  except UnicodeEncodeError:
    raise UserError(f"{where}: not valid UTF-8, or half a surrogate pair; correct it") from None


def version(path: str) -> tuple[int, int, int] | None:
  """Return a value that changes with the content of a file; None if there is no file."""
  with contextlib.suppress(OSError, ValueError):
    state = os.stat(os.path.expanduser(path))
    return state.st_ino, state.st_size, state.st_mtime_ns


def is_table(path: str) -> bool:
  """Return whether a file has columns, going by its name."""
  return _ending(path) in _READERS


def reader(path: str) -> Callable[[str, BinaryIO, Wanted], Records]:
  """Return the function that reads this kind of table; UserError if `path` names no table."""
  if not is_table(path):
    raise UserError(
      f"{path}: unknown kind of file; its name must end in {', '.join(_READERS)}, or so with .gz"
    )
  return _READERS[_ending(path)]


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
  """Open a file, unzipped while it is read.

  Raises:
    UserError: it is missing, blank, or compressed under another name, cannot be read, is a pipe or
      a device, or is half a gzip file.
  """
  place = os.path.expanduser(path).replace("\0", "�")
  try:
    if not stat.S_ISREG(os.stat(place).st_mode):  # opening a pipe waits, a device may never end
      raise UserError(f"{path}: not a regular file; save the data in one, which is read repeatedly")
    with contextlib.ExitStack() as stack:
      file: BinaryIO = stack.enter_context(open(place, "rb"))
      if path.endswith(".gz"):
        unzipped = stack.enter_context(gzip.GzipFile(fileobj=file))
        unpacked = reading.Unpacked(path, unzipped, os.fstat(file.fileno()).st_size)
        file = io.BufferedReader(unpacked, BLOCK)
      if file.read(2) == b"\x1f\x8b":
        raise UserError(f"{path}: compressed by gzip; give it a name that ends in .gz")
      file.seek(0)
      if not any(block.strip() for block in iter(lambda: file.read(1 << 16), b"")):
        raise UserError(f"{path}: the file is empty; give one with at least one row")
      file.seek(0)
      yield file
  except FileNotFoundError:
    raise UserError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
  except (gzip.BadGzipFile, EOFError, zlib.error):
    raise UserError(f"{path}: not a whole gzip file; make it again") from None
  except OSError as error:
    raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def lines(path: str, file: BinaryIO) -> Iterator[str]:
  """Yield decoded lines with their ends; only \\n ends one.

  Raises:
    UserError: a line is not UTF-8, or is longer than `LINE`.
  """
  for number, line in enumerate(iter(lambda: file.readline(LINE + 1), b""), start=1):
    if len(line) > LINE:
      raise UserError(
        f"{path}, line {number}: longer than {LINE >> 20} MiB; only \\n ends a line, is it text?"
      )
    try:
      text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
      raise UserError(f"{path}, line {number}: not valid UTF-8; save the file as UTF-8") from None
    if number == 1 and "\0" in text:
      raise UserError(f"{path}, line 1: holds a zero byte; is it UTF-16? Save the file as UTF-8")
    yield text


def blocks(path: str) -> Iterator[bytes]:
  """Read a file of running text in blocks, byte for byte but for a byte order mark.

  Raises:
    UserError: it cannot be read, is empty or blank, or is no text in UTF-8.
  """
  decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
  with opened(path) as file:
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
      file.seek(0)
    while block := file.read(BLOCK):
      try:
        decoder.decode(block)
      except UnicodeDecodeError as error:
        line += block.count(b"\n", 0, max(error.start, 0))
        raise UserError(f"{path}, line {line}: not valid UTF-8; save the file as UTF-8") from None
      if (at := block.find(b"\0")) >= 0:
        line += block.count(b"\n", 0, at)
        raise UserError(f"{path}, line {line}: holds a zero byte; is it text in UTF-8?")
      line += block.count(b"\n")
      yield block
  if decoder.getstate()[0]:
    raise UserError(f"{path}, line {line}: ends within a character; is it whole?")


def check_length(text: str, what: str) -> None:
  """Raise UserError for a text, named `what`, that is too long to become tokens."""
  long = f"{len(text):,} letters" if len(text) > LONGEST else ""
  if not long and len(text) > WORD and (word := writing.longest_word(text)) > WORD:
    long = f"a word of {word:,} letters"
  if long:
    raise UserError(f"{what} has {long}, which is too long; split the text or remove it")


def _json_lines(path: str, file: BinaryIO, wanted: Wanted) -> Records:
  for number, line in enumerate(lines(path, file), start=1):
    if not line.strip():
      continue
    if reading.count(line) > VALUES:
      raise UserError(f"{path}, line {number}: more than {VALUES:,} values; split it")
    way_out = "each line must be one, as DataFrame.to_json writes them with lines=True"
    try:
      record = json.loads(line, object_pairs_hook=by_name)
    except json.JSONDecodeError as error:
      record = None
      if "control character" in error.msg:
        way_out = f"write {line[error.pos]!r} in a text as JSON does, by a backslash"
    except ValueError:
      record = None
    except RecursionError:
      raise UserError(f"{path}, line {number}: nested too deeply to be read") from None
    if not isinstance(record, dict):
      raise UserError(f"{path}, line {number}: not a JSON object; {way_out}")
    yield f"line {number}", record


def _separated(path: str, file: BinaryIO, wanted: Wanted) -> Records:
  """Read rows below a header; "NA" and "null" are texts like any other."""
  separator, quotes = ("\t", quoting(path)) if _ending(path) == ".tsv" else (",", "doubled")
  return separated.rows(path, lines(path, file), wanted, separator, quotes)


def _parquet(path: str, file: BinaryIO, wanted: Wanted) -> Records:
  import pyarrow
  from pyarrow import parquet

  number = itertools.count(1)
  if path.endswith(".gz"):  # Parquet is read from its end, which seeking would unzip repeatedly
    file = io.BytesIO(file.read())
  try:
    others = by_name((name, None) for name in parquet.read_schema(file).names)  # not read
    both = ["translation"] if wanted else []  # a column that may hold both sides of a pair
    for batch in reading.batches(path, file, [*wanted, *both]):
      columns = [column.to_pylist() for column in batch.columns]
      for values in zip(*columns, strict=True):
        named = zip(batch.schema.names, values, strict=True)
        yield f"row {next(number)}", others | {k: v for k, v in named if others[k] is None}
  except (pyarrow.ArrowException, OSError, ValueError, OverflowError):
    raise UserError(f"{path}: not a whole Parquet file; make it again") from None


_READERS = {
  ".jsonl": _json_lines,
  ".json": _json_lines,
  ".csv": _separated,
  ".tsv": _separated,
  ".parquet": _parquet,
}
TABLES = tuple(_READERS)  # the endings of the names of tables


def _ending(path: str) -> str:
  return Path(path.removesuffix(".gz")).suffix.lower()
