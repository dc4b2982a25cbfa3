"""The benchmark: what it writes agrees with itself, and mistakes and Ctrl-C end it well."""

import csv
import json
import re
import sys

import benchmark
import jax
import pytest
from benchmarking import cases, programs, tables, timing
from benchmarking.cases import Case
from benchmarking.peers import X_TRANSFORMERS, Way, request
from benchmarking.rows import COLUMNS, read
from benchmarking.timing import Spent

from posexp.encodings import ENCODINGS
from posexp.errors import UserError
from posexp.models.size import Size
from posexp.training import step

TINY = ["--d-model", "16", "--heads", "2", "--layers", "1", "--vocabulary", "20", "--batch", "2"]
QUICK = ["--rounds", "2", "--seconds", "0"]


@pytest.fixture(scope="module", autouse=True)
def cached():
  """The benchmark turns the cache of compiled programs off in its process."""
  yield
  jax.config.update("jax_enable_compilation_cache", True)


def run(out, *argv):
  """The rows that the command line measures."""
  args = benchmark.arguments([*TINY, *QUICK, "--out", str(out), *argv])
  return benchmark.benchmark(args, "the command")


def written(out):
  with (out / "benchmark.csv").open(encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
  out = tmp_path_factory.mktemp("out")
  argv = ["--encodings", "rpr", "--option", "rpr.k=3", "--lengths", "4,8"]
  return run(out, *argv, "--passes", "attention"), out


def test_every_encoding_is_held_against_none_of_its_group(measured):
  rows, _ = measured
  own = "none jax.nn.dot_product_attention"
  assert [row["label"] for row in rows] == ["none", own, "rpr k=3"] * 2
  for row in rows:
    assert row["against"] == "none"
    assert row["rounds"] == 2
    if row["label"] == "none":
      ends = ("ratio", "ratio_low", "ratio_high", "cpu_ratio")
      assert [row[name] for name in ends] == [1] * 4
    assert row["tokens_per_s"] == pytest.approx(2 * row["length"] / row["seconds"])
    assert row["mfu"] > 0
    assert row["temporaries_mib"] > 0
    assert row["gflops_compiled"] > 0
    assert row["compile_s"] > 0
  assert len({each["group"] for each in rows}) == 2


def test_the_tables_say_the_same(measured):
  rows, out = measured
  kept = written(out)
  assert list(kept[0]) == list(COLUMNS)
  assert [each["label"] for each in kept] == [row["label"] for row in rows]
  assert [float(each["ratio"]) for each in kept] == [row["ratio"] for row in rows]
  about = json.loads((out / "about.json").read_text("utf-8"))
  assert about["command"] == "the command"
  assert any(f"jax {jax.__version__}" in line for line in about["about"])
  for table in tables.tables(read(out / "benchmark.csv")):
    found = [each for each in kept if each["group"] == table.title]
    ranked = sorted(found, key=lambda each: float(each["ratio"]))
    assert [line[0] for line in table.rows] == [each["label"] for each in ranked]
    assert [line[1].split()[0] for line in table.rows] == [
      f"{float(each['ratio']):.2f}" for each in ranked
    ]
  for end in ("png", "svg"):
    assert (out / f"cost-by-length.{end}").stat().st_size > 1000


@pytest.mark.slow
def test_each_measurement_is_told_as_it_comes_and_ranked_at_the_end(tmp_path, monkeypatch, capsys):
  results, wait = [], jax.block_until_ready
  monkeypatch.setattr(jax, "block_until_ready", lambda x: results.append(x) or wait(x))
  argv = ["--encodings", "none", "--lengths", "5", "--passes", "beam,seeds", "--seeds", "3"]
  rows = run(tmp_path, *argv)
  said = capsys.readouterr().out
  assert [row["label"] for row in rows] == [
    "none",
    "none 3 seeds one after another",
    "none 3 seeds in one program",
  ]
  for row in rows:
    assert f"  {row['label']}: compiled in " in said
  assert said.count("tokens/s, 1.00 (1.00 to 1.00) × none, by CPU time 1.00 ×") == 1
  assert "beam search of 4, translator, L=5, B=2" in said
  assert "in one program (vmap) against one after another" in said
  assert [each["steps_per_s"] * each["seconds"] for each in rows] == pytest.approx([1, 3, 3])
  assert not (tmp_path / "cost-by-length.png").exists()  # of one length
  assert_whole(results[0])


def assert_whole(found):
  """A search has given as many tokens as its rate says: 5 in each of two rows."""
  assert found["length"].tolist() == [5, 5]


@pytest.mark.slow
def test_a_greedy_search_gives_as_many_tokens_as_its_rate_says(monkeypatch):
  argv = [*TINY, "--encodings", "none", "--lengths", "5", "--passes", "decode"]
  [[case]], _ = cases.plan(benchmark.arguments(argv))
  results = []
  monkeypatch.setattr(jax, "block_until_ready", results.append)
  programs.prepare(case)
  assert_whole(results[-1])


def test_a_search_of_lines_gives_as_many_tokens_as_each_has_words(monkeypatch, tmp_path):
  file = tmp_path / "lines"
  file.write_text("a b c\na\na b c d e f g h i j\n")
  argv = [*TINY, "--encodings", "none", "--passes", "beam", "--texts", str(file)]
  [[case]], _ = cases.plan(benchmark.arguments(argv))
  results = []
  monkeypatch.setattr(jax, "block_until_ready", results.append)
  programs.prepare(case)
  assert results[-1]["length"].tolist() == [4, 2, 11]  # [EOS] counted
  assert case.tokens == 4 + 2 + 11
  assert case.title.startswith("beam search of 4, translator, 3 lines of L≤11, B=2")
  ways = [str(way) for way in X_TRANSFORMERS.ways if way.suits(case)]
  assert ways == ["eager", "eager sorted", "eager fused", "eager fused sorted"]
  assert request(case, Way(sorted=True))["lines"] == [[2, 4], [11]]
  assert request(case, Way())["lines"] == [[4, 2], [11]]


@pytest.mark.slow
def test_steps_on_lines_read_all_that_make_whole_batches(monkeypatch, tmp_path):
  file = tmp_path / "lines"
  file.write_text("a b c\na\na b c d e f g h i j\na b\nleft over\n")
  argv = [*TINY, "--encodings", "none", "--texts", str(file)]
  [[case]], _ = cases.plan(benchmark.arguments(argv))
  assert case.tokens == 4 + 2 + 11 + 3
  read, update = [], step.Step.__call__
  monkeypatch.setattr(
    step.Step, "__call__", lambda self, *of: read.append(of[1]["mask"]) or update(self, *of)
  )
  programs.train(case)
  assert sorted(mask.shape for mask in read) == [(2, 8), (2, 16)]
  assert sum(int(mask.sum()) for mask in read) == case.tokens
  assert [str(way) for way in X_TRANSFORMERS.ways if way.suits(case)][:2] == [
    "eager",
    "eager sorted",
  ]
  with pytest.raises(UserError, match="--texts has 5 lines, and a batch 9: lower --batch"):
    cases.plan(benchmark.arguments([*argv, "--batch", "9"]))
  with pytest.raises(UserError, match="for encoders: leave --model out"):
    cases.plan(benchmark.arguments([*argv, "--model", "decoder"]))


def test_lines_must_be_there_and_are_for_steps_and_searches(tmp_path):
  with pytest.raises(UserError, match=r"--texts .*nothing: .*No such file"):
    cases.plan(benchmark.arguments(["--passes", "beam", "--texts", str(tmp_path / "nothing")]))
  with pytest.raises(UserError, match="--texts goes with the passes step, decode and beam"):
    benchmark.arguments(["--passes", "forward", "--texts", "lines"])


def test_what_only_a_decoder_can_have_is_compared_with_none_as_a_decoder():
  groups, notes = cases.plan(benchmark.arguments([*TINY, "--encodings", "rope,xpos"]))
  assert [[(each.name, each.model) for each in group] for group in groups] == [
    [("none", "encoder"), ("rope", "encoder")],
    [("none", "decoder"), ("xpos", "decoder")],
  ]
  assert notes == ["xpos is for decoders alone: it is measured as one, against none as a decoder"]


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["--encodings", "rpa"], "did you mean rpr?"),
    (["--passes", "steps"], "did you mean step?"),
    (["--dtype", "float16"], "did you mean bfloat16?"),
    (["--attention", "fast"], "model.attention must be"),
    (["--model", "both"], "invalid choice"),
    (["--heads", "3"], "not divisible by num_heads=3"),
    (["--lengths", "0"], "--lengths must be at least 1"),
    (["--rounds", "0"], "--rounds must be at least 1"),
    (["--encodings", "rpr", "--option", "rpr.l=3"], "there is no option rpr.l"),
    (["--encodings", "rpr", "--option", "k=3"], "write it as encoding.option=value"),
    (["--encodings", "rpr", "--option", "rope.base=3"], "rope is not among"),
    (["--encodings", "learned", "--option", "learned.length=9"], "the 256 of --lengths"),
    (["--encodings", "xpos", "--model", "translator"], None),
    (["--peer-python", "python"], "goes with --peers"),
    (["--peers", "--peer-python", "no-such-python"], "there is no such program"),
  ],
)
def test_mistakes_are_one_sentence(tmp_path, argv, message):
  if message is None:  # none remains to be measured
    chosen, notes = cases.plan(benchmark.arguments([*TINY, *argv]))
    assert [each.name for group in chosen for each in group] == ["none"]
    assert notes == ["xpos is for decoders alone, so that no translator has it in its encoder"]
    return
  with pytest.raises(UserError, match=r"^[^\n]*$") as error:
    run(tmp_path, *argv)
  assert message in str(error.value)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"--out .* cannot be written"):
    run(tmp_path / "file", "--encodings", "none")


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
  calls = []

  def ceiling(dtype):
    def product(count):
      calls.append(count)
      if len(calls) == 9:  # of the second group: once to see how long it takes, twice in a round
        raise KeyboardInterrupt
      return Spent(1.0, 1.0)

    return product, 1.0

  monkeypatch.setattr(programs, "ceiling", ceiling)
  line = ["--encodings", "none", "--lengths", "4,8", "--passes", "forward"]
  monkeypatch.setattr(sys, "argv", ["", *TINY, *QUICK, *line, "--out", str(tmp_path)])
  with pytest.raises(SystemExit) as ended:
    benchmark.main()
  assert ended.value.code == 130
  kept = [(each["label"], each["length"], each["rounds"]) for each in written(tmp_path)]
  assert kept == [("none", "4", "2"), ("none", "8", "1")]
  assert "stopped; 2 rows are kept" in capsys.readouterr().err


