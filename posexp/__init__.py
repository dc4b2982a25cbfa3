"""posexp: positional encodings for Transformers, compared on equal terms.

What `__all__` names is promised; it is imported when it is first used.
"""

import importlib
import time
from typing import Any

from posexp.machine import sum_rightly

__version__ = "0.2.0"
BEGUN = time.perf_counter()  # of the process, as near as a package can know

_HOMES = {
  "ENCODINGS": "posexp.encodings",
  "Columns": "posexp.encodings",
  "Encoding": "posexp.encodings",
  "Layer": "posexp.encodings",
  "Matrix": "posexp.encodings.base",
  "Relation": "posexp.encodings",
  "Span": "posexp.encodings",
  "encoding": "posexp.encodings",
  "vectors": "posexp.analysis.values",
  "sums_between": "posexp.encodings.columns",
  "Attention": "posexp.models.layer",
  "Stack": "posexp.models.transformer",
  "Size": "posexp.models.transformer",
  "load": "posexp.released.loaded",
  "open_for": "posexp.training.restore",
  "Source": "posexp.training.sources",
  "Task": "posexp.tasks.contract",
  "Diagnostic": "posexp.diagnostics.diagnostic",
  "Tracker": "posexp.tracking.tracker",
  "TrackedRun": "posexp.tracking.tracker",
  "Launcher": "posexp.sweeps.supervise",
  "Metric": "posexp.runs.metrics",
  "UserError": "posexp.errors",
}
__all__ = list(_HOMES)

sum_rightly()


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module 'posexp' has no attribute {name!r}")
  value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
  return value


def __dir__() -> list[str]:
  return sorted(__all__)
