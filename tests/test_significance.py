"""Estimates and tests against sacrebleu, scipy and computations of another kind."""

import math
import random

import numpy as np
import pytest
import sacrebleu
from run_folders import sweep
from sacrebleu.significance import PairedTest
from scipy import integrate, stats

from posexp.reporting import significance
from posexp.reporting.results import results
from posexp.runs import read_runs

A = [0.81, 0.83, 0.80, 0.86, 0.84, 0.82]
B = [0.79, 0.80, 0.80, 0.81, 0.80, 0.79]
C = [0.80, 0.82, 0.79, 0.83, 0.80, 0.80]
WORDS = ["a", "man", "rides", "old", "bicycles", "along", "the", "river", "while", "it", "rains"]


def corpus(errors, seed, length=60):
  """References, and hypotheses in which each word is another with the chance `errors`."""
  draw, noise = random.Random(0), random.Random(seed)
  references = [draw.choices(WORDS, k=draw.randint(4, 14)) for _ in range(length)]
  hypotheses = [
    [noise.choice(WORDS) if noise.random() < errors else word for word in each]
    for each in references
  ]
  return [" ".join(each) for each in references], [" ".join(each) for each in hypotheses]


@pytest.mark.parametrize("metric", [sacrebleu.BLEU(), sacrebleu.CHRF()], ids=["BLEU", "chrF"])
def test_the_bootstrap_is_that_of_sacrebleu(metric, monkeypatch):
  monkeypatch.delenv("SACREBLEU_SEED", raising=False)
  references, a = corpus(0.3, seed=1)
  _, b = corpus(0.34, seed=2)
  systems, samples = [("a", a), ("b", b)], 200
  test = PairedTest(systems, {"m": metric}, [references], test_type="bs", n_samples=samples)
  _, found = test()
  (theirs_a, theirs_b) = next(value for name, value in found.items() if name != "System")

  measures = [significance.corpus_measure(metric, each, references) for each in (a, b)]
  ours_a, ours_b = significance.resample(measures, samples)
  for ours, theirs in ((ours_a, theirs_a), (ours_b, theirs_b)):
    found = significance.interval(ours)
    assert found["value"] == pytest.approx(theirs.score, abs=1e-9)
    assert ours[1:].mean() == pytest.approx(theirs.mean, abs=1e-5)  # of float32
    assert (found["high"] - found["low"]) / 2 == pytest.approx(theirs.ci, abs=1e-5)


def test_two_samples_of_a_share_are_drawn_alike_and_spread_as_theory_says():
  right = np.arange(400) % 4 < 3
  a, same, opposite = significance.resample(
    [significance.share_measure(each) for each in (right, right, ~right)], 2000
  )
  assert a[0] == 75
  assert significance.bootstrap_p(a - same) == 1
  assert significance.interval(a - same) == {"value": 0, "low": 0, "high": 0}
  np.testing.assert_allclose(a + opposite, 100)
  error = 100 * math.sqrt(0.75 * 0.25 / 400)
  assert a[1:].std() == pytest.approx(error, rel=0.05)
  assert significance.interval(a)["low"] == pytest.approx(75 - 1.96 * error, abs=0.15 * error)
  assert significance.interval(a)["high"] == pytest.approx(75 + 1.96 * error, abs=0.15 * error)


@pytest.mark.parametrize("errors", [0, 0.5, 1, 1.96, -1.96, 2.58])
def test_p_of_the_bootstrap_is_that_of_a_two_sided_test(errors):
  samples = np.random.default_rng(0).normal(errors, 1, 20_000)
  found = significance.bootstrap_p(np.array([errors, *samples]))
  assert found == pytest.approx(2 * stats.norm.sf(abs(errors)), abs=0.008)


@pytest.mark.parametrize("alone", [(0, 0), (1, 0), (5, 0), (8, 2), (2, 8), (30, 30), (7, 19)])
def test_mcnemar_is_the_binomial_tail_doubled(alone):
  a = np.array([True] * alone[0] + [False] * alone[1] + [True, False] * 4)
  b = np.array([False] * alone[0] + [True] * alone[1] + [True, False] * 4)
  n = sum(alone)
  tail = sum(math.comb(n, k) for k in range(min(alone) + 1)) / 2**n
  found = significance.mcnemar(a, b)
  assert (found["a_alone"], found["b_alone"]) == alone
  assert found["p"] == pytest.approx(min(2 * tail, 1))


def test_the_paired_t_test_is_that_of_scipy():
  a, b = [31.0, 32.5, 30.4, 33.0], [30.1, 30.9, 30.2, 31.2]
  test = stats.ttest_rel(a, b)
  found, p = significance.paired_t(a, b)
  assert found.n == 4
  assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
  assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
  assert p == pytest.approx(test.pvalue)


