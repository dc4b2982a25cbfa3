"""A sweep: which runs it is made of, what became of each, and what they say together."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import statistics
import sys
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from posexp.config import encodings_node, resolve
from posexp.config.command_line import compose
from posexp.errors import UserError, counted, near
from posexp.runs import folder

log = logging.getLogger("posexp")

DONE, RUNNING, FAILED, WAITING = STATES = ("done", "running", "failed", "waiting")
MAIN = {  # metrics of the last table, by task.kind; other kinds have that which chooses checkpoints
  "text_classification": ("test/accuracy", "test/macro_f1"),
  "translation": ("test/bleu", "test/chrf"),
  "numbers": ("test/exact_match", "beyond/exact_match"),
}


@dataclasses.dataclass
class Member:
  """A job of a sweep."""

  number: int  # from 1
  options: Sequence[str]  # those in which jobs differ
  name: str  # the same without what its encoding does not read
  group: str  # the same without the seed
  config: dict[str, Any] | None = None
  wrong: UserError | None = None  # why there is no config
  path: Path | None = None
  twin: Member | None = None  # the job before it that is the same run
  state: str = WAITING
  reason: str = ""

  @property
  def finished(self) -> bool:
    """Whether there is a summary."""
    return self.path is not None and (self.path / "summary.json").exists()

  @property
  def progress(self) -> str:
    """Where its training is, as in 217/1302; "" before the first row of its metrics."""
    try:
      rows = (self.path / "metrics.jsonl").read_bytes().splitlines()
      told = re.findall(r" training +([\d,]+) steps", (self.path / "train.log").read_text("utf-8"))
      return f"{json.loads(rows[-1])['step']}/{told[-1].replace(',', '')}"
    except (AttributeError, IndexError, OSError, TypeError, ValueError):
      return ""

  @property
  def key(self) -> Any:
    """What members of a group have in common."""
    return self.path.parent if self.path else self.group


class Sweep:
  """The jobs of a sweep, and what is said of them while they run.

  `jobs` are the overrides of each, as `command_line.check` gives them; None where they show one
  by one. In a terminal the table of states is shown at the start and whenever it changes, and
  elsewhere one line for each change.
  """

  def __init__(self, jobs: Sequence[Sequence[str]] | None, args: Namespace):
    self.members: list[Member] = []
    self.total = len(jobs) if jobs is not None else None
    self._digests: dict[str, str | None] = {}
    for typed, seen, config in _configs(jobs or [], args):
      self._add(typed, seen, config)

  def _add(self, typed: Sequence[str], seen: Sequence[str], cfg: DictConfig) -> None:
    config = wrong = None
    try:
      config = resolve(cfg)
    except UserError as error:
      wrong = error
    encoding = config["encoding"] if config else None
    unread = encodings_node().keys() - {encoding} if config else set()
    read = [option for option in seen if _key(option).partition(".")[0] not in unread]
    varied = [option for option in read if _key(option) != "seed"]
    member = Member(
      number=len(self.members) + 1,
      options=seen or typed,
      name=_shown(read) or f"encoding={encoding}",
      group=_shown(varied) or f"encoding={encoding}",
      config=config,
      wrong=wrong,
      path=self._path(config) if config else None,
    )
    same = (m for m in self.members if member.path and m.path == member.path and m.twin is None)
    member.twin = next(same, None)
    if member.finished and not config["rerun"]:
      member.state = DONE
    self.members.append(member)

  def _path(self, config: dict[str, Any]) -> Path | None:
    from posexp.tasks import make_task

    asked = json.dumps(config["task"], sort_keys=True, default=str)
    try:
      if asked not in self._digests:
        self._digests[asked] = make_task(config).data_digest()
      return folder(config, self._digests[asked])
    except UserError:
      return None  # which the job will say

  @property
  def runs(self) -> list[Member]:
    """The jobs that are no duplicates of others."""
    return [member for member in self.members if member.twin is None]

  @property
  def failed(self) -> list[Member]:
    return [member for member in self.runs if member.state == FAILED]

  def begin(self, index: int, typed: Sequence[str], cfg: DictConfig) -> Member | None:
    """The job with this index, which is to be run now; None if there is nothing to do for it."""
    if index == len(self.members):
      self._add(typed, typed, cfg)
    if index == 0 and self.total:
      self._show()
    member = self.members[index]
    if not self.needs(member):
      return None
    self.start(member)
    return member

  def needs(self, member: Member) -> bool:
    """Whether a job is to be run; says why, if not."""
    told = f"{self._job(member)}: {_shown(member.options)}"
    if member.twin is not None:
      log.info("%s: the same run as job %d%s", told, member.twin.number, _why(member))
    elif member.state == DONE or (member.finished and not member.config["rerun"]):
      member.state = DONE
      log.info("%s: finished already, in %s", told, near(member.path))
    else:
      return True
    return False

  def start(self, member: Member) -> None:
    """A job has begun."""
    member.state = RUNNING
    log.info("%s: %s", self._job(member), _shown(member.options))

  def wait(self, member: Member, reason: str) -> None:
    """A job that had begun has to wait again."""
    member.state = WAITING
    log.info("%s: %s", self._job(member), reason)

  def done(self, member: Member) -> None:
    """A job has come to its end."""
    member.state = DONE
    log.info("%s: done", self._job(member))

  def failed_with(self, member: Member, reason: str, file: str = "") -> None:
    """A job has failed; `file` has its traceback."""
    member.state, member.reason = FAILED, reason
    where = f"; its traceback is in {near(Path(file))}" if file else ""
    log.error("%s: failed: %s%s", self._job(member), reason, where)

  @property
  def waiting(self) -> list[Member]:
    return [member for member in self.runs if member.state == WAITING]

  def repeats(self, index: int) -> bool:
    """Whether the job with this index is a duplicate of one before it."""
    return index < len(self.members) and self.members[index].twin is not None

  def settle(self, error: Exception | None) -> None:
    """What became of jobs that were begun elsewhere, `error` being that of one of them."""
    for member in self.waiting:
      if member.finished:
        self.done(member)
      else:
        self.failed_with(member, _last_words(member.path) or account(error, None)[0])

  def fail(self, member: Member, error: Exception) -> None:
    """A job of this process has failed; called where the error is handled."""
    reason, file = account(error, member.path)
    if not (file or isinstance(error, UserError)):
      log.exception("%s", self._job(member))
    self.failed_with(member, reason, file)

  def _job(self, member: Member) -> str:
    return f"job {member.number}{f'/{self.total}' if self.total else ''}"

  def show(self) -> None:
    """The table of states, in a terminal."""
    if terminal() and self.total:
      self._show()

  def _show(self) -> None:
    log.info("%s", self.heading())
    if terminal():
      for line in self.states():
        log.info("%s", line)

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
    """The table of states: a line for each group, and one for each failure."""
    groups = self._groups(self.runs)
    width = max(len(members[0].group) for members in groups)
    for members in groups:
      parts = []
      for state in STATES:
        found = [m for m in members if m.state == state]
        seeds = ", ".join(_seed(m) for m in found if m.config)
        parts += [f"{state} {f'(seed {seeds})' if seeds else ''}".strip()] * bool(found)
      yield f"  {members[0].group:<{width}}  {', '.join(parts)}"
    for member in self.failed:
      yield f"  failed: {member.name}: {member.reason}"

  @staticmethod
  def _groups(members: Sequence[Member]) -> list[list[Member]]:
    groups: dict[Any, list[Member]] = {}
    for member in members:
      groups.setdefault(member.key, []).append(member)
    return list(groups.values())

  def results(self) -> Iterator[str]:
    """The last table: the means of each group over its seeds, ± the standard deviation.

    Tasks that are measured in other ways have tables of their own.
    """
    tables: dict[tuple[str, ...], list[list[Member]]] = {}
    for members in self._groups([member for member in self.runs if member.config]):
      if any(member.state == DONE and member.finished for member in members):
        tables.setdefault(_metrics(members[0].config), []).append(members)
    for metrics, groups in tables.items():
      yield ""
      yield from _table(metrics, groups)
    folders = dict.fromkeys(
      near(members[0].path.parents[2]) for groups in tables.values() for members in groups
    )
    if folders:
      yield f"intervals and tests: python -m posexp.report {' '.join(folders)}"


def _configs(
  jobs: Sequence[Sequence[str]], args: Namespace
) -> Iterator[tuple[Sequence[str], list[str], DictConfig]]:
  """The overrides of each job, those in which jobs differ, and its config, to be read at once."""
  differs = [len(set(column)) > 1 for column in zip(*jobs, strict=True)]
  composed: dict[tuple[str, ...], Any] = {}
  for job in jobs:
    seen = [option for option, shown in zip(job, differs, strict=True) if shown]
    # Composing takes longer than all else here, and seeds need not be composed.
    seeds = [option for option in job if _key(option) == "seed"]
    rest = tuple(option for option in job if option not in seeds)
    if rest not in composed:
      composed[rest] = compose(args, rest)
    cfg = composed[rest]
    if seeds:
      cfg.seed = seeds[-1].partition("=")[2]
    yield job, seen, cfg


def _table(metrics: Sequence[str], groups: Sequence[Sequence[Member]]) -> Iterator[str]:
  from posexp.runs.metrics import score

  width = max(len(members[0].group) for members in groups)
  yield (
    f"{'':<{width}}" + "".join(f"{score(metric).title:>22}" for metric in metrics) + f"{'n':>10}"
  )
  for members in groups:
    done = [m for m in members if m.state == DONE and m.finished]
    summaries = [json.loads((m.path / "summary.json").read_text("utf-8")) for m in done]
    cells = []
    for metric in metrics:
      values = [summary[metric] for summary in summaries if metric in summary]
      cell = score(metric).number(statistics.fmean(values)) if values else "—"
      if len(values) > 1:
        cell += f" ± {score(metric).number(statistics.stdev(values))}"
      cells.append(f"{cell:>22}")
    count = f"{len(done)}" + (f" of {len(members)}" if len(done) < len(members) else "")
    yield f"{members[0].group:<{width}}{''.join(cells)}{count:>10}"


def _metrics(config: dict[str, Any]) -> tuple[str, ...]:
  kind = config["task"]["kind"]
  if kind in MAIN:
    return MAIN[kind]
  from posexp.tasks import make_task

  return (f"test/{make_task(config).score.partition('/')[2]}",)


def _why(member: Member) -> str:
  """What explains that a job is a duplicate, if it is what the encoding does not read."""
  both = zip(member.options, member.twin.options, strict=False)
  keys = [_key(mine) for mine, other in both if mine != other]
  encoding = member.config["encoding"]
  if not keys or any(key.partition(".")[0] in ("seed", encoding) for key in keys):
    return ""
  return f" ({encoding} does not read {' and '.join(keys)})"


def account(error: Exception | None, path: Path | None) -> tuple[str, str]:
  """Why a run failed, and the log in its folder, if that ends in this very error's traceback."""
  first = (str(error or "it has no summary").splitlines() or [""])[0]
  if error is None or isinstance(error, UserError):
    return first, ""
  file = str(path / "train.log") if _written(path, error) else ""
  return f"{type(error).__name__}: {first}".rstrip(": "), file


