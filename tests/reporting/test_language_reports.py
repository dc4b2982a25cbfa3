"""Language models in reports and comparisons, from run folders made by hand."""

import json
import math
import re

import numpy as np
import pytest
from compared import typed
from run_folders import report, write

from posexp.errors import UserError
from posexp.reporting import figures
from posexp.reporting.charts import charts
from posexp.runs.context_losses import ContextLosses, write_context_losses

TEXT = "naïve – " * 300
CUT = 16


def run(root, encoding, seed, nats, *, cut=CUT, text=TEXT, **more):
  """A run that has read the text in parts of `cut` bytes, for so many nats a byte."""
  content = text.encode()
  path = write(root, encoding, seed, nats / math.log(2), metric="test/bits_per_byte",
               **{"task.kind": "language_modeling", "test/bytes": len(content)} | more)  # fmt: skip
  random = np.random.default_rng(seed)
  rows = []
  for index, start in enumerate(range(0, len(content), cut)):
    part = content[start : start + cut]
    row = {"index": index, "text": part.decode(errors="replace"), "tokens": len(part)}
    rows.append(row | {"bytes": len(part), "loss": len(part) * (nats + random.normal(0, 0.01))})
  bits = sum(row["loss"] for row in rows) / math.log(2) / len(content)
  summary = json.loads((path / "summary.json").read_text())
  (path / "summary.json").write_text(json.dumps(summary | {"test/bits_per_byte": bits}))
  (path / "predictions").mkdir()
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (path / "predictions" / "test.jsonl").write_text(lines)
  return path


@pytest.mark.parametrize("cut", [24, 7])
def test_two_models_are_compared_on_what_both_have_read(tmp_path, cut, capsys):
  a, b = run(tmp_path, "rpr", 0, 1.2), run(tmp_path, "none", 0, 1.5, cut=cut)
  found = typed(a, b)
  bits = found["metrics"]["bits_per_byte"]
  rows = [json.loads(line) for line in (a / "predictions" / "test.jsonl").open()]
  exact = sum(row["loss"] for row in rows) / math.log(2) / len(TEXT.encode())
  assert bits["a"]["value"] == pytest.approx(exact)
  size = len(TEXT.encode())
  assert found["examples"] == math.ceil(size / math.lcm(CUT, cut))
  assert bits["difference"]["value"] == pytest.approx(-0.3 / math.log(2), abs=0.01)
  assert bits["p"] < 0.05
  out = " ".join(capsys.readouterr().out.split())
  assert re.search(r"rpr is better than none by 0\.4\d\d\d bits per byte \(over [\d,]+ segm", out)
  assert re.search(r"95 % 0\.4\d+ to 0\.4\d+, p ", out)


def test_words_without_predictions_are_noted(tmp_path):
  a, b = run(tmp_path, "rpr", 0, 1.2), run(tmp_path, "none", 0, 1.5)
  assert typed(a, b)["notes"] == []
  summary = json.loads((b / "summary.json").read_text())
  (b / "summary.json").write_text(json.dumps(summary | {"test/bits_per_byte": 3.5}))
  (note,) = typed(a, b)["notes"]
  assert note == (
    f"{b}: 3.5000 bits per byte with the words that its vocabulary lacks, which do not count here"
  )


def test_what_differs_most_is_shown_with_its_bits(tmp_path, capsys):
  a, b = run(tmp_path, "rpr", 0, 1.2), run(tmp_path, "none", 0, 1.5)
  typed(a, b, "--examples", 1)
  out = capsys.readouterr().out
  assert re.search(r"\n  rpr +1\.7\d\d bits per byte\n  none +2\.\d\d\d bits per byte", out)
  assert "source" not in out


