"""The task as a whole: embedded data, own files, the hub, and the bag of words."""

import dataclasses
import hashlib
import itertools
import json
import re
from unittest import mock

import pytest
from omegaconf import OmegaConf
from seed import some

from posexp.config import CONFIGS
from posexp.data import writing
from posexp.errors import UserError
from posexp.runs.run import parsed_summary
from posexp.tasks import bag_of_words, tasks
from posexp.tasks.text_classification import Classification, LabeledData, TextClassification
from posexp.tasks.who_acts import WhoActs

ROWS = [
  (f"{word} number {i}", label) for i in range(60) for word, label in (("good", "p"), ("bad", "n"))
]


pytestmark = pytest.mark.usefixtures("own_cache")


def write(path, rows):
  path.write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in rows))
  return str(path)


def own(tmp_path, **options):
  """A task on ROWS, kept in a file."""
  return TextClassification(train=write(tmp_path / "train.jsonl", ROWS), **options)


def options(name):
  """The options that configs/task gives a task, its defaults included."""
  config = OmegaConf.load(CONFIGS / "task" / f"{name}.yaml")
  for other in config.pop("defaults", []):
    if isinstance(other, str) and other != "_self_":
      config = OmegaConf.merge(options(other), config)
  return OmegaConf.to_container(config, resolve=True)


def test_every_task_file_is_a_task():
  for path in (CONFIGS / "task").glob("*.yaml"):
    given = options(path.stem)
    assert given["name"] == path.stem
    kind = given.pop("kind")
    if kind == path.stem:  # the file lists every option, with the defaults of the dataclass
      fields = dataclasses.fields(tasks()[kind])
      listed = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
      assert listed == {field.name: field.default for field in fields}
      given |= {name: name for name in ("train", "test") if name in given}
    tasks()[kind](**given)


def test_the_split_of_mr_is_the_same_for_ever(tmp_path):
  given = options("mr")
  given.pop("kind")
  data = TextClassification(**given).prepare(tmp_path)
  assert data.sizes == {"train": 6957, "validation": 734, "test": 839}
  assert data.label_names == ("negative", "positive")
  texts = {split: sorted(text for text, _ in rows) for split, rows in data.rows.items()}
  assert not set(texts["test"]) & {*texts["train"], *texts["validation"]}
  digest = hashlib.sha256("\n".join(texts["test"]).encode()).hexdigest()
  assert digest == "d5f89f77472abf618dddd4494804925ce32f79b5c6c7167d15dbc34384016346"
  assert bag_of_words.bag_of_words(data.rows)["test"]["accuracy"] == pytest.approx(0.754, abs=0.01)


def test_own_files_become_batches_and_keep_their_tokenizer(tmp_path):
  task = own(tmp_path, min_count=1, cls=True)
  data = task.prepare(tmp_path / "run")
  assert sum(data.sizes.values()) == 120
  assert data.label_names == ("n", "p")
  assert data.longest == 4
  assert data.notes == tuple(
    f"the {split} split is a tenth of the training texts, held out by content hash"
    for split in ("test", "validation")
  )
  assert data.steps_per_epoch(8) == data.sizes["train"] // 8
  batch = next(data.batches(8, seed=0, start=3))
  assert batch["tokens"].shape == (8, 8)
  texts = [data.rows["train"][i] for i in batch["index"]]
  assert [data.label_names[i] for i in batch["labels"]] == [label for _, label in texts]
  assert sum(b["weight"].sum() for b in data.evaluation("test", 8)) == data.sizes["test"]

  kept = tmp_path / "run" / "tokenizer.json"
  before = kept.read_bytes()
  assert task.prepare(tmp_path / "run") is data
  assert task.prepare(tmp_path / "other") is data  # another folder, the same tokenizer
  assert kept.read_bytes() == before == (tmp_path / "other" / "tokenizer.json").read_bytes()
  with pytest.raises(UserError, match=r"train\.batch_size=500"):
    data.batches(500, seed=0)


def test_the_tokenizer_sees_training_texts_only(tmp_path):
  test = write(tmp_path / "test.jsonl", [("unheard unheard unheard", "p")])
  own(tmp_path, test=test, min_count=1).prepare(tmp_path)
  vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
  assert "good" in vocabulary
  assert "unheard" not in vocabulary


def test_the_digest_is_of_content_not_of_places(tmp_path):
  task = own(tmp_path)
  (tmp_path / "b").mkdir()
  moved = dataclasses.replace(task, train=write(tmp_path / "b" / "c.jsonl", ROWS))
  assert task.data_digest() == moved.data_digest()
  first = task.prepare(tmp_path / "run")
  write(tmp_path / "train.jsonl", ROWS[:100])
  assert task.data_digest() != moved.data_digest()
  assert sum(task.prepare(tmp_path / "run").sizes.values()) < sum(first.sizes.values())
  assert dataclasses.replace(task, test=moved.train).data_digest() != task.data_digest()
  assert TextClassification(package="imdb").data_digest() is None
  with pytest.raises(UserError, match="there is no such file"):
    dataclasses.replace(task, test="nowhere.csv").data_digest()


