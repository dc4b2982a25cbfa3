"""What MkDocs does beside reading docs/: a hook that mkdocs.yml names.

Formulas in TeX become MathML, which browsers draw themselves. The page `options.md` is made of the
comments in configs/, so that it says what the code reads. Scripts and fonts come with the site: no
page asks a network for anything.

`python scripts/website.py site` follows all links of a site that was built, as files of a disk, and
names those that lead nowhere and what would be loaded from a network.
"""

from __future__ import annotations

import csv
import html
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import jieba
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import AnchorLink

from posexp.board import page as leaderboard
from posexp.board.standings import boards, of_folder
from posexp.board.suite import FOLDER, SUITES, Suite
from posexp.config.help import LINE, paths
from posexp.reporting import page as report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts/bench"))
from benchmarking import proof, rows, tables  # noqa: E402  # measured tables draw themselves

BENCHMARKS = ROOT / "docs/benchmarks"
FORMULA = re.compile(r'(?s)<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>')
SIGNS = {  # of MathML, which browsers would draw too near to their neighbors, or too tall
  r"<m[io]>([a-z]{2,})</m[io]>": r'<mo lspace="0.17em" rspace="0.1em">\1</mo>',
  r"<mo[^>]*>&#x0007C;</mo>": r'<mo stretchy="false" lspace="0.1em" rspace="0.1em">|</mo>',
}
WIDE = "index.md", "encodings.md", "leaderboard/README.md", "leaderboard/papers.md"
FEW = 3  # headings that need no menu
GROUPS = {
  "encoding": "Encodings",
  "model": "Models",
  "train": "Training",
  "positions": "Positions",
  "task": "Tasks",
  "tracker": "Trackers",
  "hydra/launcher": "Slurm",
  "experiment": "Experiments",
}
FONT = "fonts/STIXTwoMath-Regular.ttf"
SEARCH = """
for (const part of document.querySelectorAll(".searched")) {
  const [box, table] = [document.createElement("input"), part.querySelector("table")];
  Object.assign(box, { type: "search", placeholder: "words of a claim, a page or a verdict" });
  box.oninput = () => {
    const words = box.value.toLowerCase().split(/\\s+/);
    for (const row of table.tBodies[0].rows)
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  };
  part.before(box);
  sortable(table);
}
"""
BEGIN = """# All options

Each option with its default and what it sets, made of the files in `configs/` whenever these pages
are built. `encoding=NAME`, `model=NAME`, `task=NAME` and so on choose a file; `NAME.option=value`
sets one of its options. `python -m posexp.train --help NAME` prints the same on a terminal.
"""


def on_config(config: MkDocsConfig) -> None:
  """Let the search be silent."""
  jieba.setLogLevel(logging.WARNING)


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Add what is not written by hand: the options, the leaderboard, and the font of formulas."""
  files.append(File.generated(config, "options.md", content=options()))
  files.remove(files.get_file_from_path("leaderboard/tables.md"))  # in place of it:
  records = ROOT / "docs/leaderboard/records"
  suites = [Suite.read(FOLDER / f"{name}.yaml") for name in SUITES]
  tracks = [
    each for suite in suites for each in boards(suite, of_folder(records / suite.name, suite))
  ]
  made = leaderboard.page(tracks, back="index.html")
  files.append(File.generated(config, "leaderboard/leaderboard.html", content=made))
  files.append(File.generated(config, "assets/tables.js", content=sorting()))
  package = importlib.util.find_spec("ziamath")
  font = Path(package.submodule_search_locations[0], FONT)
  files.append(File.generated(config, f"assets/{FONT}", abs_src_path=str(font)))
  return files


def on_page_markdown(markdown: str, page: Page, **kwargs: object) -> str:
  """Return a page whose prompts of Python are marked as such, so that they are not copied.

  Pages that need the width have no navigation beside them.
  """
  if page.file.src_uri in WIDE:
    page.meta["hide"] = ["navigation"]
  if page.file.src_uri == "leaderboard/README.md":
    markdown = markdown.replace("](tables.md)", "](leaderboard.html)")
  if page.file.src_uri == "benchmarks/README.md":
    markdown = re.sub(r"\]\((\S+)/\w+\.csv\)", lambda to: f"](#{place(to[1])})", markdown)
    markdown += "\n## All tables\n\n" + "\n\n".join(measured())
  if page.file.src_uri == "findings/claims.md":
    markdown += f"\n\n{claims()}\n"
  return re.sub(r"(?m)^```python\n(?=>>>)", "```pycon\n", markdown)


def place(folder: str) -> str:
  """Return the place of a folder's tables on the page of benchmarks."""
  return f"of-{folder.replace('/', '-')}"


