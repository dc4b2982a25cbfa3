"""Say what runs hold on disk, and remove checkpoints that nothing needs.

examples:
  python -m posexp.clean                        what runs/ holds; nothing is removed
  python -m posexp.clean runs/mr --keep best    removes what only training would go on from
  python -m posexp.clean runs/mr --keep none    removes all checkpoints of finished runs

Only checkpoints of finished runs are removed. posexp.report, posexp.compare and posexp.sync never
need them. The best one, or those that train.average has averaged, is what posexp.evaluate,
posexp.inspect, posexp.translate, posexp.generate and posexp.parse open. An unfinished run goes on
from its checkpoints and keeps all of them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from posexp import storage
from posexp.config.arguments import Parser, command
from posexp.reporting.text import tabulated
from posexp.runs import Run, lock, read_runs

KEPT = ("best", "none")  # the choices of --keep


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("clean", __doc__)
  option = parser.add_argument
  option("runs", nargs="*", type=Path, default=[Path("runs")], help="folders; default: runs")
  keep = "which checkpoint of each finished run stays; without it nothing is removed"
  option("--keep", choices=KEPT, help=keep)
  return parser.parse_args(argv)


def clean(args: argparse.Namespace) -> int:
  """Print the disk space of runs by task, and remove checkpoints if asked to.

  Returns:
    The bytes that were freed.

  Raises:
    UserError: there are no runs, or another process has one of them.
    OSError: a checkpoint cannot be removed.
  """
  runs, notes = read_runs(args.runs, trials=True)
  linked = [f"{run.path}/checkpoints is a link: it stays" for run in runs if not _own(run)]
  print("\n".join([_table(runs), *notes, *linked]))
  if args.keep is None:
    for keep in KEPT:
      size = _size(path for each in runs for path in spare(each, keep))
      typed = shlex.join(map(str, args.runs))
      print(f"python -m posexp.clean {typed} --keep {keep}   # frees {_megabytes(size)}")
    return 0
  freed = 0
  for run in runs:
    if paths := spare(run, args.keep):
      freed += _size(paths)
      with lock(run.path):  # no other process may have its folder
        storage.unlinked(run.path / "checkpoints")
        for path in paths:
          storage.discard(path)
  print(f"freed {_megabytes(freed)}")
  return freed


def spare(run: Run, keep: str) -> list[Path]:
  """Return the checkpoints of a finished run that only further training would need.

  With `keep` "none" these are all of its checkpoints. A run that has not finished keeps all, and so
  does one whose checkpoints are elsewhere, behind a link.
  """
  if run.summary is None or not _own(run):
    return []
  best = {*run.summary.get("averaged", ()), run.summary.get("step")} if keep == "best" else set()
  checkpoints = run.path.glob("checkpoints/*")
  return [path for path in checkpoints if path.name.isdigit() and int(path.name) not in best]


def _own(run: Run) -> bool:
  """Return whether the checkpoints of a run are in its own folder."""
  return not (run.path / "checkpoints").is_symlink()


def _table(runs: Sequence[Run]) -> str:
  rows = []
  for task in sorted({run.task for run in runs}):
    own = [run for run in runs if run.task == task]
    unfinished = sum(run.summary is None for run in own)
    held = _size(run.path / "checkpoints" for run in own if _own(run))
    other = _size(run.path for run in own) - held
    counts = str(len(own)), str(unfinished)
    rows.append([task, *counts, _megabytes(held), _megabytes(other)])
  return tabulated((["task", "runs", "unfinished", "checkpoints", "all else"], rows), "plain")


def _size(folders: Iterable[Path]) -> int:
  """Return the bytes of the files in folders, at any depth."""
  files = (file for folder in folders for file in folder.rglob("*") if not file.is_dir())
  return sum(file.lstat().st_size for file in files)


def _megabytes(size: int) -> str:
  return f"{size / 1e6:,.1f} MB"


main = command("", clean, arguments)


if __name__ == "__main__":
  main()
