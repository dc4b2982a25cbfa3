"""Pairs of sentences: own files, the hub, and how they are split."""

import gzip
import json

import pandas
import pytest

from posexp.data import sources, splits
from posexp.errors import UserError
from posexp.tasks.translation import Corpus, full

PAIRS = [
  ("A man rides a bicycle.", "Ein Mann fährt Fahrrad."),
  ('He said "NA"', "naïve \u2028 café \x85 \U0001f600"),
  ("one,two", "x"),
]


pytestmark = pytest.mark.usefixtures("own_cache")


def json_lines(rows):
  return "".join(json.dumps({"de": b, "en": a, "id": 1}) + "\n" for a, b in rows).encode()


@pytest.mark.parametrize("ending", ["jsonl.gz", "csv", "together.jsonl", "together.parquet"])
def test_tables_keep_every_text_as_it_is(tmp_path, ending):
  table = pandas.DataFrame([{"de": b, "en": a} for a, b in PAIRS])
  if "together" in ending:  # both in one column
    table = pandas.DataFrame({"translation": table.to_dict("records")})
  path = tmp_path / f"a.{ending}"
  if ending.endswith("parquet"):
    table.to_parquet(path)
  elif ending == "csv":
    table.to_csv(path, index=False)
  else:
    table.to_json(path, orient="records", lines=True, force_ascii=False)
  split = sources.rows(Corpus(train=str(path)))["train"]
  assert list(split()) == list(split()) == PAIRS
  backwards = sources.rows(Corpus(train=str(path), source="de", target="en"))["train"]
  assert list(backwards()) == [(b, a) for a, b in PAIRS]


@pytest.mark.parametrize(("end", "zipped"), [("\n", False), ("\r\n", False), ("\n", True)])
def test_parallel_files_are_parted_by_line_feeds_alone(tmp_path, end, zipped):
  for i, language in enumerate(("en", "de")):
    content = end.join(pair[i] for pair in PAIRS).encode()
    path = tmp_path / (f"train.{language}.gz" if zipped else f"train.{language}")
    path.write_bytes(gzip.compress(content) if zipped else content)
  assert list(sources.rows(Corpus(train=str(tmp_path / "train")))["train"]()) == PAIRS


def test_a_split_is_read_line_by_line(tmp_path):
  """A mistake far behind does not show before it is reached."""
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(gzip.compress(json_lines(PAIRS * 2_000) + b"{"))
  rows = sources.rows(Corpus(train=str(path)))["train"]()
  assert [next(rows) for _ in range(3)] == PAIRS
  with pytest.raises(UserError, match=r"line 6001: not a JSON object"):
    list(rows)


