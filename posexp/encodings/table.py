"""The table of encodings: the name on the command line, and the class."""

from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.base import Encoding
from posexp.encodings.bias import T5, ALiBi
from posexp.encodings.complex_order import Complex
from posexp.encodings.contextual import CoPE
from posexp.encodings.delta import Delta
from posexp.encodings.disentangled import TUPE, DeBERTa
from posexp.encodings.distance import FIRE, KERPLE, Sandwich
from posexp.encodings.forgetting import FoX
from posexp.encodings.fourier import FoPE
from posexp.encodings.naive import Binary, Clock, Index, Normalized
from posexp.encodings.polar import PoPE
from posexp.encodings.profiles import Inkling
from posexp.encodings.reflections import PaTH
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rotary import RoPE, XPos
from posexp.encodings.selective import SelectiveRoPE
from posexp.encodings.slopes import DAPE, GRAPE
from posexp.encodings.split import Split
from posexp.encodings.sticks import StickBreaking

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
  "fox": FoX,
  "selective_rope": SelectiveRoPE,
  "inkling": Inkling,
  "pope": PoPE,
  "fope": FoPE,
  "stick_breaking": StickBreaking,
  "grape": GRAPE,
  "dape": DAPE,
  "path": PaTH,
  "delta": Delta,
}