def test_labels_that_are_nearly_alike_are_said(tmp_path):
  rows = [(f"{text} {i}", label) for i, (text, label) in enumerate(ROWS)]
  more = [("one more", "P"), ("another one", "p "), ("a number", 1), ("the same", 1.0)]
  path = write(tmp_path / "a.jsonl", [*rows, *more])
  data = TextClassification(train=path).prepare(tmp_path)
  named = "'1', '1.0', 'P', 'p', 'p '"
  assert f"the labels {named} differ by blanks, capitals or how they are written" in data.notes


def test_empty_and_long_texts_are_counted(tmp_path):
  rows = [*ROWS, ("", "p"), (" ", "n"), ("a b c d e f", "n")]
  path = write(tmp_path / "a.jsonl", rows)
  data = TextClassification(train=path, validation=path, test=path, max_length=4).prepare(tmp_path)
  assert "2 train, 2 validation, 2 test texts are empty and kept as [UNK]" in data.notes
  assert "1 train, 1 validation, 1 test texts are cut to 4 tokens" in data.notes
  assert data.sizes["test"] == len(rows)
  assert data.longest == 4


WHO = [f"今天,{one}追了{two}{i}号狗。" for i in range(9) for one in "王李张" for two in "大小黑白"]


@pytest.mark.parametrize(
  ("texts", "typed", "kind", "note"),
  [
    ([f"the cat sat {i % 9} {i % 7} {i % 5}" for i in range(120)], {}, "word", None),
    (WHO, {}, "char", "no blanks part the words: texts are read by characters"),
    (WHO, {"tokenizer": "word"}, "word", r"no blanks part the words: a text has 4\.0 on average, "
     r"and 2\d% of the words to validate on are not in the vocabulary; task\.tokenizer=char or b"),
    ([f"w{i} v{i} the end" for i in range(120)], {}, "word", "^50% of the words to validate on"),
    (WHO, {"tokenizer": "bpe", "vocab_size": 9_000}, "bpe", r"vocab_size=9000: the BPE has \d+ t"),
    (WHO, {"tokenizer": "bpe"}, "bpe", None),
  ],
)  # fmt: skip
def test_the_tokenizer_suits_the_text_or_a_note_says_that_it_does_not(
  tmp_path, texts, typed, kind, note
):
  rows = [(text, "ab"[number % 2]) for number, text in enumerate(texts)]
  task = TextClassification(train=write(tmp_path / "a.jsonl", rows), **typed).settled()
  assert task.tokenizer == kind
  notes = task.prepare(tmp_path / "run").notes[2:]
  assert len(notes) == (note is not None)
  assert all(re.search(note, each) for each in notes)


@pytest.mark.parametrize(("language", "kind", "one"), some([
  ("en", "word", "the dog chased Wang Wei"), ("zh", "char", "小狗追了王伟"),
], 1))  # fmt: skip
def test_who_acts_is_told_by_order_alone(tmp_path, language, kind, one):
  task = WhoActs(language=language, examples=10_000)
  assert task.settled().tokenizer == kind
  data = task.prepare(tmp_path)
  assert data.sizes == {"train": 7920, "validation": 1030, "test": 1050}  # in each language
  assert (one, "animal") in itertools.chain(*data.rows.values())
  summary = {"step": 1} | {f"{split}/accuracy": 0.5 for split in data.rows}
  for split, rows in data.rows.items():
    bags = {("".join(sorted(text)), label) for text, label in rows}
    assert len(bags) == len(rows)
    assert {label for _, label in bags} == {"animal", "person"}
    assert len({bag for bag, _ in bags}) == len(rows) / 2
    summary |= {f"baseline/{split}/{name}": 0.5 for name in ("accuracy", "macro_f1")}
  assert "need no order, or this model uses none" in [*task.table(summary)][-1]
  with mock.patch.object(Classification, "conclude", return_value={"step": 1}):
    found = task.conclude(data, None, tmp_path)
  assert found["baseline/test/accuracy"] == 0.5
  assert found.get("bag_of", "words") == {"word": "words", "char": "characters"}[kind]
  assert parsed_summary(tmp_path, json.dumps(found).encode()) == found  # which a report reads
  assert "points" in [*task.table(summary | {"test/accuracy": 0.6})][-1]


