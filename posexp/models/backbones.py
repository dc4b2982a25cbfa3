"""Networks without attention that read a text to classify it: FastText, CNN and LSTM.

They use only the encoding's embedding and linear maps. So a complex encoding makes each of them
complex (Wang et al. 2020, appendix B), and an encoding that acts in attention alone does not suit
them (`refusal`). A class is read from the vector that a network makes of a text.

Shapes: B batch, L length, F d_model, S the width of a text's vector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config import build, look_up, show
from posexp.config.checks import Count, Positive, Share, check, only_with
from posexp.config.schema import defaults
from posexp.encodings.base import Encoding
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.attention import filled_up
from posexp.models.size import Size, Width


@dataclasses.dataclass(frozen=True)
class WithoutAttention:
  """The options of every network without attention, the same for every encoding.

  A subclass has `reader(encoding, rngs)`, which builds (x [B,L,F], mask bool [B,L]) -> [B,S] and
  raises ValueError if widths do not suit; `width`, S; and `about(match)`, a line for the header, in
  which `match` stands behind the matched width.
  """

  backbone: ClassVar[str]
  varied: ClassVar[str | None]  # the width that `match` chooses
  num_layers: ClassVar[int] = 1

  d_model: Width = 300
  dropout: Share = 0.5  # of a text's vector
  input_scale: Positive = 0.15  # multiplies embedded words, whose variance is 1 at the start
  dtype: Literal["float32", "bfloat16"] = "float32"
  vectors: str | None = None  # see posexp/data/word_vectors.py
  match: Literal["none", "parameters", "flops"] = "none"  # see posexp/training/matching.py
  match_to: Annotated[str, only_with("match")] = "none"

  def __post_init__(self):
    check(self)


@dataclasses.dataclass(frozen=True)
class FastTextSize(WithoutAttention):
  """The mean of a text's words (Joulin et al. 2017, without n-grams)."""

  backbone: ClassVar[str] = "fasttext"
  varied: ClassVar[None] = None

  def reader(self, encoding, rngs):
    return mean

  @property
  def width(self) -> int:
    return self.d_model

  def about(self, match=""):
    return f"fasttext: d_model {self.d_model}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class CNNSize(WithoutAttention):
  """Filters over neighboring words, and the largest value of each (Kim 2014)."""

  backbone: ClassVar[str] = "cnn"
  varied: ClassVar[str] = "filters"

  filters: Width = 100  # per width
  widths: tuple[Count, ...] = (3, 4, 5)  # words that a filter spans

  def __post_init__(self):
    super().__post_init__()
    if not self.widths or max(self.widths) > 64 or len({*self.widths}) < len(self.widths):
      raise ValueError(f"widths must be different numbers from 1 to 64, not {show(self.widths)}")

  def reader(self, encoding, rngs):
    return Filters(encoding, self, rngs=rngs)

  @property
  def width(self) -> int:
    return self.filters * len(self.widths)

  def about(self, match=""):
    widths = ", ".join(map(str, self.widths))
    filters = f"filters {self.filters}{match} of each width {widths}"
    return f"cnn: d_model {self.d_model}, {filters}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class LSTMSize(WithoutAttention):
  """An LSTM in one direction, whose last state is read."""

  backbone: ClassVar[str] = "lstm"
  varied: ClassVar[str] = "hidden"

  hidden: Width = 128

  def reader(self, encoding, rngs):
    return LastState(encoding, self, rngs=rngs)

  @property
  def width(self) -> int:
    return self.hidden

  def about(self, match=""):
    return f"lstm: d_model {self.d_model}, hidden {self.hidden}{match}, {self.dtype}"


NetworkSize = FastTextSize | LSTMSize | CNNSize
AnySize = Size | NetworkSize
BACKBONES: dict[str, type[AnySize]] = {
  kind.backbone: kind for kind in (Size, FastTextSize, LSTMSize, CNNSize)
}


def make_size(config: Mapping[str, Any]) -> AnySize:
  """Build the options of the network that a run's config names.

  Raises:
    UserError: the network does not exist, or an option is wrong.
  """
  section = dict(config.get("model") or {})
  name = section.pop("backbone", "transformer")
  unknown = section.keys() - defaults(cls := look_up(BACKBONES, name, "model")).keys()
  if unknown and any(unknown <= defaults(other).keys() for other in BACKBONES.values()):
    raise UserError(f"model.backbone={name}: model={name} chooses this network and its options")
  return build(cls, section, "model")


class Backbone(nnx.Module):
  """A network without attention: an embedding of words, and the reader of a `size`."""

  def __init__(self, vocab_size: int, encoding: Encoding, size: NetworkSize, *, rngs: Rngs):
    """Build the network; `rngs` has the streams `params` and `encoding`.

    Raises:
      ValueError: the size does not suit the encoding.
    """
    scale = size.d_model**0.5
    self.embed = encoding.embed(vocab_size, size.d_model, scale=scale, rngs=rngs.fork())
    self.reader = size.reader(encoding, rngs.fork())
    self.limit, self.size = encoding.limit, size

  def __call__(self, tokens: Array, mask: Array, *, positions: Array | None = None) -> Array:
    """Read tokens [B,L], mask bool [B,L] of real tokens, which come first -> [B,S], float32.

    A text with more tokens than the encoding has positions gives NaN.
    """
    read = mask
    if positions is None:
      tokens, read = tokens[:, : self.limit], mask[:, : self.limit]
      positions = jnp.arange(tokens.shape[1])[None]
    # Larger vectors tell rare words apart from the start, and texts are then learned by heart.
    x = filled_up(self.embed(tokens, positions, read) * self.size.input_scale, mask)
    return self.reader(x.astype(self.size.dtype), mask).astype(jnp.float32)


