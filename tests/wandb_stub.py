"""A loopback server that speaks enough of W&B's protocol to keep what it gets of runs."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API_KEY = "0123456789abcdef" * 3


class Refused(Exception):
  """An answer that is an error, with its HTTP status."""

  def __init__(self, status: int, message: str):
    super().__init__(message)
    self.status = status


@dataclasses.dataclass
class StubRun:
  """What the server knows of one run."""

  entity: str
  project: str
  upserts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  lines: dict[int, str] = dataclasses.field(default_factory=dict)  # of the history, by number
  summary: dict[str, Any] = dataclasses.field(default_factory=dict)
  artifacts: dict[str, StubArtifact] = dataclasses.field(default_factory=dict)  # by W&B's own name
  exit_code: int | None = None

  def field(self, field: str) -> Any:
    """The last value given for a field of the run: groupName, jobType, tags, displayName, ..."""
    values = [upsert[field] for upsert in self.upserts if upsert.get(field) is not None]
    return values[-1] if values else None

  @property
  def config(self) -> dict[str, Any]:
    """The config, less W&B's own section."""
    given = json.loads(self.field("config") or "{}")
    return {key: item["value"] for key, item in given.items() if key != "_wandb"}

  @property
  def axes(self) -> dict[str, str]:
    """For each pattern of metrics the metric that they are drawn over."""
    own = self._own["m"]  # fields go by number
    return {each["2"]: own[each["5"] - 1]["1"] for each in own if "2" in each}

  @property
  def history(self) -> list[dict[str, Any]]:
    """The rows, less the fields that W&B adds, but for _step."""
    rows = [json.loads(self.lines[number]) for number in sorted(self.lines)]
    own = ("_timestamp", "_runtime", "_wandb")
    return [{key: value for key, value in row.items() if key not in own} for row in rows]

  def table(self, key: str) -> list[dict[str, Any]]:
    """The rows of a table, from the artifact that the summary names."""
    name, _, file = self.summary[key]["artifact_path"].partition("://")[2].partition("/")
    artifact = self.artifacts[name]
    assert artifact.committed
    found = json.loads(artifact.files[file])
    return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]

  @property
  def _own(self) -> dict[str, Any]:
    return json.loads(self.field("config"))["_wandb"]["value"]


@dataclasses.dataclass
class StubArtifact:
  """Files that belong to a run, such as its tables."""

  files: dict[str, bytes] = dataclasses.field(default_factory=dict)
  committed: bool = False


