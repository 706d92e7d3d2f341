"""Threads that compute batches: a request whose batches end out of order."""

import asyncio
import threading
import time

import numpy as np

from flowmx.comm.metrics import Metrics
from flowmx.serve.batching import Job, Pace, Queue
from flowmx.serve.inputs import Rows
from flowmx.serve.metrics import Instruments
from flowmx.serve.runner import Runner


class Backwards:
    """A model whose batches end in the reverse of the order in which they began."""

    version = 0

    def __init__(self, batches):
        self._turns = [threading.Event() for _ in range(batches + 1)]
        self._turns[-1].set()
        self._begun = 0
        self._lock = threading.Lock()

    def warm(self, sizes):
        return {size: float(size) for size in sizes}

    def compute(self, pieces, size):
        with self._lock:
            self._begun += 1
            turn = self._begun
        assert self._turns[turn].wait(30)
        self._turns[turn - 1].set()
        return (np.concatenate([job.rows.arrays[0][start:stop] for job, start, stop in pieces]),)


async def test_a_request_has_its_rows_in_order_whichever_of_its_batches_ends_first():
    batches, size = 4, 8
    model = Backwards(batches)
    runner = Runner(model, Queue(100), Pace((size,), 0.0), Instruments(Metrics()), "model", workers=batches)
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    inputs = np.arange(batches * size, dtype=np.float32).reshape(-1, 1)
    job = Job(Rows((inputs,), len(inputs), False, ((1,),)), (model, ((1,),)), time.perf_counter(), (loop, answer))
    runner.submit(job)
    runner.begin()
    (actual,) = await asyncio.wait_for(answer, 30)
    np.testing.assert_array_equal(actual, inputs)
    assert runner.pending == 0
    await asyncio.wrap_future(runner.when_idle())
    for thread in runner.stop():
        await asyncio.to_thread(thread.join)
