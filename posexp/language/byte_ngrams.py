"""Baselines of language models that need no training by gradients: byte n-grams, and bz2."""

import bz2
import functools
import hashlib

import numpy as np

from posexp import storage
from posexp.language.corpus import Text
from posexp.language.documents import Documents
from posexp.language.vocabulary import END
from posexp.status import doing

ORDER = 5  # symbols of context
BITS = np.uint64(9)  # of a symbol: END is 0, byte b is b + 1
SYMBOLS = 257
TRAINED_ON = 1 << 25  # symbols at the start of the training text; more take too much memory
AT_ONCE = 1 << 21  # symbols that are scored at a time; a split may have a hundred times as many
RECIPE = f"Witten-Bell, order {ORDER}, on {TRAINED_ON} symbols; bz2 of the whole split"


def baselines(texts: dict[str, Text]) -> dict[str, dict[str, float]]:
  """Return `ngram/bits_per_byte` and `bz2/bits_per_byte` of each split but `train`.

  The n-grams are counted in the first `TRAINED_ON` symbols of the training text, which are all of
  the reviews; the ends of documents are symbols that are predicted, as by a model. bz2 compresses
  the text of a split alone. Both divide by the bytes of the exact text, and are cached by content.
  """
  sources = {split: text.source for split, text in texts.items()}
  train, bits = _symbols(sources.pop("train"), TRAINED_ON), {}
  trained = hashlib.sha256(train.data).hexdigest()
  for split, source in sources.items():
    scored = hashlib.sha256(_symbols(source).data).hexdigest()
    measure = functools.partial(_measure, train, source)
    bits[split] = storage.cached("baseline", measure, RECIPE, trained, scored)
  return bits


def _measure(train: np.ndarray, source: Documents) -> dict[str, float]:
  doing("counting n-grams of bytes")
  size = len(source.content)
  likelihoods = probabilities(train, _symbols(source), ORDER)[1:]  # the first END is given
  return {
    "ngram/bits_per_byte": float(-np.log2(likelihoods).sum() / size),
    "bz2/bits_per_byte": 8 * len(bz2.compress(source.content.data)) / size,
  }


def _symbols(source: Documents, most: int | None = None) -> np.ndarray:
  """Return bytes plus 1, with END before each document, uint16; or the first `most` of them."""
  content = source.content[:most]
  starts = source.starts[:-1]
  symbols = content.astype(np.uint16) + np.uint16(1)
  return np.insert(symbols, starts[starts < len(content)], np.uint16(END))[:most]


def probabilities(train: np.ndarray, scored: np.ndarray, order: int) -> np.ndarray:
  """Return p(symbol | the `order` symbols before it) for each place in `scored`, float64 [N].

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
  shares = np.full(len(scored), 1 / SYMBOLS)
  counted, asked = train.astype(np.uint64), scored.astype(np.uint64)
  for length in range(order + 1):
    if length:  # of the context, whose oldest symbol stands highest
      counted, asked = (
        grams[1:] | symbols[:-length].astype(np.uint64) << BITS * np.uint64(length)
        for grams, symbols in ((counted, train), (asked, scored))
      )
    if not len(counted) or not len(asked):
      break
    grams, counts = np.unique(counted, return_counts=True)
    contexts, first, kinds = np.unique(grams >> BITS, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    for start in range(0, len(asked), AT_ONCE):
      # Sorted numbers are looked up some ten times as fast.
      some, place = np.unique(asked[start : start + AT_ONCE], return_inverse=True)
      count = _looked_up(some, grams, counts)[place]
      total = _looked_up(some >> BITS, contexts, totals)[place]
      kind = _looked_up(some >> BITS, contexts, kinds)[place]
      shorter = shares[length + start :][: len(place)]
      seen = total > 0
      shorter[seen] = ((count + kind * shorter) / np.maximum(total + kind, 1))[seen]
  return shares


def _looked_up(asked: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Return the values of some numbers, by a table of sorted `known` ones; 0 for others."""
  place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
  return np.where(known[place] == asked, values[place], 0)
