"""Workers of a `DataLoader`: processes of their own, or threads.

A process is started by executing a new interpreter, so that nothing of a parent with threads is forked. `package` is
what it gets (the data set, pickled once for all of them into memory that they share), `messages` what goes over the
socket between them, `blocks` the memory that batches come home in, `process` what it runs, `line` the thread that talks
to it, `crew` all of them together.
"""

from flowmx.gluon.data.workers.crew import Crew, Failed, Job, Processes, Threads
from flowmx.gluon.data.workers.failures import DataLoaderTimeout, DataLoaderWorkerError

__all__ = ["Crew", "DataLoaderTimeout", "DataLoaderWorkerError", "Failed", "Job", "Processes", "Threads"]
