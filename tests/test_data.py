"""Files, splits, tokenizers and batches."""

import csv
import gzip
import hashlib
import io
import itertools
import json
import random
import re
import unicodedata

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from posexp.data import batches, files, lines, sources, splits, tokenizer, writing
from posexp.data.examples import Examples
from posexp.errors import UserError
from posexp.tasks import text_classification
from posexp.tasks.text_classification import TextClassification

TABLE = [("NA", "a"), ('He said "no",\nand left', "b"), ("", "a"), ("naïve \u2028 café", "b")]


def read(path, text="text", label="label"):
  task = TextClassification(train=str(path), text=text, label=label)
  return list(sources.rows(task)["train"]())


def table(path, ending):
  """TABLE as a file of the given kind."""
  path = path / f"table{ending}"
  if ending.startswith(".json"):
    lines = [
      json.dumps({"label": label, "text": text}, ensure_ascii=False) for text, label in TABLE
    ]
  elif ending.startswith(".csv"):
    doubled = [(text.replace('"', '""'), label) for text, label in TABLE]
    lines = ["text,label", *(f'"{text}",{label}' for text, label in doubled)]
  else:
    lines = ["label\ttext", *(f"{label}\t{text}".replace("\n", " ") for text, label in TABLE)]
  content = "\n".join(lines)
  content = content.encode()
  path.write_bytes(gzip.compress(content, mtime=0) if ending.endswith(".gz") else content)
  return str(path)


@pytest.mark.parametrize("ending", [".jsonl", ".json.gz", ".csv", ".csv.gz", ".tsv"])
def test_files_keep_every_text_as_it_is(tmp_path, ending):
  expected = [(a.replace("\n", " "), b) for a, b in TABLE] if ending == ".tsv" else TABLE
  assert read(table(tmp_path, ending)) == expected


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


def test_running_text_has_no_byte_order_mark(tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("\ufeffThe cat", encoding="utf-8")
  assert b"".join(files.blocks(str(tmp_path / "a.txt"))) == b"The cat"
  data = "\ufeffThe cat\n".encode()
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
  assert lines.standard_input() == "The cat\n"
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
  assert [line.text for line in lines.given_lines([])] == ["The cat"]
  assert [line.text for line in lines.given_lines(["\ufeffThe cat"])] == ["The cat"]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
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
    ("a.csv", b'text,label\n"x,1\ny,2\n', "broken CSV"),
    ("a.csv", b"text,label\nx,1\n\xff\xfe,1\n", r"a\.csv, line 3: not valid UTF-8"),
    ("a.csv", b'text;"label, kind"\nx;1\n', "line 2: no column 'label', but text, label, kind"),
    ("a.csv", b"text,label\nWell, x,1\nOh, y,2\n", "line 2: 3 fields where the header has 2"),
    ("a.csv", b"text,label\n3, x,1\nOh, y,2\n", "line 3: 3 fields where the header has 2"),
    ("a.csv", b"text,label\nx,1,\ny,2,\n", "line 2: 3 fields where the header has 2"),
    ("a.csv", b"TEXT,label\nx,1\n", "did you mean task.text=TEXT"),
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
    ("a.jsonl.gz", b"not gzip", "not a whole gzip file"),
    ("a.jsonl.gz", gzip.compress(b'{"text": "x"}' * 99, mtime=0)[:-9], "not a whole gzip file"),
    ("a.parquet", b"not parquet", "not a whole Parquet file"),
    ("a.parquet", b"PAR1" * 9, "not a whole Parquet file"),
  ],
)
def test_bad_files_are_named_with_the_line(tmp_path, name, content, message):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(UserError, match=message) as error:
    read(path)
  assert "\n" not in str(error.value)


def test_labels_that_are_equal_numbers_have_one_order():
  orders = {tuple(text_classification._ordered({"01", "1", "001", f"{i}"})) for i in range(2, 9)}
  assert {order[:3] for order in orders} == {("001", "01", "1")}
  assert text_classification._ordered({"9" * 5_000, "1"}) == ["1", "9" * 5_000]


