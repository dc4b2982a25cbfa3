"""Files that a task cannot read: one sentence names the file, the line and a way out.

Each row is the options of a task, the files that are there (None: it is not), and what is said.
"""

import gzip

import pytest

from posexp.diagnostics.scan import Scan
from posexp.errors import UserError
from posexp.language.task import LanguageModeling
from posexp.tasks.text_classification import TextClassification
from posexp.translation.corpus import Corpus

# Texts with labels, in a file that is read as text and label.
CLASSES = [
  ("a.jsonl", None, r"a\.jsonl: there is no such file \(looked in "),
  ("a.jsonl", b"\n \n", "a.jsonl: the file is empty"),
  ("a.csv", b"text,label\n", "no rows"),
  (
    "a.csv",
    gzip.compress(b"text,label\nx,1\n", mtime=0),
    "a.csv: compressed by gzip; give it a name",
  ),
  ("a.txt", b"x", r"must end in \.jsonl"),
  (
    "a.jsonl",
    b'{"text": "x", "label": 1}\n{"text": "y"\n',
    r"a\.jsonl, line 2: not a JSON object",
  ),
  ("a.jsonl", b"[1]\n", "line 1: not a JSON object; each line must be one, as DataFrame.to_json"),
  ("a.csv", b"\nsep=|\ntext|label\nx\n", "line 4: 1 fields where the header has 2"),
  ("a.jsonl", b'{"txt": "x", "label": 1}', r"no column 'text', but txt, label; .*task\.text=txt"),
  ("a.csv", b"text,kind\nx,1\n", r"line 2: no column 'label', but text, kind; set task\.label"),
  ("a.jsonl", b'{"text": "x", "label": null}', "line 1: the label is None"),
  ("a.jsonl", b'{"text": 5, "label": 1}', "line 1: the text is 5"),
  ("a.jsonl", b'{"text": "\\ud83d", "label": 1}', "line 1: not valid UTF-8, or half"),
  ("a.csv", b"text,label\nx,1\ny\n", r"line 3: 1 fields where the header has 2"),
  ("a.csv", b"text,label\nx,1\ny\rz,1\n", r"line 3: 1 fields .* alone \(\\r\) ends line 3"),
  ("a.tsv", b"text\tlabel\r\nx\t1\rz\r\n", r"line 3: 1 fields .* alone \(\\r\) ends line 2"),
  ("a.csv", b"text,label\rx,1\ry\r", "line 3: 1 fields .*; quote a field"),
  ("a.jsonl", b'{"text": "x\ry"}\n', r"not a JSON object; write '\\r' in a text as JSON does"),
  ("a.csv", b'text,label\n"x,1\ny,2\n', "broken CSV"),
  ("a.csv", b"text,label\nx,1\n\xff\xfe,1\n", r"a\.csv, line 3: not valid UTF-8"),
  ("a.csv", b"text,label\nWell, x,1\nOh, y,2\n", "line 2: 3 fields where the header has 2"),
  ("a.csv", b"text,label\n3, x,1\nOh, y,2\n", "line 3: 3 fields where the header has 2"),
  ("a.csv", b"TEXT,Label\nx,1\n", "did you mean task.text=TEXT task.label=Label?"),
  (
    "a.csv",
    b"a b c d,1\nx y z u v,2\n",
    "if the file has no header, .* task.text=1 task.label=2",
  ),
  ("a.csv", b"review,class\nx,1\n", "set task.text to one of them, or, if the file has no"),
  ("a.tsv", b'"text"\t"label"\n"a "x" b"\t"1"\n', "quotation marks are text here"),
  ("a.csv", "text,label\nx,1\n".encode("utf-16"), "line 1: not valid UTF-8; save the file as"),
  ("a.csv", "text,label\nx,1\n".encode("utf-16-le"), "line 1: holds a zero byte; is it UTF-16?"),
  ("a.csv", "text,label\nné,1\n".encode("latin-1"), "line 2: not valid UTF-8; save the file as"),
  ("a.jsonl.gz", gzip.compress(b'{"text": "x"}' * 99, mtime=0)[:-9], "not a whole gzip file"),
  ("a.parquet", b"not parquet", "not a whole Parquet file"),
]
# Running text, in a file; in a table, with the column of the text.
TEXTS = [
    ("a.txt", "", {}, r"a\.txt: the file is empty"),
    ("a.txt", "ab", {}, "the train split has 1 bytes of text; give more text$"),
    ("a.txt", "abc", {}, "validation split has 0 bytes of text; give more text or set task.valid"),
    ("a.txt", b"one\ntwo\n\xff\n", {}, r"a\.txt, line 3: not valid UTF-8"),
    ("a.txt", b"one\n\xe6\xbc", {}, r"a\.txt, line 2: ends within a character"),
    ("a.txt", b"one\ntw\0o", {}, r"a\.txt, line 2: holds a zero byte"),
    ("a.txt.gz", gzip.compress(b"text" * 999)[:-20], {}, r"a\.txt\.gz: not a whole gzip file"),
    ("a.jsonl", '{"x": "y"}\n', {"text": "said"}, r"a\.jsonl, line 1: no column 'said', but x"),
    ("a.jsonl", '{"x": ""}\n{"x": null}', {"text": "x"}, "the train split has 0 bytes of text"),
]  # fmt: skip
TWO = b'{"en": "one", "de": "eins"}\n{"en": "two", "de": "zwei"}\n'
# Pairs of sentences: the files of the test split, where both sides must be there.
PAIRS = [
  ({"a.jsonl": TWO + b'{"en": "x", "de": " "}'}, r"a\.jsonl, line 3: the side 'de' is empty"),
  ({"a.jsonl": TWO + b'{"en": null, "de": "x"}'}, r"a\.jsonl, line 3: the side 'en' is empty"),
  ({"a.jsonl": TWO + b'{"en": 5, "de": "x"}'}, r"line 3: the side 'en' is 5; it must be a str"),
  ({"a.jsonl": TWO + b'{"en": "x", "ger": "x"}'}, r"line 3: no column 'de', but en, ger; set ta"),
  ({"a.jsonl": TWO + b'{"en": "x", "DE": "x", "dev": ""}'}, r"did you mean task\.target=DE"),
  ({"a.jsonl": b'{"translation": {"en": "x"}}'}, r"line 1: no column 'de', but en; set task\.ta"),
  ({"a.en": b"1\n2\n3\n", "a.de": b"1\n2"}, r"a\.de has 2 lines, but a\.en has more; each line"),
  ({"a.en": b"1\n", "a.de": b"1\n2\n3\n"}, r"a\.en has 1 lines, but a\.de has more"),
  ({"a.en": b"1\n2\n", "a.de": b"1\n\n3\n"}, r"a\.de, line 2: the side 'de' is empty"),
  ({"a.en": b"1\n2\n", "a.de": b"1\n\xff\n"}, r"a\.de, line 2: not valid UTF-8"),
  ({"a.en": b"1\n"}, r"task\.test=a: there is no a\.de \(looked in .*\.jsonl, .*parallel"),
  ({"a.de": b"1\n"}, r"task\.test=a: there is no a\.en "),
]
# Commands of SCAN, in a file of training and of testing.
COMMANDS = [
  ("IN: walk OUT: I_WALK\nwalk\tI_WALK\n", r"line 2: not of the form IN: jump twice OUT: I_"),
  ("IN: hop OUT: I_WALK\n", "line 1: SCAN has no 'hop', but and, after,"),
  ("IN: walk OUT: walk\n", "line 1: SCAN has no 'walk', but I_WALK,"),
  ("\n", "the file is empty"),
  ("IN: walk OUT: I_WALK\n", "too few commands, as the validation split would have none"),
]


def cases():
  for name, content, message in CLASSES:
    yield TextClassification(train=name), {name: content}, message
  for name, content, more, message in TEXTS:
    yield LanguageModeling(train=name, **more), {name: content}, message
  for files, message in PAIRS:
    name = next(iter(files))
    name = name if name.endswith("l") else "a"
    yield Corpus(train="good.jsonl", test=name), files | {"good.jsonl": TWO}, message
  for text, message in COMMANDS:
    yield Scan(train="tasks.txt", test="tasks.txt"), {"tasks.txt": text}, message


@pytest.mark.parametrize(("task", "files", "message"), [*cases()])
def test_bad_files_are_named_with_the_line(tmp_path, monkeypatch, task, files, message):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  for name, content in files.items():
    if content is not None:
      (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
  with pytest.raises(UserError, match=message) as error:
    task.prepare(tmp_path / "run")
  assert "\n" not in str(error.value)
  assert not list((tmp_path / "cache").rglob("*.tmp"))  # nothing half done