def test_each_round_has_all_in_an_order_of_its_own_and_ratios_are_taken_within_it():
  order = []
  a, b = [1.0, 5.0, 2.0], [3.0, 10.0, 8.0]  # the machine is busy in every second round

  def work(name, times):
    def timed(calls):
      order.append(name)
      return Spent(calls * next(times), calls * 1.0)

    return timed

  # Once to see how long it takes; of the two calls in a round the second is timed.
  a_round, b_round = ([each for time in times for each in (99.0, time)] for times in (a, b))
  works = {"a": work("a", iter([1.0, *a_round * 2])), "b": work("b", iter([2.0, *b_round * 2]))}
  found, whole = timing.rounds(works, 6, 0.0)
  assert whole
  turns = ["".join(order[i : i + 4]) for i in range(2, len(order), 4)]
  assert set(turns) == {"aabb", "bbaa"}
  assert timing.ratios(found["b"], found["a"], "wall") == (3.0, 2.25, 3.75)


def test_seeds_in_one_program_are_held_against_as_many_in_turn():
  shape = dict.fromkeys(tables.SHAPE, 1) | {"encoding": "none"}
  ratios = {(2, cases.IN_TURN): 1, (2, cases.VMAP): 0.5, (8, cases.IN_TURN): 4, (8, cases.VMAP): 1}
  rows = [
    shape | {"seeds": seeds, "by": way, "seconds": ratio, "ratio": ratio, "cpu_ratio": 2 * ratio}
    for (seeds, way), ratio in ratios.items()
  ]
  found = [(line[2], line[-2], line[-1]) for line in tables.by_seeds(rows)]
  assert found == [("2", "2.00", "2.00"), ("8", "4.00", "4.00")]