def rows(count, prefix="text"):
  return [(f"{prefix} {i}", str(i % 2)) for i in range(count)]


def arrange(given, fold=None):
  streams = {name: given[name].__iter__ for name in given}
  parts, notes = splits.arrange(streams, fold=fold)
  return {name: list(part()) for name, part in parts.items()}, notes


def test_equal_texts_share_a_split_and_each_row_has_one():
  repeated = [("Same, text!", "0"), ("same   TEXT", "1"), ("same-text", "0")]
  for i in range(5):
    given = rows(300, f"n{i}") + [(f"{a} {i}", b) for a, b in repeated]
    parts, notes = arrange({"train": given})
    assert sorted(itertools.chain(*parts.values())) == sorted(given)
    assert len({split for split, part in parts.items() for a, _ in part if "ame" in a}) == 1
    assert len(notes) == 2


def test_a_split_depends_on_content_alone():
  given = rows(500)
  forwards, _ = arrange({"train": given})
  backwards, _ = arrange({"train": given[::-1]})
  fewer, _ = arrange({"train": given[:400]})
  for split in forwards:
    assert set(forwards[split]) == set(backwards[split]) >= set(fewer[split])


def test_folds_are_disjoint_cover_everything_and_hold_out_validation_alike():
  given = {"train": rows(500), "test": [*rows(100, "other"), ("TEXT: 1", "1")]}
  folds = [arrange(given, (fold, 5))[0] for fold in range(5)]
  tests = [set(fold["test"]) for fold in folds]
  assert sum(map(len, tests)) == len(set().union(*tests)) == 601
  assert sum({("TEXT: 1", "1"), ("text 1", "1")} <= test for test in tests) == 1
  for fold in folds:
    assert 25 < len(fold["validation"]) < 75
    assert not set(fold["train"]) & set(fold["validation"])


def test_given_splits_stay_and_repeated_texts_are_noted():
  given = {
    "train": rows(50),
    "validation": rows(3, "v"),
    "test": [("TEXT  7", "1"), ("text 7!", "1")],
  }
  parts, notes = arrange(given)
  assert parts == given
  assert notes == ["1 test texts also stand in the training split"]


def test_a_split_without_rows_is_an_error():
  with pytest.raises(UserError, match=r"test split has no rows; give more .* or set task\.test"):
    arrange({"train": rows(1)})


CORPUS = ["The cat sat.", "the cat ran!", "a Dog sat", "the dog's café"]


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
@pytest.mark.parametrize("cls", [False, True])
def test_tokenizers_are_deterministic_and_begin_with_the_special_tokens(kind, cls):
  trained = [tokenizer.train(CORPUS, kind, 300, min_count=1, cls=cls) for _ in range(2)]
  assert trained[0] == trained[1]
  opened = tokenizer.Tokenizer(trained[0])
  found, empty, cut = opened.encode(["the cat", "", "  ", "[PAD] [CLS]", "the cat sat the cat"], 3)
  ids = [tokens.tolist() for tokens in found]
  first = [tokenizer.CLS] if cls else []
  assert all(tokens[: len(first)] == first for tokens in ids)
  assert ids[1] == [*first, tokenizer.UNK]
  assert all(0 < len(tokens) <= 3 for tokens in ids)
  assert not {tokenizer.PAD, tokenizer.CLS} & {i for tokens in ids for i in tokens[len(first) :]}
  assert (empty, cut) == ((2, 2) if kind == "word" else (empty, cut))
  assert opened.vocab_size == max(json.loads(trained[0])["model"]["vocab"].values()) + 1 <= 300


