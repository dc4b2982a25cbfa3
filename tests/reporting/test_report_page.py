"""The page of a report: what is on it, that it stands alone, and how a browser lays it out."""

import html
import html.parser
import itertools
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import run_folders
from run_folders import report, sweep, write

from posexp.config import CONFIGS
from posexp.reporting import charts, figures, page, specs, vega
from posexp.reporting.results import curve, results
from posexp.runs import read_runs

A, B = run_folders.A[:4], run_folders.B[:4]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MEASURE = """<!doctype html><body><script>
const wait = (test) => new Promise((done) => {
  const look = () => test() ? done() : setTimeout(look, 50);
  look();
});
async function measure(width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.src = "report.html";
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; });
  const page = frame.contentDocument, all = (what) => [...page.querySelectorAll(what)];
  await wait(() => all("svg.marks").length === all(".chart").length);
  const svg = page.querySelector("svg.marks"), table = page.querySelector(".ranked");
  const found = {
    width, needed: page.documentElement.scrollWidth, beyond: table.scrollWidth - table.clientWidth,
    answered: Math.round(page.querySelector(".answer").getBoundingClientRect().bottom),
    drawn: Math.round(svg.getBoundingClientRect().width), charts: all(".chart").length,
  };
  const names = () => all(".ranked tbody tr").map((row) => row.cells[0].textContent.trim());
  all(".ranked th")[2].click();
  found.down = names();
  all(".ranked th")[2].click();
  found.up = names();
  const faint = () => all(".chart path[opacity='0.25']").length;
  page.querySelector(".ranked tbody td").click();
  await wait(faint);
  found.bright = all(".chart path[opacity='1']").length > 0;
  found.picked = all("tr.picked").map((row) => row.cells[0].textContent.trim());
  page.querySelector(".ranked tbody input").click();
  await wait(() => all(".chart path[opacity='0']").length);
  found.hidden = all(".ranked tr.hidden").map((row) => row.cells[0].textContent.trim());
  const [score, against] = all(".explore select");
  score.value = "test accuracy";
  score.onchange();
  against.value = "FLOPs/token";
  const chart = page.querySelector(".explore .chart");
  await against.onchange();
  found.chosen = chart.textContent.includes("FLOPs/token");
  return found;
}
Promise.all([390, 1280].map(measure)).then((found) => {
  document.body.textContent = "MEASURED " + JSON.stringify(found);
});
</script>"""


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
  report(root / "runs", "--out", root / "out")
  return root / "out" / "report.html"


def test_the_answer_comes_first_and_everything_is_there(made):
  text = made.read_text()
  order = [
    "rpr k=4 is first of 4 groups with 92.50 (",
    "Test accuracy by group",
    'class="scroll ranked groups"',
    "rpr k=4 beats sinusoidal: +12.50 (+",
    "failed at step 20: ValueError: &lt;b&gt;bad&lt;/b&gt; &amp; worse",
    "Costs",
    ">Runs<",
    "All 17 runs",
    "What they have in common",
  ]
  places = [text.find(each) for each in order]
  assert -1 not in places
  assert places == sorted(places)
  drawn = json.loads(re.search(r'id="charts">(.*?)</script>', text)[1])["specs"]
  assert {(each["y"], each["x"]) for each in drawn} >= {
    ("test accuracy", "group"),
    ("test accuracy", "difference to the baseline"),
    ("test accuracy", "rpr.k"),
    ("validation accuracy", "step"),
    ("validation loss", "step"),
    ("test accuracy", "part"),
    ("beyond accuracy", "length"),
    ("test accuracy", "FLOPs/token"),
  }
  assert "<b>bad" not in text


def test_a_curve_is_the_mean_over_seeds_where_all_have_it(tmp_path):
  sweep(tmp_path, {"rpr": [0.8, 0.9]})
  file = next(tmp_path.glob("toy/rpr/*/seed=1/metrics.jsonl"))
  file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
  steps, values = curve(read_runs([tmp_path])[0], "validation/accuracy")
  assert steps.tolist() == [10, 20]
  np.testing.assert_allclose(values, [[0.7, 0.75], [0.8, 0.85]])


def test_few_of_many_groups_are_drawn_with_the_baseline_and_the_last(tmp_path):
  groups = {("rpr", k): [0.5 + k / 100, 0.51 + k / 99] for k in range(22)}
  sweep(tmp_path, groups | {"sinusoidal": [0.52, 0.53], "none": [0.1, 0.2]})
  (found,) = results(read_runs([tmp_path])[0])
  groups = figures.shown(found)
  assert [group.label for group in groups] == [
    *(f"rpr k={k}" for k in range(21, 2, -1)),
    "sinusoidal",
  ]
  assert [each.title for each in figures.figures(found)][:2] == [
    "test accuracy by group",
    "test accuracy by rpr.k",
  ]


