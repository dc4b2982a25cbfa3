"""The files of the guide to encodings and tasks of one's own, by their names."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs/own.md").read_text("utf-8")
BLOCKS = re.findall(r'(?ms)^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', TEXT)
FILES = {name: text for _, name, text in BLOCKS if name}