@pytest.mark.parametrize("known", [0, tokenizer.KNOWN])
@pytest.mark.parametrize("kind", ["word", "char", "bpe", "exact", "unmarked"])
def test_a_text_has_the_tokens_that_the_library_gives_to_all_of_it(kind, known, monkeypatch):
  monkeypatch.setattr(tokenizer, "KNOWN", known)
  parts = [
    *" '\t\n\r\v\f\x1c\x85\u00a0\u2028\u3000aZ7,.-é漢\U0001f600\u0301Σ",
    "the",
    " cat",
    "'s",
    "  ",
  ]
  draw = np.random.default_rng(0).choice
  texts = ["".join(draw(parts, size)) for size in range(60) for _ in range(5)]
  trained_on = texts
  if kind == "unmarked":
    trained_on = [text.replace("\u0301", "") for text in texts]
  bpe = kind not in ("word", "char")
  trained = tokenizer.train(trained_on, "bpe" if bpe else kind, 400, prefix=kind != "exact")
  encoder = tokenizer.Tokenizer(trained)
  for found in (encoder.ids(texts[:150]), encoder.ids(texts)):
    whole = encoder.library.encode_batch(texts[: len(found)])
    assert [each.tolist() for each in found] == [each.ids for each in whole]


def test_words_are_lower_cased_parted_from_punctuation_and_cut_off():
  opened = tokenizer.Tokenizer(tokenizer.train(CORPUS, "word", 100))
  assert opened.vocab_size == 3 + len({"the", "cat", "sat", "dog"})
  ids, other, rare = (each.tolist() for each in opened.ids(["THE cat,", "the cat ;", "zebra café"]))
  assert ids == other
  assert ids[2] == tokenizer.UNK
  assert rare == [tokenizer.UNK] * 2
  assert tokenizer.Tokenizer(tokenizer.train(CORPUS, "word", 5, min_count=1)).vocab_size == 5


@pytest.mark.parametrize(
  ("most", "step"), [(600, 1), (599, 2), (300, 2), (299, 4), (40, 32), (1, 100)]
)
def test_a_bpe_is_trained_on_rows_from_all_of_a_large_text(monkeypatch, most, step):
  monkeypatch.setattr(tokenizer, "TRAINED_ON", most)
  rows = [(f"{number:03d}", "abc") for number in range(100)]
  assert tokenizer.evenly(iter(rows)) == rows[::step]


def test_bytes_know_every_character():
  opened = tokenizer.Tokenizer(tokenizer.train(CORPUS, "bpe", 280))
  unseen, lower, upper = (
    each.tolist() for each in opened.ids(["Ünseen 漢字 \U0001f600", "a", "A"])
  )
  assert tokenizer.UNK not in unseen
  assert lower != upper


def examples(count, seed=0, most=40):
  random = np.random.default_rng(seed)
  ids = [random.integers(3, 99, n).tolist() for n in random.integers(1, most + 1, count)]
  return ids, Examples.of(ids, random.integers(0, 3, count).astype(np.int32))


def test_buckets_are_few_cover_the_longest_and_save_padding():
  lengths = np.array([5] * 50 + [12] * 50 + [30] * 3)
  assert batches.buckets(lengths, 37).tolist() == [8, 16, 40]
  assert batches.buckets(np.array([3, 4]), 5).tolist() == [8]
  assert batches.buckets(np.array([3, 4]), 20).tolist() == [8, 24]
  many = np.arange(1, 5001)
  ends = batches.buckets(many, 5000)
  assert len(ends) <= batches.BUCKETS
  assert ends[-1] >= 5000
  assert ends[np.searchsorted(ends, many)].sum() < 0.7 * 5000 * 5000


