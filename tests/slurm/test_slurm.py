"""Sweeps as Slurm jobs, with a stand-in for Slurm's commands; `make slurm` tries the real ones."""

import re
import signal
import types
from pathlib import Path

import pytest
from order import command

from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.slurm import launcher as slurm
from posexp.sweeps.launch import launch
from posexp.training.processes import save_only


class Cluster:
  """What posexp asks of Slurm. Jobs end as soon as they are submitted, unless they are held."""

  def __init__(self):
    self.held = False
    self.submissions = []  # the flags and the script of each
    self.live = {}  # by the ids of jobs: state and reason
    self.past = {}
    self.accounts = {}  # the states that the accounting keeps
    self.refusals = {}  # by the names of commands
    self.largest = 1001  # MaxArraySize

  def asked(self, name, *words, **given):
    if name in self.refusals:
      raise UserError(self.refusals[name])
    return getattr(self, name)(*words, **given)

  def sbatch(self, *flags, input, stdout, env):
    self.submissions.append((flags, input))
    array = 6 + len(self.submissions)
    stdout.write(f"{array};cluster\n".encode())
    stdout.flush()
    last = int(re.search(r"--array=0-(\d+)%", " ".join(flags))[1])
    place = Path(re.search(rf"export {slurm.JOB}=(\S+)", input)[1])
    assert f"--output={place}/".replace("%", "%%") + "%A_%a.log" in flags
    for number in range(last + 1):
      if self.held:
        self.live[f"{array}_{number}"] = "PENDING", "Priority"
      else:
        with pytest.MonkeyPatch.context() as patch:
          patch.setenv("SLURM_ARRAY_TASK_ID", str(number))
          patch.setenv("SLURM_JOB_ID", "9")
          patch.setenv(slurm.JOB, str(place))
          assert launch(train) == 0

  def sacct(self, *words):
    return self.accounts.get(words[-1], "")

  def scontrol(self, *words):
    assert words == ("show", "config")
    return f"MaxArrayTasks = 9\nMaxArraySize            = {self.largest}\nMaxJobCount = 10\n"

  def squeue(self, *words):
    known = self.past | self.live
    return "".join(f"{job} {' '.join(state)}\n" for job, state in known.items())


def train(config):
  """Stands in for training."""
  assert signal.getsignal(signal.SIGTERM) is save_only
  with RunWriter(folder(config), config) as run:
    if config["seed"] == 1 and config["encoding"] == "rpr":
      raise ValueError("a first line\nand a second")
    if config["seed"] == 2:
      raise UserError("it cannot be")
    if config["seed"] == 3:
      signal.raise_signal(signal.SIGUSR2)
    run.finish({"test/accuracy": 0.5, "test/macro_f1": 0.5})


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  (tmp_path / "50%u").mkdir()  # which Slurm would replace
  monkeypatch.chdir(tmp_path / "50%u")
  made = Cluster()
  monkeypatch.setattr(slurm, "_asked", made.asked)
  monkeypatch.setattr(slurm, "SECONDS", 0)
  before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR2)]
  yield made
  for number, handler in before:
    signal.signal(number, handler)


@pytest.fixture
def clock(cluster, monkeypatch):
  """What the jobs are at each look after the first; then Ctrl-C is typed."""
  events = []

  def sleep(seconds):
    if not events:
      raise KeyboardInterrupt
    cluster.live = events.pop(0)

  monkeypatch.setattr(slurm, "time", types.SimpleNamespace(sleep=sleep))
  return events


SWEEP = ["-m", "hydra/launcher=slurm", "encoding=none,rpr", "rpr.k=2,4", "seeds=3"]
TWO = ["-m", "hydra/launcher=slurm", "seed=5,6"]
HELD = {"7_0": ("PENDING", "JobHeldUser"), "7_1": ("PENDING", "None")}


