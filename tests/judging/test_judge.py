"""The judge: what it reads, and whether it is right."""

import json
from pathlib import Path
from xml.etree import ElementTree

import fuzz
import numpy as np
import pytest
from run_folders import write as write_run
from scipy import stats

from posexp.errors import UserError
from posexp.judging.files import Columns, side
from posexp.judging.verdict import judge

NONE = Columns()


@pytest.fixture
def typed(tmp_path, monkeypatch):
  """Types a command line in a folder with files; returns what was printed."""
  monkeypatch.chdir(tmp_path)

  def run(*argv, **files):
    for name, text in files.items():
      Path(name.replace("_", ".")).write_text(text)
    _, out, err = fuzz.typed("judge", *argv)
    return out + err

  return run


def seeded(scores, first=0):
  """Scores of seeds from the first one on, of no examples."""
  return {(first + at, ""): float(score) for at, score in enumerate(scores)}


def examples(scores):
  """Scores of examples, of no seed."""
  return {("", at): float(score) for at, score in enumerate(scores)}


def write(path, scores):
  """Writes scores by seed and example, of which "" leaves a column out."""
  names = ("seed", "id", "score")
  rows = [
    {name: value for name, value in zip(names, (*key, score), strict=True) if value != ""}
    for key, score in scores.items()
  ]
  lines = [json.dumps(row) for row in rows]
  if path.suffix == ".csv":
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
  path.write_text("\n".join(lines) + "\n")
  return side(path, NONE)


def pair(folder, a, b):
  return judge([write(folder / "b.jsonl", b), write(folder / "a.csv", a)])[0]


def test_its_p_is_that_of_scipy(tmp_path):
  random = np.random.default_rng(0)
  a, b = random.normal(1, 1, 9), random.normal(0, 2, 7)
  alone = pair(tmp_path, seeded(a), seeded(b, 9))
  expected = stats.ttest_ind(a, b, equal_var=False)
  assert alone.tests[0].how == "Welch's t test"
  assert alone.p == pytest.approx(expected.pvalue)
  assert [alone.tests[0].low, alone.tests[0].high] == pytest.approx(
    [*expected.confidence_interval()]
  )
  common = random.normal(0, 5, 6)
  a, b = common + 1, common + random.normal(0, 0.5, 6)
  paired = pair(tmp_path, seeded(a), seeded(b))
  assert paired.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
  one, other = random.random(300) < 0.7, random.random(300) < 0.6
  right = pair(tmp_path, examples(one), examples(other))
  alone = int((one & ~other).sum()), int((other & ~one).sum())
  assert right.tests[0].how == "McNemar's exact test"
  assert right.p == pytest.approx(stats.binomtest(alone[0], sum(alone)).pvalue)
  graded = random.normal(0, 1, (2, 80))
  rows = [examples(row) for row in graded]
  assert pair(tmp_path, *rows).p == pytest.approx(stats.ttest_rel(*graded).pvalue)


def test_equal_models_are_told_apart_rarely_and_true_gains_as_often_as_planned(tmp_path):
  random, told, found = np.random.default_rng(1), 0, 0
  for _ in range(100):
    for gain in (0.0, 1.0):
      a, b = random.normal(gain, 0.5, 5), random.normal(0, 0.5, 5)
      kind = pair(tmp_path, seeded(a), seeded(b, 5)).kind
      told += kind == "told" and not gain
      found += kind == "told" and gain > 0
  assert told <= 7  # of 100
  needed = pair(tmp_path, seeded([1.5, 1, 0.5]), seeded([0.5, 0, -0.5], 5)).tests[0].needed(1.0)
  assert needed == 6  # two groups of six with a deviation of 0.5 differ by 1 with a power of 80 %
  few, many = (np.tile([-1.0, 0, 1], times) for times in (1, 9))
  few, many = (0.5 * each / each.std(ddof=1) for each in (few, many))
  assert pair(tmp_path, seeded(many), seeded(few, 99)).tests[0].needed(1.0) == 6
  assert found >= 70


def test_seeds_and_examples_must_both_agree(tmp_path):
  random = np.random.default_rng(2)
  skill, luck = random.random(200), random.normal(0, 0.2, (2, 3))
  sides = [
    {(s, i): skill[i] + luck[at, s] + 0.02 * (not at) for s in range(3) for i in range(200)}
    for at in (0, 1)
  ]
  found = pair(tmp_path, *sides)
  assert [test.over for test in found.tests] == ["3 seeds", "200 examples", "both"]
  over_seeds, over_examples, both = found.tests
  assert over_examples.p < 0.05 < over_seeds.p
  assert both.high - both.low >= over_seeds.high - over_seeds.low
  assert found.kind == "not told"