def check(batch, ids, size):
  """A batch has the promised shapes and holds the tokens of the examples it says."""
  length = batch["tokens"].shape[1]
  kinds = {"tokens": np.int32, "mask": bool, "labels": np.int32, "weight": np.float32}
  for key, kind in (kinds | {"index": np.int32}).items():
    assert batch[key].dtype == kind
    assert batch[key].shape == ((size, length) if key in ("tokens", "mask") else (size,))
  assert batch["mask"].any(axis=1).all()
  assert (batch["tokens"][~batch["mask"]] == tokenizer.PAD).all()
  assert ((batch["index"] >= 0) == (batch["weight"] == 1)).all()
  for row in np.flatnonzero(batch["weight"]):
    assert batch["tokens"][row][batch["mask"][row]].tolist() == ids[batch["index"][row]]


def test_an_epoch_has_full_batches_of_few_shapes_and_no_example_twice():
  ids, data = examples(107)
  ends = batches.buckets(data.lengths, 40)
  stream = batches.training(data, ends, 10, seed=1, start=0)
  left_out = set()
  for _ in range(30):
    epoch = [next(stream) for _ in range(10)]
    for batch in epoch:
      check(batch, ids, 10)
      assert batch["weight"].all()
      assert batch["tokens"].shape[1] in ends
    seen = np.concatenate([batch["index"] for batch in epoch])
    assert len(set(seen.tolist())) == 100
    left_out |= set(range(107)) - set(seen.tolist())
    assert (data.labels[seen] == np.concatenate([b["labels"] for b in epoch])).all()
  assert len(left_out) > 80  # nobody sits out always


def test_evaluation_by_length_leaves_least_for_a_search_to_wait_for():
  _, data = examples(107)
  ends, only = batches.buckets(data.lengths, 40), np.arange(0, 107, 2)
  chosen = batches.by_length(data.lengths, only)
  assert sorted(chosen.tolist()) == only.tolist()

  def spread(order):
    shown = [batch["index"] for batch in batches.evaluation(data, ends, 10, order)]
    return sum(np.ptp(data.lengths[index[index >= 0]]) for index in shown)

  assert spread(chosen) < spread(only)
  assert (np.diff(data.lengths[batches.by_length(data.lengths)]) >= 0).all()


@pytest.mark.parametrize("count", [1, 10, 107])
def test_evaluation_shows_every_example_once_in_one_order(count):
  ids, data = examples(count)
  ends = batches.buckets(data.lengths, 40)
  first, second = ([*batches.evaluation(data, ends, 10)] for _ in range(2))
  for batch, again in zip(first, second, strict=True):
    check(batch, ids, 10)
    assert (batch["index"] == again["index"]).all()
  index = np.concatenate([batch["index"] for batch in first])
  assert sorted(index[index >= 0].tolist()) == list(range(count))
  assert len(first) == -(-count // 10)


@pytest.mark.parametrize(
  "text", ["It's 2_000 K.", "Ein Maß—für Ä_ü", "K\u212a I\u0130 \u00b2", "", " _\t"]
)
def test_near_duplicates_are_those_of_the_same_letters_and_digits(text):
  letters = re.sub(r"[\W_]+", "", unicodedata.normalize("NFC", text.lower()))
  assert splits.key(text) == hashlib.sha256(letters.encode()).digest()


@pytest.mark.parametrize(
  ("one", "other", "equal"),
  [
    ("The  Cat\n", "the cat", True), ("cafe\u0301", "CAFÉ", True), ("\u1100\u1161", "가", True),
    ("3 + 4", "3 - 4", False), ("C", "C++", False), ("-5", "5", False), ("1.5", "15", False),
    ("( ( ) )", "( ) ( )", False), ("😀", "😂", False), ("x < y", "x > y", False),
    ("कि", "का", False), ("don't", "dont", False), ("→", "←", False), ("cote", "coté", False),
  ],
)  # fmt: skip
def test_texts_are_equal_but_for_case_blanks_and_how_accents_are_written(one, other, equal):
  assert (splits.exact_key(one) == splits.exact_key(other)) is equal
  _, notes = arrange({"train": [(one, "a")], "validation": [("z", "a")], "test": [(other, "a")]})
  assert notes == ["1 test texts also stand in the training split"] * equal


@pytest.mark.parametrize(
  ("alphabet", "form"),
  [
    ("()", "{}"),
    ("()", "Is this balanced? {}"),
    ("😀😂😭", "{}"),
    ("+-*/", "1 {} 2"),
    ("→←", "A{}B"),
  ],
)
def test_texts_that_symbols_tell_apart_are_split_as_others_are(alphabet, form):
  texts = [form.format("".join(signs)) for signs in itertools.product(alphabet, repeat=8)][:900]
  given = [(text, "a") for text in [*texts, *texts[::3]]]
  parts, _ = arrange({"train": given})
  found = {split: {text for text, _ in part} for split, part in parts.items()}
  assert sum(map(len, found.values())) == len({*texts})
  assert all(0 < len(found[split]) <= 0.2 * len(texts) for split in ("validation", "test"))
  backwards, _ = arrange({"train": given[::-1]})
  assert {split: {text for text, _ in part} for split, part in backwards.items()} == found


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("शाम पिता गाड़ी", ["शाम", "पिता", "गाड़ी"]),
    ("كَتَبَ الوَلَدُ", ["كَتَبَ", "الوَلَدُ"]),
    ("e\u0301te\u0301, a\u0300", ["e\u0301te\u0301", ",", "a\u0300"]),
    ("می\u200cخواهم", ["می\u200cخواهم"]),
    ("don't 12 _x!? ( )", ["don", "'", "t", "12", "_x", "!?", "(", ")"]),
  ],
)
def test_marks_belong_to_their_letters(text, words):
  assert writing.words(text) == words
  assert writing.longest_word(text.replace(" ", "\n")) == max(map(len, words))


