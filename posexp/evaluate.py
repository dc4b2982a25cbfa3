"""Measure the best checkpoint of runs: as it was trained, with other options, or without terms.

examples:
  python -m posexp.evaluate runs/mr/split/ad4c1017067d/seed=0
  python -m posexp.evaluate RUN --without position
  python -m posexp.evaluate RUN --without keys,values --layers 0 --heads 0,2 --split validation
  python -m posexp.evaluate RUN --grid          every term in every layer and head, as a heat map
  python -m posexp.evaluate RUN RUN RUN --without position --records without.parquet
                       the same of the seeds of a sweep: python -m posexp.report without.parquet
  python -m posexp.evaluate RUN rope.scaling=ntk rope.factor=4        with other options
  python -m posexp.evaluate RUN model.window=10 model.window_ends=relaxed
                       an encoder whose tokens see only 10 to either side, and both ends
  python -m posexp.evaluate hf:FOLDER task=reviews rope.scaling=yarn rope.factor=4
                       a released model, its positions changed, on the data of a task

A term is a summand of the attention's logits or of its values; python -m posexp.inspect RUN --all
lists those of an encoding. Nothing is trained again: the weights are those of the best checkpoint.
Options of the encoding may be others than in training where no parameter depends on them; so may
model.memory, model.same_length, model.window, model.window_ends and what begins with model.logits_.
posexp.context and posexp.score measure more of language models, and posexp.lengths of diagnostics.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.config.arguments import Parser, command, keep, names, numbers, say
from posexp.errors import UserError, counted, near, writing

if TYPE_CHECKING:
  from posexp.runs import Run
  from posexp.training.restore import TrainedModel

MOVED = {  # flags that are typed in another command now
  "--context": "context --at", "--beyond": "context --beyond", "--recl": "context --recl",
  "--text": "score", "--lengths": "lengths",
}  # fmt: skip


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("evaluate", __doc__)
  option = parser.add_argument
  option("--split", choices=("test", "validation", "train"), default="test", help="default: test")
  option("--without", metavar="TERM,...", type=names, help="terms to switch off")
  option("--layers", metavar="0,1", type=numbers, help="only there; default: all")
  option("--heads", metavar="0,2", type=numbers, help="only there; default: all")
  grid = "each term (or those named) off in every layer and head"
  option("--grid", action="store_true", help=grid)
  keep = "keep what was measured of all these runs, for python -m posexp.report FILE --by without"
  option("--records", metavar="FILE", type=Path, help=keep)
  args = parser.parse_to_measure(argv)
  if args.records and args.records.suffix != ".parquet":
    parser.error(f"--records {args.records}: give it the ending .parquet")
  if (args.layers or args.heads) and not (args.without or args.grid):
    parser.error("--layers and --heads say where a term is off, so they need --without or --grid")
  return args


def evaluate(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Measure and print the scores that are asked for; figures are drawn in a run's folder.

  The records of a run are written before the next one is opened.

  Returns:
    For each run the metrics with everything `on`; and `off`, a list of rows that name terms, layers
    and heads beside the metrics without these.

  Raises:
    UserError: a run, a term, a layer or a head does not exist.
  """
  from posexp.runs.records import write_records
  from posexp.training.restore import open_for

  results: list[dict[str, Any]] = []
  measured: list[Run] = []
  for path in args.runs:
    if len(args.runs) > 1:
      print(f"\n{path}" if results else path)
    trained = open_for("evaluate", path, args.options, args.split)
    result, runs = without_terms(args, trained)
    results.append(result)
    measured += runs
    if args.records:
      with writing("--records", args.records):
        write_records(args.records, measured)
  if args.records:
    print(f"\nwritten: {near(args.records)}, {counted(len(measured), 'row')}")
  keep(runs=results)
  return results


def without_terms(
  args: argparse.Namespace, trained: TrainedModel
) -> tuple[dict[str, Any], list[Run]]:
  """Print the metrics of a run with everything on and with terms off; return them, also as runs."""
  from posexp import storage
  from posexp.analysis import ablation, plotting
  from posexp.training.restore import OF_DATA

  switches = ablation.Switches(trained)
  if (args.without or args.grid) and not switches.by_layer:
    raise UserError(
      "--without and --grid switch off terms of attention, which "
      f"model={trained.spec.size.backbone} does not have; leave them out"
    )
  chosen = switches.off(args.without, args.layers, args.heads)
  offs = list(switches.grid(chosen)) if args.grid else [chosen] * bool(args.without)
  on, *rest = ablation.measure(trained, args.split, [*map(switches.scale, [None, *offs])])
  if (main := trained.setup.task.compare_by) not in on:
    raise UserError(f"the task has compare_by={main!r}, which it does not measure")
  result = {
    "encoding": trained.run.config["encoding"],
    "options": [each for each in args.options if each.partition("=")[0] not in OF_DATA],
    "step": int(trained.snapshot.state.step),
    "split": args.split,
    "metric": main,
    "on": on,
    "off": [off._asdict() | metrics for off, metrics in zip(offs, rest, strict=True)],
  }
  print(ablation.table(result, switches.known))
  if args.grid:
    figure, folder = ablation.heat_map(result), storage.unlinked(trained.run.path / "figures")
    print(*map(near, plotting.save(figure, folder, f"terms-{args.split}")), sep="\n")
  return result, ablation.as_runs(trained, result, switches.known)


def main() -> None:
  """Run the command, or the one that has the flags of earlier versions."""
  for place, word in enumerate(sys.argv):
    flag, *value = word.split("=", 1)
    if flag in MOVED:
      name, *new = MOVED[flag].split()
      sys.argv[place : place + 1] = [*new, *value]
      typed = shlex.join(["python", "-m", f"posexp.{name}", *sys.argv[1:]])
      say(f"note: {flag} is typed in another command now: {typed}")
      return importlib.import_module(f"posexp.{name}").main()
  command("opening the run", evaluate, arguments)()


if __name__ == "__main__":
  main()
