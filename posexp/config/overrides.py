"""Overrides, `option=value`, by Hydra's grammar; but a text keeps the spelling that was typed.

Hydra guesses the type of a value: 2026_11 is the number 202611, 1.10 is 1.1, NULL is nothing. Here
such a value is the text itself, which becomes a number or a switch where an option asks for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from hydra.core.override_parser.overrides_parser import (
  CommonTokenStream,
  InputStream,
  OverrideLexer,
  OverrideParser,
  create_functions,
)
from hydra.core.override_parser.overrides_visitor import HydraErrorListener, HydraOverrideVisitor
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from posexp.config.checks import MISREAD, brief, quoted, show, typed
from posexp.errors import UserError

UNREADABLE = HydraException, ArithmeticError, RecursionError, ValueError
OF_TEXTS = "choice", "shuffle"  # functions whose arguments are values, and no bounds of numbers


class _Visitor(HydraOverrideVisitor):
  """A visitor that keeps the spelling of values where Hydra would give another number or text."""

  guessing = False  # in the arguments of a function such as range(...)

  def visitPrimitive(self, ctx: Any) -> Any:
    value, text = super().visitPrimitive(ctx), ctx.getText().strip()
    if self.guessing or isinstance(value, str | QuotedString):
      return value
    endless = isinstance(value, float) and not math.isfinite(value)
    return text if endless or show(value) != text else value

  def visitFunction(self, ctx: Any) -> Any:
    before, self.guessing = self.guessing, ctx.getChild(0).getText() not in OF_TEXTS
    try:
      return super().visitFunction(ctx)
    finally:
      self.guessing = before


def _parsed(line: str) -> Override:
  """Return the override of a line; raise one of UNREADABLE if it cannot be read."""
  lexer = OverrideLexer(InputStream(line))
  parser = OverrideParser(CommonTokenStream(lexer))
  for each in (lexer, parser):
    each.removeErrorListeners()
    each.addErrorListener(HydraErrorListener())
  found = _Visitor(create_functions()).visit(parser.override())
  found.input_line = line
  source = line.partition("=")[2]
  if isinstance(found._value, str) and source != found._value == source.strip():
    found._value = QuotedString(source, Quote.double)  # with the blanks around it
  return found


def read(lines: Iterable[str]) -> list[Override]:
  """Parse override lines; return the overrides.

  A value that the grammar does not know is a text: `task.train=café (copie).csv`, `runs=a=b`.

  Raises:
    UserError: a line cannot be read, or can be read in more than one way.
  """
  return [_read(line) for line in lines]


def _read(line: str) -> Override:
  key, equals, value = line.partition("=")
  if not equals and not line.startswith("~"):
    raise UserError(f"{brief(key)}: write options as option=value, as in encoding=rpr")
  if not key.strip("+~ "):
    raise UserError(f"{brief(line)}: a name is missing before =, as in encoding={value or 'rpr'}")
  reasons = []
  for each in _readings(value):
    try:
      return _parsed(key + equals + each)
    except UNREADABLE as error:
      reasons.append(error)
  if not key.isascii():
    raise UserError(f"{brief(line)}: there is no such option; --help lists them") from reasons[0]
  if " while evaluating " in str(reasons[0]):  # choice()
    raise UserError(f"{brief(line)}: {reasons[0].__cause__}") from reasons[0]
  message = f"{brief(line)}: cannot be read; quote the value, as in {typed(key, value)}"
  raise UserError(message) from reasons[0]


def _readings(value: str) -> Iterator[str]:
  """Yield the ways to read a value: as it is, then with its texts in quotes."""
  yield value
  inner = value.strip()
  ends = inner[:1] + inner[-1:]
  parts = inner[1:-1].split(",") if ends == "[]" else inner.split(",")
  even = all(part.count(a) == part.count(b) for part in parts for a, b in ("[]", "{}", "()"))
  if (even or parts == [inner]) and not any(map(MISREAD.match, parts)):
    parts = [value] if parts == [inner] else [part.strip() for part in parts]
    listed = ",".join(map(quoted, parts))
    yield f"[{listed}]" if ends == "[]" else listed
