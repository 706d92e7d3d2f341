"""Workers of a `DataLoader`: processes or threads.

Worker processes are forked from `template`, a separate interpreter without threads, and never from the caller's
process, which may have threads. `package` pickles the data set once, into memory that all workers share. `messages` is
the format of the socket between them, `blocks` the shared memory of batches, `process` the worker's main program,
`connection` the thread that serves one worker, `pool` the pools of workers.
"""

from flowmx.gluon.data.workers.failures import DataLoaderTimeout, DataLoaderWorkerError
from flowmx.gluon.data.workers.pool import Job, ProcessPool, ThreadPool, WorkerPool

__all__ = ["DataLoaderTimeout", "DataLoaderWorkerError", "Job", "ProcessPool", "ThreadPool", "WorkerPool"]