def test_rows_that_contradict_each_other_are_counted(tmp_path):
  train = [*ROWS, ("The film", "p"), ("the  film", "n"), ("a  film", "p"), ("a film", "p")]
  files = {name: write(tmp_path / name, rows) for name, rows in {
    "a.jsonl": train, "b.jsonl": [("THE FILM", "p")], "c.jsonl": [("the film!", "n")],
  }.items()}  # fmt: skip
  splits = dict(zip(("train", "validation", "test"), files.values(), strict=True))
  notes = TextClassification(**splits).prepare(tmp_path / "run").notes
  places = f"a.jsonl, line 121; {tmp_path}/a.jsonl, line 122; {tmp_path}/b.jsonl, line 1"
  cut = dataclasses.replace(TextClassification(**splits), max_length=1).prepare(tmp_path / "cut")
  assert "1 text cut to what also stands there with another label" in cut.notes
  cased = TextClassification(**splits, tokenizer="char").prepare(tmp_path / "cased")
  assert not any("another label" in note for note in cased.notes)
  said = f"3 rows have a text that also stands there with another label: {tmp_path}/{places}"
  assert said in notes


@pytest.mark.parametrize(
  ("texts", "labels", "tokenizer", "parted"),
  [
    (["शाम पिता फूल", "शाम पति फूल"], "fh", "word", True),
    (["كَتَبَ الوَلَدُ", "كُتُبُ الوَلَدُ"], "vn", "word", True),
    (["GCGCAT" * 4, "ATATGC" * 4], "gc", "char", False),
    (["这双鞋子特别的好", "这双鞋子特别的坏"], "pn", "char", False),
    (["they polish it", "they Polish it"], "vn", "bpe", True),
    (["if a:  b", "if a:    b"], "24", "char", True),
  ],
)
def test_a_bag_holds_what_a_model_reads(texts, labels, tokenizer, parted):
  rows = [*zip(texts, labels, strict=True)] * 20
  assert writing.parts_words(texts) is parted
  measured = bag_of_words.bag_of_words({"train": rows, "test": rows}, tokenizer)
  assert measured["test"]["accuracy"] == 1.0


def test_folds_pool_all_that_is_given(tmp_path):
  task = own(tmp_path, test=write(tmp_path / "t.jsonl", [("one more", "n")]), folds=4, fold=0)
  parts = [dataclasses.replace(task, fold=fold).prepare(tmp_path / str(fold)) for fold in range(4)]
  assert sum(data.sizes["test"] for data in parts) == 121
  assert parts[0].notes[0] == "the test split is fold 0 of 4 over all 121 texts"


def test_labels_must_be_known_from_training_and_be_two(tmp_path):
  strange = write(tmp_path / "t.jsonl", [("what", "maybe")])
  with pytest.raises(UserError, match=r"test split has the label 'maybe', which .* have n, p"):
    own(tmp_path, test=strange).prepare(tmp_path)
  alike = write(tmp_path / "a.jsonl", [(text, "p") for text, _ in ROWS])
  with pytest.raises(UserError, match="all have the label 'p'; two labels at least"):
    TextClassification(train=alike).prepare(tmp_path)
  blank = write(tmp_path / "b.jsonl", [("", "p"), (" ", "n")])
  with pytest.raises(UserError, match=r"all empty; is task\.text=text"):
    TextClassification(train=blank, validation=blank, test=blank).prepare(tmp_path)


def test_a_rare_label_that_is_held_out_by_us_is_no_mistake(tmp_path):
  said = set()
  for i in range(40):  # some of these texts fall into the test split
    train = write(tmp_path / "train.jsonl", [*ROWS, (f"rare {i}", "r")])
    data = TextClassification(train=train).prepare(tmp_path / str(i))
    assert data.label_names == ("n", "p", "r")
    said |= {note for note in data.notes if "label" in note}
  assert said == {
    f"1 {split} text with a label that no training text has" for split in ("validation", "test")
  }


def test_the_bag_of_words_is_measured_once(monkeypatch):
  splits = {"train": ROWS[20:], "validation": ROWS[:10], "test": [("good", "p"), ("good", "n")]}
  measured = bag_of_words.bag_of_words(splits)
  assert measured["validation"] == {"accuracy": 1.0, "macro_f1": 1.0}
  assert measured["test"]["accuracy"] == 0.5
  assert measured["test"]["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)
  monkeypatch.setattr(bag_of_words, "_fit", None)  # would fail if it were called
  assert bag_of_words.bag_of_words(splits) == measured
  with pytest.raises(TypeError):
    bag_of_words.bag_of_words(splits | {"test": ROWS[:2]})


def test_a_cache_that_cannot_be_kept_is_done_without(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  splits = {"train": ROWS, "test": ROWS}
  assert bag_of_words.bag_of_words(splits)["test"]["accuracy"] == 1.0


@pytest.mark.parametrize(
  ("ids", "message"),
  [
    ([[6]], "a token has the id 6, where vocab_size=6"),
    ([[3, -1]], "a token has the id -1, where vocab_size=6"),
    *((ids, "each of the 1 rows of train needs token ids") for ids in ([[1.5]], [[]], [[1], [2]])),
  ],
)
def test_rows_whose_tokens_cannot_be_are_refused(ids, message):
  with pytest.raises(ValueError, match=message):
    LabeledData.of({"train": [("a", "b")]}, {"train": ids}, vocab_size=6, label_names="b")
