"""Models in PyTorch beside posexp's: another process, which works when it is asked to."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarking.cases import SEARCHES, Case
from benchmarking.programs import Ready
from benchmarking.timing import Spent
from posexp.errors import UserError


class Way(NamedTuple):
  """How a peer works."""

  compiled: bool = False
  fused: bool = False  # attention, by torch's own
  sorted: bool = False  # by length, where texts are lines

  def __str__(self):
    words = ("compiled" if self.compiled else "eager", "fused" * self.fused, "sorted" * self.sorted)
    return " ".join(filter(None, words))

  def suits(self, case: Case) -> bool:
    """Return whether the case can be worked in this way: where shapes change it is eager."""
    changing = case.work in SEARCHES or bool(case.lines)
    return not (self.compiled and changing) and (bool(case.lines) or not self.sorted)


class Library(NamedTuple):
  """Other people's models."""

  name: str
  script: str  # which its process runs
  modules: tuple[str, ...]  # that the process's Python must have
  ways: tuple[Way, ...]
  works: tuple[str, ...]  # passes

  @property
  def path(self) -> Path:
    """Its script."""
    return Path(__file__).with_name(self.script)

  def has(self, case: Case) -> bool:
    """Return whether its script can do the work."""
    return not case.size.memory and case.work in self.works


X_TRANSFORMERS = Library(
  "x-transformers",
  "x_transformers_peer.py",
  ("torch", "x_transformers"),
  tuple(itertools.starmap(Way, itertools.product((False, True), repeat=3))),
  ("forward", "step", *SEARCHES),
)


class Peer:
  """A process of a Python that has torch and what else a library needs.

  Raises:
    UserError: there is no such Python, or it has not got them.
  """

  def __init__(
    self, library: Library, python: str | None, threads: int, device: str, *arguments: str
  ):
    self.library = library
    found = shutil.which(python or sys.executable)
    if found is None:
      raise UserError(f"--peer-python {python}: there is no such program")
    if python is None and not all(map(importlib.util.find_spec, library.modules)):
      raise UserError(
        f"{library.name} needs {' and '.join(library.modules)}: name a Python that has them with "
        "--peer-python, or install posexp[peers]"
      )
    # A session of its own, so that Ctrl-C ends the rounds and not the peer in the middle of one;
    # isolated, or the modules beside the script would be found in the place of others.
    self._process = subprocess.Popen(
      [found, "-I", str(library.path), str(threads), device, *arguments],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    try:
      answer = self._ask(do="about")
    except UserError as error:
      raise UserError(f"--peer-python {found}: {error}") from error
    self.about = answer["about"]
    self.encodings: dict[str, bool] = answer["encodings"]  # and which it has with fused attention

  def _ask(self, **request) -> dict:
    try:
      self._process.stdin.write(json.dumps(request) + "\n")
      self._process.stdin.flush()
    except BrokenPipeError:
      pass
    if line := self._process.stdout.readline():
      return json.loads(line)
    said = self._process.stderr.read().strip().splitlines()
    raise UserError(f"{self.library.name} has ended: {said[-1] if said else 'it said nothing'}")

  def prepare(self, group: list[Case]) -> dict[Case, Ready]:
    """Return the cases of a group that it can do, in all its ways, each run once."""
    found: dict[Case, Ready] = {}
    for case in {each.name: each for each in reversed(group)}.values():
      if case.name not in self.encodings or not self.library.has(case):
        continue
      for way in self.library.ways:
        if not way.suits(case) or (way.fused and not self.encodings[case.name]):
          continue
        theirs = dataclasses.replace(case, way=f"{self.library.name} {way}", options="")
        answer = self._ask(do="make", case=request(theirs, way))
        if "refused" in answer:
          print(f"  {theirs.label}: not measured: {answer['refused']}", flush=True)
          continue
        seconds = answer["compile_s"]
        print(f"  {theirs.label}: {seconds:.1f} s to the end of the first call", flush=True)
        found[theirs] = Ready(self._timed(answer.pop("work")), answer)
    return found

  def _timed(self, work: int) -> Callable[[int], Spent]:
    def timed(calls: int) -> Spent:
      answer = self._ask(do="time", work=work, calls=calls)
      if "refused" in answer:
        raise UserError(f"{self.library.name}: {answer['refused']}")
      return Spent(answer["wall"], answer["cpu"])

    return timed

  def forget(self) -> None:
    """Free what was prepared."""
    self._ask(do="forget")

  def close(self) -> None:
    """End the process."""
    self._process.terminate()
    self._process.wait()


def request(case: Case, way: Way) -> dict:
  """Return what the peer has to know of a case."""
  size = case.size
  lines = sorted(case.lines) if way.sorted else list(case.lines)
  return {
    "pass": case.work,
    "model": case.model,
    "encoding": case.name,
    "d_model": size.d_model,
    "heads": size.num_heads,
    "layers": size.num_layers,
    "d_ff": size.d_ff,
    "dropout": size.dropout,
    "dtype": size.dtype,
    "vocabulary": case.vocabulary,
    "length": case.length,
    "batch": case.batch,
    "lines": [lines[i : i + case.batch] for i in range(0, len(lines), case.batch)],
    "beam": case.beam,
    "memory": size.memory,
    "compile": way.compiled,
    "fused": way.fused,
  }
