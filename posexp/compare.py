"""Compare two runs on the same examples: `python -m posexp.compare RUN_A RUN_B`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.config.arguments import Parser, run
from posexp.errors import UserError

if TYPE_CHECKING:
  import numpy as np

  from posexp.reporting.pairing import Row
  from posexp.reporting.significance import Measure

METRICS = {"translation": ("bleu", "chrf", "exact_match"), "classification": ("accuracy",)}
FACTS = ("parameters", "flops_per_token", "d_ff", "devices")  # of a summary, if they differ
FEWEST = 100  # samples, below which an interval of 95 % has no ends to speak of
EXAMPLES = """\
examples:
  python -m posexp.compare runs/mr/rpr/5d00c285df53/seed=0 runs/mr/sinusoidal/6d6c1ba8eb43/seed=0
  python -m posexp.compare RUN_A RUN_B --metric chrf --examples 20
  python -m posexp.compare RUN_A RUN_B --split beyond --json beyond.json
  python -m posexp.compare runs/mr/rpr/5d00c285df53 runs/mr/sinusoidal/6d6c1ba8eb43
                                              all seeds that both have, one against the other

Intervals are of 95 %. They and p come from a paired bootstrap over the examples, for accuracy and
exact match of one seed p from McNemar's exact test; over seeds from a paired t test. Only what the
runs have written is read: neither a model nor the data are needed.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "compare", "Compares two finished runs, or two groups of runs, on the same examples.", EXAMPLES
  )
  told = "the folder of a run, or one with several seeds"
  parser.add_argument("a", metavar="RUN_A", type=Path, help=told)
  parser.add_argument("b", metavar="RUN_B", type=Path, help="likewise")
  parser.add_argument("--split", default="test", help="default: test")
  parser.add_argument(
    "--metric",
    choices=[name for names in METRICS.values() for name in names],
    help="what the last sentence is about; default: bleu (of numbers exact_match), or accuracy",
  )
  parser.add_argument("--samples", type=int, default=1000, help="of the bootstrap; default: 1000")
  parser.add_argument("--examples", type=int, default=5, help="how many to show; default: 5")
  parser.add_argument("--json", metavar="FILE", type=Path, help="a file to keep all numbers in")
  args = parser.parse_args(argv)
  for name, least in (("samples", FEWEST), ("examples", 0)):
    if getattr(args, name) < least:
      parser.error(f"--{name} must be at least {least}, not {getattr(args, name)}")
  return args


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Compares two runs or groups of runs, prints what came of it and keeps it if asked to.

  Returns:
    What `--json` keeps.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  from posexp import storage
  from posexp.reporting import pairing, verdict

  if args.json and args.json.is_dir():
    raise UserError(f"--json {args.json} is a folder: name a file")
  pairs, notes = pairing.paired(args.a, args.b)
  task = pairing.same_task(pairs)
  if args.metric not in (None, *METRICS[task]):
    raise UserError(f"--metric {args.metric}: for {task} it is one of {', '.join(METRICS[task])}")
  rows = [tuple(pairing.predictions(each, args.split, task) for each in pair) for pair in pairs]
  first = pairs[0][0]
  for pair, found in zip(pairs, rows, strict=True):
    for record, each in zip(pair, found, strict=True):
      pairing.same_data(first.path, rows[0][0], record.path, each, args.split)
  differences = {
    "config": pairing.different(*(each.settings for each in pairs[0])),
    "facts": pairing.different(
      *({key: each.summary[key] for key in FACTS if key in each.summary} for each in pairs[0])
    ),
  }
  measured, chrf = measure(rows, task, first.config["task"].get("target", ""), args.samples)
  names = verdict.names(*(each.config for each in pairs[0]), differences["config"])
  result = {
    "a": {"name": names[0], "run": str(args.a)},
    "b": {"name": names[1], "run": str(args.b)},
    "task": task,
    "split": args.split,
    "examples": len(rows[0][0]),
    "seeds": [[record.config["seed"] for record in pair] for pair in pairs],
    "notes": notes,
    "samples": args.samples,
    **differences,
    "metrics": measured,
  }
  # Numbers in words are too short for BLEU, which looks for four words in a row.
  short = first.config["task"]["kind"] == "numbers"
  metric = args.metric or ("exact_match" if short else METRICS[task][0])
  result["verdict"] = verdict.sentence(result, metric)
  result["shown"] = most_different(rows[0], chrf, args.examples)
  if args.json:
    try:
      storage.write(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
      raise UserError(f"--json {args.json} cannot be written: {error.strerror}") from error
  print("\n".join(verdict.report(result)))
  return result


def measures(rows: list[Row], task: str, language: str) -> dict[str, Measure]:
  """Each metric of a run, all from 0 to 100."""
  from posexp.reporting.significance import of_metric, of_share

  if task == "classification":
    return {"accuracy": of_share(right(rows, task))}
  import sacrebleu

  from posexp.tasks import bleu

  said, references = [row.found for row in rows], [row.reference for row in rows]
  return {
    "bleu": of_metric(bleu.bleu(language), said, references),
    "chrf": of_metric(sacrebleu.CHRF(), said, references),
    "exact_match": of_share(right(rows, task)),
  }


def right(rows: list[Row], task: str) -> np.ndarray:
  """Which predictions are what they should be, a translation but for blanks around it, bool [N]."""
  import numpy as np

  around = None if task == "translation" else ""
  return np.array([row.found.strip(around) == row.reference.strip(around) for row in rows])


def measure(
  rows: Sequence[tuple[list[Row], list[Row]]], task: str, language: str, samples: int
) -> tuple[dict[str, Any], list[float]]:
  """Everything that is known of each metric; and a − b in sentence chrF with the first seed, which
  is empty for classification."""
  from posexp.reporting import significance

  found = [[measures(each, task, language) for each in pair] for pair in rows]
  flat = [each for pair in found for side in pair for each in side.values()]
  drawn = iter(significance.resample(flat, samples))
  resampled = [[{name: next(drawn) for name in side} for side in pair] for pair in found]
  result = {}
  for name in METRICS[task]:
    sides = [[pair[side][name] for pair in resampled] for side in (0, 1)]
    a, b = map(significance.mean, sides)
    difference = a - b
    result[name] = {
      "a": a.interval._asdict(),
      "b": b.interval._asdict(),
      "difference": difference.interval._asdict(),
      "p": significance.bootstrap_p(difference),
      "test": "paired bootstrap",
    }
    if name in ("bleu", "chrf"):
      result[name]["p_sacrebleu"] = significance.sacrebleu_p(difference)
    elif len(rows) == 1:
      test = significance.mcnemar(*(right(each, task) for each in rows[0]))
      result[name] |= {"p": test["p"], "test": "McNemar", "mcnemar": test}
    if len(rows) > 1:
      single = [[each.score for each in side] for side in sides]
      result[name]["over_seeds"] = significance.over_seeds(*single) | dict(
        zip("ab", single, strict=True)
      )
  chrf = [
    [each["chrf"].score(one) for one in each["chrf"].statistics]
    for each in (found[0] if task == "translation" else ())
  ]
  return result, [a - b for a, b in zip(*chrf, strict=True)] if chrf else []


def most_different(
  rows: tuple[list[Row], list[Row]], chrf: list[float], count: int
) -> list[dict[str, Any]]:
  """The examples that tell the runs apart most: by sentence chrF, or, of those that one run alone
  has right, by loss."""
  a, b = rows
  if chrf:
    by = {index: difference for index, difference in enumerate(chrf) if difference}
  else:
    answers = zip(*(right(each, "classification") for each in rows), strict=True)
    by = {i: b[i].loss - a[i].loss for i, (one, other) in enumerate(answers) if one != other}
  chosen = sorted(by, key=lambda index: (-abs(by[index]), index))[:count]
  kind = "chrf" if chrf else "loss"
  return [
    {"index": i, "source": a[i].source, "reference": a[i].reference}
    | {"a": a[i].found, "b": b[i].found, kind: by[i]}
    for i in chosen
  ]


def main() -> None:
  """The command line."""
  run(lambda argv: compare(arguments(argv)))


if __name__ == "__main__":
  main()
