"""What the tests of the leaderboard share."""

import pytest
from planted import planted


@pytest.fixture
def home(tmp_path, monkeypatch):
  """Stands in for training, in a folder with a small suite."""
  return planted(tmp_path, monkeypatch)