def test_differences_that_are_all_alike_have_no_interval():
  found, p = significance.paired_t([30.1, 31.1], [30.0, 31.0])
  assert (found.n, found.mean) == (2, pytest.approx(0.1))
  assert (found.low, found.high, p) == (None, None, None)


def test_an_estimate_is_that_of_a_t_interval():
  found = significance.estimate(A)
  sd = math.sqrt(sum((each - sum(A) / 6) ** 2 for each in A) / 5)
  low, high = stats.t.interval(0.95, 5, loc=np.mean(A), scale=stats.sem(A))
  assert found == pytest.approx((6, sum(A) / 6, sd, low, high))


def test_one_score_has_no_spread_and_equal_ones_no_interval():
  assert significance.estimate([0.5]) == (1, 0.5, None, None, None)
  assert significance.estimate([0.1, 0.1, 0.1]) == (3, pytest.approx(0.1), 0.0, None, None)


def test_holm_is_what_its_steps_say():
  # By hand: 0.01 × 4, then 0.02 × 3, then 0.03 × 2 which must not be below 0.06, then 0.5.
  assert significance.holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
  assert significance.holm([0.6, 0.7]) == [1.0, 1.0]
  assert significance.holm([]) == []


@pytest.mark.parametrize(("n", "effect"), [(3, 0.5), (8, 1.2), (40, 0.4)])
def test_power_is_the_integral_over_what_the_deviation_may_be(n, effect):
  bound = stats.t.ppf(0.975, n - 1)

  def rejects(s):  # given the deviation, the mean is normal
    shift = effect * math.sqrt(n)
    outside = stats.norm.sf(bound * s - shift) + stats.norm.cdf(-bound * s - shift)
    return outside * stats.chi.pdf(s * math.sqrt(n - 1), n - 1) * math.sqrt(n - 1)

  expected, _ = integrate.quad(rejects, 0, 10)
  assert significance.power(n, effect, 0.05) == pytest.approx(expected, abs=1e-6)


def test_needed_is_the_first_count_with_that_power():
  found = significance.seeds_needed(0.5, 1.0)
  assert found == 34  # as tables of paired t tests have it for d = 0.5
  assert significance.power(found, 0.5, 0.05) >= 0.8 > significance.power(found - 1, 0.5, 0.05)
  assert significance.seeds_needed(0.001, 1.0) is None
  assert significance.seeds_needed(50.0, 1.0) == 2


def test_differences_are_paired_by_seed_and_corrected_together(tmp_path):
  shuffled = {seed: C[seed] for seed in (5, 3, 1, 0, 2, 4)}
  sweep(tmp_path, {"sinusoidal": B, ("rpr", 4): A, ("rpr", 8): shuffled, "none": [0.7, 0.73]})
  (found,) = results(read_runs([tmp_path])[0])
  groups = {group.label: group for group in found.groups}
  assert list(groups) == ["rpr k=4", "rpr k=8", "sinusoidal", "none"]
  assert found.baseline is groups["sinusoidal"]
  pairs = {"rpr k=4": (A, B), "rpr k=8": (C, B), "none": ([0.7, 0.73], B[:2])}
  p = {}
  for label, (own, base) in pairs.items():
    differences = np.subtract(own, base)
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(len(own)))
    p[label] = 2 * stats.t.sf(abs(t), len(own) - 1)
    low, high = stats.t.interval(0.95, len(own) - 1, differences.mean(), stats.sem(differences))
    difference = groups[label].difference
    assert difference.p == pytest.approx(p[label])
    expected = (len(own), differences.mean(), differences.std(ddof=1), low, high)
    assert difference.estimate == pytest.approx(expected)
  order = sorted(p, key=p.get)
  largest = 0.0
  for rank, label in enumerate(order):
    largest = max(largest, min(1, p[label] * (3 - rank)))
    assert groups[label].difference.holm == pytest.approx(largest)


def test_what_is_told_apart_needs_no_more_seeds_and_the_rest_more_than_it_has(tmp_path):
  draw = np.random.default_rng(3)
  base = draw.normal(0.8, 0.01, 6)
  groups = {("rpr", k): list(base + draw.normal(0.004 * k, 0.008, 6)) for k in range(6)}
  sweep(tmp_path, {"sinusoidal": list(base)} | groups)
  (found,) = results(read_runs([tmp_path])[0])
  differences = [group.difference for group in found.groups if group.difference.p is not None]
  assert {each.holm < 0.05 for each in differences} == {True, False}
  for each in differences:
    assert each.needed is None or (each.needed > 6 and each.holm >= 0.05)
