"""The one exception that a user is meant to read."""


class UserError(Exception):
  """A mistake in what the user typed or supplied.

  Its message is one sentence that says what is wrong, where, and what to do.
  The command line prints it alone, without a traceback, and exits with status 2.
  """
