"""Encodings by layer: a pattern of encodings, windows and chunks that repeats over the layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.config.checks import Count
from posexp.encodings.base import Encoding, Layer
from posexp.encodings.table import ENCODINGS
from posexp.errors import UserError

# Positions of released models, by the defaults of Hugging Face's code (transformers 5.24.0); the
# window of Gemma 3 is that of its larger checkpoints.
FAMILIES = {
  # Yang et al. 2025 (RNoPE-SWA)
  "command_a": ("3 rope base=10000 layout=interleaved window=4096", "none"),
  "gemma3": ("5 rope base=10000 layout=half window=1024", "rope base=1000000 layout=half"),
  "gemma4": ("5 rope base=10000 layout=half window=512", "rope base=1000000 layout=half p=0.25"),
  "llama4": ("3 rope base=500000 layout=interleaved chunk=8192", "none"),
  "modernbert": ("rope base=160000 layout=half", "2 rope base=10000 layout=half window=128"),
  "smollm3": ("3 rope base=2000000 layout=half", "none"),
}
MANY = 64  # layers of one part of a pattern


def parsed(text: str) -> tuple[Layer, ...]:
  """Return the layers that a part of a pattern stands for, as in "3 rope base=500 window=64".

  Raises:
    ValueError: it cannot be read, or the encoding is wrong.
  """
  count, *words = text.split() or [""]
  if not count.isdecimal():
    count, words = "1", [count, *words]
  if not 0 < int(count) <= MANY:
    raise ValueError(f"has a part of {count[:20]} layers, which must be 1 to {MANY}")
  name, *given = words or [""]
  options: dict[str, Any] = {}
  for word in given:
    option, equals, value = word.partition("=")
    if not equals:
      raise ValueError(f"cannot be read at {word!r}: write it as in '3 rope base=500 window=64'")
    if option in options:
      raise ValueError(f"has {option} twice in {text!r}")
    listed = value.startswith("[") and value.endswith("]")
    options[option] = value[1:-1].split(",") if listed else value
  limits = {key: options.pop(key, None) for key in ("window", "chunk")}
  for key, value in limits.items():
    if value is not None and not (value.isdecimal() and 0 < int(value) < 2**31):
      raise ValueError(f"has {key}={value}, which must be a number of tokens")
  if name == "by_layer":
    raise ValueError("has by_layer in it, which does not nest")
  if name in plugins.found("encoding"):  # a run records the plugin of `encoding` alone
    raise ValueError(f"has {name} of a plugin: mix it there, by a method `layers` of its class")
  try:
    made = build(look_up(ENCODINGS, name, "encoding"), options, where=name)
  except UserError as error:
    raise ValueError(f"has a part {text!r}: {error}") from None
  window, chunk = (value and int(value) for value in limits.values())
  return (Layer(made, window, chunk),) * int(count)


@dataclasses.dataclass(frozen=True)
class ByLayer(Encoding):
  """An encoding or a window that differs from layer to layer (Yang et al. 2025).

  Layer l of a Transformer is number l mod P of the pattern's P. A part is a number of layers, an
  encoding with its options, and how far a token sees: with window=W the last W tokens, itself
  included, as Hugging Face counts (an encoder: W // 2 to each side); with chunk=C its own chunk of
  C tokens, from its document's first. A pattern may also be the name of a family of released
  models. `from_last` counts backward from the last layer, which is then the last of the pattern.
  `window` stands for all windows and chunks of a pattern, so that a small model has them, too.
  """

  alternative = ("from_last", True)
  pattern: list[str] | str = dataclasses.field(default_factory=lambda: ["rope", "none"], hash=False)
  from_last: bool = False
  window: Count | None = None

  def __post_init__(self):
    if not isinstance(self.pattern, str):
      object.__setattr__(self, "pattern", [*self.pattern])
    super().__post_init__()
    limited = any(layer.window or layer.chunk for layer in self.period)
    if self.window is not None and not limited:
      raise ValueError("window has no effect without a window or a chunk in by_layer.pattern")

  @functools.cached_property
  def period(self) -> tuple[Layer, ...]:
    """The layers of one period of the pattern, each with its encoding and its window or chunk."""
    given = self.pattern
    parts = FAMILIES.get(given, (given,)) if isinstance(given, str) else given
    try:
      layers = [layer for part in parts for layer in parsed(part)]
    except ValueError as error:
      families = f"; families are {', '.join(FAMILIES)}" if isinstance(given, str) else ""
      raise ValueError(f"pattern {error}{families}") from None
    if not layers:
      raise ValueError("pattern must have at least one layer")
    if self.window is None:
      return tuple(layers)
    return tuple(
      layer._replace(window=layer.window and self.window, chunk=layer.chunk and self.window)
      for layer in layers
    )

  def layers(self, count: int) -> Sequence[Layer]:
    first = -count % len(self.period) if self.from_last else 0
    return [self.period[(first + i) % len(self.period)] for i in range(count)]

  @property
  def mixed(self) -> Sequence[Encoding]:
    return [layer.encoding for layer in self.period]

  @property
  def least_layers(self) -> int:
    order = self.period[::-1] if self.from_last else self.period
    return 1 + max(order.index(layer) for layer in {*order})

  @property
  def relative(self) -> bool:
    return all(layer.encoding.relative and layer.chunk is None for layer in self.period)

  @property
  def recurrent(self) -> bool:
    # A memory would shift where chunks begin.
    return all(layer.encoding.recurrent and layer.chunk is None for layer in self.period)

  @property
  def causal_only(self) -> bool:
    return any(layer.encoding.causal_only for layer in self.period)

  @property
  def acts_in(self) -> tuple[str, ...]:
    return ("attention",) if any(layer.encoding.acts_in for layer in self.period) else ()

  @property
  def limit(self) -> int | None:
    return min((each.encoding.limit for each in self.period if each.encoding.limit), default=None)
