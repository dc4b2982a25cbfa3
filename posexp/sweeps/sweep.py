"""A sweep: what became of each of its runs, and how that is said."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp.config import encodings_node
from posexp.errors import UserError, counted, near

log = logging.getLogger("posexp")

DONE, RUNNING, FAILED, WAITING = STATES = ("done", "running", "failed", "waiting")


@dataclasses.dataclass(eq=False)
class Member:
  """A run of a sweep."""

  number: int  # from 1
  options: Sequence[str]  # those in which the runs of the sweep differ
  name: str  # the same without what its encoding does not read
  group: str  # the same without the seed
  config: dict[str, Any]
  path: Path  # the folder of the run
  duplicate_of: Member | None = None  # the first member that is the same run
  state: str = WAITING
  reason: str = ""  # of a failure

  @property
  def finished(self) -> bool:
    """Whether there is a summary."""
    return (self.path / "summary.json").exists()

  @property
  def progress(self) -> str:
    """Where its training is, as in 217/1302; "" before the first row of its metrics."""
    try:
      rows = (self.path / "metrics.jsonl").read_bytes().splitlines()
      steps = re.findall(r" training +([\d,]+) steps", (self.path / "train.log").read_text("utf-8"))
      return f"{json.loads(rows[-1])['step']}/{steps[-1].replace(',', '')}"
    except (IndexError, KeyError, OSError, ValueError):
      return ""


class Sweep:
  """The runs of a sweep, and what is said of them while they are trained."""

  def __init__(self, members: Sequence[Member]):
    self.members = members

  @property
  def runs(self) -> list[Member]:
    """The members that are no duplicates of others."""
    return [member for member in self.members if member.duplicate_of is None]

  @property
  def failed(self) -> list[Member]:
    return [member for member in self.runs if member.state == FAILED]

  def to_train(self, member: Member) -> bool:
    """Whether a run is to be trained; says why, if not."""
    typed, first = shown(member.options), member.duplicate_of
    if first is not None:
      self._say(member, f"{typed}: the same run as job {first.number}{_why(member)}")
    elif member.finished and not member.config["rerun"]:
      member.state = DONE
      self._say(member, f"{typed}: finished already, in {near(member.path)}")
    else:
      return True
    return False

  def turn(self, member: Member, state: str, reason: str = "", file: str | Path = "") -> None:
    """Notes and says that a run is in another state; `file` holds the traceback of a failure."""
    member.state, member.reason = state, reason
    where = f"; its traceback is in {near(Path(file))}" if file else ""
    said = {
      RUNNING: shown(member.options),
      DONE: "done",
      WAITING: reason,
      FAILED: f"failed: {reason}{where}",
    }
    self._say(member, said[state], logging.ERROR if state == FAILED else logging.INFO)

  def _say(self, member: Member, text: str, level: int = logging.INFO) -> None:
    log.log(level, "job %d/%d: %s", member.number, len(self.members), text)

  def heading(self) -> str:
    """How many runs there are in each state."""
    counts = Counter(member.state for member in self.runs)
    again = len(self.members) - len(self.runs)
    return (
      f"{'sweep':<10}{counted(len(self.runs), 'run')}: "
      + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
      + (f"; {counted(again, 'duplicate')}" if again else "")
    )

  def states(self) -> Iterator[str]:
    """The table of states: a line for each group of seeds, and one for each failure."""
    groups = grouped(self.runs)
    width = max(len(group[0].group) for group in groups)
    for group in groups:
      parts = []
      for state in STATES:
        if seeds := ", ".join(_seed(member) for member in group if member.state == state):
          parts.append(f"{state} (seed {seeds})")
      yield f"  {group[0].group:<{width}}  {', '.join(parts)}"
    for member in self.failed:
      yield f"  failed: {member.name}: {member.reason}"


def grouped(members: Sequence[Member]) -> list[list[Member]]:
  """Members that are the same but for their seeds, together."""
  groups: dict[Path, list[Member]] = {}
  for member in members:
    groups.setdefault(member.path.parent, []).append(member)
  return list(groups.values())


def failure(error: Exception, path: Path) -> tuple[str, str]:
  """Why a run failed, and the log in its folder, if that ends in this very error's traceback."""
  first = (str(error).splitlines() or [""])[0]
  if isinstance(error, UserError):
    return first, ""
  file = path / "train.log"
  last = traceback.format_exception_only(error)[-1].strip()
  there = file.exists() and file.read_text("utf-8", errors="replace").strip().endswith(last)
  return f"{type(error).__name__}: {first}".rstrip(": "), str(file) if there else ""


def key_of(option: str) -> str:
  """The key of an override: `rpr.k` of `+rpr.k=4`."""
  return option.partition("=")[0].lstrip("+~")


def shown(options: Sequence[str]) -> str:
  """Options as one reads them: `complex={order:False}` as complex.order=false, and {} as none."""
  parts = []
  for option in options:
    key, _, value = option.partition("=")
    if value.startswith("{") and value.endswith("}"):
      inner = [part.partition(":") for part in value[1:-1].split(",") if part]
      parts += [(f"{key}.{name}", each) for name, _, each in inner]
    else:
      parts.append((key, value))
  return " ".join(f"{k}={v.lower() if v in ('True', 'False') else v}" for k, v in parts)


def _why(member: Member) -> str:
  """What explains a duplicate, if it is an option that the encoding does not read."""
  both = zip(member.options, member.duplicate_of.options, strict=False)
  keys = [key_of(mine) for mine, other in both if mine != other]
  unread = encodings_node().keys() - {member.config["encoding"]}
  if not keys or any(key.partition(".")[0] not in unread for key in keys):
    return ""
  return f" ({member.config['encoding']} does not read {' and '.join(keys)})"


def _seed(member: Member) -> str:
  progress = member.progress if member.state == RUNNING else ""
  return f"{member.config['seed']}{f' at {progress}' if progress else ''}"
