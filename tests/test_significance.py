"""Tests of significance against sacrebleu, scipy and cases whose answer is known."""

import math
import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest
from scipy import stats

from posexp.reporting import significance
from posexp.reporting.significance import Resampled

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

  measures = [significance.of_metric(metric, each, references) for each in (a, b)]
  ours_a, ours_b = significance.resample(measures, samples)
  for ours, theirs in ((ours_a, theirs_a), (ours_b, theirs_b)):
    assert ours.score == pytest.approx(theirs.score, abs=1e-9)
    assert ours.samples.mean() == pytest.approx(theirs.mean, abs=1e-5)  # of float32
    assert (ours.interval.high - ours.interval.low) / 2 == pytest.approx(theirs.ci, abs=1e-5)
  p = significance.sacrebleu_p(ours_a - ours_b)
  assert p == pytest.approx(theirs_b.p_value)
  assert 0.005 < p < 0.5  # else any formula would do


def test_a_score_of_a_corpus_is_that_of_sacrebleu():
  references, a = corpus(0.5, seed=3)
  for metric in (sacrebleu.BLEU(), sacrebleu.CHRF()):
    (found,) = significance.resample([significance.of_metric(metric, a, references)], 1)
    assert found.score == metric.corpus_score(a, [references]).score


def test_two_samples_of_a_share_are_drawn_alike_and_spread_as_theory_says():
  right = np.arange(400) % 4 < 3
  a, same, opposite = significance.resample(
    [significance.of_share(each) for each in (right, right, ~right)], 2000
  )
  assert a.score == 75
  assert (a - same).interval == (0, 0, 0)
  np.testing.assert_allclose(a.samples + opposite.samples, 100)
  error = 100 * math.sqrt(0.75 * 0.25 / 400)
  assert a.samples.std() == pytest.approx(error, rel=0.05)
  assert a.interval.low == pytest.approx(75 - 1.96 * error, abs=0.15 * error)
  assert a.interval.high == pytest.approx(75 + 1.96 * error, abs=0.15 * error)


@pytest.mark.parametrize("errors", [0, 0.5, 1, 1.96, -1.96, 2.58])
def test_p_of_the_bootstrap_is_that_of_a_two_sided_test(errors):
  samples = np.random.default_rng(0).normal(errors, 1, 20_000)
  found = significance.bootstrap_p(Resampled(errors, samples))
  assert found == pytest.approx(2 * stats.norm.sf(abs(errors)), abs=0.008)


def test_equal_systems_do_not_differ_though_sacrebleu_says_so():
  equal = Resampled(0.0, np.zeros(1000))
  assert significance.bootstrap_p(equal) == 1
  assert significance.sacrebleu_p(equal) == 1 / 1001


def test_p_is_uniform_where_systems_do_not_differ():
  draw, found = np.random.default_rng(1), []
  for _ in range(300):
    a, b = (significance.of_share(draw.random(120) < 0.5) for _ in "ab")
    found.append(significance.resample([a, b], 120))
  ours = [significance.bootstrap_p(a - b) for a, b in found]
  assert np.mean(np.less(ours, 0.05)) == pytest.approx(0.05, abs=0.03)
  assert np.mean(np.less(ours, 0.5)) == pytest.approx(0.5, abs=0.08)
  theirs = [significance.sacrebleu_p(a - b) for a, b in found]
  assert np.mean(np.less(theirs, 0.05)) > np.mean(np.less(ours, 0.05)) + 0.02


@pytest.mark.parametrize("alone", [(0, 0), (1, 0), (5, 0), (8, 2), (2, 8), (30, 30), (7, 19)])
def test_mcnemar_is_the_binomial_tail_doubled(alone):
  a = np.array([True] * alone[0] + [False] * alone[1] + [True, False] * 4)
  b = np.array([False] * alone[0] + [True] * alone[1] + [True, False] * 4)
  n = sum(alone)
  tail = sum(math.comb(n, k) for k in range(min(alone) + 1)) / 2**n
  found = significance.mcnemar(a, b)
  assert (found["a_alone"], found["b_alone"]) == alone
  assert found["p"] == pytest.approx(min(2 * tail, 1))


def test_over_seeds_is_the_t_test_of_the_differences():
  a, b = [31.0, 32.5, 30.4, 33.0], [30.1, 30.9, 30.2, 31.2]
  differences = np.subtract(a, b)
  error = differences.std(ddof=1) / 2
  found = significance.over_seeds(a, b)
  assert found["n"] == 4
  assert found["difference"] == pytest.approx(differences.mean())
  half = 3.182446305 * error  # the 97.5th percentile of t with 3 degrees of freedom
  assert found["low"] == pytest.approx(differences.mean() - half)
  assert found["high"] == pytest.approx(differences.mean() + half)
  assert found["p"] == pytest.approx(2 * stats.t.sf(differences.mean() / error, 3))


def test_over_seeds_that_all_differ_alike_there_is_no_interval():
  found = significance.over_seeds([30.1, 31.1], [30.0, 31.0])
  assert found["difference"] == pytest.approx(0.1)
  assert (found["n"], found["low"], found["high"], found["p"]) == (2, None, None, None)
