"""Frequencies of RoPE for texts that are longer than those of training: a row of SCALINGS each.

A scaling is a function of the `base` of RoPE, the number r of channels that turn, the current
length n, int [N,1], the `factor` s, and the options that its row names. It returns radians per
position, float64 [M] or, if n matters, [N,M], of the M = r/2 planes. L₀ is `trained_length`, and
ω_t = base^(−2t/r).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from posexp.encodings.sinusoids import frequencies

FAST, SLOW = 32.0, 1.0  # turns over L₀: YaRN's planes of more are kept, those of fewer divided
LLAMA_FAST = 4.0  # the same of Llama 3


class Scaling(NamedTuple):
  """A rule for frequencies, with the options that it needs and those that it takes."""

  frequencies: Callable[..., np.ndarray]
  needs: tuple[str, ...] = ()
  takes: tuple[str, ...] = ()
  # Multiplies turned queries and keys, by the factor and the trained length.
  attention_factor: Callable[[float, int | None], float] = lambda factor, trained_length: 1.0
  by_length: bool = False  # whether n matters; if so, n ≤ L₀ has the frequencies of n = L₀


def plain(base: float, turning: int, n: np.ndarray, factor: float) -> np.ndarray:
  """Return ω_t."""
  return frequencies(turning, base)


def linear(base: float, turning: int, n: np.ndarray, factor: float) -> np.ndarray:
  """Return ω_t/s, as if positions were divided (Chen et al. 2023)."""
  return frequencies(turning, base) / factor


def ntk(base: float, turning: int, n: np.ndarray, factor: float) -> np.ndarray:
  """Return ω_t of base·s^(r/(r−2)): the slowest plane is divided by s, the fastest kept."""
  return frequencies(turning, base * factor ** _power(turning))


def dynamic(
  base: float, turning: int, n: np.ndarray, factor: float, *, trained_length: int
) -> np.ndarray:
  """Return the frequencies of `ntk` with 1 + s(n − L₀)/L₀ for s (Hugging Face)."""
  beyond = np.maximum(n - trained_length, 0) / trained_length
  base = base * (1 + factor * beyond) ** _power(turning)
  return base ** (-np.arange(0, turning, 2) / turning)


def _power(turning: int) -> float:
  return turning / (turning - 2) if turning > 2 else 0.0  # a single plane is the fastest


def by_parts(
  base: float,
  turning: int,
  n: np.ndarray,
  factor: float,
  *,
  trained_length: int,
  beta_fast: float | None,
  beta_slow: float | None,
  ramp: str,
  truncate: bool = True,
  fast: float = FAST,
) -> np.ndarray:
  """Return g ω_t + (1 − g) ω_t/s, g from 1 in fast planes to 0 in slow ones (Peng et al. 2023).

  The ramp of g is linear in the number of `turns` over L₀, as in the paper, or in the `index` of
  the plane, as in the authors' code and in Hugging Face's. `fast` is the default of `beta_fast`.

  Raises:
    ValueError: `beta_fast` is not above `beta_slow`.
  """
  omega = frequencies(turning, base)
  fast, slow = beta_fast or fast, beta_slow or SLOW
  if fast <= slow:
    raise ValueError(f"beta_fast={fast:g} must be above beta_slow={slow:g}")
  if ramp == "turns":
    kept = (omega * trained_length / (2 * np.pi) - slow) / (fast - slow)
  else:
    first, last = (
      turning * math.log(trained_length / (2 * np.pi * beta)) / (2 * math.log(base))
      for beta in (fast, slow)
    )
    if truncate:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, turning - 1)
    last += 0.001 if first == last else 0.0
    kept = 1 - np.clip((np.arange(turning // 2) - first) / (last - first), 0, 1)
  kept = np.clip(kept, 0, 1)
  return kept * omega + (1 - kept) * omega / factor


def longrope(
  base: float,
  turning: int,
  n: np.ndarray,
  factor: float,
  *,
  trained_length: int,
  short_factors: Sequence[float],
  long_factors: Sequence[float],
) -> np.ndarray:
  """Return ω_t divided by the plane's factor, the long one if n > L₀ (Ding et al. 2024).

  Raises:
    ValueError: there are more or fewer factors than planes.
  """
  planes = turning // 2
  for name, given in {"short_factors": short_factors, "long_factors": long_factors}.items():
    if len(given) != planes:
      raise ValueError(
        f"{name} must have {planes} numbers, one per plane of a head, not {len(given)}"
      )
  return frequencies(turning, base) / np.where(n > trained_length, long_factors, short_factors)


def yarn_attention(factor: float, trained_length: int | None) -> float:
  """Return 0.1 ln s + 1."""
  return 0.1 * math.log(factor) + 1


def longrope_attention(factor: float, trained_length: int | None) -> float:
  """Return √(1 + ln s/ln L₀)."""
  return math.sqrt(1 + math.log(factor) / math.log(trained_length))


LENGTH, BETAS = ("trained_length",), ("beta_fast", "beta_slow")
FACTORS = ("short_factors", "long_factors")
SCALINGS = {
  "none": Scaling(plain),
  "linear": Scaling(linear),
  "ntk": Scaling(ntk),
  "dynamic": Scaling(dynamic, LENGTH, by_length=True),
  "by_parts": Scaling(by_parts, LENGTH, (*BETAS, "ramp", "truncate")),
  "yarn": Scaling(by_parts, LENGTH, (*BETAS, "ramp", "truncate"), yarn_attention),
  # Grattafiori et al. 2024 publish code alone: it is `by_parts`, with the paper's ramp.
  "llama3": Scaling(functools.partial(by_parts, fast=LLAMA_FAST, ramp="turns"), LENGTH, BETAS),
  "longrope": Scaling(longrope, (*LENGTH, *FACTORS), (), longrope_attention, by_length=True),
}
