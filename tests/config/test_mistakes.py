"""Options that cannot be, or do not go together, are one sentence that names them as typed."""

import copy
import functools
import shlex

import mistakes
import pytest
from omegaconf import OmegaConf
from seed import some

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.config.overrides import read
from posexp.errors import UserError
from posexp.training.setup import Setup

composed = functools.cache(lambda *choices: compose(list(choices)))


def built(line):
  """Builds the parts of a run, as training does before it reads data.

  Choices of files are composed once for all lines, as that takes longest.
  """
  words = shlex.split(line)
  choices = [word for word in words if "." not in word.partition("=")[0]]
  config = copy.deepcopy(composed(*choices))
  for option in read([word for word in words if word not in choices]):
    OmegaConf.update(config, option.key_or_group, option.value())
  setup = Setup.of(resolve(config))
  setup.check_fits(setup.least_parameters())


@pytest.mark.parametrize(("typed", "message"), some(mistakes.options(), 25))
def test_options_that_cannot_be_are_one_sentence_before_data_are_read(typed, message):
  with pytest.raises(UserError) as refused:
    built(typed)
  assert str(refused.value).startswith(message)
  assert "\n" not in str(refused.value)
