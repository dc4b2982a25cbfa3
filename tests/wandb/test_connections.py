"""A server of Weights & Biases that does not answer, refuses or breaks off: runs go on."""

import logging
import socket
import time

import psutil
import pytest
from tracked import CONFIG, said_by_posexp, send, steps_of, train
from wandb_stub import API_KEY

from posexp.errors import UserError
from posexp.wandb import server as wandb_server

pytestmark = pytest.mark.usefixtures("light")


def test_a_server_that_never_answers(monkeypatch, capfd):
  with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    begun = time.monotonic()
    line = train([10], timeout=2)
    assert time.monotonic() - begun < 60  # of a busy machine
    assert line.startswith(f"offline ({url} does not answer); send with: python -m posexp.sync ")
    with pytest.raises(UserError, match=r"wandb\.mode=online: .* does not answer; wandb\.mode=off"):
      train([20], mode="online", timeout=2)
  assert capfd.readouterr() == ("", "")


def test_a_port_that_refuses(monkeypatch):
  monkeypatch.setenv("WANDB_API_KEY", API_KEY)
  line = train([10])
  assert line.startswith("offline (http://127.0.0.1:1 does not answer); send with: python -m ")
  with pytest.raises(UserError, match=r"wandb\.mode=online: .* does not answer"):
    train([20], mode="online")


def test_a_key_that_is_refused(stub, capfd):
  stub.authorized = False
  line = train([10])
  assert line.startswith("offline (W&B does not accept the API key); send with: python -m ")
  with pytest.raises(UserError, match="does not accept the API key"):
    train([20], mode="online", config={**CONFIG, "seed": 2})
  assert capfd.readouterr() == ("", "")


def test_without_a_login():
  assert train([10]).startswith("offline (not logged in); send with: python -m posexp.sync runs/")
  with pytest.raises(UserError, match=r"wandb\.mode=online: not logged in"):
    train([10], mode="online")


def test_a_server_that_is_gone_at_the_end_costs_no_run(stub, monkeypatch, caplog):
  monkeypatch.setitem(wandb_server.FINISH, "finish_timeout", 1.0)
  answer = stub.stream
  stub.stream = lambda *_: time.sleep(20)
  with caplog.at_level(logging.WARNING, "posexp"):
    train([10, 20])
  [message] = said_by_posexp(caplog)
  assert "Timed out" in message
  stub.stream = answer
  send(message)
  [logged] = stub.training
  assert steps_of(logged) == [10, 20]
  assert logged.summary["test/accuracy"] == 0.5


def test_a_connection_that_breaks_costs_no_run_and_no_next_one(stub, caplog):
  def break_off():
    (process,) = (each for each in psutil.Process().children() if each.name() == "wandb-core")
    process.kill()
    process.wait()

  with caplog.at_level(logging.WARNING, "posexp"):
    train([10], during=break_off)
  [message] = said_by_posexp(caplog)
  assert "wandb gets no more of this run" in message
  train([10], config={**CONFIG, "seed": 2}, mode="online")
  assert list(stub.runs.values())[-1].exit_code == 0
