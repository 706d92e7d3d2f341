"""Workers of a `DataLoader`: processes or threads.

Worker processes are forked from `template`, a separate interpreter without threads, and never from the caller's
process, which may have threads. `package` pickles the data set once, into memory that all workers share. `messages`
defines the messages on the socket between loader and worker, `blocks` manages the shared memory of batches, `process`
is the worker's main program, `connection` is the thread that serves a worker, and `pool` manages the workers.
"""

from flowmx.gluon.data.workers.failures import DataLoaderTimeout, DataLoaderWorkerError
from flowmx.gluon.data.workers.pool import Job, ProcessPool, ThreadPool, WorkerPool

__all__ = ["DataLoaderTimeout", "DataLoaderWorkerError", "Job", "ProcessPool", "ThreadPool", "WorkerPool"]
