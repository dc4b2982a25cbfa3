"""Two runs held against each other, from what they have written alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from compared import REFERENCES, answers, spoiled, translations, typed, write
from run_folders import A, B, sweep
from scipy import stats

from posexp.errors import UserError
from posexp.reporting import comparison

WRONG = {"good": range(10, 15), "bad": range(14, 40)}  # by the name of a run


@pytest.fixture
def good(tmp_path):
  return write(tmp_path / "good", translations(WRONG["good"]))


@pytest.fixture
def bad(tmp_path):
  return write(tmp_path / "bad", translations(WRONG["bad"]), encoding="sinusoidal")


def test_references_too_short_for_bleu_are_compared_by_chrf(tmp_path):
  short = [" ".join(reference.split()[3:]) for reference in REFERENCES]
  rows = [{"source": f"{i}", "reference": text} for i, text in enumerate(short)]
  said = [[row | {"hypothesis": row["reference"][:end]} for row in rows] for end in (None, 3)]
  found = typed(*(write(tmp_path / name, each) for name, each in zip("ab", said, strict=True)))
  assert [*found["metrics"]] == ["chrf", "exact_match"]
  assert found["metrics"]["chrf"]["a"]["value"] == 100
  assert " chrF (over 60 sentences" in found["verdict"]


def test_translations_are_compared_by_what_sacrebleu_makes_of_them(good, bad, capsys, monkeypatch):
  found = typed(good, bad, "--json", good / "all" / "numbers.json")
  out = capsys.readouterr().out
  assert json.loads((good / "all" / "numbers.json").read_text()) == found
  for side, wrong in zip("ab", WRONG.values(), strict=True):
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
  assert max(map(len, lines[2:-1])) <= 100
  assert lines[-1].startswith("written: ")
  assert " ".join(lines).count(found["verdict"]) == 1
  # The same is found every time, and the other way round.
  monkeypatch.setenv("SACREBLEU_SEED", "7")
  back = typed(bad, good)
  for name, one in found["metrics"].items():
    other = back["metrics"][name]
    assert one["difference"]["low"] == pytest.approx(-other["difference"]["high"])
    assert (one["p"], one["a"]) == (other["p"], other["b"])
  assert found["verdict"] == back["verdict"]


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
  sides = [np.divide(each, 0.6) for each in ((20, 21, 17), (5, 8, 6))]
  test = stats.ttest_ind(*sides, equal_var=False)
  assert over["p"] == pytest.approx(test.pvalue, abs=0.002)
  assert (over["low"], over["high"]) == pytest.approx(test.confidence_interval(0.95), abs=2)
  both = exact["over_both"]
  assert both["low"] < over["low"] < over["high"] < both["high"]
  assert found["verdict"].startswith("rpr is better than none by 21.67 points of exact match (")
  out = capsys.readouterr().out
  assert "One seed each" not in out
  assert "over seeds: Welch's t test; over both: the variance of seeds" in " ".join(out.split())


def test_a_run_of_a_group_is_compared_with_its_seed(tmp_path, good, bad):
  for seed in (0, 1):
    write(tmp_path / "group" / f"seed={seed}", translations([seed]), encoding="none")
  assert typed(tmp_path / "group", good)["seeds"] == [[0, 0]]
  two = typed(tmp_path / "group" / "seed=0", tmp_path / "group" / "seed=1")
  assert two["seeds"] == [[0, 1]]
  assert (two["a"]["name"], two["b"]["name"], two["differs"]) == ("none seed=0", "none seed=1", {})


def test_runs_whose_short_names_are_the_same_have_letters(tmp_path):
  long = "a" * 30
  one, other = (write(tmp_path / x, translations([1]), source=long + x) for x in "xy")
  found = typed(one, other)
  assert (found["a"]["name"], found["b"]["name"]) == ("A: rpr", "B: rpr")


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
  with pytest.raises(UserError, match="--examples must be at least 0, not -1"):
    typed(good, bad, "--examples", -1)


def test_another_split_can_be_compared(good, bad):
  for path, wrong in ((good, [0]), (bad, [0, 1])):
    write(path, translations(wrong, REFERENCES[:4]), split="beyond", encoding=path.name)
  found = typed(good, bad, "--split", "beyond")
  assert found["examples"] == 4
  assert found["metrics"]["exact_match"]["b"]["value"] == 50


RIGHT = translations([])


def other_reference(run):
  rows = translations([])
  rows[3]["reference"], rows[5]["reference"] = "ganz anders", "auch"
  write(run, rows)


def torn(run):
  file = write(run, RIGHT) / "predictions" / "test.jsonl"
  file.write_bytes(file.read_bytes()[:-20])


def groups(run):
  for encoding in ("none", "rpr"):
    write(run / encoding / "seed=0", RIGHT, encoding=encoding)


BROKEN = {
  "none": (lambda run: None, "RUN: there is no such folder"),
  "empty": (Path.mkdir, "RUN: no runs found; python -m posexp.train keeps them in runs/"),
  "unfinished": (
    lambda run: write(run, RIGHT, done=False),
    "RUN has not finished: the command that started it goes on with it",
  ),
  "no predictions": (
    lambda run: (write(run, RIGHT) / "predictions/test.jsonl").unlink(),
    "RUN has no predictions of the split test",
  ),
  "others": (
    lambda run: write(run, RIGHT, split="beyond"),
    "RUN has no predictions of the split test; it has those of beyond",
  ),
  "torn": (
    torn,
    "RUN/predictions/test.jsonl, line 60: not a prediction; the training command, typed again, "
    "makes it again",
  ),
  "task": (
    lambda run: write(run, answers([]), kind="text_classification"),
    "RUN is a run of classification, and GOOD of translation: name runs of one task",
  ),
  "reference": (other_reference, "RUN has other test data than GOOD, from example 3 on"),
  "fewer": (
    lambda run: write(run, translations([], REFERENCES[:50])),
    "RUN has other test data than GOOD, from example 50 on",
  ),
  "groups": (
    groups,
    "RUN holds several groups of runs: name a run, or the folder of the seeds of one group",
  ),
  "seeds": (
    lambda run: [write(run / f"seed={seed}", RIGHT) for seed in (4, 5)],
    "GOOD and RUN share no seed with which both have finished",
  ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_compared_is_said_in_a_sentence(good, tmp_path, name):
  make, message = BROKEN[name]
  make(run := tmp_path / "run")
  with pytest.raises(UserError) as error:
    typed(good, run)
  assert str(error.value) == message.replace("RUN", str(run)).replace("GOOD", str(good))


def test_other_texts_are_not_compared_though_their_labels_agree(tmp_path):
  runs = [
    write(tmp_path / text, answers([], text=text), kind="text_classification", folds=10, fold=fold)
    for fold, text in enumerate(("film", "book"))
  ]
  with pytest.raises(UserError, match=r"other test data than .*, from example 0 on"):
    typed(*runs)


def test_a_file_that_cannot_be_written_is_named(good, bad, tmp_path):
  with pytest.raises(UserError, match=r"--json .*/y cannot be written: .*config.yaml is a file"):
    typed(good, bad, "--json", good / "config.yaml/x/y")


READERS = """
import contextlib, sys
from posexp import compare, report
from posexp.judging import command
for main, *argv in (
  (report.main, "runs"), (command.main, "a.csv", "b.csv"), (compare.main, "good", "bad"),
  (compare.main, "good", "good"),
):
  assert not {"jax", "flax", "wandb"} & sys.modules.keys(), argv
  sys.argv[1:] = argv
  with contextlib.suppress(SystemExit):
    main()
