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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from posexp.data import files
from posexp.errors import UserError, counted

TOP = "TOP"
TOPS = ("", TOP, "ROOT", "S1", "VROOT")  # labels of the bracket around a sentence in treebanks
TRACE = "-NONE-"  # the tag of traces and empty elements, which are not spoken
JOIN = "::"  # between the labels of phrases over the same words, outermost first
TOKEN = re.compile(r"[()]|[^\s()]+")
WIDTH = 80  # columns of a line when a tree takes several
ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

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
  """Return files by their names or globs, those of a glob in order.

  Raises:
    UserError: a glob matches no file.
  """
  found: list[str] = []
  for name in (given,) if isinstance(given, str) else given:
    if os.path.exists(os.path.expanduser(name)) or not glob.has_magic(name):
      found.append(name)
      continue
    fit = sorted(glob.glob(os.path.expanduser(name), recursive=True))
    if not fit:
      raise UserError(f"{name}: no file has a name like that (looked in {os.getcwd()})")
    found += fit
  return found


def read(names: Iterable[str]) -> Iterator[Tree]:
  """Yield the cleaned trees of files, plain or gzipped, one after another; see `clean`.

  Raises:
    UserError: a file cannot be read (the message names the line), or has no tree.
  """
  for name in names:
    empty = True
    with files.opened(name) as file:
      for line, tree in parsed(name, files.lines(name, file)):
        empty = False
        cleaned = clean(tree)
        if cleaned.words and all(phrase.label == TOP for phrase in cleaned.phrases):
          raise UserError(
            f"{name}, line {line}: a tree without a phrase; above its words at least one bracket "
            "must stand that is not the top"
          )
        if cleaned.words:  # else it had only traces
          yield cleaned
    if empty:
      raise UserError(f"{name}: the file has no tree; give one with at least one")


@dataclasses.dataclass
class _Open:
  """A bracket that is not closed yet."""

  line: int
  start: int
  place: int  # of its phrase among the tree's phrases
  atoms: list[str]  # its label, or its tag and its word
  children: int = 0


def parsed(name: str, lines: Iterable[str]) -> Iterator[tuple[int, Tree]]:
  """Yield the trees of a file as written, each with the line on which it begins.

  Raises:
    UserError: brackets do not match, a leaf has no word, or a bracket mixes words and phrases; the
      message names the file and the line.
  """
  stack: list[_Open] = []
  words: list[str] = []
  tags: list[str] = []
  phrases: list[Phrase | None] = []
  for number, line in enumerate(lines, start=1):
    where = f"{name}, line {number}"
    for token in TOKEN.findall(line):
      if token == "(":
        if stack:
          _check_unmixed(name, stack[-1], len(stack[-1].atoms) > 1)
          stack[-1].children += 1
        stack.append(_Open(number, len(words), len(phrases), []))
        phrases.append(None)
      elif not stack:
        found = "a ) that closes no (" if token == ")" else f"{token!r} outside of all brackets"
        raise UserError(f"{where}: {found}")
      elif token != ")":
        _check_unmixed(name, stack[-1], stack[-1].children > 0)
        stack[-1].atoms.append(token)
      else:
        closed = stack.pop()
        if closed.children:
          label = _label(where, closed.atoms)
          phrases[closed.place] = Phrase(closed.start, len(words), label)
        elif len(closed.atoms) > 1:  # several parts make one word
          phrases.pop()
          tags.append(sys.intern(closed.atoms[0]))  # a treebank has few different tags and words
          words.append(sys.intern("_".join(closed.atoms[1:])))
        else:
          shown = f"({''.join(closed.atoms)})"
          raise UserError(f"{where}: {shown} has neither a word nor a phrase in it")
        if not stack:
          yield closed.line, Tree(tuple(words), tuple(tags), tuple(phrases))
          words, tags, phrases = [], [], []
  if stack:
    missing = counted(len(stack), "closing bracket")
    raise UserError(f"{name}, line {stack[0].line}: the tree that begins here lacks {missing}")


def _check_unmixed(name: str, bracket: _Open, mixed: bool) -> None:
  if mixed:
    shown = " ".join(bracket.atoms)
    raise UserError(
      f"{name}, line {bracket.line}: the bracket ({shown} …) holds both words and brackets; is a ) "
      "missing?"
    )


def _label(where: str, atoms: Sequence[str]) -> str:
  label = atoms[0] if atoms else ""
  if JOIN in label:
    raise UserError(f"{where}: the label {label} holds {JOIN}, which joins labels; rename it")
  return label


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
  found: dict[Span, str] = {}
  for start, end, label in tree.phrases:
    above = found.get((start, end))
    found[start, end] = label if above is None else f"{above}{JOIN}{label}"
  return found


def of_chains(words: Sequence[str], tags: Sequence[str], spans: Mapping[Span, str]) -> Tree:
  """Build a tree from spans as returned by `chains`; no two spans may cross."""
  ordered = sorted(spans.items(), key=lambda item: (item[0][0], -item[0][1]))
  phrases = (Phrase(*span, label) for span, chain in ordered for label in chain.split(JOIN))
  return Tree(tuple(words), tuple(tags), tuple(phrases))


class _Piece(NamedTuple):
  """A bracket of a tree to write: a phrase, or a word with its tag."""

  depth: int
  begin: int  # its place in the line
  end: int
  head: str  # "(NP", or the whole bracket of a word


def _written(tree: Tree) -> tuple[str, list[_Piece]]:
  """Write a tree on one line; return it and its brackets in the order in which they open."""
  phrases = tree.phrases
  if not phrases or phrases[0].label != TOP:
    phrases = (Phrase(0, len(tree.words), TOP), *phrases)
  pieces: list[_Piece] = []
  line: list[str] = []
  opened: list[tuple[int, int]] = []  # (end, place among the pieces)
  length = following = 0
  for i, (tag, word) in enumerate(zip(tree.tags, tree.words, strict=True)):
    while following < len(phrases) and phrases[following].start == i:
      head = f"({phrases[following].label}"
      opened.append((phrases[following].end, len(pieces)))
      pieces.append(_Piece(len(opened) - 1, length, 0, head))
      line.append(f"{head} ")
      length += len(head) + 1
      following += 1
    leaf = f"({tag} {word})"
    pieces.append(_Piece(len(opened), length, length + len(leaf), leaf))
    line.append(leaf)
    length += len(leaf)
    while opened and opened[-1][0] == i + 1:
      line.append(")")
      length += 1
      place = opened.pop()[1]
      pieces[place] = pieces[place]._replace(end=length)
    line.append(" ")
    length += 1
  return "".join(line).rstrip(), pieces


def brackets(tree: Tree) -> str:
  """Write a tree on one line, with TOP around it, as EVALB reads it."""
  return _written(tree)[0]


def indented(tree: Tree) -> str:
  """Write a tree on several lines; a part that fits into `WIDTH` columns takes one line."""
  line, pieces = _written(tree)
  rows: list[str] = []
  done = 0
  for depth, begin, end, head in pieces:
    if begin < done:
      continue
    fits = head.endswith(")") or 2 * depth + end - begin <= WIDTH
    shown = line[begin:end] if fits else head
    if fits:
      done = end
      shown += re.match(r"\)*", line[end:])[0]  # closes the brackets that end here
    rows.append("  " * depth + shown)
  return "\n".join(rows)


def escaped(word: str) -> str:
  """Write a word as treebanks do: -LRB- for an opening bracket."""
  return re.sub(r"[()\[\]{}]", lambda found: ESCAPES[found[0]], word)
