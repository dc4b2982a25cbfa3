"""Reports of run folders made by hand: what is grouped, said, refused and written."""

import csv
import re
import time

import pytest
from run_folders import CONFIG, A, B, report, sweep, write
from scipy import stats

from posexp.errors import UserError
from posexp.reporting import figures, vega


def test_a_clear_difference_and_an_unclear_one_are_said_so(tmp_path, said):
  close = [0.80, 0.79, 0.81, 0.80, 0.79, 0.81]
  sweep(tmp_path, {"sinusoidal": B, "rpr": A, "learned": close})
  text = said(tmp_path)
  test = stats.ttest_ind(A, B, equal_var=False).confidence_interval()
  beats = r"rpr beats sinusoidal: \+12.83 \(\+(\S+) to \+(\S+)\) points, p < 0.001 \(< 0.001 corr"
  found = re.search(beats, text)
  assert (float(found[1]), float(found[2])) == pytest.approx([100 * x for x in test], abs=0.3)
  assert re.search(
    r"learned cannot be told apart from sinusoidal: \+0.17 \(-.* to .*\) points, p = 0.7\d\d "
    r"\(0.7\d\d corrected\), n = 6; these seeds find 1.\d\d points or more.",
    text,
  )
  assert "rpr is first of 3 groups" in text
  assert "1 better, 1 not told apart" in text
  assert "with 95 % t intervals of the logit. Differences" in text
  assert "corrected for 2 tests (Holm)" in text


TWO = {"sinusoidal": B, "rpr": A}
BY_K = {"sinusoidal": B, ("rpr", 2): A, ("rpr", 16): A}
CHOSEN = {"sinusoidal": B, ("rpr", 2): A, ("rpr", 4): B}
ONE_MEAN = "rpr is the only group with a mean: 92.67 (90.05 to 94.93), n = 6"
OWN = [{"name": "gap", "title": "gap", "format": ".1f", "higher_is_better": False}]
OWN += [{"name": "hits", "title": "hit rate", "percent": True}]
OWN = {"task.kind": "first", "metrics": OWN, "test/hits": 0.25, "metric": "test/gap"}
TALK = {"task.kind": "parallel", "task.name": "talk", "metric": "test/bleu"}


def of(groups, **more):
  """What makes runs in a folder."""
  return lambda root: sweep(root, groups, **more)


def both(*makers):
  return lambda root: [maker(root) for maker in makers]


def folds(root):
  for fold in range(3):
    groups = {"sinusoidal": [0.5 + fold / 10, 0.52 + fold / 10], "rpr": [0.55 + fold / 9, 0.56]}
    sweep(root, groups, **{"task.fold": fold})


def unlike(root):
  sweep(root, {"sinusoidal": B}, **{"task.train": "/data/a.jsonl"}, versions="posexp 8")
  facts = {"devices": "1 H100", "versions": "posexp 9", "processor": "Z80"}
  sweep(root, {"rpr": A}, **{"task.train": "/data/b.jsonl"}, **facts)
  write(root, "rpr", 9, float("nan"), **{"task.train": "/data/b.jsonl"})


def older(root):
  sweep(root, {"rpr": A})
  for seed, score in enumerate(B):
    file = write(root / "old", "rpr", seed, score) / "config.yaml"
    file.write_text(file.read_text().replace("  dropout: 0.1\n", ""))


def mixed(**more):
  return both(of({"sinusoidal": B, "rpr": A[:5]}), lambda root: write(root, "rpr", 5, A[5], **more))


def unfinished(root):
  sweep(root, {"sinusoidal": B, "rpr": A[:4]})
  write(root, "rpr", 4)
  told = "UserError('the loss is not finite at step 20')\n"
  write(root, "rpr", 5, log="2026-01-02 03:04:05,678 INFO a\n" + told)
  write(root, "rpr", 6, log="Traceback (most recent call last):\nValueError: bad\n")
  write(root, "rpr", 7, log="KeyboardInterrupt()\n")


def broken(root):
  sweep(root, TWO)
  one, other, *_ = sorted(root.glob("toy/rpr/*/seed=*"))
  rows = (one / "metrics.jsonl").read_text()
  (one / "metrics.jsonl").write_text('{"step": 1, "tr\n\0\0\n[]\n' + rows + '{"step": 30, "va')
  (other / "summary.json").write_text('{"test/accu')


