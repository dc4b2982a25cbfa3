"""Text from a language model: tokens drawn one by one, over cached keys and values.

A text is read in segments of T tokens, as in training. The cache has room for the M slots of the
memory and for a segment. Positions enter after keys and values, so the cached ones also serve as
those of a memory: when a segment is full, its last M slots are the memory of the next one. Without
a memory the text is read in windows of T tokens, each T/2 after the one before. So each token has
the distribution that `LanguageModel.predict` gives for the text cut in this way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, at_least, between, check
from posexp.errors import UserError
from posexp.language.vocabulary import END
from posexp.models.cache import Cache
from posexp.models.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The options for drawing a token from p^(1/temperature), or the likeliest at temperature 0.

  Only the `top_k` likeliest tokens may be drawn, and of these only the nucleus: the fewest that
  hold at least the share `top_p` of their total probability (Holtzman et al. 2020, section 3.1).
  """

  temperature: Annotated[float, at_least(0)] = 1.0
  top_k: Count | None = None
  top_p: Annotated[float, between(1e-9, 1)] = 1.0
  seed: Annotated[int, between(0, 2**31 - 1)] = 0

  def __post_init__(self):
    check(self)

  def options(self) -> dict[str, Any]:
    """Return the options as numbers to trace, so that other values are not compiled anew."""
    most = 2**31 - 1 if self.top_k is None else self.top_k
    return {
      "temperature": np.float32(self.temperature),
      "top_k": np.int32(most),
      "top_p": np.float32(self.top_p),
      "seed": np.int32(self.seed),
    }


def draw(logits: Array, place: Array, options: dict[str, Array]) -> Array:
  """Return a token for every row of logits [B,V], a function of (seed, row, place): int32 [B].

  It is −1 where the logits are not finite; see `check_drawn`.
  """
  token = jnp.argsort(logits, axis=-1, descending=True)
  ordered = jnp.take_along_axis(logits, token, axis=-1)
  rank = jnp.arange(logits.shape[-1])
  below = ordered - ordered[:, :1]  # ≤ 0: a small temperature makes them −∞ at worst
  scaled = below / jnp.where(options["temperature"] > 0, options["temperature"], 1)
  scaled = jnp.where(rank < options["top_k"], scaled, -jnp.inf)
  share = jax.nn.softmax(scaled, axis=-1)
  before = jnp.cumsum(share, axis=-1) - share  # the share of the likelier tokens
  scaled = jnp.where((before < options["top_p"]) | (rank == 0), scaled, -jnp.inf)
  key = jax.random.fold_in(jax.random.key(options["seed"]), place)
  keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(len(logits)))
  drawn = jax.vmap(jax.random.categorical)(keys, scaled)
  drawn = jnp.where(options["temperature"] > 0, drawn, 0)
  token = jnp.take_along_axis(token, drawn[:, None], axis=-1)[:, 0].astype(jnp.int32)
  return jnp.where(jnp.isfinite(logits).all(-1), token, -1)


def check_drawn(tokens: np.ndarray) -> np.ndarray:
  """Return drawn tokens; UserError where logits were not finite."""
  if tokens.min(initial=0) < 0:
    raise UserError(
      "the model's logits are not finite here, so no token follows; its weights diverged or its "
      "sums overflow at these positions: try another step or segment, and `python -m posexp.check` "
      "with the options of encoding and positions"
    )
  return tokens


def _positions(model: LanguageModel, segment: int, filled: Array | int) -> Array:
  """Return the positions of slots, int [1,M+T]; as in `Stack.recur`, M come before the segment."""
  memory = model.stack.size.memory
  slots = jnp.arange(memory + segment)
  table = model.positions.evaluating(jnp.ones((1, len(slots)), bool))
  table = slots[None] if table is None else table
  return table[:, jnp.minimum(memory - filled + slots, len(slots) - 1)]


def _empty(model: LanguageModel, segment: int, rows: int) -> Cache:
  """Return an empty cache of M + T slots."""
  places = _positions(model, segment, 0)
  return model.stack.empty_cache(rows, places.shape[1], places)


