"""Translate with a trained run: `python -m posexp.translate RUN "A man rides a bicycle."`."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posexp.config.arguments import Parser, run
from posexp.data.files import opened
from posexp.errors import UserError, near

if TYPE_CHECKING:
  from posexp.analysis.line_translation import Hypothesis, LineTranslator
  from posexp.training.restore import TrainedModel

WINDOW = 16  # batches of lines that are read at a time, and sorted by length
MAPS = 8  # lines of which the attention is drawn
FEW = 8  # lines whose throughput would say nothing
EXAMPLES = """\
examples:
  python -m posexp.translate RUN "A man rides a bicycle." "Two dogs play."
  python -m posexp.translate RUN --file test.en --batch 128 > test.de
  cat test.en | python -m posexp.translate RUN --beam 1 --scores
  python -m posexp.translate RUN "A man rides a bicycle." --maps

One line comes out for each that goes in. Texts are UTF-8; a blank line gives a blank line. Nothing
but RUN is read: the weights are those of its best checkpoint.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "translate", "Translates texts with the best checkpoint of a translation run.", EXAMPLES
  )
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run")
  option("texts", metavar="TEXT", nargs="*", help="what to translate; default: standard input, -")
  option("--file", metavar="FILE", help="translate its lines; it may be gzipped")
  tested = "default: as the run was tested"
  option("--beam", metavar="K", type=at_least(1), help=tested)
  option("--length-penalty", metavar="A", type=at_least(0, float), help=tested)
  limit = "tokens of a translation; default: 2 for each of its source, and 8"
  option("--max-length", metavar="N", type=at_least(1), help=limit)
  option("--batch", metavar="N", type=at_least(1), default=64, help="lines at a time; default: 64")
  option("--scores", action="store_true", help="put log p and a tab before each translation")
  option("--maps", action="store_true", help=f"draw attention, of {MAPS} lines at most")
  parser.add_plugins()
  args = parser.parse_intermixed_args(argv)
  if args.file is not None and args.texts:
    parser.error("either texts or --file, not both")
  if len(args.texts) > 1 and "-" in args.texts:
    parser.error("- is standard input and must stand alone")
  return args


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], float]:
  """What reads a number from there on."""

  def read(text: str) -> float:
    try:
      value = kind(text)
    except ValueError:
      value = math.nan
    if not least <= value < math.inf:
      whole = "whole " if kind is int else ""
      raise argparse.ArgumentTypeError(f"must be a {whole}number of at least {least}, not {text}")
    return value

  return read


def given_lines(args: argparse.Namespace) -> Iterator[str]:
  """The lines to translate, read as they are asked for.

  Raises:
    UserError: there is no such file, or a line is not UTF-8.
  """
  if args.file is not None:
    with opened(args.file) as file:
      yield from decoded(file, args.file)
  elif args.texts in ([], ["-"]):
    yield from decoded(sys.stdin.buffer, "standard input")
  else:
    yield from args.texts


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
  """Lines without what ends them, \\n or \\r\\n."""
  for number, line in enumerate(lines, start=1):
    try:
      text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
      raise UserError(f"{name}, line {number}: not valid UTF-8; save it as UTF-8") from None
    yield text.removesuffix("\n").removesuffix("\r")


def translate(args: argparse.Namespace) -> None:
  """Translates what was asked for, and prints it window by window.

  Raises:
    UserError: the run cannot be opened, or what is to be translated cannot be read.
  """
  lines = given_lines(args)
  # The first line of a file is read before the run is opened, which takes long.
  first = list(itertools.islice(lines, args.file is not None))
  from posexp.analysis.line_translation import LineTranslator, batch_rows
  from posexp.models.decoding import Search
  from posexp.training.devices import prepare
  from posexp.training.restore import open_translator

  prepare()
  trained = open_translator(args.run, args.batch)
  lines = itertools.chain(first, lines)
  # Whoever types lines into a terminal wants each answered.
  typed = args.file is None and args.texts in ([], ["-"]) and sys.stdin.isatty()
  size = 1 if typed else WINDOW * args.batch
  window = list(itertools.islice(lines, size))
  task = trained.setup.task
  search = Search(
    beam=task.beam if args.beam is None else args.beam,
    length_penalty=task.length_penalty if args.length_penalty is None else args.length_penalty,
    max_length=args.max_length,
  )
  rows = batch_rows(len(window), args.batch, trained.snapshot.mesh.size)
  translator = LineTranslator(trained, search, rows)
  numbers, drawn = itertools.count(1), 0
  while window:
    found = translator(window)
    for each in found:
      score = f"{each.score:.4f}" if each else ""  # a blank line has none
      print(*[score] * args.scores, each.text if each else "", sep="\t")
    sys.stdout.flush()
    for text, each, number in zip(window, found, numbers, strict=False):
      if args.maps and each and drawn < MAPS:
        draw(trained, number, text, each)
        drawn += 1
    window = list(itertools.islice(lines, size))
  for note in notes(translator, drawn if args.maps else None):
    print(note, file=sys.stderr)


def draw(trained: TrainedModel, number: int, text: str, found: Hypothesis) -> None:
  """Draws the attention of one translation, in the run's folder."""
  from posexp import plotting
  from posexp.analysis import attention, figures

  maps = attention.of_translation(trained, found.source, found.target)
  for name, figure in figures.translation_maps(maps, f"line {number}: {text}"):
    with warnings.catch_warnings():
      # The font may lack a script, which a browser shows in the SVG all the same.
      warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")
      folder = trained.run.path / "figures"
      for path in plotting.save(figure, folder, f"line-{number}-{name}"):
        print(near(path), file=sys.stderr)


def notes(translator: LineTranslator, drawn: int | None) -> Iterator[str]:
  """What there is to say after the last line; `drawn` lines were drawn, None if none was to be."""
  count, cut, unended = translator.count, translator.cut_sources, translator.cut_translations
  if cut:
    what = "line is" if len(cut) == 1 else "lines are"
    yield (
      f"note: {len(cut):,} {what} translated only up to {translator.most} tokens, which is as much "
      f"as the model reads ({translator.why}); the first is line {cut[0] + 1}"
    )
  if unended:
    what = "translation was" if unended == 1 else "translations were"
    yield f"note: {unended:,} {what} cut at the greatest length; --max-length sets another"
  if drawn is not None and drawn < count:
    yield f"note: the attention of the first {drawn} lines is drawn, not of all {count:,}"
  if count > FEW:
    seconds, tokens = translator.seconds, translator.tokens
    yield (
      f"{count:,} sentences in {seconds:.2f} s: {count / seconds:,.1f} sentences/s, "
      f"{tokens / seconds:,.0f} tokens/s, and {translator.compiling:.1f} s to compile"
    )


def main() -> None:
  """The command line."""
  sys.stdout.reconfigure(encoding="utf-8")  # as what comes in
  run(lambda argv: translate(arguments(argv)))


if __name__ == "__main__":
  main()
