"""Labels, and the report that is written of any runs: no empty part, and what to type next."""

import csv
import html
import json
import re
import types

import pytest
from run_folders import A, B, report, sweep, write

from posexp.errors import UserError
from posexp.reporting import grouping
from posexp.reporting import labels as naming
from posexp.reporting.figures import Figure, save


def declare(root, labels, task="toy", encoding="*"):
  """Have the runs of a task declare labels, as an experiment's file does."""
  for file in root.glob(f"{task}/{encoding}/*/*/config.yaml"):
    file.write_text(file.read_text() + f"labels: {labels}\n")


def write_tested(root, encoding, scores, labels, **more):
  """Write runs, a seed for each score, with predictions for 100 examples that have these labels."""
  for seed, score in enumerate(scores):
    file = write(root, encoding, seed, score, **more) / "predictions" / "test.jsonl"
    file.parent.mkdir()
    right = [at < round(100 * score) for at in range(100)]
    rows = zip((100 * labels)[:100], right, strict=True)
    lines = [json.dumps({"label": y, "prediction": y if ok else "x"}) for y, ok in rows]
    file.write_text("\n".join(lines) + "\n")


def test_groups_that_were_tested_on_other_data_are_not_compared(tmp_path, said):
  for encoding, scores, labels in (("none", B, "ab"), ("rope", A, "ba"), ("rpr", A, "ab")):
    write_tested(tmp_path / "a", encoding, scores, labels)
    for fold, of_fold in enumerate(("ab", "ba", "aab", "abb", "aba")):  # the same for all groups
      write_tested(tmp_path / "b", encoding, scores[:2], of_fold, **{"task.fold": fold})
  text = said(tmp_path / "a")
  assert "Tested on other data than none, and so not compared: rope." in text
  assert "rpr beats none" in text
  assert "rope beats none" not in text
  text = said(tmp_path / "b")
  assert "rpr beats none" in text
  assert "rope beats none" in text


def test_names_of_figures_keep_letters_of_every_script():
  results = types.SimpleNamespace(task="新闻 (tuned)")
  assert Figure("by group", [], "", results).name == "新闻-tuned-by-group"
  assert Figure("C++ हिन्दी", [], "").name == "C++-हिन्दी"  # whose vowels are marks


def test_figures_of_titles_that_differ_in_no_letter_have_files_of_their_own(tmp_path, monkeypatch):
  monkeypatch.setattr(Figure, "drawn", lambda figure, kind, size: figure.title)
  titles = {"C": "C*", "C-2": "C?", "C-2-2": "C 2"}
  save([Figure(title, [], "") for title in titles.values()], tmp_path, ["svg"])
  assert {file.stem: file.read_text() for file in tmp_path.iterdir()} == titles


def test_labels_and_texts_stay_as_they_are_typed():
  assert naming.read("{none: no, 1.10: on}") == {"none": "no", "1.10": "on"}
  runs = [types.SimpleNamespace(config={}, facts={}, settings={}, task=n) for n in ("1.1", "1.10")]
  assert grouping.chosen(runs, ["task=1.10"]) == runs[1:]


def test_a_label_renames_only_groups_all_of_whose_runs_declare_it(tmp_path, said):
  sweep(tmp_path, {"none": B, "rpr": A, "learned": B})
  other = {"task.name": "other"}
  sweep(tmp_path, {"none": B[:2], "rpr": A[:2]}, **other)
  declare(tmp_path, "{none: rpr, rpr: none}", "other")
  text = said(tmp_path)
  assert text.count("rpr is first of") == 2
  assert "none keeps its name: its runs declare rpr, which has another meaning here" in text
  declare(tmp_path, "{none: no positions, toy: rhymes}")
  text = said(tmp_path)
  assert "rpr beats no positions" in text
  assert "rhymes: test accuracy by encoding" in text
  assert "rpr beats none" in text  # in the other task, whose runs do not say so


def test_a_label_that_some_runs_declare_or_two_groups_share_is_not_used(tmp_path, said):
  sweep(tmp_path, {"none": B, "rpr": A})
  (one, *_) = tmp_path.glob("toy/rpr/*/seed=0/config.yaml")
  one.write_text(one.read_text() + "labels: {rpr: mine}\n")
  assert "rpr keeps its name: only some of its runs declare another" in said(tmp_path)
  sweep(tmp_path / "two", {"none": B, "rpr": A})
  declare(tmp_path / "two", "{none: mine, rpr: mine}")
  text = said(tmp_path / "two")
  assert "rpr beats none" in text
  assert text.count("keeps its name: its runs declare mine, which has another meaning here") == 2


GATE = {"gates": {"test": {"metric": "validation/accuracy", "least": 0.9}}}


def rates(root, validation=(0.9, 0.8)):
  """Two groups of none and two of sinusoidal, which differ in their learning rates."""
  groups = zip((0.004, 0.008), validation, ([0.6, 0.61], [0.7, 0.71]), strict=True)
  for rate, of, found in groups:
    both = {"none": [0.5, 0.52], "sinusoidal": found}
    sweep(root, both, **{"train.learning_rate": rate, "validation/accuracy": of})


def unlearned(root):
  sweep(root, {"none": [0.1, 0.2], "rpr": [0.2, 0.1]}, **GATE, **{"validation/accuracy": 0.3})