@pytest.mark.parametrize(("model", "halves"), [("encoder", 0), ("decoder", 1), ("translator", 1)])
def test_plain_flops_are_those_of_the_program(model, halves):
  size = Size(d_model=64, num_heads=2, num_layers=2, d_ff=256, dropout=0.0, attention="reference")
  case = Case("forward", model, "none", "", ENCODINGS["none"](), size, 32, 2, 500)
  program, batch, _ = programs.started(case)
  state = program.shapes
  counted = program.predict.lower(state, batch).cost_analysis()["flops"]
  # A causal model needs half of each attention, and the plain form computes the other half too.
  unseen = halves * size.num_layers * 2 * case.length * size.d_model * case.tokens
  # Norms, softmax and the like are the rest.
  assert case.flops + unseen == pytest.approx(counted, rel=0.12)
  assert case.flops + unseen < counted


ANSWERS = """\
import json, sys
for line in sys.stdin:
  asked = json.loads(line)
  case = asked.get("case", {})
  answers = {
    "about": {"about": "x-transformers 0", "encodings": {"none": True, "t5": False}},
    "make": {"work": 0, "compile_s": 1.0} if case.get("compile") or case.get("encoding") == "t5"
    else {"refused": "it does not like to"},
    "time": {"wall": 1000.0, "cpu": 500.0},
    "forget": {},
  }
  print(json.dumps(answers[asked["do"]]), flush=True)
"""


