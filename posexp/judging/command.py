"""Say whether a gain is real, in results that anybody has measured.

examples:
  python -m posexp.judge baseline.csv mine.csv            # columns seed,score: over seeds
  python -m posexp.judge samples_a.jsonl samples_b.jsonl  # a line an example: over examples
  python -m posexp.judge a.csv b.csv --score loss --seed run --margin 0.005
  python -m posexp.judge rope.csv alibi.csv nope.csv --json judged.json --figure judged.svg
  python -m posexp.judge runs/mr/rpr/437f7d2f65d9 others.txt   # seeds of posexp, a number a line

Each file is compared with the first one. With a row for each seed and example, the verdict is over
seeds, over examples and over both; equal names of seeds and examples are paired. p is corrected for
several files (Holm). Less is better of losses, perplexities, bits, errors and times, or with
--lower; the verdict says which side is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, command, keep
from posexp.errors import UserError, near, writing
from posexp.judging.files import Columns, Side, side
from posexp.judging.verdict import Judged, judge, sentence
from posexp.reporting.significance import estimate
from posexp.reporting.text import MISSING, one_line, p_number, tabulated, wrapped

FIGURES = (".svg", ".pdf", ".png")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("judge", __doc__)
  option = parser.add_argument
  option("files", metavar="FILE", nargs="+", type=Path, help="results; the first is the baseline")
  option("--score", metavar="COLUMN", help="of the score; default: found by its name")
  option("--seed", metavar="COLUMN", help="of the seed, likewise")
  option("--example", metavar="COLUMN", help="of the example, likewise")
  option("--lower", action="store_true", help="less is better")
  option("--higher", action="store_true", help="more is better, whatever the score is called")
  option("--margin", type=float, help="differences within it count as equal")
  option("--figure", metavar="FILE", type=Path, help="the differences as .svg, .pdf or .png")
  args = parser.parse_args(list(argv))
  if len(args.files) < 2:
    raise UserError(f"{args.files[0]}: name two files or more, of which the first is the baseline")
  if args.lower and args.higher:
    raise UserError("--lower and --higher: leave one out")
  if args.margin is not None and not args.margin > 0:
    raise UserError(f"--margin {args.margin:g}: it must be above 0")
  if args.figure is not None and args.figure.suffix.lower() not in FIGURES:
    raise UserError(f"--figure {args.figure}: give it the ending {', '.join(FIGURES)}")
  return args


def decimals(sides: Sequence[Side]) -> int:
  """Return how many digits after the point numbers are shown with: four significant ones."""
  largest = max(abs(value) for each in sides for value in each.scores.values())
  return 2 if largest >= 10 else 4


def lines(sides: Sequence[Side], found: Sequence[Judged], margin: float | None) -> Iterator[str]:
  """Yield the table of means and the verdicts."""
  digits, rows = decimals(sides), []
  for each, against in zip(sides, [None, *found], strict=True):
    seeds = [*_by_seed(each)]
    mean = estimate(seeds)
    ends = MISSING if mean.low is None else f"{mean.low:.{digits}f} to {mean.high:.{digits}f}"
    cells = [
      one_line(each.name),
      str(mean.n),
      f"{len(each.examples):,}" if each.examples != [""] else MISSING,
    ]
    cells += [f"{mean.mean:.{digits}f}", ends]
    cells += ["baseline", MISSING] if against is None else [
      f"{against.difference:+z.{digits}f}", p_number(against.p if against.tests else None)
    ]  # fmt: skip
    rows.append(cells)
  heads = ["", "seeds", "examples", sides[0].metric, "95 % over seeds", "difference", "p (Holm)"]
  yield tabulated((heads, rows), "plain")
  for pair in found:
    yield ""
    yield wrapped(sentence(pair, margin, digits))
    for test in pair.tests:
      yield wrapped(f"over {test.over}: {test.how}", "  ")
    for note in pair.notes:
      yield wrapped(f"note: {note}", "  ")


def _by_seed(side: Side) -> Iterator[float]:
  for seed in side.seeds:
    values = [value for (own, _), value in side.scores.items() if own == seed]
    yield sum(values) / len(values)


def data(found: Sequence[Judged], margin: float | None, digits: int) -> list[dict[str, Any]]:
  """Return all numbers, as `--json` keeps them."""
  return [
    {
      "a": each.a.name,
      "b": each.b.name,
      "metric": each.a.metric,
      "lower_is_better": each.a.lower,
      "difference": each.difference,
      "p": each.p if each.tests else None,
      "kind": "equal" if each.kind == "not told" and each.within(margin) else each.kind,
      "tests": [
        {"over": t.over, "test": t.how, "low": t.low, "high": t.high, "p": t.p}
        | ({"needed": t.needed(margin or abs(each.difference))} if t.needed else {})
        for t in each.tests
      ],
      "notes": each.notes,
      "verdict": sentence(each, margin, digits),
    }
    for each in found
  ]


def draw(found: Sequence[Judged], margin: float | None, path: Path) -> None:
  """Draw the differences with all their intervals into a file."""
  from posexp.analysis import plotting

  rows = sum(max(len(each.tests), 1) for each in found)
  figure = plotting.Figure(figsize=(6.5, 0.9 + 0.5 * rows))
  axes, names = figure.add_subplot(), []
  for each in found:
    for test in each.tests or [None]:
      at = len(names)
      names.append(f"{each.a.name}, {test.over}" if test else each.a.name)
      if test is not None and test.low is not None:
        axes.plot([test.low, test.high], [at, at], color="black", linewidth=1.5)
      filled = "black" if each.kind == "told" else "white"
      axes.plot([each.difference], [at], "o", color="black", markerfacecolor=filled)
  axes.axvline(0, color="gray", linewidth=0.8)
  if margin is not None:
    axes.axvspan(-margin, margin, color="0.92", zorder=0)
  axes.set_yticks(range(len(names)), [one_line(name) for name in names])
  axes.set_ylim(len(names) - 0.5, -0.5)
  less = "less" if found[0].a.lower else "more"
  axes.set_xlabel(
    f"{one_line(found[0].a.metric)} against {one_line(found[0].b.name)} ({less} is better)"
  )
  path.write_bytes(plotting.drawn(figure, path.suffix.lower()[1:], bbox_inches="tight"))


def work(args: argparse.Namespace) -> list[Judged]:
  """Judge the given files, print the verdicts, and keep them if asked to.

  Raises:
    UserError: a file cannot be read, or two are not comparable.
  """
  columns = Columns(args.score, args.seed, args.example)
  sides = [side(path, columns) for path in args.files]
  names = [each.name for each in sides]
  if len({*names}) < len(names):  # a.csv of two folders
    sides = [each._replace(name=str(path)) for each, path in zip(sides, args.files, strict=True)]
  if args.lower or args.higher:
    sides = [each._replace(lower=args.lower, told=True) for each in sides]
  verdicts = judge(sides)
  keep(comparisons=data(verdicts, args.margin, decimals(sides)))
  print("\n".join(lines(sides, verdicts, args.margin)))
  if args.figure:
    with writing("--figure", args.figure):
      draw(verdicts, args.margin, args.figure)
    print(f"written: {near(args.figure)}")
  return verdicts


main = command("reading results", work, arguments)