def never_begun(root):
  sweep(root, TWO)
  for k, why in ((0, "rpr.k must be at least 1, not 0"), (-1, "no such file")):
    path = write(root, "rpr", 0, log=f"UserError('{why}')\n", options={"k": k})
    (path / "metrics.jsonl").unlink()


LATE = {"train.warmup": 100}  # of 20 steps
SAID = [
  # Groups of runs, what is typed, what the report says, and what it does not.
  (of(TWO, metric="test/loss"), "--metric test/loss", ["sinusoidal is first of 2 groups", "rpr lo"
    "ses to sinusoidal: +0.1283 "], []),
  (of(BY_K), "", ["by encoding, rpr.k"], []),
  (of(BY_K), "--by rpr.k", ["| rpr k=16 | 6 | 92.67 |", "| sinusoidal | 6 | 79.83 |"], []),
  (of(BY_K), "--by encoding", ["rpr mixes rpr.k = 2 (6 runs), 16 (6 runs)", "it has no mean; --by "
    "encoding,rpr.k takes it apart", "| rpr | 0 | mixed | — | — | — | — | — |"], ["beats"]),
  (of(CHOSEN), "--where encoding=rpr --where rpr.k=2", [ONE_MEAN], ["sinusoidal"]),
  # The default of an option that decides nothing has no part in what tells runs apart.
  (of(CHOSEN, **{"model.memory": 0}), "--where model.memory=0", ["is first of 3 groups"], []),
  (of(CHOSEN), "--where rpr.k=2e0", [ONE_MEAN], []),
  (both(of({"sinusoidal": B}), of({"rpr": A}, **{"train.epochs": 5, "train.learning_rate": 0.01})),
    "", ["toy: test accuracy by encoding rpr is first", "Groups differ in more than in encoding: "
    "train.epochs, train.learning_rate."], []),
  (folds, "", ["toy: test accuracy by encoding rpr is first", "n = 3 pairs; ", "folds, each the "
    "mean of its seeds, with"], ["mixes"]),
  (unlike, "", ["Groups differ in more than in encoding: task.train.", "Seconds and rates are of "
    "different devices: 1 H100, 1 cpu.", "different versions, whose numbers may differ: posexp 8, "
    "posexp 9.", "rpr: left out seed 9 (without test/accuracy).", "| rpr | 6 | 92.67 |"],
    ["different processors"]),  # one of the two groups does not say
  (older, "", ["rpr dropout=0.1 is first of 2 groups", "| rpr | 6 | 79.83 |"], []),
  (mixed(**{"train.epochs": 3}), "--by encoding", ["| rpr | 0 | mixed |", "rpr mixes train.epochs ="
    " 2 (5 runs), 3 (1 run)"], []),
  (broken, "", ["seed=0/metrics.jsonl, line 1: not a row of metrics", "| rpr | 4 |", "seed=1: its "
    "summary.json is broken"], []),
  (never_begun, "", ["In no group, since they failed before they began: ", "/seed=0 (rpr.k must be "
    "at least 1, not 0).", "/seed=0 (no such file).", "| rpr | 6 |"], []),
  (mixed(data="other"), "--by encoding", ["| rpr | 0 | mixed |", "rpr mixes data = "], []),
  (mixed(data="other", **{"task.train": "b.csv"}), "--by encoding", ["| rpr | 0 | mixed |", "no me"
    "an; --by encoding,task.train takes it apart"], []),
  (of({"sinusoidal": [0.5], "rpr": [0.6]}), "", ["| rpr | 1 | 60.00 | — | — | +10.00 | — | — |",
    "rpr cannot be tested against sinusoidal: +10.00 points, n = 1."], []),
  (of({"sinusoidal": [0.5, 0.6, 0.5], "rpr": [0.5, 0.6, 0.5]}), "", ["rpr cannot be told apart "
    "from sinusoidal: +0.00 points, p = 1.000, n = 3 pairs."], []),
  (unfinished, "", ["rpr: left out seed 4 (not finished, at step 20), seed 5 (failed at step 20: "
    "the loss is not finite at step 20), seed 6 (failed at step 20: ValueError: bad), seed 7 (not "
    "finished, at step 20).", "| rpr | 4 | 92.50 |", "n = 4 and 6."], []),
  (of(TWO, **OWN), "", ["test gap by encoding sinusoidal is first of 2 groups with 0.8 ±"], []),
  (of(TWO, **{"train.warmup": 100}), "", ["Against sinusoidal: 1 not tested. Of 12 runs, 12 never "
    "left warmup: this ranks speed, not encodings; add train.epochs=100 train.warmup=100.", "| +12."
    "83 | — | — |", "without a test, as most runs were cut short", "Note: Of 12 runs"],
    ["beats", "p ="]),
  (both(of({"none": B}), of({"rope": A, "rpr": A}, **LATE)), "", ["12 never left warmup: this ran",
    "without a test, as most runs were cut short"], ["beats", "p ="]),
  (both(of({"none": B[:5], "t5": B}), of({"rope": A}, **LATE)), "", ["rope cannot be tested agains"
    "t none: +12.67 points, n = 5; most of these runs were cut short."], ["ranks speed"]),
  (of({"none": B, "fire": A}, **{"train.weight_decay": 0.1, "train.decayed": "matrices"}), "",
    ["fire beats none"], ["decayed"]),  # which decides nothing of the results of none
  (of({"rope": [0.9, 0.84, 0.81, 0.8, 0.92], "rpr": [0.9, 0.84, 0.8, 0.81, 0.92]}), "", ["rope an"
    "d rpr are equal and first of 2 groups with 85.40"], []),
  (of(TWO, **OWN), "--metric test/hits", ["| rpr | 6 | 25.00 | 0.00 |"], []),
  (of({"rpr": A}, headline=["test/hits"], **OWN), "", ["toy: test hit rate by encoding"], []),
  (both(of(TWO), of({"sinusoidal": [20.5, 21.0], "rpr": [22.0, 23.5]}, **TALK)), "", ["talk: test "
    "BLEU by encoding rpr is first of 2 groups with 22.75", "toy: test accuracy by encoding rpr is "
    "first of 2 groups with 92.67", "rpr cannot be told apart from sinusoidal: +2.00 ("], []),
  (both(of(TWO), of({"rpr": [22.0, 23.5], "none": [20.0]}, **TALK)), "--baseline sinusoidal",
    ["Without a group sinusoidal, so compared otherwise: talk with none."], []),
  (both(of(TWO), of({"rpr": [22.0, 23.5]}, **TALK)), "--metric test/bleu", ["Without test/bl"
    "eu, and so not shown: toy."], ["toy: "]),
]  # fmt: skip


