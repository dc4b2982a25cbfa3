"""Data sets of the hub: read once at their commit, kept on disk, and told apart."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import time

import hub
import pyarrow
import pyarrow.parquet
import pytest

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.data import sources
from posexp.data.hub import trouble
from posexp.errors import UserError
from posexp.tasks import make_task
from posexp.translation.corpus import Corpus

COMMIT = "0123456789" * 4
BRANCH = "refs/convert/parquet"
LABELED = [
  (f"{word} number {i}", label) for i in range(30) for word, label in (("good", 1), ("bad", 0))
]
PAIRS = [
  ("A man rides.", "Ein Mann fährt."),
  ('He said "NA"', "naïve \u2028 café"),
  ("one,two", "x"),
]
LOAD = """
import json, sys
from posexp.data import sources
from posexp.errors import UserError
from posexp.language.documents import documents
from posexp.tasks import tasks
for kind, options in json.loads(sys.argv[1]):
  task = tasks()[kind](**options)
  try:
    if kind == "language_modeling":
      read = documents(task)
      texts = {name: [part.decode() for part in split.parts] for name, split in read.items()}
      print(json.dumps(texts))
    else:
      print(json.dumps({name: list(split()) for name, split in sources.rows(task).items()}))
  except UserError as error:
    print(json.dumps(str(error)))
"""
CARD = b"""---
configs:
- config_name: de-en
  data_files:
  - split: train
    path: de-en/train-*
  - split: test
    path: de-en/test-*
- config_name: cs-en
  data_files:
  - split: train
    path: cs-en/train-*
---
"""


pytestmark = pytest.mark.usefixtures("own_cache")


def parquet(columns, features=None):
  table = pyarrow.table(columns)
  if features:
    table = table.replace_schema_metadata(
      {"huggingface": json.dumps({"info": {"features": features}})}
    )
  sink = io.BytesIO()
  pyarrow.parquet.write_table(table, sink)
  return sink.getvalue()


def classes(rows):
  """Labels as numbers with names, as the hub's Parquet files have them."""
  features = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
  }
  return parquet({"text": [a for a, _ in rows], "label": [b for _, b in rows]}, features)


def together(rows):
  """Both languages in one column."""
  return parquet({"translation": [{"de": b, "en": a} for a, b in rows]})


def json_lines(rows, *names):
  return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode()


CONVERTED = "iwslt2017-en-de"
REPOSITORIES = {
  "org/lines": {"train.jsonl": json_lines(LABELED, "text", "label")},
  "org/glue": {
    "data/train-00000-of-00001.parquet": classes(LABELED),
    "data/validation-00000-of-00001.parquet": classes(LABELED[:5]),
    "data/test-00000-of-00001.parquet": classes([(text, -1) for text, _ in LABELED]),
  },
  "org/columns": {
    "train.jsonl": json_lines(PAIRS, "en", "de"),
    "test.jsonl": json_lines(PAIRS[:1], "en", "de"),
  },
  "org/wmt": {
    "README.md": CARD,
    "de-en/train-00000-of-00002.parquet": together(PAIRS[:2]),
    "de-en/train-00001-of-00002.parquet": together([PAIRS[2], ("", "x")]),
    "de-en/test-00000-of-00001.parquet": together([PAIRS[0], ("x", "")]),
    "cs-en/train-00000-of-00001.parquet": together(PAIRS[:1]),
  },
  "Salesforce/wikitext": {
    "README.md": CARD.replace(b"de-en", b"wikitext-2-v1"),
    "wikitext-2-v1/train-00000-of-00001.parquet": parquet({"text": ["", " = A = \n", "", " x \n"]}),
    "wikitext-2-v1/test-00000-of-00001.parquet": parquet({"text": [" y \n", ""]}),
    "cs-en/train-00000-of-00001.parquet": parquet({"text": ["x"]}),
  },
  "org/iwslt": {"iwslt.py": b"raise SystemExit"},
  "org/plays": {"plays.py": b"raise SystemExit"},
  f"org/plays@{BRANCH}": {
    f"{CONVERTED}/{split}/0000.parquet": parquet({"de": [b for _, b in PAIRS[first:]]})
    for first, split in enumerate(["train", "test"])
  },
  f"org/iwslt@{BRANCH}": {
    f"{CONVERTED}/train/0000.parquet": together(PAIRS),
    f"{CONVERTED}/test/0000.parquet": together(PAIRS[1:]),
    "iwslt2017-en-fr/train/0000.parquet": together(PAIRS[:1]),
  },
}