def test_samples_of_a_harness_are_read_by_the_first_filter(typed):
  def line(i, right, kind):
    row = {"doc_id": i, "filter": kind, "metrics": ["exact_match"], "doc": {"id": 7}}
    return json.dumps(row | {"exact_match": right})

  a = [line(i, float(i < 80), kind) for kind in ("strict", "loose") for i in range(100)]
  b = [line(i, float(i < 50), "strict") for i in range(100)]
  said = typed("b.jsonl", "a.jsonl", "--json", "-", a_jsonl="\n".join(a), b_jsonl="\n".join(b))
  (found,) = json.loads(said)["comparisons"]
  assert found["difference"] == pytest.approx(0.3)
  assert (found["kind"], found["metric"]) == ("told", "exact_match")


def test_a_verdict_says_what_is_better_and_what_would_tell(typed):
  files = {
    "a_csv": "seed,loss\n0,3.1\n1,3.2\n2,3.15\n",
    "b_csv": "seed,loss\n0,3.3\n1,3.4\n2,3.37\n",
  }
  said = typed("b.csv", "a.csv", "--figure", "f.svg", "--json", "f.json", **files)
  assert "a is better than b by 0.2067 loss (less is better; over 3 seeds, 95 % " in " ".join(
    said.split()
  )
  assert Path("f.svg").read_text().count("<path") > 5
  said = " ".join(typed("b.csv", "a.csv", "--higher").split())
  assert "b is better than a" in said
  more = {"c_csv": "seed,loss\n0,3.12\n1,3.18\n2,3.1\n", "d_csv": "loss\n3.1\n"}
  said = " ".join(typed("a.csv", "c.csv", "d.csv", **more).split())
  assert "c and a cannot be told apart: 0.0167 loss for c" in said
  assert "seeds (power 80 %)" in said
  assert "d and a cannot be tested" in said
  assert "are equal within 0.5" in " ".join(typed("a.csv", "c.csv", "--margin", ".5").split())


def test_a_figure_has_names_as_they_are_in_fonts_that_have_them(typed):
  names = ("x$\\frac$", "方法", "\ue000")
  for name in names:
    Path(f"{name}.csv").write_text("seed,loss\n0,1\n1,2\n", encoding="utf-8")
  argv = ["b.csv", *(f"{name}.csv" for name in names), "--figure"]
  said = typed(*argv, "f.svg", b_csv="seed,loss\n0,1\n1,3\n")
  drawn = "".join(ElementTree.parse("f.svg").getroot().itertext())
  assert all(f"{name}, 2 seeds" in drawn for name in names)
  assert "Warning" not in said


def test_less_is_better_where_a_word_of_the_name_says_so(tmp_path):
  less = {
    "val_loss": True, "valLoss": True, "test_wer": True, "bits_per_byte": True, "runtime": True,
    "errorrate": True, "testppl": True, "bitsperbyte": True, "apply_rate": False,
    "answer_correctness": False, "sentiment_accuracy": False, "power": False, "certainty": False,
    "val_bpc": True, "rmse": True, "mape": True, "eer": True, "fid_score": True, "ece": True,
    "NLLLoss": True, "latency_ms": True, "time_to_accuracy": True, "gradient_free_loss": True,
    "glossary_acc": False, "gloss_f1": False, "test_time_accuracy": False, "error_free_rate": False,
    "lossless_ratio": False, "tokens_per_second": False,
  }  # fmt: skip
  for name, lower in less.items():
    (tmp_path / "a.csv").write_text(f"seed,{name}\n0,1\n")
    assert side(tmp_path / "a.csv", NONE).lower == lower, name


@pytest.mark.parametrize(
  ("name", "argv", "better", "noted"),
  [
    ("loss", (), "less", False),
    ("accuracy", (), "more", False),
    ("quality", (), "more", True),
    ("quality", ("--lower",), "less", False),
    ("quality", ("--higher",), "more", False),
  ],
)
def test_a_verdict_says_which_side_is_better_and_whether_that_is_a_guess(
  typed, name, argv, better, noted
):
  files = {f"{each}_csv": f"seed,{name}\n0,{each == 'a'}\n1,1\n" for each in "ab"}
  files["c_csv"] = f"{name}\n1\n"
  said = " ".join(typed("b.csv", "a.csv", "c.csv", *argv, **files).split())
  assert said.count(f"({better} is better") == 2
  note = f"note: more is taken as better, as {name} does not say so; if less is, add --lower"
  assert said.count(note) == 2 * noted