@pytest.mark.slow
def test_peers_are_told_the_shapes_and_held_against_ours(tmp_path, capsys):
  python = tmp_path / "python"
  (tmp_path / "answers.py").write_text(ANSWERS)
  python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'answers.py'}\n")
  python.chmod(0o755)
  argv = ["--encodings", "t5,sinusoidal", "--lengths", "4", "--passes", "forward"]
  rows = run(tmp_path, *argv, "--peers", "--peer-python", str(python))
  said = capsys.readouterr().out
  assert [row["label"] for row in rows] == [
    "none",
    "t5",
    "sinusoidal",
    "t5 x-transformers eager",
    "t5 x-transformers compiled",
    "none x-transformers compiled",
    "none x-transformers compiled fused",
  ]
  for way in ("eager", "eager fused"):
    assert f"  none x-transformers {way}: not measured: it does not like to" in said
  peer = rows[-2]
  assert (peer["seconds"], peer["cpu_seconds"], peer["by"]) == (
    1000,
    500,
    "x-transformers compiled",
  )
  ours = next(row for row in rows if row["label"] == "t5")
  theirs = next(row for row in rows if row["label"] == "t5 x-transformers eager")
  times, cpu = (theirs[name] / ours[name] for name in ("ratio", "cpu_ratio"))
  assert f"{times:.2f} × (by CPU time {cpu:.2f})" in said
  assert "against x-transformers 0" in (tmp_path / "about.json").read_text()


def test_a_peer_that_is_not_there_is_told_in_a_sentence(tmp_path):
  python = tmp_path / "python"
  python.write_text('#!/bin/sh\necho "ModuleNotFoundError: No module named torch" >&2\nexit 1\n')
  python.chmod(0o755)
  with pytest.raises(UserError, match="No module named torch"):
    run(tmp_path, "--peers", "--peer-python", str(python))


def test_a_request_has_what_the_peer_reads():
  library = X_TRANSFORMERS
  size = Size(d_model=16, num_heads=2, num_layers=1, d_ff=32)
  case = Case("step", "encoder", "t5", "", ENCODINGS["t5"](), size, 8, 2, 20)
  asked = json.loads(json.dumps(request(case, library.ways[0])))
  text = library.path.read_text() + library.path.with_name("torch_work.py").read_text()
  assert {*re.findall(r'case\["(\w+)"\]', text)} <= asked.keys()
