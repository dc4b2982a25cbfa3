"""The options of a Transformer, and the tables from which they choose."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from posexp.config.checks import (
  Bound,
  Count,
  Positive,
  Share,
  at_least,
  between,
  check,
  only_with,
  row_of,
  show,
)
from posexp.encodings import name_of
from posexp.encodings.base import Encoding, Layer, whole
from posexp.errors import counted
from posexp.models import logits


class Unit(NamedTuple):
  """What a feed-forward network does between its linear maps: f(up x), or f(gate x) · g(up x)."""

  f: Callable[[Array], Array]
  gated: bool = False
  g: Callable[[Array], Array] = lambda up: up


def clipped(gate: Array) -> Array:
  """Return c σ(1.702 c), near GELU, of c = min(gate, 7) (gpt-oss, OpenAI 2025)."""
  gate = jnp.minimum(gate, 7)
  return gate * jax.nn.sigmoid(1.702 * gate)


FEED_FORWARDS = {
  "relu": Unit(jax.nn.relu),
  "gelu": Unit(functools.partial(jax.nn.gelu, approximate=False)),  # by the error function
  "gelu_tanh": Unit(functools.partial(jax.nn.gelu, approximate=True)),
  "silu": Unit(jax.nn.silu),
  "reglu": Unit(jax.nn.relu, gated=True),
  "geglu": Unit(functools.partial(jax.nn.gelu, approximate=False), gated=True),
  "geglu_tanh": Unit(functools.partial(jax.nn.gelu, approximate=True), gated=True),
  "swiglu": Unit(jax.nn.silu, gated=True),
  "swiglu_clipped": Unit(clipped, gated=True, g=lambda up: 1 + jnp.clip(up, -7, 7)),
}
# The linear maps that have a bias. The output gate's is one of "qkv", and "head" is the last layer.
# Parts may also be named: qkv+out.
BIASES = {
  "none": (),
  "feed_forward": ("feed_forward", "head"),
  "qkv": ("qkv",),
  "all": ("qkv", "out", "feed_forward", "head"),
}
PARTS = BIASES["all"]


WIDEST = 2**16
NORMS = {"layer": "norm", "layer_scale": "norm without bias", "rms": "RMS-norm"}
NORMS["rms_one"] = "RMS-norm of 1 + w"
BIAS = Bound(
  f"one of {', '.join(BIASES)}, or of {', '.join(PARTS)} joined by +",
  lambda bias: bias in BIASES or {*bias.split("+")} <= {*PARTS},
)
CONV = Bound("0 or from 2 to 8", lambda taps: taps == 0 or 2 <= taps <= 8)
Width = Annotated[int, between(1, WIDEST)]
Rule = Annotated[
  str, Bound(f"one of none, {', '.join(logits.RULES)}", {"none", *logits.RULES}.__contains__)
]


@dataclasses.dataclass(frozen=True)
class Size:
  """The options of a Transformer, the same for every encoding."""

  backbone: ClassVar[str] = "transformer"  # among those of posexp/models/backbones.py
  varied: ClassVar[str] = "d_ff"  # the width that `match` chooses
  input_scale: ClassVar[float] = 1.0  # multiplies embedded words

  d_model: Width = 128
  num_heads: Width = 4
  num_kv_heads: Width | None = None  # of keys and values; None: as many as of queries
  head_dim: Width | None = None  # None: d_model / num_heads
  d_ff: Width = 512
  feed_forward: Annotated[str, row_of(FEED_FORWARDS)] = "relu"
  experts: Annotated[int, between(0, 1024)] = 0  # networks beside each other: see feed_forward.py
  experts_used: Annotated[int, at_least(1), only_with("experts")] = 2  # of each token
  num_layers: Annotated[int, between(1, 1000)] = 2
  dropout: Share = 0.3
  norm: Literal["pre", "post", "sandwich", "output", "parallel"] = "pre"
  norm_kind: Literal["layer", "layer_scale", "rms", "rms_one"] = "layer"
  norm_epsilon: Annotated[float, between(1e-12, 1)] = 1e-6  # added to the variance
  first_norm: bool = True  # whether the first layer's attention has a norm before it
  qk_norm: bool = False  # of queries and keys, before positions
  qk_norm_over: Annotated[Literal["head", "all"], only_with("qk_norm")] = "head"
  qk: Literal["free", "tied", "orthogonal", "identity"] = "free"  # see posexp/models/tied.py
  output_gate: bool = False  # of attention
  sinks: Literal["none", "head", "token"] = "none"  # see posexp/models/sinks.py
  own_value: Literal["kept", "removed"] = "kept"  # in outputs of self-attention
  conv: Annotated[int, CONV] = 0  # taps of a causal convolution: see posexp/models/convolution.py
  conv_of: Annotated[Literal["keys_values", "input"], only_with("conv")] = "keys_values"
  bias: Annotated[str, BIAS] = "feed_forward"
  embed_scale: Literal["sqrt", "none"] = "sqrt"
  embed_norm: bool = False  # of the sum that enters the first layer
  token_types: Annotated[int, between(0, WIDEST)] = 0  # rows of a table beside that of words
  tie_embeddings: bool = False  # the table of words is the output layer, too
  dtype: Literal["float32", "bfloat16"] = "float32"
  attention: Literal["auto", "reference", "blocked", "fused"] = "auto"
  window: Count | None = None  # how far an encoder's tokens see
  window_ends: Annotated[Literal["strict", "relaxed"], only_with("window")] = "strict"
  triangles: bool = False  # half of each head of an encoder looks back, the other half ahead
  memory: Annotated[int, between(0, 2**20)] = 0  # slots of a language model's memory
  same_length: Annotated[bool, only_with("memory")] = False  # each token sees `memory` keys
  logits_by: Rule = "none"  # the factor of each query: see posexp/models/logits.py
  logits_length: Annotated[int, at_least(2)] | None = None
  logits_growth: Positive | None = None
  logits_in: Annotated[Literal["all", "full"], only_with("logits_by")] = "all"
  logits_scale: Positive = 1.0  # multiplies queries beside it
  logits_cap: Positive | None = None  # c: logits e of attention become c·tanh(e/c)
  head_cap: Positive | None = None  # the same of the logits of words
  match: Literal["none", "parameters", "flops"] = "none"  # see posexp/training/matching.py
  match_to: Annotated[str, only_with("match")] = "none"
  vectors: str | None = None  # for a classifier: see posexp/data/word_vectors.py

  def __post_init__(self):
    check(self)
    rule = logits.RULES.get(self.logits_by)
    if rule and rule.length and self.logits_length is None:
      raise ValueError(f"logits_length must be given with logits_by={self.logits_by}")
    for name, value in (("length", self.logits_length), ("growth", self.logits_growth)):
      if value is not None and not (rule and getattr(rule, name)):
        users = ", ".join(key for key, each in logits.RULES.items() if getattr(each, name))
        raise ValueError(f"logits_{name} is for logits_by={users}; leave it at null")
    if self.num_heads % self.kv_heads:
      raise ValueError(
        f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
      )
    if self.num_heads * self.width_of_head > WIDEST:
      raise ValueError(
        f"num_heads={self.num_heads} heads of head_dim={self.head_dim} are wider than {WIDEST}"
      )

    if not self.first_norm and self.norm in ("post", "output"):
      raise ValueError(
        f"first_norm=false leaves out the norm before the first layer; norm={self.norm} has none"
      )
    if self.experts and self.experts_used > self.experts:
      raise ValueError(f"experts_used={self.experts_used} are more than experts={self.experts}")
    if self.triangles and self.sinks != "none":
      raise ValueError(f"sinks={self.sinks} and triangles=true exclude each other: leave one out")

  @property
  def width_of_head(self) -> int:
    """The width of a head."""
    return self.head_dim or whole(self.d_model, self.num_heads)

  @property
  def kv_heads(self) -> int:
    """The number of heads of keys and values; each serves as many heads of queries, in a row."""
    return self.num_kv_heads or self.num_heads

  @property
  def biased(self) -> tuple[str, ...]:
    """The parts that have a bias, by a row of BIASES or as named: "qkv+out"."""
    return BIASES.get(self.bias) or tuple(part for part in self.bias.split("+") if part != "none")

  @property
  def width(self) -> int:
    """The width of the vector from which a class is read."""
    return self.d_model

  def about(self, match: str = "") -> str:
    """Return a line for the header; `match` is text to put after the matched width."""
    heads, layers = counted(self.num_heads, "head"), counted(self.num_layers, "layer")
    wide = f" of {self.head_dim}" if self.head_dim else ""
    fewer = f" ({self.num_kv_heads} of keys and values)" if self.num_kv_heads else ""
    unit = "" if self.feed_forward == "relu" else f" {self.feed_forward}"
    named = {
      f"{self.experts_used} of {self.experts} experts a token": self.experts > 0,
      f"bias {self.bias}": self.bias != "feed_forward",
      "QK norm": self.qk_norm and self.qk_norm_over == "head",
      "QK norm over all heads": self.qk_norm_over == "all",
      "no first norm": not self.first_norm,
      "norm of embeddings": self.embed_norm,
      f"{self.token_types} token types": self.token_types > 0,
      f"logits capped at {self.logits_cap}": self.logits_cap is not None,
      f"words' logits capped at {self.head_cap}": self.head_cap is not None,
      f"{self.qk} queries and keys": self.qk != "free",
      "output gate": self.output_gate,
      "triangles": self.triangles,
      f"a sink of each {self.sinks}": self.sinks != "none",
      "outputs without the own value": self.own_value != "kept",
      f"convolution of {self.conv} taps of {self.conv_of.replace('_', ' and ')}": self.conv > 0,
      "tied embeddings": self.tie_embeddings,
    }
    norm = f"{self.norm}-{NORMS[self.norm_kind]}"
    parts = [name for name, on in named.items() if on]
    width = f"d_ff {self.d_ff}{match}{unit}"
    sizes = f"d_model {self.d_model}", f"{heads}{wide}{fewer}", layers, width, norm
    return ", ".join([*sizes, *parts, self.dtype])

  def factor(self, layer: Layer) -> logits.Factor | None:
    """Return the factor of a layer's queries, None if it is 1."""
    everywhere = self.logits_in == "all" or (layer.window is None and layer.chunk is None)
    by = self.logits_by if everywhere else "none"
    if by == "none" and self.logits_scale == 1:
      return None
    given = self.logits_growth, self.logits_length, self.logits_scale
    return logits.Factor(by, self.num_heads, *given)


