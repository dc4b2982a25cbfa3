"""Sweeps as Slurm jobs, with stand-ins for the cluster and for what submits to it."""

import pickle
import signal
import sys
import types
from pathlib import Path

import pytest
from order import command

from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.sweeps import slurm
from posexp.sweeps.sweep import Member


class Cluster(types.ModuleType):
  """What posexp uses of submitit; jobs are done when they are submitted, unless they are held."""

  def __init__(self):
    super().__init__("submitit")
    self.given = {}  # the options of the last submission
    self.submitted = 0
    self.held = False
    self.states = {}
    self.results = {}
    self.refusal = None
    self.helpers = self

    class SlurmJob:
      """A job, as it is found again by its id."""

      watcher = types.SimpleNamespace(update=lambda: None)

      def __init__(job, output, job_id):
        job.job_id = job_id
        name = Path(str(output).replace("%j", job_id), f"{job_id}_0_log.err")
        job.paths = types.SimpleNamespace(stderr=name)

      @property
      def state(job):
        return self.states.get(job.job_id, "UNKNOWN")

      def done(job):
        return job.job_id in self.results or job.state == "CANCELLED"

      def result(job):
        return self.results[job.job_id]

    self.SlurmJob = SlurmJob

  @staticmethod
  def DelayedSubmission(*args):
    return args

  def AutoExecutor(self, output, **options):
    self.given = {"folder": str(output), **options}
    return self

  def update_parameters(self, **options):
    if "slurm_partitoin" in options:
      raise NameError("Unknown argument 'partitoin' for executor 'slurm'. Valid arguments: many")
    self.given |= options

  def map_array(self, task, members):
    if self.refusal:
      raise RuntimeError(self.refusal)
    jobs = {f"{7 + self.submitted}_{number}": each for number, each in enumerate(members)}
    self.submitted += len(jobs)
    for job, member in jobs.items():
      self.states[job] = "PENDING"
      if not self.held:
        self.results[job] = pickle.loads(pickle.dumps(task))(member)
    return [types.SimpleNamespace(job_id=job) for job in jobs]


def train(config):
  """Stands in for training."""
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
  with RunWriter(folder(config), config) as run:
    if config["seed"] == 1 and config["encoding"] == "rpr":
      raise ValueError("a first line\nand a second")
    if config["seed"] == 2:
      raise UserError("it cannot be")
    run.finish({"test/accuracy": 0.5, "test/macro_f1": 0.5})


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("posexp.train.train", train)
  monkeypatch.setattr("posexp.sweeps.slurm.SECONDS", 0)
  made = Cluster()
  monkeypatch.setitem(sys.modules, "submitit", made)
  before = signal.getsignal(signal.SIGTERM)
  yield made
  signal.signal(signal.SIGTERM, before)


@pytest.fixture
def clock(cluster, monkeypatch):
  """What happens between two looks at the jobs; then Ctrl-C is typed."""
  events = []

  def sleep(seconds):
    if not events:
      raise KeyboardInterrupt
    cluster.states |= events.pop(0)

  monkeypatch.setattr(slurm, "time", types.SimpleNamespace(sleep=sleep))
  return events


SWEEP = ["-m", "hydra/launcher=slurm", "encoding=none,rpr", "rpr.k=2,4", "seeds=2"]


def test_a_sweep_has_its_states_and_results(cluster):
  status, out, err = command(*SWEEP, "hydra.launcher.partition=gpu")
  assert (status, cluster.submitted) == (1, 6)
  names = "encoding=rpr rpr.k=2 seed=1; encoding=rpr rpr.k=4 seed=1"
  assert err == f"posexp: error: 2 of 6 runs failed: {names}\n"
  assert out.count("failed: ValueError: a first line; its traceback is in runs/mr/rpr/") == 2
  assert "\nsubmitted 6 as job 7\n" in out
  assert out.count(": the same run as job") == 2
  assert "\nmr: test accuracy by encoding, rpr.k\n" in out
  assert cluster.given == {
    "cluster": "slurm",
    "folder": "runs/.sweep/.submitit/%j",
    "slurm_max_num_timeout": 1000,
    "name": "posexp",
    "timeout_min": 60,
    "cpus_per_task": 2,
    "nodes": 1,
    "tasks_per_node": 1,
    "slurm_partition": "gpu",
    "slurm_signal_delay_s": 120,
    "slurm_array_parallelism": 256,
  }


