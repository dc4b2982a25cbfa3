"""Folders of the cache, and work that several processes share."""

import functools
import operator
import os

import pytest

from posexp import storage
from posexp.data import side_by_side, store
from posexp.errors import UserError

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_store_that_cannot_be_written_is_replaced_and_a_broken_fill_leaves_nothing(
  tmp_path, monkeypatch
):
  def fail(folder):
    (folder / "half").write_text("x")
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    store.kept("a/b", fail)
  assert list((storage.cache_folder() / "a").iterdir()) == []
  path = store.kept("a/b", lambda folder: (folder / "x").write_text("1"))
  assert store.kept("a/b", fail) == path == storage.cache_folder() / "a" / "b"

  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  path = store.kept("a/b", lambda folder: (folder / "x").write_text("2"))
  assert (path / "x").read_text() == "2"
  assert store.kept("a/b", fail) == path

  def full(folder):
    raise OSError(28, "No space left on device", str(folder / "tokens"))

  with pytest.raises(UserError, match=r"tokens: cannot be written: No space .* XDG_CACHE_HOME"):
    store.kept("a/c", full)


def doubling(parent, dies_at=None):
  """Doubles numbers; in another process than `parent` it dies of one of them."""

  def double(number):
    if number == dies_at and os.getpid() != parent:
      os._exit(1)
    return 2 * number, os.getpid()

  return double


@pytest.mark.parametrize(("count", "dies_at"), [(0, None), (2, None), (20, 5)])
def test_several_processes_answer_in_order_even_if_one_dies(count, dies_at, monkeypatch):
  monkeypatch.setattr(side_by_side, "ALONE", 2)
  monkeypatch.setattr(side_by_side, "cores", lambda: 2)
  found = list(side_by_side.mapped(doubling, (os.getpid(), dies_at), range(count)))
  assert [number for number, _ in found] == [2 * number for number in range(count)]
  processes = {process for _, process in found}
  assert len(processes) == {0: 0, 2: 1, 20: 3}[count]


def test_an_error_of_another_process_is_raised_in_this_one(monkeypatch):
  monkeypatch.setattr(side_by_side, "ALONE", 0)
  monkeypatch.setattr(side_by_side, "cores", lambda: 2)
  with pytest.raises(ZeroDivisionError):
    list(side_by_side.mapped(functools.partial, (operator.truediv, 1), [2, 1, 0, 1, 1]))