def test_a_data_set_is_read_once_at_its_commit(tmp_path, monkeypatch):
  split = {"revision": COMMIT, "train": "train"}
  lines, glue = split | {"hub": "org/lines"}, split | {"hub": "org/glue"}
  columns = split | {"hub": "org/columns", "test": "test"}
  wmt = split | {"hub": "org/wmt", "subset": "de-en"}
  parts = {name: f"{CONVERTED}/{name}/*.parquet" for name in ("train", "test")}
  iwslt = {"hub": "org/iwslt", "revision": BRANCH} | parts
  wikitext = split | {"hub": "Salesforce/wikitext", "subset": "wikitext-2-v1", "text": "text"}
  wikitext |= {"test": "test"}
  plays = iwslt | {"text": "de", "hub": "org/plays"}
  lists, labeled = ([list(row) for row in rows] for rows in (PAIRS, LABELED))
  named = [[text, ("bad", "good")[label]] for text, label in LABELED]
  expected = [
    (lines, {"train": [[text, str(label)] for text, label in labeled]}),
    (glue | {"test": "validation"}, {"train": named, "test": named[:5]}),
    (glue | {"test": "test"}, "split test: its labels are hidden; choose another split"),
    (lines | {"hub": "org/absent"}, "task.hub=org/absent: cannot be loaded"),
    (columns, {"train": lists, "test": lists[:1]}),
    (wmt, {"train": [*lists, ["", "x"]]}),
    (iwslt, {"train": lists, "test": lists[1:]}),
    # A commit of the branch is as good as its name.
    (iwslt | {"revision": COMMIT[::-1]}, {"train": lists, "test": lists[1:]}),
    (wmt | {"test": "test"}, "task.hub=org/wmt, split test, row 2: the side 'de' is empty"),
    (wmt | {"subset": "ru-en"}, "task.hub=org/wmt: cannot be loaded"),
    (columns | {"validation": "dev"}, "no split 'dev'; it has train, test"),
    (columns | {"revision": "f" * 40}, "f" * 40),
    # An empty row of WikiText is a line of its files.
    (wikitext, {"train": [" \n", " = A = \n", " \n", " x \n"], "test": [" y \n", " \n"]}),
    (plays, {"train": [b for _, b in PAIRS], "test": [b for _, b in PAIRS[1:]]}),
    (wikitext | {"text": "txt"}, "split train, row 1: no column 'txt', but text; did you mean"),
  ]
  texts, pairs, running = "text_classification", "translation", "language_modeling"
  kinds = {"lines": texts, "glue": texts, "absent": texts, "plays": running, "wikitext": running}
  typed = [(kinds.get(options["hub"].partition("/")[2], pairs), options) for options, _ in expected]
  with hub.serve(REPOSITORIES, COMMIT) as endpoint:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-c", LOAD, json.dumps(typed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  for line, (_, wanted) in zip(done.stdout.splitlines(), expected, strict=True):
    found = json.loads(line)
    assert wanted in found if isinstance(wanted, str) else wanted == found

  # The hub is gone now; what was loaded is still there, and nothing else is.
  monkeypatch.setenv("HF_ENDPOINT", endpoint)
  for options in (columns, iwslt):
    assert list(sources.rows(Corpus(**options))["train"]()) == PAIRS
  with pytest.raises(UserError, match=r"does not answer .*task=translation .*task=numbers, which"):
    sources.rows(Corpus(**columns, source="de", target="en"))
  typed = ["task=text_classification", "task.hub=org/glue", f"task.revision={COMMIT}"]
  typed += ["task.train=train", "task.test=validation"]
  data = make_task(resolve(compose(typed))).prepare(tmp_path / "run")
  assert data.sizes["test"] == 5
  assert data.label_names == ("bad", "good")
  assert "the test split is the hub's split 'validation'" in data.notes


@pytest.mark.parametrize("hangs", [False, True])
def test_a_hub_that_does_not_answer_is_given_up_within_seconds(tmp_path, monkeypatch, hangs):
  monkeypatch.setattr("posexp.data.hub.PATIENCE", 0.5)
  with socket.create_server(("127.0.0.1", 0)) as silent:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    if not hangs:
      silent.close()
    task = make_task(resolve(compose(["task=trec"])))
    start = time.perf_counter()
    with pytest.raises(UserError, match=r"SetFit/TREC-QC: .* connect once .*task=text_.* task=mr"):
      task.prepare(tmp_path)
    assert time.perf_counter() - start < 60  # of a busy machine


def test_offline_by_choice_asks_nobody(monkeypatch):
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  with hub.serve({}, COMMIT) as endpoint:
    assert "HF_HUB_OFFLINE is set" in trouble(endpoint, "org/absent")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert trouble(endpoint, "org/absent") == ""  # a 404 is an answer


@pytest.mark.parametrize(
  ("broken", "said"),
  [
    ((500, b"oops"), "answers 500 at http"),
    ((200, b"<html>log in</html>"), "is not what answers at http"),
  ],
)
def test_a_hub_that_fails_is_one_sentence_at_once(tmp_path, monkeypatch, broken, said):
  with hub.serve({}, COMMIT, broken) as endpoint:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UserError) as error:
      make_task(resolve(compose(["task=trec"]))).prepare(tmp_path)
  assert f"the Hugging Face hub {said}" in str(error.value)
  assert re.search(r"or give files of your own with task=text_\w+ .* task=mr", str(error.value))
  assert len(str(error.value)) < 300
