"""Result files of anybody as scores by seed and by example.

CSV and TSV, read as posexp's data are, have a header, JSON Lines an object a line, with a score
and, if there are such, the seed and the example; a text of one number a line has a score for each
seed. In samples that lm-evaluation-harness has logged, the score is the first of `metrics`, and the
example `doc_id`. Folders and records are those of posexp's runs.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp import reading
from posexp.config.checks import brief
from posexp.config.schema import nearest
from posexp.data import files as tables
from posexp.data.separated import TWICE, by_name
from posexp.errors import UserError

# Names of columns, the likeliest first; capitals do not count.
SCORES = (
  "score", "accuracy", "acc", "exact_match", "correct", "right", "f1", "bleu", "value", "metric",
  "loss", "val_loss", "validation_loss", "perplexity", "ppl", "bits_per_byte", "bpb", "nll",
)  # fmt: skip
SEEDS = ("seed", "run", "trial", "repeat")
EXAMPLES = ("id", "example", "doc_id", "index", "item", "question_id")
# Words in names of scores of which more is better, whatever else is in the name, and less.
HIGHER = re.compile(
  r"(?<![a-z])(?<!to[\W_])(train|test|valid|val|eval|dev)?"
  r"(acc|accurac(y|ies)|f1|(sacre)?bleu|rouge|chrf|match|exact(match)?|auc|auroc)(?![a-z])"
  r"|^(correct|right|precision|recall)$"
)
LOWER = re.compile(
  r"(?<![a-z])([a-z]*((?<![gf])loss(es)?|perplexit(y|ies)|ppl|entropy|errors?(_?rates?)?|seconds)"
  r"|(train|test|valid|val|eval|dev|wall|run)?(bits|bits_?per_?[a-z]+|bp[bcd]|nll|nats|xent|"
  r"surprisal|n?r?mse|s?map?e|[wcte]er|fid|brier|ece|latency|times?))(?![a-z]|.free)"
)
RIGHT = {"true": 1.0, "false": 0.0, "right": 1.0, "wrong": 0.0, "yes": 1.0, "no": 0.0}
PLACES = ".csv, .tsv, .jsonl, .json and .txt, and folders or records of posexp's runs"


class Columns(NamedTuple):
  """The names of columns that were typed; None where they are to be found."""

  score: str | None = None
  seed: str | None = None
  example: str | None = None


class Side(NamedTuple):
  """The scores of one system."""

  name: str
  metric: str
  lower: bool  # whether less is better
  scores: dict[tuple[str, str], float]  # by seed and example; "" where a file does not name them
  named: bool = True  # whether the file names its seeds, so that equal names are equal seeds
  told: bool = True  # whether an option or the name of the score says which side is better

  @property
  def seeds(self) -> list[str]:
    return list(dict.fromkeys(seed for seed, _ in self.scores))

  @property
  def examples(self) -> list[str]:
    return list(dict.fromkeys(example for _, example in self.scores))


def side(path: Path, columns: Columns) -> Side:
  """Read the scores of a file, a folder or records.

  Raises:
    UserError: there is no such file, it is of another kind, or a line of it is wrong.
  """
  ending = path.suffix.lower()
  if path.is_dir() or ending == ".parquet":
    return _of_runs(path, columns)
  if ending in (".csv", ".tsv"):
    rows = _separated(path, columns)
  elif ending in (".jsonl", ".ndjson", ".json"):
    rows = _objects(path, _text(path))
  elif ending == ".txt":
    lines = _lines(_text(path))
    rows = ((f"line {n}", {"score": line.strip()}) for n, line in lines if line.strip())
  else:
    raise UserError(f"{path}: files of results are {PLACES}")
  return _side(path, rows, columns)


def _text(path: Path) -> str:
  data = reading.read(path)
  if data is None:
    raise UserError(f"{path}: there is no such file")
  try:
    return data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = data.count(b"\n", 0, error.start) + 1
    raise UserError(f"{path}, line {line}: not UTF-8; save it in that encoding") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
  """Yield numbered lines; a U+2028 or U+0085, which may stand in a text of JSON, ends none."""
  return enumerate(io.StringIO(text, newline=None), 1)


def _separated(path: Path, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yield the place of each row and its fields; without a header, columns are typed by number."""
  typed = [name for name in columns if name is not None]
  numbers = bool(typed) and all(name.isdecimal() for name in typed)
  wanted = typed if numbers else [*typed, *SCORES, *SEEDS, *EXAMPLES]
  for at, (where, row) in enumerate(tables.records(str(path), wanted)):
    row = by_name((name.strip(), value) for name, value in row.items())
    if at == 0 and not {*typed} & {*row}:
      _check_header(path, row)
    yield where, row


