"""Options that cannot be, or do not go together, are one sentence that names them as typed."""

import shlex

import mistakes
import pytest
from seed import some

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.errors import UserError
from posexp.training.setup import Setup


def built(line):
  """Builds the parts of a run, as training does before it reads data."""
  setup = Setup.of(resolve(compose(shlex.split(line))))
  setup.check_fits(setup.least_parameters())


@pytest.mark.parametrize(("typed", "message"), some(mistakes.options(), 25))
def test_options_that_cannot_be_are_one_sentence_before_data_are_read(typed, message):
  with pytest.raises(UserError) as refused:
    built(typed)
  assert str(refused.value).startswith(message)
  assert "\n" not in str(refused.value)
