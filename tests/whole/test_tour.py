"""The tour: its commands print what its pages say, and its figures are there."""

import collections
import json
import re

import pytest
import tour

PAGES = sorted(tour.FOLDER.glob("*.md"))  # the chapters, and what leads to them
ROOT = tour.FOLDER.parents[1]
NUMBER = r"\d[\d,.]*\d"
RUN = [*tour.CHAPTERS, ROOT / "docs/tasks.md"]  # whose commands are typed


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_pages_say_what_is_printed(page):
  assert [*tour.wrong(page, slow=False)] == []
  assert all((page.parent / name).exists() for name in tour.FIGURE.findall(page.read_text("utf-8")))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/order.md"], ids=lambda page: page.name)
def test_the_chinese_page_has_the_same_commands_and_numbers(page):
  """Code blocks, code and formulas within lines, and numbers, but for single digits."""
  texts = [each.read_text("utf-8") for each in (page, ROOT / "docs/zh" / page.name)]
  assert [*tour.blocks(texts[0])] == [*tour.blocks(texts[1])]
  bare = [tour.BLOCK.sub("", text) for text in texts]
  for pattern in (r"(?ms)^```.*?^```$|`[^`]+`", r"\${2}.+?\${2}|\$[^$\n]+\$", NUMBER):
    one, other = (collections.Counter(re.findall(pattern, text)) for text in bare)
    assert one == other


def test_the_chinese_readme_says_nothing_that_the_other_does_not():
  """It is shorter, and its code blocks and numbers are those of README.md."""
  texts = [(ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh.md")]
  for pattern in (r"(?ms)^```.*?^```$", NUMBER):
    one, other = (set(re.findall(pattern, text)) for text in texts)
    assert other
    assert other <= one


def test_the_notebook_is_that_of_the_pages():
  made = tour.notebook(tour.CHAPTERS)
  assert (tour.FOLDER / "tour.ipynb").read_text("utf-8") == made, "scripts/tour.py --notebook"
  sources = [each["source"] for each in json.loads(made)["cells"] if each["cell_type"] == "code"]
  assert sources.pop(0) == tour.INSTALL
  shown = [source for source in sources if "SVG(" in source]
  assert len(shown) == sum(len(tour.FIGURE.findall(page.read_text("utf-8"))) for page in PAGES)
  for source in sources:
    if not source.startswith("!"):
      compile(source, "cell", "exec")
