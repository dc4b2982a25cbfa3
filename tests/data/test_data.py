"""Tables and running text in files: what is read, and what is refused with its place."""

import csv
import hashlib
import io
import random

import pyarrow
import pyarrow.parquet
import pytest

from posexp.data import files, lines, sources
from posexp.errors import UserError
from posexp.tasks import text_classification
from posexp.tasks.text_classification import TextClassification


def read(path, text="text", label="label"):
  task = TextClassification(train=str(path), text=text, label=label)
  return list(sources.rows(task)["train"]())


def test_parquet_with_numbers_as_labels(tmp_path):
  path = tmp_path / "a.parquet"
  columns = {"sentence": ["x", None], "y": pyarrow.array([3, 10], pyarrow.int64())}
  pyarrow.parquet.write_table(pyarrow.table(columns), path)
  assert read(path, "sentence", "y") == [("x", "3"), ("", "10")]


def test_every_kind_of_line_ending_parts_rows(tmp_path):
  for end in ("\n", "\r\n", "\r"):
    (tmp_path / "a.csv").write_bytes(f'text,label{end}"x{end}",1{end}y,2'.encode())
    assert read(tmp_path / "a.csv") == [(f"x{end}", "1"), ("y", "2")]


XY = [("x", "1"), ("y", "2")]


@pytest.mark.parametrize(
  ("name", "content", "expected"),
  [
    ("a.csv", "\ufefftext,label\nx,1\ny,2\n", XY),
    ("a.csv", "text,label\r\nx,1\r\ny,2\r\n\r\n  \r\n,,\r\n", XY),
    # As Excel writes them where commas stand in numbers.
    ("a.csv", "\ufeffsep=;\r\ntext;label\r\nx;1\r\ny;2\r\n", XY),
    ("a.csv", '"sep=,"\ntext,label\nx,1\ny,2\n', XY),
    # Separated by something else, as the header shows.
    ("a.csv", 'text;label\n"x";1\ny;2\n', XY),
    ("a.csv", '"text"\t"label"\r\n"x"\t"1"\r\n"y"\t"2"\r\n', XY),
    ("a.tsv", 'text,label\n"x",1\ny,2\n', XY),
    ("a.csv", "label|text|a, b\n1|x|\n2|y|\n", XY),
    # As R writes them: with row names, and all texts quoted.
    ("a.csv", '"","text","label"\n"1","x","1"\n"2","y","2"\n', XY),
    ("a.csv", '"text","label"\n"Mazda RX4","x, or","1"\n', [("x, or", "1")]),
    ("a.tsv", "text\tlabel\n1\tx\t1\n2\ty\t2\n", XY),
    ("a.tsv", '"text"\t"label"\n"x"\t1\n"y"\t2\n', XY),
    ("a.tsv", '\ufeff"text"\t"label"\r"x"\t"1"\r"y"\t"2"\r', XY),
    ("a.tsv", '"text"\t"label"\n"1"\t"say \\"x\\""\t"1"\n', [('say "x"', "1")]),
    ("a.tsv", '"text"\t"label"\n"C:\\"\t"1"\n', [("C:\\", "1")]),
    # As pandas and Excel write them: quoted where a field needs it.
    ("a.tsv", 'text\tlabel\n"say ""x"""\t1\ny\t2\n', [('say "x"', "1"), ("y", "2")]),
    ("a.tsv", 'text\tlabel\n"x\ny"\t1\ny\t2\n', [("x\ny", "1"), ("y", "2")]),
    ("a.tsv", 'text\tlabel\n"x\ty"\t1\ny\t2\n', [("x\ty", "1"), ("y", "2")]),
    ("a.tsv", 'text\tlabel\n"x, y"\t1\ny\t2\n', [("x, y", "1"), ("y", "2")]),
    # Quotation marks that are text.
    ("a.tsv", 'text\tlabel\n"Stop!"\t1\ny\t2\n', [('"Stop!"', "1"), ("y", "2")]),
    ("a.tsv", 'text\tlabel\n"Oh, no"\t1\ny, z\t2\n', [('"Oh, no"', "1"), ("y, z", "2")]),
    ("a.tsv", 'text\tlabel\n"x ""y"""\t1\n5" y\t2\n', [('"x ""y"""', "1"), ('5" y', "2")]),
    ("a.tsv", 'text\tlabel\n"x\t1\ny"\t2\n', [('"x', "1"), ('y"', "2")]),
    ("a.tsv", 'text\tlabel\n""x""\t1\n"y\t2\n', [('""x""', "1"), ('"y', "2")]),
  ],
)
def test_tables_are_read_as_people_have_them(tmp_path, name, content, expected):
  (tmp_path / name).write_text(content, encoding="utf-8", newline="")
  assert read(tmp_path / name) == expected


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE])
def test_a_tsv_gives_back_what_was_written(tmp_path, quoting):
  draw = random.Random(0)
  letters = 'ab .,"\\' + ("é" if quoting == csv.QUOTE_NONE else "\n")
  for _ in range(60):
    texts = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(8)]
    # Among texts that are written as they are, one shows that no marks enclose fields.
    rows = [(text, draw.choice("01")) for text in [*texts, 'a 5" b']]
    with open(tmp_path / "a.tsv", "w", encoding="utf-8", newline="") as file:
      mark = None if quoting == csv.QUOTE_NONE else '"'
      write = csv.writer(file, "excel-tab", quoting=quoting, quotechar=mark, lineterminator="\n")
      write.writerows([("text", "label"), *rows])
    assert read(tmp_path / "a.tsv") == rows