def test_each_group_has_a_row_with_its_seeds_their_mean_and_its_interval(tmp_path):
  scores = {"rpr": [0.79, 0.80, 0.84], "none": [0.5, 0.52, 0.54]}
  sweep(tmp_path, scores)
  (found,) = results(read_runs([tmp_path])[0])
  by_group = next(figures.figures(found))
  marginal, paired = (spec["data"]["values"] for spec in by_group.specs)
  assert [row["group"] for row in marginal] == ["rpr", "none"]  # the best on top
  for row, group, values in zip(marginal, found.ranked, scores.values(), strict=True):
    _, low, high = 100 * group.estimate.ends
    assert [row["low"], row["high"]] == pytest.approx([low, high], rel=1e-5)
    assert row["each"] == pytest.approx([100 * value for value in values])
  _, low, high = 100 * found.ranked[0].difference.estimate.ends
  assert [paired[0]["low"], paired[0]["high"]] == pytest.approx([low, high], rel=1e-5)
  assert (paired[1]["mean"], paired[1]["low"]) == (0.0, None)  # the baseline
  assert by_group.says.startswith("Scores: means with 95 % intervals")
  assert (
    "with their own 95 % intervals: right of the line is better; filled: 1 better." in by_group.says
  )


@pytest.mark.parametrize(
  ("values", "title", "scale", "other"),
  [
    ([0.0, 1.0, 64.0], "rpr.k", "symlog", "linear"),
    ([0.0, 1.0, 4.0], "rpr.k", "linear", "symlog"),
    ([1.0, 10.0], "rpr.k", "log", "linear"),
    ([-1.0, 5.0], "x.bias", "linear", None),
    ([0.004, 0.008], "train.learning_rate", "log", "linear"),
    ([2.0, 4.0, 8.0], "rpr.k", "log", "linear"),
    ([16.0, 64.0, 128.0], "model.d_model", "linear", "log"),
    ([5000.0, 6000.0], "FLOPs/token", "log", "linear"),
  ],
)
def test_an_axis_has_the_scale_of_its_values_and_offers_another(values, title, scale, other):
  points = [charts.Point(None, "none", value, None) for value in values]
  chart = charts.Chart("numbers", title, None, points)
  assert specs.scale(chart, values).get("type", "linear") == scale
  found = specs.other_scale(chart)
  assert (None if found is None else found.get("type", "linear")) == other


