"""Numbers, years and dates, written out in two languages: translation where order is all.

They are generated, and need no files.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np

from posexp import storage
from posexp.config import nearest
from posexp.config.checks import Name, Whole, between
from posexp.data.splits import draw, key
from posexp.errors import UserError, check_installed
from posexp.translation.task import Splits, Translation, Vocabulary

YEARS = range(1000, 2100)  # never drawn as numbers, so that no text has two translations
DAYS = range(datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal())
SHARE = 0.2  # of the examples that are dates, and that are years, of which there are only 1,100,
# unless an option says otherwise
HELD_OUT = 0.05  # the share of the values in validation, and in test
BEYOND = 300  # numbers at most for each count of digits beyond training
FEWEST = 200  # examples; with fewer, a split might be empty
PLACES = 15  # at most: for longer numbers, languages lack words

Triple = tuple[str, str, str]  # source, target, group


def generate(task: Numbers) -> dict[str, list[Triple]]:
  """Return train, validation, test and beyond: rows of source text, target text and group.

  The first three share `examples` rows. Their numbers have at most `places` digits, of which 1 to
  `digits` are not zero; those of beyond have as many nonzero digits as `beyond` says, so that known
  words make sentences longer than any in training. A value's split is a function of the value: the
  same in each language, for each seed and each number of examples. The group is "numbers", "years"
  or "dates", and in beyond the count of nonzero digits.

  Raises:
    UserError: there is no such language, or it lacks words.
  """
  sides = [_writers(task.source, "source"), _writers(task.target, "target")]
  random = np.random.default_rng(task.data_seed)
  years, days = (
    (values.start + random.permutation(len(values))[: round(share * task.examples)]).tolist()
    for values, share in ((YEARS, task.years), (DAYS, task.dates))
  )
  numbers = _numbers(task.drawn_numbers, task.digits, task.places, random)
  values = [("numbers", value) for value in numbers] + [("years", value) for value in years]
  values += [("dates", datetime.date.fromordinal(day)) for day in days]

  splits = {name: [] for name in ("train", "validation", "test", "beyond")}
  for i in random.permutation(len(values)).tolist():
    group, value = values[i]
    splits[_split(value)].append((*(write[group](value) for write in sides), group))
  for count in dict.fromkeys(task.beyond):
    wanted = min(BEYOND, _available(count, task.places))
    for value in _with_nonzero(count, task.places, wanted, random):
      splits["beyond"].append((*(write["numbers"](value) for write in sides), str(count)))
  return splits


def languages() -> list[str]:
  """Return the languages that have words for numbers, years and dates."""
  import num2words

  return [code for code in sorted(num2words.CONVERTER_CLASSES) if _known(code)]


def _writers(code: str, option: str) -> dict[str, Callable[[Any], str]]:
  """Return, by group, the function that writes a value in the language that `option` names."""
  if not _known(code):
    known = languages()
    near = nearest(code, known)
    raise UserError(
      f"task.{option}={code}: the generator has no such language"
      + (f" (did you mean {near}?)" if near else "")
      + f"; it has {', '.join(known)}"
    )

  import num2words

  # Most of the time would go to names of larger numbers, which are tried for each part of a number.
  converter = copy.copy(num2words.CONVERTER_CLASSES[code])
  if cards := getattr(converter, "cards", None):
    converter.cards = {number: card for number, card in cards.items() if number < 10**PLACES}

  def words(value: int, form: str) -> str:
    try:
      return getattr(converter, f"to_{form}")(value)
    except Exception as error:  # each language fails in its own way where it has no words
      raise UserError(
        f"task.{option}={code}: this language has no words for {value}; "
        "choose a smaller task.places or another language"
      ) from error

  return {
    "numbers": functools.partial(words, form="cardinal"),
    "years": functools.partial(words, form="year"),
    "dates": functools.partial(_date, code=code),
  }


def _known(code: str) -> bool:
  import babel
  import num2words

  if code not in num2words.CONVERTER_CLASSES:  # num2words itself would take en for en_XX
    return False
  try:
    babel.Locale.parse(code)
    num2words.num2words(YEARS[0], lang=code, to="year")
    num2words.num2words(90_210, lang=code)
  except Exception:  # each converter fails in its own way where it has no words
    return False
  return True


def _date(day: datetime.date, code: str) -> str:
  from babel.dates import format_date

  form = "full" if draw(key(day.isoformat()), "format") < 0.5 else "long"
  return format_date(day, form, locale=code)


def _split(value: int | datetime.date) -> str:
  drawn = draw(key(str(value)), "numbers")
  return "test" if drawn < HELD_OUT else "validation" if drawn < 2 * HELD_OUT else "train"


def _numbers(wanted: int, digits: int, places: int, random: np.random.Generator) -> list[int]:
  """Draw distinct numbers, with each count of nonzero digits equally often if there are enough."""
  available = {count: _available(count, places) for count in range(1, digits + 1)}
  numbers = []
  # What the scarcest counts lack is shared by the rest.
  for i, count in enumerate(sorted(available, key=available.get)):
    share = min(available[count], -(-(wanted - len(numbers)) // (digits - i)))
    numbers += _with_nonzero(count, places, share, random)
  return numbers


def _with_nonzero(count: int, places: int, wanted: int, random: np.random.Generator) -> list[int]:
  """Draw `wanted` distinct numbers with exactly `count` nonzero digits, none of them a year."""
  numbers: dict[int, None] = {}
  size = 2 * wanted + 100
  while len(numbers) < wanted:
    # The places with the smallest draws get a digit, the others zero.
    chosen = random.random((size, places)).argsort(axis=1).argsort(axis=1) < count
    values = (random.integers(1, 10, (size, places)) * chosen) @ 10 ** np.arange(places)
    numbers |= dict.fromkeys(value for value in values.tolist() if value not in YEARS)
  return list(numbers)[:wanted]


def _available(count: int, places: int) -> int:
  """Return how many numbers, except years, have `count` nonzero digits in `places` places."""
  years = sum(len(str(year).replace("0", "")) == count for year in YEARS if year < 10**places)
  return math.comb(places, count) * 9**count - years


@dataclasses.dataclass(frozen=True)
class Numbers(Translation):
  """Numbers, years and dates, written out in two languages."""

  score: ClassVar[str] = "validation/chrf"  # BLEU looks for four words in a row
  headline: ClassVar[tuple[str, ...]] = ("test/exact_match", "beyond/exact_match")

  name: Name = "numbers"
  vocab_size: Vocabulary = 400
  examples: Annotated[int, between(FEWEST, 1_000_000)] = 20_000
  digits: int = 5
  places: Annotated[int, between(1, PLACES)] = 9
  beyond: tuple[int, ...] = (6, 7, 8, 9)
  data_seed: Whole = 0
  years: Annotated[float, between(0, 1)] = SHARE
  dates: Annotated[float, between(0, 1)] = SHARE

  @property
  def drawn_numbers(self) -> int:
    """The count of the examples that are numbers, neither years nor dates."""
    shares = (YEARS, self.years), (DAYS, self.dates)
    return self.examples - sum(min(len(v), round(share * self.examples)) for v, share in shares)

  def __post_init__(self):
    check_installed("task=numbers", "numbers", "num2words", "babel")
    super().__post_init__()
    if self.years + self.dates > 1:
      raise ValueError(f"dates must be at most 1 - years={self.years}, not {self.dates}")
    if not 1 <= self.digits <= self.places:
      raise ValueError(f"digits must be from 1 to places={self.places}, not {self.digits}")
    for count in self.beyond:
      if not self.digits < count <= self.places:
        raise ValueError(
          f"beyond must hold counts above digits={self.digits} and up to places={self.places}, not "
          f"{count}"
        )
    available = sum(_available(count, self.places) for count in range(1, self.digits + 1))
    if (wanted := self.drawn_numbers) > available:
      raise ValueError(
        f"examples must be fewer: {wanted:,} of them would be numbers, but only {available:,} have "
        f"up to {self.digits} nonzero digits in {self.places} places"
      )

  def splits(self):
    names = ("examples", "digits", "places", "beyond")
    options = {name: getattr(self, name) for name in names} | {"seed": self.data_seed}
    if (shares := (self.years, self.dates)) != (SHARE, SHARE):
      options["shares"] = shares
    makers = [importlib.metadata.version(package) for package in ("num2words", "babel", "numpy")]
    parts = makers, self.source, self.target, options
    rows = storage.cached("numbers", lambda: generate(self), *parts)
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    # There may be nothing beyond.
    by_split = {split: functools.partial(iter, own) for split, own in rows.items() if own}
    return Splits(by_split, [], digest)
