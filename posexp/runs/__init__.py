"""The folders of runs: their identity, how training writes them, and how they are read back."""

from posexp.runs.identity import BOOKKEEPING, FILES, digest, folder
from posexp.runs.run import Broken, Run, read_config, read_rows, read_run, read_runs, read_summary
from posexp.runs.writer import Elsewhere, ReadOnlyRun, RunWriter, is_held, lock
