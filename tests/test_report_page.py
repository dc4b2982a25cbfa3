"""The page of a report: what is on it, that it stands alone, and how a browser lays it out."""

import html
import html.parser
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.figure import Figure
from run_folders import sweep, write

from posexp import plotting
from posexp.report import arguments, report
from posexp.reporting import figures, page
from posexp.reporting.charts import charts
from posexp.reporting.results import results
from posexp.reporting.scores import curve
from posexp.runs import read_runs

A = [0.91, 0.93, 0.90, 0.96]
B = [0.79, 0.80, 0.80, 0.81]
ALONE = {"script", "link", "iframe", "object", "embed"}  # would fetch or run something
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MEASURE = """<!doctype html><body><script>
const widths = [390, 1280], found = [];
let left = widths.length;
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.onload = () => {
    const page = frame.contentDocument;
    const items = [...page.querySelectorAll(".answer, .ranked, .said")];
    const bottom = items[2].getBoundingClientRect().bottom;
    const table = items[1];
    const drawn = page.querySelector("figure img").getBoundingClientRect().width;
    found.push([width, page.documentElement.scrollWidth, table.scrollWidth - table.clientWidth,
                Math.round(bottom), Math.round(drawn)].join(","));
    if (--left === 0) document.body.textContent = "MEASURED " + found.sort().join(" ");
  };
  frame.src = "report.html";
  document.body.append(frame);
}
</script>"""


