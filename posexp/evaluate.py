"""Measure a trained run, also without terms, or a text: `python -m posexp.evaluate RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, names, numbers, run
from posexp.errors import near

EXAMPLES = """\
examples:
  python -m posexp.evaluate runs/mr/split/ad4c1017067d/seed=0
  python -m posexp.evaluate RUN --without position
  python -m posexp.evaluate RUN --without keys,values --layers 0 --heads 0,2 --split validation
  python -m posexp.evaluate RUN --grid          every term in every layer and head, as a heat map
  python -m posexp.evaluate RUN --text letter.txt                 of a language model
  python -m posexp.evaluate RUN --text - --per-token --memory 512 < letter.txt

A term is a summand of the attention's logits or of its values; python -m posexp.inspect run=RUN
lists those of an encoding. Nothing is trained again: the weights are those of the best checkpoint.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  what = "Measures the best checkpoint of a run, with everything on and with terms off."
  parser = Parser("evaluate", what, EXAMPLES)
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run")
  splits = ("test", "validation", "train")
  option("--split", choices=splits, default="test", help="default: test")
  option("--without", metavar="TERM,...", type=names, help="terms to switch off")
  option("--layers", metavar="0,1", type=numbers, help="only there; default: all")
  option("--heads", metavar="0,2", type=numbers, help="only there; default: all")
  grid = "each term (or those named) off in every layer and head"
  option("--grid", action="store_true", help=grid)
  option("--text", metavar="FILE", help="score this text with a language model; -: standard input")
  option("--per-token", action="store_true", help="with --text: what each token costs, with tabs")
  option("--memory", metavar="M,...", type=numbers, help="with --text: other memories")
  option("--segment", metavar="T", type=int, help="with --text: tokens that are read at once")
  choices = ("sliding", "disjoint")
  option("--window", choices=choices, help="with --text, without a memory; default: both")
  parser.add_plugins()
  args = parser.parse_args(argv)
  check_text(parser, args)
  if (args.layers or args.heads) and not (args.without or args.grid):
    parser.error("--layers and --heads say where a term is off, so they need --without or --grid")
  return args


def check_text(parser: Parser, args: argparse.Namespace) -> None:
  """Refuses options that mean nothing with --text, or without it."""
  about = ("per_token", "memory", "segment", "window")
  if args.text is None and (given := [name for name in about if getattr(args, name)]):
    parser.error(f"--{given[0].replace('_', '-')} is for --text FILE")
  if args.text is not None and (args.without or args.grid):
    parser.error("--text measures the whole model, so leave out --without and --grid")
  if args.segment is not None and args.segment < 2:
    parser.error(f"--segment must be at least 2, not {args.segment}")
  if args.per_token and len(args.memory or [0]) > 1:
    parser.error("--per-token is for one --memory")


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
  """Measures what was asked for and prints it; a grid is also drawn, in the run's folder.

  Returns:
    The metrics with everything `on`; and `off`, a list of rows that name terms, layers and heads
    beside the metrics without these.

  Raises:
    UserError: the run, a term, a layer or a head does not exist.
  """
  from posexp import plotting, storage
  from posexp.analysis import ablation, scoring
  from posexp.training.devices import prepare
  from posexp.training.restore import open_trained

  prepare()
  if args.text is not None:
    return scoring.evaluate(args)
  trained = open_trained(args.run)
  switches = ablation.Switches(trained)
  chosen = switches.off(args.without, args.layers, args.heads)
  offs = list(switches.grid(chosen)) if args.grid else [chosen] * bool(args.without)
  on, *rest = ablation.measure(trained, args.split, [*map(switches.scale, [None, *offs])])
  result = {
    "encoding": trained.run.config["encoding"],
    "step": int(trained.snapshot.state.step),
    "split": args.split,
    "on": on,
    "off": [off._asdict() | metrics for off, metrics in zip(offs, rest, strict=True)],
  }
  print(ablation.table(result, switches.known))
  if args.grid:
    figure, folder = ablation.heat_map(result), storage.unlinked(args.run / "figures")
    print(*map(near, plotting.save(figure, folder, f"terms-{args.split}")), sep="\n")
  return result


def main() -> None:
  """The command line."""
  run(lambda argv: evaluate(arguments(argv)))


if __name__ == "__main__":
  main()
