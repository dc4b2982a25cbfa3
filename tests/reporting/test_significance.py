"""Estimates and tests against sacrebleu, scipy and computations of another kind."""

import math
import random

import interval_coverage as coverage
import numpy as np
import pytest
import sacrebleu
from run_folders import sweep
from sacrebleu.significance import PairedTest
from scipy import stats

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
    [noise.choice(WORDS) if noise.random() < errors else word for word in reference]
    for reference in references
  ]
  return [" ".join(reference) for reference in references], [" ".join(each) for each in hypotheses]


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
    [significance.ratio_measure(100 * each, np.ones(400)) for each in (right, right, ~right)], 2000
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


def by_seed(values):
  return dict(enumerate(values))


@pytest.mark.parametrize(
  ("a", "b", "paired"),
  [([31.0, 32.5, 30.4, 33.0], [30.1, 30.9, 30.2, 31.2], True), (A, B[::-1], False)],
)
def test_a_contrast_without_a_range_is_a_t_test_of_scipy(a, b, paired):
  found = significance.contrast(by_seed(a), by_seed(b))
  test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
  assert found.paired == paired
  assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
  assert found.ends() == pytest.approx(tuple(test.confidence_interval(0.95)))
  assert found.p() == pytest.approx(test.pvalue)
  shifted = [each + 0.01 for each in b]
  other = stats.ttest_rel(a, shifted) if paired else stats.ttest_ind(a, shifted, equal_var=False)
  assert found.p(0.01) == pytest.approx(other.pvalue)
  bound, shift = stats.t.ppf(0.975, found.freedom), found.detectable() / found.error
  assert stats.nct.sf(bound, found.freedom, shift) == pytest.approx(0.8, abs=1e-6)


def test_seeds_that_do_not_vary_are_tested_by_permutation_and_have_no_interval():
  rounded = [each * (1 + 5e-8) for each in A]  # as if summed in another order
  pairs = ([1.0] * 5, [0.0] * 5, 2 / 252), (A, A, 1.0), (A, rounded, 1.0), ([0.5] * 3,) * 2 + (1.0,)
  pairs += ((A, [each + 0.25 for each in A], 2 / 2 ** len(A)),)  # of which signs may be turned
  for a, b, p in pairs:
    found = significance.Difference.of(by_seed(a), by_seed(b), 1.0)
    assert (found.estimate.low, found.estimate.high) == (None, None)
    assert found.p == pytest.approx(p)
  assert significance.Difference.of({0: 1.0}, by_seed(B), 1.0).p is None


@pytest.mark.parametrize(
  ("a", "b", "paired"),
  [
    ([1, 1, 1, 1, 0.75], [0.875, 0.875, 1, 1, 1], False),
    ([1, 1, 1, 0.75, 0.5], [1, 1, 1, 0.625, 0.625], True),
  ],
)
@pytest.mark.parametrize("most", [1.0, None])
def test_equal_means_of_seeds_that_vary_are_no_difference(a, b, paired, most):
  found = significance.contrast(by_seed(a), by_seed(b), most)
  assert (found.mean, found.paired) == (0.0, paired)
  assert found.error > 0
  assert found.p() == 1.0
  higher = significance.contrast(by_seed([*a, 1]), by_seed([*b, 0.875]), most)
  lower = significance.contrast(by_seed([*b, 0.875]), by_seed([*a, 1]), most)
  assert higher.p(higher.mean) == lower.p(lower.mean) == 1.0
  assert higher.p() == pytest.approx(lower.p())
  assert 0 < higher.p() < 1


def test_an_interval_holds_that_of_t_and_stays_in_the_range_of_the_score():
  assert significance.estimate([0.5]) == (1, 0.5, None, None, None)
  assert significance.estimate([0.1, 0.1, 0.1]) == (3, pytest.approx(0.1), 0.0, None, None)
  low, high = stats.t.interval(0.95, 5, loc=np.mean(A), scale=stats.sem(A))
  assert significance.estimate(A)[3:] == pytest.approx((low, high))
  shares = significance.estimate([0.995, 1.0, 0.95], most=1.0)
  assert 0.5 < shares.low < 0.9
  assert shares.high == 1.0
  lengths = significance.estimate([1.0, 2.0, 9.0], most=math.inf)
  assert lengths.low == 0
  assert lengths.high > 15
  # One error in one of five runs is no difference to five runs without any.
  one = significance.contrast(by_seed([1.0] * 4 + [0.99]), by_seed([1.0] * 5), 1.0)
  assert one.p() == pytest.approx(0.374, abs=1e-3)


@pytest.mark.parametrize(
  ("a", "b"),
  [
    ([1.0, 0.979, 1.0], [1.0, 1.0, 1.0]),  # at the ceiling
    ([0.0, 0.0, 0.021], [0.0, 0.0, 0.0]),
    ([0.99, 1.0, 0.98, 1.0, 1.0], [0.97, 1.0, 1.0, 0.99, 1.0]),
    ([0.52, 0.48, 0.5, 0.51, 0.49], [0.5, 0.47, 0.53, 0.5, 0.52]),  # far from both ends
  ],
)
def test_what_seeds_could_tell_agrees_with_their_interval(a, b):
  found = significance.contrast(by_seed(a), by_seed(b), 1.0)
  wide = max(found.mean - found.ends()[0], found.ends()[1] - found.mean)
  least = found.detectable()
  assert wide < least < 2 * wide
  apart = least / found._replace(most=None).detectable()
  assert apart == pytest.approx(1.0, abs=0.02) if 0.4 < found.a < 0.6 else apart > 1.1