class Tags(html.parser.HTMLParser):
  """Every tag, and whether they are closed as they should be."""

  VOID = ("meta", "img")

  def __init__(self, text):
    super().__init__()
    self.names, self.addresses, self.open, self.wrong = set(), [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.names.add(tag)
    self.addresses += [v for k, v in attributes if k.endswith(("href", "src"))]
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    if tag not in self.VOID and (not self.open or self.open.pop() != tag):
      self.wrong.append(tag)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """A page, with everything on it that there can be."""
  root = tmp_path_factory.mktemp("page")
  for (encoding, k), scores in {
    ("sinusoidal", None): B,
    ("rpr", 0): [0.5, 0.52, 0.55, 0.51],
    ("rpr", 4): A,
    ("rpr", 64): [each - 0.01 for each in A[::-1]],
  }.items():
    for seed, score in enumerate(scores):
      parts = {f"beyond/accuracy/{n}": score - n / 50 for n in (10, 6, 7)}
      parts |= {f"test/accuracy/{name}": score for name in ("dates", "years")}
      options = {"k": k} if encoding == "rpr" else {}
      cost = {"flops_per_token": 5000.0 + 100 * (k or 0)}
      write(root / "runs", encoding, seed, score, options=options, **parts, **cost)
  write(root / "runs", "rpr", 4, options={"k": 4}, log="ValueError: <b>bad</b> & worse\n")
  report(arguments([str(root / "runs"), "--out", str(root / "out")]))
  return root / "out" / "report.html"


def test_the_page_needs_nothing_else(made):
  text = made.read_text()
  tags = Tags(text)
  assert not tags.names & ALONE
  assert not tags.wrong
  assert not tags.open
  assert not re.search(r"url\(|@import|@font-face", text)
  assert len(tags.addresses) > 5
  assert all(each.startswith("data:image/svg+xml;base64,") for each in tags.addresses)


def test_the_answer_comes_first_and_everything_is_there(made):
  text = made.read_text()
  order = [
    "rpr k=4 is first of 4 groups with 92.50 (",
    'class="scroll ranked"',
    "rpr k=4 beats sinusoidal: +12.50 (+",
    "failed at step 20: ValueError: &lt;b&gt;bad&lt;/b&gt; &amp; worse",
    "Test accuracy by group",
    "Test accuracy by rpr.k",
    "Validation accuracy by step",
    "Validation loss by step",
    "Test accuracy by part",
    "Beyond accuracy by length",
    "Test accuracy by FLOPs/token",
    "Costs",
    ">Runs<",
    "All 17 runs",
    "What they have in common",
  ]
  places = [text.find(each) for each in order]
  assert -1 not in places
  # Figures by part are in the order of the summary.
  assert [each for each in places if each not in places[8:10]] == sorted(places[:8] + places[10:])
  assert "<b>bad" not in text


def test_a_curve_is_the_mean_over_seeds_where_all_have_it(tmp_path):
  sweep(tmp_path, {"rpr": [0.8, 0.9]})
  file = next(tmp_path.glob("toy/rpr/*/seed=1/metrics.jsonl"))
  file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
  steps, values = curve(read_runs([tmp_path])[0], "validation/accuracy")
  assert steps.tolist() == [10, 20]
  np.testing.assert_allclose(values, [[0.7, 0.75], [0.8, 0.85]])


def test_few_of_many_groups_are_drawn_with_the_baseline_and_the_last(tmp_path):
  groups = {("rpr", k): [0.5 + k / 100, 0.51 + k / 99] for k in range(12)}
  sweep(tmp_path, groups | {"sinusoidal": [0.52, 0.53], "none": [0.1, 0.2]})
  (found,) = results(read_runs([tmp_path])[0])
  groups = figures.shown(found)
  assert [group.label for group in groups] == [
    *(f"rpr k={k}" for k in range(11, 2, -1)),
    "sinusoidal",
  ]
  assert [title for title, _ in figures.figures(found)][:2] == [
    "test accuracy by group",
    "test accuracy by rpr.k",
  ]


def test_each_group_has_a_row_with_its_seeds_their_mean_and_its_interval(tmp_path):
  scores = {"rpr": [0.79, 0.80, 0.84], "none": [0.5, 0.52, 0.54]}
  sweep(tmp_path, scores)
  (found,) = results(read_runs([tmp_path])[0])
  axes = Figure().subplots()
  figures._rows(axes, next(charts(found)), found.baseline)
  assert [label.get_text() for label in axes.get_yticklabels()] == ["rpr", "none"]
  assert axes.yaxis_inverted()  # the best on top
  lines = [line.get_xydata() for line in axes.lines]
  for row, values in enumerate(scores.values()):
    np.testing.assert_allclose(lines[row][:, 0], np.multiply(values, 100))
    assert set(np.round(lines[row][:, 1])) == {row}
  means = next(line for line in lines[2:] if len(line) == 2)
  np.testing.assert_allclose(means, [[81, 0], [52, 1]])
  ((rpr, none),) = [bars.get_segments() for bars in axes.collections]
  _, low, high = 100 * found.groups[0].estimate.ends
  np.testing.assert_allclose(rpr, [[low, 0], [high, 0]])
  assert none[0][0] < 50 < 54 < none[1][0]
  (line,) = {x for x, y in lines[-1]}
  assert line == found.baseline.estimate.mean * 100


@pytest.mark.parametrize(
  ("values", "title", "scale", "names"),
  [
    ([0.0, 1.0, 64.0], "rpr.k", "symlog", ["0", "1", "64"]),
    ([1.0, 10.0], "rpr.k", "symlog", ["1", "10"]),
    ([-1.0, 5.0], "x.bias", "linear", ["-1", "5"]),
    ([0.004, 0.008], "train.learning_rate", "symlog", ["0.004", "0.008"]),
    ([1e-05, 3e-05, 1e-04], "train.learning_rate", "symlog", ["1e-05", "3e-05", "0.0001"]),
    ([0.1, 0.3], "model.dropout", "linear", ["0.1", "0.3"]),
    ([0.1, 0.2, 0.3], "model.dropout", "linear", ["0.1", "0.2", "0.3"]),
    ([2.0, 4.0, 8.0], "rpr.k", "symlog", ["2", "4", "8"]),
    ([1.0, 2.0, 5.0], "rpr.k", "symlog", ["1", "2", "5"]),
    ([16.0, 64.0, 128.0], "model.d_model", "linear", ["16", "64", "128"]),
    ([100.0, 10_000.0, 1_000_000.0], "sinusoidal.base", "symlog", ["100", "10000", "1000000"]),
    ([512.0, 513.0, 2048.0], "learned.length", "linear", ["513", "2048"]),  # no room for 512
    ([5000.0, 6000.0], "FLOPs/token", "linear", ["5k", "6k"]),
  ],
)
def test_an_axis_has_the_scale_and_the_names_of_its_values(values, title, scale, names):
  axes = Figure().subplots()
  figures._scale(axes, values, title)
  assert axes.get_xscale() == scale
  assert [each.get_text() for each in axes.get_xticklabels()] == names


@pytest.mark.parametrize("name", ["_mine", "$x$", "a\\b", "100%", "a_b^c", "{}"])
def test_a_name_is_drawn_as_it_is(tmp_path, name):
  write(tmp_path, name, 0, 0.5)
  write(tmp_path, "none", 0, 0.6)
  (found,) = results(read_runs([tmp_path])[0])
  for chart in charts(found, figures.shown(found)):
    if chart.kind in ("names", "steps"):
      drawn = html.unescape(figures.draw(chart, found.baseline))
      assert re.search(rf"<text [^>]*>\s*{re.escape(name)}</text>", drawn), chart.title


def test_lines_of_many_groups_look_different():
  looks = [tuple(plotting.line_style(rank).values()) for rank in range(24)]
  assert len({*looks}) == 24
  assert len({*looks[: figures.MOST]}) == figures.MOST


def test_an_axis_names_few_values():
  many = Figure().subplots()
  figures._scale(many, [float(value) for value in range(1, 1000)])
  assert len(many.get_xticks()) < 10


def test_a_page_shows_the_first_of_many_runs(tmp_path, monkeypatch):
  sweep(tmp_path, {"rpr": A})
  monkeypatch.setattr(page, "ROWS", 3)
  (found,) = results(read_runs([tmp_path])[0])
  _, _, after = page.page([found], [], {}).partition("The first 3 of 4 runs; runs.csv has all")
  assert after.partition("What they have in common")[0].count("<tr>") == 1 + 3


def test_the_same_runs_make_the_same_page(made):
  before = made.read_text()
  root = made.parent.parent
  report(arguments([str(root / "runs"), "--out", str(root / "out")]))
  assert made.read_text() == before


def test_groups_stand_at_an_axis_without_the_words_that_all_have():
  labels = ["rpr keys=true values=true", "rpr keys=false values=true"]
  assert figures.distinct(labels) == ["keys=true", "keys=false"]
  assert figures.distinct(["rpr k=2", "rpr k=4", "none"]) == ["rpr k=2", "rpr k=4", "none"]
  assert figures.distinct(["rpr"]) == ["rpr"]
  long = [f"{'a' * 60}={number}" for number in range(2)]
  assert figures.distinct(long) == long
  assert figures.distinct([long[0], "b" * 60]) == ["a" * 51 + "…", "b" * 51 + "…"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_browser_lays_it_out_for_a_phone_and_a_desktop(made):
  (made.parent / "measure.html").write_text(MEASURE)
  argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
  argv += ["--virtual-time-budget=5000", "--dump-dom", f"file://{made.parent}/measure.html"]
  dom = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
  found = {
    int(width): tuple(map(int, rest))
    for width, *rest in (
      each.split(",") for each in re.search("MEASURED ([^<]*)", dom).group(1).split()
    )
  }
  for width, (needed, beyond, bottom, drawn) in found.items():
    assert needed <= width  # nothing to scroll sideways
    assert beyond <= 0  # nor in the table
    assert bottom < 800  # the answer is on the first screen
    assert drawn >= 320  # pixels of a figure
  assert found.keys() == {390, 1280}
