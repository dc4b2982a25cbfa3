"""What each kind of task is compared by: its own metric, with the test that suits it."""

import numpy as np
import pytest
from compared import answers, typed, write

from posexp.errors import UserError


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
  with pytest.raises(UserError, match="no numbers in matched, gold, predicted"):
    typed(*runs)


def test_answers_of_diagnostics_are_compared_by_exact_match(tmp_path):
  def run(name, wrong):
    rows = [
      {"input": f"{index} 1", "reference": "1 1", "tokens": 3, "right": 3 - (index in wrong)}
      for index in range(40)
    ]
    rows = [row | {"exact": row["right"] == row["tokens"]} for row in rows]
    return write(tmp_path / name, rows, kind="copy", encoding=name)

  found = typed(run("rpr", [1, 2, 3]), run("none", range(3, 20)))
  exact = found["metrics"]["exact_match"]
  assert (exact["a"]["value"], exact["b"]["value"]) == (92.5, 57.5)
  assert [row["index"] for row in found["shown"]] == [1, 2, 4, 5, 6]


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
