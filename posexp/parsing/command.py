"""The command of this room: sentences parsed by a trained run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from posexp.config.arguments import Parser, run
from posexp.data import batches
from posexp.data.lines import windows
from posexp.errors import UserError, counted, printable, writing
from posexp.parsing import trees
from posexp.parsing.encoded import TAGGED, Sentences, kept_lexicon
from posexp.parsing.trees import Tree
from posexp.status import doing
from posexp.training.restore import TrainedModel

EXAMPLES = """\
examples:
  python -m posexp.parse RUN "The cat sat ."
  python -m posexp.parse RUN "The/DT cat/NN sat/VBD ./."
  python -m posexp.parse RUN "The cat sat ." --svg cat.svg
  python -m posexp.parse RUN < sentences.txt > parsed.mrg

Words are separated by spaces, as in the treebank that the run was trained on. Tags may follow a
slash, either for all words of a line or for none; without them, each word gets the tag that it most
often has in the training trees. The tree of a TEXT is printed over several lines, that of a line of
standard input on one line. Nothing but the folder RUN is read; its best checkpoint has the weights.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("parse", f"Parses sentences with the best checkpoint of a parser.\n\n{EXAMPLES}")
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run")
  option("texts", metavar="TEXT", nargs="*", help="what to parse; default: standard input")
  option("--batch", metavar="N", type=int, default=16, help="sentences at a time; default: 16")
  option("--svg", metavar="FILE", type=Path, help="draw the tree of one TEXT")
  args = parser.parse_for_run(argv, batch=1)
  if args.svg and len(args.texts) != 1:
    parser.error(f"--svg draws the tree of one TEXT, not of {len(args.texts)}")
  return args


def parse(args: argparse.Namespace) -> None:
  """Parse what was asked for, and print it window by window.

  Raises:
    UserError: the run cannot be opened, or what is to be parsed cannot be read.
  """
  rows, every = windows(args.texts, args.batch)
  from posexp.parsing.command import LineParser
  from posexp.parsing.task import Parsing
  from posexp.training.devices import prepare
  from posexp.training.restore import open_alone

  prepare()
  trained = open_alone(args.run, Parsing, "posexp.parse needs a parser", rows)
  parser = LineParser(trained, rows)
  for window in every:
    doing(f"parsing {counted(len(window), 'sentence')}" if window else "")
    for tree in parser(window):
      written = trees.indented if args.texts else trees.brackets
      print("\n".join(map(printable, written(tree).split("\n"))) if tree else "")
      if tree and args.svg:
        from posexp.parsing import figures

        with writing("--svg", args.svg):
          figures.drawn(tree).savefig(args.svg, format="svg", metadata={"Date": None})
    sys.stdout.flush()
  if parser.guessed:
    print(f"note: {parser.guessed}", file=sys.stderr)


class LineParser:
  """A parser of lists of sentences, with a trained model."""

  def __init__(self, trained: TrainedModel, rows: int):
    """Prepare to parse batches of `rows` rows, a multiple of the devices of the snapshot."""
    self.snapshot, self.rows = trained.snapshot, rows
    self.lexicon = kept_lexicon(trained.run.path)
    self.inputs = trained.setup.task.inputs
    self.limit = trained.spec.positions.limit(trained.spec.encoding.limit)
    self.guessed = ""  # a sentence on tags that were not given
    self.unknown: set[str] = set()  # words without tags that no training tree has

  def __call__(self, lines: Sequence[tuple[str, str]]) -> list[Tree | None]:
    """Return the tree of each line, which is given with its name; None for a blank line.

    Raises:
      UserError: a line has some tags and lacks others, has an unknown tag, or is too long.
    """
    given = [self.tagged(name, line.split()) for name, line in lines]
    real = [place for place, words in enumerate(given) if words]
    found: list[Tree | None] = [None] * len(lines)
    if not real:
      return found
    sentences = [Tree(*zip(*given[place], strict=True), ()) for place in real]
    encoded = Sentences.of_trees(sentences, self.lexicon, self.inputs, train=False)
    ends = np.unique(
      [batches.padded_length(count, self.limit) for count in encoded.lengths.tolist()]
    )
    spans = self.snapshot.predict(batches.evaluation(encoded, ends, self.rows))["spans"]
    for place, sentence, each in zip(real, sentences, spans, strict=True):
      found[place] = self.lexicon.tree(sentence, each)
    return found

  def tagged(self, name: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return words with their tags: those after their slashes, or else the most frequent ones."""
    if self.limit is not None and len(words) > self.limit - 2:
      raise UserError(
        f"{name}: {len(words):,} words, and the positions of the run are enough for "
        f"{self.limit - 2:,}"
      )
    parted = {word: word.rpartition("/")[::2] for word in words}
    tags = self.lexicon.tag_ids
    missing = [word for word, (first, tag) in parted.items() if not first or tag not in tags]
    if not missing:
      return [(trees.escaped(parted[word][0]), parted[word][1]) for word in words]
    if len(missing) < len(parted) or all(first and tag.isupper() for first, tag in parted.values()):
      raise UserError(
        f"{name}: {missing[0]!r} has no tag of the training trees, as other words have; they are "
        f"{' '.join(self.lexicon.tags)}"
      )
    escaped = [*map(trees.escaped, words)]
    self.unknown.update(word for word in escaped if word not in self.lexicon.words)
    read = ", which the parser reads" if self.inputs in TAGGED else ""
    self.guessed = (
      "no tags were given: each word has the one that it most often has in the training trees"
      f"{read}; word/TAG gives another"
    )
    if self.unknown:
      words = counted(len(self.unknown), "word")
      self.guessed += f"; {words} of no training tree got {self.lexicon.rare_tag}"
    return [(word, self.lexicon.tag(word)) for word in escaped]


def main() -> None:
  """Parse with a trained run: `python -m posexp.parse RUN "The cat sat ."`."""
  sys.stdout.reconfigure(encoding="utf-8")  # as what comes in
  run(lambda argv: parse(arguments(argv)), "opening the run")
