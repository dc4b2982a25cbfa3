"""Run the commands of the tour, check what its pages print, and draw its figures.

A page shows a command and what it prints, `...` standing for lines that are left out:

    ```console
    $ python -m posexp.inspect encoding=rpr rpr.k=2 text='the dog chased Wang Wei'
    ...
    row of rpr's tables, query by key
    ...
    ```

Blocks of Python are those of doctest. All of a page's blocks run in one folder, and its figures
come from there, by the same paths. Blocks behind `<!-- slow -->` train models.

With `--notebook FILE`, nothing is run: the chapters become a notebook of Jupyter, which runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

FOLDER = Path(__file__).parents[1] / "docs/tour"
CHAPTERS = sorted(FOLDER.glob("[0-9]*.md"))
BLOCK = re.compile(r"(?ms)^(<!-- slow -->\n\n)?```(console|python)\n(.*?)^```$")
FIGURE = re.compile(r"!\[[^]]*\]\((figures/[^)]+)\)")
LINK = re.compile(r"\[([^]]*)\]\((?!https?:)[^)]+\)")  # to other pages, which a notebook has not


INSTALL = """import os, sys

try:
  import posexp
except ImportError:
  %pip install posexp

# So that `!python` is the Python of this notebook.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])"""


class Block(NamedTuple):
  """A command, or lines of Python, and what they print."""

  source: str
  output: str
  slow: bool


def blocks(text: str) -> Iterator[Block]:
  """Yield the commands and the examples of Python on a page, each with its output."""
  for slow, kind, body in BLOCK.findall(text):
    if kind == "python":
      for example in doctest.DocTestParser().get_examples(body):
        yield Block(example.source, example.want, bool(slow))
    else:
      for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Block(command, output, bool(slow))


def run(block: Block, names: dict[str, object]) -> str:
  """Return what a command, or a line of Python with these names, prints."""
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    if block.source.startswith("python -m "):
      _, _, module, *argv = shlex.split(block.source, comments=True)
      with mock.patch("sys.argv", [module, *argv]):
        importlib.import_module(module).main()
    else:
      exec(compile(block.source, "tour", "single"), names)  # the pages are our own
  return out.getvalue()


def wrong(page: Path, slow: bool, keep: Path | None = None) -> Iterator[str]:
  """Run a page in an empty folder, and yield what it prints otherwise.

  The page's figures go to `keep`.
  """
  text, back = page.read_text("utf-8"), Path.cwd()
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    try:
      names: dict[str, object] = {}
      for block in blocks(text):
        if block.slow and not slow:
          continue
        found = run(block, names)
        if not doctest.OutputChecker().check_output(block.output, found, doctest.ELLIPSIS):
          yield f"{page.name}: {block.source}\nprints\n{found}\nand not\n{block.output}"
    finally:
      os.chdir(back)
    for name in FIGURE.findall(text):
      if (drawn := Path(folder, name)).exists() and keep:
        (keep / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(drawn, keep / name)


def cells(text: str) -> Iterator[tuple[str, str]]:
  """Yield the cells of a page for a notebook, "markdown" or "code" with the source of each."""
  end = 0
  for block in [*BLOCK.finditer(text), None]:
    for place, part in enumerate(FIGURE.split(text[end : block and block.start()])):
      if place % 2:
        yield "code", f"from IPython.display import SVG\nSVG(filename={part!r})"
      elif part.strip():
        yield "markdown", LINK.sub(r"\1", part.strip())
    if block:
      lines = [each.source for each in blocks(block[0])]
      yield "code", "".join(f"!{line}\n" if block[2] == "console" else line for line in lines)
      end = block.end()


def notebook(pages: Sequence[Path]) -> str:
  """Return the chapters as a notebook, in format 4.5 of Jupyter."""
  texts = (page.read_text("utf-8") for page in pages)
  parts = [("code", INSTALL), *itertools.chain.from_iterable(map(cells, texts))]
  rest = {"metadata": {}, "outputs": [], "execution_count": None}
  made = [
    {"cell_type": kind, "id": f"cell-{number}", "source": source.rstrip("\n")}
    | (rest if kind == "code" else {"metadata": {}})
    for number, (kind, source) in enumerate(parts)
  ]
  kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
  found = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}
  return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
  """Check all pages, and draw their figures; or make the notebook."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
  parser.add_argument("--slow", action="store_true", help="train models as well")
  parser.add_argument("pages", nargs="*", type=Path, default=sorted(FOLDER.glob("*.md")))
  parser.add_argument("--notebook", type=Path, metavar="FILE", help="write the pages as a notebook")
  arguments = parser.parse_args()
  if arguments.notebook:
    arguments.notebook.write_text(notebook(CHAPTERS), encoding="utf-8")
    return
  found = [
    each for page in arguments.pages for each in wrong(page.resolve(), arguments.slow, FOLDER)
  ]
  if found:
    raise SystemExit("\n\n".join(found))


if __name__ == "__main__":
  main()
