"""Checks of options, for the `__post_init__` of a dataclass that has them."""

import math
from typing import Any


def one_of(options: Any, **choices: tuple[str, ...]) -> None:
  """Raises ValueError where an option is none of its choices."""
  for option, allowed in choices.items():
    if (value := getattr(options, option)) not in allowed:
      raise ValueError(f"{option} must be one of {', '.join(allowed)}, not {value!r}")


def at_least(options: Any, **bounds: int) -> None:
  """Raises ValueError where an option is less than its bound; None is not compared."""
  for option, bound in bounds.items():
    if (value := getattr(options, option)) is not None and value < bound:
      raise ValueError(f"{option} must be at least {bound}, not {value}")


def above(options: Any, **bounds: float) -> None:
  """Raises ValueError where an option is not a finite number greater than its bound."""
  for option, bound in bounds.items():
    if not bound < (value := getattr(options, option)) < math.inf:
      raise ValueError(f"{option} must be above {bound}, not {value}")