@pytest.mark.parametrize(("made", "argv", "there", "absent"), SAID)
def test_what_a_report_says(tmp_path, said, made, argv, there, absent):
  made(tmp_path)
  text = said(tmp_path, *argv.split())
  places = [text.find(each) for each in there]
  assert -1 not in places, text
  assert not [each for each in absent if each in text]


REFUSED = [
  ("--metric test/acuracy", "did you mean test/accuracy?"),
  ("--by rpr.kk", "--by rpr.kk: no option by which runs can be grouped; did you mean rpr.k"),
  ("--where rpr.k=3", "--where rpr.k=3: no run has that; there are 2, 4"),
  ("--where rpr.k", "--where rpr.k: write it as OPTION=VALUE, as in encoding=rpr"),
  ("--baseline sinusoidl", "it is no group with a mean; did you mean sinusoidal?"),
  ("--labels {toi:_x}", "--labels toi: there is no such group or task; did you mean toy?"),
  ("--labels {sinusoidal:_rpr_k=2}", "labels: two groups of toy are called rpr k=2"),
  ("--labels none", "write a mapping, as in {none: no positions}"),
  ("--labels no.yaml", "--labels no.yaml: "),
  ("--figures jpg", "--figures jpg: there are pdf, svg and png"),
  ("--records kept.csv", "--records kept.csv: give it the ending .parquet"),
  ("--figures pdf --width 3cm", "3cm: give from 1in to 20in"),
  ("--width 3", "--width, --font and --only are of files of figures: add --figures pdf"),
  ("--figures pdf --font 8", "--font 8 is of figures for print: add --width 3.3in"),
  ("--figures pdf --width 3in --font 99", "--font 99: give from 4 to 24 points"),
  ("--figures pdf", "--figures are files: leave --no-files out"),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED)
def test_what_does_not_exist_is_refused_with_the_nearest_name(tmp_path, argv, message):
  sweep(tmp_path, CHOSEN)
  with pytest.raises(UserError) as refused:
    report(tmp_path, "--no-files", *(word.replace("_", " ") for word in argv.split()))
  assert message in str(refused.value)


def test_two_tasks_get_no_common_label(tmp_path):
  both(of(TWO), of({"rpr": [22.0, 23.5]}, **TALK))(tmp_path)
  with pytest.raises(UserError, match=r"^labels: two tasks are called x"):
    report(tmp_path, "--no-files", "--labels", "{toy: x, talk: x}")


