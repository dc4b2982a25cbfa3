"""Data and run folders of others: damaged at random, without end, or made to break out of a page.

    POSEXP_FUZZ=3600 POSEXP_SEED=1 python -m pytest tests/test_hostile_data.py

goes on for so many seconds in each of the random tests, with that seed.
"""

import base64
import contextlib
import csv
import gzip
import hashlib
import importlib
import io
import json
import os
import random
import re
import sys
import time
import types
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import order
import pyarrow
import pyarrow.parquet
import pytest
import run_folders
import yaml

from posexp.data import sources
from posexp.errors import UNPRINTABLE, UserError, printable

SECONDS = float(os.environ.get("POSEXP_FUZZ", "3"))
SEED = int(os.environ.get("POSEXP_SEED", "0"))
ROWS = [(f"word{i % 7} und {i}, naïve 漢字", "ab"[i % 2]) for i in range(40)]
KINDS = (".jsonl", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.gz", ".parquet.gz", "")


def rounds():
  """A source of chance for each round, until the time is over."""
  end = time.monotonic() + SECONDS
  for number in range(10**9):
    if time.monotonic() > end:
      return
    yield random.Random(f"{SEED}/{number}")


def table(columns, rows, kind):
  """The bytes of a table."""
  if kind.startswith(".parquet"):
    file = io.BytesIO()
    pyarrow.parquet.write_table(
      pyarrow.table(dict(zip(columns, zip(*rows, strict=True), strict=True))), file
    )
    content = file.getvalue()
  elif kind.startswith(".json"):
    lines = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
    content = "\n".join(lines).encode()
  else:
    file = io.StringIO()
    csv.writer(file, delimiter="\t" if kind == ".tsv" else ",").writerows([columns, *rows])
    content = file.getvalue().encode()
  return gzip.compress(content, mtime=0) if kind.endswith(".gz") else content


def damaged(content, rng):
  """Bytes that are flipped, cut, dropped, repeated, swapped, or made up."""
  content = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 9))):
    i, j = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    j = rng.choice((j, min(i + 3, len(content))))
    part = bytes(content[i:j])
    match rng.randrange(6):
      case 0:
        content[i:j] = bytes(each ^ 1 << rng.randrange(8) for each in part)
      case 1:
        del content[i:j]
      case 2:
        content[i:j] = part * rng.choice((2, 3, 50))
      case 3:
        content[i:j] = bytes(len(part))
      case 4:
        content[i:j] = rng.randbytes(rng.choice((1, 4, 99)))
      case 5:
        words = (
          b'" \r \n , {} [ ] null NaN \\ud800 \\u0000 \xff \xef\xbb\xbf 1e999 "text": \t \x1b[2J \0'
        )
        content[i:i] = rng.choice(words.split(b" "))
  return bytes(content)


def read(task, kind):
  """All rows of the training split, or what a user reads instead."""
  try:
    return list((sources.labeled if kind else sources.pairs)(task)["train"]())
  except UserError as error:
    return str(error)


def test_random_damage_of_data_is_read_or_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  options = dict.fromkeys(["package", "hub", "validation", "test", "max_length"])
  options |= {"text": "text", "label": "label", "source": "en", "target": "de"}
  whole = {kind: table(("text", "label"), ROWS, kind) for kind in KINDS if kind}
  tried = read_at_all = 0
  for rng in rounds():
    kind = rng.choice(KINDS)
    task = types.SimpleNamespace(**options, train=f"t{kind}")
    names = [f"t{kind}"] if kind else ["t.en", "t.de"]
    for name in names:
      good = whole[kind] if kind else "".join(f"{row[0]}\n" for row in ROWS).encode()
      Path(name).write_bytes(damaged(good, rng))
    before = [Path(name).read_bytes() for name in names]
    found = read(task, kind)
    if isinstance(found, str):
      assert found.startswith(tuple(names)), found
      assert not UNPRINTABLE.search(found)
      assert len(found) < 2_500
    else:
      assert all(isinstance(each, str) for row in found for each in row)
      assert not kind or all(label.strip() for _, label in found)
      "".join(map("".join, found)).encode()
    assert [Path(name).read_bytes() for name in names] == before
    tried, read_at_all = tried + 1, read_at_all + (not isinstance(found, str))
  assert 0 < read_at_all < tried


