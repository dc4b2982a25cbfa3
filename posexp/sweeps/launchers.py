"""Launchers of posexp's own, which train the runs of a sweep on other machines.

A launcher is a class in the table `LAUNCHERS` of a plugin, by its name in `hydra/launcher=NAME`,
whose options are in a file of that group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from omegaconf import DictConfig

from posexp.config import plugins
from posexp.sweeps.sweep import Member, Report, Train


class Launcher:
  """The base class of launchers."""

  # A job is the command line that was typed, with this environment variable: the job's own folder.
  variable: ClassVar[str]

  def check(self, cfg: DictConfig) -> None:
    """Raise UserError if an option of `cfg.hydra.launcher` is wrong."""

  def train(self, members: Sequence[Member], cfg: DictConfig) -> Iterator[Report | None]:
    """Train runs; yield each change of a run's state, and None after a moment without one.

    When it is closed early, jobs are saved first, or go on by themselves.
    """
    raise NotImplementedError

  def work(self, train: Train, place: Path) -> int:
    """Train the run of a job in the folder that its variable names; return the exit status."""
    raise NotImplementedError


def launchers() -> dict[str, Launcher]:
  """Return all launchers by their names."""
  return {name: cls() for name, cls in plugins.table("launcher", {}).items()}


def job() -> tuple[Launcher, Path] | None:
  """Return the launcher whose job this process is, and the job's folder; None if it is none."""
  for launcher in launchers().values():
    if place := os.environ.pop(launcher.variable, ""):
      return launcher, Path(place)
  return None
