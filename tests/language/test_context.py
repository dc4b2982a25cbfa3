"""How far a language model sees: losses by context, in windows, and effective lengths."""

import dataclasses
import math
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import order
import pytest
import untrained
from flax import nnx
from scipy import stats

from posexp.errors import UserError
from posexp.language import context, effective_lengths, windows
from posexp.language.by_context import Curve
from posexp.runs import RunWriter, read_run
from posexp.runs.context_losses import (
  ContextLosses,
  bits_per_byte,
  read_context_losses,
  write_context_losses,
)
from posexp.tasks import make_task
from posexp.training.restore import open_trained, with_options

T, M = 8, 8
OPTIONS = [
  "task=language_modeling", f"task.segment={T}", "model.d_model=16", "model.num_heads=2",
  "model.d_ff=16", "train.batch_size=4", "wandb.mode=disabled",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("opened_once")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Runs on a text of words that repeat: a finished one with a memory, and one of 16 places."""
  folder = tmp_path_factory.mktemp("runs")
  draw = random.Random(0)
  words = [f"{draw.choice('abcdef')}{draw.choice('xyz')}" * 2 for _ in range(1500)]
  (folder / "text.txt").write_text(" ".join(words))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    common = [*OPTIONS, f"task.train={folder / 'text.txt'}", f"runs={folder / 'runs'}"]
    own = ["encoding=transformer_xl", f"model.memory={M}", "model.num_layers=2"]
    path = untrained.run(folder / "finished", *own, "task.contexts=[20,8,4]", *common)
    opened = open_trained(path)
    with RunWriter(path, opened.run.config) as run:  # as training ends
      measured = opened.setup.task.conclude(opened.data, opened.snapshot, path)
      run.finish(measured | {"step": 1})
    few = ["encoding=learned", "learned.length=16", "model.num_layers=1"]
    yield {
      "transformer_xl": path,
      "learned": untrained.run(folder / "untrained", *few, *common),
    }


@pytest.fixture(scope="module")
def trained(runs):
  return open_trained(runs["transformer_xl"])


def stream(trained):
  return trained.data.streams["test"]


@nnx.jit
def call(model, tokens):
  return jax.nn.log_softmax(model(tokens))


def by_hand(trained, start, end):
  """nll of the targets start + 1 … end of a text that begins at `start`: one pass of the model."""
  tokens = stream(trained).tokens[start : end + 1].astype(int)
  filled = np.pad(tokens[:-1], (0, 24 - (end - start)))[None]  # nothing looks ahead
  logits = np.asarray(call(trained.snapshot.model(), jnp.asarray(filled)))[0]
  return -logits[np.arange(end - start), tokens[1:]]


@pytest.mark.parametrize(
  ("memory", "lengths", "scored", "atol"), [(0, (1, 20), 1, 2e-6), (32, (13, 20), 3, 5e-5)]
)
def test_a_context_is_exact_in_one_window_and_with_a_memory(trained, memory, lengths, scored, atol):
  place = windows.drawn(stream(trained), 30, 10)
  plain, given = (with_options(trained, {"model.memory": size}) for size in (0, memory))
  for length in lengths:
    found = windows.losses(given.snapshot, stream(given), place, length, scored=scored, longest=20)
    wanted = [by_hand(plain, at - length, at)[-scored:] for at in place.tolist()]
    np.testing.assert_allclose(found, wanted, atol=atol)


def test_a_short_memory_forgets_what_is_farther_than_layers_reach(trained):
  place, model = windows.drawn(stream(trained), 64, 10), trained.snapshot
  reached = windows.losses(model, stream(trained), place, T + 2 * M, longest=64)
  beyond = windows.losses(model, stream(trained), place, 64, longest=64)
  np.testing.assert_allclose(reached, beyond, atol=1e-6)
  near = windows.losses(model, stream(trained), place, T, longest=64)
  assert np.abs(near - beyond).max() > 1e-4


def test_rows_of_targets_have_nearly_their_context(trained):
  plain = with_options(trained, {"model.memory": 0})
  given = plain.snapshot, stream(plain), plain.data.vocabulary.bytes_of
  found = windows.by_context(*given, [20, 32], 40, windows.ROW)
  assert len(found.place) == len({*found.place}) == 48  # whole rows of 16
  for exact, of, begin, step in ((20, 20, 0, 1), (31, 32, 0, 2), (32, 32, 1, 2)):
    place = found.place[begin::step]
    wanted = windows.losses(plain.snapshot, stream(plain), place, exact)[:, 0]
    np.testing.assert_allclose(found.nats[of][begin::step], wanted, atol=2e-6)


@pytest.mark.parametrize(
  ("nats", "gain", "slope", "holds_to"),
  [
    ((2.0, 1.5, 1.5, 1.5), 0.5, 0, 256),
    ((2.0, 1.5, 1.51, 1.53), 0.5, 0.015, 128 * 2**0.5),
    ((1.0, 1.5, 2.5, 2.6), -0.5, 0.55, 16 * 4**0.04),
  ],
)
def test_what_follows_from_losses_by_context(nats, gain, slope, holds_to):
  each = {context: np.full(8, nat) for context, nat in zip((16, 64, 128, 256), nats, strict=True)}
  found = ContextLosses("", np.arange(8), np.ones(8, int), each).scores(64)
  assert found["context/gain"] == pytest.approx(gain / math.log(2))
  assert found["context/slope"] == pytest.approx(slope, abs=1e-9)
  assert found["context/holds_to"] == pytest.approx(holds_to)


def test_documents_that_are_masked_are_all_that_is_seen(trained):
  place = np.array([40])
  tokens = stream(trained).tokens.copy()
  tokens[35] = 0  # a document begins
  other = tokens.copy()
  other[:35] = other[35:70] + 1
  for memory, documents in ((0, "mask"), (0, "stream"), (M, "mask"), (M, "reset")):
    snapshot = with_options(trained, {"model.memory": memory}).snapshot
    texts = (
      dataclasses.replace(stream(trained), tokens=text, documents=documents)
      for text in (tokens, other)
    )
    one, two = (windows.losses(snapshot, text, place, 20) for text in texts)
    assert (np.abs(one - two).max() < 1e-6) == (documents != "stream")


def test_intervals_are_paired_and_over_blocks():
  random = np.random.default_rng(0)
  short, long = random.normal(2, 1, (2, 40))
  curve = Curve("", {16: short, 64: long}, np.ones(40, int), {}, 40)
  gain, half = curve.gain(64, 16)
  wanted = stats.ttest_rel(short, long).confidence_interval()  # of two doublings
  assert (gain - half, gain + half) == pytest.approx((wanted.low / 2, wanted.high / 2))
  blocks = curve._replace(blocks=8)
  wanted = stats.ttest_1samp(short.reshape(8, 5).mean(1), 0).confidence_interval()
  assert blocks.half(short) == pytest.approx((wanted.high - wanted.low) / 2)
  assert bits_per_byte(curve.nats[16], curve.bytes) == pytest.approx(short.mean() / math.log(2))
  # Without what targets share, equal differences have no spread.
  assert Curve("", {1: short, 2: short - 1}, np.ones(40), {}, 40).bands()[1] == pytest.approx(0)


def paper(group, i, share, step, c):
  """Dai et al. 2019, appendix C, word by word."""
  while c + step in group[i]:
    count = len(group[i][c])
    base = [min(model[c][t] for model in group) for t in range(count)]
    hard = sorted(range(count), key=lambda t: -base[t])[: int(share * count)]
    before = math.exp(sum(base[t] for t in hard) / len(hard))
    after = sum(min(base[t], group[i][c + step][t]) for t in hard) / len(hard)
    if (before - math.exp(after)) / before < 0.01:
      return c
    c += step
  return None


@pytest.mark.parametrize("share", effective_lengths.SHARES)
def test_effective_lengths_are_those_of_the_paper(share):
  draw = np.random.default_rng(1)
  text = draw.gamma(2, 1, 200)
  ends = (250, 500, 2000)
  group = [
    {
      c: (text + 3 / (1 + min(c, end) / 100) + draw.normal(0, 0.1, 200)).astype(np.float32)
      for c in range(100, 1100, 100)
    }
    for end in ends
  ]
  found = [effective_lengths.relative_effective_length(group, i, share) for i in range(3)]
  wanted = [paper(group, i, share, 100, 100) for i in range(3)]
  assert [None if each.reached_end else each.tokens for each in found] == wanted
  assert found[0].tokens < found[1].tokens < found[2].tokens


def typed(*argv):
  return order.work(context, *argv)


def test_training_measures_contexts_at_its_end(runs):
  run = read_run(runs["transformer_xl"])
  kept = read_context_losses(run.path, "test")
  found = {key: value for key, value in run.summary.items() if key.startswith("context/")}
  assert found == kept.scores(T)
  assert [key for key in found if "loss" in key] == [f"context/loss/{n}" for n in (4, 8, 20)]
  less = {key: value for key, value in run.summary.items() if not key.endswith("/20")}
  lines = [*make_task(run.config).table(less)]  # as of a model that cannot read so much
  assert any(line.startswith("20 tokens") and "too few positions" in line for line in lines)
  gained = {"context/gain": 0.01, "context_targets": 4096, "time/context_seconds": 3.0}
  (said,) = [line for line in make_task(run.config).table(run.summary | gained) if "gain:" in line]
  assert said.startswith("gain: below 0.05 bits per byte, so this model hardly uses more of its ")


def test_a_command_measures_draws_and_keeps(runs, trained, capsys):
  run = runs["transformer_xl"]
  typed(run, "--at", "1,20", "--memory", "0,8", "--positions", 50)
  out = capsys.readouterr().out
  kept = read_context_losses(run, "test")
  assert re.search(rf"memory 8 +20 +{kept.nats[20].mean():.4f} ± ", out)
  assert kept.place.tolist() == windows.drawn(stream(trained), 20, 50).tolist()
  other = read_context_losses(run, "test,model.memory=0")
  assert re.search(rf"no memory +20 +{other.nats[20].mean():.4f} ± ", out)
  assert "gain of a doubling" in out
  assert (run / "figures" / "context-test.png").exists()
  typed(run, "--beyond", 3, "--positions", 32)
  assert [*read_context_losses(run, "test").nats] == [8, 11, 16, 23, 24]
  assert "beyond the training length the loss changes by" in capsys.readouterr().out


def test_runs_have_effective_lengths_where_they_were_measured_alike(runs, tmp_path, capsys):
  typed(*runs.values(), "--at", "4,8,12,20", "--positions", 40)
  out = capsys.readouterr().out
  assert "needs 20 positions of 16" in out
  assert [*read_context_losses(runs["learned"], "test").nats] == [4, 8, 12]
  typed(*runs.values(), "--recl")
  rows = re.findall(r"^(\w+)(?: +(?:≥ )?\d+){3}$", capsys.readouterr().out, re.MULTILINE)
  assert rows == [*runs]
  typed(runs["learned"], "--at", "4,8,12", "--positions", 30)
  with pytest.raises(UserError, match="were measured on other targets or texts, or with other "):
    typed(*runs.values(), "--recl")
  kept = read_context_losses(runs["learned"], "test")
  write_context_losses(runs["learned"], "test", kept._replace(text="other"))
  with pytest.raises(UserError, match="were measured on other targets or texts, or with other "):
    typed(*runs.values(), "--recl")


@pytest.mark.parametrize("damage", [b"", b"PK", b"no archive", None])
def test_damaged_losses_are_one_sentence(tmp_path, damage):
  file = tmp_path / "context" / "test.npz"
  file.parent.mkdir()
  if damage is None:
    np.savez(file, text="", place=np.arange(3), bytes=np.ones(3, int), **{"4": np.ones(2)})
  else:
    file.write_bytes(damage)
  with pytest.raises(UserError, match=r"test\.npz is damaged; python -m posexp\.context RUN"):
    read_context_losses(tmp_path, "test")


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ("--beyond 1", "--beyond must be at least 2, not 1"),
    ("--at 0,8", "argument --at: write at most 10,000 whole numbers from 1 on, as in 16,32 or"),
    ("--recl --memory 8", "--recl compares what was measured, so only --split can be"),
    ("--at 100000", "a context of 100,000 tokens: only 0 of the "),
    ("--at 8 --positions 9000", "a context of 8 tokens: only 368 of the 375 targets have as"),
    ("--at 4 --memory 8", "model.memory=8 would give what the memory holds the"),
    ("--recl", "--recl compares runs with each other: name two or more"),
  ],
)
def test_mistakes_are_one_sentence(runs, argv, message):
  with pytest.raises(UserError) as error:
    typed(runs["learned"], *argv.split())
  assert str(error.value).startswith(message)
