"""Estimates, corrections and powers against computations of another kind."""

import math

import numpy as np
import pytest
from run_folders import sweep
from scipy import integrate, stats

from posexp.reporting import intervals
from posexp.reporting.results import sections
from posexp.runs import read_runs

A = [0.81, 0.83, 0.80, 0.86, 0.84, 0.82]
B = [0.79, 0.80, 0.80, 0.81, 0.80, 0.79]
C = [0.80, 0.82, 0.79, 0.83, 0.80, 0.80]


def test_an_estimate_is_that_of_a_t_interval():
  found = intervals.estimate(A)
  sd = math.sqrt(sum((each - sum(A) / 6) ** 2 for each in A) / 5)
  low, high = stats.t.interval(0.95, 5, loc=np.mean(A), scale=stats.sem(A))
  assert found == pytest.approx((6, sum(A) / 6, sd, low, high))


def test_one_score_has_no_spread_and_equal_ones_no_interval():
  assert intervals.estimate([0.5]) == (1, 0.5, None, None, None)
  assert intervals.estimate([0.1, 0.1, 0.1]) == (3, pytest.approx(0.1), 0.0, None, None)


def test_holm_is_what_its_steps_say():
  # By hand: 0.01 × 4, then 0.02 × 3, then 0.03 × 2 which must not be below 0.06, then 0.5.
  assert intervals.holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
  assert intervals.holm([0.6, 0.7]) == [1.0, 1.0]
  assert intervals.holm([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_holm_rejects_as_the_step_down_procedure_does(seed):
  p = np.random.default_rng(seed).beta(0.3, 3, size=9)
  rejected = set()
  for rank, index in enumerate(np.argsort(p)):
    if p[index] > 0.05 / (len(p) - rank):
      break
    rejected.add(int(index))
  assert {i for i, each in enumerate(intervals.holm(list(p))) if each <= 0.05} == rejected


@pytest.mark.parametrize(("n", "effect"), [(3, 0.5), (8, 1.2), (40, 0.4)])
def test_power_is_the_integral_over_what_the_deviation_may_be(n, effect):
  bound = stats.t.ppf(0.975, n - 1)

  def rejects(s):  # given the deviation, the mean is normal
    shift = effect * math.sqrt(n)
    outside = stats.norm.sf(bound * s - shift) + stats.norm.cdf(-bound * s - shift)
    return outside * stats.chi.pdf(s * math.sqrt(n - 1), n - 1) * math.sqrt(n - 1)

  expected, _ = integrate.quad(rejects, 0, 10)
  assert intervals.power(n, effect, 0.05) == pytest.approx(expected, abs=1e-6)


def test_needed_is_the_first_count_with_that_power():
  found = intervals.needed(0.5, 1.0)
  assert found == 34  # as tables of paired t tests have it for d = 0.5
  assert intervals.power(found, 0.5, 0.05) >= 0.8 > intervals.power(found - 1, 0.5, 0.05)
  assert intervals.needed(0.001, 1.0) is None
  assert intervals.needed(50.0, 1.0) == 2


def test_differences_are_paired_by_seed_and_corrected_together(tmp_path):
  shuffled = {seed: C[seed] for seed in (5, 3, 1, 0, 2, 4)}
  sweep(tmp_path, {"sinusoidal": B, ("rpr", 4): A, ("rpr", 8): shuffled, "none": [0.7, 0.73]})
  (section,), _ = sections(read_runs([tmp_path])[0], None, None, None)
  rows = {row.label: row for row in section.rows}
  assert [row.label for row in section.rows] == ["rpr k=4", "rpr k=8", "sinusoidal", "none"]
  assert section.baseline is rows["sinusoidal"]
  pairs = {"rpr k=4": (A, B), "rpr k=8": (C, B), "none": ([0.7, 0.73], B[:2])}
  p = {}
  for label, (own, base) in pairs.items():
    differences = np.subtract(own, base)
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(len(own)))
    p[label] = 2 * stats.t.sf(abs(t), len(own) - 1)
    low, high = stats.t.interval(0.95, len(own) - 1, differences.mean(), stats.sem(differences))
    found = rows[label].against
    assert found[:5] == pytest.approx((len(own), differences.mean(), low, high, p[label]))
  order = sorted(p, key=p.get)
  largest = 0.0
  for rank, label in enumerate(order):
    largest = max(largest, min(1, p[label] * (3 - rank)))
    assert rows[label].against.holm == pytest.approx(largest)


def test_what_is_told_apart_needs_no_more_seeds_and_the_rest_more_than_it_has(tmp_path):
  draw = np.random.default_rng(3)
  base = draw.normal(0.8, 0.01, 6)
  groups = {("rpr", k): list(base + draw.normal(0.004 * k, 0.008, 6)) for k in range(6)}
  sweep(tmp_path, {"sinusoidal": list(base)} | groups)
  (section,), _ = sections(read_runs([tmp_path])[0], None, None, None)
  told = [row.against for row in section.rows if row.against is not None]
  assert {found.sure for found in told} == {True, False}
  for found in told:
    assert (found.needed is None) if found.sure else (found.needed is None or found.needed > 6)
