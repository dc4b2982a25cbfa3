"""The published findings are what the records of their runs say."""

import csv
import re

import claims
import findings
import findings_claims
import pytest
from run_folders import sweep
from seed import some

from posexp.errors import UserError
from posexp.reporting.significance import contrast
from posexp.runs import read_runs
from posexp.runs.metrics import COST
from posexp.runs.records import NAME, read_records, write_records

PAGES = findings.pages()
HEAD = """\
claims:
  - claim: Order matters
    source: a book
    kind: {kind}
    margin: {margin}{more}
    tuned: neither
    effect: --by encoding --metric {metric} --baseline none
    of: rpr
families: {families}
scores:
  - score: accuracy
    claims: [1]
    floor: {floor}
    ceiling: 100 points
    control: {control}{least}
"""
PAGE = """\
# A page

<!-- setting -->
what was there
<!-- end -->

Mine stays.

<!-- board --by encoding | {metric} -->
<!-- end -->

<!-- report --by encoding --metric {metric} | {title} -->
<!-- end -->

<!-- tell -->
<!-- end -->

<!-- verdicts -->
<!-- end -->
"""
FILLED = {
  "floor": "none",
  "control": "rpr against none",
  "least": "",
  "kind": "greater",
  "margin": "1 points",
  "metric": "test/accuracy",
  "title": "test accuracy by group",
  "families": "[[1]]",
  "more": "",
}


@pytest.mark.parametrize("folder", some(PAGES, 1), ids=lambda folder: folder.name)
def test_a_page_is_drawn_again_from_its_records(folder):
  page = findings.drawn(folder)
  assert page.text == (folder / "README.md").read_text(encoding="utf-8")
  assert set(page.figures) == {path.name for path in folder.glob("*.svg")}
  assert "TODO" not in page.text


@pytest.mark.slow
def test_the_overview_is_that_of_all_pages():
  here = findings_claims.HERE
  for name in findings.FRONT:
    text = (here / name).read_text(encoding="utf-8")
    assert findings.front(text, PAGES) == text
  found = {folder: findings.judged(folder)[0] for folder in PAGES}
  assert findings.listed(found) == (here / findings.ALL).read_text(encoding="utf-8")


def test_the_overview_has_every_page_that_has_claims():
  here = findings_claims.HERE
  claimed = {folder.name for folder in PAGES if (folder / findings_claims.CLAIMS).exists()}
  with (here / findings.ALL).open(encoding="utf-8") as file:
    assert {row["page"] for row in csv.DictReader(file)} == claimed
  files = list(here.glob("*/*.parquet"))
  assert sum(path.stat().st_size for path in files) < 5_000_000


@pytest.mark.slow
def test_a_run_is_recorded_once_or_was_trained_again():
  seen: dict[tuple, str] = {}
  for file in sorted(findings_claims.HERE.glob("*/*.parquet")):
    for run in read_records(file, trials=True):
      measured = {key: each for key, each in run.summary.items() if not key.startswith(COST)}
      known = (str(run.path.relative_to(file)), str(run.settings), str(measured))
      assert known not in seen, (known[0], seen[known], file)
      seen[known] = str(file)


@pytest.fixture
def page(tmp_path, monkeypatch):
  """Writes a page of six runs, with its claims filled in, and returns its folder."""
  runs, _ = read_runs([sweep(tmp_path / "runs", {"rpr": [0.9, 0.8, 0.9], "none": [0.5, 0.6, 0.5]})])
  folder = tmp_path / "findings" / "mine"
  write_records(folder / NAME, runs)
  monkeypatch.setattr(findings_claims, "HERE", folder.parent)
  (folder.parent / "claims.md").write_text("<!-- counts -->\n<!-- end -->\n")
  (folder.parent / "README.md").write_text("Mine")

  def filled(**filling):
    (folder / findings_claims.CLAIMS).write_text(HEAD.format(**FILLED | filling))
    (folder / "README.md").write_text(PAGE.format(**FILLED | filling))
    return folder

  return filled


def test_a_page_gets_tables_figures_and_its_line_in_the_overview(page):
  folder = page(more="\n    was: cannot be told")
  (folder / "old.svg").write_text("of a title that was taken out")
  findings.main([])
  text = (folder / "README.md").read_text()
  assert "Mine stays." in text
  assert "what was there" not in text
  assert re.search(r"\| runs +\| 6, seeds 0, 1, 2", text)
  assert re.search(r"\| rpr +\| +3 \| +86\.67 ", text)
  (picture,) = re.findall(r"!\[test accuracy by group\]\((.*)\)", text)
  assert [path.name for path in folder.glob("*.svg")] == [picture]
  assert re.search(r"\| accuracy; claims 1 \| yes +\| 53.33 \(none\) to 100.00 .*\+33.33 \(", text)
  said = r"\| Order matters \(a book\) +\| \*\*holds\*\* +\| \+33.33 \("
  assert re.search(said, text)
  counts = (folder.parent / "claims.md").read_text()
  assert re.search(r"\| \[A page\]\(mine/README.md\) +\| +1 \|", counts)
  (listed,) = csv.DictReader((folder.parent / findings.ALL).open(encoding="utf-8"))
  assert (listed["page"], listed["claim"], listed["verdict"]) == ("mine", "Order matters", "holds")
  assert listed["was"] == "cannot be told"
  assert listed["why"].startswith("the interval leaves a higher score")
  findings.main(["mine"])
  assert (folder / "README.md").read_text() == text


