"""A translator opened from its folder, and the few shapes of its batches."""

import numpy as np
import pytest
from states import assert_equal
from translators import untrained

from posexp.analysis import attention_weights
from posexp.analysis.line_translation import LineTranslator
from posexp.data import batches
from posexp.errors import UserError
from posexp.models.decoding import Search
from posexp.tasks.translation import Translation
from posexp.training.restore import open_alone


def test_lengths_of_batches():
  assert [batches.padded_length(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]
  assert batches.padded_length(17, limit=20) == 20


def test_a_size_that_was_matched_is_the_one_of_the_checkpoint(tmp_path):
  path = tmp_path / "run"
  matched = "match: parameters"
  size = ["model.match=parameters", "model.match_to=none", "model.d_ff=128"]
  width, params = untrained(path, *size)
  assert width != 128
  config = (path / "config.yaml").read_text()
  assert matched in config
  for finished in (True, False):
    if not finished:
      (path / "summary.json").unlink()
    (path / "run.sha256").unlink(missing_ok=True)  # what is changed here would be told first
    (path / "config.yaml").write_text(config)
    assert_equal(open_alone(path, Translation).snapshot.state.params, params)
    (path / "config.yaml").write_text(config.replace(matched, "match: flops"))
    if finished:
      assert_equal(open_alone(path, Translation).snapshot.state.params, params)
    else:
      with pytest.raises(UserError, match="has not finished: which d_ff"):
        open_alone(path, Translation)


def test_an_encoding_s_positions_are_enough(tmp_path):
  untrained(tmp_path / "run", "encoding=learned", "learned.length=20", "task.max_length=null")
  opened = open_alone(tmp_path / "run", Translation)
  translator = LineTranslator(opened, Search(1, max_length=99), 1)
  short, found = translator(["one", "one " * 50])
  assert not short.cut
  assert len(found.source) == 20
  assert 1 <= len(found.target) <= 20
  assert found.cut
  for seen in attention_weights.of_translation(opened, found.source, found.target):
    np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-5)
