"""Data of others: damaged at random, without end, or with letters that upset a terminal.

    POSEXP_FUZZ=3600 POSEXP_SEED=1 python -m pytest tests/data/test_hostile_data.py

goes on for so many seconds in each of the random tests, with that seed.
"""

import csv
import gzip
import io
import json
import os
import re
import time
import types
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fuzz import rounds
from seed import some

from posexp.data import files, sources, word_vectors
from posexp.errors import UNPRINTABLE, UserError, printable
from posexp.tasks.text_classification import TextClassification
from posexp.translation.corpus import Corpus

ROWS = [(f"word{i % 7} und {i}, naïve 漢字", "ab"[i % 2]) for i in range(40)]
KINDS = (".jsonl", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.gz", ".parquet.gz", "")


def table(columns, rows, kind):
  """The bytes of a table."""
  if kind.startswith(".parquet"):
    file = io.BytesIO()
    pyarrow.parquet.write_table(
      pyarrow.table(dict(zip(columns, zip(*rows, strict=True), strict=True))), file
    )
    content = file.getvalue()
  elif kind.startswith(".json"):
    lines = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
    content = "\n".join(lines).encode()
  else:
    file = io.StringIO()
    csv.writer(file, delimiter="\t" if kind == ".tsv" else ",").writerows([columns, *rows])
    content = file.getvalue().encode()
  return gzip.compress(content, mtime=0) if kind.endswith(".gz") else content


def damaged(content, rng):
  """Bytes that are flipped, cut, dropped, repeated, swapped, or made up."""
  content = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 9))):
    i, j = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    j = rng.choice((j, min(i + 3, len(content))))
    part = bytes(content[i:j])
    match rng.randrange(6):
      case 0:
        content[i:j] = bytes(each ^ 1 << rng.randrange(8) for each in part)
      case 1:
        del content[i:j]
      case 2:
        content[i:j] = part * rng.choice((2, 3, 50))
      case 3:
        content[i:j] = bytes(len(part))
      case 4:
        content[i:j] = rng.randbytes(rng.choice((1, 4, 99)))
      case 5:
        words = (
          b'" \r \n , {} [ ] null NaN \\ud800 \\u0000 \xff \xef\xbb\xbf 1e999 "text": \t \x1b[2J \0'
        )
        content[i:i] = rng.choice(words.split(b" "))
  return bytes(content)


def read(task):
  """All rows of the training split, or what a user reads instead."""
  try:
    return list(sources.rows(task)["train"]())
  except UserError as error:
    return str(error)


def test_random_damage_of_data_is_read_or_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  whole = {kind: table(("text", "label"), ROWS, kind) for kind in KINDS if kind}
  tried = read_at_all = 0
  for rng in rounds(200):
    kind = rng.choice(KINDS)
    task = TextClassification(train=f"t{kind}") if kind else Corpus(train="t")
    names = [f"t{kind}"] if kind else ["t.en", "t.de"]
    for name in names:
      good = whole[kind] if kind else "".join(f"{row[0]}\n" for row in ROWS).encode()
      Path(name).write_bytes(damaged(good, rng))
    before = [Path(name).read_bytes() for name in names]
    found = read(task)
    if isinstance(found, str):
      assert found.startswith(tuple(names)), found
      assert not UNPRINTABLE.search(found)
      assert len(found) < 2_500
    else:
      assert all(isinstance(each, str) for row in found for each in row)
      assert not kind or all(label.strip() for _, label in found)
      "".join(map("".join, found)).encode()
    assert [Path(name).read_bytes() for name in names] == before
    tried, read_at_all = tried + 1, read_at_all + (not isinstance(found, str))
  assert 0 < read_at_all < tried


def row(text, label=1):
  return json.dumps({"text": text, "label": label})


LONG = "x" * 10_000_000
SIZES = [
  (row(LONG), "line 3: the text has 10,000,000 letters"),
  (row("a b " * 100_000), "line 3: .*400,000 .*set task.max_length"),
  (row("a b " * 600_000), "line 3: .*2,400,000 letters, which is too"),
  (row("x", LONG), "line 3: the label has 10,000,000 letters"),
  (row(10**4_000), "line 3: the text is 1000"),
  (json.dumps({LONG: "x"}), "line 3: no column 'text', but xxx.*set task.text to one of them$"),
  ("[" * 10_000_000, "line 3: nested too deeply"),
  ('{"text": "x", "label": 1, "text": "y"}', "line 3: the column 'text' stands there twice"),
  (row("x", "\u3000"), r"line 3: the label is '\\u3000'; it must be a text"),
  (row("x", float("nan")), "line 3: the label is nan; it must be"),
  (
    '{"text": "x", "\\u001b[2J\\n": 1}',
    r"line 3: no column 'label', but text, '\\x1b\[2J\\n'; set",
  ),
  ("x" * (2**26 + 1), "line 3: longer than 64 MiB"),
]


