"""From the command line to runs, and from what becomes of them to an exit status."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.core.utils import configure_log
from omegaconf import DictConfig, OmegaConf

from posexp.config import command_line, options, plugins, resolve, show
from posexp.config.arguments import flush_output, load_plugins, say, status_of
from posexp.config.checks import typed
from posexp.config.command_line import compose
from posexp.config.composed import SECTIONS
from posexp.config.help import help_text
from posexp.config.overrides import read
from posexp.errors import UserError, no_folder, writing
from posexp.runs import BOOKKEEPING, FILES, Run, digest
from posexp.runs.identity import NEUTRAL, settings
from posexp.runs.records import recorded
from posexp.sweeps import handover
from posexp.sweeps.jobs import listed, members
from posexp.sweeps.supervise import Means, job, supervise, trainer_for
from posexp.sweeps.sweep import Sweep, Train
from posexp.sweeps.until import Look, rounds_of
from posexp.sweeps.workers import end
from posexp.tracking import chosen

SIGINT, SIGTERM = 130, 143  # exit statuses, 128 + the signal


def launch(
  train: Train, means: Means = lambda folders, margin: (), look: Look | None = None
) -> int:
  """Run `train` on every config that the command line asks for; return the exit status.

  `train` gets the plain config of `config.resolve`, and `means` the folders of a sweep's finished
  runs, of which it yields the lines at the end; `look` says what is known before the end, as
  posexp/sweeps/until.py asks it. A UserError, or what the operating system refuses, becomes one
  line on stderr and status 2. In a sweep the other runs go on; a last line names those that failed,
  and the status is 1. In a single run an unexpected exception is raised: a bug is not a user's
  mistake. Where lines of the log could not be printed, on a full disk, say, a last line says so,
  and the status is 2. An interrupt (Ctrl-C, SIGTERM, SystemExit(143) from the job) ends everything,
  with status 130 or 143.
  """
  before = signal.signal(signal.SIGTERM, end)
  try:
    return status_of(lambda: _launch(train, means, look))
  except (KeyboardInterrupt, SystemExit) as stop:
    status = SIGINT if isinstance(stop, KeyboardInterrupt) else stop.code
    if status not in (SIGINT, SIGTERM):
      raise
    again = " without rerun=true" * any(each.lower() == "rerun=true" for each in sys.argv)
    say(f"interrupted; the same command{again} goes on from here")
    return status
  finally:
    signal.signal(signal.SIGTERM, before)


def _launch(train: Train, means: Means, look: Look | None) -> int:
  argv = load_plugins(sys.argv[1:])  # one of them may be the launcher whose job this is
  if (asked := job()) is not None:
    launcher, place = asked
    return launcher.work(train, place)
  args = command_line.parse(argv)
  if args.again:
    args.overrides = again(args.again, args.overrides)
  args.overrides = listed(args.overrides, args.multirun)
  inits = [o for o in args.overrides if o.key_or_group == "init" and ":" in o.input_line]
  if inits:
    args.overrides = _of_source(inits[-1].value(), args.overrides)
  if args.shell_completion:
    command_line.complete(args.shell_completion)
    return 0
  with command_line.explained(args.overrides):
    cfg = command_line.shared(args.overrides)
    if args.help:
      print(help_text(cfg, args.sections), end="")
      return 0
    searched = cfg.hydra.runtime.choices["hydra/sweeper"] != "basic" and not args.cfg
    if searched and cfg.until is not None:
      raise UserError("until=told is of sweeps that posexp trains: leave hydra/sweeper out")
    runs = None if args.cfg or searched else members(args, cfg)
    if runs:
      for name, tracker in chosen(runs[0].config).items():
        if variable := tracker.named_by:
          raise UserError(f"{variable} names one run ({name}): unset it, or leave -m and seeds out")
      trainer, live = trainer_for(train, len(runs), cfg, args.overrides)
      _make_folder("runs", runs[0].config["runs"])
    elif not searched:
      command_line.check_single(args.overrides, cfg)
      config = resolve(cfg)
      if why := no_folder(Path(config["runs"])):
        raise UserError(f"{typed('runs', config['runs'])}: {why}")
    if searched or (runs and live):  # a sweeper or other processes write files
      _make_folder("hydra.sweep.dir", cfg.hydra.sweep.dir)
    lost = _log_as(cfg)
    if searched:
      handover.sweep(train, args.overrides, Path(cfg.hydra.sweep.dir))
  failed = False
  if args.cfg:
    print(OmegaConf.to_yaml(options(cfg), resolve=True), end="")
  elif runs:
    sweep = Sweep(runs)
    failed = supervise(sweep, trainer, live, means, rounds_of(cfg, sweep, look))
  elif not searched:
    train(config)
  if lost:
    flush_output()
    raise lost[0]
  return int(failed)


def _of_source(name: str, typed: list[Override]) -> list[Override]:
  """Return the options of a released model that runs start from, then those that were typed."""
  from posexp.training.sources import source  # slow to import

  with plugins.explained({"init": name}):
    released = source(name)
    return typed if released is None else read(released.overrides([o.input_line for o in typed]))


def _log_as(cfg: DictConfig) -> list[OSError]:
  """Log as `hydra.job_logging` says; return the list to which errors of printing are added.

  Such an error, as of a closed pipe, ends no training.
  """
  logging.raiseExceptions = False
  try:
    configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
  except (AssertionError, AttributeError, TypeError, ValueError) as error:
    message = "hydra.job_logging and hydra.verbose do not say how to log; leave them as they are"
    raise UserError(message) from error
  lost: list[OSError] = []

  def note(record: logging.LogRecord) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):  # as in ... | head
      lost.append(OSError(error.errno, error.strerror, "standard output"))

  for handler in logging.getLogger().handlers:
    handler.handleError = note
  return lost


def _make_folder(option: str, path: str) -> None:
  with writing(option, Path(path)):
    Path(path).mkdir(parents=True, exist_ok=True)


MOVED = {*(f"task.{name}" for name in FILES), "model.vectors"}  # paths, which a digest replaces


def again(source: str, given: Sequence[Override]) -> list[Override]:
  """Return the overrides that stand for a recorded run, then those that are `given` beside it.

  The run goes to the folder `again`, unless `runs` is given. The whole command line is printed on
  standard error, with notes on what of the run cannot be reproduced.

  Raises:
    UserError: there is no such run, it needs a plugin that is not loaded, or it was trained with an
      option that this version does not have.
  """
  run = recorded(source)
  for group in ("encoding", "task"):
    plugins.check(group, run.config)
  try:
    options = typed_for(run.config)
  except UserError as error:
    by = f"by {_trained_by(run)}: train it again with that one"
    raise UserError(f"{source} was trained with {error}, {by}") from error
  own = [f"{key}={value}" for key, value in options.items() if key != "init"]  # not looked up yet
  now = settings(resolve(compose(own)))
  newer = [key for key in now if key in NEUTRAL and key not in run.settings]
  options |= {key: show(NEUTRAL[key][0]) for key in newer}  # by which this is the same run
  replaced = {o.key_or_group for o in given}
  gone = replaced | ({run.encoding} if "encoding" in replaced else set())
  kept = [f"{key}={options[key]}" for key in options if not {key, key.partition(".")[0]} & gone]
  place = [] if "runs" in replaced else ["runs=again"]
  words = [*kept, *place, *(o.input_line for o in given)]
  sweep = ["-m"] if any(o.is_sweep_override() for o in given) else []
  said = [f"this is python -m posexp.train {shlex.join([*sweep, *words])}"]
  if replaced <= {*BOOKKEEPING, *MOVED}:
    said += _differences(run, [*kept, *(o.input_line for o in given if not o.is_sweep_override())])
  print(*(f"posexp: {line}" for line in said), sep="\n", file=sys.stderr)
  return read(words)


def typed_for(run: Mapping[str, Any]) -> dict[str, str]:
  """Return the options, as they are typed, in which a run's config differs from the defaults.

  Raises:
    UserError: an option does not exist any more; the message has its value.
  """
  name, kind = str(run["task"]["name"]), run["task"]["kind"]
  named = (plugins.CONFIGS / "task" / f"{name}.yaml").exists()
  typed_options = {"encoding": run["encoding"], "task": name if named else kind}
  if (backbone := (run.get("model") or {}).get("backbone", "transformer")) != "transformer":
    typed_options["model"] = backbone
  train = run.get("train") or {}
  presets: list[dict[str, str]] = [{}]
  if train.get("steps") is not None:  # beside which no epochs can be typed
    files = sorted((plugins.CONFIGS / "train").glob("*.yaml"))
    presets += [*({"train": file.stem} for file in files), {}]
  for preset in presets:
    words = [f"{key}={value}" for key, value in (typed_options | preset).items()]
    composed = resolve(compose(words))
    if composed["train"]["epochs"] == train.get("epochs"):
      break
  typed_options |= preset
  for section in (*SECTIONS, "positions", run["encoding"]):
    defaults = composed.get(section) or {}
    for key, value in (run.get(section) or {}).items():
      if key not in defaults:
        gone = f"{section}.{key}={show(value)}"
        raise UserError(f"{gone}, an option that this version does not have")
      if value != defaults[key]:
        typed_options[f"{section}.{key}"] = show(value)
  if "task.train" in typed_options:  # which would give the task its name
    typed_options.setdefault("task.name", show(name))
  if (init := run.get("init")) is not None:
    typed_options["init"] = show(init["path"])
  return typed_options | ({"seed": show(run["seed"])} if run["seed"] else {})


def _trained_by(run: Run) -> str:
  """Return the versions that trained a run, as its summary has them."""
  return (run.summary or {}).get("versions", "a version that did not record its name")


def _differences(run: Run, words: Sequence[str]) -> Iterator[str]:
  """Yield notes on differences between a run and what these overrides train."""
  from posexp.training.costs import versions
  from posexp.training.setup import Setup

  setup = Setup.of(resolve(compose(words)))
  if run.digest not in (None, digest(setup.config, **setup.data_digests())):
    options = settings(setup.config).items()
    new = [f"{key}={show(value)}" for key, value in options if key not in run.settings]
    why = f"it did not have {', '.join(new)}" if new else "its data, or how it is trained, changed"
    yield f"note: this is another run than {run.digest}: {why}"
  if (before := _trained_by(run)) != (now := versions()):
    yield f"note: it was trained by {before}, and is now by {now}: the last digits may differ"