@functools.lru_cache(maxsize=16)
def functions(graphdef: nnx.GraphDef, segment: int) -> tuple[Callable[..., Any], ...]:
  """Compile two functions (params, settings, …) of a model with segments of this many tokens.

  `turn` turns a cache with a full segment into one that has its memory alone. `advance` reads
  tokens [B,Q], of which the first `count` belong to the text, and draws the token at `place`:
  (cache, token int32 [B], its log p float32 [B]).
  """

  @functools.partial(jax.jit, donate_argnums=2)
  def turn(params: Any, settings: Any, cache: Cache) -> Cache:
    model = nnx.merge(graphdef, params, settings)
    filled = jnp.minimum(cache.length, model.stack.size.memory)
    by = filled - cache.length
    # A layer that holds fewer keys than there are slots holds the last ones, wherever they stand.
    rolls = [cache.rolls(kind.window) for kind in model.stack.kinds]

    def turned(held: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
      return tuple(
        x if rolling else jax.tree.map(lambda each: jnp.roll(each, by, axis), x)
        for x, rolling in zip(held, rolls, strict=True)
      )

    return cache.replace(
      keys=turned(cache.keys, 3),
      values=turned(cache.values, 2),
      columns=turned(cache.columns, 1),
      positions=_positions(model, segment, filled),
      length=filled,
    )

  @functools.partial(jax.jit, donate_argnums=2)
  def advance(
    params: Any, settings: Any, cache: Cache, tokens: Array, count: Array, place: Array, options
  ) -> tuple[Cache, Array, Array]:
    model = nnx.merge(graphdef, params, settings)
    # Tokens beyond `count` are overwritten before any token can see them.
    hidden, after = model.stack.step(tokens, cache, count=count)
    last = jax.lax.dynamic_index_in_dim(hidden, count - 1, axis=1)
    logits = model.reader.logits(last)[:, 0]
    token = draw(logits, place, options)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
    return after, token, log_p

  return turn, advance


def generate(
  graphdef: nnx.GraphDef,
  params: Any,
  settings: Any,
  prompt: Sequence[int],
  *,
  segment: int,
  rows: int = 1,
  sampling: Sampling = Sampling(),
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Draw the text after END and a prompt, token by token without end.

  Args:
    graphdef, params, settings: the parts of a `LanguageModel` with enough positions for its memory
      and a segment.
    prompt: the tokens of the prompt.
    segment: the number of tokens that are read at once, T.
    rows: the number of texts to draw.
    sampling: the options for drawing a token.

  Yields:
    The next token of each row, int32 [rows], and its log p before `sampling`, float32 [rows].
  """
  model = nnx.merge(graphdef, params, settings)
  turn, advance = functions(graphdef, segment)
  options, stride = sampling.options(), segment // 2
  text = [np.full(rows, token, np.int32) for token in (END, *prompt)]
  begin = done = 0  # the first token of the segment, and the number of tokens read
  cache = _empty(model, segment, rows)
  while True:
    over = len(text) - begin - segment
    if over > 0 and not model.stack.size.memory:  # the window slides
      begin = done = begin - (-over // stride) * stride
      cache = _empty(model, segment, rows)
    while done < len(text):
      if done - begin == segment:
        cache, begin = turn(params, settings, cache), done
      columns = text[done : begin + segment]
      tokens = np.full((rows, 1 if len(columns) == 1 else segment), END, np.int32)
      tokens[:, : len(columns)] = np.stack(columns, axis=1)
      done += len(columns)
      cache, token, log_p = advance(
        params, settings, cache, tokens, np.int32(len(columns)), np.int32(done), options
      )
    text.append(check_drawn(np.asarray(token)))
    yield text[-1], np.asarray(log_p)


@functools.lru_cache(maxsize=16)
def continuer(graphdef: nnx.GraphDef, segment: int, count: int) -> Callable[..., Array]:
  """Compile (params, settings, prompts int32 [B,P]) -> tokens after END and each prompt.

  The function draws int32 [B,`count`], like `generate` by default. All tokens that it reads must
  fit in a segment: `count` is at most T − P.
  """

  @jax.jit
  def found(params: Any, settings: Any, prompts: Array) -> Array:
    model, options = nnx.merge(graphdef, params, settings), Sampling().options()
    rows, given = prompts.shape

    def follow(cache: Cache, tokens: Array, place: Array) -> tuple[Cache, Array]:
      hidden, cache = model.stack.step(tokens, cache)
      return cache, draw(model.reader.logits(hidden[:, -1:])[:, 0], place, options)

    def step(carry: tuple[Cache, Array], place: Array) -> tuple[tuple[Cache, Array], Array]:
      cache, token = carry
      return follow(cache, token[:, None], place), token

    text = jnp.pad(prompts, [(0, 0), (1, 0)], constant_values=END)
    carry = follow(_empty(model, segment, rows), text, jnp.int32(given + 1))
    (_, last), before = jax.lax.scan(step, carry, given + 1 + jnp.arange(1, count))
    return jnp.concatenate([before, last[None]]).T

  return found


def until_ended(
  columns: Iterable[np.ndarray], stops: Iterable[int] = (END,)
) -> Iterator[np.ndarray]:
  """Yield columns of tokens, int [rows] each, until every row has had one of `stops`."""
  ended: np.ndarray | bool = False
  for column in columns:
    yield column
    ended |= np.isin(column, [*stops])
    if np.all(ended):
      return
