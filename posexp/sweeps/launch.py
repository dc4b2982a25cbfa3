"""From the command line to runs, and from what becomes of them to an exit status."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from posexp.config import command_line, options, resolve
from posexp.config.arguments import flush_output
from posexp.config.help import help_text
from posexp.errors import UserError, pasted, refused
from posexp.runs import read_runs
from posexp.sweeps import handover, slurm
from posexp.sweeps.again import again
from posexp.sweeps.jobs import members
from posexp.sweeps.supervise import supervise, trainer_for
from posexp.sweeps.sweep import DONE, ELSEWHERE, FAILED, Member, Sweep, Train
from posexp.tracking import chosen

log = logging.getLogger("posexp")
SIGINT, SIGTERM = 130, 143  # exit statuses, 128 + the signal


def launch(train: Train) -> int:
  """Run `train` on every config that the command line asks for; return the exit status.

  `train` gets the plain config of `config.resolve`. A UserError, or what the operating system
  refuses, becomes one line on stderr and status 2. In a sweep the other runs go on; a last line
  names those that failed, and the status is 1. In a single run an unexpected exception is raised:
  a bug is not a user's mistake. Where lines of the log could not be printed, on a full disk, say, a
  last line says so, and the status is 1. An interrupt (Ctrl-C, SIGTERM, SystemExit(143) from the
  job) ends everything, with status 130 or 143.
  """
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM))
  lost: set[str] = set()
  try:
    status = _launch(train, lost)
    return _flushed(lost) or status
  except BrokenPipeError:  # as in ... --help | head
    return _flushed(set()) or 1
  except (UserError, OSError) as error:
    _say(f"error: {refused(error) if isinstance(error, OSError) else error}")
    return 2
  except (KeyboardInterrupt, SystemExit) as end:
    status = SIGINT if isinstance(end, KeyboardInterrupt) else end.code
    if status not in (SIGINT, SIGTERM):
      raise
    _say("interrupted; the same command goes on from here")
    return status
  finally:
    signal.signal(signal.SIGTERM, before)


def _launch(train: Train, lost: set[str]) -> int:
  if place := os.environ.pop(slurm.JOB, ""):
    return slurm.work(train, Path(place))
  args = command_line.parse(sys.argv[1:])
  if args.again:
    args.overrides = again(args.again, args.overrides)
  if args.shell_completion:
    command_line.complete(args.shell_completion)
    return 0
  with command_line.explained(args.overrides):
    cfg = command_line.shared(args.overrides)
    if args.help:
      print(help_text(cfg, args.sections), end="")
      return 0
    sweeper = cfg.hydra.runtime.choices["hydra/sweeper"]
    searched = sweeper != "basic" and not args.cfg
    found = None if args.cfg or searched else members(args, cfg)
    if searched:
      _make_folder("hydra.sweep.dir", cfg.hydra.sweep.dir)
    elif found is None:
      command_line.check_single(args.overrides, cfg)
      config = resolve(cfg)
    else:
      _make_folder("runs", found[0].config["runs"])
      for name, tracker in chosen(found[0].config).items():
        if variable := tracker.named_by:
          raise UserError(f"{variable} names one run ({name}): unset it, or leave -m and seeds out")
      trainer = trainer_for(train, len(found), cfg, args.overrides)
      if trainer[1]:  # other processes print into files
        _make_folder("hydra.sweep.dir", cfg.hydra.sweep.dir)
    logging.raiseExceptions = False  # a line that cannot be printed or kept ends nothing
    try:
      configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
      message = "hydra.job_logging and hydra.verbose do not say how to log; leave them as they are"
      raise UserError(message) from error
    _note_lost_lines(lost)
  if args.cfg:
    print(OmegaConf.to_yaml(options(cfg), resolve=True), end="")
    return 0
  if searched:
    with command_line.explained(args.overrides):
      handover.sweep(train, args.overrides, Path(cfg.hydra.sweep.dir))
    return 0
  if found is None:
    train(config)
    return 0
  sweep = Sweep(found)
  supervise(sweep, *trainer)
  for line in _means(sweep.runs):
    log.info("%s", line)
  if elsewhere := sweep.in_state(ELSEWHERE):
    names = "; ".join(member.options for member in elsewhere)
    log.info("another process still trains %s; the same command shows them later", names)
  if failed := sweep.in_state(FAILED):
    names = "; ".join(member.options for member in failed)
    _say(f"error: {len(failed)} of {len(sweep.runs)} runs failed: {names}")
  return 1 if failed else 0


def _means(runs: Sequence[Member]) -> Iterator[str]:
  """Yield the means of the finished runs, as a report has them: a table for each task."""
  paths = [member.path for member in runs if member.state == DONE and member.finished]
  if not paths:
    return
  from posexp.reporting import results, tables, text

  for each in results.results(read_runs(paths)[0]):
    yield from ("", each.title, text.tabulated(tables.score_table(each), "plain"))
  folders = dict.fromkeys(pasted(path.parents[2]) for path in paths)
  yield f"more: python -m posexp.report {' '.join(folders)}"


def _note_lost_lines(lost: set[str]) -> None:
  """From now on `lost` gets the reasons for which lines of the log cannot be printed."""

  def note(record: logging.LogRecord) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):  # as in ... | head
      lost.add(error.strerror)

  for handler in logging.getLogger().handlers:
    handler.handleError = note


def _flushed(lost: set[str]) -> int:
  """Return the exit status of printing, 1 if lines are lost, which is said."""
  try:
    flush_output()
  except OSError as error:
    if not isinstance(error, BrokenPipeError):
      lost.add(error.strerror)
  if lost:
    _say(
      f"error: standard output: {', '.join(lost)}; lines are missing there, and the same command "
      "says the result again"
    )
  return int(bool(lost))


def _make_folder(option: str, path: str) -> None:
  try:
    Path(path).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    what = "runs" if option == "runs" else "files"
    raise UserError(f"{option}={path}: cannot keep {what} there: {error.strerror}") from error


def _say(message: str) -> None:
  print(f"posexp: {message}", file=sys.stderr)