@pytest.mark.parametrize("kind", coverage.KINDS, ids=lambda kind: kind.name)
def test_intervals_of_five_seeds_hold_the_truth_as_often_as_they_say(kind):
  low, high = (92, 99) if kind.holds else (40, 80)
  assert low <= coverage.of_means(kind, 5, 1000) <= high
  assert coverage.of_differences(kind, 5, 300) > 91


def test_other_examples_widen_an_interval_by_their_variance():
  draw = np.random.default_rng(0)
  easy = draw.random(400)  # how hard examples are is the same with all seeds
  a, b = ((draw.random((5, 400)) < easy * share).astype(float) for share in (1.0, 0.9))
  found = significance.contrast(*(by_seed(each.mean(1)) for each in (a, b)), 1.0)
  moves = [each.mean(0) - each.mean() for each in (a, b)]
  wider = found.over_examples(np.cov(*moves) / 400, 400)
  examples = draw.integers(0, 400, (2000, 400))
  drawn = [each[:, examples].mean((0, 2)) for each in (a, b)]
  assert wider.error**2 - found.error**2 == pytest.approx(np.var(drawn[0] - drawn[1]), rel=0.1)
  assert wider.ends()[0] < found.ends()[0] < found.ends()[1] < wider.ends()[1]


def test_other_examples_never_shorten_an_interval():
  found = significance.contrast({0: 0.08, 1: 0.12}, {2: 0.11, 3: 0.14}, 1.0)
  wider = found.over_examples(np.array([[2, 1], [1, 2]]) * 1e-7, 400)
  assert wider.ends() == pytest.approx(found.ends(), rel=0.01)
  pairs = significance.contrast({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.6, 1: 0.69, 2: 0.81}, 1.0)
  wider = pairs.over_examples(np.array([[2, 1], [1, 2]]) * 1e-4, 400)
  assert wider.ends()[0] < pairs.ends()[0] < pairs.ends()[1] < wider.ends()[1]


def test_what_runs_do_by_chance_on_examples_counts_once_also_where_seeds_share_it():
  draw = np.random.default_rng(0)
  luck, own = draw.normal(size=(1, 4, 300)), draw.normal(size=(2, 4, 300))
  a, b = (each - each.mean(1, keepdims=True) for each in luck + 0.2 * own)
  found = significance.over_examples(by_seed(a), by_seed(b), paired=True)
  pairs = a - b  # the same of the differences of pairs, which have the shared part no more
  noise = pairs.var(0, ddof=1).mean() / 4
  assert found @ [1, -1] @ [1, -1] == pytest.approx(pairs.mean(0).var(ddof=1) - noise)
  assert found[0, 0] == pytest.approx(a.mean(0).var(ddof=1) - a.var(0, ddof=1).mean() / 4)


def test_holm_is_what_its_steps_say():
  # By hand: 0.01 × 4, then 0.02 × 3, then 0.03 × 2 which must not be below 0.06, then 0.5.
  assert significance.holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
  assert significance.holm([0.6, 0.7]) == [1.0, 1.0]
  assert significance.holm([]) == []


def test_differences_are_paired_by_seed_and_corrected_together(tmp_path):
  shuffled = {seed: C[seed] for seed in (5, 3, 1, 0, 2, 4)}
  sweep(tmp_path, {"sinusoidal": B, ("rpr", 4): A, ("rpr", 8): shuffled, "none": [0.7, 0.73]})
  (found,) = results(read_runs([tmp_path])[0])
  groups = {group.label: group for group in found.groups}
  assert list(groups) == ["rpr k=4", "rpr k=8", "sinusoidal", "none"]
  assert found.baseline is groups["sinusoidal"]
  # By the scale of shares, p is a little larger than that of the t test of scipy.
  tests = {
    "rpr k=4": (A, stats.ttest_ind(A, B, equal_var=False)),
    "rpr k=8": (C, stats.ttest_rel(C, B)),
    "none": ([0.7, 0.73], stats.ttest_ind([0.7, 0.73], B, equal_var=False)),
  }
  p = {label: groups[label].difference.p for label in tests}
  for label, (own, test) in tests.items():
    difference = groups[label].difference
    assert 0.999 * test.pvalue < p[label] < 1.3 * test.pvalue
    assert difference.contrast.paired == (label == "rpr k=8")
    assert difference.estimate.mean == pytest.approx(np.mean(own) - np.mean(B))
    assert difference.estimate.low < test.confidence_interval(0.95)[0] + 1e-9
  order = sorted(p, key=p.get)
  largest = 0.0
  for rank, label in enumerate(order):
    largest = max(largest, min(1, p[label] * (3 - rank)))
    assert groups[label].difference.holm == pytest.approx(largest)