def test_a_sweep_has_its_states_and_results(cluster):
  more = ["partition=gpu", "mem_gb=1.5", "additional_parameters={reservation: mine, x_y: true}"]
  more = [*(f"hydra.launcher.{each}" for each in more), "+hydra.launcher.nice=0"]
  more += ["hydra.launcher.additional_parameters.wckey=a=b"]
  status, out, err = command(*SWEEP, *more)
  assert status == 1
  failed = [f"encoding=rpr rpr.k={k} seed={seed}" for k in (2, 4) for seed in (1, 2)]
  names = "; ".join(["encoding=none rpr.k=2 seed=2", *failed])
  assert err == f"posexp: error: 5 of 9 runs failed: {names}\n"
  assert out.count("failed: ValueError: a first line; its traceback is in runs/mr/rpr/") == 2
  assert out.count("failed: it cannot be\n") == 3
  assert out.count(": done, test accuracy 50.00") == 4  # and how long the rest takes
  assert "\nsubmitted 9 as job 7\n" in out
  assert out.count(": the same run as job") == 3
  assert "\nmr: test accuracy by encoding, rpr.k\n" in out
  ((flags, script),) = cluster.submissions
  assert set(flags) > {
    "--parsable", "--job-name=posexp", "--time=60", "--signal=USR2@120", "--array=0-8%256",
    "--cpus-per-task=2", "--nodes=1", "--ntasks-per-node=1", "--mem=1536M", "--requeue",
    "--open-mode=append", "--partition=gpu", "--reservation=mine", "--x-y", "--wckey=a=b",
    "--nice=0",
  }  # fmt: skip
  assert not [flag for flag in flags if "None" in flag]
  assert ":+--cpus-per-task=$SLURM_CPUS_PER_TASK}" in script


def test_a_sweep_that_ends_by_itself_submits_a_round_at_a_time(cluster, monkeypatch):
  def scored(config):
    accuracy = {"none": 0.5, "rope": 0.9}[config["encoding"]] + 0.001 * config["seed"]
    with RunWriter(folder(config), config) as run:
      run.finish({"test/accuracy": accuracy})

  monkeypatch.setitem(globals(), "train", scored)
  argv = ["-m", "hydra/launcher=slurm", "encoding=none,rope", "until=told"]
  status, out, err = command(*argv)
  assert (status, err) == (0, "")
  assert "until     told: nothing is open; seeds: encoding=none 4, encoding=rope 4" in out
  sizes = [re.search(r"--array=0-(\d+)%", " ".join(flags))[1] for flags, _ in cluster.submissions]
  assert sizes == ["5", "1"]  # three seeds of both, then one of each
  assert command(*argv).status == 0
  assert len(cluster.submissions) == 2


def test_jobs_go_on_without_the_command_and_are_found_again(cluster, clock):
  cluster.held, submit = True, cluster.sbatch

  def killed(*flags, **given):
    submit(*flags, **given)
    raise KeyboardInterrupt

  cluster.sbatch = killed
  assert command(*TWO).status == 130
  status, out, err = command(*TWO)
  assert (status, err) == (130, "posexp: interrupted; the same command goes on from here\n")
  assert "\nthe jobs go on; the same command shows them again, `scancel 7` ends them\n" in out

  running = {"7_0": ("RUNNING", "None"), "7_1": ("PENDING", "JobHeldUser")}
  clock += [running, running | {"7_0": ("SUSPENDED", "None")}, HELD | {"7_0": running["7_0"]}]
  clock += [running | {"7_0": ("PENDING", "BeginTime")}, {"7_1": ("RUNNING", "None")}]
  clock += [{"7_1": ("COMPLETING", "None")}] * slurm.LOOKS
  cluster.past = {"7_0": ("PREEMPTED", "None")}
  status, out, err = command(*TWO)
  assert (status, len(cluster.submissions)) == (130, 1)
  assert out.splitlines()[1:] == [
    "job 1/2: seed=5",
    "waiting in Slurm's queue (JobHeldUser); `scontrol show job 7_1` says more",
    "job 1/2: suspended by Slurm",
    "job 1/2: seed=5",
    "job 1/2: queued again by Slurm",
    "job 1/2: failed: Slurm ended it as PREEMPTED",
    "job 2/2: seed=6",
    "the jobs go on; the same command shows them again, `scancel 7` ends them",
  ]


@pytest.mark.slow
def test_a_cancelled_job_of_which_slurm_keeps_no_record_has_ended(cluster, clock):
  cluster.held = True
  clock += [{}] * slurm.LOOKS
  cluster.accounts["7_1"] = "CANCELLED by 0\n"
  status, out, _ = command(*TWO)
  gone = "failed: it is gone from Slurm without a result; perhaps it was cancelled\n"
  assert (status, out.count("without a result")) == (1, 1)
  assert f"job 1/2: {gone}" in out
  assert "job 2/2: failed: Slurm ended it as CANCELLED\n" in out
  assert (command(*TWO).status, len(cluster.submissions)) == (130, 2)


