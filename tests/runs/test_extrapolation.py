"""How far a model extrapolates, from its scores by length."""

import pytest

from posexp.runs.lengths import extrapolation, reach


def test_reach_is_the_longest_length_without_a_gap():
  assert reach({5: 1.0, 10: 0.95, 20: 0.5, 30: 1.0}) == 10
  assert reach({5: 0.2}) == 0


def test_the_area_is_that_under_lines_over_the_logarithm_from_the_last_length_of_training():
  within = {"test/exact_match/5": 1.0, "test/exact_match/10": 1.0}
  beyond = {"beyond/exact_match/20": 0.95, "beyond/exact_match/40": 0.0}
  found = extrapolation(within | beyond)
  assert found == {"beyond/reach": 20, "beyond/area": pytest.approx((0.975 + 0.475) / 2)}
  more = {"beyond/exact_match/28": 0.4889, "beyond/exact_match/2": 0.0}  # shorter ones do not count
  finer = extrapolation(within | beyond | more)
  assert finer["beyond/area"] == pytest.approx(found["beyond/area"], abs=1e-3)
  assert extrapolation({"test/exact_match/dates": 1.0} | beyond) == {}
