"""What tests of several modules share."""

import contextlib
import functools
import gc
import importlib.metadata
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile many tiny programs and run each a few times.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # The emitters of fusions take most of the time that XLA needs for the tiny programs of tests, and
  # a program that is compiled in parts takes a quarter more of it than one that is whole. Later
  # versions do without the first flag, and end where they find it. What is compiled is kept by its
  # flags, which must not change amid the tests.
  flags = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
  os.environ.setdefault("XLA_FLAGS", " ".join(flags))


def pytest_addoption(parser):
  parser.addoption("--seed", type=int, default=0, help="chooses among the cases of some tests")


def pytest_terminal_summary(terminalreporter, config):
  terminalreporter.write_line(f"cases chosen by --seed {config.getoption('seed')}")


def pytest_configure(config):
  """What is prepared is shared by all processes of these tests, and by these alone.

  What is compiled is found by what it was compiled from, so later tests find it in pytest's cache,
  which `--cache-clear` empties; that spares two fifths of their time.
  """
  if "PYTEST_XDIST_WORKER" in os.environ:
    return
  os.environ["POSEXP_TESTS_SEED"] = str(config.getoption("seed"))
  folder = Path(tempfile.mkdtemp(prefix="posexp-tests-"))
  config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
  os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
  os.environ["POSEXP_TESTS_SHARED"] = str(folder)
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled(config) or folder / "jax")
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
  # JAX compiles what another process has only half written, and warns on stderr, which tests read.
  ignored = "ignore:Error reading persistent compilation cache"
  os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), ignored)))
  os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes read what one has written


def compiled(config):
  """The folder in pytest's cache of what is compiled, less what is older than two weeks."""
  if getattr(config, "cache", None) is None:
    return None
  folder = config.cache.mkdir("jax")
  for file in folder.iterdir():
    with contextlib.suppress(OSError):  # which another session has removed
      if file.stat().st_mtime < time.time() - 14 * 24 * 3600:
        file.unlink()
  return folder


def share_contexts():
  """Has each thread lower 64 programs in one context of MLIR.

  JAX makes one for each program, which takes a third of the time of lowering those of tests.
  """
  from jax._src.interpreters import mlir

  make, own = getattr(mlir, "make_ir_context", None), threading.local()

  def shared():
    own.turn = getattr(own, "turn", -1) + 1
    if own.turn % 64 == 0:
      own.context = make()
    return own.context

  if make is not None:
    mlir.make_ir_context = shared


def parse_once():
  """Has OmegaConf parse the text of an interpolation once, and not each time it is resolved."""
  from omegaconf import _utils, base, grammar_parser

  once = functools.lru_cache(maxsize=4096)(grammar_parser.parse)
  for module in (_utils, base, grammar_parser):
    module.parse = once


def pytest_collection_finish():
  """Spares the garbage collector modules and tests, which stay, and most of its turns."""
  if "jax" in sys.modules:
    share_contexts()
  if "omegaconf" in sys.modules:
    parse_once()
  os.fsync = lambda file: None  # no test cuts the power
  gc.freeze()
  gc.set_threshold(50_000, 20, 20)


# Files that take longest come first, so that no process is left with one of them at the end.
LONGEST = ("leaderboard", "train", "own", "conformance", "commands", "tuning", "parents", "order")
LONGEST += ("workers", "damage", "context", "translation", "checkpoints", "translate")


def pytest_collection_modifyitems(items):
  rank = {f"test_{name}": number for number, name in enumerate(LONGEST)}
  items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(autouse=True, scope="module")
def plugins_are_forgotten():
  """The plugins that a module's tests have loaded are known in no other module."""
  yield
  if (plugins := sys.modules.get("posexp.config.plugins")) is not None:
    plugins._found.clear()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """The current directory of a module's tests, and where they keep what is kept between runs."""
  import order

  path = tmp_path_factory.mktemp("home")
  with order.home(path):
    yield path


@pytest.fixture(scope="module")
def opened_once():
  """A run that a module's tests have opened is not restored again by what opens it likewise."""
  import order

  with order.opened_once():
    yield


@pytest.fixture(autouse=True)
def composed_once(request, monkeypatch):
  """Command lines get configs of which the files were composed once, but for tests of composing."""
  import hydra
  import order

  if request.path.stem not in ("test_config", "test_overrides", "test_plugins"):
    monkeypatch.setattr(hydra, "compose", order.composed_once)


@pytest.fixture
def few_positions(monkeypatch):
  """`posexp.inspect` draws few positions, widths and bases, which takes less time."""
  from posexp.analysis import inspection, probe

  monkeypatch.setattr(inspection, "LENGTH", 20)
  monkeypatch.setattr(probe, "WIDTHS", (16, 32))
  monkeypatch.setattr(probe, "BASES", (100.0,))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
  """A cache of a test's own."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def end_wandb():
  """Ends W&B's process, if there is one."""
  if "wandb" in sys.modules:
    from posexp.wandb import server as wandb_server

    wandb_server.reset()


@pytest.fixture
def apart(tmp_path, monkeypatch):
  """A user who is not logged in on W&B, in a folder and a home of their own."""
  for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
    monkeypatch.delenv(name)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
  monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
  monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
  monkeypatch.chdir(tmp_path)
  end_wandb()  # which a test may have begun that has no user of its own
  yield
  end_wandb()


@pytest.fixture
def light(apart, monkeypatch):
  """W&B does not look at the machine that it runs on, for which no test asks."""
  for what in ("STATS", "META", "MACHINE_INFO"):
    monkeypatch.setenv(f"WANDB_X_DISABLE_{what}", "true")


@pytest.fixture
def stub(apart, monkeypatch):
  """A server of W&B on which that user is logged in."""
  from wandb_stub import API_KEY, Stub

  with Stub() as stub:
    monkeypatch.setenv("WANDB_BASE_URL", stub.url)
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    yield stub
    end_wandb()
