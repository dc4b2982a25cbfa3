"""How many positions a turn takes in each plane of a rotation, as options and training leave it.

Shapes: H heads, M planes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from posexp.encodings.rotation import Rotation
from posexp.models.block import Block
from posexp.models.transformer import Stack
from posexp.models.triangles import Triangles

Spectra = Mapping[str, np.ndarray]  # radians per position, [1 or H,M], by what they belong to


def rotation_of(block: Block) -> Rotation | None:
  """Return a block's rotation, or None if nothing turns.

  If the block cuts its heads into triangles, this is the rotation of the whole heads.
  """
  relation = block.attention.relation
  relation = relation.whole if isinstance(relation, Triangles) else relation
  return relation if isinstance(relation, Rotation) else None


def spectra(stack: Stack) -> dict[str, np.ndarray]:
  """Return the frequencies of rotations in a stack, those that several layers have only once.

  There are none in an encoding that turns nothing.
  """
  by_layer: dict[tuple[int, str], np.ndarray] = {}
  for layer, block in enumerate(stack.blocks):
    if relation := rotation_of(block):
      for label, omega in relation.spectra(stack.shared_of(layer)).items():
        if not any(np.array_equal(omega, each) for each in by_layer.values()):
          by_layer[layer, label] = omega
  several = len({layer for layer, _ in by_layer}) > 1
  return {
    ", ".join([f"layer {layer}"] * several + [label] * bool(label)): omega
    for (layer, label), omega in by_layer.items()
  }


def row(found: Spectra) -> dict[str, str]:
  """Return a row of the card: the wavelengths of every plane; of several heads their range."""
  lines = []
  for label, omega in found.items():
    low, high = (shown(each) for each in (omega.max(0), omega.min(0)))
    planes = (a if a == b else f"{a}–{b}" for a, b in zip(low, high, strict=True))
    lines.append(f"{label}{': ' * bool(label)}{' '.join(planes)}")
  return {"wavelengths": f"{'; '.join(lines)} positions a turn"} if lines else {}


def shown(omega: np.ndarray) -> list[str]:
  """Return wavelengths as text: three digits below 1,000, and ∞ where a plane stands still."""
  with np.errstate(divide="ignore"):
    lengths = np.where(omega > 0, 2 * np.pi / omega, np.inf)
  return [
    "∞" if each == np.inf else f"{each:{'.3g' if each < 999.5 else ',.0f'}}" for each in lengths
  ]
