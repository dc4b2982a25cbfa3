"""The guide "Does order matter for my texts?": its commands and its figures."""

import random
import re
import shlex
from pathlib import Path

import fuzz
import order
import pytest
from scipy import stats

PAGE = (Path(__file__).parents[2] / "docs/order.md").read_text("utf-8")
COMMANDS = re.findall(r"^python -m .+$", PAGE, re.MULTILINE)
TINY = [*order.MODEL, "tracker=none"]  # one program, with model=tiny and without
TINY += ["train.steps=2", "train.warmup=1", "train.evaluate_every=1", "seeds=1"]


@pytest.fixture(scope="module", autouse=True)
def texts(home):
  rng = random.Random(0)
  pairs = [row for _ in range(40) for row in order.pair(rng, 5)]
  lines = [f"{row['text']},{row['label']}" for row in pairs]
  Path("texts.csv").write_text("\n".join(["text,label", *lines, ""]))


@pytest.mark.parametrize(("number", "runs", "width"), [(1, 15, 64), (2, 15, 128)])
def test_its_commands_are_sweeps_of_the_texts(number, runs, width):
  name, *argv = shlex.split(COMMANDS[number])[2:]
  asked = []
  done = order.command(*argv, job=asked.append)
  assert (name, done.status, len(asked)) == ("posexp.train", 0, runs), done.err
  assert {each["task"]["name"] for each in asked} == {"texts"}
  assert {each["model"]["d_model"] for each in asked} == {width}


@pytest.mark.slow
def test_its_commands_give_a_table():
  trained, reported = (shlex.split(COMMANDS[number])[2:] for number in (1, 3))
  few = [word.replace("none,sinusoidal,rpr", "none,rpr") for word in trained[1:]]
  done = order.command(*few, *TINY)
  assert done.status == 0, done.err
  assert "texts: test accuracy by encoding" in done.out
  assert "trained   " in done.out
  assert "## texts: test accuracy by encoding" in fuzz.typed("report", *reported[1:]).out


@pytest.mark.parametrize("row", re.findall(r"^\| ([\d,]+) \| ± (\d+) \| ([\d.]+) \|", PAGE, re.M))
def test_its_table_is_that_of_the_binomial_distribution(row):
  texts, half, least = (float(each.replace(",", "")) for each in row)
  sd = 50 / texts**0.5
  assert half == round(1.96 * sd)
  ts = stats.t.ppf([0.975, 0.8], 8).sum()
  assert least == pytest.approx(ts * sd * (2 / 5) ** 0.5, abs=0.5)