"""


def test_what_reads_results_needs_no_jax_and_fails_without_a_traceback(good, bad):
  sweep(good.parent / "runs", {"sinusoidal": B, "rpr": A})
  for name in ("a.csv", "b.csv"):
    (good.parent / name).write_text("seed,loss\n0,1\n1,2\n")
  argv = [sys.executable, "-c", READERS]
  done = subprocess.run(argv, capture_output=True, text=True, cwd=good.parent)
  assert (good.parent / "report/report.html").exists()
  assert "cannot be told apart: 0.0000 loss for " in done.stdout
  assert "rpr is better than sinusoidal by " in done.stdout
  assert done.stderr == "posexp: error: good is compared with itself: name two runs\n"


def result(difference, p, over=None, seeds=1):
  found = {"difference": dict(zip(("value", "low", "high"), difference, strict=True)), "p": p}
  if over:
    found["over_seeds"] = dict(zip(("low", "high", "p"), over, strict=True))
  return {
    "a": {"name": "one"},
    "b": {"name": "two"},
    "items": "sentences",
    "metric": "bleu",
    "examples": 1000,
    "seeds": [[seed, seed] for seed in range(seeds)],
    "metrics": {"bleu": found},
  }


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (
      result((-1.8, -2.7, -0.9), 0.0004),
      "two is better than one by 1.80 BLEU (over 1,000 sentences, 95 % 0.90 to 2.70, p < 0.001).",
    ),
    (
      result((0.0, -0.9, 0.9), 1),
      "one and two cannot be told apart: 0.00 BLEU for one (over 1,000 sentences, 95 % -0.90 to "
      "0.90, p = 1.000).",
    ),
    (
      result((1.8, -0.01, 2.7), 0.049),  # the interval is not so sure
      "one and two cannot be told apart: 1.80 BLEU for one (over 1,000 sentences, 95 % -0.01 to "
      "2.70, p = 0.049).",
    ),
    (
      result((-1.8, -2.7, -0.9), 0.002, (-4.0, 0.4, 0.08), 3),
      "two and one cannot be told apart: 1.80 BLEU for two (over 1,000 sentences, 95 % 0.90 to "
      "2.70, p = 0.002; over 3 seeds, 95 % -0.40 to 4.00, p = 0.080).",
    ),
    (
      result((1.8, 0.9, 2.7), 0.002, (None, None, 0.1), 3),
      "one and two cannot be told apart: 1.80 BLEU for one (over 1,000 sentences, 95 % 0.90 to "
      "2.70, p = 0.002; over 3 seeds, the same difference with each, p = 0.100).",
    ),
  ],
)
def test_the_verdict_is_a_plain_sentence(given, said):
  assert comparison.verdict(given) == said
