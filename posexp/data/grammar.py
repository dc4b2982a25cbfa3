"""Sentences with their trees, drawn from a small grammar of English.

The grammar is ambiguous where English is: in where a prepositional phrase or a clause belongs, and
in what `and` joins. Words hint at the answer but do not decide it: one sees with a telescope more
often than a man has one. So even the grammar's own best trees (`best_trees.py`) are sometimes
wrong, which bounds how well any parser can do.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from posexp.data.trees import Phrase, Tree

LONGEST = 40  # words of a sentence at most
START = "S/root"

# Weight and children of each rule. Trees do not show the part of a symbol after a slash, nor
# symbols that begin with _.
RULES = """
S/root: 76 _subject VP . | 8 SBAR/when , _subject VP . | 6 PP/time , _subject VP . | 6 S , CC S .
S: 1 _subject VP
S/to: 1 VP/to
S/relative: 7 VP | 3 _subject VP/gap
SBAR/when: 1 IN/when S
SBAR/that: 1 IN/that S
SBAR/relative: 1 WHNP S/relative
WHNP: 1 WDT
_subject: 5 NP/person | 2 NP/thing | 3 NP/pronoun
_object: 4 NP/person | 5 NP/thing | 1 NP/object
_any: 1 NP/person | 2 NP/thing | 1 NP/place
NP/pronoun: 1 PRP
NP/object: 1 PRP/object
NP/person: 40 DT NN/person | 10 DT JJ/person NN/person | 15 NNP | 9 NP/person PP/feature
  | 6 NP/person PP/place | 8 NP/person SBAR/relative | 8 NP/person CC NP/person
NP/thing: 40 DT NN/thing | 12 DT JJ/thing NN/thing | 6 DT NN/thing NN/thing | 6 CD NNS/thing
  | 10 NP/thing PP/of | 9 NP/thing PP/place | 4 NP/thing SBAR/relative | 7 NP/thing CC NP/thing
NP/place: 6 DT NN/place | 2 DT JJ/thing NN/place | 2 NP/place PP/place | 1 NP/place PP/of
NP/feature: 5 DT NN/feature | 3 DT JJ/thing NN/feature | 1 NP/feature CC NP/feature
NP/tool: 5 DT NN/tool | 3 DT JJ/thing NN/tool
NP/time: 5 DT NN/time | 1 NP/time PP/of
PP/feature: 1 IN/with NP/feature
PP/tool: 1 IN/with NP/tool
PP/place: 1 IN/place NP/place
PP/of: 1 IN/of _any
PP/time: 1 IN/time NP/time
VP: 8 VBD/alone | 26 VBD _object | 10 VBD _object PP/tool | 9 VBD _object PP/place
  | 6 VBD _object PP/time | 3 VBD _object PP/place PP/time | 9 VBD/alone PP/place
  | 5 VBD/alone ADVP | 6 VBD/say SBAR/that | 4 VBD/say S | 6 VBD/want S/to | 6 VBD/be ADJP
  | 6 MD VP/plain | 8 VP CC VP | 4 VP PP/time
VP/gap: 5 VBD | 2 VBD PP/place | 1 VBD PP/time
VP/to: 1 TO VP/plain
VP/plain: 5 VB _object | 3 VB _object PP/tool | 3 VB _object PP/place | 2 VB/alone
  | 2 VB/alone PP/place | 1 VB/be ADJP
ADJP: 5 JJ/state | 3 RB/degree JJ/state | 2 JJ/state CC JJ/state
ADVP: 1 RB
"""

# The words of each tag: the second is half as frequent as the first, the third a third as frequent.
WORDS = """
.: .
,: ,
CC: and or
DT: the a every this that
PRP: she he they it we
PRP/object: him her it them us
NNP: Ann Max Mia Tom Eva Ben Ida Leo Zoe Kim
CD: two three four ten
NN/person: man woman child teacher farmer doctor girl boy painter guard sailor nurse cook pilot
  watch
