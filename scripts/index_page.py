"""What a package index shows of posexp: a hook for the builds of wheels and sdists.

Links of README.md are relative, which an index cannot follow. A build of a workflow knows the
address of the repository, to which they lead from there; otherwise their words stay, without links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^][]*)\]\((?!https?:|#)([^)\s]+)\)")


class IndexPage(MetadataHookInterface):
  """The hook that `[tool.hatch.metadata.hooks.custom]` names."""

  def update(self, metadata: dict[str, Any]) -> None:
    address = repository(os.environ)
    text = described(Path(self.root, "README.md").read_text("utf-8"), address)
    metadata["readme"] = {"content-type": "text/markdown", "text": text}
    if address:
      pages = {"Documentation": "docs/index.md", "Changes": "CHANGELOG.md"}
      metadata["urls"] = {"Repository": address, "Issues": f"{address}/issues"}
      metadata["urls"] |= {name: f"{address}/blob/HEAD/{page}" for name, page in pages.items()}


def repository(environ: Any) -> str | None:
  """Return the address of the repository that a workflow builds; None elsewhere."""
  parts = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
  return "/".join(parts) if all(parts) else None


def described(text: str, address: str | None) -> str:
  """Return a text in Markdown whose relative links and images lead to a repository.

  Without an address their words stay, without links.
  """

  def absolute(link: re.Match[str]) -> str:
    image, words, target = link.groups()
    if not address:
      return words
    return f"{image}[{words}]({address}/{'raw' if image else 'blob'}/HEAD/{target})"

  return LINK.sub(absolute, text)
