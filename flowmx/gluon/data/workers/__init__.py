"""Workers of a `DataLoader`: processes of their own, or threads.

A process is forked by `template`, an interpreter of its own, so that nothing of a parent with threads is. `package` is
what it gets (the data set, pickled once for all of them into memory that they share), `messages` the
format of the socket between them, `blocks` the shared memory of batches, `process` the worker's main program,
`connection` the thread that serves one worker, `pool` the pools of workers.
"""

from flowmx.gluon.data.workers.failures import DataLoaderTimeout, DataLoaderWorkerError
from flowmx.gluon.data.workers.pool import Failed, Job, ProcessPool, ThreadPool, WorkerPool

__all__ = ["DataLoaderTimeout", "DataLoaderWorkerError", "Failed", "Job", "ProcessPool", "ThreadPool", "WorkerPool"]