def test_columns_without_a_header_are_chosen_by_number(tmp_path):
  path = tmp_path / "a.csv"
  path.write_text("pos,good film\nneg,bad film\npos,fine film\n")
  with pytest.raises(UserError, match=r"has no header, .*, as in task.text=1 task.label=2$"):
    read(path)
  assert read(path, "2", "1")[0] == ("good film", "pos")
  assert len(read(path, "2", "1")) == 3
  (note,) = files.notes(str(path), ["2", "1"])
  assert note == f"{path}: columns by number, so the first row is data: pos, good film"
  path.write_text("1,2\npos,good film\n")  # names, as pandas gives them
  assert read(path, "2", "1") == [("good film", "pos")]
  path.write_text("1,good film\n2,bad film\n")  # a label that is the number of a column
  assert read(path, "2", "1") == [("good film", "1"), ("bad film", "2")]


@pytest.mark.parametrize(
  "text",
  [
    "neg\tgood, bad\npos\tgood\n",
    "neg;good, bad\npos;so, so\n",
    '"neg";"good, bad"\n"pos";"so, so"\n',
    "neg,good; bad\npos,so; so\n",
    f"neg;{'good, ' * 40_000}\npos;so, so, so\n",  # longer than csv's own limit
  ],
)
def test_what_parts_columns_by_number_is_told_from_what_stands_in_texts(tmp_path, text):
  path = tmp_path / "a.csv"
  path.write_text(text)
  found = [record for _, record in files.records(str(path), ("2", "1"))]
  assert [each["1"] for each in found] == ["neg", "pos"]
  assert found[0]["2"].startswith("good")


def test_a_first_column_without_a_name_holds_the_names_of_rows_if_none_occurs_twice(tmp_path):
  path = tmp_path / "a.csv"
  path.write_text("label,text\n1,good film,2\n0,bad film,3\n")
  assert read(path) == [("2", "good film"), ("3", "bad film")]
  (note,) = files.notes(str(path), ["text", "label"])
  assert note == f"{path}: the first column has no name, and is taken for the names of rows"
  path.write_text("label,text\n1,good film, really\n1,bad film, sorry\n")
  with pytest.raises(UserError, match="line 3: 3 fields where the header has 2; quote a field"):
    read(path)


def test_how_quotation_marks_are_read_is_part_of_the_digest(tmp_path):
  found = set()
  for content in ('text\tlabel\n"""x"""\t1\n', "text\tlabel\nx\t1\n"):
    (tmp_path / "a.tsv").write_text(content)
    bare = hashlib.sha256(content.encode()).hexdigest()
    found.add(
      files.digest({"train": str(tmp_path / "a.tsv")})
      == hashlib.sha256(f"train:{bare}\n".encode()).hexdigest()
    )
    assert len([*files.notes(str(tmp_path / "a.tsv"), [])]) == ('"' in content)
  (tmp_path / "a.tsv").write_text('text\tlabel\n"x"\t1\n')
  assert "are part of the texts" in "".join(files.notes(str(tmp_path / "a.tsv"), []))
  assert found == {True, False}
  # In a .csv of the same bytes, marks enclose fields.
  (tmp_path / "a.csv").write_bytes((tmp_path / "a.tsv").read_bytes())
  digests = [files.digest({"train": str(tmp_path / name)}) for name in ("a.tsv", "a.csv")]
  assert digests[0] != digests[1]


def test_running_text_has_no_byte_order_mark(tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("\ufeffThe cat", encoding="utf-8")
  assert b"".join(files.blocks(str(tmp_path / "a.txt"))) == b"The cat"
  data = "\ufeffThe cat\n".encode()
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
  assert lines.standard_input() == "The cat\n"
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
  assert [line.text for line in lines.given_lines([])] == ["The cat"]
  assert [line.text for line in lines.given_lines(["\ufeffThe cat"])] == ["The cat"]


def test_labels_that_are_equal_numbers_have_one_order():
  orders = {tuple(text_classification._ordered({"01", "1", "001", f"{i}"})) for i in range(2, 9)}
  assert {order[:3] for order in orders} == {("001", "01", "1")}
  assert text_classification._ordered({"9" * 5_000, "1"}) == ["1", "9" * 5_000]
