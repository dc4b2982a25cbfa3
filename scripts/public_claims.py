"""Judges gains that others published with the result of each run; writes the finding's table.

    python scripts/public_claims.py

The numbers are in docs/findings/public_claims/claims.csv, each with its source.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tabulate import tabulate

from posexp import storage
from posexp.judging.files import Side
from posexp.judging.verdict import Judged, judge
from posexp.reporting.significance import LEVEL, holm
from posexp.reporting.text import MISSING, p_number

HERE = Path(__file__).parent.parent / "docs" / "findings" / "public_claims"
BLOCK = re.compile(r"(<!-- claims -->\n).*?(<!-- end -->)", re.S)
LEAST = 2  # runs of each side, without which there is nothing to judge


def sides() -> dict[str, tuple[str, Side, Side]]:
  """Return what is claimed, the variant and the baseline of each claim, by its name."""
  rows: dict[str, list[dict[str, str]]] = {}
  with (HERE / "claims.csv").open(encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
      rows.setdefault(row["claim"], []).append(row)
  found = {}
  for name, own in rows.items():
    both = []
    for side in "ab":
      chosen = [row for row in own if row["side"] == side]
      named = all(row["seed"] for row in chosen)
      scores = {
        (row["seed"] if named else str(at), ""): float(row["score"])
        for at, row in enumerate(chosen)
      }
      lower = own[0]["lower_is_better"] == "true"
      both.append(Side(side, own[0]["metric"], lower, scores, named))
    if min(len(each.scores) for each in both) >= LEAST:
      found[name] = (own[0]["what"], both[0], both[1])
  return found


def verdict(found: Judged) -> str:
  """Return in a word what the runs say of a claimed gain."""
  gain = (found.difference < 0) == found.a.lower
  if found.kind != "told":
    return "cannot be told"
  return "real" if gain else "a loss"


def main() -> None:
  """Write the table and its summary."""
  claims = sides()
  judged = {name: judge([b, a])[0] for name, (_, a, b) in claims.items()}
  corrected = dict(zip(judged, holm([each.p for each in judged.values()]), strict=True))
  rows = []
  for name, found in sorted(judged.items(), key=lambda each: each[1].p):
    test, digits = found.tests[0], 4 if abs(found.difference) < 1 else 2
    needed = test.needed(abs(found.difference)) if test.needed else None
    ends = MISSING if test.low is None else f"{test.low:+.{digits}f} to {test.high:+.{digits}f}"
    rows.append(
      [
        f"{claims[name][0]} (`{name}`)",
        found.a.metric,
        f"{len(found.a.seeds)}, {len(found.b.seeds)}",
        f"{found.difference:+.{digits}f}",
        ends,
        p_number(found.p),
        verdict(found),
        MISSING if needed is None else str(needed),
      ]
    )
  kinds = [verdict(each) for each in judged.values()]
  few = [each for each in judged.values() if max(len(each.a.seeds), len(each.b.seeds)) <= 3]
  told = sum(verdict(each) == "real" for each in few)
  kept = sum(p < LEVEL and verdict(judged[name]) == "real" for name, p in corrected.items())
  counts = {kind: kinds.count(kind) for kind in ("real", "a loss", "cannot be told")}
  text = (
    f"Of {len(kinds)} claims, {counts['real']} are told apart from their baseline in the claimed "
    f"direction, {counts['a loss']} against it, and {counts['cannot be told']} cannot be told. Of "
    f"the {len(few)} with at most three runs a side, {told} are. Corrected for all claims "
    f"together (Holm), {kept} remain.\n"
  )
  heads = [
    "claim",
    "metric",
    "runs",
    "difference",
    "95 %",
    "p",
    "verdict",
    "runs a side that would tell",
  ]
  table = tabulate(rows, heads, "pipe", disable_numparse=True)
  page = HERE / "README.md"
  filled = BLOCK.sub(lambda part: f"{part[1]}\n{text}\n{table}\n\n{part[2]}", page.read_text())
  storage.write(page, filled)


if __name__ == "__main__":
  main()