def test_an_interval_that_reaches_zero_ends_at_the_edge_of_a_logarithmic_axis(tmp_path):
  sweep(tmp_path, {"rpr": [0.5, 0.6]})
  for file, last in zip(tmp_path.glob("**/metrics.jsonl"), (0.01, 0.09), strict=True):
    rows = [{"step": step, "train/loss": loss} for step, loss in ((1, 2.0), (2, last))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  (found,) = results(read_runs([tmp_path])[0])
  (chart,) = (each for each in charts.charts(found) if each.y.key == "train/loss")
  *_, row = specs.lines_spec(chart, None)["data"]["values"]
  assert row["low"] == pytest.approx(0.8 * row["mean"])


def test_names_are_drawn_as_they_are(tmp_path):
  names = ["_mine", "$x$", "a\\b", "100%", "a_b^c", "{}", "a'b", "北京"]
  sweep(tmp_path, {name: [0.5 + number / 100] for number, name in enumerate(names)})
  (found,) = results(read_runs([tmp_path])[0])
  drawn = {each.title: each for each in figures.figures(found)}
  for title in ("test accuracy by group", "validation loss by step"):
    svg = drawn[title].drawn()
    shown = {html.unescape(each) for each in re.findall("<text [^>]*>([^<]*)</text>", svg)}
    assert {*names} <= shown, title
    assert svg == drawn[title].drawn()


def test_encodings_look_different_and_always_the_same():
  known = sorted(file.stem for file in CONFIGS.glob("encoding/*.yaml"))
  assert {name for colors in vega.FAMILIES.values() for name in colors} == {*known}
  found = [vega.look(name) for name in known]
  assert len({each[:2] for each in found}) == len(known)
  mine = vega.look("mine")
  assert mine == vega.look("mine")
  assert mine.shape not in {each.shape for each in found}
  shades = vega.looks(["rpr", "none", "rpr", "rpr"])
  assert shades[1] == vega.look("none")
  assert len({shade.color for shade in shades}) == 4
  assert {shade.shape for shade in shades} == {"square", "cross"}
  patterns = vega.looks(["by_layer"] * 11)
  assert len({pattern[:2] for pattern in patterns}) == 11
  assert len({pattern.color for pattern in patterns[:8]}) == 8
  names = ["rpr k=16", "rpr k=4", "rpr k=2"]
  colors, again = (vega.channels(each, ["rpr"] * 3)[0]["scale"] for each in (names, names[::-1]))
  assert colors["range"] == again["range"][::-1]
  assert sorted(again["range"]) == again["range"]  # from dark to light by k


def test_names_at_the_ends_of_lines_do_not_touch():
  places = specs.apart(np.array([1.0, 2.0, 3.0, 90.0, 99.0]), 10, 100)
  assert (np.diff(places) >= 10 - 1e-9).all()
  assert places.max() <= 100
  assert specs.apart(np.array([10.0, 50.0]), 10, 100).tolist() == [10.0, 50.0]


def test_each_of_several_tasks_has_charts_of_its_own_and_its_best_in_bold(tmp_path):
  for task in ("one", "two", "three"):
    sweep(tmp_path, {"rpr": A, "none": B}, **{"task.name": task})
  tasks = results(read_runs([tmp_path])[0])
  text = page.page(tasks, [])
  drawn = re.findall(r'data-chart="(\d+)"', text)
  chosen = [each.split(",") for each in re.findall(r'data-charts="([\d,]+)"', text)]
  specs = json.loads(re.search('id="charts">(.*?)</script>', text, re.S)[1])["specs"]
  assert len({*drawn}) == len(drawn) == 6
  assert sorted(map(int, itertools.chain(*chosen))) == [*range(len(specs))]
  assert re.findall(r"<b>(\d\d)\.", text) == ["92"] * 3


def test_a_page_shows_the_first_of_many_runs(tmp_path, monkeypatch):
  sweep(tmp_path, {"rpr": A})
  monkeypatch.setattr(page, "ROWS", 3)
  (found,) = results(read_runs([tmp_path])[0])
  _, _, after = page.page([found], []).partition("The first 3 of 4 runs; runs.csv has all")
  assert after.partition("What they have in common")[0].count("<tr>") == 1 + 3


def test_the_same_runs_make_the_same_page(made):
  before = made.read_text()
  root = made.parent.parent
  report(root / "runs", "--out", root / "out")
  assert made.read_text() == before


def test_groups_stand_at_an_axis_without_the_words_that_all_have():
  labels = ["rpr keys=true values=true", "rpr keys=false values=true"]
  assert vega.distinct(labels) == ["keys=true", "keys=false"]
  assert vega.distinct(["rpr k=2", "rpr k=4", "none"]) == ["rpr k=2", "rpr k=4", "none"]
  assert vega.distinct(["rpr"]) == ["rpr"]
  most = ["rpr lr=1 k=2", "none lr=1", "none lr=2"]
  assert vega.distinct(most) == ["rpr k=2", "none", "none lr=2"]
  long = [f"{'a' * 60}={number}" for number in range(2)]
  assert vega.distinct(long) == long
  assert vega.distinct([long[0], "b" * 60]) == ["a" * 51 + "…", "b" * 51 + "…"]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_reader_with_a_phone_or_a_desktop_sees_the_answer_and_can_touch_the_page(made):
  (made.parent / "measure.html").write_text(MEASURE)
  argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
  argv += ["--virtual-time-budget=20000", "--dump-dom", f"file://{made.parent}/measure.html"]
  dom = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
  for found in json.loads(html.unescape(re.search(r"MEASURED (\[.*?\])<", dom)[1])):
    assert found["needed"] <= found["width"]  # nothing to scroll sideways
    assert found["beyond"] <= 0  # nor in the table
    assert found["answered"] < 400  # the answer is on the first screen
    assert found["drawn"] >= 320  # pixels of a figure
    assert found["charts"] == 3
    assert found["down"] == ["rpr k=4", "rpr k=64", "sinusoidal", "rpr k=0"]
    assert found["up"] == found["down"][::-1]
    assert found["picked"] == ["rpr k=0"] * 2  # in both tables
    assert found["bright"]  # beside what is faint
    assert found["hidden"] == ["rpr k=0"]
    assert found["chosen"]