def test_a_folder_of_another_version_is_refused_alone_and_left_out_among_others(tmp_path, said):
  old = tmp_path / "old" / "seed=0"
  old.mkdir(parents=True)
  (old / "config.yaml").write_text("encoding: rpr\nseed: 0\nmodel: {d_model: 8}\n")
  with pytest.raises(UserError, match="another version: its config has no task"):
    report(tmp_path)
  write(tmp_path, "rpr", 0, 0.5)
  assert f"- Note: left out: {old} is a folder of another version" in said(tmp_path)


@pytest.mark.parametrize("paired", [True, False])
def test_seeds_are_paired_where_that_gains_and_it_is_said(tmp_path, said, paired):
  near = [each + 0.001 * (seed % 2) for seed, each in enumerate(A)][:5]
  sweep(tmp_path, {"sinusoidal": A, "rpr": near if paired else A[5:0:-1]})
  text = said(tmp_path, "--aa")
  share = "rpr (seeds 0, 1, 2, 3, 4) and sinusoidal (seeds 0, 1, 2, 3, 4, 5) share 5 seeds: "
  assert (share in text) == paired
  assert ("n = 5 pairs; these seeds find 0." in text) == paired
  assert ("n = 5 and 6; these seeds find 4." in text) != paired
  assert ("; 1 of 1 paired by seed, which" in text) == paired
  assert "| A/A: sinusoidal, seeds 0, 2, 4 against seeds 1, 3, 5 | 3 | 91.67 |" in text
  sweep(tmp_path / "one", {"sinusoidal": A[:1], "rpr": B[:2]})
  assert "sinusoidal (seeds 0) share 1 seed: their difference" in said(tmp_path / "one")


def test_copies_of_a_run_count_once(tmp_path, said):
  sweep(tmp_path / "a", {"sinusoidal": B, "rpr": A})
  sweep(tmp_path / "b", {"rpr": A[:2]})
  text = said(tmp_path / "a", tmp_path / "b", tmp_path / "a", "--aa", "--baseline", "rpr")
  copy = r"a copy of another run, in \S*b/\S*seed="
  assert re.search(rf"rpr: left out seed 0 \({copy}0\), seed 1 \({copy}1\)\.", text)
  assert "| rpr | 6 | 92.67 |" in text
  assert "| A/A: rpr, seeds 0, 2, 4 against seeds 1, 3, 5 |" in text  # not copies with themselves


@pytest.mark.slow
def test_hundreds_of_runs_take_seconds(tmp_path, said):
  sweep(tmp_path, {("rpr", k): [0.5 + k / 300 + s / 100 for s in range(4)] for k in range(60)})
  begun = time.process_time()
  text = said(tmp_path)
  assert time.process_time() - begun < 3
  assert "rpr k=59 is first of 60 groups" in text


def test_the_folders_made_by_hand_have_the_sections_of_a_config():
  from posexp.config.command_line import compose

  assert CONFIG.keys() <= set(compose([]).keys())


