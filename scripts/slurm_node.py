"""A Slurm cluster of one node, for trying posexp with: on Debian or Ubuntu, as root, in a folder.

All of its files but the packages are in the folder, which SLURM_CONF names; its daemons listen on
this machine alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("slurm-wlm", "slurm-client", "munge", "slurmdbd", "slurm-wlm-mysql-plugin")
PACKAGES += ("mariadb-server",)
CPUS, PORT, KILL_WAIT = 8, 26817, 15  # of the node; the first of its ports; seconds
CGROUPS = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/memory")
CONF = """\
ClusterName=posexp
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
SlurmdPort={slurmd}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
KillWait={kill_wait}
MinJobAge=3600
ReturnToService=2
SchedulerParameters=sched_interval=5,sched_min_interval=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=normal Nodes={host} Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes={host} MaxTime=60 State=UP PriorityTier=10
"""
DBD = """\
AuthType=auth/munge
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd}
CommunicationParameters=NoInAddrAny
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


class Setup(NamedTuple):
  """How a cluster is set up."""

  lines: tuple[str, ...] = ()  # of slurm.conf
  accounting: bool = True
  memory: bool = False  # whether more than a job asked for kills it
  preempts: str = ""  # what becomes of a job whose place another takes


BY_PARTITION = "PreemptType=preempt/partition_prio"
SETUPS = {
  "default": Setup(),
  "no accounting": Setup(accounting=False),
  "JobRequeue=0": Setup(("JobRequeue=0",)),
  "PreemptMode=CANCEL": Setup((BY_PARTITION, "PreemptMode=CANCEL"), preempts="CANCEL"),
  "preemption with signal": Setup(
    (BY_PARTITION, "PreemptMode=REQUEUE", "SlurmctldParameters=preempt_send_user_signal"),
    preempts="REQUEUE",
  ),
  "memory enforced": Setup(memory=True),
}


def said(*command: str, **given: object) -> str:
  """Return what a command prints; CalledProcessError, which its messages precede, if it fails."""
  return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **given).stdout


def install() -> None:
  """Install the packages that are missing."""
  missing = [each for each in PACKAGES if subprocess.run(["dpkg", "-s", each], **QUIET).returncode]
  if missing:
    print("installing", *missing, flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", "update"], check=True, **QUIET)
    apt = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing]
    subprocess.run(apt, check=True, env=env, **QUIET)


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Node:
  """A cluster in a folder: started with some lines of slurm.conf, and stopped."""

  def __init__(self, folder: Path):
    self.folder = folder.absolute()
    self.daemons: list[subprocess.Popen] = []
    self.values = {
      "host": socket.gethostname().partition(".")[0],
      "folder": self.folder,
      "port": PORT,
      "slurmd": PORT + 1,
      "dbd": PORT + 2,
      "sql": PORT + 3,
      "cpus": CPUS,
      "kill_wait": KILL_WAIT,
      "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 8 // 10 // 2**20,
    }

  def start(self, setup: Setup) -> None:
    """Start the daemons afresh.

    Memory is enforced by cgroups (version 1) where there are any, else by Slurm, which looks every
    few seconds.
    """
    shutil.rmtree(self.folder, ignore_errors=True)
    for name in ("state", "spool", "sql"):
      (self.folder / name).mkdir(parents=True)
    by_cgroup = setup.memory and all(cgroup.is_dir() for cgroup in CGROUPS)
    track = "cgroup" if by_cgroup else "linuxproc"
    conf = [CONF.format(**self.values), f"ProctrackType=proctrack/{track}", *setup.lines]
    conf.append(f"TaskPlugin=task/{'cgroup' if by_cgroup else 'none'}")
    if by_cgroup:
      limits = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"
      (self.folder / "cgroup.conf").write_text(f"{limits}AllowedSwapSpace=0\n")
    elif setup.memory:
      conf.append("JobAcctGatherParams=OverMemoryKill")
    kind = "slurmdbd" if setup.accounting else "none"
    conf.append(f"AccountingStorageType=accounting_storage/{kind}")
    if setup.accounting:
      conf += ["AccountingStorageHost=127.0.0.1", f"AccountingStoragePort={self.values['dbd']}"]
    (self.folder / "slurm.conf").write_text("\n".join(conf) + "\n")
    os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
    self._munge()
    if setup.accounting:
      self._accounting()
    self._daemon("slurmctld", "-D")
    self._await("slurmctld", lambda: said("scontrol", "ping", stderr=subprocess.DEVNULL))
    self._daemon("slurmd", "-D", "-N", self.values["host"])
    self._await("slurmd", lambda: {"idle", "mixed"} & {said("sinfo", "-h", "-o", "%T").strip()})

  def stop(self) -> None:
    """End all jobs and the daemons."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
      said("scancel", "-u", "root", stderr=subprocess.DEVNULL)
      self._await("the last job", lambda: not said("squeue", "-h").strip())
    for daemon in reversed(self.daemons):
      daemon.terminate()
      try:
        daemon.wait(60)
      except subprocess.TimeoutExpired:
        daemon.kill()
    self.daemons.clear()

  def _munge(self) -> None:
    """Start munge, unless it runs on this machine already."""
    if subprocess.run(["munge", "-n"], **QUIET).returncode:
      Path("/run/munge").mkdir(exist_ok=True)
      shutil.chown("/run/munge", "munge", "munge")
      self._daemon("runuser", "-u", "munge", "--", "/usr/sbin/munged", "-F")
      self._await("munged", lambda: said("munge", "-n", stderr=subprocess.DEVNULL))

  def _accounting(self) -> None:
    (self.folder / "slurmdbd.conf").write_text(DBD.format(**self.values))
    (self.folder / "slurmdbd.conf").chmod(0o600)
    shutil.chown(self.folder / "sql", "mysql", "mysql")
    for each in (self.folder, *self.folder.parents[:-1]):
      each.chmod(each.stat().st_mode | 0o011)  # so that the database finds its folder
    where = f"--datadir={self.folder}/sql"
    subprocess.run(
      ["mariadb-install-db", "--user=mysql", where, "--auth-root-authentication-method=socket"],
      check=True,
      **QUIET,
    )
    socket_file = f"--socket={self.folder}/sql/socket"
    port = f"--port={self.values['sql']}"
    bound = ("--bind-address=127.0.0.1", "--innodb-buffer-pool-size=64M")
    self._daemon("mariadbd", "--no-defaults", "--user=mysql", where, socket_file, port, *bound)
    users = "create user slurm@{0} identified by 'slurm'; grant all on slurm.* to slurm@{0}; "
    ask = f"create database slurm; {users.format('localhost')}{users.format(repr('127.0.0.1'))}"
    sql = ("mariadb", socket_file, "--user=root", "-e")
    self._await("mariadbd", lambda: said(*sql, "select 1", stderr=subprocess.DEVNULL))
    said(*sql, ask)
    self._daemon("slurmdbd", "-D")
    list_clusters = ("sacctmgr", "-n", "list", "cluster")
    self._await("slurmdbd", lambda: said(*list_clusters, stderr=subprocess.DEVNULL) is not None)
    said("sacctmgr", "-i", "add", "cluster", "posexp")

  def _daemon(self, *command: str) -> None:
    with (self.folder / "daemons.log").open("ab") as log:
      self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

  def _await(self, what: str, ready: Callable[[], object]) -> None:
    for _ in range(300):
      with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if ready():
          return
      time.sleep(0.2)
    raise RuntimeError(f"{what} is not ready; see {self.folder}")