class Stub:
  """The server; use it as a context manager."""

  def __init__(self):
    self.runs: dict[str, StubRun] = {}
    self.views: list[dict[str, Any]] = []  # saved workspaces
    self.authorized = True
    self._artifacts: list[StubArtifact] = []
    self._server = _Server(("127.0.0.1", 0), _Handler)
    self._server.stub = self
    self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

  def __enter__(self) -> Stub:
    threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._server.shutdown()
    self._server.server_close()

  @property
  def training(self) -> list[StubRun]:
    """The runs of training, in the order in which they came."""
    return [run for run in self.runs.values() if run.field("jobType") == "train"]

  def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The answer's `data`; raises Refused."""
    name = re.search(r"(?:query|mutation)\s+(\w+)", query)
    answer = getattr(self, f"_{name[1]}", None) if name else None
    return answer(variables) if answer else self._Viewer(variables)

  def _Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
    user = {"id": "u", "entity": "tester", "username": "tester", "flags": "{}"}
    return {"viewer": user | {"teams": {"edges": []}}, "serverInfo": {"features": []}}

  def _UpsertBucket(self, variables: dict[str, Any]) -> dict[str, Any]:
    name = variables["name"]
    project = variables.get("project") or "uncategorized"
    entity = variables.get("entity") or "tester"
    new = name not in self.runs
    run = self.runs.setdefault(name, StubRun(entity, project))
    run.upserts.append(variables)
    bucket = self._bucket(name, run) | {
      "project": {"name": run.project, "entity": {"name": run.entity}}
    }
    return {"upsertBucket": {"bucket": bucket, "inserted": new}}

  def _RunResumeStatus(self, variables: dict[str, Any]) -> dict[str, Any]:
    name = variables["name"]
    run = self.runs.get(name)
    known = run and {"id": "p", "name": run.project, "bucket": self._bucket(name, run)}
    return {"model": known}

  def _bucket(self, name: str, run: StubRun) -> dict[str, Any]:
    tail = [run.lines[number] for number in sorted(run.lines)][-1:]
    return {
      "id": f"id-{name}",
      "name": name,
      "displayName": run.field("displayName") or name,
      "description": "",
      "config": run.field("config") or "{}",
      "summaryMetrics": json.dumps(run.summary),
      "historyLineCount": len(run.lines),
      "eventsLineCount": 0,
      "logLineCount": 0,
      "historyTail": json.dumps(tail),
      "eventsTail": "[]",
      "wandbConfig": '{"t": 1}',
      "tags": run.field("tags") or [],
      "sweepName": None,
      "stopped": False,
    }

  def _CreateRunFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
    files = [{"name": each, "uploadUrl": f"{self.url}/files/{each}"} for each in variables["files"]]
    return {"createRunFiles": {"runID": "stub", "uploadHeaders": [], "files": files}}

  def _ArtifactType(self, _: dict[str, Any]) -> dict[str, Any]:
    return {"project": {"artifact": None}}

  def _CreateArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
    asked = variables["input"]
    artifact = StubArtifact()
    self.runs[asked["runName"]].artifacts[asked["clientID"]] = artifact
    self._artifacts.append(artifact)
    number = len(self._artifacts) - 1
    created = {"id": str(number), "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
    return {"createArtifact": {"artifact": created}}

  def _CreateArtifactManifest(self, variables: dict[str, Any]) -> dict[str, Any]:
    number = variables["artifactID"]
    file = {"id": "f", **self._upload(number, "manifest")} if variables["includeUpload"] else None
    return {"createArtifactManifest": {"artifactManifest": {"id": number, "file": file}}}

  def _CreateArtifactFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
    edges = [
      {
        "node": {
          **self._upload(each["artifactID"], each["name"]),
          "storagePath": each["name"],
          "uploadMultipartUrls": None,
          "artifact": {"id": each["artifactID"]},
        }
      }
      for each in variables["input"]["artifactFiles"]
    ]
    return {"createArtifactFiles": {"files": {"edges": edges}}}

  def _upload(self, number: str, name: str) -> dict[str, Any]:
    return {"uploadUrl": f"{self.url}/artifacts/{number}/{name}", "uploadHeaders": []}

  def _CommitArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
    self._artifacts[int(variables["artifactID"])].committed = True
    return {"commitArtifact": {"artifact": {"id": variables["artifactID"], "digest": ""}}}

  def _UpsertView2(self, variables: dict[str, Any]) -> dict[str, Any]:
    self.views.append(variables | {"spec": json.loads(variables["spec"])})
    view = {"id": f"view-{len(self.views)}", "name": variables["name"]}
    return {"upsertView": {"view": view, "inserted": True}}

  def _upsertView(self, variables: dict[str, Any]) -> dict[str, Any]:
    """Of a report."""
    answer = self._UpsertView2(variables)["upsertView"]["view"]
    project = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
    names = ("type", "description", "displayName", "spec")
    answer |= {name: variables[name] for name in names} | {"project": project}
    return {"upsertView": {"view": answer, "inserted": True}}

  def _ProjectInternalId(self, _: dict[str, Any]) -> dict[str, Any]:
    return {"project": {"id": "p", "internalId": "1"}}

  def _GetProjects(self, variables: dict[str, Any]) -> dict[str, Any]:
    node = {"id": "p", "name": "mine", "entityName": variables["entity"], "createdAt": "2026-01-01"}
    page = {"edges": [{"cursor": "c", "node": node | {"isBenchmark": False, "user": None}}]}
    return {"models": page | {"pageInfo": {"endCursor": None, "hasNextPage": False}}}

  def put(self, path: str, body: bytes) -> None:
    """Takes a file; of those of runs nothing is kept."""
    kind, _, rest = path.strip("/").partition("/")
    if kind == "artifacts":
      number, _, name = rest.partition("/")
      self._artifacts[int(number)].files[name] = body

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
    self.server.stub.put(urllib.parse.unquote(self.path), self._read())
    self._answer({})

  def do_POST(self) -> None:
    body, stub = self._read(), self.server.stub
    if not stub.authorized:
      self._answer({"errors": [{"message": "user is not logged in"}]}, 401)
    elif self.path == "/graphql":
      asked = json.loads(body)
      try:
        self._answer({"data": stub.graphql(asked["query"], asked.get("variables") or {})})
      except Refused as refused:
        self._answer({"errors": [{"message": str(refused)}]}, refused.status)
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
