"""A translator opened from its folder, and the few shapes of its batches."""

import numpy as np
import pytest
from states import assert_equal
from translators import untrained

from posexp import translate
from posexp.analysis import attention
from posexp.analysis.line_translation import LineTranslator, batch_rows, padded_length
from posexp.errors import UserError
from posexp.models.decoding import Search
from posexp.training.restore import open_translator

pytestmark = pytest.mark.usefixtures("compile_quickly")


def test_few_shapes_are_compiled(tmp_path):
  untrained(tmp_path / "run")
  opened = open_translator(tmp_path / "run", rows=8)
  translator = LineTranslator(opened, Search(1), 8)
  texts = ["one", "two two", "", *["one two three four ü ü"] * 9, *["three"] * 9]
  translator(texts)
  lengths = {padded_length(min(len(ids) + 1, 10)) for ids in translator.source.ids(texts) if ids}
  assert 0 < len(translator._programs) <= len(lengths) == 2
  compiled = translator.compiling
  before = translator.seconds
  again = translator(texts[::-1])
  assert translator.compiling == compiled
  assert translator.seconds > before
  assert translator.count == 2 * (len(texts) - 1)
  assert translator.tokens == 2 * sum(len(each.target) for each in again if each)


def test_sizes_of_batches():
  assert [padded_length(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]
  assert padded_length(17, limit=20) == 20
  assert [batch_rows(n, 64, 1) for n in (0, 1, 3, 33, 64, 999)] == [1, 1, 4, 64, 64, 64]
  assert [batch_rows(n, 48, 6) for n in (1, 7, 48, 999)] == [6, 12, 48, 48]
  assert batch_rows(40, 50, 5) == 40
  assert batch_rows(41, 50, 5) == 50


@pytest.mark.parametrize("match", ["flops", "parameters"])
def test_a_size_that_was_matched_is_the_one_of_the_checkpoint(match, tmp_path):
  path = tmp_path / "run"
  size = ["model.match_to=none", "model.d_model=64", "model.d_ff=128"]
  width, params = untrained(path, f"model.match={match}", *size)
  assert width != 128
  assert_equal(open_translator(path).snapshot.state.params, params)
  (path / "summary.json").unlink()  # as if it had been stopped
  if match == "parameters":
    assert_equal(open_translator(path).snapshot.state.params, params)
  else:
    with pytest.raises(UserError, match="has not finished: which d_ff"):
      open_translator(path)


def test_an_encoding_s_positions_are_enough(tmp_path):
  untrained(tmp_path / "run", "encoding=learned", "learned.length=20", "task.max_length=null")
  opened = open_translator(tmp_path / "run")
  translator = LineTranslator(opened, Search(1, max_length=99), 1)
  _, found = translator(["one", "one " * 50])
  assert len(found.source) == 20
  assert 1 <= len(found.target) <= 20
  note = next(translate.notes(translator, None))
  assert note == (
    "note: 1 line is translated only up to 20 tokens, which is as much as the model reads (its "
    "encoding has 20 positions); the first is line 2"
  )
  seen = attention.of_translation(opened, found.source, found.target)
  np.testing.assert_allclose(seen.cross.sum(-1), 1, atol=1e-5)