TWO = json_lines(PAIRS[:2])


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ({"a.jsonl": TWO + b'{"en": "x", "de": " "}'}, r"a\.jsonl, line 3: the side 'de' is empty"),
    ({"a.jsonl": TWO + b'{"en": null, "de": "x"}'}, r"a\.jsonl, line 3: the side 'en' is empty"),
    ({"a.jsonl": TWO + b'{"en": 5, "de": "x"}'}, r"line 3: the side 'en' is 5; it must be a str"),
    ({"a.jsonl": TWO + b'{"en": "x", "ger": "x"}'}, r"line 3: no column 'de', but en, ger; set ta"),
    ({"a.jsonl": TWO + b'{"en": "x", "DE": "x", "dev": ""}'}, r"did you mean task\.target=DE"),
    (
      {"a.jsonl": b'{"translation": {"en": "x"}}'},
      r"line 1: no column 'de', but en; set task\.tar",
    ),
  ],
)
def test_bad_tables_are_named_with_the_line(tmp_path, content, message):
  ((name, text),) = content.items()
  (tmp_path / name).write_bytes(text)
  read = sources.rows(Corpus(train=str(tmp_path / name), test=str(tmp_path / name)))
  with pytest.raises(UserError, match=message) as error:
    list(read["test"]())
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ({"en": b"1\n2\n3\n", "de": b"1\n2"}, r"a\.de has 2 lines, but \S*a\.en has more; each line"),
    ({"en": b"1\n", "de": b"1\n2\n3\n"}, r"a\.en has 1 lines, but \S*a\.de has more"),
    ({"en": b"1\n2\n", "de": b"1\n\n3\n"}, r"a\.de, line 2: the side 'de' is empty"),
    ({"en": b"1\n2\n", "de": b"1\n\xff\n"}, r"a\.de, line 2: not valid UTF-8"),
    ({"en": b"1\n", "de": b""}, r"a\.de: the file is empty"),
    ({"en": b"1\n"}, r"task\.test=\S*a: there is no \S*a\.de \(looked in .*\.jsonl, .*parallel"),
    ({"de": b"1\n"}, r"task\.test=\S*a: there is no \S*a\.en "),
  ],
)
def test_bad_parallel_files_are_named(tmp_path, content, message):
  for language, text in content.items():
    (tmp_path / f"a.{language}").write_bytes(text)
  given = Corpus(train="good.jsonl", test=str(tmp_path / "a"))
  with pytest.raises(UserError, match=message) as error:
    list(sources.rows(given)["test"]())
  assert "\n" not in str(error.value)


def test_the_digest_is_that_of_the_contents_and_the_direction(tmp_path):
  for folder in ("x", "y"):
    (tmp_path / folder).mkdir()
    for i, language in enumerate(("en", "de")):
      (tmp_path / folder / f"t.{language}").write_text("\n".join(pair[i] for pair in PAIRS))
  first = sources.identity(Corpus(train=str(tmp_path / "x/t")))
  assert sources.identity(Corpus(train=str(tmp_path / "y/t"))) == first
  assert sources.identity(Corpus(train=str(tmp_path / "y/t"), source="de", target="en")) != first
  (tmp_path / "y/t.de").write_text("other")
  assert sources.identity(Corpus(train=str(tmp_path / "y/t"))) != first
  hubs = (Corpus(hub="a/b", revision=40 * each, train="train") for each in "cd")
  assert len({*map(sources.identity, hubs)}) == 2


def many(count, prefix="text"):
  return [(f"{prefix} {i}", f"Text {i}") for i in range(count)]


PAIRED = {"rows": "pairs", "texts": "sources", "keep": full}


def arranged(**given):
  streams = {name: lambda rows=rows: iter(rows) for name, rows in given.items()}
  parts, notes = splits.arrange(streams, **PAIRED)
  return {name: list(part()) for name, part in parts.items()}, notes


def test_what_is_held_out_is_as_in_classification_and_equal_sources_share_a_split():
  train = [*many(500), ("Same, text!", "a"), ("same TEXT", "b"), ("", "x"), ("y", " ")]
  parts, notes = arranged(train=train)
  expected, _ = splits.arrange({"train": lambda: iter(train[:-2])})
  assert parts == {name: list(part()) for name, part in expected.items()}
  assert list(parts) == ["train", "validation", "test"]
  assert 25 < len(parts["test"]) < 75
  assert notes == [
    "2 training pairs have an empty side and are dropped",
    "the test split is a tenth of the training pairs, held out by content hash",
    "the validation split is a tenth of the training pairs, held out by content hash",
  ]


def test_what_was_arranged_once_is_not_read_again():
  train = [*many(300), ("", "x")]
  first, notes = splits.arrange({"train": lambda: iter(train)}, digest="d", **PAIRED)
  again, same = splits.arrange({"train": lambda: iter(train[:2])}, digest="d", **PAIRED)
  assert same == notes
  assert len(notes) == 3
  assert set(again["train"]()) <= set(first["train"]())
  given = {name: lambda: iter(train) for name in ("train", "validation", "test")}
  assert splits.arrange(given, digest="d", **PAIRED)[1] != notes
