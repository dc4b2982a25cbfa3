"""The guide to released models works as it is written."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from posexp import inspect

GUIDE = (Path(__file__).parents[2] / "docs/released.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_guide_does_and_prints_what_it_says(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  done = []
  for kind, block in BLOCKS:
    done.append(kind)
    if kind == "python":
      exec(compile(block, "released.md", "exec"), {})
      continue
    typed, _, printed = block.partition("\n")
    python, flag, module, *argv = shlex.split(typed.removeprefix("$ "))
    assert (python, flag, module) == ("python", "-m", "posexp.inspect")
    with contextlib.redirect_stdout(io.StringIO()) as out:
      inspect.inspect(argv)
    assert out.getvalue().startswith(printed)
  assert done == ["python", "console", "python"]
