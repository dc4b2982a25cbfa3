"""The figures of a report: their charts, the sentences under them, and their files."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from posexp import storage
from posexp.errors import UserError, writing
from posexp.reporting import charts, specs, vega
from posexp.reporting.charts import Chart, Point, place
from posexp.reporting.grouping import Group
from posexp.reporting.results import COSTS, Results
from posexp.reporting.sentences import outcome
from posexp.reporting.text import listed, one_line
from posexp.reporting.vega import Spec
from posexp.runs.identity import spelled
from posexp.runs.lengths import REACHED
from posexp.status import doing

KINDS = ("pdf", "svg", "png")  # of files
WIDTH = 400  # pixels of a chart in a file
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name: nothing is fetched from it
SCALE = 2  # pixels of a PNG for each of the spec
INCH = 72  # points, each a pixel of the spec of a figure for print
DOTS = 300  # of a PNG that is printed, in an inch


class Print(NamedTuple):
  """The size of figures for a paper, which have one chart in a file."""

  width: float  # of the whole figure, in inches
  letters: float = 8.0  # the size of the axes' letters, in points

  @property
  def config(self) -> Spec:
    """How charts look, with letters of this size."""
    scale = self.letters / vega.CONFIG["axis"]["labelFontSize"]
    sizes = ("fontSize", "labelFontSize", "titleFontSize")
    return {
      part: {key: round(scale * each, 2) if key in sizes else each for key, each in looks.items()}
      if isinstance(looks, dict)
      else looks
      for part, looks in vega.CONFIG.items()
    }


class Figure(NamedTuple):
  """One or two charts side by side, and the sentence under them."""

  title: str
  charts: list[Chart]
  says: str
  results: Results | None = None  # None where it is of several tasks

  @property
  def specs(self) -> list[Spec]:
    return [specs.spec(chart, self.results) for chart in self.charts]

  @property
  def heading(self) -> str:
    """The title for people, where `title` is a name."""
    first = self.charts[0]
    named = {
      "tasks": "how far groups reach",
      "lengths": f"{first.y.title} by length, within and beyond training",
    }
    return named.get(first.kind, self.title)

  @property
  def name(self) -> str:
    """The name of its file, without the ending."""
    task = f"{self.results.task} " if self.results is not None else ""
    return _as_name(task + self.title)

  @property
  def panels(self) -> list[Figure]:
    """A figure of each chart alone; after the first, titles end with the kind of the chart."""
    names = [self.title, *(f"{self.title} {chart.kind}" for chart in self.charts[1:])]
    pairs = zip(names, self.charts, strict=True)
    return [self._replace(title=name, charts=[chart]) for name, chart in pairs]

  def drawn(self, kind: str = "svg", size: Print | None = None) -> str | bytes:
    """Return the content of its file, the same every time: a str of SVG, bytes of PDF and PNG."""
    import vl_convert  # loads a browser's engine

    options = {"scale": SCALE if size is None else DOTS / INCH} if kind == "png" else {}
    content = getattr(vl_convert, f"vegalite_to_{kind}")(self._still(size), **options)
    if kind == "svg" and size is not None:  # one of pixels would be printed three quarters as wide
      content = re.sub(r'\b(width|height)="([\d.]+)"', r'\1="\2pt"', content, count=2)
    return _numbered(content) if kind == "svg" else content

  def _still(self, size: Print | None) -> Spec:
    """Return its spec for a file, in which charts have a width and a reader cannot choose."""
    parts, width = self.specs, WIDTH if size is None else size.width * INCH
    for part in parts:
      part["width"] = width
      if size is None:
        del part["autosize"]
      part.pop("params", None)
    spec = parts[0] if len(parts) == 1 else {"hconcat": parts, "spacing": 25}
    fixed = {"picked": "", "hidden": [], "wide": width}
    params = [{"name": name, "value": value} for name, value in fixed.items()]
    looks = vega.CONFIG if size is None else size.config
    config = looks | {"background": "#ffffff", "aria": False}
    return {"$schema": SCHEMA, "config": config, "params": params, **spec}


def _numbered(svg: str) -> str:
  """Return an SVG with its clips numbered from 0 on: figures drawn before it change nothing."""
  places = list(dict.fromkeys(re.findall(r'id="clip(\d+)"', svg)))
  return re.sub(r"\bclip(\d+)(?=[\")])", lambda found: f"clip{places.index(found[1])}", svg)


def shown(results: Results) -> list[Group]:
  """Return the groups that have a line in figures, in the order of their scores."""
  groups = [group for group in results.groups if group.repeats]
  most = vega.LINES
  if results.baseline in groups[most:]:
    return [*groups[: most - 1], results.baseline]
  return groups[:most]


def figures(results: Results) -> Iterator[Figure]:
  """Yield the figures of a task that there are; those by group and by length have two charts."""
  compared = charts.differences(results)
  parts = []
  for chart in charts.charts(results, shown(results)):
    if len({point.x for point in chart.points}) > 1:
      parts.append([chart])
      if chart.kind == "contexts" and len({point.series for point in chart.points}) > vega.FEW:
        points = [point._replace(x=str(point.x)) for point in chart.points]
        parts[-1].insert(0, chart._replace(kind="context map", points=points))
  scored = bool(parts) and (parts[0][0].kind, parts[0][0].y) == ("names", results.score)
  if scored and any(point.found.half is not None for point in compared.points):
    parts[0].append(compared)
  if (by_length := charts.lengths(results)) is not None:
    parts.insert(int(scored), [by_length, by_length._replace(kind="curves")])
  for part in parts:
    title = part[0].title
    if part[0] is by_length:
      title = f"lengths-{_as_name(results.task)}"
    yield Figure(title, part, says(part, results), results)


def _as_name(text: str) -> str:
  """Return a text as the name of a file: - for all but letters, of any script, and numbers."""
  kept = (each if _is_kept(each) else "-" for each in text)
  return re.sub("-+", "-", "".join(kept)).strip("-")


def _is_kept(character: str) -> bool:
  """Return whether a character may be in the name of a file, as marks of a letter may."""
  return character.isalnum() or character in "_.+" or unicodedata.category(character)[0] == "M"


def of_all(tasks: Sequence[Results]) -> Iterator[Figure]:
  """Yield the figures that several tasks share: how far each group reaches."""
  chart = charts.reach(tasks)
  if chart is not None:
    yield Figure("reach", [chart], REACH)


def save(
  found: Iterable[Figure],
  folder: Path,
  kinds: Sequence[str],
  size: Print | None = None,
  only: Sequence[str] = (),
) -> int:
  """Write figures in several formats; with a size for print, each of their charts in a file.
  Return the number of files.

  `only` are endings of the names of files, without the formats: "by-group", or "reach".

  Raises:
    UserError: the folder cannot be written, or no figure has such a name.
  """
  every = [*found] if size is None else [panel for figure in found for panel in figure.panels]
  for ending in only:
    if not any(figure.name.endswith(ending) for figure in every):
      names = listed(sorted({figure.name for figure in every}), 12)
      raise UserError(f"--only {ending}: no figure's name ends so; there are {names}")
  chosen = [figure for figure in every if not only or figure.name.endswith(tuple(only))]
  written: set[str] = set()
  with writing("the folder of figures", folder):
    folder.mkdir(parents=True, exist_ok=True)
    for figure in chosen:
      doing(f"drawing {figure.title}")
      name, number = figure.name, 1
      while name in written:  # titles may differ in what no name of a file has
        number += 1
        name = f"{figure.name}-{number}"
      written.add(name)
      for kind in kinds:
        content, path = figure.drawn(kind, size), folder / f"{name}.{kind}"
        path.unlink(missing_ok=True)  # if it is a link, what it leads to stays
        path.write_bytes(content.encode() if isinstance(content, str) else content)
  return len(written) * len(kinds)


@functools.cache
def library() -> str:
  """Return Vega, Vega-Lite and Vega-Embed as one script, which needs no network."""
  import vl_convert  # loads a browser's engine

  version = metadata.version("vl-convert-python")
  return storage.cached("charts", lambda: vl_convert.javascript_bundle(), version)


REACH = (
  f"The longest length up to which exact match is at least {REACHED:.0%}, the farthest reaching "
  "group first. The darker a cell, the nearer to the longest length that the task tests."
)


def says(charts: Sequence[Chart], results: Results) -> str:
  """Return sentences on the charts of a figure."""
  return " ".join(part for chart in charts for part in _said(chart, results))


def _said(chart: Chart, results: Results) -> list[str]:
  if chart.kind == "names":
    return _names(chart, results)
  if chart.kind == "differences":
    return _differences(results)
  if chart.kind == "lengths":
    return _lengths(chart)
  if chart.kind == "curves":
    return ["Gray ground: the lengths of training; names stand in the order in which lines end."]
  if chart.kind == "context map":
    return []
  if chart.kind == "parts":
    return _parts(chart)
  if chart.kind == "steps":
    return [_ends_at(chart, chart.points), "Means over seeds."]
  if chart.kind == "contexts":
    longest = max(point.x for point in chart.points)
    at = [point for point in chart.points if point.x == longest]
    return [f"At {longest:,} tokens: {_ends_at(chart, at)}", "Gray ground: as in training."]
  return _numbers(chart, results)


def _best(chart: Chart, points: Sequence[Point]) -> Point:
  sign = 1 if chart.y.metric.higher_is_better else -1
  return max(points, key=lambda point: sign * point.found.mean)


def _named(chart: Chart, point: Point) -> str:
  unit = " %" if chart.y.metric.percent else ""
  return f"{one_line(point.series)} ({chart.y.number(point.found.mean)}{unit})"


def _ends_at(chart: Chart, points: Sequence[Point]) -> str:
  """Return which series is the best at its end, and which is the worst."""
  last = [*{point.series: point for point in points if point.found.n}.values()]
  best = _best(chart, last)
  flipped = chart._replace(
    y=chart.y._replace(
      metric=chart.y.metric._replace(higher_is_better=not chart.y.metric.higher_is_better)
    )
  )
  worst = _best(flipped, last)
  if len(last) == 1:
    return f"{_named(chart, best)} at its end."
  if best.found.mean == worst.found.mean:
    return f"All end at {chart.y.number(best.found.mean)}."
  return f"{_named(chart, best)} ends best, {_named(chart, worst)} worst."


def _names(chart: Chart, results: Results) -> list[str]:
  cut = f"the first {specs.ROWS} of {len(chart.points):,} groups; "
  cut = cut if len(chart.points) > specs.ROWS else ""
  base = f", the dashed line is {_base(results)}" if results.baseline else ""
  left = vega.usual([one_line(point.series) for point in chart.points])
  names = [f"Names leave out {listed(sorted(left))}, which most have."] if left else []
  shown = "means" if results.looked_at else "means with 95 % intervals"
  dots = "seeds of folds" if any(group.folds for group in results.ranked) else "seeds"
  return [f"Scores: {cut}{shown}, small dots are {dots}{base}.", *names]


def _base(results: Results) -> str:
  """Return the name of the baseline, where it is short."""
  label = one_line(results.baseline.label)
  return label if len(label) <= vega.NAME else "the baseline"


def _differences(results: Results) -> list[str]:
  base = results.baseline
  kinds = Counter(outcome(group, results) for group in results.ranked if group is not base)
  told = ", ".join(f"{kinds[kind]} {kind}" for kind in ("better", "worse") if kinds[kind])
  side = "right" if results.score.metric.higher_is_better else "left"
  text = (
    f"Differences to {_base(results)}, with their own 95 % intervals: {side} of the line is better"
  )
  open_ones = kinds["not told apart"] + kinds["not tested"]
  hollow = [f"{kinds['equal']} equal to it"] * bool(kinds["equal"])
  hollow += [f"{open_ones} that cannot be told apart from it"] * bool(open_ones)
  drawn = [f"filled: {told}"] * bool(told) + [f"hollow: {' and '.join(hollow)}"] * bool(hollow)
  return [f"{'; '.join([text, *drawn])}."]


def _lengths(chart: Chart) -> list[str]:
  far: dict[str, float] = {}
  ended = set()
  for point in sorted(chart.points, key=lambda point: place(str(point.x))):
    if point.found.mean is None or point.found.mean < REACHED:
      ended.add(point.series)
    elif point.series not in ended:
      far[point.series] = place(str(point.x))
  text = "Right of the line, inputs are longer than in training."
  most = max(far.values(), default=0)
  first = [name for name, length in far.items() if length == most]
  some = f"at least {chart.y.number(REACHED).removesuffix('.00')} % up to length {most:g}"
  verb = "reach" if len(first) > 1 else "reaches"
  who = " and ".join(first) if len(first) < 3 else listed(first, 3)
  best = f"{who} {verb} farthest: {some}." if far else "No group reaches that far."
  empty = any(point.state for point in chart.points)
  states = "Empty: not applicable." if empty else ""
  return [best, text, states] if states else [best, text]


def _parts(chart: Chart) -> list[str]:
  spread: dict[str, list[float]] = {}
  for point in chart.points:
    spread.setdefault(str(point.x), []).append(point.found.mean)
  widest = max(spread, key=lambda part: max(spread[part]) - min(spread[part]))
  apart = chart.y.number(max(spread[widest]) - min(spread[widest]))
  if max(spread[widest]) == min(spread[widest]):
    return ["All groups are equal."]
  return [f"Groups are farthest apart at {one_line(widest)}: by {apart} {chart.y.unit}."]


def _numbers(chart: Chart, results: Results) -> list[str]:
  best = _best(chart, chart.points)
  at = f"{best.x:,.0f}" if chart.x in COSTS else spelled(float(f"{best.x:.12g}"))
  text = f"Best at {at}: {_named(chart, best)}."
  if chart.x in COSTS:
    least = min(chart.points, key=lambda point: point.x)
    more = float(best.x) / (float(least.x) or 1.0)
    text = f"{_named(chart, best)} is best"
    same = least.series == best.series
    text += " and the cheapest." if same else (
      f" and takes {more:.2f} times the {chart.x} of {_named(chart, least)}, the cheapest."
    )  # fmt: skip
  base = results.baseline
  return [text, f"Dashed: {_base(results)}."] if base is not None else [text]
