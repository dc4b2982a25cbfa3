"""Tables in text: rows of fields between separators, perhaps in quotation marks.

In a .csv, quotation marks enclose fields. In a .tsv they are text, as in most published files, if
`quoting` does not find that the whole file encloses fields in them.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from posexp.config import nearest
from posexp.errors import UserError

LINE = 1 << 26  # bytes of the longest line, and letters of the longest field
SAMPLE = 200  # lines that tell what the first one is
# A field of a .tsv, in quotation marks (1) or without (2), and what ends it (3). Quotation marks
# within the first are doubled, or escaped by a backslash.
FIELDS = {
  "doubled": re.compile(rb'(?:"([^"]*+(?:""[^"]*+)*+)"|([^"\t\r\n]*+))(\t|\r\n?|\n|\Z)'),
  "escaped": re.compile(rb'(?:"((?:[^"\\]|\\.)*+)"|([^"\t\r\n]*+))(\t|\r\n?|\n|\Z)', re.DOTALL),
}


def rows(
  path: str, lines: Iterable[str], wanted: Mapping[str, str], separator: str, quotes: str
) -> Iterator[tuple[int, Iterable[tuple[str, str]]]]:
  """Reads the rows below a header: the line of each, and its fields with the names of columns.

  A first column without a name, as R writes row names, is named "". If all columns of `wanted` are
  numbers and none of them is in the header, the first row is data and columns are named 1, 2, ...

  Args:
    path: the file, for messages.
    lines: its decoded lines, with their ends.
    wanted: the columns that are going to be read, by the options that name them.
    separator: what stands between fields.
    quotes: how fields are quoted: "doubled", "escaped", or "" if quotation marks are text.

  Raises:
    UserError: a row is broken or of another length than the header, or the separator is another.
  """
  csv.field_size_limit(LINE)
  # A carriage return alone ends a line, too.
  parts = (part for line in lines for part in re.split(r"(?<=\r)(?=[^\n])", line))
  if quotes == "escaped":
    parts = (part.replace('\\"', '""') for part in parts)
  dialect = {"quoting": csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, "strict": True}
  head = [*itertools.islice(parts, SAMPLE)]
  _check_separator(path, head, separator, dialect, wanted.values())
  table = csv.reader(itertools.chain(head, parts), delimiter=separator, **dialect)
  quoted = bool(quotes) and next(filter(str.strip, head), "").startswith('"')
  begun, fresh, numbered = 1, True, False  # `begun` is the line on which a row begins
  try:
    header = next(filter(None, table), [])
    begun = table.line_num + 1
    if wanted and not set(wanted.values()) & set(header):
      numbers = [str(number) for number in range(1, len(header) + 1)]
      if set(wanted.values()) <= set(numbers):
        yield table.line_num, zip(numbers, header, strict=True)
        header, fresh = numbers, False
      else:
        _check_header(path, header, _sample(head, separator, dialect)[1:], wanted)
    for fields in table:
      if fresh and len(fields) == len(header) + 1 and fields[-1]:
        # Row names are numbers, or quoted as the header is; else it may be a text with a comma.
        numbered = fields[0].isdecimal()
        header = [""] * (numbered or quoted) + header
      if len(fields) != len(header) or (numbered and not fields[0].isdecimal()):
        if not any(map(str.strip, fields)):  # a blank line
          begun = table.line_num + 1
          continue
        raise UserError(
          f"{path}, line {table.line_num}: {len(fields)} fields where the header has "
          f"{len(header) - numbered}; quote a field that holds the separator"
        )
      yield table.line_num, zip(header, fields, strict=True)
      fresh, begun = False, table.line_num + 1
  except csv.Error as error:
    raise UserError(
      f"{path}, line {begun}: broken CSV: {error}; is a quote open, or one within a field not "
      "doubled?"
    ) from None


def _sample(lines: Iterable[str], separator: str, dialect: Mapping[str, Any]) -> list[list[str]]:
  """The rows of some lines that are not blank, up to the first that is broken."""
  found = []
  with contextlib.suppress(csv.Error):
    found.extend(filter(None, csv.reader(lines, delimiter=separator, **dialect)))
  return found


def _check_separator(
  path: str, head: list[str], separator: str, dialect: Mapping[str, Any], wanted: Collection[str]
) -> None:
  """Raises UserError for a header whose columns are separated by something else."""
  header = next(iter(_sample(head, separator, dialect)), [])
  if len(header) > 1 and (not wanted or set(wanted) & set(header)):
    return
  for other in ";,\t|".replace(separator, ""):
    found = next(iter(_sample(head, other, {"strict": True})), [])
    if len(found) > 1 and (len(header) < 2 or set(wanted) & set(found)):
      line = 1 + next(number for number, each in enumerate(head) if each.strip())
      raise UserError(
        f"{path}, line {line}: columns parted by {other!r}; part them by commas in a .csv, by tabs "
        "in a .tsv"
      )


def _check_header(
  path: str, header: list[str], below: list[list[str]], wanted: Mapping[str, str]
) -> None:
  """Raises UserError where it can be told why no wanted column is in the header."""
  if {f'"{name}"' for name in wanted.values()} & set(header):
    raise UserError(
      f"{path}: the header is quoted, but not all fields are quoted as in a CSV; double the "
      "quotation marks within fields, or write the file without those around fields"
    )
  columns = [*zip(header, *(row for row in below if len(row) == len(header)), strict=True)]
  if not _is_data(columns) or any(nearest(name, header) for name in wanted.values()):
    return
  order = [*range(1, len(columns) + 1)]
  if "text" in wanted:  # texts are long, and labels are few
    order.sort(key=lambda number: -sum(map(len, columns[number - 1])))
    order[1:] = sorted(order[1:], key=lambda number: len(set(columns[number - 1])))
  numbers = [f"task.{option}={at}" for option, at in zip(wanted, order, strict=False)]
  shown = ", ".join(name if len(name) < 40 else f"{name[:36]} ..." for name in header)
  raise UserError(
    f"{path}: no column {next(iter(wanted.values()))!r}, but {shown}, which looks like a row of "
    f"data; if the file has no header, choose columns by number, as in {' '.join(numbers)}"
  )


def _is_data(columns: list[tuple[str, ...]]) -> bool:
  """Whether the first cells of some columns are like those below them."""
  names = [column[0] for column in columns]
  if names in ([*map(str, range(start, start + len(names)))] for start in (0, 1)):
    return False
  for name, *rest in columns:
    sentence = len(name.split()) > 3 and len(name) * len(rest) < 3 * sum(map(len, rest))
    if name.strip() and (name in rest or sentence or re.fullmatch(r"-?[\d.]+", name)):
      return True
  return False


def quoting(file: BinaryIO) -> str:
  """Returns how a .tsv quotes its fields: "doubled", "escaped", or "" if quotation marks are text.

  All quotation marks of the file must enclose fields. In addition, the whole header is quoted, or
  the fields that are quoted are those that need it: fields with quotation marks, tabs or ends of
  lines in them, or all that have commas. Otherwise a text such as "Stop!" would lose its marks.
  """
  if not any(b'"' in block for block in iter(lambda: file.read(1 << 20), b"")):
    return ""
  for quotes, field in FIELDS.items():
    file.seek(0)
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
      file.seek(0)
    if _encloses(file, quotes, field):
      return quotes
  return ""


def _encloses(file: BinaryIO, quotes: str, field: re.Pattern[bytes]) -> bool:
  """Whether the quotation marks of a file enclose its fields, as `quoting` says."""
  record, columns, header = b"", 0, False
  needed = needless = across = commas = commas_outside = False
  mark = b'""' if quotes == "doubled" else b'\\"'
  for line in file:
    if columns and not record and b'"' not in line:
      commas_outside |= b"," in line
      continue
    record += line
    if (record.count(b'"') - (record.count(mark) if quotes == "escaped" else 0)) % 2:
      if len(record) > LINE:
        return False
      continue
    tabs, at, first = [part.count(b"\t") for part in record.splitlines()], 0, not columns
    while at < len(record):
      found = field.match(record, at)
      if found is None:
        return False
      inside, outside, end = found.groups()
      at = found.end()
      if first:
        header = inside is not None and (header or not columns)
        columns += 1
        first = end == b"\t"
      if inside is None:
        commas_outside |= b"," in outside
      elif re.search(rb"[\t\r\n]", inside):
        # Where each line has all columns, two texts may just have a quotation mark each.
        whole = set(tabs) == {columns - 1}
        across, needless = across or not whole, needless or whole
      elif mark in inside:
        needed = True
      elif b"," in inside:
        commas = True
      else:
        needless |= bool(inside)
    record = b""
  if record:
    return False
  return (
    header or across or ((needed or commas) and not needless and not (commas and commas_outside))
  )
