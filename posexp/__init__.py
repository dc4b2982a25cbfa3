"""posexp: positional encodings for Transformers, compared on equal terms."""

import time

BEGUN = time.perf_counter()  # of the process, as near as a package can know
