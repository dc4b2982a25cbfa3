"""The figures of a report: what stands in each, what it says, and their files."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from posexp import storage
from posexp.errors import writing
from posexp.reporting import captions, charts, specs, vega
from posexp.reporting.charts import Chart
from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.vega import Spec
from posexp.status import doing

KINDS = ("pdf", "svg", "png")  # of files
WIDTH = 400  # pixels of a chart in a file
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name: nothing is fetched from it
SCALE = 2  # pixels of a PNG for each of the spec


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
    return re.sub(r"[^0-9A-Za-z_.-]+", "-", task + self.title)

  def drawn(self, kind: str = "svg") -> str | bytes:
    """Return the content of its file, the same every time: a str of SVG, bytes of PDF and PNG."""
    import vl_convert  # loads a browser's engine

    options = {"scale": SCALE} if kind == "png" else {}
    found = getattr(vl_convert, f"vegalite_to_{kind}")(self._still(), **options)
    return _numbered(found) if kind == "svg" else found

  def _still(self) -> Spec:
    """Return its spec for a file, in which charts have a width and a reader cannot choose."""
    parts = self.specs
    for part in parts:
      part["width"] = WIDTH
      for name in ("autosize", "params"):
        part.pop(name, None)
    found = parts[0] if len(parts) == 1 else {"hconcat": parts, "spacing": 25}
    fixed = {"picked": "", "wide": WIDTH}
    params = [{"name": name, "value": value} for name, value in fixed.items()]
    config = vega.CONFIG | {"background": "#ffffff", "aria": False}
    return {"$schema": SCHEMA, "config": config, "params": params, **found}


def _numbered(svg: str) -> str:
  """Return an SVG whose clips have numbers from 0 on, whatever was drawn before it."""
  places = list(dict.fromkeys(re.findall(r'id="clip(\d+)"', svg)))
  return re.sub(r"\bclip(\d+)(?=[\")])", lambda found: f"clip{places.index(found[1])}", svg)


def shown(results: Results) -> list[Group]:
  """Return the groups that have a line in figures, in the order of their scores."""
  groups = [group for group in results.groups if group.repeats]  # also what has not learned
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
      parts.append([*_context_map(chart), chart])
  scored = bool(parts) and (parts[0][0].kind, parts[0][0].y) == ("names", results.score)
  if scored and any(point.found.half is not None for point in compared.points):
    parts[0].append(compared)
  if (by_length := charts.lengths(results)) is not None:
    parts.insert(int(scored), [by_length, by_length._replace(kind="curves")])
  for each in parts:
    title = each[0].title
    if each[0] is by_length:
      title = f"lengths-{re.sub(r'[^0-9A-Za-z_.-]+', '-', results.task).strip('-')}"
    yield Figure(title, each, captions.says(each, results), results)


def _context_map(chart: Chart) -> list[Chart]:
  """Return a heat map, if a chart has the contexts of many groups."""
  points = [point._replace(x=str(point.x)) for point in chart.points]
  many = len({point.series for point in points}) > vega.FEW
  return [chart._replace(kind="context map", points=points)] * (many and chart.kind == "contexts")


def of_all(tasks: Sequence[Results]) -> Iterator[Figure]:
  """Yield the figures that several tasks share: how far each group reaches."""
  chart = charts.reach(tasks)
  if chart is not None:
    yield Figure("reach", [chart], captions.REACH)


def save(found: Iterable[Figure], folder: Path, kinds: Sequence[str]) -> None:
  """Write figures in several formats.

  Raises:
    UserError: the folder cannot be written.
  """
  with writing("the folder of figures", folder):
    folder.mkdir(parents=True, exist_ok=True)
    for figure in found:
      doing(f"drawing {figure.title}")
      for kind in kinds:
        content, path = figure.drawn(kind), folder / f"{figure.name}.{kind}"
        path.unlink(missing_ok=True)  # if it is a link, what it leads to stays
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@functools.cache
def library() -> str:
  """Return Vega, Vega-Lite and Vega-Embed as one script, which needs no network."""
  import vl_convert  # loads a browser's engine

  version = metadata.version("vl-convert-python")
  return storage.cached("charts", lambda: vl_convert.javascript_bundle(), version)
