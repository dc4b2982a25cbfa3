"""The published findings are what the records of their runs say."""

import functools
import re

import findings
import pytest
from run_folders import sweep
from seed import some

from posexp.errors import UserError
from posexp.runs import read_runs
from posexp.runs.records import NAME, write_records

PAGES = findings.pages()
HEAD = """\
---
claims:
  - claim: Order matters
    source: a book
    verdict: {verdict}
    effect: --by encoding --metric {metric} --baseline none
    of: rpr
---
<!-- setting -->
what was there
<!-- end -->

Mine stays.

<!-- report --by encoding --metric {metric} | {title} -->
<!-- end -->
"""


@pytest.fixture(scope="module", autouse=True)
def _read_once():
  """The records of a page are read once for all that is made of them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(findings, "read_records", functools.cache(findings.read_records))
    yield


@pytest.mark.parametrize("folder", some(PAGES, 8), ids=lambda folder: folder.name)
def test_a_page_is_drawn_again_from_its_records(folder):
  page = findings.drawn(folder)
  assert page.text == (folder / "README.md").read_text(encoding="utf-8")
  assert set(page.figures) == {path.name for path in folder.glob("*.svg")}
  assert "TODO" not in page.text


def test_the_overview_is_that_of_all_pages():
  text = (findings.HERE / "README.md").read_text(encoding="utf-8")
  assert findings.overview(PAGES) in text
  assert sum(path.stat().st_size for path in findings.HERE.glob(f"*/{NAME}")) < 5_000_000


@pytest.fixture
def page(tmp_path, monkeypatch):
  """Writes a page of six runs, with its head filled in, and returns its folder."""
  runs, _ = read_runs([sweep(tmp_path / "runs", {"rpr": [0.9, 0.8, 0.9], "none": [0.5, 0.6, 0.5]})])
  folder = tmp_path / "findings" / "mine"
  write_records(folder / NAME, runs)
  monkeypatch.setattr(findings, "HERE", folder.parent)
  (folder.parent / "README.md").write_text("<!-- overview -->\n<!-- end -->\n")

  def filled(verdict="holds", metric="test/accuracy", title="test accuracy by group"):
    text = HEAD.format(verdict=verdict, metric=metric, title=title)
    (folder / "README.md").write_text(text)
    return folder

  return filled


def test_a_page_gets_tables_figures_and_its_line_in_the_overview(page):
  folder = page()
  (folder / "old.svg").write_text("of a title that was taken out")
  findings.main([])
  text = (folder / "README.md").read_text()
  assert "Mine stays." in text
  assert "what was there" not in text
  assert re.search(r"\| runs +\| 6, seeds 0, 1, 2", text)
  assert re.search(r"\| rpr +\| +3 \| +86\.67 ", text)
  (picture,) = re.findall(r"!\[test accuracy by group\]\((.*)\)", text)
  assert [path.name for path in folder.glob("*.svg")] == [picture]
  (row,) = re.findall(
    r"\| \[Order matters\]\(mine/README\.md\).*", (folder.parent / "README.md").read_text()
  )
  assert "+33.33 ± " in row
  findings.main(["mine"])
  assert (folder / "README.md").read_text() == text


@pytest.mark.parametrize(
  ("filling", "message"),
  [
    ({"verdict": "surely"}, "no verdict: surely; there are holds, "),
    ({"title": "nothing"}, "no figure 'nothing'; there are test accuracy by group"),
    ({"metric": "test/bleu"}, "no run has such a metric"),
  ],
)
def test_a_mistake_in_a_page_is_one_sentence(page, filling, message):
  page(**filling)
  with pytest.raises(UserError, match=re.escape(message)):
    findings.main([])


def test_a_page_that_does_not_exist_is_refused(page):
  page()
  with pytest.raises(UserError, match="no such page: yours"):
    findings.main(["yours"])
