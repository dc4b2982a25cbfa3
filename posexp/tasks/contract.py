"""What training asks of a task, of its data and of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
  from flax import nnx
  from jax import ShapeDtypeStruct

  from posexp.encodings import Encoding
  from posexp.models.positions import Positions
  from posexp.models.transformer import Size


class ModelSpec(Protocol):
  """All that a model is built from: a frozen dataclass, so that equal ones share what is compiled.

  `dataclasses.replace` gives the same model with another encoding or of another size.
  """

  encoding: Encoding
  size: Size
  positions: Positions

  @property
  def vocab_size(self) -> int:
    """How many tokens the model knows; of a model that writes, those that it writes."""

  def build(self, rngs: nnx.Rngs) -> Any:
    """The model, with weights drawn from the streams `params` and `encoding`.

    Raises:
      ValueError: sizes, encoding and positions do not suit each other.
    """

  def inputs(self, length: int) -> tuple[ShapeDtypeStruct | dict[str, ShapeDtypeStruct], ...]:
    """The shapes of what the model is called with, for one sequence of `length` tokens."""