def test_a_report_of_two_tasks_has_tables_and_figures_for_people_papers_and_programs(
  tmp_path, capsys
):
  groups = {"sinusoidal": B, ("rpr", 4): A, ("rpr", 0): [0.5], "none": [0.8, 0.79, 0.8, 0.8]}
  sweep(tmp_path / "runs", groups)
  write(tmp_path / "runs", "rpr", 9, options={"k": 4})
  translated = {"task.kind": "parallel", "task.name": "talk", "metric": "test/loss"}
  sweep(tmp_path / "runs", {"sinusoidal": [0.5, 0.6], "none": [0.4, 0.5]}, **translated)
  (tmp_path / "names.yaml").write_text("rpr k=4: 50% & more\ntoy: reviews\n")
  out = tmp_path / "out"
  found = report(tmp_path / "runs", "--out", out, "--labels", tmp_path / "names.yaml")
  assert {each.task for each in found} == {"reviews", "talk"}
  text = (out / "report.md").read_text()
  assert "50% & more is first of 4 groups" in text
  assert text in capsys.readouterr().out
  tables = {path.name: list(csv.DictReader(path.open())) for path in out.glob("*.csv")}
  rows = {row["group"]: row for row in tables["groups.csv"] if row["task"] == "reviews"}
  best = rows["50% & more"]
  assert (best["encoding"], best["rpr.k"], best["n"]) == ("rpr", "4", "6")
  assert float(best["p"]) == pytest.approx(0, abs=2e-4)
  assert float(best["tokens/s"]) == 1000.0
  assert (rows["rpr k=0"]["n"], rows["rpr k=0"]["sd"]) == ("1", "")
  assert rows["sinusoidal"]["p"] == ""
  runs = [run for run in tables["runs.csv"] if run["task"] == "reviews"]
  scores = [float(run["test/accuracy"] or -1) for run in runs]
  assert scores == [*A, -1, *B, *groups["none"], 0.5]
  assert [run["state"] for run in runs].count("unfinished") == 1
  (numbers,) = [row for row in tables["paper.csv"] if row["group"] == "50% & more"]
  assert float(numbers["reviews mean"]) == pytest.approx(sum(A) / 6)
  tex = (out / "paper.tex").read_text()
  assert "95 \\% interval" in tex
  assert tex.count("\\toprule") == tex.count("\\bottomrule") == 1
  rows = [line.split(" & ") for line in tex.split("\n") if "&" in line]
  assert rows[0] == ["", "talk: test loss", "reviews: test accuracy \\\\"]
  cells = {row[0]: row[1:] for row in rows[1:]}
  assert cells["sinusoidal"] == ["0.5500 (0.0000 to 1.7459)", "79.83 (79.03 to 80.62) \\\\"]
  assert cells["none"][0].startswith("\\textbf{0.4500")
  assert cells["50\\% \\& more"] == ["---", "\\textbf{92.67 (90.05 to 94.93)$^{+}$} \\\\"]
  assert "Less is better for talk." in (out / "paper.md").read_text()
  report(tmp_path / "runs" / "talk", "--out", out, "--figures", "svg,pdf,png")
  made = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
  names = {name.partition(".")[0] for name in made}
  assert {"talk-test-loss-by-group", "talk-train-loss-by-step"} <= names
  assert len(made) == 3 * len(names)
  starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
  assert all(made[name].startswith(starts[name.rpartition(".")[2]]) for name in made)


def test_figures_for_print_are_as_wide_as_asked_each_with_one_chart(tmp_path, capsys):
  steady = dict.fromkeys(range(3), 0.5)
  sweep(tmp_path / "runs", {"none": steady, "rpr": [0.97, 1.0, 1.0]})
  names = ["--labels", "{none: 无位置}", "--only", "by-group,differences,accuracy-by-step"]
  report(tmp_path / "runs", "--out", tmp_path, "--figures", "pdf,svg", "--width", "3.3in", *names)
  files = sorted((tmp_path / "figures").iterdir())
  assert f"{tmp_path / 'figures'}, 6 files\n" in capsys.readouterr().out
  named = ("test-accuracy-by-group-differences", "test-accuracy-by-group")
  expected = [f"toy-{name}" for name in (*named, "validation-accuracy-by-step")]
  assert [path.stem for path in files[1::2]] == expected
  for pdf, svg in zip(files[::2], files[1::2], strict=True):
    assert re.search(rb"MediaBox ?\[0 0 237\.6 ", pdf.read_bytes())
    assert re.search(r'<svg [^>]*width="237\.6pt"', text := svg.read_text())
    assert {"8px"} <= {*re.findall(r'font-size="([\d.]+px)"', text)} <= {"8px", "7.27px"}
  first = (tmp_path / "paper.tex").read_text().splitlines()[0]
  assert first.endswith("for letters such as Chinese, XeLaTeX or LuaLaTeX with \\usepackage{ctex}")
  with pytest.raises(UserError, match="--only by-grp: no figure's name ends so; there are toy-"):
    report(tmp_path / "runs", "--out", tmp_path, "--figures", "svg", "--only", "by-grp")
  (found,) = report(tmp_path / "runs", "--no-files")
  curves = next(each for each in figures.figures(found) if each.title.endswith("accuracy by step"))
  ends = [(row["low"], row["high"]) for row in curves.specs[0]["data"]["values"]]
  assert all(0 <= low <= high <= 100 for low, high in ends)


def test_an_axis_holds_whole_intervals_but_for_one_that_is_far_longer_than_others():
  rows = [{"mean": mean, "low": mean - 2, "high": mean + 2} for mean in (84.7, 84.8, 85.4)]
  low, high = vega.ends_of_axis(rows)
  assert low < 82.7
  assert high > 87.4
  low, high = vega.ends_of_axis([*rows, {"mean": 85.0, "low": 20.0, "high": 99.0}])
  assert 80 < low < 82.7
  assert 87.4 < high < 90