NN/thing: book letter box song picture table duck play stone watch drink cup ball boat saw
NNS/thing: books letters boxes songs pictures ducks stones cups boats
NN/place: park house garden street school market river hill station kitchen harbor box
NN/feature: hat beard coat dog stick scar umbrella telescope lamp
NN/tool: telescope stick hammer saw lamp rope umbrella knife camera dog
NN/time: morning war play storm summer song walk
JJ/person: old young tall kind brave
JJ/thing: old small red new heavy broken
JJ/state: happy tired old sick late angry
RB: slowly often again quietly there
RB/degree: very quite too
IN/with: with
IN/of: of
IN/place: in on near behind with
IN/time: during after before in
IN/when: when after because before
IN/that: that
WDT: that who which
TO: to
MD: will can must may
VBD: saw found watched hit took carried liked drew drank followed
VBD/alone: slept laughed walked played fell waited drank saw
VBD/say: said thought knew saw
VBD/want: wanted hoped tried liked
VBD/be: was seemed looked
VB: see find watch hit take carry like draw drink follow
VB/alone: sleep laugh walk play fall wait drink
VB/be: be seem look
"""


class Rule(NamedTuple):
  """A symbol and children that it may have, with the log probability."""

  left: str
  right: tuple[str, ...]
  weight: float


@functools.cache
def rules() -> tuple[Rule, ...]:
  """Return all rules but those that give words."""
  found = []
  for line in _lines(RULES):
    left, _, text = line.partition(": ")
    options = [option.split() for option in text.split(" | ")]
    total = sum(int(weight) for weight, *_ in options)
    found += [Rule(left, tuple(right), math.log(int(weight) / total)) for weight, *right in options]
  return tuple(found)


@functools.cache
def words() -> dict[str, dict[str, float]]:
  """Return the probability of each word, by symbol."""
  found = {}
  for line in _lines(WORDS):
    symbol, _, text = line.partition(": ")
    listed = text.split()
    total = sum(1 / n for n in range(1, len(listed) + 1))
    found[symbol] = {word: 1 / n / total for n, word in enumerate(listed, start=1)}
  return found


def _lines(text: str) -> list[str]:
  """Split text into lines, and joins indented ones to the line above."""
  return text.strip().replace("\n  ", " ").split("\n")


def label(symbol: str) -> str:
  """Return the part of a symbol that trees show; "" for a hidden symbol."""
  return "" if symbol.startswith("_") else symbol.partition("/")[0]


# Drawing


def draw(count: int, seed: int) -> list[Tree]:
  """Draw `count` different sentences with their trees."""
  random = np.random.default_rng(seed)
  found: dict[tuple[str, ...], Tree] = {}
  while len(found) < count:
    tree = _drawn(random)
    if tree is not None:
      found.setdefault(tree.words, tree)
  return list(found.values())


@functools.cache
def _choices() -> dict[str, tuple[np.ndarray, list]]:
  """Return, by symbol, cumulative probabilities and their options: children, or words."""
  found: dict[str, tuple[np.ndarray, list]] = {}
  for left, group in itertools.groupby(rules(), key=lambda rule: rule.left):
    members = list(group)
    share = np.exp([rule.weight for rule in members])
    found[left] = (share.cumsum(), [rule.right for rule in members])
  for symbol, shares in words().items():
    found[symbol] = (np.cumsum(list(shares.values())), list(shares))
  return found


def _drawn(random: np.random.Generator) -> Tree | None:
  """Draw a tree; None if it gets too long."""
  choices = _choices()
  said: list[str] = []
  tags: list[str] = []
  phrases: list[Phrase] = []
  todo: list[str | tuple[int, Phrase]] = [START]  # symbols, or a phrase to end and its place
  while todo:
    each = todo.pop()
    if not isinstance(each, str):
      place, phrase = each
      phrases[place] = phrase._replace(end=len(said))
      continue
    sums, options = choices[each]
    at = np.searchsorted(sums, random.random() * sums[-1], side="right")
    chosen = options[min(int(at), len(options) - 1)]
    if isinstance(chosen, str):
      said.append(chosen)
      tags.append(label(each))
      continue
    if label(each):
      phrase = Phrase(len(said), 0, label(each))
      todo.append((len(phrases), phrase))
      phrases.append(phrase)
    todo += reversed(chosen)
    if len(said) + len(todo) > 3 * LONGEST:
      return None
  if len(said) > LONGEST:
    return None
  return Tree(tuple(said), tuple(tags), tuple(phrases))
