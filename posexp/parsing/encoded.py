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
from posexp.data.batches import Batch, Sequences, numbered
from posexp.parsing.trees import Tree, chains, of_chains, ordered

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
    trees = [*trees]
    tagged: dict[str, Counter] = {}
    for word, tag in (pair for tree in trees for pair in zip(tree.words, tree.tags, strict=True)):
      tagged.setdefault(word, Counter())[tag] += 1
    counts = Counter({word: found.total() for word, found in tagged.items()})
    words = {word: (counts[word], ordered(tagged[word])[0]) for word in ordered(counts)}
    tags = Counter(tag for tree in trees for tag in tree.tags)
    labels = Counter(chain for tree in trees for chain in chains(tree).values())
    once = Counter(tag for count, tag in words.values() if count == 1)
    return cls(words, ordered(tags), ("", *ordered(labels)), ordered(once or tags)[0])

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
    return _numbered(self.words, FIRST + len(self.tags))

  @functools.cached_property
  def tag_ids(self) -> dict[str, int]:
    return _numbered(self.tags, FIRST)

  @functools.cached_property
  def label_ids(self) -> dict[str, int]:
    return _numbered(self.labels, 0)

  @functools.cached_property
  def letter_ids(self) -> dict[str, int]:
    return _numbered(sorted(set("".join(self.words))), FIRST_LETTER)

  @functools.cached_property
  def rare(self) -> np.ndarray:
    """The probability that a word becomes unknown in a training step, float32 [V]: 1/(1+count)
    (Kitaev & Klein 2018); 0 for ids that are not words."""
    of_words = [1 / (1 + count) for count, _ in self.words.values()]
    return np.pad(np.array(of_words, np.float32), (FIRST + len(self.tags), 0))

  def tag(self, word: str) -> str:
    """Return the most frequent tag of a word, or of rare words if the word is unknown."""
    return self.words[word][1] if word in self.words else self.rare_tag

  def ids(self, words: Sequence[str], tags: Sequence[str], inputs: str) -> np.ndarray:
    """Return the ids to read of N words between START and STOP, int32 [N+2,I]: of words, of tags,
    of both, or of letters, with PAD after a word's last letter.
    """
    if inputs == "characters":
      letters = np.full((len(words) + 2, self.letters_read), PAD, np.int32)
      letters[[0, -1], 0] = START, STOP
      for row, word in zip(letters[1:-1], words, strict=True):
        if len(word) > len(row):
          half = len(row) // 2
          word = word[: len(row) - half] + word[len(word) - half :]
        row[: len(word)] = [self.letter_ids.get(letter, UNKNOWN) for letter in word]
      return letters
    of_words = [START, *(self.word_ids.get(word, UNKNOWN) for word in words), STOP]
    of_tags = [START_TAG, *(self.tag_ids.get(tag, UNKNOWN_TAG) for tag in tags), STOP_TAG]
    return np.array([of_words, of_tags], np.int32).T[:, INPUTS[inputs]]

  def tree(self, sentence: Tree, spans: np.ndarray) -> Tree:
    """Build the tree of spans int [S,3]: first word, one past the last, label (0 is no phrase)."""
    labeled = {(i, j): self.labels[label] for i, j, label in spans.tolist() if label}
    return of_chains(sentence, labeled)

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


def _numbered(names: Iterable[str], start: int) -> dict[str, int]:
  return {name: i for i, name in enumerate(names, start=start)}


@dataclasses.dataclass(frozen=True)
class Sentences(Sequences):
  """A split of a treebank as numbers: tokens int32 [sum of lengths,I], from START to STOP."""

  spans: Sequence[np.ndarray]  # int32 [spans,3] by sentence: first word, last word, label
  rare: np.ndarray  # float32 [V], the probability that a word is replaced

  @classmethod
  def of_trees(
    cls, trees: Iterable[Tree], lexicon: Lexicon, inputs: str, *, train: bool
  ) -> Sentences:
    """Turn trees into numbers by `Lexicon.ids`; words may become unknown only in `train`."""
    ids: list[np.ndarray] = []
    spans: list[np.ndarray] = []
    for tree in trees:
      ids.append(lexicon.ids(tree.words, tree.tags, inputs))
      rows = [
        (start, end - 1, lexicon.label_ids.get(chain, UNSEEN))
        for (start, end), chain in chains(tree).items()
      ]
      spans.append(np.array(rows, np.int32).reshape(-1, 3))
    replaced = train and inputs in ("words", "both")
    rare = lexicon.rare if replaced else np.zeros(lexicon.rows(inputs), np.float32)
    return cls.of(ids, spans, rare)

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the sentences `rows`, padded to `length` tokens, and to `size` rows with weight 0.

    The batch has, with L = `length` and N = L − 2 words: tokens int32 [B,L,I], mask bool [B,L],
    rare float32 [B,L], gold int16 [B,N,N] (the label of the words i to j inclusive; 0 for no
    phrase), weight float32 [B] and index int32 [B], the place in the split (−1 for a padded row).
    """
    tokens, mask = self.padded(rows, length, size)
    gold = np.zeros((size, length - 2, length - 2), np.int16)
    for row, i in zip(gold, rows, strict=False):
      first, last, label = self.spans[i].T
      row[first, last] = label
    arrays = {"tokens": tokens, "mask": mask, "rare": self.rare[tokens[..., 0]], "gold": gold}
    return arrays | numbered(rows, size)