@pytest.mark.parametrize(
  ("filling", "why"),
  [
    ({"control": "none against none"}, "the control is not seen"),
    ({"least": "\n    least: 30 points"}, "the control is not seen"),
    ({"kind": "less", "floor": "53 points"}, "does not hold at this size"),
  ],
)
def test_a_claim_cannot_be_told_by_a_score_that_cannot_tell(page, filling, why):
  folder = page(**filling)
  findings.main([])
  rows = re.findall(r"\| Order matters .*", (folder / "README.md").read_text())
  assert why in rows[0]
  assert ("cannot be told" in rows[0]) == (why == "the control is not seen")


@pytest.mark.parametrize(
  ("filling", "message"),
  [
    ({"kind": "surely"}, "no kind: surely; there are greater, "),
    ({"margin": "1 BLEU"}, "'1 BLEU' is no margin in points"),
    ({"more": "\n    verdict: surely"}, "no verdict: surely; there are holds, "),
    ({"more": "\n    verdict: holds"}, "a verdict by hand needs a because"),
    ({"families": "[]"}, "its families must have each of the 1 claims once"),
    ({"control": "rpr against sandwich"}, "no group 'sandwich'"),
    ({"floor": "5 BLEU"}, "'5 BLEU' is not in points"),
    ({"title": "nothing"}, "no figure 'nothing'; there are test accuracy by group"),
    ({"metric": "test/bleu"}, "no run has such a metric"),
  ],
)
def test_a_mistake_in_a_page_is_one_sentence(page, filling, message):
  page(**filling)
  with pytest.raises(UserError, match=re.escape(message)):
    findings.main([])


NEAR = [0.80, 0.81, 0.79, 0.80, 0.80]
PLANTED = {  # scores of two groups, the margin, and the verdict for each kind
  "no difference": ([0.75, 0.83, 0.79, 0.84, 0.78], [0.82, 0.76, 0.84, 0.77, 0.80], 0.01, "???"),
  "equal within the margin": (NEAR, NEAR[::-1], 0.03, "nny"),
  "one outlier": ([0.92, 0.93, 0.91, 0.92, 0.20], NEAR, 0.01, "???"),
  "two modes": ([0.95, 0.05, 0.95, 0.95, 0.04], [0.05, 0.95, 0.06, 0.04, 0.95], 0.01, "???"),
  "at the ceiling": ([1.0, 1.0, 0.999, 1.0, 1.0], [1.0, 0.999, 1.0, 1.0, 1.0], 0.005, "nny"),
  "greater near the ceiling": (
    [0.998, 0.997, 0.999, 0.998, 0.998],
    [0.9, 0.91, 0.92, 0.9, 0.9],
    0.025,
    "ynn",
  ),
  "paired": ([0.621, 0.719, 0.8205, 0.521, 0.9195], [0.6, 0.7, 0.8, 0.5, 0.9], 0.01, "ynn"),
  "not paired": ([0.70, 0.71, 0.69, 0.70, 0.72], NEAR, 0.01, "nyn"),
  "few seeds": ([0.9, 0.91], [0.5, 0.6], 0.01, "???"),
  "a tie": ([*NEAR, 0.82], [*NEAR, 0.82], 0.001, "nny"),
  "a tie of so few that turned signs cannot tell": (NEAR, NEAR, 0.001, "???"),
}


@pytest.mark.parametrize(("a", "b", "margin", "said"), PLANTED.values(), ids=PLANTED)
def test_verdicts_on_planted_scores_are_right(a, b, margin, said):
  found = contrast(dict(enumerate(a)), dict(enumerate(b)), 1.0)
  words = {claims.HOLDS: "y", claims.FAILS: "n", claims.UNCLEAR: "?"}
  for kind, expected in zip(
    claims.KINDS, [*said, *said[:2].translate({110: 121, 121: 110})], strict=True
  ):
    (verdict,) = claims.verdicts([claims.Claim(found, kind, margin)])
    assert words[verdict.verdict] == expected, kind
  # What one claim may say, ten cannot: each is corrected for its whole family.
  weak = claims.Claim(
    contrast({0: 0.5, 1: 0.52, 2: 0.51}, {0: 0.54, 1: 0.55, 2: 0.53}), "less", 1e-6
  )
  assert claims.verdicts([weak])[0].verdict == claims.HOLDS
  assert {each.verdict for each in claims.verdicts([weak] * 10)} == {claims.UNCLEAR}


@pytest.mark.parametrize(
  ("kind", "baseline", "finds", "blind"),
  [
    ("greater", 0.995, 0.01, "too little room"),
    ("less", 0.995, 0.01, ""),
    ("equal", 0.995, 0.01, "too little room"),
    ("not less", 0.105, 0.01, "too little room"),
    ("greater", 0.9, 0.01, ""),
    ("greater", 0.995, 0.002, ""),
  ],
)
def test_a_baseline_near_the_end_of_the_scale_leaves_no_room(kind, baseline, finds, blind):
  high, low = [0.9, 0.92, 0.91, 0.93], [0.1, 0.11, 0.13, 0.12]
  seen = contrast(dict(enumerate(high)), dict(enumerate(low)), 1.0)
  small = contrast(dict(enumerate(NEAR)), dict(enumerate(NEAR[::-1])), 1.0)
  claim = claims.Claim(small, kind, 0.001)
  assert claims.Column(0.1, 1.0, seen, 0.05).blind(claim, baseline, finds) == blind
  assert claims.Column(0.1, 1.0, small, 0.05).blind(claim, baseline, finds)
  # Of bits per byte, less is better, and the floor is above the ceiling.
  less = seen._replace(a=seen.b, b=seen.a)
  assert claims.Column(1.0, 0.1, less, 0.05).seen
  assert not claims.Column(1.0, 0.1, seen, 0.05).seen
