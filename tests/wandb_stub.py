"""A loopback server that speaks enough of W&B's protocol to keep what it is told of runs."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API_KEY = "0123456789abcdef" * 3


@dataclasses.dataclass
class StubRun:
  """What the server knows of one run."""

  entity: str
  project: str
  upserts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  lines: dict[int, str] = dataclasses.field(default_factory=dict)  # of the history, by number
  summary: dict[str, Any] = dataclasses.field(default_factory=dict)
  exit_code: int | None = None

  def told(self, field: str) -> Any:
    """The last value given for a field of the run: groupName, jobType, tags, displayName, ..."""
    values = [upsert[field] for upsert in self.upserts if upsert.get(field) is not None]
    return values[-1] if values else None

  @property
  def config(self) -> dict[str, Any]:
    """The config, less W&B's own section."""
    given = json.loads(self.told("config") or "{}")
    return {key: item["value"] for key, item in given.items() if key != "_wandb"}

  @property
  def axes(self) -> dict[str, str]:
    """For each pattern of metrics the metric that they are drawn over."""
    own = json.loads(self.told("config"))["_wandb"]["value"]["m"]  # fields go by number
    return {each["2"]: own[each["5"] - 1]["1"] for each in own if "2" in each}

  @property
  def history(self) -> list[dict[str, Any]]:
    """The rows, less the fields that W&B adds, but for _step."""
    rows = [json.loads(self.lines[number]) for number in sorted(self.lines)]
    own = ("_timestamp", "_runtime", "_wandb")
    return [{key: value for key, value in row.items() if key not in own} for row in rows]


class Stub:
  """The server; use it as a context manager."""

  def __init__(self):
    self.runs: dict[str, StubRun] = {}
    self.authorized = True
    self._server = _Server(("127.0.0.1", 0), _Handler)
    self._server.stub = self
    self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

  def __enter__(self) -> Stub:
    threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._server.shutdown()
    self._server.server_close()

  def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The answer's `data`."""
    name = re.search(r"(?:query|mutation)\s+(\w+)", query)
    operation = name[1] if name else ""
    if operation == "UpsertBucket":
      return {"upsertBucket": self._upsert(variables)}
    if operation == "RunResumeStatus":
      return {"model": self._resume(variables)}
    if operation == "CreateRunFiles":
      files = [
        {"name": file, "uploadUrl": f"{self.url}/storage/{file}"} for file in variables["files"]
      ]
      return {"createRunFiles": {"runID": "stub", "uploadHeaders": [], "files": files}}
    return {
      "viewer": {
        "id": "u",
        "entity": "tester",
        "username": "tester",
        "flags": "{}",
        "teams": {"edges": []},
      },
      "serverInfo": {"features": []},
    }

  def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
    name = variables["name"]
    project = variables.get("project") or "uncategorized"
    entity = variables.get("entity") or "tester"
    new = name not in self.runs
    run = self.runs.setdefault(name, StubRun(entity, project))
    run.upserts.append(variables)
    bucket = self._bucket(name, run) | {
      "project": {"name": run.project, "entity": {"name": run.entity}}
    }
    return {"bucket": bucket, "inserted": new}

  def _resume(self, variables: dict[str, Any]) -> dict[str, Any] | None:
    name = variables["name"]
    run = self.runs.get(name)
    return (
      None if run is None else {"id": "p", "name": run.project, "bucket": self._bucket(name, run)}
    )

  def _bucket(self, name: str, run: StubRun) -> dict[str, Any]:
    tail = [run.lines[number] for number in sorted(run.lines)][-1:]
    return {
      "id": f"id-{name}",
      "name": name,
      "displayName": run.told("displayName") or name,
      "description": "",
      "config": run.told("config") or "{}",
      "summaryMetrics": json.dumps(run.summary),
      "historyLineCount": len(run.lines),
      "eventsLineCount": 0,
      "logLineCount": 0,
      "historyTail": json.dumps(tail),
      "eventsTail": "[]",
      "wandbConfig": '{"t": 1}',
      "tags": run.told("tags") or [],
      "sweepName": None,
      "stopped": False,
    }

  def stream(self, name: str, body: dict[str, Any]) -> None:
    """Takes a chunk of a run's history, its summary or its end."""
    run = self.runs[name]
    for file, chunk in (body.get("files") or {}).items():
      if file == "wandb-history.jsonl":
        run.lines.update(enumerate(chunk["content"], start=chunk["offset"]))
      elif file == "wandb-summary.json":
        run.summary = json.loads(chunk["content"][-1])
    if body.get("complete"):
      run.exit_code = body["exitcode"]


class _Server(ThreadingHTTPServer):
  daemon_threads = True

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Says nothing: W&B's client drops connections when it has what it wants."""


class _Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def do_GET(self) -> None:
    self._answer({})

  def do_PUT(self) -> None:
    self._read()
    self._answer({})

  def do_POST(self) -> None:
    body, stub = self._read(), self.server.stub
    if not stub.authorized:
      self._answer({"errors": [{"message": "user is not logged in"}]}, 401)
    elif self.path == "/graphql":
      asked = json.loads(body)
      self._answer({"data": stub.graphql(asked["query"], asked.get("variables") or {})})
    elif self.path.endswith("/file_stream"):
      stub.stream(self.path.split("/")[-2], json.loads(body))
      self._answer({})
    else:  # telemetry
      self._answer({})

  def _read(self) -> bytes:
    data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

  def _answer(self, body: Any, status: int = 200) -> None:
    data = json.dumps(body).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_: Any) -> None:
    pass
