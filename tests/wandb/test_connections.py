"""A server of Weights & Biases that does not answer, refuses or breaks off: runs go on."""

import logging
import socket
import time

import psutil
import pytest
from tracked import CONFIG, said_by_posexp, send, steps_of, train

from posexp.errors import UserError
from posexp.wandb import server as wandb_server

pytestmark = pytest.mark.usefixtures("light")


@pytest.mark.parametrize(
  "why",
  [
    "SILENT does not answer",
    "http://127.0.0.1:1 does not answer",  # which refuses
    "W&B does not accept the API key",
    "not logged in",
  ],
)
def test_a_server_that_lets_nobody_in_is_done_without_unless_it_is_asked_for(
  stub, monkeypatch, capfd, why
):
  with socket.create_server(("127.0.0.1", 0)) as silent:
    why = why.replace("SILENT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    if why == "not logged in":
      monkeypatch.delenv("WANDB_API_KEY")
    elif why.endswith("key"):
      stub.authorized = False
    else:
      monkeypatch.setenv("WANDB_BASE_URL", why.split()[0])
    begun = time.monotonic()
    assert train([10], timeout=2).startswith(f"offline ({why}); send with: python -m posexp.sync r")
    assert time.monotonic() - begun < 60  # of a busy machine
    with pytest.raises(UserError, match=f"^wandb.mode=online: {why}; wandb.mode=offline keeps the"):
      train([20], mode="online", timeout=2, config={**CONFIG, "seed": 2})
  assert capfd.readouterr() == ("", "")


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
