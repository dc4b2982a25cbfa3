"""The table of encodings: the name on the command line, and the class."""

from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.base import Encoding, Relation, Span
from posexp.encodings.paired import Complex, Split
from posexp.encodings.relative import RPR, TransformerXL

ENCODINGS: dict[str, type[Encoding]] = {
  "none": Encoding,
  "learned": Learned,
  "sinusoidal": Sinusoidal,
  "rpr": RPR,
  "transformer_xl": TransformerXL,
  "complex": Complex,
  "split": Split,
}

__all__ = ["ENCODINGS", "Encoding", "Relation", "Span"]
