"""What a comparison says: the plain sentence."""

import pytest

from posexp.reporting import comparison
from posexp.reporting.text import one_line


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
      result((1.8, 0.9, 2.7), 0.002),
      "one is better than two by 1.80 BLEU (over 1,000 sentences, 95 % 0.90 to 2.70, p = 0.002).",
    ),
    (
      result((-1.8, -2.7, -0.9), 0.0004),
      "two is better than one by 1.80 BLEU (over 1,000 sentences, 95 % 0.90 to 2.70, p < 0.001).",
    ),
    (
      result((-0.3, -1.2, 0.6), 0.48),
      "two and one cannot be told apart: 0.30 BLEU for two (over 1,000 sentences, 95 % -0.60 to "
      "1.20, p = 0.480).",
    ),
    (
      result((1.8, -0.01, 2.7), 0.049),  # the interval is not so sure
      "one and two cannot be told apart: 1.80 BLEU for one (over 1,000 sentences, 95 % -0.01 to "
      "2.70, p = 0.049).",
    ),
    (
      result((-1.8, -2.7, -0.9), 0.002, (-3.0, -0.6, 0.02), 3),
      "two is better than one by 1.80 BLEU (over 1,000 sentences, 95 % 0.90 to 2.70, p = 0.002; "
      "over 3 seeds, 95 % 0.60 to 3.00, p = 0.020).",
    ),
    (
      result((-1.8, -2.7, -0.9), 0.002, (-4.0, 0.4, 0.08), 3),
      "two and one cannot be told apart: 1.80 BLEU for two (over 1,000 sentences, 95 % 0.90 to "
      "2.70, p = 0.002; over 3 seeds, 95 % -0.40 to 4.00, p = 0.080).",
    ),
    (
      result((1.8, 0.9, 2.7), 0.002, (None, None, None), 2),
      "one is better than two by 1.80 BLEU (over 1,000 sentences, 95 % 0.90 to 2.70, p = 0.002; "
      "over 2 seeds, no test: the difference is the same with each).",
    ),
  ],
)
def test_the_verdict_is_a_plain_sentence(given, said):
  assert comparison.verdict(given) == said


@pytest.mark.parametrize(
  ("text", "shown"),
  [("  zwei\n\tHunde ", "zwei Hunde"), ("\x1b[1mrot\u202e", "�[1mrot�"), (" ", "")],
)
def test_a_text_is_shown_on_one_line_and_without_what_upsets_a_terminal(text, shown):
  assert one_line(text) == shown