@pytest.mark.parametrize("column", ["seed", "id"])
def test_seeds_and_examples_are_paired_however_a_number_is_spelled(tmp_path, column):
  spelled = {"a": ("0", "1", "12", "q 1"), "b": ("0.0", " 1", '"012."', " q 1 ")}
  for name, keys in spelled.items():
    rows = "".join(f"{key},{at}\n" for at, key in enumerate(keys))
    (tmp_path / f"{name}.csv").write_text(f"{column},score\n{rows}")
  lines = "".join(json.dumps({column: key, "score": 1}) + "\n" for key in (0.0, 1, "12", "q 1"))
  (tmp_path / "c.jsonl").write_text(lines)
  a, b, c = (side(tmp_path / name, NONE) for name in ("a.csv", "b.csv", "c.jsonl"))
  assert [*a.scores] == [*b.scores] == [*c.scores]


@pytest.mark.parametrize(
  ("name", "text", "typed"),
  [
    ("a.csv", "id;right\n0;1\n1;0\n", ()),
    ("a.csv", "id\tright\n0\t1\n1\t0\n", ()),
    ("a.csv", "sep=;\nid;right\n0;yes\n1;no\n", ()),
    ("a.csv", "id,right\n0,right\n1,wrong\n", ()),
    ("a.csv", "name,right\n0,right\n1,wrong\n", ("right", None, "name")),
    ("a.csv", "0,right\n1,wrong\n", ("2", None, "1")),
    ("a.csv", "0,1\n1,0\n", ("2", None, "1")),
    ("a.csv", 'id,text,score\n0,"a\nb, ""c""",1\n1,,0\n', ()),
    ("a.tsv", 'id\ttext\tscore\n0\t"Stop\t1\n1\tgo"\t0\n', ()),
    ("a.tsv", '"id"\t"text"\t"score"\n"0"\t"a\tb"\t1\n"1"\t"c"\t0\n', ()),
    ("a.csv", "id,text,text,score\n0,a,b,1\n1,a,b,0\n", ()),
  ],
)
def test_a_table_is_read_however_its_fields_are_separated_and_quoted(tmp_path, name, text, typed):
  (tmp_path / name).write_text(text)
  assert side(tmp_path / name, Columns(*typed)).scores == {("", "0"): 1, ("", "1"): 0}


@pytest.mark.parametrize(("name", "end"), [("a.jsonl", "\n"), ("A.NDJSON", "\r\n")])
def test_a_text_of_json_lines_may_have_what_other_programs_take_for_a_line_end(tmp_path, name, end):
  texts = ("a\u2028b", "a\u2029b", "a\u0085b", "a\u001cb")
  rows = ({"id": at, "text": text, "score": at} for at, text in enumerate(texts))
  lines = (json.dumps(row, ensure_ascii=False) + end for row in rows)
  (tmp_path / name).write_text("".join(lines), newline="", encoding="utf-8")
  assert [*side(tmp_path / name, NONE).scores.values()] == [0, 1, 2, 3]


MIXED = {"a_csv": "seed,wer\n0,1\n1,2\n", "b_csv": "seed,quality\n0,1\n1,3\n"}
OTHER = {"a_csv": "seed,loss\n0,1.1\n1,1.2\n", "b_csv": "seed,perplexity\n0,3.1\n1,3.2\n"}
CAPITALS = {"A_CSV": "seed,loss\n0,1\n1,2\n", "B_TXT": " \n1\n\n2\n"}
COMMAS = {"a_csv": "perplexity\n31,2\n30,5\n", "b_csv": "perplexity\n28,7\n27,6\n"}
SPREAD = {"a_csv": "seed,f1\n0,81\n1,80\n2,80\n", "b_csv": "seed,f1\n0,82\n1,83\n2,83\n"}
STEADY = {"a_csv": "seed,f1\n0,61\n1,69\n2,64\n", "b_csv": "seed,f1\n0,71\n1,79\n2,74\n"}
FEW = {"a_csv": "seed,f1\n0,70\n1,72\n2,71\n3,2", "b_csv": "seed,f1\n0,68\n1,70\n2,69.1"}
ALL = {
  f"{name}_csv": "\n".join(["seed,id,f1", *(f"{s},{i},{f1}" for s in range(9) for i in range(9))])
  for name, f1 in (("a", 0), ("b", 1))
}


