"""The seed by which tests choose among many cases; `pytest --seed` sets it and prints it."""

import os

SEED = int(os.environ.get("POSEXP_TESTS_SEED", 0))
