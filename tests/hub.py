"""A loopback stand-in for the Hugging Face hub: the part of its protocol that `datasets` uses."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

# {"org/name": {"train.jsonl": content}}, with "org/name@branch" for a branch other than main
Repositories = dict[str, dict[str, bytes]]


@contextlib.contextmanager
def serve(
  repositories: Repositories, commit: str, broken: tuple[int, bytes] | None = None
) -> Iterator[str]:
  """The address of a hub that holds `repositories`: main at `commit`, a branch at its reverse.

  A `broken` one has the same status and content for whatever it is asked.
  """

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
      self.do_GET()

    def do_GET(self):
      if broken:
        return self.reply(*broken, {})
      api = self.path.startswith("/api/")
      path = urlsplit(self.path).path.removeprefix("/api").strip("/")
      # datasets/org/name/resolve/COMMIT/FILE and the like; a branch may have slashes in its name
      parts = [unquote(part) for part in path.split("/")]
      repository, rest = "/".join(parts[1:3]), parts[3:]
      names = {"main": repository, commit: repository}
      for name in repositories:
        if name.startswith(f"{repository}@"):
          names |= {name.partition("@")[2]: name, commit[::-1]: name}
      name = names.get(rest[1] if rest[1:] else "main")
      files = repositories.get(name)
      self.commit = commit if name == repository else commit[::-1]
      if files is None:
        missing = "RevisionNotFound" if repository in repositories else "RepoNotFound"
        self.reply(404, b"", {"X-Error-Code": missing})
      elif not api:
        self.file(files.get("/".join(rest[2:])))
      elif rest[:1] == ["tree"]:
        self.tree(files, "/".join(rest[2:]))
      else:
        siblings = [{"rfilename": path} for path in sorted(files)]
        self.json({"id": repository, "sha": self.commit, "siblings": siblings, "private": False})

    def file(self, content: bytes | None):
      if content is None:
        return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
      oid = hashlib.sha1(content).hexdigest()
      status, headers = 200, {"ETag": f'"{oid}"', "X-Repo-Commit": self.commit}
      if asked := self.headers.get("Range"):
        first, _, last = asked.removeprefix("bytes=").partition("-")
        whole, first = len(content), int(first)
        content = content[first : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{first + len(content) - 1}/{whole}"
        status = 206
      return self.reply(status, content, headers)

    def tree(self, files: dict[str, bytes], folder: str):
      """What lies directly in a folder."""
      inside = {path.removeprefix(f"{folder}/"): path for path in files}
      inside = {rest: path for rest, path in inside.items() if not folder or rest != path}
      entries = [
        {"type": "directory", "path": f"{folder}/{name}".strip("/"), "size": 0, "oid": name}
        for name in sorted({rest.split("/")[0] for rest in inside if "/" in rest})
      ]
      for path in (path for rest, path in inside.items() if "/" not in rest):
        oid = hashlib.sha1(files[path]).hexdigest()
        entries.append({"type": "file", "path": path, "size": len(files[path]), "oid": oid})
      self.json(entries)

    def json(self, value):
      self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, body: bytes, headers: dict[str, str]):
      self.send_response(status)
      for key, value in ({"Content-Length": str(len(body))} | headers).items():
        self.send_header(key, value)
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(body)

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{server.server_port}"
  finally:
    server.shutdown()
    server.server_close()