@pytest.mark.parametrize(
  ("line", "files", "said"),
  [
    ("b.csv a.csv", MIXED, "error: less is better of wer in a, and more of quality in b; name the"),
    ("b.csv a.csv --lower", MIXED, "less is better"),
    ("b.csv a.csv", OTHER, "the score of a is loss, that of b perplexity"),
    ("A.CSV B.TXT --lower --figure F.SVG", CAPITALS, "B and A cannot be told apart"),
    ("a.csv b.csv", COMMAS, "a.csv, line 2: 2 fields where the header has 1; quote a field that"),
    ("a.csv b.csv --margin 9", SPREAD, "b is better than a by 2.33 f1, at most 9 by each interval"),
    ("a.csv b.csv", STEADY, "p = 0.250). A difference of 10.00 would take 6 seeds"),
    ("a.csv b.csv", FEW, "a is better than b by 1.97 f1 (more is better; over 3 seeds, 95 % 1.82"),
    ("a.csv b.csv", FEW, "note: compared over the 3 seeds that both have"),
    ("a.csv b.csv", ALL, "b is better than a by 1.0000 f1"),
  ],
)
def test_files_are_compared_whatever_their_names_and_numbers(typed, line, files, said):
  assert said in " ".join(typed(*line.split(), **files).split())
  assert "--figure" not in line or "<svg" in Path("F.SVG").read_text()


def test_a_folder_is_called_by_its_whole_name(tmp_path):
  write_run(tmp_path / "rate=0.1", "rope", 0, 0.5)
  assert side(tmp_path / "rate=0.1", NONE).name == "rope rate=0.1"


def test_a_folder_of_several_groups_is_refused_wherever_it_was_moved(tmp_path):
  for encoding in ("none", "rope"):
    for seed in (0, 1):
      moved = tmp_path / "moved" / encoding / f"seed={seed}"
      moved.parent.mkdir(parents=True, exist_ok=True)
      write_run(tmp_path / "runs", encoding, seed, 0.5).rename(moved)
  with pytest.raises(UserError, match="runs of several groups"):
    side(tmp_path / "moved", NONE)


@pytest.mark.parametrize(
  ("text", "name", "said"),
  [
    ("seed,score\n0,1\n1,x\n", "a.csv", "a.csv, line 3, column score: x is no number"),
    ("seed,score\n0,1\n1\n", "a.csv", "a.csv, line 3: 1 fields where the header has 2"),
    ("id,score\n0,1\n0,2\n", "a.csv", "twice; is a column for the seed missing (--seed)?"),
    ("0,1\n1,2\n", "a.csv", "a.csv, line 1: a header is missing; name the columns"),
    ("seed,score\n ,1\n", "a.csv", "a.csv, line 2, column seed: it is empty"),
    ("id,reference,hypothesis,score\n0,a,a,1\n", "a.csv", "the score of a translation may be how"),
    ("seed,score\n0,1\n0.0,2\n", "a.csv", "a.csv, line 3: seed 0 stands there twice"),
    ("seed,x,y\n0,1,2\n", "a.csv", "a.csv: which column is the score? Type --score, one of seed"),
    ("right\nwrong\n", "a.csv", "if line 1 is the header, add --score right"),
    ("seed,score,score\n0,1,2\n", "a.csv", "line 2: two columns are called score; rename one"),
    ('{"score": 1, "score": 2}', "a.jsonl", "line 1: two columns are called score; rename one"),
    ("seed;score\n0;0,5\n", "a.csv", "column score: 0,5 is no number; write it without a com"),
    ("", "a.csv", "a.csv: the file is empty; give one with at least one row"),
    ("seed,score\n", "a.csv", "a.csv: no rows below the header"),
    ('{"score": 1}\n{"score": \n', "a.jsonl", "a.jsonl, line 2: no JSON: "),
    ("1\ntwo\n", "a.txt", "a.txt, line 2, column score: two is no number"),
    ("1\n", "a.xlsx", "a.xlsx: files of results are .csv, .tsv, .jsonl"),
    ("id,score\n7,1\n8,0\n", "a.csv", "share 0 examples; --example names the column by which"),
  ],
)
def test_a_bad_file_is_refused_in_a_sentence(typed, text, name, said):
  Path(name).write_text(text)
  good = "id,score\n1,1\n2,0\n" if "id" in text else "seed,score\n0,1\n1,2\n"
  found = typed("good.csv", name, good_csv=good)
  assert found.startswith("posexp: error: ")
  assert found.count("\n") == 1
  assert said in found


@pytest.mark.parametrize(
  ("argv", "said"),
  [
    (["a.csv"], "a.csv: name two files or more"),
    (["a.csv", "b.csv"], "a.csv: there is no such file"),
    (["a.csv", "b.csv", "--margin", "0"], "--margin 0: it must be above 0"),
    (["a.csv", "b.csv", "--figure", "x.gif"], "--figure x.gif: give it the ending .svg, .pdf"),
    (["a.csv", "b.csv", "--lower", "--higher"], "--lower and --higher: leave one out"),
  ],
)
def test_a_bad_command_line_is_refused_in_a_sentence(typed, argv, said):
  assert said in typed(*argv)
