"""Numbers, years and dates: what is generated, from the seed alone, and split by value."""

import collections
import datetime
import hashlib

import num2words
import pytest

from posexp.errors import UserError
from posexp.runs import bleu
from posexp.translation import number_words
from posexp.translation.number_words import Numbers

SIZES = {"examples": 2_000, "digits": 5, "places": 9, "beyond": (6, 9)}
HELD = ("train", "validation", "test")
SMALL = {num2words.num2words(number): number for number in range(1, 100)}
YEARS = {num2words.num2words(year, to="year"): year for year in range(1000, 2100)}


def generate(source="en", target="de", **options):
  return number_words.generate(Numbers(source=source, target=target, **SIZES | options))


@pytest.fixture(scope="module")
def splits():
  return generate()


def value(words: str) -> int:
  """The number that English words say; it knows nothing of the generator."""
  total = 0
  for part in words.replace(" and ", " ").replace(",", "").replace(" hundred", "-hundred").split():
    if part in ("thousand", "million", "billion"):
      scale = {"thousand": 10**3, "million": 10**6, "billion": 10**9}[part]
      total += total % 1000 * (scale - 1)
    elif part.endswith("-hundred"):
      total += 100 * SMALL[part.removesuffix("-hundred")]
    else:
      total += SMALL[part]
  return total


def nonzero(number: int) -> int:
  return sum(digit != "0" for digit in str(number))


def values(rows: list) -> set:
  """What the English side of each row says."""
  return {
    (group, value(text) if group == "numbers" else YEARS.get(text, text)) for text, _, group in rows
  }


def test_the_sides_say_the_same(splits):
  for name in HELD:
    for source, target, group in splits[name]:
      if group != "dates":
        form = "cardinal" if group == "numbers" else "year"
        number = value(source) if group == "numbers" else YEARS[source]
        assert num2words.num2words(number, to=form) == source
        assert num2words.num2words(number, lang="de", to=form) == target
  dates = [row for row in splits["train"] if row[2] == "dates"]
  assert any(", " in target for _, target, _ in dates)  # Mittwoch, 4. März 1987
  assert any(", " not in target for _, target, _ in dates)
  days = {"March": "März", "October": "Oktober", "Sunday": "Sonntag", "Wednesday": "Mittwoch"}
  for source, target, _ in dates:
    for english, german in days.items():
      assert (english in source) == (german in target)
    assert source.split()[-1] == target.split()[-1]  # the year


def test_shares(splits):
  rows = [row for name in HELD for row in splits[name]]
  assert len(rows) == 2_000
  groups = collections.Counter(group for *_, group in rows)
  assert groups == {"numbers": 1_200, "years": 400, "dates": 400}
  assert 60 < len(splits["validation"]) < 140
  assert 60 < len(splits["test"]) < 140
  counts = collections.Counter(
    nonzero(value(text)) for text, _, group in rows if group == "numbers"
  )
  assert counts[1] == 9 * 9 - 2  # all that there are, less 1000 and 2000, which are years
  assert sorted(counts) == [1, 2, 3, 4, 5]
  assert max(counts[count] for count in (2, 3, 4, 5)) <= min(counts[c] for c in (2, 3, 4, 5)) + 1


def test_no_text_and_no_value_stands_twice(splits):
  for rows in splits.values():
    assert len({source for source, *_ in rows}) == len(rows)
  said = [values(splits[name]) for name in HELD]
  assert sum(map(len, said)) == len(set.union(*said)) == 2_000
  assert not {n for kind, n in set.union(*said) if kind == "numbers"} & set(range(1000, 2100))


def test_beyond_has_longer_sentences_of_known_words(splits):
  words = {word for source, *_ in splits["train"] for word in source.replace(",", "").split()}
  lengths = collections.Counter(group for *_, group in splits["beyond"])
  assert lengths == {"6": 300, "9": 300}
  for source, target, group in splits["beyond"]:
    number = value(source)
    assert nonzero(number) == int(group)
    assert number < 10**9
    assert target == num2words.num2words(number, lang="de")
  assert {
    word for source, *_ in splits["beyond"] for word in source.replace(",", "").split()
  } <= words


