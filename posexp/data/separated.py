"""Tables in text: rows of fields between separators, perhaps in quotation marks.

In a .csv, quotation marks enclose fields. In a .tsv they are text, as in most published files,
unless `quoting` finds that the whole file encloses fields in them.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from posexp.data.splits import within
from posexp.errors import UserError

LINE = 1 << 26  # bytes of the longest line, and letters of the longest field
RECORD = 10_000  # lines of a row of a .tsv
AHEAD, MOST = 20, 1 << 20  # lines and letters that show what separates fields
NAMES = 1_000  # row names of which none may occur twice
TWICE = object()  # the value of a column that a row has more than once

# A quoted field of a .tsv, and what need not be quoted there unless it has commas.
QUOTED = re.compile(rb'(?<![^\t\r\n])"((?:[^"]|"")*+)"(?![^\t\r\n])')
PLAIN = re.compile(rb'[^"\t\r\n]*')


def by_name(columns: Iterable[tuple[str, Any]]) -> dict[str, Any]:
  """Return a row of named values; TWICE stands for those that share a name."""
  columns = list(columns)
  row = dict(columns)
  if len(row) < len(columns):
    counts = Counter(name for name, _ in columns)
    row |= {name: TWICE for name, count in counts.items() if count > 1}
  return row


def rows(
  path: str, lines: Iterable[str], wanted: Collection[str], separator: str, quotes: str
) -> Iterator[tuple[str, dict]]:
  """Read the rows below a header: the place of each, and its fields by the names of columns.

  A first column without a name, as R writes row names, is named "". If all columns of `wanted` are
  numbers and not all of them are in the header, the first row is data and columns are named 1, 2,
  ...

  Args:
    path: the file, for messages.
    lines: its decoded lines, with their ends.
    wanted: the columns that are going to be read.
    separator: what usually separates fields; the header may show that it is something else.
    quotes: how fields are quoted: "doubled", "escaped", or "" if quotation marks are text.

  Raises:
    UserError: a row is broken or of another length than the header.
  """
  parts = _parts(lines, quotes)
  skipped, line = next((each for each in enumerate(parts) if each[1].strip()), (0, ""))
  if re.fullmatch(r'"?sep=[,;\t|]"?\s*', line):  # for Excel, which shows no such row
    skipped, line = skipped + 1, next(parts, "")
  csv.field_size_limit(LINE)
  ahead = [*within(itertools.islice(parts, AHEAD), MOST)]
  best = _separator([line, *ahead], wanted, separator, quotes)
  parts = itertools.chain(["\n"] * skipped, [line], ahead, parts)
  ends: deque[tuple[int, str]] = deque(maxlen=3)  # of the last lines, with their numbers
  form = _form(best, separator, quotes)
  table = csv.reader(_noted(parts, ends), strict=True, **form)
  begun, fresh, numbered = 1, True, False  # `begun` is the line on which a row begins
  known: set[str] = set()  # the first row names
  try:
    header = next(filter(None, table), [])
    numbers = [str(number) for number in range(1, len(header) + 1)]
    if set(wanted) <= set(numbers) and not set(wanted) <= set(header):
      yield f"line {table.line_num}", by_name(zip(numbers, header, strict=True))
      header, fresh = numbers, False
    begun = table.line_num + 1
    for fields in table:
      if fresh and len(fields) == len(header) + 1 and fields[-1]:
        # Row names are numbers, or quoted as the header is; else it may be a text with a comma.
        # What may be a number with a decimal comma is none.
        ambiguous = best == "," and fields[1].isdecimal() and not line.startswith('"')
        numbered = fields[0].isdecimal() and not ambiguous
        header = [""] * (numbered or (bool(quotes) and line.startswith('"'))) + header
      fits = len(fields) == len(header)
      if fits and (not numbered or (fields[0].isdecimal() and fields[0] not in known)):
        known.update([fields[0]] * (numbered and len(known) < NAMES))
        yield f"line {table.line_num}", by_name(zip(header, fields, strict=True))
        fresh = False
      elif any(map(str.strip, fields)):
        raise UserError(
          f"{path}, line {table.line_num}: {len(fields)} fields where the header has "
          f"{len(header) - numbered}; {_cause(ends, line, begun)}"
        )
      begun = table.line_num + 1
  except csv.Error as error:
    way_out = "is a quote open, or one within a field not doubled?"
    raise UserError(f"{path}, line {begun}: broken CSV: {error}; {way_out}") from None


def _form(separator: str, usual: str, quotes: str) -> dict[str, Any]:
  """Return how csv reads fields; quotation marks are text if there are no `quotes`."""
  marks = quotes or separator != usual
  return {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if marks else csv.QUOTE_NONE}


def _separator(lines: Sequence[str], wanted: Collection[str], usual: str, quotes: str) -> str:
  """Return what separates the header into the most columns that are wanted, or else into any.

  Without such a column there may be no header: then it is what separates all lines into one number
  of fields and, as it does not in a text, stands before no blank.
  """
  names = {each: lines[0].strip().replace('"', "").split(each) for each in f"{usual},\t;|"}
  least = max((int(each) for each in wanted if each.isdecimal()), default=2)

  def fits(separator: str) -> bool:
    sizes = {*map(len, filter(None, csv.reader(lines, **_form(separator, usual, quotes))))}
    return len(sizes) == 1 and min(sizes) >= least

  if {*wanted}.isdisjoint(itertools.chain(*names.values())) and (fitting := [*filter(fits, names)]):
    return min(fitting, key=lambda each: all(f"{each} " in line for line in lines if line.strip()))
  return max(names, key=lambda each: (len({*wanted} & {*names[each]}), len(names[each]) > 1))


def _parts(lines: Iterable[str], quotes: str) -> Iterator[str]:
  """Yield lines, cut also after a lone carriage return, with escaped quotation marks doubled."""
  parts = (part for line in lines for part in re.split(r"(?<=\r)(?=[^\n])", line))
  return (part.replace('\\"', '""') for part in parts) if quotes == "escaped" else parts


def _noted(lines: Iterable[str], ends: deque[tuple[int, str]]) -> Iterator[str]:
  """Yield lines, and add to `ends` the number and the last character of each."""
  for number, line in enumerate(lines, start=1):
    ends.append((number, line[-1:]))
    yield line


def _cause(ends: Iterable[tuple[int, str]], header: str, begun: int) -> str:
  """Return why the row that begins on a line may have too few or too many fields."""
  stray = next((at for at, end in ends if end == "\r" and at >= begun - 1), None)
  if stray and "\n" in (header[-1:], *(end for _, end in ends)):
    return f"a carriage return alone (\\r) ends line {stray}: take it out"
  return "quote a field that holds the separator, and write numbers with a decimal point"


def quoting(file: BinaryIO) -> str:
  """Return how a .tsv quotes its fields: "doubled", "escaped", or "" if quotation marks are text.

  All quotation marks of the file must enclose fields. In addition, the header is quoted, or lines
  cannot be rows otherwise, or the fields that are quoted are those that need it: fields with
  quotation marks in them, or all that have commas. A text such as "Stop!" keeps its marks.
  """
  if not has_marks(file):
    return ""
  for quotes in ("doubled", "escaped"):
    file.seek(0)
    if _encloses(_records(file, escaped=quotes == "escaped")):
      return quotes
  return ""


def has_marks(file: BinaryIO) -> bool:
  """Return whether the rest of a file has a quotation mark."""
  return any(b'"' in block for block in iter(lambda: file.read(1 << 20), b""))


def _records(file: BinaryIO, *, escaped: bool) -> Iterator[bytes]:
  """Yield lines, joined until every quotation mark is closed, or there are more than `RECORD`."""
  record, marks = [], 0
  for line in file:
    line = line.replace(b'\\"', b'""') if escaped else line
    record.append(line)
    marks += line.count(b'"')
    if marks % 2 == 0 or len(record) > RECORD:
      yield b"".join(record)
      record, marks = [], 0
  yield b"".join(record)


def _encloses(records: Iterator[bytes]) -> bool:
  """Return whether the quotation marks of records enclose fields, as `quoting` says."""
  header = next(records).removeprefix(codecs.BOM_UTF8)
  comma = ragged = False  # a field with commas is not quoted; lines are no rows
  plain = set()  # whether fields have commas that are quoted, but for those that must be
  for record in itertools.chain([header], records):
    rest = QUOTED.sub(b"", record)
    if b'"' in rest:
      return False
    comma |= b"," in rest
    if quoted := QUOTED.findall(record):
      plain |= {b"," in field for field in quoted if PLAIN.fullmatch(field)}
      tabs = [line.count(b"\t") for line in record.splitlines()]
      if set(tabs) != {header.count(b"\t")}:
        ragged = True
      elif len(tabs) > 1:  # two texts may just have a quotation mark each
        plain.add(False)
  return header.startswith(b'"') or ragged or not (False in plain or (comma and True in plain))
