"""The tour: its commands print what its pages say, and its figures are there."""

import pytest
import tour
from seed import SEED

PAGES = sorted(tour.FOLDER.glob("*.md"))
DRAWN = PAGES[1 + SEED % (len(PAGES) - 1)].name  # one of them; with --slow all


@pytest.mark.parametrize(
  "page",
  [pytest.param(p, marks=() if p.name == DRAWN else pytest.mark.slow, id=p.name) for p in PAGES],
)
def test_pages_say_what_is_printed(page):
  assert [*tour.wrong(page, slow=False)] == []
  assert all((tour.FOLDER / name).exists() for name in tour.FIGURE.findall(page.read_text("utf-8")))


def test_a_number_that_is_wrong_is_found(tmp_path):
  page = tmp_path / "page.md"
  page.write_text("""```python
>>> import posexp
>>> posexp.vectors("index", positions=3, width=1).ravel()
array([0., 1., 3.])

```
""")
  (found,) = tour.wrong(page, slow=False)
  assert "array([0., 1., 2.])" in found
