"""Translate texts with the best checkpoint of a translation run.

examples:
  python -m posexp.translate RUN "A man rides a bicycle." "Two dogs play."
  python -m posexp.translate RUN --batch 128 < test.en > test.de
  python -m posexp.translate RUN --beam 1 --scores < test.en
  python -m posexp.translate RUN "A man rides a bicycle." --maps

One line comes out for each that goes in. Texts are UTF-8; a blank line gives a blank line. Nothing
but RUN is read: the weights are those of its best checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp import storage
from posexp.config.arguments import Parser, command
from posexp.data.lines import windows
from posexp.errors import UserError, counted, near, printable
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.translation.lines import Hypothesis, LineTranslator

MAPS = 8  # lines of which the attention is drawn


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("translate", __doc__)
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run")
  option("texts", metavar="TEXT", nargs="*", help="what to translate; default: standard input")
  option("--beam", metavar="K", type=int, help="hypotheses; default: as the run was tested")
  option("--batch", metavar="N", type=int, default=64, help="lines at a time; default: 64")
  option("--scores", action="store_true", help="put log p and a tab before each translation")
  option("--maps", action="store_true", help=f"draw attention, of the first {MAPS} lines")
  return parser.parse_for_run(argv, beam=1, batch=1)


def translate(args: argparse.Namespace) -> None:
  """Translate the given lines, and print them window by window.

  Raises:
    UserError: the run cannot be opened, or what is to be translated cannot be read.
  """
  rows, every = windows(args.texts, args.batch)
  from posexp.training.restore import open_for
  from posexp.translation.lines import LineTranslator

  trained = open_for("translate", args.run, split=None, rows=rows)
  task: Any = trained.setup.task  # a Translation
  search = task.search
  if args.beam is not None:
    try:
      search = dataclasses.replace(search, beam=args.beam)
    except ValueError as error:
      raise UserError(f"--{error}") from None
  translator = LineTranslator(trained, search, rows)
  numbers, drawn, cut = itertools.count(1), 0, 0
  for window in every:
    texts = [line.text for line in window]
    doing(f"translating {counted(len(texts), 'line')}" if texts else "")
    translations = translator(texts)
    for translation in translations:
      score = f"{translation.score:.4f}" if translation else ""  # a blank line has none
      print(*[score] * args.scores, printable(translation.text) if translation else "", sep="\t")
    sys.stdout.flush()
    for text, each, number in zip(texts, translations, numbers, strict=False):
      cut += each is not None and each.cut
      if args.maps and each and drawn < MAPS:
        draw(trained.run.path, translator, number, text, each)
        drawn += 1
  if cut:
    print(
      f"note: {counted(cut, 'line')} cut to {translator.most} tokens, which is as much as the "
      "model reads",
      file=sys.stderr,
    )


def draw(run: Path, translator: LineTranslator, number: int, text: str, found: Hypothesis) -> None:
  """Draw the attention of one translation, in the run's folder."""
  from posexp.analysis import plotting
  from posexp.translation import maps

  for each in maps.of_translation(translator, found):
    figure = maps.drawn(each, f"line {number}: {text}")
    folder = storage.unlinked(run / "figures")
    for path in plotting.save(figure, folder, f"line-{number}-{each.name}"):
      print(near(path), file=sys.stderr)


main = command("opening the run", translate, arguments)
