"""Trees as numbers: the lexicon of a treebank, and the batches that a parser reads."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from posexp.data import tokenizer
from posexp.data.examples import Batch, numbered
from posexp.data.trees import Tree, chains

# Words and tags share a table, so that one look-up can sum their rows.
PAD, START, STOP, UNKNOWN = range(4)
START_TAG, STOP_TAG, UNKNOWN_TAG = range(4, 7)
FIRST = 7  # then come tags, then words
INPUTS = {"words": [0], "tags": [1], "both": [0, 1]}  # columns of a token's ids, word and tag
TAGGED = ("tags", "both")  # the inputs with tags
LETTERS = 24  # of a word that are read at most, half from its beginning and half from its end
FIRST_LETTER = 4  # the ids of letters come after PAD, START, STOP and UNKNOWN
UNSEEN = -1  # the label of a span whose chain is not in the training trees


@dataclasses.dataclass(frozen=True)
class Lexicon:
  """The words, tags and labels of the training trees."""

  words: dict[str, tuple[int, str]]  # the count of each, and its most frequent tag
  tags: tuple[str, ...]
  labels: tuple[str, ...]  # chains; the first is the empty label, of no phrase
  rare_tag: str  # the most frequent tag of words that occur once

  @classmethod
  def of(cls, trees: Iterable[Tree]) -> Lexicon:
    """Collect words, tags and labels, the most frequent first."""
    tagged: dict[str, Counter] = {}
    labels: Counter = Counter()
    for tree in trees:
      for word, tag in zip(tree.words, tree.tags, strict=True):
        tagged.setdefault(word, Counter())[tag] += 1
      labels.update(chains(tree).values())
    tags: Counter = Counter()
    once: Counter = Counter()
    for found in tagged.values():
      tags += found
      if found.total() == 1:
        once += found
    counts = Counter({word: found.total() for word, found in tagged.items()})
    words = {word: (counts[word], _ordered(tagged[word])[0]) for word in _ordered(counts)}
    return cls(words, _ordered(tags), ("", *_ordered(labels)), _ordered(once or tags)[0])

  @classmethod
  def opened(cls, text: str) -> Lexicon:
    """Read a lexicon from its `json`; raises an error of any class if the text is damaged."""
    given = json.loads(text)
    words = {str(word): (int(count), str(tag)) for word, (count, tag) in given["words"].items()}
    return cls(words, tuple(given["tags"]), tuple(given["labels"]), given["rare_tag"])

  @property
  def json(self) -> str:
    return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=0) + "\n"

  def rows(self, inputs: str) -> int:
    """Count the ids."""
    if inputs == "characters":
      return FIRST_LETTER + len(self.letter_ids)
    return FIRST + len(self.tags) + len(self.words)

  @functools.cached_property
  def word_ids(self) -> dict[str, int]:
    return {word: i for i, word in enumerate(self.words, start=FIRST + len(self.tags))}

  @functools.cached_property
  def tag_ids(self) -> dict[str, int]:
    return {tag: i for i, tag in enumerate(self.tags, start=FIRST)}

  @functools.cached_property
  def label_ids(self) -> dict[str, int]:
    return {label: i for i, label in enumerate(self.labels)}

  @functools.cached_property
  def letter_ids(self) -> dict[str, int]:
    letters = sorted(set("".join(self.words)))
    return {letter: i for i, letter in enumerate(letters, start=FIRST_LETTER)}

  @functools.cached_property
  def rare(self) -> np.ndarray:
    """The probability that a word becomes unknown in a training step, float32 [V]: 1/(1+count)
    (Kitaev & Klein 2018); 0 for ids that are not words."""
    counts = np.array([count for count, _ in self.words.values()], np.float64)
    of_words = 1 / (1 + counts)
    return np.concatenate([np.zeros(FIRST + len(self.tags)), of_words]).astype(np.float32)

  def tag(self, word: str) -> str:
    """Return the most frequent tag of a word, or of rare words if the word is unknown."""
    return self.words[word][1] if word in self.words else self.rare_tag

  def ids(self, words: Sequence[str], tags: Sequence[str], inputs: str) -> np.ndarray:
    """Return the ids to read of N words, int32 [N,I]: of words, of tags, of both, or of letters,
    with PAD after a word's last letter.
    """
    if inputs == "characters":
      found = np.full((len(words), self.letters_read), PAD, np.int32)
      for row, word in zip(found, words, strict=True):
        if len(word) > len(row):
          half = len(row) // 2
          word = word[: len(row) - half] + word[-half:] if half else word[: len(row)]
        row[: len(word)] = [self.letter_ids.get(letter, UNKNOWN) for letter in word]
      return found
    of_words = [self.word_ids.get(word, UNKNOWN) for word in words]
    of_tags = [self.tag_ids.get(tag, UNKNOWN_TAG) for tag in tags]
    return np.array([of_words, of_tags], np.int32).T[:, INPUTS[inputs]]

  def ends(self, inputs: str) -> np.ndarray:
    """Return the ids of START and of STOP, int32 [2,I]."""
    if inputs == "characters":
      return np.pad(np.array([[START], [STOP]], np.int32), ((0, 0), (0, self.letters_read - 1)))
    return np.array([(START, START_TAG), (STOP, STOP_TAG)], np.int32)[:, INPUTS[inputs]]

  @functools.cached_property
  def letters_read(self) -> int:
    """The most letters that are read of a word."""
    return min(max(map(len, self.words)), LETTERS)


def kept_lexicon(folder: Path, made: Callable[[], Lexicon] | None = None) -> Lexicon:
  """Open the lexicon in the folder of a run; `made` builds it if it is missing.

  Raises:
    UserError: the lexicon is damaged or another run's, or missing without `made`.
  """
  trained = None if made is None else lambda _: made().json
  (text,) = tokenizer.kept(folder, ["tokenizer"], trained, Lexicon.opened)
  return Lexicon.opened(text)


def _ordered(counts: Counter) -> tuple[str, ...]:
  """Sort by falling count, then by the alphabet."""
  return tuple(sorted(counts, key=lambda each: (-counts[each], each)))


@dataclasses.dataclass(frozen=True)
class Sentences:
  """A split of a treebank as numbers, end to end."""

  tokens: np.ndarray  # int32 [words,I], of all sentences
  starts: np.ndarray  # int64 [N+1], where each sentence begins, and the end
  spans: np.ndarray  # int32 [spans,3]: first word, last word, label
  span_starts: np.ndarray  # int64 [N+1]
  ends: np.ndarray  # int32 [2,I], the ids of START and of STOP
  rare: np.ndarray  # float32 [V], the probability that a word is replaced

  @classmethod
  def of(cls, trees: Iterable[Tree], lexicon: Lexicon, inputs: str, *, train: bool) -> Sentences:
    """Turn trees into numbers by `Lexicon.ids`; words may become unknown only in `train`."""
    tokens: list[np.ndarray] = []
    spans: list[np.ndarray] = []
    for tree in trees:
      tokens.append(lexicon.ids(tree.words, tree.tags, inputs))
      rows = [
        (start, end - 1, lexicon.label_ids.get(chain, UNSEEN))
        for (start, end), chain in chains(tree).items()
      ]
      spans.append(np.array(rows, np.int32).reshape(-1, 3))
    replaced = train and inputs in ("words", "both")
    return cls(
      np.concatenate(tokens),
      np.cumsum([0, *map(len, tokens)], dtype=np.int64),
      np.concatenate(spans),
      np.cumsum([0, *map(len, spans)], dtype=np.int64),
      lexicon.ends(inputs),
      lexicon.rare if replaced else np.zeros(lexicon.rows(inputs), np.float32),
    )

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """The number of tokens of each sentence including START and STOP, int64 [N]."""
    return np.diff(self.starts) + 2

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the sentences `rows`, padded to `length` tokens, and to `size` rows with weight 0.

    The batch has, with L = `length` and N = L − 2 words: tokens int32 [B,L,I], mask bool [B,L],
    rare float32 [B,L], gold int16 [B,N,N] (the label of the words i to j inclusive; 0 for no
    phrase), weight float32 [B] and index int32 [B], the place in the split (−1 for a padded row,
    which holds one unknown word).
    """
    fill = size - len(rows)
    place = np.arange(length - 2)
    at = np.minimum(self.starts[rows, None] + place, len(self.tokens) - 1)
    inside = place < self.lengths[rows, None] - 2
    tokens = np.full((size, length, self.tokens.shape[1]), PAD, np.int32)
    tokens[:, 0] = self.ends[0]
    tokens[: len(rows), 1:-1] = np.where(inside[..., None], self.tokens[at], PAD)
    tokens[len(rows) :, 1] = UNKNOWN
    last = np.pad(self.lengths[rows] - 1, (0, fill), constant_values=2)
    tokens[np.arange(size), last] = self.ends[1]
    gold = np.zeros((size, length - 2, length - 2), np.int16)
    counts = np.diff(self.span_starts)[rows]
    before = np.repeat(self.span_starts[rows] - np.cumsum(counts) + counts, counts)
    first, final, label = self.spans[before + np.arange(counts.sum())].T
    gold[np.repeat(np.arange(len(rows)), counts), first, final] = label
    return {
      "tokens": tokens,
      "mask": np.arange(length) <= last[:, None],
      "rare": self.rare[tokens[..., 0]],
      "gold": gold,
    } | numbered(rows, size)
