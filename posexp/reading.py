"""Files that somebody else may have written, read within bounds: of bytes, of values, of depth.

A file of a few kilobytes can stand for terabytes: packed, with one text in a thousand rows, by
aliases, or by a shape in its header. What is larger than anything that posexp writes is refused
before there is room for it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from posexp.errors import UserError, refused

if TYPE_CHECKING:
  import numpy as np
  import pyarrow

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
# The most bytes of a file, by its name or ending: at least ten times what posexp has ever written.
BOUNDS = {
  "config.yaml": MB,
  "summary.json": 16 * MB,
  "metrics.jsonl": 256 * MB,
  "tokenizer.json": 256 * MB,
  "_METADATA": 64 * MB,  # of a checkpoint, as are the next three
  "_CHECKPOINT_METADATA": MB,
  "_sharding": 64 * MB,
  "metrics": MB,
  ".pid": KB,
  ".sha256": 64 * KB,
  ".yaml": 16 * MB,
  ".npz": 256 * MB,
  ".parquet": 256 * MB,
}
OTHERS = GB  # the most bytes of any other file
TAIL = 64 * KB  # bytes at the end of a log that are read
DEPTH = 8  # levels of lists and mappings in what is read
VALUES = 10_000_000  # of JSON; 50 to 100 bytes of memory each
DIGITS = 1_000  # of a number in YAML
NODES = 100_000  # of YAML, those that an alias repeats among them
ROOM = 256 * MB  # that something packed may always take
RATIO = 50  # of its size that it may take beyond: texts are packed to a third or a tenth
FEW = 1_000_000  # rows that a table may always have; beyond, each takes a byte
ROWS = 16  # of a table in memory at a time; each may be long
PAGE = re.compile(rb"\x15([\x80-\xff]*[\0-\x7f])\x15([\x80-\xff]*[\0-\x7f])")  # its type, its size
# What Python raises, beside ValueError, where a packed file is damaged; RuntimeError: it is locked.
DAMAGED = LookupError, EOFError, OSError, TypeError, MemoryError, RuntimeError
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LOADER_OF_TEXTS = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # no and 1.10 stay as they are
SURROGATES = re.compile("[\ud800-\udfff]")  # letters that UTF-8 cannot hold


def read(path: Path) -> bytes | None:
  """Return the content of a file; None if there is none.

  Raises:
    UserError: a folder, a pipe or a device is in its place, it is larger than any such file, or it
      cannot be read.
  """
  most = BOUNDS.get(path.name) or BOUNDS.get(path.suffix, OTHERS)
  try:
    check(path)
    with path.open("rb") as file:
      size = os.fstat(file.fileno()).st_size
      data = file.read(size) if size <= most else b""  # room for `most` would be taken at once
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise refused(error) from error
  except MemoryError:
    raise UserError(f"{path}: there is no memory to read it") from None
  if size > most:
    raise UserError(f"{path}: more than {most:,} bytes, which is no such file; move it away")
  return data


def tail(path: Path) -> bytes:
  """Return the end of a file; nothing if there is none. UserError as `read`."""
  try:
    check(path)
    with path.open("rb") as file:
      file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
      return file.read(TAIL)
  except (FileNotFoundError, NotADirectoryError):
    return b""
  except OSError as error:
    raise refused(error) from error


def check(path: Path) -> None:
  """Raise UserError if a path is a folder, or a pipe or device, which could be read endlessly."""
  with contextlib.suppress(OSError):  # who opens it says so
    if not stat.S_ISREG(path.stat().st_mode):
      raise UserError(f"{path}: this is no file; move away what is in its place")


def parse(data: bytes, most: int = VALUES, pairs: Callable[[list], Any] | None = None) -> Any:
  """Return the value of JSON in UTF-8; `pairs` makes an object of its names and values.

  Raises:
    ValueError: it is not JSON, nested too deeply, or has more than `most` values.
  """
  if count(data) > most:
    raise ValueError(f"more than {most:,} values")
  try:
    return json.loads(data.decode(), object_pairs_hook=pairs)
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def count(data: bytes | str) -> int:
  """Return how many values JSON has at most, by its commas and closed brackets."""
  marks: Any = ",]}" if isinstance(data, str) else (b",", b"]", b"}")
  return 1 + sum(map(data.count, marks))


def parse_yaml(
  text: str | bytes, depth: int = DEPTH, most: int = NODES, loader: Any = LOADER
) -> Any:
  """Return the plain value of YAML.

  Raises:
    ValueError: it is not YAML, is nested too deeply, or has more than `most` values, where what an
      alias repeats counts each time.
  """
  try:
    check_yaml(text, depth, most)
    return yaml.load(text, loader)
  except ValueError:
    raise
  except Exception as error:  # values with tags raise of any class
    raise ValueError(str(error)) from error


def check_yaml(text: str | bytes, depth: int, most: int) -> None:
  """Raise ValueError as `parse_yaml`, or YAMLError, before any value is made."""
  named: dict[str, tuple[int, int]] = {}  # how many values an anchor stands for, and levels
  # Of the whole, and of each open collection: its anchor, the values and the levels in it.
  anchors, counts, levels = [None], [0], [0]

  def add(anchor: str | None, count: int, level: int) -> None:
    counts[-1], levels[-1] = counts[-1] + count, max(levels[-1], level)
    if anchor:
      named[anchor] = count, level

  for event in yaml.parse(text, LOADER):
    if isinstance(event, yaml.CollectionStartEvent):
      anchors.append(event.anchor)
      counts.append(0)
      levels.append(0)
    elif isinstance(event, yaml.CollectionEndEvent):
      add(anchors.pop(), counts.pop() + 1, levels.pop() + 1)
    elif isinstance(event, yaml.ScalarEvent):
      if len(event.value) > DIGITS and not event.value.strip("0123456789_:.+-"):
        raise ValueError("a number of too many digits")  # 1:2:3 is one, and takes their square
      add(event.anchor, 1, 0)
    elif isinstance(event, yaml.AliasEvent):
      if event.anchor not in named:
        raise ValueError("an alias of nothing, or within what it names")
      add(None, *named[event.anchor])
    if sum(counts) > most:
      raise ValueError(f"more than {most:,} values")
    if len(counts) - 1 + levels[-1] > depth:
      raise ValueError("nested too deeply")


def is_plain(value: Any, depth: int = DEPTH) -> bool:
  """Return whether a value consists of text, numbers, booleans, lists and mappings.

  They are nested in at most `depth` levels, their text has no surrogates, and a float can hold
  their numbers.
  """
  if isinstance(value, dict):
    return is_plain([*value], depth) and is_plain([*value.values()], depth)
  if isinstance(value, list):
    return depth > 0 and all(is_plain(part, depth - 1) for part in value)
  if isinstance(value, str):
    return not SURROGATES.search(value)
  if isinstance(value, int):
    return abs(value) < 2**1000
  return value is None or isinstance(value, float)


def is_number(value: Any) -> bool:
  """Return whether a value is an int or float, not a bool, that a float can hold."""
  return isinstance(value, float) or (type(value) is int and is_plain(value))


def room(packed: int) -> int:
  """Return the most bytes to which this many bytes of a file may be unpacked."""
  return max(ROOM, RATIO * packed)


class Unpacked(io.RawIOBase):
  """A stream of the unpacked content of `file`, which takes `packed` bytes on disk.

  Reading beyond `room(packed)` bytes raises a UserError that names the `path`.
  """

  def __init__(self, path: str, file: gzip.GzipFile, packed: int):
    self._path, self._file, self._most = path, file, room(packed)

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    return self._file.seek(offset, whence)

  def tell(self) -> int:
    return self._file.tell()

  def readinto(self, buffer: Any) -> int:
    count = self._file.readinto(buffer)
    if self._file.tell() > self._most:
      raise UserError(
        f"{self._path}: unpacked it is more than {RATIO} times its size; give it unpacked"
      )
    return count


def arrays(data: bytes) -> dict[str, np.ndarray]:
  """Return the arrays of an npz file, whose headers must not claim more than there is.

  Raises:
    ValueError: it is damaged, or unpacked it is larger than any file of posexp.
  """
  import numpy as np
  from numpy.lib import format

  by_name, left = {}, BOUNDS[".npz"]
  try:
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
      for member in whole.infolist():
        with whole.open(member) as file:
          version = format.read_magic(file)
          header = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
          shape, _, kind = header[version](file)
          size, there = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
          left -= member.file_size
          if kind.hasobject or size != there or left < 0 or min(shape, default=0) < 0:
            raise ValueError(f"{member.filename}: {size} bytes in {there}")
          by_name[member.filename.removesuffix(".npy")] = np.frombuffer(
            file.read(), kind, math.prod(shape)
          ).reshape(shape)
  except (*DAMAGED, zipfile.BadZipFile, zlib.error) as error:
    raise ValueError(str(error)) from error
  return by_name


def batches(
  path: str | Path, file: BinaryIO, wanted: Collection[str] = (), most: int | None = None
) -> Iterator[pyarrow.RecordBatch]:
  """Yield the rows of a Parquet file, a few at a time; columns that are not `wanted` are left out.

  Raises:
    UserError: there are more than `most` rows, or unpacked it is far larger than the file.
    pyarrow.ArrowException, OSError, ValueError: it is damaged.
  """
  import pyarrow
  from pyarrow import parquet

  size = file.seek(0, os.SEEK_END)
  table = parquet.ParquetFile(file)
  if table.metadata.num_rows > (most or max(FEW, size)):
    raise UserError(f"{path}: {table.metadata.num_rows:,} rows in {size:,} bytes; part it")
  names = table.schema_arrow.names
  chosen = [name for name in names if name in wanted or not wanted] or names[:1]
  for name in chosen:
    kind = table.schema_arrow.field(name).type
    parts = kind.fields if pyarrow.types.is_struct(kind) else [table.schema_arrow.field(name)]
    if any(pyarrow.types.is_nested(part.type) for part in parts):
      raise UserError(f"{path}: the column {name!r:.60} has {kind!s:.60}, and no texts or numbers")
  for group in range(table.num_row_groups):
    rows = min([ROWS, *_rows(path, file, table.metadata.row_group(group), chosen)])
    yield from table.iter_batches(rows, [group], chosen)


def _rows(path: str | Path, file: BinaryIO, group: Any, chosen: Collection[str]) -> Iterator[int]:
  """Yield, for each chosen column of a row group, how many of its rows may be unpacked at once.

  Each row may repeat any text of a column's dictionary, which is the column's first page, so the
  size of this page limits the number of rows.

  Raises:
    UserError: a column, or its first page, is far larger unpacked than in the file.
  """
  for number in range(group.num_columns):
    column = group.column(number)
    path_in = column.path_in_schema  # of a part of a column: "translation.en"
    if not any(path_in == name or path_in.startswith(f"{name}.") for name in chosen):
      continue
    begin = column.data_page_offset
    if 0 < (column.dictionary_page_offset or 0) < begin:
      begin = column.dictionary_page_offset
    file.seek(begin)
    page = PAGE.match(file.read(20))
    size = _number(page[2]) if page else 0
    most = room(column.total_compressed_size)
    if max(size, column.total_uncompressed_size) > most:
      raise UserError(
        f"{path}: unpacked the column {column.path_in_schema!r:.60} is more than {RATIO} times its "
        "size; write it without compression"
      )
    yield max(1, ROOM // max(1, size))


def _number(digits: bytes) -> int:
  """Return the nonnegative number in a zigzag varint of Thrift: 7 bits a byte, the lowest first."""
  return sum((digit & 127) << 7 * place for place, digit in enumerate(digits)) >> 1
