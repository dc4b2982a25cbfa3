"""Write on with the best checkpoint of a language model.

examples:
  python -m posexp.generate RUN "This film"
  python -m posexp.generate RUN "This film" --tokens 500 --temperature 0.8 --top-p 0.95
  python -m posexp.generate RUN "This film" --samples 4 --seed 1
  python -m posexp.generate RUN < start.txt
  python -m posexp.generate hf:FOLDER "This film"     # of a released model
  python -m posexp.generate RUN ""                    # a document from its first token on

The text is a document: it ends where the model ends it. A model with a memory reads it in segments,
as in training; one without, in windows of a segment, each half a segment after the one before it.
Nothing but RUN is read: the weights are those of its best checkpoint.
"""

from __future__ import annotations

import argparse
import codecs
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.config.arguments import Parser, command
from posexp.data.lines import standard_input
from posexp.errors import UserError, printable
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.training.restore import TrainedModel


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("generate", __doc__)
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run, or a released model, hf:...")
  option("prompt", metavar="PROMPT", nargs="?", help="how it begins; default: standard input")
  option("--tokens", metavar="N", type=int, default=200, help="at most; default: 200")
  option("--temperature", metavar="T", type=float, default=1.0, help="0: the likeliest; default: 1")
  option("--top-k", metavar="K", type=int, help="draw from the K likeliest tokens only")
  fewest = "draw from the fewest tokens that have share P"
  option("--top-p", metavar="P", type=float, default=1.0, help=fewest)
  option("--seed", metavar="S", type=int, default=0, help="of what is drawn; default: 0")
  option("--samples", metavar="N", type=int, default=1, help="how many texts; default: 1")
  option("--memory", metavar="M", type=int, help="another memory than in training")
  option("--segment", metavar="T", type=int, help="tokens of a segment; default: as in training")
  return parser.parse_for_run(argv, tokens=1, samples=1, segment=2)


class Printer:
  """A printer of bytes as they arrive: it waits for whole characters, and shows no control ones."""

  def __init__(self):
    self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

  def __call__(self, part: bytes, last: bool = False) -> None:
    text = self.decoder.decode(part, last)
    sys.stdout.write("".join(letter if letter in "\n\t" else printable(letter) for letter in text))
    sys.stdout.flush()


def drawn(
  args: argparse.Namespace, trained: TrainedModel, prompt: list[int], stops: Iterable[int]
) -> Iterator[Any]:
  """Yield a token for each sample, int [samples], up to --tokens times or to one of `stops`.

  Raises:
    UserError: an option has a value that it cannot have.
  """
  from posexp.language import sampling, scoring

  try:
    options = sampling.Sampling(args.temperature, args.top_k, args.top_p, args.seed)
  except ValueError as error:
    raise UserError(f"--{str(error).replace('_', '-', 1)}") from None
  segment = args.segment or trained.setup.task.segment
  chosen = scoring.reading(trained, segment, args.memory).snapshot
  parts = chosen.graphdef, chosen.state.params, chosen.state.settings
  steps = sampling.generate(*parts, prompt, segment=segment, rows=args.samples, sampling=options)
  drawn = (tokens for tokens, _ in itertools.islice(steps, args.tokens))
  return sampling.until_ended(drawn, stops)


def generate(args: argparse.Namespace) -> None:
  """Print samples as they are drawn; several samples, once all of them are.

  Raises:
    UserError: the run cannot be opened, the prompt cannot be read, or an option is wrong.
  """
  if args.prompt is None:
    prompt = standard_input().removesuffix("\n").removesuffix("\r")
  else:
    prompt = args.prompt.removeprefix("\ufeff")
  from posexp.training.restore import open_for

  trained = open_for("generate", args.run, split=None)
  vocabulary = trained.setup.task.vocabulary(trained.run.path)
  columns = drawn(args, trained, vocabulary.encode(prompt), vocabulary.stops)
  doing("drawing the first token")
  if args.samples > 1:
    columns = list(columns)
  for row in range(args.samples):
    if args.samples > 1:
      print(f"{'' if row == 0 else chr(10)}--- sample {row + 1} ---")
    show = Printer()
    show(prompt.encode())
    tokens = (int(column[row]) for column in columns)
    for token in itertools.takewhile(lambda token: token not in vocabulary.stops, tokens):
      show(vocabulary.decode([token]))
    show(b"", last=True)
    print()


main = command("opening the run", generate, arguments)


if __name__ == "__main__":
  main()
