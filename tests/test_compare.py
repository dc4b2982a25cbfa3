"""Two runs held against each other, from what they have written alone."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
import yaml
from scipy import stats

from posexp import compare
from posexp.errors import UserError

REFERENCES = [
  " ".join(words)
  for words in itertools.islice(
    itertools.permutations(["zwei", "Hunde", "laufen", "heute", "am", "Fluss"]), 0, 720, 12
  )
]  # 60


SCORES = {"test/bleu": 50.0, "test/exact_match": 0.5}  # of translations; classes have neither


def spoiled(sentences, wrong):
  """The sentences, of which those at `wrong` have another word than their fourth."""
  words = [each.split() for each in sentences]
  return [
    " ".join([*each[:3], "Katzen", *each[4:]] if index in wrong else each)
    for index, each in enumerate(words)
  ]


def write(path, rows, *, encoding="rpr", kind="translation", done=True, split="test", **options):
  """A run's folder, made by hand; its seed is that of the folder's name."""
  (path / "predictions").mkdir(parents=True, exist_ok=True)
  seed = int(path.name.partition("=")[2] or 0)
  config = {"encoding": encoding, encoding: {"k": 4} if encoding == "rpr" else {}}
  config["task"] = {"kind": kind, "name": "t", "target": "de", **options}
  config |= {"seed": seed, "runs": str(path)}
  (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
  if done:
    parameters = 1_000 if encoding == "rpr" else 900
    measured = SCORES | ({"test/f1": 0.5} if kind == "parsing" else {})
    summary = {"step": 9, "parameters": parameters, **measured}
    (path / "summary.json").write_text(json.dumps(summary))
  text = "".join(json.dumps({"index": index} | row) + "\n" for index, row in enumerate(rows))
  (path / "predictions" / f"{split}.jsonl").write_text(text)
  return path


def translations(wrong, references=REFERENCES):
  return [
    {"source": f"two dogs {index}", "reference": reference, "hypothesis": said}
    for index, (reference, said) in enumerate(
      zip(references, spoiled(references, wrong), strict=True)
    )
  ]


def answers(wrong, count=40, text="film"):
  return [
    {"text": f"{text} {index}", "label": "pos", "loss": index / count}
    | {"prediction": "neg" if index in wrong else "pos"}
    for index in range(count)
  ]


def typed(*argv):
  return compare.compare(compare.arguments(list(map(str, argv))))


@pytest.fixture
def good(tmp_path):
  return write(tmp_path / "good", translations(range(10, 15)))


@pytest.fixture
def bad(tmp_path):
  return write(tmp_path / "bad", translations(range(14, 40)), encoding="sinusoidal")


def test_numbers_in_words_are_compared_by_exact_match(tmp_path):
  a = write(tmp_path / "a", translations(range(10, 15)), kind="numbers")
  b = write(tmp_path / "b", translations(range(14, 40)), kind="numbers", encoding="none")
  assert "points of exact match" in typed(a, b)["verdict"]


def test_translations_are_compared_by_what_sacrebleu_makes_of_them(good, bad, capsys):
  found = typed(good, bad, "--json", good / "all" / "numbers.json")
  out = capsys.readouterr().out
  assert json.loads((good / "all" / "numbers.json").read_text()) == found
  for side, wrong in (("a", range(10, 15)), ("b", range(14, 40))):
    said = spoiled(REFERENCES, wrong)
    expected = {
      "bleu": sacrebleu.corpus_bleu(said, [REFERENCES]).score,
      "chrf": sacrebleu.corpus_chrf(said, [REFERENCES]).score,
      "exact_match": 100 * (60 - len(wrong)) / 60,
    }
    for metric, score in expected.items():
      interval = found["metrics"][metric][side]
      assert interval["value"] == pytest.approx(score)
      assert interval["low"] < score < interval["high"]
  bleu = found["metrics"]["bleu"]
  assert bleu["difference"]["value"] == pytest.approx(bleu["a"]["value"] - bleu["b"]["value"])
  assert bleu["p"] < 0.002
  assert found["verdict"].startswith(
    f"rpr is better than sinusoidal by {bleu['difference']['value']:.2f} BLEU (over 60 sentences, "
  )
  assert found["verdict"].endswith("p < 0.001).")
  exact = found["metrics"]["exact_match"]
  assert exact["mcnemar"]["a_alone"] == 25  # 15 to 39
  assert exact["mcnemar"]["b_alone"] == 4  # 10 to 13
  assert exact["p"] == stats.binomtest(4, 29).pvalue
  assert found["differs"] == {
    "encoding": ["rpr", "sinusoidal"],
    "rpr.k": [4, None],
    "parameters": [1000, 900],
  }
  assert "rpr.k       4     —" in out
  lines = out.splitlines()
  assert "One seed each: what another seed would give is not in this test." in " ".join(lines)
  assert max(map(len, lines[2:])) <= 100
  assert " ".join(lines).count(found["verdict"]) == 1


def test_the_other_way_round_the_same_is_found(good, bad):
  there, back = typed(good, bad), typed(bad, good)
  one, other = (each["metrics"]["chrf"] for each in (there, back))
  assert one["difference"]["low"] == pytest.approx(-other["difference"]["high"])
  assert one["p"] == other["p"]
  assert there["verdict"] == back["verdict"]


def test_the_result_is_the_same_every_time(good, bad, monkeypatch):
  first = typed(good, bad)
  monkeypatch.setenv("SACREBLEU_SEED", "7")
  assert typed(good, bad) == first


def test_what_little_differs_cannot_be_told_apart(tmp_path):
  a = write(tmp_path / "a", translations(range(10, 15)), kind="numbers")
  b = write(tmp_path / "b", translations(range(11, 16)), kind="numbers", encoding="none")
  found = typed(a, b)
  assert found["verdict"].startswith(
    "rpr and none cannot be told apart: 0.00 points of exact match for rpr (over 60 sentences, "
  )
  assert found["metrics"]["exact_match"]["p"] == 1


def test_classifications_are_compared_by_mcnemar_s_test(tmp_path, capsys):
  a = write(tmp_path / "a", answers([1, 2, 3]), kind="text_classification")
  b = write(tmp_path / "b", answers(range(3, 20)), kind="text_classification", encoding="none")
  found = typed(a, b, "--examples", 3)
  accuracy = found["metrics"]["accuracy"]
  assert (accuracy["a"]["value"], accuracy["b"]["value"]) == (92.5, 57.5)
  assert accuracy["mcnemar"]["a_alone"] == 16
  assert accuracy["mcnemar"]["b_alone"] == 2
  assert accuracy["p"] == pytest.approx(2 * (1 + 18 + 153) / 2**18)
  # Of the difference of a pair, which is 1 in 16 of 40, −1 in 2 of 40, else 0.
  error = 100 * ((18 / 40 - 0.35**2) / 40) ** 0.5
  assert accuracy["difference"]["low"] == pytest.approx(35 - 1.96 * error, abs=0.3 * error)
  assert accuracy["difference"]["high"] == pytest.approx(35 + 1.96 * error, abs=0.3 * error)
  assert "rpr is better than none by 35.00 points of accuracy" in found["verdict"]
  assert [row["index"] for row in found["shown"]] == [1, 2, 4]  # not 3, which both have wrong
  out = capsys.readouterr().out
  assert (
    "example 1\n  source     film 1\n  reference  pos\n  rpr        neg\n  none       pos\n" in out
  )
  assert "McNemar's exact test, texts right with A alone 16, with B alone 2." in " ".join(
    out.split()
  )


def parses(seed):
  """Predictions of a parser, and their counts int [N,3]."""
  random = np.random.default_rng(seed)
  gold = np.arange(80) % 7 + 2
  matched = random.binomial(gold, 0.8 if seed else 0.5)
  counts = np.stack([matched, gold, matched + random.integers(0, 3, 80)], 1)
  rows = [
    dict(zip(("matched", "gold", "predicted"), of_row, strict=True))
    | {"text": f"sentence {index}", "tree": "(TOP a)", "parse": f"(TOP {of_row[0]})"}
    for index, of_row in enumerate(counts.tolist())
  ]
  return rows, counts


def test_parsers_are_compared_by_f1_over_all_brackets(tmp_path, capsys):
  sides = [parses(seed) for seed in (1, 0)]
  runs = [
    write(tmp_path / name, rows, kind="parsing", encoding=name)
    for name, (rows, _) in zip(("rpr", "none"), sides, strict=True)
  ]
  found = typed(*runs)
  f1, exact = (found["metrics"][name] for name in ("f1", "exact_match"))
  assert "mcnemar" not in f1
  assert exact["mcnemar"]["p"] == exact["p"]
  residuals = 0
  for side, sign, (_, counts) in zip("ab", (1, -1), sides, strict=True):
    matched, gold, predicted = counts.sum(0)
    assert f1[side]["value"] == pytest.approx(200 * matched / (gold + predicted))
    assert exact[side]["value"] == pytest.approx(100 * (np.ptp(counts, 1) == 0).mean())
    sizes = counts[:, 1:].sum(1)
    of_each = 200 * counts[:, 0] - f1[side]["value"] * sizes
    residuals += sign * of_each / sizes.sum()
  # The delta method: the error of a difference of ratios, paired by sentences.
  error = np.sqrt((residuals**2).sum())
  for side, sign in (("low", -1), ("high", 1)):
    bound = f1["difference"]["value"] + sign * 1.96 * error
    assert f1["difference"][side] == pytest.approx(bound, abs=0.3 * error)
  assert "points of F1" in found["verdict"]
  assert "paired bootstrap over sentences; p of exact match: McNemar" in " ".join(
    capsys.readouterr().out.split()
  )
  write(tmp_path / "none", [row | {"gold": "two"} for row in parses(0)[0]], kind="parsing")
  with pytest.raises(UserError, match="no whole numbers in matched, gold, predicted"):
    typed(*runs)


def test_groups_are_paired_by_seed_and_tested_over_seeds_too(tmp_path, capsys):
  # Of 60 sentences so many are wrong, by seed.
  for name, counts in (("rpr", {0: 5, 1: 8, 2: 6, 5: 1}), ("none", {0: 20, 1: 21, 2: 17, 9: 1})):
    for seed, count in counts.items():
      path = tmp_path / name / f"seed={seed}"
      write(path, translations(range(count)), encoding=name, kind="numbers")
  write(tmp_path / "rpr" / "seed=9", translations([]), done=False)
  found = typed(tmp_path / "rpr", tmp_path / "none")
  assert found["seeds"] == [[0, 0], [1, 1], [2, 2]]
  assert found["notes"] == [
    f"left out, since not finished: {tmp_path}/rpr/seed=9",
    f"left out, since the other has no such seed: {tmp_path}/rpr/seed=5",
    f"left out, since the other has no such seed: {tmp_path}/none/seed=9",
  ]
  exact = found["metrics"]["exact_match"]
  assert exact["difference"]["value"] == pytest.approx(100 * 39 / 3 / 60)
  assert "mcnemar" not in exact
  over = exact["over_seeds"]
  test = stats.ttest_1samp([15 / 0.6, 13 / 0.6, 11 / 0.6], 0)
  assert over["p"] == pytest.approx(test.pvalue)
  assert (over["low"], over["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
  assert found["verdict"].startswith("rpr is better than none by 21.67 points of exact match (")
  out = capsys.readouterr().out
  assert "One seed each" not in out
  assert "over seeds: paired t test." in out


def test_a_run_of_a_group_is_compared_with_its_seed(tmp_path, good, bad):
  for seed in (0, 1):
    write(tmp_path / "group" / f"seed={seed}", translations([seed]), encoding="none")
  assert typed(tmp_path / "group", good)["seeds"] == [[0, 0]]
  two = typed(tmp_path / "group" / "seed=0", tmp_path / "group" / "seed=1")
  assert two["seeds"] == [[0, 1]]
  assert (two["a"]["name"], two["b"]["name"], two["differs"]) == ("none seed=0", "none seed=1", {})


def test_examples_are_those_that_differ_most(good, bad, capsys):
  rows = translations([])
  rows[7]["hypothesis"] = "\x1b[2J  nein\n nein"
  other = write(good.parent / "other", rows, encoding="none")
  found = typed(good, other, "--examples", 2)
  assert found["shown"][0]["index"] == 7
  assert 10 <= found["shown"][1]["index"] < 15
  out = capsys.readouterr().out
  assert "\x1b" not in out
  assert "none       �[2J nein nein\n" in out
  equal = write(good.parent / "equal", translations(range(10, 15)), encoding="none")
  assert typed(good, equal)["shown"] == []
  assert typed(good, bad, "--examples", 0)["shown"] == []


def test_another_split_can_be_compared(good, bad):
  for path, wrong in ((good, [0]), (bad, [0, 1])):
    write(path, translations(wrong, REFERENCES[:4]), split="beyond", encoding=path.name)
  found = typed(good, bad, "--split", "beyond")
  assert found["examples"] == 4
  assert found["metrics"]["exact_match"]["b"]["value"] == 50


def other_reference(path):
  rows = translations([])
  rows[3]["reference"] = "ganz anders"
  rows[5]["reference"] = "auch"
  return write(path / "run", rows)


def torn(path):
  run = write(path / "run", translations([]))
  file = run / "predictions" / "test.jsonl"
  file.write_bytes(file.read_bytes()[:-20])
  return run


def without(name):
  def make(path):
    run = write(path / "run", translations([]))
    (run / name).unlink()
    return run

  return make


def seeds(path):
  for seed in (4, 5):
    write(path / "run" / f"seed={seed}", translations([]))
  return path / "run"


def nothing(path):
  (path / "run").mkdir()
  return path / "run"


BROKEN = {
  "none": (lambda path: path / "run", "RUN: there is no such folder"),
  "empty": (nothing, "RUN: no runs found; python -m posexp.train keeps them in runs/"),
  "unfinished": (
    without("summary.json"),
    "RUN has not finished: the command that started it goes on with it",
  ),
  "itself": (lambda path: path / "good", "GOOD is compared with itself: name two runs"),
  "no predictions": (
    without("predictions/test.jsonl"),
    "RUN has no predictions of the split test",
  ),
  "others": (
    lambda path: write(path / "run", translations([]), split="beyond"),
    "RUN has no predictions of the split test; it has those of beyond",
  ),
  "torn": (
    torn,
    "RUN/predictions/test.jsonl, line 60: not a prediction; the training command, typed again, "
    "makes it again",
  ),
  "void": (
    lambda path: write(path / "run", []),
    "RUN has no predictions of the split test",
  ),
  "task": (
    lambda path: write(path / "run", answers([]), kind="text_classification"),
    "RUN is a run of classification, and GOOD of translation: name runs of one task",
  ),
  "reference": (
    other_reference,
    "RUN has other test data than GOOD, from example 3 on",
  ),
  "fewer": (
    lambda path: write(path / "run", translations([], REFERENCES[:50])),
    "RUN has other test data than GOOD, from example 50 on",
  ),
  "seeds": (seeds, "GOOD and RUN share no seed with which both have finished"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_compared_is_said_in_a_sentence(good, tmp_path, name):
  make, message = BROKEN[name]
  run = make(tmp_path)
  with pytest.raises(UserError) as error:
    typed(good, run)
  assert str(error.value) == message.replace("RUN", str(tmp_path / "run")).replace(
    "GOOD", str(good)
  )


def test_a_config_that_cannot_be_read_is_named(good, tmp_path):
  run = write(tmp_path / "run", translations([]))
  for text, problem in (
    ("a: [", ": its config.yaml is broken"),
    ("a: 1\n", " is a folder of another"),
  ):
    (run / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=f"run{problem}"):
      typed(good, run)


def test_other_texts_are_not_compared_though_their_labels_agree(tmp_path):
  runs = [
    write(tmp_path / text, answers([], text=text), kind="text_classification", folds=10, fold=fold)
    for fold, text in enumerate(("film", "book"))
  ]
  with pytest.raises(UserError, match=r"other test data than .*, from example 0 on"):
    typed(*runs)


def test_a_task_of_one_s_own_is_compared_by_its_columns(tmp_path):
  rows = [{"label": index % 3, "prediction": 0} for index in range(30)]
  a = write(tmp_path / "a", rows, kind="first")
  b = write(tmp_path / "b", [row | {"prediction": row["label"]} for row in rows], kind="first")
  found = typed(a, b)
  assert found["metrics"]["accuracy"]["b"]["value"] == 100
  assert [row["reference"] for row in found["shown"]] == ["1", "2", "1", "2", "1"]
  for each in (a, b):
    write(each, [{"pitch": 0.5}], kind="first")
  with pytest.raises(
    UserError, match="its predictions cannot be compared, for want of columns reference"
  ):
    typed(a, b)


def test_a_folder_of_several_groups_is_refused(tmp_path, good):
  for encoding in ("none", "rpr"):
    write(tmp_path / "task" / encoding / "seed=0", translations([]), encoding=encoding)
  with pytest.raises(UserError, match="task holds several groups of runs: name a run, or "):
    typed(tmp_path / "task", good)


def test_a_file_that_cannot_be_written_is_named(good, bad, tmp_path):
  with pytest.raises(UserError, match=r"--json .*/y cannot be written: Not a directory"):
    typed(good, bad, "--json", good / "config.yaml/x/y")


def test_the_command_needs_no_jax_and_fails_without_a_traceback(good, bad):
  code = (
    "import sys; from posexp.compare import main; main();"
    "print([name for name in ('jax', 'flax', 'wandb') if name in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code, good, bad], capture_output=True, text=True, timeout=60
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[-1] == "[]"
  command = [sys.executable, "-m", "posexp.compare", good, good]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == f"posexp: error: {good} is compared with itself: name two runs\n"
