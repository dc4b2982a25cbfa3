"""Measure the best checkpoint of a run: as it was trained, without terms, or on other texts.

examples:
  python -m posexp.evaluate runs/mr/split/ad4c1017067d/seed=0
  python -m posexp.evaluate RUN --without position
  python -m posexp.evaluate RUN --without keys,values --layers 0 --heads 0,2 --split validation
  python -m posexp.evaluate RUN --grid          every term in every layer and head, as a heat map
  python -m posexp.evaluate RUN RUN RUN --without position --records without.parquet
                       the same of the seeds of a sweep: python -m posexp.report without.parquet
  python -m posexp.evaluate RUN rope.scaling=ntk rope.factor=4        with other options
  python -m posexp.evaluate RUN model.window=10 model.window_ends=relaxed
                       what an encoder's tokens see at most so far away, and from its ends
  python -m posexp.evaluate RUN --text letter.txt                 of a language model
  python -m posexp.evaluate RUN --text - --per-token --memory 512 < letter.txt
  python -m posexp.evaluate RUN --context 16,32,64,128,256,512
                       the loss of the same tokens, each with exactly so many before it
  python -m posexp.evaluate RUN --beyond 8
                       the same up to 8 training lengths: how the loss grows, and where it breaks
  python -m posexp.evaluate RUN --context 64,512 --memory 0,64,256
  python -m posexp.evaluate RUN --lengths 20:100:5                of a diagnostic
  python -m posexp.evaluate RUN --lengths 30,60 rope.scaling=ntk rope.factor=4
  python -m posexp.evaluate hf:FOLDER --text letter.txt           of a released model
  python -m posexp.evaluate hf:FOLDER task=reviews rope.scaling=yarn rope.factor=4 --beyond 4
                       its positions changed, on the data of a task of language modeling
  python -m posexp.evaluate RUN RUN RUN --recl
                       relative effective context lengths, once --context has measured each

A term is a summand of the attention's logits or of its values; python -m posexp.inspect run=RUN
lists those of an encoding. Nothing is trained again: the weights are those of the best checkpoint.
Options of the encoding may be others than in training where no parameter depends on them; so may
model.memory, model.same_length, model.window, model.window_ends and what begins with model.logits_.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.config import command_line
from posexp.config.arguments import Parser, command, names, numbers, ranges
from posexp.errors import UserError, counted, near, writing
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.runs import Run
  from posexp.training.restore import TrainedModel

MEASURED = {  # what is measured -> the options that say something of it
  "text": ("options", "memory", "segment", "window", "per_token"),
  "context": ("options", "memory", "positions"),
  "beyond": ("options", "memory", "positions"),
  "lengths": ("options",),
  "recl": (),
  "": ("options", "without", "layers", "heads", "grid", "records"),  # a split
}
OPTION = re.compile(r"[~+]*[\w.]+=.*|~.*", re.S)  # seed=0 may also be the folder of a run


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("evaluate", __doc__)
  option = parser.add_argument
  words = "a run's folder (several for --recl and --records), and options to measure it with"
  option("words", metavar="RUN", nargs="+", help=words)
  option("--split", choices=("test", "validation", "train"), default="test", help="default: test")
  option("--without", metavar="TERM,...", type=names, help="terms to switch off")
  option("--layers", metavar="0,1", type=numbers, help="only there; default: all")
  option("--heads", metavar="0,2", type=numbers, help="only there; default: all")
  grid = "each term (or those named) off in every layer and head"
  option("--grid", action="store_true", help=grid)
  keep = "keep what was measured of all these runs, for python -m posexp.report FILE --by without"
  option("--records", metavar="FILE", type=Path, help=keep)
  option("--text", metavar="FILE", help="score this text with a language model; -: standard input")
  option("--per-token", action="store_true", help="with --text: what each token costs, with tabs")
  of = "with --text or --context"
  option("--memory", metavar="M,...", type=numbers, help=f"{of}: other memories")
  option("--segment", metavar="T", type=int, help="with --text: tokens that are read at once")
  window = "with --text: windows that follow each other; default: both where there is no memory"
  option("--window", choices=("sliding", "disjoint"), help=window)
  option("--context", metavar="16,32,64", type=ranges, help="losses by how many tokens are read")
  many = "with --context or --beyond: how many tokens are scored"
  option("--positions", metavar="N", type=int, help=many)
  beyond = "the curve of losses by context, or position, up to so many training lengths"
  option("--beyond", metavar="8", type=int, help=beyond)
  many = "a diagnostic's exact match at these lengths: 30,60 or from:to:step"
  option("--lengths", metavar="20:100:5", type=ranges, help=many)
  option("--recl", action="store_true", help="relative effective context lengths of several runs")
  args = parser.parse_for_run(argv, segment=2, positions=1, beyond=2)
  args.options, args.runs = [], []
  for word in args.words:
    is_option = OPTION.fullmatch(word) and not Path(word).exists()
    (args.options if is_option else args.runs).append(word)
  if not args.runs or (len(args.runs) > 1 and not (args.recl or args.records)):
    parser.error("name one run; several are for --recl and --records")
  args.run = Path(args.runs[0])
  check_together(parser, args)
  if args.records and args.records.suffix != ".parquet":
    parser.error(f"--records {args.records}: give it the ending .parquet")
  if (args.layers or args.heads) and not (args.without or args.grid):
    parser.error("--layers and --heads say where a term is off, so they need --without or --grid")
  if args.per_token and len(args.memory or [0]) > 1:
    parser.error("--per-token is for one --memory")
  return args


def check_together(parser: Parser, args: argparse.Namespace) -> None:
  """Refuse options that have no effect on what is measured."""
  names = filter(None, dict.fromkeys([*MEASURED, *itertools.chain(*MEASURED.values())]))
  given = [name for name in names if getattr(args, name) not in (None, False, [])]
  asked = next((name for name in given if name in MEASURED), "")
  for name in given:
    if name == asked or name in MEASURED[asked]:
      continue
    if asked:
      parser.error(f"{flag(name)} means nothing with {flag(asked)}: leave it out")
    owners = [flag(each) for each, options in MEASURED.items() if name in options]
    parser.error(f"{flag(name)} is for {' or '.join(owners)}")


def flag(name: str) -> str:
  """Return an option as it is typed."""
  return "OPTION=VALUE" if name == "options" else f"--{name.replace('_', '-')}"


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
  """Measure what was asked for and print it; figures are drawn in the run's folder.

  Returns:
    The metrics with everything `on`; and `off`, a list of rows that name terms, layers and heads
    beside the metrics without these. For a text, contexts or several runs, what was printed.

  Raises:
    UserError: the run, a term, a layer or a head does not exist.
  """
  if args.recl:
    from posexp.reporting import contexts
    from posexp.runs import read_run

    by_run = contexts.effective_lengths([*map(read_run, args.runs)], args.split)
    print(contexts.length_table(by_run))
    return by_run
  if args.records:
    return {str(path): result for path, result in kept(args)}
  from posexp.analysis import context, lengths, scoring

  trained = opened(args, args.run)
  if args.text is not None:
    return scoring.evaluate(args, trained)
  if args.context or args.beyond:
    return context.evaluate(args, trained)
  if args.lengths:
    return lengths.evaluate(args, trained)
  return without_terms(args, trained)[0]


def opened(args: argparse.Namespace, path: Path) -> TrainedModel:
  """Open a run with the options that were given for its measurement."""
  from posexp.tasks.language_modeling import LanguageModeling
  from posexp.training.devices import prepare
  from posexp.training.restore import OF_DATA, open_alone, open_trained, with_options
  from posexp.training.sources import source

  prepare()
  if (released := source(path)) is not None:
    trained = released.open(args.options, data=args.text is None)
    doing(f"measuring {path}")
    return trained
  given = command_line.read(args.options)
  if several := [each.input_line for each in given if each.is_sweep_override()]:
    raise UserError(f"{several[0]}: give one value; each command measures one")
  options = {each.key_or_group: each.value() for each in given}
  if args.text is not None:
    trained = open_alone(path, LanguageModeling, "this needs a language model")
  else:
    moved = {key: options.pop(key) for key in OF_DATA if key in options}
    trained = open_trained(path, moved) if moved else open_trained(path)
  if trained.run.trial and args.split == "test" and args.text is None:
    raise UserError(
      f"{near(path)} is a trial of a tuned sweep, which has no test score: measure it with --split "
      "validation, or name a run with the chosen options"
    )
  trained = with_options(trained, options) if options else trained
  doing(f"measuring {near(path)}")
  return trained


def without_terms(
  args: argparse.Namespace, trained: TrainedModel
) -> tuple[dict[str, Any], list[Run]]:
  """Print the metrics of a run with everything on and with terms off; return them, also as runs."""
  from posexp import plotting, storage
  from posexp.analysis import ablation

  switches = ablation.Switches(trained)
  if (args.without or args.grid) and not switches.by_layer:
    raise UserError(
      "--without and --grid switch off terms of attention, which "
      f"model={trained.spec.size.backbone} does not have; leave them out"
    )
  chosen = switches.off(args.without, args.layers, args.heads)
  offs = list(switches.grid(chosen)) if args.grid else [chosen] * bool(args.without)
  on, *rest = ablation.measure(trained, args.split, [*map(switches.scale, [None, *offs])])
  result = {
    "encoding": trained.run.config["encoding"],
    "step": int(trained.snapshot.state.step),
    "split": args.split,
    "metric": trained.setup.task.compare_by,
    "on": on,
    "off": [off._asdict() | metrics for off, metrics in zip(offs, rest, strict=True)],
  }
  print(ablation.table(result, switches.known))
  if args.grid:
    figure, folder = ablation.heat_map(result), storage.unlinked(trained.run.path / "figures")
    print(*map(near, plotting.save(figure, folder, f"terms-{args.split}")), sep="\n")
  return result, ablation.as_runs(trained, result, switches.known)


def kept(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yield the measurements of each run, which are written before the next run is opened."""
  from posexp.runs.records import write_records

  runs: list[Run] = []
  for path in args.runs:
    print(f"\n{path}" if runs else path)
    result, found = without_terms(args, opened(args, Path(path)))
    runs += found
    yield path, result
    with writing("--records", args.records):
      write_records(args.records, runs)
  print(f"\nwritten: {near(args.records)}, {counted(len(runs), 'row')}")


main = command("opening the run", evaluate, arguments)


if __name__ == "__main__":
  main()
