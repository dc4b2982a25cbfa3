"""Baselines of language models that need no training by gradients: byte n-grams, and bz2."""

import bz2
import functools
import hashlib

import numpy as np

from posexp import storage
from posexp.data.corpus import Text
from posexp.data.documents import Documents, blocks
from posexp.data.vocabulary import END
from posexp.status import doing

ORDER = 5  # symbols of context
BITS = 9  # of a symbol: END is 0, byte b is b + 1
SYMBOLS = 257
TRAINED_ON = 1 << 25  # symbols at the start of the training text; more take too much memory
AT_ONCE = 1 << 21  # symbols that are scored at a time; a split may have a hundred times as many
RECIPE = f"Witten-Bell, order {ORDER}, on {TRAINED_ON} symbols; bz2 of the whole split"


def baselines(texts: dict[str, Text]) -> dict[str, dict[str, float]]:
  """`ngram/bits_per_byte` and `bz2/bits_per_byte` of each split but `train`, cached by content.

  The n-grams are counted in the first `TRAINED_ON` symbols of the training text, which are all of
  the reviews; the ends of documents are symbols that are predicted, as by a model. bz2 compresses
  the text of a split alone. Both divide by the bytes of the exact text.
  """
  sources = {split: text.source for split, text in texts.items()}
  train, found = _symbols(sources.pop("train"), TRAINED_ON), {}
  trained = hashlib.sha256(train).hexdigest()
  for split, source in sources.items():
    scored = hashlib.sha256(_symbols(source)).hexdigest()
    measure = functools.partial(_measure, train, source)
    found[split] = storage.cached("baseline", measure, RECIPE, trained, scored)
  return found


def _measure(train: np.ndarray, source: Documents) -> dict[str, float]:
  doing("counting n-grams of bytes")
  size = len(source.content)
  likelihoods = probabilities(train, _symbols(source), ORDER)[1:]  # the first END is given
  packer = bz2.BZ2Compressor()
  packed = sum(len(packer.compress(block)) for block in blocks(source.content))
  return {
    "ngram/bits_per_byte": float(-np.log2(likelihoods).sum() / size),
    "bz2/bits_per_byte": 8 * (packed + len(packer.flush())) / size,
  }


def _symbols(source: Documents, most: int | None = None) -> np.ndarray:
  """Bytes plus 1 with END before each document, uint16; the first `most` of them."""
  content = source.content[:most]
  starts = source.starts[:-1]
  symbols = content.astype(np.uint16) + np.uint16(1)
  return np.insert(symbols, starts[starts < len(content)], np.uint16(END))[:most]


def probabilities(train: np.ndarray, scored: np.ndarray, order: int) -> np.ndarray:
  """p(symbol | the `order` symbols before it) of each place in `scored`, float64 [N].

  Interpolated by Witten and Bell 1991, method C: with c the counts of `train` and T(h) the number
  of different symbols that follow a context h there,

      p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h)),  h' without the oldest symbol of h

  from the uniform distribution on. Where h does not stand in `train`, and for the first places,
  which have no h, it is p(w | h').

  Args:
    train: symbols below `SYMBOLS`, int [M].
    scored: of the same kind, int [N].
    order: at most 6, since context and symbol are one number of 64 bits.
  """
  found = np.full(len(scored), 1 / SYMBOLS)
  counted, asked = train.astype(np.uint64), scored.astype(np.uint64)
  for length in range(order + 1):
    if length:  # of the context, whose oldest symbol stands highest
      counted, asked = (
        grams[1:] | symbols[:-length].astype(np.uint64) << np.uint64(BITS * length)
        for grams, symbols in ((counted, train), (asked, scored))
      )
    if not len(counted) or not len(asked):
      break
    ordered = np.sort(counted)
    kinds_before = _kinds_before(ordered)
    for start in range(0, len(asked), AT_ONCE):
      grams, place = np.unique(asked[start : start + AT_ONCE], return_inverse=True)
      count, total, kinds = (each[place] for each in _counts(ordered, kinds_before, grams))
      shorter = found[length + start :][: len(place)]
      seen = total > 0
      shorter[seen] = ((count + kinds * shorter) / np.maximum(total + kinds, 1))[seen]
  return found


def _kinds_before(ordered: np.ndarray) -> np.ndarray:
  """Return how many different ones stand before each place of a sorted array int [N], int32 [N +
  1].
  """
  is_new = np.ones(len(ordered), bool)
  is_new[1:] = ordered[1:] != ordered[:-1]
  before = np.zeros(len(ordered) + 1, np.int32)
  np.cumsum(is_new, out=before[1:])
  return before


def _counts(
  ordered: np.ndarray, kinds_before: np.ndarray, grams: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Of each of `grams`: how often it was counted, how often its context, and T of its context.

  Args:
    ordered: what was counted, sorted.
    kinds_before: of `ordered`.
    grams: sorted, too, which makes the search some ten times as fast.
  """
  shift = np.uint64(BITS)
  context = grams >> shift << shift
  first = np.searchsorted(ordered, context)
  last = np.searchsorted(ordered, context + np.uint64(SYMBOLS))
  count = np.searchsorted(ordered, grams, "right") - np.searchsorted(ordered, grams)
  return count, last - first, kinds_before[last] - kinds_before[first]