def _check_header(path: Path, first: Mapping[str, Any]) -> None:
  """Raise UserError if the names in a header are numbers, or right or wrong as the values below."""
  words = [name for name, value in first.items() if {name.lower(), _word(value)} <= {*RIGHT}]
  others = {name.lower() for name in first if name not in words}
  numbers = any(re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", name) for name in first)
  if numbers or (words and not others & {*SCORES, *SEEDS, *EXAMPLES}):
    column, flag = ("seed", "--seed") if numbers else ("id", "--example")
    raise UserError(
      f"{path}, line 1: a header is missing; name the columns there, as in {column},score, or type "
      f"their numbers, as in {flag} 1 --score 2"
      + ("" if numbers else f"; if line 1 is the header, add --score {words[0]}")
    )


def _objects(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yield the place of each object, of a line each or in one list."""
  whole = text.lstrip().startswith("[")
  for number, part in [(1, text)] if whole else _lines(text):
    if not part.strip():
      continue
    try:
      value = reading.parse(part.encode(), pairs=by_name)
    except ValueError as error:
      raise UserError(f"{path}, line {number}: no JSON: {error}") from None
    for at, each in enumerate(value if whole else [value], 1):
      where = f"item {at}" if whole else f"line {number}"
      if not isinstance(each, Mapping):
        each = {"score": each}
      yield where, dict(each)


def _side(path: Path, rows: Iterator[tuple[str, dict[str, Any]]], columns: Columns) -> Side:
  rows = iter(rows)
  first = next(rows, None)
  if first is None:
    raise UserError(f"{path}: it has no rows")
  keys, said = list(first[1]), first[1].get("metrics")
  logged = [str(said[0])] if isinstance(said, list) and said else []  # lm-evaluation-harness
  score = _column(path, columns.score, (*logged, *SCORES), keys, "--score")
  if score is None:
    numbers = [key for key, value in first[1].items() if _number(value) is not None]
    left = [key for key in numbers if key.lower() not in (*SEEDS, *EXAMPLES)]
    if len(left) != 1:
      raise UserError(f"{path}: which column is the score? Type --score, one of {', '.join(keys)}")
    score = left[0]
  if columns.score is None and score == "score" and {"reference", "hypothesis"} <= {*keys}:
    raise UserError(
      f"{path}: the score of a translation may be how likely its model found it, as in posexp's "
      "files; compare runs by python -m posexp.compare, or add --score score if it is a measure"
    )
  seed = _column(path, columns.seed, SEEDS, keys, "--seed")
  example = _column(path, columns.example, EXAMPLES, keys, "--example")
  scores: dict[tuple[str, str], float] = {}
  filters: dict[tuple[str, str], Any] = {}
  for count, (where, row) in enumerate([first, *rows], 1):
    for name in filter(None, (score, seed, example)):
      if row.get(name) is TWICE:
        raise UserError(f"{path}, {where}: two columns are called {name}; rename one of them")
    value = _number(row.get(score))
    if value is None or not math.isfinite(value):
      shown = brief(row.get(score))
      comma = re.fullmatch(r"\s*[-+]?\d*,\d+\s*", shown)
      hint = "; write it without a comma, as in 0.64" if comma else ""
      raise UserError(f"{path}, {where}, column {score}: {shown} is no number{hint}")
    key = _key(path, where, seed, row), _key(path, where, example, row)
    if seed is None and example is None:
      key = (str(count), "")  # a score a seed, which nothing names
    if key in scores:
      if row.get("filter") != filters[key]:
        continue  # another filter of the same answers: the first one counts
      named = ", ".join(f"{n} {k}" for n, k in zip((seed, example), key, strict=True) if n)
      more = "" if seed else "; is a column for the seed missing (--seed)?"
      raise UserError(f"{path}, {where}: {named} stands there twice{more}")
    scores[key], filters[key] = value, row.get("filter")
  metric = "score" if score.isdecimal() else score  # the number of a column
  lower = less_is_better(metric)
  return Side(path.stem, metric, bool(lower), scores, seed is not None, lower is not None)


def less_is_better(score: str) -> bool | None:
  """Return whether less of a score is better by its name; None if the name does not say."""
  name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", score).lower()
  return False if HIGHER.search(name) else True if LOWER.search(name) else None


def _column(
  path: Path, typed: str | None, known: Sequence[str], keys: Sequence[str], flag: str
) -> str | None:
  """Return the column that was typed, or the likeliest one; None if there is none."""
  if typed is not None and typed not in keys:
    near = nearest(typed, keys)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(keys)}"
    raise UserError(f"{flag} {typed}: {path} has no such column; {hint}")
  lower = {key.lower(): key for key in keys}
  return typed or next((lower[name.lower()] for name in known if name.lower() in lower), None)


def _key(path: Path, where: str, name: str | None, row: Mapping[str, Any]) -> str:
  """Return a seed or an example, equal however it is spelled; "" where there is no such column."""
  if name is None:
    return ""
  key = "" if row.get(name) is None else str(row[name]).strip()
  if not key:
    raise UserError(f"{path}, {where}, column {name}: it is empty")
  # One key of 0, 0.0 and 00: pandas writes whole numbers so in a column that has a gap.
  whole = re.fullmatch(r"\+?(-?)0*([0-9]+)(\.0*)?", key)
  return f"{whole[1]}{whole[2]}" if whole else key


def _number(value: Any) -> float | None:
  """Return a score: a number, or whether an answer is right; None if it is neither."""
  try:
    return float(RIGHT.get(_word(value), value))
  except (TypeError, ValueError):
    return None


def _word(value: Any) -> str:
  return value.strip().lower() if isinstance(value, str) else ""


def _of_runs(path: Path, columns: Columns) -> Side:
  """Return the headline of finished runs by seed, from a folder or from records."""
  from posexp.runs import read_runs, scores
  from posexp.runs.records import read_records

  runs = read_records(path) if path.suffix.lower() == ".parquet" else read_runs([path])[0]
  runs = [run for run in runs if run.summary is not None]
  if len({(run.digest, run.encoding, repr(run.settings)) for run in runs}) > 1:
    raise UserError(
      f"{path}: runs of several groups; name the folder of one, or compare all by posexp.report"
    )
  of = scores.headline(runs) if runs else None
  known = scores.measured(runs) if runs else {}
  of = of if columns.score is None else known.get(columns.score)
  if of is None:
    raise UserError(f"{path}: no finished run has a score; there are {', '.join(known) or 'none'}")
  by_seed = {(str(run.seed), ""): of.factor * run.score(of.key) for run in runs}
  name = path.stem if path.is_file() else f"{runs[0].encoding} {path.name}"
  return Side(name, of.title, not of.metric.higher_is_better, by_seed)