def unequal(root):
  sweep(root, {"sinusoidal": B[:3], "none": B[3:]})
  sweep(root, {"rpr": A[:3]}, **{"model.d_model": 32})
  sweep(root, {"rpr": B[:3]})


def fewer_rows(root):
  sweep(root, {"rpr": A[:2]})
  for file in root.glob("**/metrics.jsonl"):
    file.write_text("")


ONE = {"rpr": [0.5]}
REPORTS = [
  # Groups of runs, what is typed, and what the report says in each of its forms.
  (ONE, [], ["rpr is the only group with a mean: 50.00, n = 1."], ["needed", "n = 2"]),
  ({"rpr": A[:2]}, [], ["rpr is the only group with a mean: 92.00 (67.17 to 100.00), n = 2."], []),
  ({"rpr": [0.02, 0.06], "none": [0.03, 0.01]}, [], ["these seeds find"], ["-21."]),
  ({"rpr": A, "none": A[::-1]}, [], ["these seeds find"], ["n = 6 pairs"]),
  ({"rpr": [0.5, 0.5], "none": [0.5, 0.5]}, [], ["are equal and first of 2 groups"], ["nan"]),
  ({"rpr": [0.0, 0.0]}, [], ["rpr is the only group with a mean: 0.00, n = 2."], ["nan"]),
  (fewer_rows, [], ["No figures: the seeds of a group have logged"], []),
  (
    lambda root: rates(root, (0.8, 0.9)),
    [],
    ["against sinusoidal learning_rate=0.008", "of 2 groups of sinusoidal the best by validation"],
    [],
  ),
  (
    rates,
    ["--baseline", "none learning_rate=0.008"],
    ["against none learning_rate=0.008", "(--baseline names another group)"],
    ["the best by"],
  ),
  (
    {("rpr", 4): A, ("rpr", 16): B},
    [],
    ["against rpr k=4", "the first in the order of its options"],
    [],
  ),
  (
    rates,
    ["--by", "encoding"],
    [
      "each mixes runs of different train.learning_rate; --by encoding,train.learning_rate takes",
      "--where train.learning_rate=0.004 chooses a part",
      "No costs: no group is of runs that are alike; --by",
    ],
    ["is first"],
  ),
  (unlearned, [], ["No seed has learned the task, which takes 90.00"], []),
  (
    unequal,
    [],
    ["on unequal terms: groups differ in model.d_model", "--where model.d_model=16"],
    [],
  ),
  ({"none": B, "rpr": A[:4]}, [], ["on unequal terms: groups differ in seeds."], []),
  ({"none": B, "rpr": A}, [], ["n = 6. Against none: 1 better."], ["unequal terms"]),
]


FORMS = ("report.md", "report.html", "paper.tex")


@pytest.mark.parametrize(("made", "argv", "there", "absent"), REPORTS)
def test_a_report_of_anything_has_no_empty_part_and_says_what_to_type(
  tmp_path, capsys, made, argv, there, absent
):
  made(tmp_path / "runs") if callable(made) else sweep(tmp_path / "runs", made)
  out = tmp_path / "out"
  report(tmp_path / "runs", *argv, "--out", out)
  printed = capsys.readouterr().out
  kept, page, tex = ((out / name).read_text() for name in FORMS)
  page = re.sub("(?s)<script.*?</script>", "", page)  # charts and what draws them
  assert kept in printed
  plain = " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())
  for text in (" ".join(kept.replace("\\", "").split()), plain):
    alone = "-" if text is plain else "No figures"  # which is said of a page's figures
    assert [each for each in there if each not in text and not each.startswith(alone)] == []
    assert [each for each in absent if each in text] == []
  assert not re.search(r"^\|[^\n]*\n\|[-:| ]*\n(?!\|)", kept, re.M)  # a table without rows
  for part in re.split("<h[12]>", page)[1:]:
    _, _, content = part.partition("</h")
    assert re.sub(r"<(?!img)[^>]*>|\s", "", content[3:]), part
  assert "<tbody>\n</tbody>" not in page
  assert not re.search(r"\\midrule\s*\\bottomrule", tex)
  with (out / "groups.csv").open() as file:
    rows = list(csv.DictReader(file))
  assert rows
  assert all(("unequal terms" in kept) == bool(row["unequal"]) for row in rows)


@pytest.mark.parametrize(
  ("made", "told"),
  [
    (lambda root: write(root, "rpr", 0), "1 unfinished, at step 20"),
    (
      lambda root: [write(root, "rpr", seed, log=f"ValueError: {seed}\n") for seed in (1, 2)],
      "2 failed, 1 of them: ValueError: 1",
    ),
    (
      lambda root: (write(root, "rpr", 0), write(root, "none", 0, log="OSError: full\n")),
      "1 unfinished, at step 20; 1 failed: OSError: full",
    ),
    (lambda root: write(root, "rpr", 0, float("nan")), "1 finished without a score"),
  ],
)
def test_runs_without_scores_are_counted_with_where_they_stand(tmp_path, capsys, made, told):
  made(tmp_path)
  with pytest.raises(UserError, match="none of the runs has finished") as refused:
    report(tmp_path, "--no-files")
  assert f": {told}; the command that began them goes on" in str(refused.value)
  sweep(tmp_path, {"rpr": A}, **{"task.name": "other"})
  if "without" not in told:
    report(tmp_path, "--no-files")
    failed = told.count(";") + 1 if ";" in told else told[0]
    assert f"toy: none of {failed}" in " ".join(capsys.readouterr().out.split())