def test_other_texts_are_not_compared(tmp_path):
  a = run(tmp_path, "rpr", 0, 1.2)
  other = run(tmp_path, "none", 0, 1.5, text=TEXT[8:])
  with pytest.raises(UserError, match=r"bits per byte of two texts say nothing of each other"):
    typed(a, other)
  same_size = run(tmp_path, "alibi", 0, 1.5, text=TEXT.replace("v", "w"))
  with pytest.raises(UserError, match=r"has other test data than .*, from example 0 on"):
    typed(a, same_size)
  rows = (a / "predictions" / "test.jsonl").read_text().replace('"bytes": 16', '"bytes": -1')
  (a / "predictions" / "test.jsonl").write_text(rows)
  with pytest.raises(UserError, match="its predictions of test have no numbers in loss, bytes"):
    typed(a, same_size)


def test_a_report_compares_no_models_of_different_texts(tmp_path, said):
  for seed in (0, 1, 2):
    run(tmp_path, "none", seed, 1.5 + seed / 100)
    run(tmp_path, "rpr", seed, 1.2 + seed / 70)
    run(tmp_path, "alibi", seed, 1.1 + seed / 60, text=TEXT * 2)
  text = said(tmp_path)
  assert "rpr beats none: " in text
  assert "alibi beats" not in text
  assert "Groups were tested on different texts, of 6,600, 3,300 bytes: " in text


def test_one_group_of_different_texts_has_no_mean(tmp_path, said):
  run(tmp_path, "none", 0, 1.5)
  run(tmp_path, "none", 1, 1.5, text=TEXT * 2)
  run(tmp_path, "rpr", 0, 1.2)
  assert "none mixes bytes of text = " in said(tmp_path)


def measured(path, means, places=40):
  random = np.random.default_rng(0)
  nats = {
    context: (mean + random.normal(0, 0.1, places)).astype(np.float32)
    for context, mean in means.items()
  }
  found = ContextLosses("text", np.arange(places), np.ones(places, int), nats)
  write_context_losses(path, "test", found)
  return found


def test_contexts_of_groups_are_a_chart_of_means_over_seeds(tmp_path, capsys):
  given = (("rpr", 1.2, (1.6, 1.4)), ("learned", 1.5, (1.7,)), ("none", 1.6, (1.7, 1.7)))
  found = {
    (name, seed): measured(
      run(tmp_path, name, seed, nats, **{"task.segment": 128}),
      dict(zip((16, 128), means, strict=False)),
    )
    for name, nats, means in given
    for seed in (0, 1)
  }
  (results,) = report(tmp_path, "--no-files")
  text = " ".join(capsys.readouterr().out.split())
  assert "| gain over 16 tokens (bits per byte) |" in text
  rows = r"\| rpr \| \+0\.[23]\d{3} \| \| learned \| — \| \| none \| [+-]0\.0\d{3} \|"
  assert re.search(rows, text)
  assert "Note: More context than 16 tokens gains less than 0.05 bits per byte with none:" in text
  (chart,) = [each for each in charts(results) if each.kind == "contexts"]
  points = {(point.series, point.x): point.found for point in chart.points}
  assert [*points] == [*((name, 16) for name, *_ in given), ("rpr", 128), ("none", 128)]
  bits = [found["rpr", seed].nats[128].mean(dtype=float) / math.log(2) for seed in (0, 1)]
  assert points["rpr", 128].mean == pytest.approx(np.mean(bits))
  assert chart.title == "test bits per byte by tokens that are read before"
  (figure,) = [each for each in figures.figures(results) if chart in each.charts]
  svg = figure.drawn()
  assert ">128<" in svg
  assert "rpr" in svg


def test_damaged_losses_leave_the_rest_of_a_report(tmp_path, said):
  path = run(tmp_path, "rpr", 0, 1.2)
  run(tmp_path, "none", 0, 1.5)
  measured(path, {16: 1.0, 32: 0.9})
  (path / "context" / "test.npz").write_bytes(b"PK")
  text = said(tmp_path)
  assert "rpr is first of 2 groups" in text
  assert "test.npz is damaged" in text
