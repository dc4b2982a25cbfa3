"""Constituency trees: read from brackets, cleaned, split into labeled spans and put together.

A tree is stored flat, as its words and the spans of its phrases. So nothing here recurses, and
trees may be nested to any depth.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from posexp.data import files
from posexp.errors import UserError, counted

TOP = "TOP"
TOPS = ("", TOP, "ROOT", "S1", "VROOT")  # labels of the bracket around a sentence in treebanks
TRACE = "-NONE-"  # the tag of traces and empty elements, which are not spoken
JOIN = "::"  # between the labels of phrases over the same words, outermost first
# A word in a bracket with its tag, the beginning of another bracket with its label, the end of one,
# or what stands where nothing may.
TOKEN = re.compile(
  r"\(\s*(?P<tag>[^\s()]++)\s+(?P<word>[^\s()]++(\s+[^\s()]++)*+)\s*\)"
  r"|\(\s*(?P<label>[^\s()]*+)|(?P<end>\))|[^\s()]++"
)
CLOSING = re.compile(r"\)*")
DEEPEST = 100_000  # brackets of a tree within one another
WIDTH = 80  # columns of a line when a tree takes several
ESCAPES = str.maketrans(
  {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
)

Span = tuple[int, int]  # of words, half-open


class Phrase(NamedTuple):
  """A label of the words from `start` up to `end`."""

  start: int
  end: int
  label: str


@dataclasses.dataclass(frozen=True)
class Tree:
  """A sentence with its phrases, parents before their children, from left to right."""

  words: tuple[str, ...]
  tags: tuple[str, ...]
  phrases: tuple[Phrase, ...]

  @property
  def text(self) -> str:
    return " ".join(self.words)


def paths(given: str | Sequence[str]) -> list[str]:
  """Return the files of names or globs; those of one glob are in order.

  A folder that exists under the very name that was typed is taken, even if that has brackets.

  Raises:
    UserError: a glob matches no file.
  """
  names: list[str] = []
  for name in (given,) if isinstance(given, str) else given:
    if os.path.exists(os.path.expanduser(name)) or not glob.has_magic(name):
      names.append(name)
      continue
    pattern = Path(name).expanduser()
    folder = next(parent for parent in pattern.parents if parent.is_dir())
    rest = str(pattern.relative_to(folder))
    for each in (rest, rest.replace("[", "[[]")):
      if fit := sorted(glob.glob(each, root_dir=folder, recursive=True)):
        break
    else:
      raise UserError(f"{name}: no file has a name like that (looked in {os.getcwd()})")
    names += [str(folder / file) for file in fit]
  return names


def read(names: Iterable[str]) -> Iterator[Tree]:
  """Yield the cleaned trees of files, plain or gzipped, one after another; see `clean`.

  Raises:
    UserError: a file cannot be read (the message names the line) or is empty.
  """
  for name in names:
    with files.opened(name) as file:
      text = "".join(files.lines(name, file))
    for place, tree in parsed(name, text):
      cleaned = clean(tree)
      if cleaned.words and all(phrase.label == TOP for phrase in cleaned.phrases):
        raise UserError(
          f"{_where(name, text, place)}: a tree without a phrase; above its words at least one "
          "bracket must stand that is not the top"
        )
      if cleaned.words:  # else it had only traces
        yield cleaned


def parsed(name: str, text: str) -> Iterator[tuple[int, Tree]]:
  """Yield the trees of a file's text as written, each with the place in the text where it begins.

  Raises:
    UserError: brackets do not match, one is empty, or a bracket mixes words and phrases; the
      message names the file and the line.
  """
  opened: list[tuple[int, str]] = []  # brackets that are not closed yet: words before them, labels
  words: list[str] = []
  tags: list[str] = []
  phrases: list[Phrase] = []  # children before their parents
  begin = 0
  for token in TOKEN.finditer(text):
    begin, wrong = begin if opened else token.start(), ""
    if token["word"]:
      tags.append(sys.intern(token["tag"]))  # a treebank has few different tags and words
      words.append(sys.intern("_".join(token["word"].split())))  # several parts make one word
    elif token["label"] is not None:
      opened.append((len(words), token["label"]))
      if len(opened) > DEEPEST:
        wrong = f"more than {DEEPEST:,} brackets are open; is it a treebank?"
    elif not token["end"]:
      wrong = f"{token[0]!r} has no bracket of its own; is a ( or a ) missing?"
      if not opened:
        wrong = f"{token[0]!r} stands between trees; remove it, or add a ( that is missing"
    elif not opened:
      wrong = "a ) that closes no ("
    else:
      start, label = opened.pop()
      phrases.append(Phrase(start, len(words), label))
      if start == len(words):
        wrong = f"({label}) has neither a word nor a phrase in it"
      elif JOIN in label:
        wrong = f"the label {label} holds {JOIN}, which joins labels; rename it"
    if wrong:
      raise UserError(f"{_where(name, text, token.start())}: {wrong}")
    if not opened:
      yield begin, Tree(tuple(words), tuple(tags), _nested(reversed(phrases)))
      words, tags, phrases = [], [], []
  if opened:
    missing = counted(len(opened), "closing bracket")
    raise UserError(f"{_where(name, text, begin)}: the tree that begins here lacks {missing}")


def _where(name: str, text: str, place: int) -> str:
  return f"{name}, line {1 + text.count(chr(10), 0, place)}"


def _nested(phrases: Iterable[Phrase]) -> tuple[Phrase, ...]:
  """Sort phrases from left to right, parents first; those over the same words keep their order."""
  return tuple(sorted(phrases, key=lambda phrase: (phrase.start, -phrase.end)))


def clean(tree: Tree) -> Tree:
  """Return a tree as parsers learn it, by the rules of Kitaev & Klein's code.

  Traces are removed, with every phrase that they leave empty. Labels are cut at the first - or =,
  and of alternatives A|B the first is kept; -LRB- and the like stay as they are. The bracket around
  a sentence is removed if it has one child, and called TOP if it has several. Phrases over the same
  words are kept, even with equal labels.
  """
  heard = [int(tag != TRACE) for tag in tree.tags]
  place = [0, *itertools.accumulate(heard)]
  tags = (tag.split("|")[0] or tag for tag in itertools.compress(tree.tags, heard))
  words = tuple(itertools.compress(tree.words, heard))
  phrases = [
    Phrase(place[start], place[end], bare(label))
    for start, end, label in tree.phrases
    if place[start] < place[end]
  ]
  whole = (0, len(words))
  while phrases and phrases[0].label in TOPS:
    if len(phrases) == 1 or phrases[1][:2] != whole:
      phrases[0] = Phrase(*whole, TOP)
      break
    del phrases[0]
  return Tree(words, tuple(tags), tuple(phrase for phrase in phrases if phrase.label))


def bare(label: str) -> str:
  """Remove functions and indices from a label: NP of NP-SBJ-1 and of NP=2, PRT of PRT|ADVP."""
  return label if label.startswith("-") else re.split(r"[-=|]", label, maxsplit=1)[0]


def chains(tree: Tree) -> dict[Span, str]:
  """Return the joined labels of each span that has any: "S::VP" where a VP alone makes an S."""
  joined: dict[Span, str] = {}
  for start, end, label in tree.phrases:
    above = joined.get((start, end))
    joined[start, end] = label if above is None else f"{above}{JOIN}{label}"
  return joined


def of_chains(sentence: Tree, spans: Mapping[Span, str]) -> Tree:
  """Build a tree over words from spans as `chains` returns them, of which no two may cross."""
  phrases = (Phrase(*span, label) for span, chain in spans.items() for label in chain.split(JOIN))
  return dataclasses.replace(sentence, phrases=_nested(phrases))


def ordered(counts: Counter) -> tuple[str, ...]:
  """Sort the keys of a count by falling count, then by the alphabet."""
  return tuple(sorted(counts, key=lambda each: (-counts[each], each)))


def brackets(tree: Tree) -> str:
  """Write a tree on one line, with TOP around it, as EVALB reads it."""
  phrases = tree.phrases
  if not phrases or phrases[0].label != TOP:
    phrases = (Phrase(0, len(tree.words), TOP), *phrases)
  heads: list[list[str]] = [[] for _ in tree.words]
  tails = [0] * len(tree.words)
  for start, end, label in phrases:
    heads[start].append(f"({label} ")
    tails[end - 1] += 1
  leaves = zip(heads, tree.tags, tree.words, tails, strict=True)
  return " ".join(f"{''.join(head)}({tag} {word}){')' * tail}" for head, tag, word, tail in leaves)


def indented(tree: Tree) -> str:
  """Write a tree on several lines; a part that fits into `WIDTH` columns takes one line."""
  line = brackets(tree)
  ends: dict[int, int] = {}  # of brackets, by where they begin
  opened: list[int] = []
  for bracket in re.finditer("[()]", line):
    if bracket[0] == "(":
      opened.append(bracket.start())
    else:
      ends[opened.pop()] = bracket.end()
  rows: list[str] = []
  begin = depth = 0
  while begin < len(line):
    end = ends[begin]
    if 2 * depth + end - begin <= WIDTH or line.find("(", begin + 1, end) < 0:
      end = CLOSING.match(line, end).end()
    else:
      end = line.index(" ", begin)
    rows.append("  " * depth + line[begin:end])
    depth += line.count("(", begin, end) - line.count(")", begin, end)
    begin = end + 1
  return "\n".join(rows)


def escaped(word: str) -> str:
  """Write a word as treebanks do: -LRB- for an opening bracket."""
  return word.translate(ESCAPES)