@pytest.mark.parametrize("prefix", [False, True])
def test_a_bpe_merges_across_marks_and_is_as_ever_without_them(prefix, monkeypatch):
  marked = ["जीजा कुकौनिरु खाटिसीजो", "كَتَبَ الوَلَدُ الدَّرْسَ", "e\u0301te\u0301 de\u0301ja\u0300"] * 9
  plain = [*CORPUS, *["It's 2_000 K.\n", " x²  y—z 漢字 한국어 ½ 😀!"]]

  def trained(texts, size, **options):
    text = tokenizer.train(texts, "bpe", size, ["[END]"], prefix=prefix, **options)
    return tokenizer.Tokenizer(text)

  assert [*map(len, trained(marked, 900).ids(marked[:3]))] == [3, 3, 2]  # a token a word
  monkeypatch.setattr(writing, "has_marks", lambda texts: True)
  always = trained(plain, 330, min_count=1)
  monkeypatch.setattr(writing, "has_marks", lambda texts: False)
  never = trained(plain, 330, min_count=1)
  for one, other in zip(always.ids(plain), never.ids(plain), strict=True):
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
  ("texts", "parted"),
  [
    (["the cat sat on the mat", "playing"], True),
    (["Donaudampfschifffahrt ist schön"], True),
    (["epäjärjestelmällisesti hän meni kauppaan"], True),
    (["오늘 날씨가 정말 좋네요"], True),
    (["तमिल नाडु की राजधानी"], True),
    (["这 款 游戏 特别 的 坏 。", "这款 游戏 特别 好 。"], True),
    (["https://a.example.com/b?c=d", "3+4-5*2", "f(x)=x+1"], True),
    (["( ( ) )", "😀 😂"], True),
    ([""], True),
    (["今天,王伟追了小狗。"], False),
    (["今日はとても良い天気ですね。"], False),
    (["วันนี้อากาศดีมาก แล้วกลับบ้าน"], False),
    (["我觉得这个 camera 非常好用，推荐购买"], False),
    (["ACGTTGCAACGTTAGC", "MKTAYIAKQRQISFVKSHFSRQ"], False),
    (["(()(())())(())"], False),
  ],
)
def test_text_without_blanks_is_noticed(texts, parted):
  assert writing.parts_words(texts * 3) is parted
