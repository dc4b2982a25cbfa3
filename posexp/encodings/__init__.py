"""The table of encodings: the name on the command line, and the class."""

from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.base import Encoding, Relation, Span
from posexp.encodings.bias import T5, ALiBi
from posexp.encodings.complex_order import Complex
from posexp.encodings.contextual import CoPE
from posexp.encodings.disentangled import TUPE, DeBERTa
from posexp.encodings.distance import FIRE, KERPLE, Sandwich
from posexp.encodings.naive import Binary, Clock, Index, Normalized
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rotary import RoPE, XPos
from posexp.encodings.split import Split
from posexp.errors import UserError

ENCODINGS: dict[str, type[Encoding]] = {
  "none": Encoding,
  "index": Index,
  "normalized": Normalized,
  "binary": Binary,
  "clock": Clock,
  "learned": Learned,
  "sinusoidal": Sinusoidal,
  "rpr": RPR,
  "transformer_xl": TransformerXL,
  "complex": Complex,
  "split": Split,
  "rope": RoPE,
  "xpos": XPos,
  "alibi": ALiBi,
  "t5": T5,
  "kerple": KERPLE,
  "fire": FIRE,
  "sandwich": Sandwich,
  "deberta": DeBERTa,
  "tupe": TUPE,
  "cope": CoPE,
}

__all__ = [
  "ENCODINGS",
  "Encoding",
  "Relation",
  "Span",
  "all_encodings",
  "encoding",
  "make_encoding",
]


def all_encodings() -> dict[str, type[Encoding]]:
  """ENCODINGS, and those of plugins.

  Raises:
    UserError: a plugin's class is no Encoding.
  """
  found = plugins.table("encoding", ENCODINGS)
  for name, cls in found.items():
    if not issubclass(cls, Encoding):
      raise UserError(f"encoding {name}: the class {cls.__name__} must inherit posexp.Encoding")
  return found


def encoding(name: str, **options: Any) -> Encoding:
  """The encoding that the command line calls by this name: `encoding("rpr", k=4)`.

  Raises:
    UserError: there is no such encoding, or an option of it is wrong.
  """
  return make_encoding({"encoding": name, name: options})


def make_encoding(config: Mapping[str, Any]) -> Encoding:
  """The encoding that a run's config names, with its options.

  Raises:
    UserError: there is no such encoding, an option of it is wrong, or it is a plugin's and not
      loaded as the run was trained with it.
  """
  plugins.check("encoding", config)
  name = config.get("encoding")
  return build(look_up(all_encodings(), name, "encoding"), config.get(name), where=name)
