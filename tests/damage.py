"""Kinds of damage of a file: each takes the path of a file, and random numbers."""

import json
import os


def missing(file, rng):
  file.unlink()


def empty(file, rng):
  file.write_bytes(b"")


def cut(file, rng):
  data = file.read_bytes()
  file.write_bytes(data[: rng.randrange(len(data) + 1)])


def zeros(file, rng):
  file.write_bytes(bytes(file.stat().st_size))


def binary(file, rng):
  file.write_bytes(rng.randbytes(file.stat().st_size))


def flipped(file, rng):
  data = bytearray(file.read_bytes())
  for _ in range(rng.randint(1, 3) if data else 0):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  file.write_bytes(data)


def dropped(file, rng):
  data = file.read_bytes()
  at = rng.randrange(len(data) + 1)
  file.write_bytes(data[:at] + data[at + rng.randint(1, 40) :])


def lines_swapped(file, rng):
  lines = file.read_bytes().splitlines(keepends=True)
  rng.shuffle(lines)
  file.write_bytes(b"".join(lines))


def another_kind(file, rng):
  texts = ["[]", "null", "7", '"text"', "{}", '{"a": 1}', "[" * 100_000, '{"step": "x"}\n' * 3]
  texts += ['{"step": 1e999}\n', "a: *b", "&a [*a]", "!!python/object/apply:os.system ['true']"]
  texts += ["seed: ${oc.env:HOME}", "\ufeff{}", "- 1", "a: 2024-01-01", "!!timestamp x", "a: !!int"]
  file.write_text(rng.choice(texts))


def value_changed(file, rng):
  """A value of a mapping becomes one of another type, or its key is gone."""
  import yaml

  values = [None, True, -1, 0, 10**400, 1e308, float("nan"), "x", "${seed}", "\ud800", [], [[]]]
  values += [{}, {"a": [1]}, ["x", 1], 10**12, "", "a\nb", 2.5]
  try:
    whole = yaml.safe_load(file.read_text()) if file.suffix == ".yaml" else None
    lines = [whole] if whole else [json.loads(line) for line in file.read_text().splitlines()]
  except ValueError:
    try:
      lines, whole = [json.loads(file.read_text())], True
    except ValueError:
      return flipped(file, rng)
  node = rng.choice(lines)
  while isinstance(node, dict) and node:
    key = rng.choice(list(node))
    if isinstance(node[key], dict) and node[key] and rng.random() < 0.7:
      node = node[key]
      continue
    if rng.random() < 0.3:
      del node[key]
    else:
      node[key] = rng.choice(values)
    break
  if file.suffix == ".yaml":
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
  else:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def no_file(file, rng):
  """A folder, a pipe, or a link to itself, to nothing or to a device stands in its place."""
  file.unlink()
  instead = rng.choice(["folder", "pipe", file.name, "nowhere", "/dev/zero"])
  if instead == "folder":
    file.mkdir()
  elif instead == "pipe":
    os.mkfifo(file)
  else:
    file.symlink_to(instead)


DAMAGE = [
  missing, empty, cut, zeros, binary, flipped, flipped, dropped, lines_swapped, another_kind,
  *[value_changed] * 3, *[no_file] * 5,
]  # fmt: skip
