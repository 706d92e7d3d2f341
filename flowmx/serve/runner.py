"""The threads that form batches of waiting rows, have the engine compute them, and answer the requests.

Requests come from any event loop, so the queue stands behind a lock, which is held for microseconds. Everything that
takes longer (compiling, copying rows, waiting for the engine) happens on these threads, or on the engine's. There is
one for each operation that the engine computes at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.serve.batching import Job, Pace, Piece, Queue
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.inputs import Array
from flowmx.serve.measures import Measures
from flowmx.serve.model import Model

if TYPE_CHECKING:
    from flowmx.serve.spans import Tracing

__all__ = ["Runner"]


class Runner:
    """Serves one model after the other.

    Args:
        model: the first one, not warm yet.
        queue: for the requests.
        pace: for the batches.
        measures: where to count.
        name: of the predictor.
        workers: how many batches are computed at once.
        tracing: makes the batches' spans, if they are traced.
    """

    def __init__(
        self, model: Model, queue: Queue, pace: Pace, measures: Measures, name: str, workers: int,
        tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self.workers, self.tracing = workers, tracing
        self.model, self.queue, self.pace, self.measures, self.name = model, queue, pace, measures, name
        self.warm: Future[None] = Future()
        self.accepting = True
        self.pending = 0
        self._pending_of: dict[Model, int] = {}
        self._settled: list[tuple[Model | None, Future[None]]] = []
        self._stopping = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    # -- for any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a thread, which warms the model up and then has the others start; once only."""
        if self._threads:
            return
        with self._changed:
            if not self._threads and not self._stopping:
                self._start(self._warm_up)

    def _start(self, work: Callable[[], None]) -> None:
        """Start one more thread (locked)."""
        name = f"flowmx-serve-{self.name}-{len(self._threads)}"
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, job: Job) -> None:
        """Put a request into the queue.

        Raises:
            Overloaded: it is full.
            Unavailable: no requests are taken any more.
        """
        with self._changed:
            if not self.accepting:
                raise Unavailable(f"{self.name} is draining: it takes no further requests")
            if not self.queue.has_room(job.rows.rows):
                raise self.overloaded(job.rows.rows)
            was_empty = not self.queue
            self.queue.put(job)
            self.pace.arrived(job.arrived, job.rows.rows)
            self._count(job.key[0], 1)
            if was_empty or self.queue.rows >= self.pace.sizes[-1]:
                self._changed.notify()

    def overloaded(self, rows: int) -> Overloaded:
        """The refusal of rows where the queue is full."""
        waiting = self.queue.rows
        self.pace.refused(time.perf_counter(), rows)
        return Overloaded(
            f"{self.name} is overloaded: {waiting} rows wait, and at most {self.queue.limit} may",
            self.pace.retry_after(waiting),
        )

    def drop(self, job: Job) -> None:
        """Withdraw the rows of an abandoned request that have not started."""
        with self._changed:
            if not job.dropped and job.waiting_for:
                self.queue.drop(job)
                self._count(job.key[0], -1)

    def swap(self, model: Model, seconds: dict[int, float]) -> Model:
        """Give requests from now on to another model, which is warm; returns the one before."""
        with self._changed:
            before, self.model = self.model, model
            self.pace.seconds = seconds
        self.measures.version.set(model.version, self.name)
        return before

    def settled(self, model: Model | None = None) -> Future[None]:
        """Done when no request (for a model) waits or runs."""
        found: Future[None] = Future()
        with self._changed:
            self._settled.append((model, found))
            self._tell_settled()
        return found

    def refuse(self) -> None:
        """Take no further requests."""
        with self._changed:
            self.accepting = False

    def stop(self) -> None:
        """Take no further requests, fail those that wait, and let the thread end."""
        with self._changed:
            self.accepting, self._stopping = False, True
            waiting = self.queue.clear()
            self._changed.notify_all()
        self._fail(waiting, Unavailable(f"{self.name} was stopped before it got to this request"))

    def join(self) -> None:
        """Wait for the threads."""
        for each in self._threads:
            each.join()

    # -- its threads -----------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        try:
            self.pace.seconds = self.model.warm(self.pace.sizes)
        except BaseException as error:
            self.refuse()
            self.warm.set_exception(error)
            with self._changed:
                waiting = self.queue.clear()
            self._fail(waiting, error)
            return
        self.warm.set_result(None)
        with self._changed:
            for _ in range(self.workers - 1):
                self._start(self._serve)
        self._serve()

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            self._compute(*batch)

    def _next(self) -> tuple[list[Piece], int] | None:
        """Wait for the next batch; returns its rows and its size, or None at the end."""
        with self._changed:
            while not self._stopping:
                if not self.queue:
                    self._changed.wait()
                    continue
                first, now = self.queue.first(), time.perf_counter()
                waiting = self.queue.waiting(first.key)
                begin = self.pace.begin_at(waiting, first.arrived, now)
                if begin <= now:
                    size = self.pace.size(waiting)
                    taken = self.queue.take(first.key, size)
                    if self.queue:
                        self._changed.notify()
                    return taken, size
                self._changed.wait(begin - now)
        return None

    def _compute(self, pieces: list[Piece], size: int) -> None:
        start, rows = time.perf_counter(), sum(stop - start for _, start, stop in pieces)
        model: Model = pieces[0].job.key[0]
        try:
            with self.tracing.batch(self.name, pieces, size) if self.tracing else nullcontext():
                outputs = model.compute(pieces, size)
        except BaseException as error:
            self._fail([job for job, _, _ in pieces], error)
            return
        took = time.perf_counter() - start
        self.pace.done(rows, took)
        self._measure(rows, size, took)
        complete = self._hand_out(pieces, outputs)
        for job in complete:
            self.measures.latency.observe(time.perf_counter() - job.arrived, self.name)
        self._answer(complete, None)

    def _hand_out(self, pieces: Sequence[Piece], outputs: Sequence[Array]) -> list[Job]:
        """Give jobs the rows of a batch; returns those that are complete now, and that somebody waits for."""
        parts, at = [], 0
        for _, start, stop in pieces:
            # Copies: a view would keep the whole batch.
            parts.append([output[at : at + stop - start].copy() for output in outputs])
            at += stop - start
        complete = []
        with self._changed:
            for (job, start, stop), part in zip(pieces, parts, strict=True):
                job.results[start] = part
                job.waiting_for -= stop - start
                if not (job.dropped or job.waiting_for):
                    self._count(job.key[0], -1)
                    complete.append(job)
        return complete

    def _fail(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Give an error to those who wait for requests."""
        failed = []
        for job in jobs:
            with self._changed:
                if job.waiting_for and not job.dropped:
                    self.queue.drop(job)
                    self._count(job.key[0], -1)
                    failed.append(job)
        self._answer(failed, error)

    def _answer(self, jobs: Sequence[Job], error: BaseException | None) -> None:
        """Complete the futures of requests, with one call for each of their loops."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.answer[0], []).append(job)
        for loop, theirs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, theirs, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

    def _count(self, model: Model, change: int) -> None:
        """A request more or less is pending (locked)."""
        self.pending += change
        self._pending_of[model] = self._pending_of.get(model, 0) + change
        if not self._pending_of[model]:
            del self._pending_of[model]
        self._tell_settled()

    def _tell_settled(self) -> None:
        """Complete the futures of :meth:`settled` (locked)."""
        left = []
        for model, future in self._settled:
            if self._pending_of if model is None else model in self._pending_of:
                left.append((model, future))
            else:
                future.set_result(None)
        self._settled = left

    def _measure(self, rows: int, size: int, seconds: float) -> None:
        measures, name = self.measures, self.name
        measures.rows.add(name, by=rows)
        measures.padding.add(name, by=size - rows)
        measures.batch_rows.observe(rows, name)
        measures.batch_seconds.observe(seconds, name)


def _resolve(jobs: Sequence[Job], error: BaseException | None) -> None:
    for job in jobs:
        future = job.answer[1]
        if future.done():
            continue
        if error is None:
            future.set_result(_joined(job))
        else:
            future.set_exception(error)


def _joined(job: Job) -> list[Array]:
    """The outputs of a job, of one row where one was given."""
    parts: list[Any] = [part for _, part in sorted(job.results.items())]
    outputs = parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]
    return [output[0] for output in outputs] if job.rows.single else outputs
