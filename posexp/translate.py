"""Translate with a trained run: `python -m posexp.translate RUN "A man rides a bicycle."`."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posexp.config.arguments import Parser, run
from posexp.errors import UserError

if TYPE_CHECKING:
  from posexp.analysis.sentences import Hypothesis, Sentences
  from posexp.training.restore import TrainedModel

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
  parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run")
  parser.add_argument(
    "texts", metavar="TEXT", nargs="*", help="what to translate; default: standard input, also -"
  )
  parser.add_argument("--file", metavar="FILE", help="translate its lines; it may be gzipped")
  parser.add_argument("--beam", metavar="K", type=count, help="default: as the run was tested")
  parser.add_argument(
    "--length-penalty", metavar="A", type=penalty, help="default: as the run was tested"
  )
  parser.add_argument(
    "--max-length",
    metavar="N",
    type=count,
    help="tokens of a translation; default: 2 for each of its source, and 8",
  )
  parser.add_argument(
    "--batch", metavar="N", type=count, default=64, help="lines at a time; default: 64"
  )
  parser.add_argument(
    "--scores", action="store_true", help="put log p and a tab before each translation"
  )
  parser.add_argument(
    "--maps", action="store_true", help=f"draw attention, of {MAPS} lines at most"
  )
  parser.add_plugins()
  args = parser.parse_intermixed_args(argv)
  if args.file is not None and args.texts:
    parser.error("either texts or --file, not both")
  if len(args.texts) > 1 and "-" in args.texts:
    parser.error("- is standard input and must stand alone")
  return args


def count(text: str) -> int:
  """A whole number of at least 1."""
  if not text.isascii() or not text.removeprefix("-").isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
  return int(text)


def penalty(text: str) -> float:
  """A number of at least 0."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
  return value


def given(args: argparse.Namespace) -> Iterator[str]:
  """The lines to translate, read as they are asked for.

  Raises:
    UserError: there is no such file, or a line is not UTF-8.
  """
  if args.file is not None:
    yield from of_file(args.file)
  elif args.texts in ([], ["-"]):
    yield from decoded(sys.stdin.buffer, "standard input")
  else:
    yield from args.texts


def of_file(path: str) -> Iterator[str]:
  """The lines of a file, which may be gzipped; none of an empty one."""
  from posexp.data.files import opened

  with opened(path) as file:
    yield from decoded(file, path)


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
  lines = given(args)
  first = []
  if args.file is not None:  # or a wrong name would be told of only after the run is opened
    first = list(itertools.islice(lines, 1))
  from posexp.analysis.sentences import WINDOW, Sentences, enough
  from posexp.training.devices import prepare
  from posexp.training.restore import open_translator

  prepare()
  opened = open_translator(args.run, args.batch)
  lines = itertools.chain(first, lines)
  # Who types lines wants each answered.
  typed = args.file is None and args.texts in ([], ["-"]) and sys.stdin.isatty()
  window = list(itertools.islice(lines, 1 if typed else WINDOW * args.batch))
  rows = enough(len(window), args.batch, opened.snapshot.mesh.size)
  sentences = Sentences(opened, search(args, opened), rows)
  drawn, place = 0, 0
  while window:
    found = sentences(window)
    for each in found:
      print(line(each, args.scores))
    sys.stdout.flush()
    for number, (text, each) in enumerate(zip(window, found, strict=True), start=place + 1):
      if args.maps and each is not None and drawn < MAPS:
        draw(opened, number, text, each)
        drawn += 1
    place += len(window)
    window = list(itertools.islice(lines, len(window)))
  for each in notes(sentences, drawn if args.maps else None):
    print(each, file=sys.stderr)


def search(args: argparse.Namespace, opened: TrainedModel):
  """How the run was tested, but for what was typed."""
  from posexp.models.decoding import Search

  task = opened.setup.task
  return Search(
    beam=task.beam if args.beam is None else args.beam,
    length_penalty=task.length_penalty if args.length_penalty is None else args.length_penalty,
    max_length=args.max_length,
  )


def line(found: Hypothesis | None, scores: bool) -> str:
  """What comes out for one line; a blank one has no score."""
  text = "" if found is None else found.text
  if not scores:
    return text
  return f"{'' if found is None else format(found.score, '.4f')}\t{text}"


def draw(opened: TrainedModel, number: int, text: str, found: Hypothesis) -> None:
  """Draws the attention of one translation."""
  from posexp import plotting
  from posexp.analysis import attention, figures
  from posexp.errors import near

  seen = attention.of_translation(opened, found.source, found.target)
  folder = opened.record.path / "figures"
  for name, figure in figures.translation_maps(seen, f"line {number}: {text}"):
    with warnings.catch_warnings():
      # Of a script that the font lacks; a browser shows it in the SVG all the same.
      warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")
      paths = plotting.save(figure, folder, f"line-{number}-{name}")
    for path in paths:
      print(near(path), file=sys.stderr)


def notes(sentences: Sentences, drawn: int | None) -> Iterator[str]:
  """What there is to say after the last line."""
  if sentences.long:
    what = "line is" if len(sentences.long) == 1 else "lines are"
    yield (
      f"note: {len(sentences.long):,} {what} translated only up to {sentences.most} tokens, which "
      f"is as much as the model reads ({sentences.why}); the first is line {sentences.long[0] + 1}"
    )
  if sentences.unended:
    what = "translation was" if sentences.unended == 1 else "translations were"
    yield (
      f"note: {sentences.unended:,} {what} cut at the greatest length; --max-length sets another"
    )
  if drawn is not None and drawn < sentences.count:
    yield f"note: the attention of the first {drawn} lines is drawn, not of all {sentences.count:,}"
  if sentences.count > FEW:
    seconds = sentences.seconds
    yield (
      f"{sentences.count:,} sentences in {seconds:.2f} s: {sentences.count / seconds:,.1f} "
      f"sentences/s, {sentences.tokens / seconds:,.0f} tokens/s, and {sentences.compiling:.1f} s "
      "to compile"
    )


def main() -> None:
  """The command line."""
  sys.stdout.reconfigure(encoding="utf-8")  # as what comes in
  run(lambda argv: translate(arguments(argv)))


if __name__ == "__main__":
  main()