@pytest.mark.parametrize(("line", "message"), SIZES, ids=range(len(SIZES)))
@pytest.mark.parametrize("ending", some(["", ".gz"], 1))
def test_a_line_without_bounds_is_named(tmp_path, line, message, ending):
  good = b'{"text": "x", "label": 1}\n\n'
  path = tmp_path / f"a.jsonl{ending}"
  with gzip.open(path, "wb", 1) if ending else path.open("wb") as file:
    file.writelines((good, line.encode(), b"\n"))
  task = TextClassification(train=str(path))
  begun = time.process_time()
  assert re.search(message, read(task)), read(task)
  assert time.process_time() - begun < 20


def test_what_is_no_file_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "a.jsonl")
  os.symlink("/dev/zero", tmp_path / "b.csv.gz")
  (tmp_path / "c.parquet").mkdir()
  os.symlink("d.tsv", tmp_path / "d.tsv")
  for name in os.listdir(tmp_path):
    with pytest.raises(UserError, match=r"not a regular file|cannot be read: "):
      TextClassification(train=f"{tmp_path}/{name}").data_digest()


def test_a_header_stays_in_its_lines(caplog):
  from posexp.training import terminal

  caplog.set_level("INFO", "posexp")
  text = "x\n\x1b[2J\u202e"
  data = types.SimpleNamespace(
    sizes={"train": 1}, about=(text, text), unit="texts", notes=(text,), length=8
  )
  config = {"encoding": text, text: {text: text}, "model": {"match": "none"}, "seed": 0}
  config |= {"task": {"name": text}, "train": {"batch_size": 1, "warmup": 1, "steps": 1}}
  facts = dict.fromkeys(("parameters", "flops_per_token", "steps"), 1)
  facts |= {"parameters_of_none": 1, "flops_per_token_of_none": 1}
  facts |= {"attention": text, "devices": text}
  spec = types.SimpleNamespace(size=types.SimpleNamespace(about=lambda match: text), notes=(text,))
  terminal.header(config, data, spec, facts, Path(text), {text: text})
  assert len(caplog.messages) == 11
  assert "train.warmup=1 is no shorter" in caplog.messages[-1]
  assert not any(UNPRINTABLE.search(line) for line in caplog.messages)


def test_names_in_wandb_are_short_and_in_one_line(tmp_path):
  from posexp.wandb.run import Wandb

  folder = tmp_path / "a\nb" / "seed=0"
  (folder / "wandb").mkdir(parents=True)
  (folder / "wandb/id").write_text("../../x\n")
  config = {"encoding": "e\x1b" * 99, "task": {"name": "t\n" * 99}, "seed": 0}
  found = Wandb().settings(config, {}, folder)
  assert re.fullmatch(r"a_b-[0-9a-f]{8}", found["id"])
  assert Wandb().settings(config, {}, folder)["id"] == found["id"]
  assert max(map(len, (found["name"], found["group"]))) <= 128
  assert all(1 <= len(tag) <= 64 for tag in found["tags"])
  assert not any(UNPRINTABLE.search(name) for name in (found["name"], *found["tags"]))


def test_a_message_is_one_line_that_can_be_read():
  message = str(UserError(f"a\tb\r\n\x1b[1m {'x' * 10_000_000}\ud800: remove it"))
  assert message.startswith("a b  �[1m xxx")
  assert message.endswith("x�: remove it")
  assert len(message) < 2_000
  assert printable("日本\u200d 語") == "日本\u200d 語"


def test_a_line_of_many_small_parts_is_named(tmp_path, monkeypatch):
  from posexp.parsing import trees

  path = tmp_path / "a.jsonl"
  path.write_text(row("x") + "\n" + row([{}] * 99) + "\n")
  monkeypatch.setattr(files, "VALUES", 99)
  assert "line 2: more than 99 values; split it" in read(TextClassification(train=str(path)))
  path.write_text("word " + "1 " * 99 + "\n")
  monkeypatch.setattr(word_vectors, "WIDEST", 50)
  with pytest.raises(UserError, match=r"line 1: a vector of 100 numbers, where models take"):
    word_vectors.WordVectors.read(str(path), ["word"], 16, "the model")
  monkeypatch.setattr(trees, "DEEPEST", 50)
  path.write_text("(S " * 51)
  with pytest.raises(UserError, match=r"line 1: more than 50 brackets are open"):
    [*trees.read([str(path)])]
