"""x-transformers beside posexp: another process, which works when it is asked to."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarking.cases import SEARCHES, Case
from benchmarking.programs import Ready
from benchmarking.timing import Spent
from posexp.errors import UserError

NAME = "x-transformers"
# Its ways: whether it is compiled, and whether its attention is torch's fused one.
WAYS = {
  f"{NAME} eager": (False, False),
  f"{NAME} eager fused": (False, True),
  f"{NAME} compiled": (True, False),
  f"{NAME} compiled fused": (True, True),
}
WORKS = ("forward", "step", *SEARCHES)
SCRIPT = Path(__file__).with_name("x_transformers_peer.py")


class Peer:
  """A process of a Python that has torch and x_transformers.

  Raises:
    UserError: there is no such Python, or it has not got them.
  """

  def __init__(self, python: str | None, threads: int, device: str):
    found = shutil.which(python or sys.executable)
    if found is None:
      raise UserError(f"--peer-python {python}: there is no such program")
    if python is None and not all(map(importlib.util.find_spec, ("torch", "x_transformers"))):
      raise UserError(
        "--peers needs PyTorch and x-transformers: name a Python that has them with --peer-python, "
        "or install posexp[peers]"
      )
    # A session of its own, so that Ctrl-C ends the rounds and not the peer in the middle of one;
    # isolated, or the modules beside the script would be found in the place of others.
    self._process = subprocess.Popen(
      [found, "-I", str(SCRIPT), str(threads), device],
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
    raise UserError(f"{NAME} has ended: {said[-1] if said else 'it said nothing'}")

  def prepare(self, group: list[Case]) -> dict[Case, Ready]:
    """The cases of a group that it can do, in all its ways, each run once."""
    found: dict[Case, Ready] = {}
    for case in {each.name: each for each in reversed(group)}.values():
      if case.name not in self.encodings or case.work not in WORKS:
        continue
      for way, (compiled, fused) in WAYS.items():
        if (compiled and case.work in SEARCHES) or (fused and not self.encodings[case.name]):
          continue
        theirs = dataclasses.replace(case, way=way, options="")
        answer = self._ask(do="make", case=request(theirs))
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
        raise UserError(f"{NAME}: {answer['refused']}")
      return Spent(answer["wall"], answer["cpu"])

    return timed

  def forget(self) -> None:
    """Frees what was prepared."""
    self._ask(do="forget")

  def close(self) -> None:
    """Ends the process."""
    self._process.terminate()
    self._process.wait()


def request(case: Case) -> dict:
  """What the peer has to know of a case."""
  size = case.size
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
    "beam": case.beam,
    "compile": WAYS[case.way][0],
    "fused": WAYS[case.way][1],
  }
