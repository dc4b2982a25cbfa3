"""What single test examples add to a run's score, as it is kept in records: a bit for each, or two
numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
  """What single examples add to a score, which is the sum of `amounts` by the sum of `sizes`."""

  amounts: np.ndarray  # float [N]: of a share, whether each example is right
  sizes: np.ndarray  # float [N]: of a share, ones
  of: str  # the digest of the examples, by which runs on others are noticed

  def packed(self) -> dict[str, Any]:
    """Return plain values: a bit for each example of a share, or else two numbers of 32 bits."""
    if np.isin(self.amounts, (0, 1)).all() and (self.sizes == 1).all():
      bits = np.packbits(self.amounts.astype(bool))
      return {"of": self.of, "count": len(self.amounts), "right": _text(bits)}
    return {"of": self.of, "amounts": _text(self.amounts), "sizes": _text(self.sizes)}

  @classmethod
  def unpacked(cls, packed: Mapping[str, Any]) -> Examples:
    """Return what `packed` was made of; raise ValueError if it is damaged."""
    try:
      if "right" in packed:
        bits = np.frombuffer(base64.b64decode(packed["right"]), np.uint8)
        if not 0 <= packed["count"] <= 8 * len(bits):
          raise ValueError("more examples than bits")
        right = np.unpackbits(bits, count=packed["count"]).astype(float)
        return cls(right, np.ones_like(right), str(packed["of"]))
      amounts, sizes = (
        np.frombuffer(base64.b64decode(packed[name]), "<f4").astype(float)
        for name in ("amounts", "sizes")
      )
      if len(amounts) != len(sizes):
        raise ValueError("columns of other lengths")
      return cls(amounts, sizes, str(packed["of"]))
    except (LookupError, TypeError) as error:
      raise ValueError("no scores of examples") from error


def _text(values: np.ndarray) -> str:
  """Return the bytes of numbers as text, floats with 32 bits."""
  values = values if values.dtype == np.uint8 else values.astype("<f4")
  return base64.b64encode(values.tobytes()).decode()