def mean(x: Array, mask: Array) -> Array:
  """Return the mean over real tokens, x [B,L,F] -> [B,F], in float32."""
  counted = mask[:, :, None].astype(jnp.float32)
  return (x * counted).sum(1) / counted.sum(1)


class Filters(nnx.Module):
  """The maximum of relu(filter) over all windows of words within a text.

  A text shorter than a filter has one window, padded with zeros.
  """

  def __init__(self, encoding: Encoding, size: CNNSize, *, rngs: Rngs):
    self.widths = size.widths
    self.maps = nnx.List(
      encoding.linear(width * size.d_model, size.filters, rngs=rngs.fork()) for width in size.widths
    )

  def __call__(self, x: Array, mask: Array) -> Array:
    lengths, most = mask.sum(1, keepdims=True), max(self.widths)
    x = jnp.where(mask[:, :, None], x, 0)
    x = jnp.pad(x, ((0, 0), (0, max(0, most - x.shape[1])), (0, 0)))
    largest = []
    for width, linear in zip(self.widths, self.maps, strict=True):
      count = x.shape[1] - width + 1
      windows = jnp.concatenate([x[:, i : i + count] for i in range(width)], axis=-1)
      inside = jnp.arange(count) <= jnp.maximum(lengths - width, 0)
      largest.append((jax.nn.relu(linear(windows)) * inside[:, :, None]).max(1))
    return jnp.concatenate(largest, axis=-1)


class LSTM(nnx.Module):
  """Long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000), in one direction.

  c' = σ(f + 1) c + σ(i) tanh(g) and h' = σ(o) tanh(c'), with [i; f; g; o] = x W + h U + b. Gates
  act on each number, so on both parts of a complex feature. With `backward` the last token is read
  first.
  """

  def __init__(
    self,
    linear: Callable[..., Callable[[Array], Array]],
    in_features: int,
    hidden: int,
    *,
    backward: bool = False,
    rngs: Rngs,
  ):
    """Build the maps with `linear`, an encoding's factory such as `Encoding().linear`.

    Raises:
      ValueError: the widths do not suit `linear`.
    """
    self.input = linear(in_features, 4 * hidden, rngs=rngs.fork())
    self.recurrent = linear(hidden, 4 * hidden, bias=False, rngs=rngs.fork())
    self.hidden, self.backward = hidden, backward

  def __call__(self, x: Array, mask: Array) -> tuple[Array, Array]:
    """Read x [B,L,F], mask bool [B,L] of real tokens -> states [B,L,H] and the last one [B,H].

    Padding leaves the state unchanged, wherever it stands.
    """

    def step(state: tuple[Array, Array], given: tuple[Array, Array]):
      h, c = state
      z, real = given
      i, f, g, o = jnp.split(z + self.recurrent(h), 4, axis=-1)
      cell = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
      h = jnp.where(real, jax.nn.sigmoid(o) * jnp.tanh(cell), h)
      return (h, jnp.where(real, cell, c)), h

    zeros = jnp.zeros((x.shape[0], self.hidden), x.dtype)
    given = self.input(x).swapaxes(0, 1), mask.T[:, :, None]
    (last, _), states = jax.lax.scan(step, (zeros, zeros), given, reverse=self.backward)
    return states.swapaxes(0, 1), last


class LastState(nnx.Module):
  """The state of an LSTM after the last real token."""

  def __init__(self, encoding: Encoding, size: LSTMSize, *, rngs: Rngs):
    self.lstm = LSTM(encoding.linear, size.d_model, size.hidden, rngs=rngs)

  def __call__(self, x: Array, mask: Array) -> Array:
    return self.lstm(x, mask)[1]


def refusal(name: str, encoding: Encoding, size: AnySize) -> str | None:
  """Return why the encoding of this name does not suit the network; None if it does."""
  if not isinstance(size, WithoutAttention):
    least = encoding.least_layers
    if size.num_layers >= least:
      return None
    return (
      f"{name} differs by layer, and some of that is in none of model.num_layers="
      f"{size.num_layers}; {least} layers show all of it"
    )
  lacks = f"which model={size.backbone} does not have"
  for option in encoding.in_blocks:
    default = getattr(type(encoding), option)
    if getattr(encoding, option) != default:
      leave = show(default)
      return f"{name}.{option} acts in a Transformer's blocks, {lacks}; leave it at {leave}"
  if encoding.acts_in and not {"input", "linear"} & {*encoding.acts_in}:
    return (
      f"{name} acts in attention, {lacks}; choose an encoding of the input, such as learned, "
      "sinusoidal or complex, or model=transformer"
    )
  return None