def _last_words(path: Path | None) -> str:
  """The last line of a run's log."""
  file = path and path / "train.log"
  lines = file.read_text("utf-8", errors="replace").split("\n") if file and file.exists() else []
  last = next((line for line in reversed(lines) if line.strip()), "")
  return re.sub(r"""^UserError\((['"])(.*)\1\)$""", r"\2", last)


def _written(path: Path | None, error: Exception) -> bool:
  """Whether the run's own log ends in this error."""
  file = path and path / "train.log"
  if not file or not file.exists():
    return False
  last = traceback.format_exception_only(error)[-1].strip()
  return file.read_text(encoding="utf-8", errors="replace").strip().endswith(last)


def _shown(options: Sequence[str]) -> str:
  """Options as one reads them: `complex={order:False}` as complex.order=false, and {} as none."""
  shown = []
  for option in options:
    key, _, value = option.partition("=")
    if value.startswith("{") and value.endswith("}"):
      parts = [part.partition(":") for part in value[1:-1].split(",") if part]
      shown += [(f"{key}.{name}", each) for name, _, each in parts]
    else:
      shown.append((key, value))
  return " ".join(f"{k}={v.lower() if v in ('True', 'False') else v}" for k, v in shown)


def _seed(member: Member) -> str:
  progress = member.progress if member.state == RUNNING else ""
  return f"{member.config['seed']}{f' at {progress}' if progress else ''}"


def _key(option: str) -> str:
  return option.partition("=")[0].lstrip("+~")


def terminal() -> bool:
  """Whether somebody is looking on."""
  return sys.stdout.isatty()