def measured() -> Iterator[str]:
  """Yield the tables of each folder of benchmarks, closed until a reader opens them."""
  for file in sorted(BENCHMARKS.rglob("*.csv")):
    if file.name not in DRAWN:
      continue
    name = file.parent.relative_to(BENCHMARKS).as_posix()
    about = file.with_name("about.json")
    said = json.loads(about.read_text("utf-8")) if about.exists() else {"command": "", "about": []}
    parts = [f"```\n{said['command']}\n```"] if said["command"] else []
    parts += [line + "  " for line in said["about"]]
    for each in DRAWN[file.name](file):
      parts.append(f"**{each.title}**\n\n{each.format('pipe')}")
    inside = "\n\n".join(parts)
    anchor = f'<span id="{place(name)}"></span>'
    yield f'<details markdown="1"><summary>{name}</summary>{anchor}\n\n{inside}\n\n</details>'


def claims() -> str:
  """Return the table of all claims, which a script beside it sorts and searches."""
  heads = ("claim", "page", "verdict", "effect", "margin", "how sure")
  lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
  with (ROOT / "docs/findings/claims.csv").open(encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
      claim = f"{row['claim']} ({row['source']})" if row["source"] else row["claim"]
      link = f"[{row['page'].replace('_', ' ')}]({row['page']}/README.md)"
      cells = [escaped(claim), link, *(escaped(row[head]) for head in heads[2:])]
      lines.append(f"| {' | '.join(cells)} |")
  table = "\n".join(lines)
  script = '<script src="../assets/tables.js"></script>'
  return f'<div class="searched" markdown="1">\n\n{table}\n\n</div>\n\n{script}'


def sorting() -> str:
  """Return the script of tables, which are sorted as those of a report."""
  script = Path(report.__file__).with_name("page.js").read_text("utf-8")
  return re.search(r"(?ms)^function sortable.*?^}$", script)[0] + SEARCH


def as_it_stands(file: Path) -> Iterator[tables.Table]:
  """Yield the table of a file whose cells need no form."""
  with file.open(encoding="utf-8", newline="") as lines:
    heads, *cells = csv.reader(lines)
  yield tables.Table(file.stem, heads, cells)


DRAWN = {  # files of benchmarks, by name, and what makes tables of them
  "benchmark.csv": lambda file: tables.tables(rows.read(file)),
  "check.csv": lambda file: [proof.table(rows.read(file))],
  "commands.csv": as_it_stands,
  "large.csv": as_it_stands,
}


def on_page_context(context: dict, page: Page, config: MkDocsConfig, **kwargs: object) -> dict:
  """Have the words of the theme, and what the page says of itself, in the page's language."""
  config.theme["language"] = "zh" if page.file.src_uri.startswith("zh/") else "en"
  return context


def on_page_content(content: str, page: Page, **kwargs: object) -> str:
  """Return a page whose formulas are MathML, with a menu of its headings for narrow screens."""
  content = FORMULA.sub(typeset, content)
  headings = [link for top in page.toc for link in top.children]
  if len(headings) <= FEW:
    return content
  name = "本页内容" if page.file.src_uri.startswith("zh/") else "On this page"
  menu = f"<summary>{name}</summary>{listed(headings)}"
  menu = f'<details class="jump" data-search-exclude>{menu}</details>'
  return re.sub("</h1>", lambda end: end[0] + menu, content, count=1)


def listed(headings: list[AnchorLink]) -> str:
  """Return links to headings, those of a section below it."""
  items = (
    f'<li><a href="{each.url}">{each.title}</a>{listed(each.children)}</li>' for each in headings
  )
  return f"<ul>{''.join(items)}</ul>" if headings else ""


def typeset(formula: re.Match[str]) -> str:
  """Return a formula in MathML, in its line or, where it stood between $$, in one of its own."""
  _, bracket, tex = formula.groups()
  made = convert(html.unescape(tex).strip(), display="block" if bracket == "[" else "inline")
  for sign, better in SIGNS.items():
    made = re.sub(sign, better, made)
  return f'<div class="formula">{made}</div>' if bracket == "[" else made


def options() -> str:
  """Return the page of all options."""
  parts = [BEGIN, "## A run", *table(ROOT / "configs/train.yaml")]
  for folder, title in GROUPS.items():
    parts.append(f"## {title}")
    for file in sorted(ROOT.glob(f"configs/{folder}/*.yaml")):
      rows = [] if folder == "experiment" else [*table(file)]
      about = " ".join(re.findall(r"^# (?!@)(.*)", file.read_text("utf-8"), re.MULTILINE))
      option = "hydra/launcher" if "/" in folder else folder
      head = f"### `{option}={file.stem}` {{ #{folder.replace('/', '-')}-{file.stem} }}"
      inside = "\n\n".join([head, "</summary>", escaped(about), *rows])
      parts.append(f'<details markdown="1"><summary markdown="block">\n\n{inside}\n\n</details>')
  return "\n\n".join(parts) + "\n"


def table(file: Path) -> Iterator[str]:
  """Yield a table of a file's options, if it has any, and say which file has the others."""
  rows = ["| option | default | what it sets |", "|---|---|---|"]
  for path, line in paths(file.read_text("utf-8")):
    found = LINE.match(line)
    if path.startswith(("defaults", "hydra")) or not (found["value"].strip() or found["comment"]):
      continue
    default = f"`{value}`" if (value := found["value"].strip()) else ""
    rows.append(f"| `{path}` | {default} | {escaped(found['comment'] or '')} |")
  bases = re.search(r"^defaults: \[(\w+), _self_\]", file.read_text("utf-8"), re.MULTILINE)
  if bases:
    group = file.parent.name
    yield f"As [`{bases[1]}`](#{group}-{bases[1]}), but for" if rows[2:] else f"As `{bases[1]}`."
  if rows[2:]:
    yield "\n".join(rows)


def escaped(text: str) -> str:
  """Return a text whose signs are not those of Markdown."""
  return re.sub(r"([|*_<$\[\]])", r"\\\1", text)


class Built(HTMLParser):
  """The targets of a page's links, what it loads, and the places within it that links can name."""

  def __init__(self, file: Path):
    super().__init__()
    self.links: set[str] = set()
    self.loaded: set[str] = set()
    self.places: set[str] = {""}
    self.feed(file.read_text("utf-8"))

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    found = {name: value or "" for name, value in attrs}
    self.places |= {found[name] for name in ("id", "name") if name in found}
    target = found.get("href") or found.get("src")
    if target and not (tag == "link" and found.get("rel") in ("canonical", "prev", "next")):
      (self.links if tag == "a" else self.loaded).add(target)


def broken(site: Path) -> Iterator[str]:
  """Yield the links of a site that lead to no file or place in it, and what is loaded from afar."""
  pages = {file.resolve(): Built(file) for file in site.rglob("*.html")}
  for file, page in pages.items():
    if file.name == "404.html":  # which a server shows, with addresses that begin at its root
      continue
    for target in sorted(page.links | page.loaded):
      address, place = urldefrag(target)
      if (scheme := urlsplit(target).scheme) or target.startswith("//"):
        if target in page.loaded and scheme != "data":
          yield f"{file}: {target} is loaded from a network"
        continue
      to = (file.parent / unquote(address)).resolve() if address else file
      if not to.is_file():
        yield f"{file}: {target} leads to no file"
      elif to in pages and unquote(place) not in pages[to].places | {"__toc", "__search"}:
        yield f"{file}: {target} names no place there"
  for file in site.rglob("*.css"):
    for target in re.findall(r"url\([\"']?(https?:[^)]*)", file.read_text("utf-8")):
      yield f"{file}: {target} is loaded from a network"


if __name__ == "__main__":
  sys.exit("\n".join(broken(Path(sys.argv[1]))) or None)
