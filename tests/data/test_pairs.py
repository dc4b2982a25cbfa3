"""Pairs of sentences: what files of one's own hold."""

import gzip
import json

import pandas
import pytest

from posexp.data import sources
from posexp.errors import UserError
from posexp.translation.corpus import Corpus

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


def test_sources_that_differ_in_case_are_two(tmp_path):
  texts = {"train": ("C1CCCCC1", "CCO"), "validation": ("N",), "test": ("c1ccccc1", "CCO")}
  for split, names in texts.items():
    (tmp_path / f"{split}.jsonl").write_bytes(json_lines((name, "x") for name in names))
  task = Corpus(**{split: str(tmp_path / f"{split}.jsonl") for split in texts})
  assert task.splits().notes == ["1 test source also stands in the training split"]


def test_a_split_is_read_line_by_line(tmp_path):
  """A mistake far behind does not show before it is reached."""
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(gzip.compress(json_lines(PAIRS * 2_000) + b"{"))
  rows = sources.rows(Corpus(train=str(path)))["train"]()
  assert [next(rows) for _ in range(3)] == PAIRS
  with pytest.raises(UserError, match=r"line 6001: not a JSON object"):
    list(rows)


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
