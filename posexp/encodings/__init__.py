"""The table of encodings: the name on the command line, and the class."""

from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up
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
from posexp.encodings.streams import Split

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

__all__ = ["ENCODINGS", "Encoding", "Relation", "Span", "make_encoding"]


def make_encoding(config: Mapping[str, Any]) -> Encoding:
  """The encoding that a run's config names, with its options.

  Raises:
    UserError: there is no such encoding, or an option of it is wrong.
  """
  name = config.get("encoding")
  return build(look_up(ENCODINGS, name, "encoding"), config.get(name), where=name)
