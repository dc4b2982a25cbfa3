"""SCAN: its commands mean what the paper says, and its splits are those of the paper."""

import functools

import numpy as np
import pytest

from posexp.diagnostics import scan
from posexp.diagnostics.answering import EOS, FIRST, SEP
from posexp.diagnostics.scan import SYMBOLS, Scan, blind

TURNS = {"left": "I_TURN_LEFT", "right": "I_TURN_RIGHT"}


def meaning(words):
  """The actions of a command, by the rules of Lake & Baroni's figure 6."""
  for joint, order in (("and", 1), ("after", -1)):
    if joint in words:
      at = words.index(joint)
      first, second = [meaning(words[:at]), meaning(words[at + 1 :])][::order]
      return first + second
  for often, times in (("twice", 2), ("thrice", 3)):
    if words[-1] == often:
      return meaning(words[:-1]) * times
  if len(words) == 1:
    return [f"I_{words[0].upper()}"]
  turn, act = [TURNS[words[-1]]], [] if words[0] == "turn" else meaning(words[:1])
  if "around" in words:
    return (turn + act) * 4
  return turn * (1 + ("opposite" in words)) + act


def test_all_commands_of_the_grammar_mean_what_its_rules_say():
  found = scan.commands()
  assert len(found) == 20_910
  assert max(len(actions.split()) for actions in found.values()) == 48
  assert all(actions.split() == meaning(command.split()) for command, actions in found.items())
  assert {word for each in found for word in each.split()} == set(scan.WORDS)
  assert {action for each in found.values() for action in each.split()} == set(scan.ACTIONS)


@pytest.mark.parametrize(
  ("split", "trained", "tested"),
  [
    ("length", 16_990, 3_920),
    ("add_jump", 14_670, 7_706),
    ("add_turn_left", 21_890, 1_208),
    ("simple", 16_728, 4_182),
  ],
)
def test_splits_have_the_sizes_of_the_paper(split, trained, tested):
  train, test = scan.published(split, 22)
  if split == "length":  # of which more may be trained on
    longer = [len(y.split()) for _, y in scan.published(split, 26)[0]]
    assert max(len(y.split()) for _, y in train) == 22 < max(longer) == 26
  near = 100 if split == "simple" else 0  # which is drawn
  assert abs(len(train) - trained) <= near
  assert abs(len(test) - tested) <= near
  assert set(train) | set(test) == set(scan.commands().items())
  assert not set(train) & set(test)
  if split.startswith("add"):
    phrase = split.removeprefix("add_").replace("_", " ")
    assert {command for command, _ in train if phrase in command} == {phrase}
    alone = sum(command == phrase for command, _ in train)
    assert alone == pytest.approx(len(train) / 10, abs=1)


@functools.cache
def prepared(split="length"):
  return Scan(split=split).prepare(None)


@pytest.mark.parametrize(
  ("split", "others"),
  [("length", {"test", "beyond"}), ("add_jump", {"test", "beyond"}), ("simple", {"test"})],
)
def test_what_is_held_out_is_not_trained_on(split, others):
  data = prepared(split)
  assert set(data.sizes) == {"train", "validation"} | others
  found = {name: {data.written(x) for x, _ in example} for name, example in data.examples.items()}
  assert sum(map(len, found.values())) == 20_910
  assert set().union(*found.values()) == set(scan.commands())
  assert {"walk", "look", "run", "jump", "turn left", "turn right"} <= found["train"]
  assert 0.04 < data.sizes["validation"] / (data.sizes["train"] + data.sizes["validation"]) < 0.06


def test_rows_are_a_command_and_its_actions():
  data = prepared()
  batches = [next(data.batches(8, seed=0)), next(data.evaluation("beyond", 8))]
  for batch in batches:
    for tokens, labels, mask in zip(batch["tokens"], batch["labels"], batch["mask"], strict=True):
      end = int(np.flatnonzero(tokens == SEP)[0])
      answer = labels[mask]
      assert [*np.flatnonzero(mask)] == [*range(end, end + len(answer))]
      assert answer[-1] == EOS
      command, actions = (data.written(each - FIRST) for each in (tokens[1:end], answer[:-1]))
      assert scan.commands()[command] == actions
  assert len(next(data.batches(8, seed=0, start=1))["tokens"]) == 8
  lengths, examples = data.splits["beyond"]
  assert [*lengths] == [len(y) for _, y in examples]
  assert min(lengths) == 24


def test_an_added_phrase_is_a_tenth_of_what_is_trained_on():
  data = prepared("add_jump")
  tokens = np.concatenate(
    [next(data.batches(500, seed=0, start=step))["tokens"] for step in range(4)]
  )
  alone = (tokens[:, 1] == FIRST + SYMBOLS["jump"]) & (tokens[:, 2] == SEP)
  assert 0.08 < alone.mean() < 0.14


def test_chance_is_that_of_the_best_guess_from_a_bag():
  pairs = {"a b": "I_RUN I_WALK", "b a": "I_WALK I_RUN", "c": "I_RUN I_RUN", "d": "I_RUN"}
  assert blind(pairs.items()) == {2: 2 / 3, 1: 1.0}


def test_files_hold_a_command_a_line(tmp_path):
  file = tmp_path / "tasks.txt"
  file.write_text("IN: jump twice OUT: I_JUMP I_JUMP\n\nIN: turn left OUT: LTURN\n")
  expected = [("jump twice", "I_JUMP I_JUMP"), ("turn left", "I_TURN_LEFT")]
  assert scan.read(str(file)) == expected
  file.write_text("IN: jump twice OUT: JUMP JUMP\r\nIN: turn left OUT: TURN_LEFT")
  assert scan.read(str(file)) == expected
