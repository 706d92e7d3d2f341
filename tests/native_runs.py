"""Native runs that are recorded in the first run of a graph, for tests that run a program few times."""

import contextlib

from flowmx.ops.kernels import native_steps
from flowmx.ops.kernels.llvm import native_run


@contextlib.contextmanager
def eager_native_runs():
    """Record native calls in the first run of each graph, inside the ``with`` block."""
    before, native_steps.PLAIN_RUNS = native_steps.PLAIN_RUNS, 0
    try:
        yield native_run.prepare()
    finally:
        native_steps.PLAIN_RUNS = before
