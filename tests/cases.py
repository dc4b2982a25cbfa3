"""The encodings that are tested for what must hold of each, and what is known of single ones.

Every encoding in ENCODINGS is here with its defaults.
"""

import pytest

from posexp.encodings import ENCODINGS, Encoding
from posexp.encodings.complex_order import Complex
from posexp.encodings.disentangled import TUPE, DeBERTa
from posexp.encodings.distance import FIRE
from posexp.encodings.naive import Index, Normalized
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.slopes import DAPE
from posexp.encodings.split import Split

# Options beside the defaults. An encoding that is not here is tested with its defaults only.
VARIANTS = {
  "index": [{"scale": 0.1, "combine": "concat"}, {"direction": "constant", "scale": 0.1}],
  "normalized": [{"length": 8, "scale": 4.0}, {"length": 8, "scale": 4.0, "at": "attention"}],
  "binary": [{"bits": 6, "signed": False}],
  "clock": [{"base": 3.0, "period": 12.0, "combine": "product"}, {"at": "attention"}],
  "learned": [{"combine": "product"}, {"combine": "concat", "length": 64}, {"at": "attention"}],
  "sinusoidal": [
    {"layout": "half", "base": 100.0},
    {"combine": "concat"},
    {"combine": "product"},
    {"at": "attention"},
  ],
  "rpr": [
    {"k": 0},
    {"k": 2},
    {"k": 2, "values": False},
    {"k": 2, "keys": False},
    {"k": 2, "share": "none"},
    {"k": 2, "share": "layers"},
    {"k": 2, "table": 4},
    {"k": 2, "beyond": "zero", "share": "none"},
  ],
  "transformer_xl": [
    {"share_biases": False},
    {"b": False, "c": False},
    {"a": False, "c": False},
    {"b": False, "d": False},
    {"clamp": 2},
  ],
  "complex": [
    {"order": False},
    {"initial_phase": True, "score": "modulus"},
    {"shared_period": "word", "shared_amplitude": "word"},
    {"shared_period": "dimension", "frequency_rate": 0.1},
    {"shared_amplitude": "dimension"},
    {"weights": "shared"},
    {"weights": "shared", "score": "unconjugated"},
    {"network": "real"},
    {"frequencies": "sinusoids", "decay": 0.9},
    {"distances": "transformer_xl", "wrap": 3},
    {"distances": "transformer_xl", "wrap": 3, "score": "modulus"},
    {"distances": "transformer_xl", "score": "unconjugated", "weights": "shared"},
    {"distances": "transformer_xl", "network": "real"},
  ],
  "split": [
    {"attention": "content"},
    {"attention": "position"},
    {"norms": "joint"},
    {"form": "concatenated"},
    {"form": "added"},
    {"form": "position_only"},
  ],
  "rope": [
    {"share": 0.5, "layout": "half"},
    {"share": 0.5, "key_shift": True},
    {"share": 0.5, "keys": "one"},
    {"share": 0.5, "layout": "half", "values": True, "learned": "head"},
    {"scaling": "linear", "factor": 4.0},
    {"scaling": "ntk", "factor": 4.0, "base": 500.0},
    {"scaling": "dynamic", "factor": 4.0, "trained_length": 3, "learned": "head"},
    {"scaling": "yarn", "factor": 4.0, "trained_length": 64, "learned": "model", "p": 0.75},
    {"map": "self_extend", "map_window": 3, "map_group": 2, "learned": "layer"},
  ],
  "xpos": [{"scale_base": 8.0, "gamma": 0.2}],
  "alibi": [{"two_sided": "direction", "learned": True}, {"two_sided": "divided"}],
  "t5": [{"buckets": 6, "max_distance": 5}],
  "kerple": [{"kind": "power"}, {"symmetric": True}, {"symmetric": True, "kind": "power"}],
  "fire": [{"width": 5, "threshold": 2.0, "share_layers": True}],
  "sandwich": [{"width": 8, "base": 50.0}],
  "deberta": [
    {"k": 2, "biases": True},
    {"position_to_content": False},
    {"content_to_position": False, "mirrored": False},
    {"k": 6, "log_buckets": 4, "normalized": True},
  ],
  "tupe": [{"untie_cls": True, "length": 64}, {"untie_cls": True, "buckets": 6}],
  "cope": [{"rows": 3}],
  "pope": [
    {"lengths": "signed", "phases": "layer", "start": "uniform"},
    {"frequencies": "pairs", "phases": "none"},
  ],
  "stick_breaking": [{"own_key": True}, {"remainder": False}],
  "path": [{"gates": "paper", "width": 1}, {"gates": "library", "rank": 4}],
  "delta": [{"beta": 2.0, "width": 1}],
  "selective_rope": [
    {"rank": None, "temperature": "rfa"},
    {"width": 0, "gate": True, "bias": True},
  ],
  "inkling": [{"rank": 3, "extent": 3, "clip": 0.01}, {"scale": False, "bias": True, "clip": None}],
  "grape": [{"gates": "both"}],
  "dape": [
    {"base": "alibi", "width": 3},
    {"base": "fire", "threshold": 2.0},
    {"base": "none"},
    {"version": 2, "width": 3},
  ],
  "fox": [{"start": 5.0}, {"gates": "bias", "times": (2.0, 9.0)}, {"gates": "fixed", "start": 1.0}],
  "by_layer": [
    {"pattern": ("t5 window=3", "rope base=50", "none window=2"), "from_last": True},
    {"pattern": ("rope chunk=4", "none")},
  ],
}

# What is not defined in a decoder (True: causal) or in an encoder (False), and refuses to be built.
UNDEFINED = {Normalized(): True}  # and those that are `causal_only`

# These depend on where counting starts, but only far beyond the positions that are tested.
NEAR = {FIRE()}

# These see no order in an encoder, so the order of words is free.
BLIND = {
  Encoding(),
  Index(scale=0.1, direction="constant"),  # LayerNorm deletes it
  RPR(k=0),
  TransformerXL(b=False, d=False),
  Complex(order=False),
  DAPE(base="none"),
}

# Parameters that no gradient reaches, and why.
UNTRAINED = {
  # The same for every key.
  **{ENCODINGS["dape"](**each): "relation/bias_out" for each in ({}, *VARIANTS["dape"])},
  RPR(k=0): r"relation/tables/keys",  # the same for every key: softmax does not see it
  TransformerXL(a=False, c=False): r"attention/key",  # distances are all that is scored
  Split(attention="content"): r"attention/(query|key)/kernel_b",  # the position half is not scored
  Split(attention="position"): r"attention/(query|key)/kernel_a",  # nor the content half
  # The same for every key; and in so few positions no unit of layer 0 bends.
  FIRE(): r"bias/bias_out|blocks/0/attention/relation/bias/bias_in",
  FIRE(width=5, threshold=2.0, share_layers=True): r"shared/bias_out",
  DeBERTa(k=2, biases=True): r"relation/key/bias",  # the same for every key
  TUPE(): r"shared/key/bias",  # the same for every key, unless [CLS] is apart
}

DEFAULTS = [pytest.param(cls(), id=name) for name, cls in ENCODINGS.items()]
CASES = DEFAULTS + [
  pytest.param(ENCODINGS[name](**options), id=f"{name} {options}")
  for name, variants in VARIANTS.items()
  for options in variants
]
UNDEFINED |= {case.values[0]: False for case in CASES if case.values[0].causal_only}