def row(text, label=1):
  return json.dumps({"text": text, "label": label})


LONG = "x" * 10_000_000
SIZES = [
  (row(LONG), "line 3: the text has a word of 10,000,000 letters"),
  (row("a b " * 100_000), "line 3: .*400,000 .*set task.max_length"),
  (row("a b " * 600_000), "line 3: .*2,400,000 letters, which is too"),
  (row("x", LONG), "line 3: the label has a word of 10,000,000 letters"),
  (row(10**4_000), "line 3: the text is 1000"),
  (json.dumps({LONG: "x"}), "line 3: no column 'text', but xxx.*set task.text to one of them$"),
  ("[" * 10_000_000, "line 3: nested too deeply"),
  ('{"text": "x", "label": 1, "text": "y"}', "line 3: the column 'text' stands there twice"),
  (row("x", "\u3000"), r"line 3: the label is '\\u3000'; it must be a text"),
  (row("x", float("nan")), "line 3: the label is nan; it must be"),
  ('{"text": "x", "\\u001b[2J\\n": 1}', "line 3: no column 'label', but text, �.2J ;"),
  ("x" * (2**26 + 1), "line 3: longer than 64 MiB"),
]


@pytest.mark.parametrize(("line", "message"), SIZES, ids=range(len(SIZES)))
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_without_bounds_is_named(tmp_path, line, message, ending):
  good = b'{"text": "x", "label": 1}\n\n'
  path = tmp_path / f"a.jsonl{ending}"
  with gzip.open(path, "wb", 1) if ending else path.open("wb") as file:
    file.writelines((good, line.encode(), b"\n"))
  names = ["package", "hub", "validation", "test", "max_length"]
  task = types.SimpleNamespace(**dict.fromkeys(names), text="text", label="label", train=str(path))
  begun = time.monotonic()
  assert re.search(message, read(task, "a table")), read(task, "a table")
  assert time.monotonic() - begun < 20


def test_what_is_no_file_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "a.jsonl")
  os.symlink("/dev/zero", tmp_path / "b.csv.gz")
  (tmp_path / "c.parquet").mkdir()
  os.symlink("d.tsv", tmp_path / "d.tsv")
  for name in os.listdir(tmp_path):
    task = types.SimpleNamespace(train=f"{tmp_path}/{name}", validation=None, test=None)
    with pytest.raises(UserError, match=r"not a regular file|cannot be read: "):
      sources.labeled_digest(task)


HOSTILE = (
  "</title><script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  '" onmouseover="x',
  "]]><script/>&amp;",
  "\n\\input{/etc/passwd}",
  "}\\write18{touch owned}%",
  "\\\\[1cm]",
  "[0]*2",
  "$\\frac{$ $x$ ^_#~&",
  "=HYPERLINK(1)",
  "+1+cmd|' /C calc'!A0",
  "-2+3",
  "@SUM(1)",
  "\t=1",
  "a|b\n|---|\n# c",
  "![p](http://x/y.png) [l](javascript:x) [r]: http://x",
  "`rm -rf`\n```\n~~~",
  "\x1b[2J\x1b]0;title\x07",
  "\x9b31m\x00\x08",
  "\u202etxt.exe\u2066",
  "日本 語, עברית, naïve",
  "../../x",
  "%s %n {0} ${oc.env:HOME} !!python/object:os.system",
  "x" * 300,
  "NaN",
  "1e308",
  "-1",
  "",
)


def hostile(rng):
  """A text that somebody would choose to break out of where it stands."""
  return "".join(rng.choices(HOSTILE, k=rng.choice((1, 1, 1, 2))))


