"""Run folders of others, made to break out of a page, a table or a terminal.

`tests/fuzz.py` says for how long, and with which seed.
"""

import base64
import contextlib
import csv
import json
import os
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import order
import pytest
import run_folders
import yaml
from fuzz import SEED, contents, rounds, typed

from posexp.errors import UNPRINTABLE, UserError
from posexp.reporting import figures, paper
from posexp.runs import RunWriter, read_runs, records
from posexp.runs.records import read_records, write_records
from posexp.sweeps import sweep

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
  """The tags of a page, their attributes, and what its scripts are."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.names, self.scripts, self.open = [], set(), [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.names |= {name for name, _ in attrs}
    if tag not in ("meta", "input"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.tags and self.tags[-1] == "script" and data.strip():
      self.scripts.append(data)


TAGS = "html head meta title style body section div p table thead tbody tr th td ul li h1 h2 h3 "
TAGS += "figure figcaption details summary script noscript label select input"
COMMANDS = "usepackage begin end toprule midrule bottomrule textbackslash ensuremath "
COMMANDS += "textasciitilde textasciicircum pm table centering caption label textbf"
SCRIPT = Path(figures.__file__).with_name("page.js")
NAMES = "lang charset name content class style type id data-chart data-charts"


def quoted(out):
  """Nothing in a report's files leaves its place."""
  text = (out / "report.html").read_text(encoding="utf-8")
  page = Tags(text)
  assert not page.open
  assert not re.search(r"url\(|@import|@font-face", text.partition("<script")[0])
  assert len(text) < 5_000_000
  assert {*page.tags} <= {*TAGS.split()}
  assert page.names <= {*NAMES.split()}
  charts, *scripts = page.scripts
  assert scripts == [figures.library(), f"\n{SCRIPT.read_text(encoding='utf-8')}"]
  assert "<" not in charts
  json.loads(charts)
  first, *rest = (out / "paper.tex").read_text(encoding="utf-8").split("\n")
  assert first.removesuffix(paper.WIDE_LETTERS) == "% needs \\usepackage{booktabs}"
  latex = "\n".join(rest)
  assert {*re.findall(r"\\([A-Za-z]+)", latex)} <= {*COMMANDS.split()}
  assert not re.search(r"(?<!\\)[%#]|^\s*[\[*]", latex, re.MULTILINE)
  bare = re.sub(r"\\[{}\\]", "", latex)
  assert bare.count("{") == bare.count("}")
  for name in ("report.md", "paper.md"):
    markdown = (out / name).read_text(encoding="utf-8")
    assert not re.search(r"<[A-Za-z/!?]|\]\(|(\n\n|\n- )\[[^\]]*\]:|(?<!\\)`", markdown)
    for block in markdown.split("\n\n"):
      rows = [line for line in block.split("\n") if line.startswith("|")]
      assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, block
  for name in ("groups.csv", "runs.csv", "paper.csv"):
    with (out / name).open(encoding="utf-8", newline="") as file:
      cells = [cell for row in csv.reader(file) for cell in row]
    formulas = [cell for cell in cells if cell[:1] in tuple("=+-@\t\r")]
    assert all(re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", cell) for cell in formulas), formulas


def test_hostile_runs_are_quoted_wherever_they_are_shown(tmp_path, apart):
  reported = compared = 0
  for number, rng in enumerate(rounds(2)):
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


PRECIOUS = "written by nobody else"


def linked(file):
  """A link in the place of a file, to one that is not to be written."""
  away = file.parents[5] / "precious"
  away.write_text(PRECIOUS)
  file.unlink(missing_ok=True)
  file.symlink_to(away)


def piped(file):
  file.unlink(missing_ok=True)
  os.mkfifo(file)


def freed(run):
  """Whether a checkpoint too many is gone."""
  spare = run / "checkpoints/10"
  spare.mkdir(parents=True, exist_ok=True)
  found = typed("clean", run.parents[3], "--keep", "best")
  answered(found)
  return not spare.exists()


@pytest.mark.parametrize("harm", [linked, piped])
@pytest.mark.parametrize("name", [".pid", ".lock", "train.log", "metrics.jsonl"])
def test_a_received_run_writes_over_no_other_file(tmp_path, name, harm):
  run = run_folders.write(tmp_path / "runs", "rpr", 0, 0.5)
  harm(run / name)
  assert freed(run) or name != ".pid"
  with contextlib.suppress(UserError, OSError), RunWriter(run, config_of(run)) as writer:
    writer.log(30, {"train/loss": 0.5})
    raise UserError("which is logged")
  precious = tmp_path / "precious"
  assert not precious.exists() or precious.read_text() == PRECIOUS
  assert typed("report", tmp_path / "runs", "--no-files").status in (0, 2)


@pytest.mark.parametrize("name", ["checkpoints", "predictions", "context", "wandb", "tensorboard"])
def test_a_received_run_has_its_folders_nowhere_else(tmp_path, name):
  run = run_folders.write(tmp_path / "runs", "rpr", 0, 0.5)
  away = tmp_path / "elsewhere"
  away.mkdir()
  (run / name).symlink_to(away)
  with pytest.raises(UserError, match=f"{name}: a link, where the run has its own"):
    RunWriter(run, config_of(run)).__enter__()
  assert not freed(run)
  assert not list(away.glob("*/*"))


def config_of(run):
  return yaml.safe_load((run / "config.yaml").read_text())


def test_a_failed_run_of_a_sweep_leaves_its_traceback_in_no_other_file(tmp_path):
  run = run_folders.write(tmp_path / "runs", "rpr", 0)
  member = sweep.Member(1, "", "", {"seed": 0, "train": {}}, run)

  def train(config):
    raise ValueError("no reason")

  begun_nowhere = sweep.Member(2, "", "", {"seed": 1, "train": {}}, run.with_name("seed=1"))
  assert sweep.attempt(train, begun_nowhere)[0] == sweep.FAILED
  assert (begun_nowhere.path / "train.log").read_text().endswith("ValueError: no reason\n")
  state, why = sweep.attempt(train, member)
  assert (state, (run / "train.log").read_text().count("no reason")) == (sweep.FAILED, 2)
  assert "its traceback is in" in why
  linked(run / "train.log")
  state, why = sweep.attempt(train, member)
  assert state == sweep.FAILED
  assert "ValueError: no reason; its traceback is lost" in why
  assert (tmp_path / "precious").read_text() == PRECIOUS


ROW = {"of": "x", "count": 64, "right": base64.b64encode(bytes(8)).decode()}
EXAMPLES = [
  {"accuracy": ROW | {"count": count}}
  for count in (65, 10**10, 10**18, 10**400, -9, "x", None, 1.5)
]
EXAMPLES += [[1, 2], 7, None, "x", {"accuracy": 7}, {"accuracy": [1]}, {"accuracy": {"right": 7}}]
EXAMPLES += [{"accuracy": {"of": "x", "amounts": "AAAA", "sizes": 5}}, {"accuracy": {}}]


@pytest.mark.parametrize("examples", EXAMPLES, ids=range(len(EXAMPLES)))
def test_records_of_other_kinds_are_named(tmp_path, examples):
  run_folders.sweep(tmp_path / "runs", {"rpr": [0.5, 0.6], "none": [0.4, 0.5]})
  file = tmp_path / "records.parquet"
  write_records(file, read_runs([tmp_path / "runs"])[0], lambda run: {"test": examples})
  found = typed("report", file, "--no-files")
  answered(found)
  assert (found.status, "its scores of examples are damaged" in found.err) == (2, True), found


@pytest.mark.parametrize(("bound", "value"), [("RUNS", 3), ("TEXT", 2_000), ("VALUES", 100)])
def test_records_are_bounded(tmp_path, monkeypatch, bound, value):
  run_folders.sweep(tmp_path / "runs", {"rpr": [0.5, 0.6], "none": [0.4, 0.5]})
  file = tmp_path / "records.parquet"
  write_records(file, read_runs([tmp_path / "runs"])[0])
  assert len(read_records(file)) == 4
  monkeypatch.setattr(records, bound, value)
  with pytest.raises(UserError, match=r"part it$"):
    read_records(file)


@pytest.mark.parametrize("text", [".999999f", "0999999f", ".10f", "x", "100", ">9999999"])
def test_a_metric_is_no_longer_than_a_line(tmp_path, text):
  row = {"name": "accuracy", "title": "accuracy", "format": text}
  run_folders.write(tmp_path, "rpr", 0, 0.5, metrics=[row])
  found = typed("report", tmp_path, "--no-files")
  answered(found)
  assert "its summary.json is broken" in found.err


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


@pytest.mark.slow
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
    answered(order.command(*argv))
    run = order.only("runs")
    other = shutil.copytree(run, run.with_name("seed=1"))
    (other / "run.sha256").unlink()  # by which another seed would be noticed
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("\nseed: 0", "\nseed: 1"))
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