@pytest.mark.parametrize("by", ["log", "steps"])
def test_a_job_that_took_too_much_memory_says_so(cluster, clock, by):
  cluster.held = True
  clock += [{"7_1": ("PENDING", "None")}] * 2
  cluster.past = {"7_0": ("FAILED", "NonZeroExitCode")}
  if by == "steps":
    cluster.accounts["7_0"] = "FAILED\nFAILED\nOUT_OF_MEMORY\n"
  sbatch = cluster.sbatch

  def submit(*flags, **given):
    sbatch(*flags, **given)
    (place,) = Path("runs/.sweep/jobs").glob("*/id")
    text = "srun: error: n1: task 0: Out Of Memory\n" if by == "log" else "a line\n"
    place.with_name("7_0.log").write_text(text)

  cluster.sbatch = submit
  _, out, _ = command(*TWO)
  assert "job 1/2: failed: Slurm ended it as FAILED (Out Of Memory: give it more by hydra." in out


@pytest.mark.slow
def test_more_runs_than_an_array_holds_are_several_arrays_of_which_some_may_be_refused(
  cluster, clock
):
  cluster.largest, cluster.held, submit = 3, True, cluster.sbatch
  argv = [*SWEEP[:2], "encoding=none", "seed=5,6,7,8,9,10,11"]

  def second_is_refused(*flags, **given):
    if cluster.submissions:
      raise UserError("QOSMaxSubmitJobPerUserLimit")
    submit(*flags, **given)

  cluster.sbatch = second_is_refused
  status, _, err = command(*argv)
  assert (status, len(cluster.submissions)) == (2, 1)
  assert err == (
    "posexp: error: Slurm takes no jobs: QOSMaxSubmitJobPerUserLimit; those before go on, and the "
    "same command submits the others once there is room\n"
  )
  cluster.sbatch, cluster.held = submit, False
  status, out, _ = command(*argv)  # the first three still wait
  arrays = [flag for flags, _ in cluster.submissions for flag in flags if "--array" in flag]
  assert arrays == ["--array=0-2%85", "--array=0-1%128", "--array=0-1%128"]
  assert (status, out.count("submitted "), out.count(": done, test accuracy 50.00")) == (130, 2, 4)
  assert "job 7/7: done" in out


def test_a_cluster_that_does_not_answer_ends_nothing_and_gets_no_second_job(cluster, clock):
  cluster.held = True
  clock += [HELD] * 3
  asked, cluster.squeue = cluster.squeue, lambda *words: next(answers)()

  def refuse():
    raise UserError("Unable to contact slurm controller")

  answers = iter([refuse, refuse, asked, asked])
  status, out, _ = command(*TWO)
  assert (status, out.count("slurm controller; the jobs go on\n")) == (130, 1)
  cluster.refusals["squeue"] = "Unable to contact slurm controller"
  status, _, err = command(*TWO)
  assert (status, len(cluster.submissions)) == (2, 1)
  assert err == "posexp: error: Unable to contact slurm controller\n"


@pytest.mark.parametrize(
  ("turns", "refusal", "why"),
  [("4", "", ""), ("5", "", "max_num_timeout=5"), ("0", "it cannot be requeued", "cannot be re")],
)
def test_a_job_whose_time_is_up_is_queued_again(cluster, clock, monkeypatch, turns, refusal, why):
  monkeypatch.setenv("SLURM_RESTART_COUNT", turns)

  def scontrol(*words):
    if words[0] == "show":
      return ""
    if refusal:
      raise UserError(refusal)
    return cluster.live.update({"7_0": ("PENDING", "BeginTime")})

  cluster.scontrol = scontrol
  status, out, _ = command(*TWO[:2], "seed=3", "rerun=true", "hydra.launcher.max_num_timeout=5")
  assert status == (1 if why else 130)
  assert re.search(f"failed: its time is up, and it is not queued again .*{why}", out) or not why


def test_what_slurm_refuses_is_a_sentence_and_leaves_no_job(cluster):
  cluster.refusals["sbatch"] = "sbatch: error: invalid partition specified: gpu"
  status, _, err = command(*SWEEP[:2])
  message = "Slurm takes no jobs: sbatch: error: invalid partition specified: gpu"
  assert (status, err) == (2, f"posexp: error: {message}\n")
  assert not [entry for entry in Path("runs/.sweep/jobs").iterdir() if entry.is_dir()]
  cluster.refusals.clear()
  assert command(*SWEEP[:2]).status == 0


def test_a_machine_without_slurm_is_a_sentence(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PATH", "")
  status, _, err = command(*SWEEP[:2])
  message = "sbatch: No such file or directory; is this a machine of a cluster?"
  assert (status, err) == (2, f"posexp: error: Slurm takes no jobs: {message}\n")