def test_a_value_has_one_split_in_all_languages_sizes_and_seeds(splits):
  """The same on every machine, of which the seed decides: a change gives everybody other data."""
  first = repr([splits[name][0] for name in splits]).encode()
  assert hashlib.sha256(first).hexdigest()[:8] == "f1cb9c1c"
  french, smaller = generate(target="fr"), generate(examples=1_000)
  other = generate(data_seed=1, examples=1_000)
  assert other["train"] != smaller["train"]
  for name in HELD:
    assert [row[0] for row in french[name]] == [row[0] for row in splits[name]]
    for rival in set(HELD) - {name}:
      assert not values(splits[name]) & (values(smaller[rival]) | values(other[rival]))


def test_where_years_run_out_numbers_take_their_place():
  splits = generate(examples=5_600, beyond=())
  groups = collections.Counter(group for name in HELD for *_, group in splits[name])
  assert groups == {"numbers": 3_380, "years": 1_100, "dates": 1_120}
  assert splits["beyond"] == []


def test_the_shares_of_years_and_dates_are_options():
  for shares, group in (({"years": 0.0, "dates": 0.0}, "numbers"), ({"dates": 1.0}, "dates")):
    splits = generate(examples=300, beyond=(), **({"years": 0.0} | shares))
    assert {row[2] for name in HELD for row in splits[name]} == {group}
    assert sum(len(splits[name]) for name in HELD) == 300


@pytest.mark.parametrize(("source", "target"), [("fi", "ja"), ("pt_BR", "ar")])
def test_other_languages(source, target):
  splits = generate(source, target, examples=200)
  assert all(text.strip() for rows in splits.values() for row in rows for text in row)
  assert [len(splits["beyond"]), sum(len(splits[name]) for name in HELD)] == [600, 200]


def test_a_day_has_one_form_in_all_languages():
  day = datetime.date(1987, 3, 4)
  forms = {number_words._date(day, "en"): number_words._date(day, "de")}
  assert forms in (
    {"Wednesday, March 4, 1987": "Mittwoch, 4. März 1987"},
    {"March 4, 1987": "4. März 1987"},
  )


@pytest.mark.parametrize("code", ["xx", "tet", "sv", "am", "en_XX"])  # none; no dates; no years
def test_a_language_that_cannot_be_had(code):
  with pytest.raises(UserError, match=rf"^task.target={code}: .* it has ar, .*, de, en, .*, uk$"):
    generate(target=code)
  with pytest.raises(UserError, match=f"^task.source={code}: "):
    generate(code, "en")


def test_a_language_without_words_for_long_numbers():
  message = (
    r"^task\.target=te: this language has no words for \d{13,}; choose a smaller task\.places"
  )
  with pytest.raises(UserError, match=message):
    generate(target="te", examples=300, places=15)


def test_a_perfect_translation_has_bleu_100_or_none_in_every_language():
  day = datetime.date(1987, 3, 4)
  values = {"numbers": [8_090_901_108, 705_034_900, 7], "years": [1234, 1987], "dates": [day]}
  applies = set()
  for code in number_words.languages():
    write = number_words._writers(code, "target")
    found = {group: [write[group](each) for each in values[group]] for group in values}
    tokenize = bleu.tokenizer([text for texts in found.values() for text in texts], code)
    for group, texts in found.items():
      score = bleu.corpus(texts, texts, tokenize).get("bleu")
      assert score is None or score == pytest.approx(100), (code, group)
      applies |= {(code, group)} if score else set()
  assert {("en", "numbers"), ("ko", "years"), ("th", "years"), ("ja", "years")} <= applies
  assert ("de", "years") not in applies


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(UserError, match=r"num2words: type .* install 'posexp\[numbers\]'"):
    Numbers()
