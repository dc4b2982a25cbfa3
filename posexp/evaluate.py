"""Measure a trained run, also without terms: `python -m posexp.evaluate RUN --without position`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, names, numbers, run
from posexp.errors import near

SPLITS = ("test", "validation", "train")
EXAMPLES = """\
examples:
  python -m posexp.evaluate runs/mr/split/ad4c1017067d/seed=0
  python -m posexp.evaluate RUN --without position
  python -m posexp.evaluate RUN --without keys,values --layers 0 --split validation
  python -m posexp.evaluate RUN --without b --heads 0,2
  python -m posexp.evaluate RUN --grid          every term in every layer and head, as a heat map

A term is a summand of the attention's logits or of its values; python -m posexp.inspect run=RUN
lists those of an encoding. Nothing is trained again: the weights are those of the best checkpoint.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "evaluate",
    "Measures the best checkpoint of a run, with everything on and with terms off.",
    EXAMPLES,
  )
  parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run")
  parser.add_argument("--split", choices=SPLITS, default="test", help="default: test")
  parser.add_argument("--without", metavar="TERM,...", type=names, help="terms to switch off")
  parser.add_argument("--layers", metavar="0,1", type=numbers, help="only there; default: all")
  parser.add_argument("--heads", metavar="0,2", type=numbers, help="only there; default: all")
  parser.add_argument(
    "--grid", action="store_true", help="each term (or those named) off in every layer and head"
  )
  parser.add_plugins()
  args = parser.parse_args(argv)
  if (args.layers or args.heads) and not (args.without or args.grid):
    parser.error("--layers and --heads say where a term is off, so they need --without or --grid")
  return args


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
  """Measures what was asked for, prints it and, for a grid, draws and keeps it.

  Returns:
    The metrics with everything `on`; and `off`, a list of rows that name terms, layers and heads
    beside the metrics without these.

  Raises:
    UserError: the run, a term, a layer or a head does not exist.
  """
  from posexp.analysis.ablation import Switches, measure
  from posexp.training.devices import prepare
  from posexp.training.restore import open_trained

  prepare()
  trained = open_trained(args.run)
  switches = Switches(trained)
  chosen = switches.off(args.without or switches.terms, args.layers, args.heads)
  if args.grid:
    offs = switches.grid(chosen.terms, chosen.layers, chosen.heads)
  else:
    offs = [chosen] if args.without else []
  kept = [switches.kept(), *map(switches.kept, offs)]
  on, *rest = measure(trained, args.split, kept)
  result = {
    "run": str(args.run),
    "encoding": switches.name,
    "step": int(trained.snapshot.state.step),
    "split": args.split,
    "on": on,
    "off": [off._asdict() | metrics for off, metrics in zip(offs, rest, strict=True)],
  }
  print("\n".join(table(result, switches.shape)))
  if args.grid:
    for path in keep(result, args.run / "figures"):
      print(near(path))
  return result


def table(result: dict[str, Any], shape: tuple[int, int]) -> list[str]:
  """The lines of a table; changes of accuracy are in points.

  The accuracy of a translation is that of its tokens; changed are examples with another answer, or
  with more or fewer tokens right.
  """
  on = result["on"]
  third = "macro_f1" if "macro_f1" in on else "perplexity"
  label = third.replace("macro_f1", "macro F1")
  lines = [
    f"{result['encoding']}, step {result['step']:,}, {on['examples']:,} {result['split']} examples",
    f"{'':<34}{'accuracy':>9}{'points':>9}{'± s.e.':>8}{'loss':>9}{label:>12}{'changed':>10}",
    f"{'everything on':<34}{on['accuracy']:>9.4f}{'':>17}{on['loss']:>9.4f}{on[third]:>12.4f}",
  ]
  for row in result["off"]:
    where = [
      f"{what if len(row[f'{what}s']) == 1 else what + 's'} {','.join(map(str, row[f'{what}s']))}"
      for what, count in zip(("layer", "head"), shape, strict=True)
      if len(row[f"{what}s"]) < count or count == 1
    ]
    name = f"without {', '.join(row['terms'])}{': ' if where else ''}{', '.join(where)}"
    lines.append(
      f"{name:<34}{row['accuracy']:>9.4f}{100 * row['change']:>+9.2f}{100 * row['error']:>8.2f}"
      f"{row['loss']:>9.4f}{row[third]:>12.4f}{row['other']:>10,}"
    )
  return lines


def keep(result: dict[str, Any], folder: Path) -> list[Path]:
  """Writes a grid as JSON and draws it; returns the paths."""
  import numpy as np

  from posexp import plotting, storage

  terms = list(dict.fromkeys(row["terms"][0] for row in result["off"]))
  layers = sorted({layer for row in result["off"] for layer in row["layers"]})
  heads = sorted({head for row in result["off"] for head in row["heads"]})
  found = np.full((len(terms), len(layers) + 1, len(heads) + 1), np.nan)
  for row in result["off"]:
    layer = layers.index(row["layers"][0]) if len(row["layers"]) == 1 else len(layers)
    head = heads.index(row["heads"][0]) if len(row["heads"]) == 1 else len(heads)
    found[terms.index(row["terms"][0]), layer, head] = 100 * row["change"]
  shown = found[:, : len(layers)]
  on = result["on"]
  error = 100 * np.median([row["error"] for row in result["off"]])
  figure, axes = plotting.panels(
    1,
    len(terms),
    width=1.3 + 0.62 * (len(heads) + 1),
    height=0.9 + 0.45 * len(layers),
    title=f"{result['encoding']}: points of {result['split']} accuracy gained or lost without a "
    f"term\neverything on: {100 * on['accuracy']:.2f} %, {on['examples']:,} examples; standard "
    f"error of a change about {error:.2f}",
  )
  limit = max(float(np.nanmax(np.abs(shown), initial=0)), 2 * error) or 1.0  # noise stays pale
  for each, term, values in zip(axes[0], terms, shown, strict=True):
    image = plotting.heat(each, values, limits=(-limit, limit), numbers="+.1f")
    each.axvline(len(heads) - 0.5, color="k", linewidth=1)
    each.set_xticks(range(len(heads) + 1), [*map(str, heads), "all"])
    each.set_yticks(range(len(layers)), map(str, layers))
    everywhere = [r for r in result["off"] if r["terms"] == (term,)][-1]
    each.set_title(f"{term}\n(everywhere: {100 * everywhere['change']:+.1f})")
    each.set_xlabel("head")
  axes[0][0].set_ylabel("layer")
  figure.colorbar(image, ax=list(axes[0]), label="points of accuracy")
  name = f"terms-{result['split']}"
  paths = plotting.save(figure, folder, name)
  storage.write(folder / f"{name}.json", json.dumps(result, indent=2) + "\n")
  return [*paths, folder / f"{name}.json"]


def main() -> None:
  """The command line."""
  run(lambda argv: evaluate(arguments(argv)))


if __name__ == "__main__":
  main()
