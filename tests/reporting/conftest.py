"""What the tests of reports share."""

import pytest
from run_folders import report


@pytest.fixture
def said(capsys):
  """Reports on the terminal, as one line."""

  def run(*argv):
    report(*argv, "--no-files")
    return " ".join(capsys.readouterr().out.split())

  return run