NUMBERS = (0, -1, 7, 2.5, 1e300, float("inf"), float("nan"), 10**40)


def value(rng):
  """A hostile value of an option."""
  text, number = hostile(rng), rng.choice(NUMBERS)
  return rng.choice((text, text, number, True, None, [text, number], {text: number}, {}, []))


def typed(command, *argv):
  """Types a command in this process: its status, and what it prints."""
  main = importlib.import_module(f"posexp.{command}").main
  out, err, status = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
  with (
    mock.patch.object(sys, "argv", [command, *map(str, argv)]),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    try:
      main()
    except SystemExit as end:
      status = end.code or 0
  out.flush()
  return order.Typed(status, out.buffer.getvalue().decode(), err.getvalue())


def contents(folder):
  """A digest of every file in a folder, by its path."""
  return {
    path: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


def hostile_runs(root, rng):
  """Two groups of two runs that agree on nothing but their examples; the folders of the groups."""
  text, options = hostile(rng), [hostile(rng) for _ in range(3)]
  part = rng.choice((hostile(rng), "6"))
  references = [[hostile(rng) for _ in range(2)] for _ in range(8)]
  folders = []
  for group, encoding in enumerate((rng.choice(("rpr", hostile(rng))), "none")):
    for seed in range(2):
      score = rng.choice((0.5, 0.25, 1.0, 1e300)) * (1 + 0.1 * seed)
      path = run_folders.write(root, f"e{group}", seed, score, data=str(group))
      config = yaml.safe_load((path / "config.yaml").read_text())
      config |= {"encoding": encoding, encoding: {"form": options[group], "k": value(rng)}}
      config["task"] |= {"name": text, "target": hostile(rng), hostile(rng): options[2]}
      config["model"] |= {"dropout": value(rng), hostile(rng): value(rng)}
      (path / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
      summary = json.loads((path / "summary.json").read_text())
      summary |= {f"test/accuracy/{part}": score, f"test/accuracy/{part}2": score}
      summary |= {"devices": hostile(rng), f"{hostile(rng)}/{hostile(rng)}": rng.choice(NUMBERS)}
      row = {"step": rng.choice((21, 20.5, 10**12)), hostile(rng): rng.choice(NUMBERS)}
      row |= {"validation/accuracy": rng.choice(NUMBERS)}
      if rng.random() < 0.1:
        keys = ("headline", "metrics", "parameters", "time/seconds", "test/accuracy", hostile(rng))
        summary[rng.choice(keys)] = value(rng)
        row[hostile(rng)] = value(rng)
      with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
      (path / "summary.json").write_text(json.dumps(summary))
      if rng.random() < 0.1:
        (path / "summary.json").unlink()
        (path / "train.log").write_text(f"ValueError: {hostile(rng)}", encoding="utf-8")
      rows = [
        {"index": i, "text": source, "label": label, "prediction": rng.choice((label, "b"))}
        for i, (source, label) in enumerate(references)
      ]
      (path / "predictions").mkdir()
      lines = "".join(json.dumps(row) + "\n" for row in rows)
      (path / "predictions/test.jsonl").write_text(lines)
    folders.append(path.parent)
  return folders


def answered(found):
  """A command has ended as it should, and has printed nothing that upsets a terminal."""
  assert found.status in (0, 1, 2), found
  assert "Traceback" not in found.err
  assert found.err.count("\n") == (1 if found.status == 2 else 0), found.err
  assert not UNPRINTABLE.search((found.out + found.err).replace("\n", "")), found


class Tags(HTMLParser):
  """The tags of a page and their attributes, and the pictures in it."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.names, self.pictures = set(), set(), []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.names |= {name for name, _ in attrs}
    if tag == "img":
      address = dict(attrs)["src"]
      assert address.startswith("data:image/svg+xml;base64,")
      self.pictures.append(base64.b64decode(address.partition(",")[2]))


TAGS = set(
  re.findall(
    r"\w+",
    "html head meta title style body section div p table thead tbody tr th td ul li "
    "h1 h2 h3 figure img details summary",
  )
)
COMMANDS = set(
  re.findall(
    r"\w+",
    "usepackage begin end toprule midrule bottomrule textbackslash ensuremath "
    "textasciitilde textasciicircum pm",
  )
)


def quoted(out):
  """Nothing in a report's files leaves its place."""
  page = Tags((out / "report.html").read_text(encoding="utf-8"))
  assert page.tags <= TAGS
  assert page.names <= {"lang", "charset", "name", "content", "class", "style", "alt", "src"}
  for picture in page.pictures:
    tree = ET.fromstring(picture)
    assert not {each.tag.rpartition("}")[2] for each in tree.iter()} & {"script", "a", "image"}
  first, *rest = (out / "report.tex").read_text(encoding="utf-8").split("\n")
  latex = "\n".join(rest)
  assert first == "% needs \\usepackage{booktabs}"
  assert set(re.findall(r"\\([A-Za-z]+)", latex)) <= COMMANDS
  assert not re.search(r"(?<!\\)[%#]|^\s*[\[*]", latex, re.MULTILINE)
  bare = re.sub(r"\\[{}\\]", "", latex)
  assert bare.count("{") == bare.count("}")
  markdown = (out / "report.md").read_text(encoding="utf-8")
  assert not re.search(r"<[A-Za-z/!?]|\]\(|(\n\n|\n- )\[[^\]]*\]:|(?<!\\)`", markdown)
  for block in markdown.split("\n\n"):
    rows = [line for line in block.split("\n") if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, block
  for name in ("groups.csv", "runs.csv"):
    with (out / name).open(encoding="utf-8", newline="") as file:
      cells = [cell for row in csv.reader(file) for cell in row]
    formulas = [cell for cell in cells if cell[:1] in tuple("=+-@\t\r")]
    assert all(re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", cell) for cell in formulas), formulas


def test_hostile_runs_are_quoted_wherever_they_are_shown(tmp_path, apart):
  reported = compared = 0
  for number, rng in enumerate(rounds()):
    root = tmp_path / str(number)
    folders = hostile_runs(root, rng)
    before = contents(root)
    report = typed("report", root, "--out", tmp_path / "out")
    answered(typed("sync", root, "--dry-run"))
    compare = typed("compare", *folders, "--json", tmp_path / "compare.json")
    answered(report)
    answered(compare)
    assert contents(root) == before
    if report.status == 0:
      quoted(tmp_path / "out")
      reported += 1
    if compare.status == 0:
      json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
      compared += 1
  assert reported
  assert compared


def stays_in_its_place(run):
  """A run that somebody sent neither executes a file that it names nor writes where it links to."""
  away, owned = Path("away"), Path("owned")
  away.mkdir()
  for name in ("figures", "wandb"):
    (run / name).symlink_to(away.absolute())
  for command, *argv in (
    ("evaluate", run, "--grid"),
    ("inspect", f"run={run}"),
    ("sync", run, "--dry-run"),
  ):
    answered(typed(command, *argv))
  assert not list(away.iterdir())
  (run / "figures").unlink()
  (run / "figures").mkdir()
  away.rmdir()
  away.write_text("good")
  (run / "figures/terms-test.svg").symlink_to(away.absolute())
  answered(typed("evaluate", run, "--grid"))
  assert away.read_text() == "good"
  Path("own.py").write_text("open('owned', 'w')")
  config = yaml.safe_load((run / "config.yaml").read_text())
  plugin = {"name": "own", "path": str(Path("own.py").absolute()), "sha256": "0" * 64}
  config |= {"encoding": "own", "own": {}, "plugins": {"encoding": plugin}}
  (run / "config.yaml").write_text(yaml.safe_dump(config))
  for command, *argv in (
    ("evaluate", run),
    ("inspect", f"run={run}"),
    ("translate", run, "x"),
    ("report", run),
    ("compare", run, run),
    ("sync", run, "--dry-run"),
  ):
    answered(typed(command, *argv))
  assert not owned.exists()


def test_hostile_labels_and_texts_are_trained_and_evaluated(tmp_path):
  rng = random.Random(SEED)
  labels = ["=1+1", "\x1b[2J</script>\n", "日本 語"]
  with order.home(tmp_path):
    for split, count in (("train", 64), ("validation", 20), ("test", 20)):
      rows = [{"text": hostile(rng) + f" {i}", "label": labels[i % 3]} for i in range(count)]
      Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [f"task.{split}={split}.jsonl" for split in ("train", "validation", "test")]
    argv = ["task=text_classification", *argv, *order.MODEL, "train.steps=2", "train.warmup=1"]
    argv += ["wandb.mode=disabled", "task.max_length=16", "train.batch_size=16"]
    argv += ["train.evaluate_every=1", "train.log_every=1", "task.tokenizer=bpe"]
    for seed in range(2):
      answered(order.command(*argv, f"seed={seed}"))
    run, other = sorted(Path("runs").glob("*/*/*/seed=*"))
    before = contents(run)
    for found in (
      typed("evaluate", run, "--without", "everything"),
      typed("evaluate", run),
      typed("compare", run, other),
      typed("report", "runs"),
    ):
      answered(found)
    quoted(Path("report"))
    after = contents(run)
    assert {path: after[path] for path in before} == before
    stays_in_its_place(run)


def test_a_header_stays_in_its_lines(caplog):
  from posexp.training import terminal

  caplog.set_level("INFO", "posexp")
  text = "x\n\x1b[2J\u202e"
  data = types.SimpleNamespace(
    sizes={"train": 1}, about=(text, text), unit="texts", notes=(text,), length=8
  )
  size = dict.fromkeys(("d_model", "num_heads", "num_layers"), 1)
  size |= {"match": "none", "norm": text, "dtype": text}
  config = {"encoding": text, text: {text: text}, "model": size, "seed": 0}
  config |= {"task": {"name": text}, "train": {"batch_size": 1}}
  facts = dict.fromkeys(("parameters", "flops_per_token", "d_ff", "steps"), 1)
  facts |= {"parameters_of_none": 1, "flops_per_token_of_none": 1}
  facts |= {"attention": text, "devices": text}
  terminal.header(config, data, facts, Path(text), text)
  assert len(caplog.messages) == 9
  assert not any(UNPRINTABLE.search(line) for line in caplog.messages)


def test_names_in_wandb_are_short_and_in_one_line(tmp_path):
  from posexp.tracking.wandb_run import WandbOptions, run_settings

  folder = tmp_path / "a\nb" / "seed=0"
  (folder / "wandb").mkdir(parents=True)
  (folder / "wandb/id").write_text("../../x\n")
  config = {"encoding": "e\x1b" * 99, "task": {"name": "t\n" * 99}, "seed": 0}
  found = run_settings(WandbOptions(), config, {}, folder)
  assert re.fullmatch(r"a_b-[0-9a-f]{8}", found["id"])
  assert run_settings(WandbOptions(), config, {}, folder)["id"] == found["id"]
  assert max(map(len, (found["name"], found["group"]))) <= 128
  assert all(1 <= len(tag) <= 64 for tag in found["tags"])
  assert not any(UNPRINTABLE.search(name) for name in (found["name"], *found["tags"]))


def test_a_message_is_one_line_that_can_be_read():
  message = str(UserError(f"a\tb\r\n\x1b[1m {'x' * 10_000_000}\ud800: remove it"))
  assert message.startswith("a b  �[1m xxx")
  assert message.endswith("x�: remove it")
  assert len(message) < 2_000
  assert printable("日本\u200d 語") == "日本\u200d 語"
