"""The workspace that scripts/wandb_workspace.py saves, seen by a stub of the server."""

import base64
import runpy
import sys
from pathlib import Path

import pytest
import run_folders

from posexp.errors import UserError

SCRIPT = Path(__file__).parents[2] / "scripts/wandb_workspace.py"


def save(*typed):
  runpy.run_path(str(SCRIPT))["main"](list(typed))


def panels(view, section):
  [found] = [
    each["panels"]
    for each in view["spec"]["section"]["panelBankConfig"]["sections"]
    if each["name"] == section
  ]
  return found


def test_it_holds_scores_and_curves_of_a_task(stub, tmp_path, capsys):
  pytest.importorskip("wandb_workspaces", reason="of the extra `workspace`")
  groups = {("rpr", 2): [0.5, 0.6, 0.55], ("rpr", 4): [0.8], "none": [0.4, 0.41, 0.39]}
  run_folders.sweep(tmp_path / "runs", groups)
  [first] = (tmp_path / "runs/toy/none").glob("*/seed=0")
  (first / "wandb").mkdir()
  (first / "wandb/id").write_text("abc123")
  save("--project", "mine", "--entity", "team")
  view, written = stub.views
  assert (written["type"], written["projectName"]) == ("runs", "mine")
  text = next(each for each in written["spec"]["blocks"] if each["type"] == "markdown-block")
  assert "| rpr k=2 | 3 |" in " ".join(text["content"].split())
  assert "Against none:" in text["content"]
  assert "Welch's t tests" in text["content"]
  [grid] = [each for each in written["spec"]["blocks"] if each["type"] == "panel-grid"]
  assert len(grid["metadata"]["panelBankSectionConfig"]["panels"]) > 1
  assert (view["entityName"], view["projectName"]) == ("team", "mine")
  assert view["displayName"] == "posexp: toy"
  assert capsys.readouterr().out.startswith(f"toy: {stub.url}/team/mine?nw=")
  [runs] = view["spec"]["section"]["runSets"]
  assert [each["name"] for each in runs["grouping"]] == ["encoding.value", "rpr.value.k"]
  assert base64.b64decode(runs["baselineRunId"]) == b"Run:v1:abc123:mine:team"
  [only] = runs["filters"]["filters"]
  assert (only["key"]["name"], only["value"]) == ("task.name", "toy")
  [bars] = panels(view, "Scores")
  assert bars["config"]["metrics"] == ["test/accuracy"]
  assert (bars["config"]["groupBy"], bars["config"]["groupArea"]) == ("encoding.value", "stddev")
  curve, *_ = panels(view, "Learning curves")
  assert curve["config"]["metrics"] == ["validation/accuracy"]
  assert (curve["config"]["xAxis"], curve["config"]["groupBy"]) == ("step", "encoding.value")


def test_what_stands_in_its_way(apart, tmp_path, monkeypatch):
  with pytest.raises(UserError, match="runs: there is no such folder"):
    save()
  run_folders.sweep(tmp_path / "runs", {"none": [None]})
  with pytest.raises(UserError, match="none of the runs has finished"):
    save()
  run_folders.sweep(tmp_path / "runs", {"rpr": [0.5]})
  monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
  with pytest.raises(UserError, match=r"wandb-workspaces is missing: pip install -e '\.\[works"):
    save()