def test_what_is_done_is_not_submitted_again(cluster):
  argv = ["-m", "hydra/launcher=slurm", "encoding=none"]
  assert command(*argv, "seed=0").status == 0
  status, out, _ = command(*argv, "seed=0,1")
  assert (status, cluster.submitted) == (0, 2)
  assert "job 1/2: seed=0: finished already, in runs/mr/none/" in out


def test_jobs_go_on_without_the_command_and_are_found_again(cluster, clock):
  cluster.held = True
  status, out, err = command(*SWEEP[:3], "seed=0")
  assert (status, err) == (130, "posexp: interrupted; the same command goes on from here\n")
  assert "\nthe jobs go on; the same command shows them again, `scancel 7` ends them\n" in out

  clock += [{"7_0": state} for state in ("RUNNING", "PENDING", "RUNNING")]
  clock.append({"7_0": "CANCELLED", "7_1": "RUNNING"})
  status, out, err = command(*SWEEP[:3], "seed=0")
  assert (status, cluster.submitted) == (130, 2)
  assert out.splitlines()[1:] == [
    "job 1/2: encoding=none",
    "job 1/2: Slurm has queued job 7_0 again",
    "job 1/2: encoding=none",
    "job 1/2: failed: Slurm's job 7_0 ended as CANCELLED; what it said is in "
    "runs/.sweep/.submitit/7_0/7_0_0_log.err",
    "job 2/2: encoding=rpr",
    "the jobs go on; the same command shows them again, `scancel 7` ends them",
  ]


def test_a_user_s_mistake_in_a_job_is_its_sentence(cluster):
  _, out, _ = command("-m", "hydra/launcher=slurm", "seed=2,3")
  assert "\njob 1/2: failed: it cannot be\n" in out
  assert "\njob 2/2: done, test accuracy 50.00\n" in out


def test_a_job_that_nobody_knows_any_more_is_submitted_again(cluster, clock):
  cluster.held = True
  argv = ["-m", "hydra/launcher=slurm", "seed=5"]
  assert command(*argv).status == 130
  cluster.states.clear()
  assert (command(*argv).status, cluster.submitted) == (130, 2)


def test_a_queued_job_goes_on_where_it_was_even_if_it_began_afresh(cluster):
  task = slurm.ResumableTraining(train, {"version": 1})
  member = Member(1, "seed=0", "encoding=none", {"seed": 0, "rerun": True}, Path("runs"))
  assert task.checkpoint(member) == (task, member)
  assert member.config == {"seed": 0, "rerun": False}
  assert pickle.loads(pickle.dumps(task)).train is train


def test_what_slurm_refuses_is_a_sentence(cluster):
  cluster.refusal = "sbatch: error\n\nsbatch: error: invalid partition specified: gpu\n"
  status, _, err = command(*SWEEP[:2])
  message = "Slurm takes no jobs: sbatch: error: invalid partition specified: gpu"
  assert (status, err) == (2, f"posexp: error: {message}\n")


def test_an_option_that_submitit_does_not_know_is_a_sentence(cluster):
  status, _, err = command(*SWEEP[:2], "+hydra.launcher.partitoin=gpu")
  message = "hydra.launcher: Unknown argument 'partitoin' for executor 'slurm'"
  assert (status, err) == (2, f"posexp: error: {message}\n")


def test_an_option_that_posexp_does_not_know_names_the_nearest(cluster):
  status, _, err = command(*SWEEP[:2], "hydra.launcher.partitoin=gpu")
  message = "there is no option hydra.launcher.partitoin; did you mean hydra.launcher.partition?"
  assert (status, err) == (2, f"posexp: error: hydra.launcher.partitoin=gpu: {message}\n")