def checked(encoding: Encoding, size: Size, causal: bool, cross: bool) -> Sequence[Layer]:
  """Check the options of a stack, and return its layers, as the encoding makes them.

  Raises:
    ValueError: the size does not suit the encoding or the kind of stack, the layers are not as many
      times a `Layer` as asked for, or one has another encoding, which changes more than attention.
  """
  if not isinstance(size, Size):
    raise ValueError(f"model={size.backbone} classifies and can do nothing else")
  count = size.num_layers
  layers = encoding.layers(count)
  if len(layers) != count or not all(isinstance(layer, Layer) for layer in layers):
    kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers))
    raise ValueError(
      f"{name_of(encoding)}: layers({count}) of its class must return {count} times posexp.Layer, "
      f"not {len(layers)} times {kinds or 'anything'}"
    )
  for other in dict.fromkeys(layer.encoding for layer in layers if layer.encoding != encoding):
    if elsewhere := [part for part in other.acts_in if part != "attention"]:
      raise ValueError(
        f"{name_of(encoding)} has {name_of(other)} in a layer, which changes the {elsewhere[0]} of "
        "a whole Transformer and not attention alone: it cannot be mixed by layer"
      )
  if size.logits_by in logits.RULES and not (causal or logits.RULES[size.logits_by].counts):
    counting = ", ".join(name for name, rule in logits.RULES.items() if rule.counts)
    raise ValueError(
      f"logits_by={size.logits_by} is of positions in a text that is read forward, and an encoder "
      f"reads both ways; there, take one of {counting}"
    )
  for name, given in (("window", size.window), ("triangles", size.triangles)):
    if given and (cross or causal):
      raise ValueError(f"{name}={show(given)} is for encoders alone")
  state = [layer for layer in layers if layer.encoding.keeps_state]
  if state and (size.same_length or any(layer.window for layer in state)):
    raise ValueError(
      f"{name_of(state[0].encoding)} keeps a state of all tokens before, so leave out its window "
      "and same_length"
    )
  if size.conv and not causal:
    raise ValueError(
      f"conv={size.conv} reads the tokens before each one, and an encoder reads both ways; "
      "leave it at 0"
    )
  if size.memory and (cross or not causal):
    raise ValueError(f"memory={size.memory} is for language models")
  if size.window is not None and any(layer.window or layer.chunk for layer in layers):
    raise ValueError(f"window={size.window} stands beside windows of layers; leave one out")
  if size.memory and any(layer.chunk for layer in layers):
    raise ValueError(f"memory={size.memory} would shift where the chunks of layers begin")
  if size.memory and not encoding.recurrent:
    raise ValueError(
      f"memory={size.memory} would give what the memory holds the same absolute positions as the "
      "segment; train with memory=0 and a longer task.segment, which sees as far, or choose "
      "positions that enter attention alone: sinusoidal.at=attention or an encoding of offsets"
    )
  return layers
