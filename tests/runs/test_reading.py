"""Small files that stand for more than memory holds are refused before they are unpacked."""

import gzip
import io
import json
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from posexp import reading
from posexp.errors import UserError
from posexp.tasks.text_classification import TextClassification

LAUGHS = "a0: &a0 [x]\n" + "".join(
  f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 20)}]\n" for i in range(1, 9)
)
REPEATED = f"a: &a [{'1,' * 1000}]\n" + "".join(f"b{i}: *a\n" for i in range(101))
YAML = [
  (LAUGHS, "values"),
  (REPEATED, "values"),
  ("&a [*a]", "alias"),
  ("a: *b", "alias"),
  ("&a [[[[[1]]]]]\n", None),
  ("a: &a [[[[1]]]]\nb: [[[[*a]]]]\n", "deeply"),
  ("[" * 8 + "]" * 8, None),
  ("[" * 9 + "]" * 9, "deeply"),
  ("[" * 100_000, "deeply"),
  ("- " * 100_000, "deeply"),
  (":".join(["1"] * 1000), "digits"),
  ("!!timestamp x", r"."),
  ("a: !!int", r"."),
  ("!!python/object/apply:os.system ['true']", "constructor"),
  ("a: &a {b: 1}\nc: {<<: *a, d: 2}", None),
]


@pytest.mark.parametrize(("text", "message"), YAML, ids=range(len(YAML)))
def test_yaml_is_bounded_in_depth_and_values(text, message):
  if message is None:
    assert reading.parse_yaml(text)
    return
  with pytest.raises(ValueError, match=message):
    reading.parse_yaml(text)


def test_json_is_bounded_in_values():
  assert reading.parse(b'{"a": [1, 2]}', most=5) == {"a": [1, 2]}
  for text in (b"[1, 2, 3, 4, 5, 6]", b"[[[[[[1]]]]]]", b"{" * 6, b"[" * 100_000):
    with pytest.raises(ValueError, match=r"values|deeply|property"):
      reading.parse(text, most=5 if len(text) < 100 else 10**6)


def test_files_are_read_up_to_their_bounds(tmp_path, monkeypatch):
  monkeypatch.setitem(reading.BOUNDS, "config.yaml", 3)
  path = tmp_path / "config.yaml"
  path.write_bytes(b"abc")
  assert reading.read(path) == b"abc"
  path.write_bytes(b"abcd")
  with pytest.raises(UserError, match=r"config\.yaml: more than 3 bytes"):
    reading.read(path)
  with path.open("r+b") as file:
    file.truncate(1 << 40)  # of zeros that take no room on the disk
  with pytest.raises(UserError, match="more than 3 bytes"):
    reading.read(path)
  assert len(reading.tail(path)) == reading.TAIL


def npz(**members):
  """An npz file; each member is a header's shape and type, and the bytes after it."""
  whole = io.BytesIO()
  with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
    for name, (shape, kind, body) in members.items():
      header = io.BytesIO()
      about = {"descr": kind, "fortran_order": False, "shape": shape}
      np.lib.format.write_array_header_1_0(header, about)
      file.writestr(f"{name}.npy", header.getvalue() + body)
  return whole.getvalue()


def test_arrays_are_no_larger_than_what_is_there(monkeypatch):
  whole = io.BytesIO()
  given = {"text": np.array("x"), "place": np.arange(5), "4": np.ones((0, 3), "<f4")}
  np.savez_compressed(whole, **given)
  found = reading.arrays(whole.getvalue())
  assert found.keys() == given.keys()
  assert all(np.array_equal(found[name], given[name]) for name in given)
  for data in (
    npz(a=((10**13,), "<i8", b"")),
    npz(a=((10**30,), "<i8", b"")),
    npz(a=((-1, -8), "<i8", bytes(64))),
    npz(a=((1,), "|O", bytes(8))),
    npz(a=((2,), "<i8", bytes(24))),
    b"PK\x03\x04" + bytes(100),
    b"",
  ):
    with pytest.raises(ValueError, match=r"."):
      reading.arrays(data)
  monkeypatch.setitem(reading.BOUNDS, ".npz", 1000)
  with pytest.raises(ValueError, match=r"."):
    reading.arrays(npz(a=((100,), "<i8", bytes(800)), b=((100,), "<i8", bytes(800))))


def table(path, **columns):
  """A Parquet file; a column that is one value stands in each row by a dictionary."""
  rows = max(len(column) for column in columns.values() if isinstance(column, list))
  made = {
    name: column
    if isinstance(column, list)
    else pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [column])
    for name, column in columns.items()
  }
  parquet.write_table(pyarrow.table(made), path, compression="zstd")
  return path


def rows(path):
  return [
    row for batch in reading.batches(path, path.open("rb"), ["text"]) for row in batch.to_pylist()
  ]


def test_tables_are_unpacked_a_few_rows_at_a_time(tmp_path, monkeypatch):
  monkeypatch.setattr(reading, "ROOM", 1 << 16)
  monkeypatch.setattr(reading, "FEW", 100)
  long = "x" * 50_000
  path = table(tmp_path / "a.parquet", text=long, other=[[1]] * 100)
  sizes = [len(batch) for batch in reading.batches(path, path.open("rb"), ["text"])]
  assert sizes == [1] * 100
  assert rows(path) == [{"text": long}] * 100
  for columns, message in (
    ({"text": "x" * 70_000, "other": [1] * 9}, "the column 'text' is more than 50 times its size"),
    ({"text": ["x" * 40_000, "y" * 40_000]}, "the column 'text' is more than 50 times its size"),
    ({"text": "x", "other": [1] * 9_999}, "9,999 rows in .* bytes; part it"),
    ({"text": [["x"]]}, r"the column 'text' has list<.*> and no texts"),
  ):
    with pytest.raises(UserError, match=message.replace("> and", ">, and")):
      rows(table(tmp_path / "a.parquet", **columns))
  assert len(rows(table(tmp_path / "a.parquet", text="x", other=["x" * 70_000] * 9))) == 9


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_what_is_packed_a_thousandfold_is_refused(tmp_path, monkeypatch, ending):
  line = {"jsonl": json.dumps({"text": "x", "label": "a"}), "csv": "text,label", "parquet": "x"}
  path = tmp_path / f"a.{ending}.gz"
  path.write_bytes(gzip.compress((line[ending] + "\n").encode() * 100_000))
  task = TextClassification(train=str(path))
  monkeypatch.setattr(reading, "ROOM", 1 << 16)
  with pytest.raises(UserError, match=f"a.{ending}.gz: unpacked it is more than 50 times its size"):
    task.data_digest()
  if ending != "parquet":
    monkeypatch.setattr(reading, "RATIO", 10_000)
    task.data_digest()
