"""Queries and keys turned by angles that grow with their positions: RoPE and xPos."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.config.checks import (
  Base,
  Bound,
  Count,
  Positive,
  at_least,
  between,
  only_with,
  row_of,
  show,
)
from posexp.encodings.base import Encoding, Span, scaled
from posexp.encodings.maps import MAPS
from posexp.encodings.rotation import (
  Change,
  Imaginary,
  OneForAll,
  PairRotation,
  Rotation,
  Shifted,
  TurnedValues,
  shared_change,
  sum_of_planes,
)
from posexp.encodings.scaling import SCALINGS
from posexp.encodings.sinusoids import REACH, frequencies

STEEP = 60.0  # the exponent of xPos' factors is below it; float32 overflows at 88
FASTEST = 1e30  # a rate of decay by which nothing is left of the next position
Factors = tuple[Positive, ...] | None  # one per plane


@dataclasses.dataclass(frozen=True)
class RoPE(Encoding):
  """Queries and keys rotated by their positions (Su et al. 2021, eq. 14 to 16, 34).

  e_mn = (R_m q)·(R_n k) / √d, where R_m turns plane t by m·base^(−2t/r): only n − m is left of the
  positions. r = share·d channels turn, the first ones, and the rest ignore positions (GPT-NeoX:
  0.25). A plane is two neighbors (`interleaved`, the paper) or channels t and t + r/2 (`half`,
  GPT-NeoX and LLaMA).

  `scaling` fits texts `factor` times as long as the `trained_length` into the angles of training.
  SCALINGS has a function for each. Some multiply turned queries and keys, too, by a number that
  `attention_factor` replaces. `dynamic` and `longrope` depend on the current length n, which each
  query has for itself: from the first to the last position that it sees. So gaps count, and
  padding, empty slots of a memory and other documents do not; a cache gives the logits of the whole
  text. Where n can exceed `trained_length`, logits are summed plane by plane, which takes longer.

  With `p` below 1, the slowest planes stand still, and p·r/2 of them turn, rounded down (Barbero et
  al. 2025, p-RoPE). Of the last n = `clipped` planes, ω_t is multiplied by ½(1 + cos(π u/(n − 1))),
  u = 0 … n − 1: the first of them is kept, the last stands still (arXiv 2602.05258).

  `learned` multiplies frequencies by a trained exp(learned_rate·α): one set for the model (LeRoPE),
  for each `layer`, or each `head` of each layer (Zhang et al. 2025, GRAPE-M).
  `map` changes the distances that a trained model sees; MAPS has a function for each.

  With `key_shift`, channels that do not turn are those of the key before, of those that the query
  sees, so that one layer finds what followed a token (modded-nanogpt); the first key has its own.
  With `values`, values turn as keys do, and their sums turn back by the query's position: channels
  that turn hold Σ_j α_ij R_(j−i) v_j (DeepSeek-V4; RoVE, arXiv 2606.11275).

  With `keys=one`, channels that turn are those of one key for all heads: e_ij = (q_c·k_c +
  (R_i q_r)·(R_j k_r)) / √d, where k_r has no head (DeepSeek-V2's decoupled key, arXiv 2405.04434,
  without latents).

  With `imaginary`, heads 2h and 2h + 1 have one query, turned by −π/2 in the second (RoPE++, arXiv
  2512.07525), and must have the same key and value: e of the first is the real part of a complex
  product, Σ_t Re(q_t k̄_t e^{i(m−n)ω_t}) / √d, and that of the second its imaginary part. Norms of
  queries follow the turn.
  """

  alternative = ("base", 100.0)
  recurrent: ClassVar[bool] = True
  base: Base = 10000.0
  share: Annotated[float, Bound("above 0 and at most 1", lambda share: 0 < share <= 1)] = 1.0
  layout: Literal["interleaved", "half"] = "interleaved"
  scaling: Annotated[str, row_of(SCALINGS)] = "none"
  factor: Annotated[float, at_least(1), only_with("scaling")] = 1.0
  trained_length: Annotated[int, at_least(2)] | None = None
  beta_fast: Positive | None = None
  beta_slow: Positive | None = None
  ramp: Literal["index", "turns"] = "index"
  truncate: bool = True
  short_factors: Factors = None
  long_factors: Factors = None
  attention_factor: Annotated[Positive | None, only_with("scaling")] = None
  p: Annotated[float, between(0, 1)] = 1.0
  learned: Literal["none", "model", "layer", "head"] = "none"
  learned_rate: Annotated[Positive, only_with("learned")] = 1.0
  map: Annotated[str, row_of(MAPS)] = "none"
  map_window: Count | None = None
  map_group: Count | None = None
  map_chunk: Count | None = None
  map_shift: Count | None = None
  key_shift: bool = False
  values: bool = False
  clipped: Annotated[int, at_least(0)] = 0
  keys: Literal["each", "one"] = "each"
  imaginary: bool = False

  def __post_init__(self):
    super().__post_init__()
    self._check_rows()
    if self.ramp == "turns" and not self.truncate:
      raise ValueError("truncate has no effect with ramp=turns; leave it at true")
    if self.map == "dual_chunk" and self.map_chunk >= self.trained_length:
      raise ValueError(f"map_chunk must be below trained_length={self.trained_length}")
    if self.key_shift and self.share == 1:
      raise ValueError("key_shift shifts channels that do not turn; set share below 1")
    if self.key_shift and (self.by_length or self.map != "none"):
      raise ValueError("key_shift goes neither with a map nor with a scaling by the current length")
    if self.values and (self.by_length or self.map != "none" or self.key_shift):
      raise ValueError(
        "values turn by their own positions, which goes neither with a map, nor with a scaling by "
        "the current length, nor with key_shift; leave values at false"
      )
    if self.map == "string" and self.map_window > self.map_shift:
      raise ValueError(f"map_window must be at most map_shift={self.map_shift}")

  def _check_rows(self) -> None:
    """Check that options of scalings and maps are given where they are needed, and only there."""
    rows = {f"scaling={name}": row for name, row in SCALINGS.items()}
    rows |= {f"map={name}": row for name, row in MAPS.items()}
    chosen = f"scaling={self.scaling}", f"map={self.map}"
    users: dict[str, list[str]] = {}
    for name, row in rows.items():
      for option in (*row.needs, *getattr(row, "takes", ())):
        users.setdefault(option, []).append(name)
    defaults = {field.name: field.default for field in dataclasses.fields(self)}
    for option, names in users.items():
      given = getattr(self, option) != defaults[option]
      if given and not {*names} & {*chosen}:
        raise ValueError(
          f"{option} is for {' or '.join(names)}; leave it at {show(defaults[option])}"
        )
      for name in chosen:
        if option in rows[name].needs and not given:
          raise ValueError(f"{option} must be given with {name}")

  @property
  def relative(self) -> bool:
    return MAPS[self.map].relative

  @property
  def by_length(self) -> bool:
    """Whether frequencies depend on the current length."""
    return SCALINGS[self.scaling].by_length

  @property
  def radius(self) -> float:
    """The factor of turned queries and of turned keys; its square multiplies their logits."""
    own = SCALINGS[self.scaling].attention_factor
    return self.attention_factor or own(self.factor, self.trained_length)

  def distance(self, i: Array, j: Array) -> Array:
    """Return the distances int by which queries at i and keys at j ≤ i are turned."""
    row = MAPS[self.map]
    return row.distance(i, j, **self._given(row.needs))

  def _given(self, options: Sequence[str]) -> dict[str, Any]:
    return {option: getattr(self, option) for option in options}

  def key_map(self, features, heads, head_dim, *, bias=True, rngs):
    if self.keys == "each":
      return super().key_map(features, heads, head_dim, bias=bias, rngs=rngs)
    common = 2 * len(self.frequencies(head_dim))
    width = common + heads * (head_dim - common)
    return OneForAll(self.linear(features, width, bias=bias, rngs=rngs), heads, common)

  def query_map(self, features, heads, kv_heads, head_dim, *, bias=True, rngs):
    if not self.imaginary:
      return super().query_map(features, heads, kv_heads, head_dim, bias=bias, rngs=rngs)
    if heads // kv_heads % 2:
      what = f"num_kv_heads below {heads}, to {heads // 2} or what divides it"
      if heads % 2:
        what = f"num_heads={heads} to an even number, and num_kv_heads to half of it"
      raise ValueError(
        f"imaginary=true: heads have keys and values by pairs, so set {what}; or leave it at false"
      )
    linear = self.linear(features, heads // 2 * head_dim, bias=bias, rngs=rngs)
    return Imaginary(
      linear, heads // 2, Rotation(self.frequencies(head_dim), head_dim, self.layout)
    )

  def relation(self, num_heads, head_dim, *, causal, rngs):
    omega = self.frequencies(head_dim)
    change = None
    if self.learned != "none":
      change = shared_change if self.learned == "model" else self._change(num_heads, len(omega))
    if self.by_length or self.map != "none":
      return PairRotation(self, head_dim, change)
    kind = Shifted if self.key_shift else TurnedValues if self.values else Rotation
    return kind(omega, head_dim, self.layout, self.radius, change)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return self._change(1, len(self.frequencies(head_dim))) if self.learned == "model" else None

  def _change(self, num_heads: int, planes: int) -> Change:
    return Change(num_heads if self.learned == "head" else 1, planes, self.learned_rate)

  def frequencies(self, head_dim: int, lengths: np.ndarray | None = None) -> np.ndarray:
    """Return the radians per position of every plane, float64 [M], or [N,M] for lengths int [N].

    Without lengths, they are those of texts of at most `trained_length` tokens.

    Raises:
      ValueError: the share is not an even number of channels, or the factors are not one per plane.
    """
    turning = round(self.share * head_dim)
    if not math.isclose(turning, self.share * head_dim) or turning % 2:
      raise ValueError(
        f"share={self.share:g} of a head's {head_dim} channels must be even, as they turn in pairs"
      )
    n = np.ones((1, 1), int) if lengths is None else lengths[:, None]
    row = SCALINGS[self.scaling]
    omega = row.frequencies(
      self.base, turning, n, self.factor, **self._given((*row.needs, *row.takes))
    )
    moving = np.arange(turning // 2) < int(self.p * turning) // 2
    omega = np.broadcast_to(np.where(moving, omega, 0.0), (len(n), turning // 2))
    if count := min(self.clipped, turning // 2):
      falling = 0.5 + 0.5 * np.cos(np.linspace(0, np.pi, count))
      omega = omega * np.pad(falling, (turning // 2 - count, 0), constant_values=1.0)
    return omega[0] if lengths is None else omega


@dataclasses.dataclass(frozen=True)
class XPos(Encoding):
  """RoPE that decays with distance, fast planes first (Sun et al. 2022, algorithm 1).

  e_mn = Σ_t ζ_t^((m−n)/scale_base) Re(q_t k̄_t e^{i(m−n)θ_t}) / √d, ζ_t = (2t/d + γ) / (1 + γ),
  θ_t = base^(−2t/d). It would grow for keys ahead, so there is none in an encoder. The authors'
  code counts the exponent from the middle of the text, which must not change while keys are
  cached; keys here are cached before positions touch them, so any middle will do.
  """

  alternative = ("base", 100.0)
  causal_only: ClassVar[bool] = True
  base: Base = 10000.0
  scale_base: Positive = 512.0
  gamma: Positive = 0.4

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Decay(self, head_dim)


class Decay(Rotation):
  """A rotation whose planes shrink with distance: ζ^((m−n)/scale_base) on the score."""

  def __init__(self, encoding: XPos, head_dim: int):
    super().__init__(frequencies(head_dim, encoding.base), head_dim, "interleaved")
    zeta = (np.arange(0, head_dim, 2) / head_dim + encoding.gamma) / (1 + encoding.gamma)
    self.rate = tuple(np.maximum(np.log(zeta) / encoding.scale_base, -FASTEST).tolist())

  def score(self, q, k, span):
    known = span.consecutive or span.max_position is not None
    steepest, farthest = -min(self.rate), span.farthest if known else REACH
    # A factor for each query and one for each key do not overflow within so many positions.
    if q.shape[1] == 1 or steepest * farthest <= 2 * STEEP:
      return super().score(q, k, span)
    return self.by_plane(q, k, span)

  def by_plane(self, q: Array, k: Array, span: Span) -> Array:
    """Return logits [B,H,Q,K], summed plane by plane: the factor of each pair is at most 1."""
    distance = jnp.maximum(-span.offset, 0).astype(jnp.float32)[:, None]

    def of_plane(rate: Array, q: Array, k: Array) -> Array:
      return jnp.exp(rate * distance) * jnp.einsum("bqhc,bkhc->bhqk", q, k)

    query = scaled(self.turn(q, self.waves(span.query, span)))
    query = self.planes(span.keep("rotated", axis=2) * query)
    key = self.planes(self.turn(k, self.waves(span.key, span)))
    shape = len(q), q.shape[2], q.shape[1], k.shape[1]
    given = jnp.asarray(self.rate, jnp.float32), query, key
    return sum_of_planes(of_plane, given, shape).astype(q.dtype)

  def turned(self, q, k, span):
    # Counted from the middle of the queries, factors stay small at any position, and in no logit
    # is the middle seen. Keys that are ahead of all queries are masked, but might overflow.
    last = span.query.max(-1, keepdims=True)
    middle = (span.query.min(-1, keepdims=True) + last) // 2
    rate = jnp.asarray(self.rate, jnp.float32)

    def turned(x: Array, positions: Array, sign: int) -> Array:
      radius = jnp.exp(sign * rate * (positions - middle)[:, :, None, None])
      return self.turn(x, self.waves(positions, span), radius)

    return turned(q, span.query, 1), turned(k, jnp.minimum(span.key, last), -1)
