"""The threads of a predictor: they form batches of queued rows, compute them on the engine, and answer the requests.

Requests come from any event loop, so a lock protects the queue; it is held for microseconds. Everything that takes
longer (compiling, copying rows, waiting for the engine) runs on these threads or on the engine's. There is one thread
per operation that the engine runs in parallel.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import forks
from flowmx.serve.batching import Job, Pace, Piece, Queue
from flowmx.serve.compiled_model import Model
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.inputs import Array
from flowmx.serve.metrics import Instruments
from flowmx.serve.mms import HandlerModel

if TYPE_CHECKING:
    from flowmx.serve.spans import Tracing

__all__ = ["Computation", "Runner"]

_log = logging.getLogger("flowmx.serve")

Computation = Model | HandlerModel
"""The part of a predictor that computes batches."""


class Runner:
    """Computes the requests of a predictor with its current model.

    Args:
        model: the first model, not warm yet.
        queue: the queue of requests.
        pace: the batching policy.
        instruments: the metrics.
        name: name of the predictor.
        workers: number of batches that are computed in parallel.
        tracing: creates the spans of batches, if traces are enabled.
        turn: returns a context that waits until this predictor may compute a batch.
    """

    def __init__(
        self, model: Computation, queue: Queue, pace: Pace, instruments: Instruments, name: str, workers: int,
        tracing: Tracing | None = None, turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self.workers, self.tracing, self.turn = workers, tracing, turn
        self.model, self.queue, self.pace, self.instruments, self.name = model, queue, pace, instruments, name
        self.warm: Future[None] = Future()
        self.accepting = True
        self._clear()
        forks.in_child(self, Runner._restart)

    def _clear(self) -> None:
        """Reset to no requests and no threads."""
        self.pending = 0
        self._jobs: set[Job] = set()
        self._pending_of: dict[Computation, int] = {}
        self._idle_futures: list[tuple[Computation | None, Future[None]]] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] | None = None

    def _restart(self) -> None:
        """Discard the parent's threads and requests in the child of a fork."""
        self.queue.clear()
        self.queue.decoding = 0
        self._clear()
        if not self.warm.done():
            self.warm = Future()

    # -- for any thread --------------------------------------------------------------------------------

    def open(self) -> None:
        """Accept requests, also after :meth:`stop`, and start the threads."""
        with self._changed:
            self.accepting = True
            if self.warm.done() and self.warm.exception() is not None:
                self.warm = Future()
                self._threads = None
        self.begin()

    def begin(self) -> None:
        """Start the thread that warms up the model and then starts the others; do nothing if they run."""
        if self._threads is None:
            self._begin()

    def _begin(self) -> None:
        with self._changed:
            if self._threads is None and self.accepting:
                self._threads = []
                self._start(self._warm_up if not self.warm.done() else self._serve_all)

    def _start(self, work: Callable[[list[threading.Thread]], None]) -> None:
        """Start one more thread (locked)."""
        assert self._threads is not None
        name = f"flowmx-serve-{self.name}-{len(self._threads)}"
        thread = threading.Thread(target=work, args=(self._threads,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, job: Job) -> None:
        """Queue a request.

        Raises:
            Overloaded: the queue is full.
            Unavailable: no requests are accepted any more.
        """
        with self._changed:
            self._require_room(self.queue.has_room(job.rows.rows), job.rows.rows)
            was_empty = not self.queue
            self.queue.put(job)
            self.pace.record_arrival(job.arrival, job.rows.rows)
            self._count(job, 1)
            if was_empty or self.queue.rows >= self.pace.sizes[-1]:
                self._changed.notify()

    def _require_room(self, has_room: bool, rows: int) -> None:
        """Refuse a request without room for its rows, or any if none is accepted (locked)."""
        self.check_accepting()
        if not has_room:
            raise self.overloaded(rows)

    def check_accepting(self) -> None:
        """Raise if no requests are accepted.

        Raises:
            Unavailable: they are not, because of a drain or a failed warm-up.
        """
        if not self.accepting:
            raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        failure = self.warm.exception() if self.warm.done() and not self.warm.cancelled() else None
        if failure is None:
            return Unavailable(f"{self.name} is draining: it accepts no further requests")
        error = Unavailable(f"{self.name} failed to warm up: {type(failure).__name__}: {failure}")
        error.__cause__ = failure
        return error

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count a body against the limit of the queue while it waits for a hook, or is in it.

        Raises:
            Overloaded: the queue is full.
            Unavailable: no requests are accepted any more.
        """
        with self._changed:
            self._require_room(self.queue.has_room_to_decode(), 1)
            self.queue.decoding += 1
        try:
            yield
        finally:
            with self._changed:
                self.queue.decoding -= 1

    def overloaded(self, rows: int) -> Overloaded:
        """Return the error for rows that do not fit into the queue."""
        waiting, decoding = self.queue.rows, self.queue.decoding
        bodies = f" and {decoding} bodies are being decoded" if decoding else ""
        self.pace.record_refusal(time.perf_counter(), rows)
        return Overloaded(
            f"{self.name} is overloaded: {waiting} samples are queued{bodies}, expected at most {self.queue.limit}",
            self.pace.retry_after(waiting + decoding),
        )

    def drop(self, job: Job) -> None:
        """Withdraw the rows of an abandoned request that have not started."""
        with self._changed:
            if not job.dropped and job.waiting_for:
                self.queue.drop(job)
                self._count(job, -1)

    def swap(self, model: Computation, seconds: dict[int, float]) -> Computation:
        """Send further requests to another, warm model; return the previous one."""
        with self._changed:
            previous, self.model = self.model, model
            self.pace.seconds = seconds
        self.instruments.version.set(model.version, self.name)
        return previous

    def when_idle(self, model: Computation | None = None) -> Future[None]:
        """Return a future that completes when no request (of ``model``) is pending."""
        future: Future[None] = Future()
        with self._changed:
            self._idle_futures.append((model, future))
            self._complete_idle()
        return future

    def refuse(self) -> None:
        """Accept no further requests."""
        with self._changed:
            self.accepting = False

    def abandon(self, reason: str) -> None:
        """Fail all requests that are pending, also those in a batch that is being computed."""
        with self._changed:
            jobs = list(self._jobs)
        _log.warning("%d requests to %s %s", len(jobs), self.name, reason)
        self._fail(jobs, Unavailable(f"this request to {self.name} {reason}"))

    def stop(self) -> list[threading.Thread]:
        """Refuse further requests, fail the queued ones, and stop the threads; return these."""
        with self._changed:
            self.accepting = False
            threads, self._threads = self._threads, None
            waiting = self.queue.clear()
            self._changed.notify_all()
        self._fail(waiting, Unavailable(f"{self.name} was stopped before it computed this request"))
        return threads or []

    # -- threads ---------------------------------------------------------------------------------------

    def _warm_up(self, threads: list[threading.Thread]) -> None:
        warm = self.warm
        try:
            self.pace.seconds = self.model.warm(self.pace.sizes)
        except BaseException as error:  # user code: the clients that wait get the error
            self.refuse()
            if not warm.done():
                warm.set_exception(error)
            with self._changed:
                waiting = self.queue.clear()
            self._fail(waiting, error)
            _log.error("%s failed to warm up: %s: %s", self.name, type(error).__name__, error)
            return
        if not warm.done():  # unless a thread that was started meanwhile has set it
            warm.set_result(None)
        self._serve_all(threads)

    def _serve_all(self, threads: list[threading.Thread]) -> None:
        """Start the other threads and serve."""
        with self._changed:
            if self._threads is threads:
                for _ in range(self.workers - 1):
                    self._start(self._serve)
        self._serve(threads)

    def _serve(self, threads: list[threading.Thread]) -> None:
        while self._wait(threads):
            with self.turn():
                batch = self._take(threads)  # now, because rows have arrived while it waited for its turn
                if batch is not None:
                    self._compute(*batch)

    def _wait(self, threads: list[threading.Thread]) -> bool:
        """Wait until a batch is to start; return False if these threads have to stop."""
        with self._changed:
            while self._threads is threads:
                if not self.queue:
                    self._changed.wait()
                    continue
                oldest, now = self.queue.oldest(), time.perf_counter()
                begin = self.pace.start_time(self.queue.waiting(oldest.key), oldest.arrival, now)
                if begin <= now:
                    return True
                self._changed.wait(begin - now)
        return False

    def _take(self, threads: list[threading.Thread]) -> tuple[list[Piece], int] | None:
        """Return the rows and the size of the next batch; None if other threads have taken all rows, or these stop."""
        with self._changed:
            if self._threads is not threads or not self.queue:
                return None
            key = self.queue.oldest().key
            size = self.pace.size(self.queue.waiting(key))
            pieces = self.queue.take(key, size)
            if self.queue:
                self._changed.notify()
            return pieces, size

    def _compute(self, pieces: list[Piece], size: int) -> None:
        start, rows = time.perf_counter(), sum(stop - start for _, start, stop in pieces)
        model: Computation = pieces[0].job.key[0]
        try:
            jobs = list(dict.fromkeys(piece.job for piece in pieces))
            with self.tracing.batch(self.name, jobs, rows, size) if self.tracing else nullcontext():
                outputs = model.compute(pieces, size)
        except BaseException as error:  # user code: the clients that wait get the error
            self._fail([job for job, _, _ in pieces], error)
            return
        duration = time.perf_counter() - start
        self.pace.record_batch(rows, duration)
        self.measure(rows, size, duration)
        complete = self._distribute(pieces, outputs)
        for job in complete:
            job.outputs = _collect_outputs(job)  # outside the lock: it may copy large arrays
        for job in complete:
            self.instruments.latency.observe(time.perf_counter() - job.arrival, self.name)
        self._answer(complete, None)

    def _distribute(self, pieces: Sequence[Piece], outputs: Sequence[Array]) -> list[Job]:
        """Distribute the rows of a batch to the jobs; return the jobs that are now complete and were not dropped."""
        parts, offset = [], 0
        for _, start, stop in pieces:
            # Copies, because a view would keep the whole batch alive.
            parts.append([output[offset : offset + stop - start].copy() for output in outputs])
            offset += stop - start
        complete = []
        with self._changed:
            for (job, start, stop), part in zip(pieces, parts, strict=True):
                job.results[start] = part
                job.waiting_for -= stop - start
                if not (job.dropped or job.waiting_for):
                    self._count(job, -1)
                    complete.append(job)
        return complete

    def _fail(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Fail the requests that are still pending."""
        failed = []
        for job in jobs:
            with self._changed:
                if job.waiting_for and not job.dropped:
                    self.queue.drop(job)
                    self._count(job, -1)
                    failed.append(job)
        self._answer(failed, error)

    def _answer(self, jobs: Sequence[Job], error: BaseException | None) -> None:
        """Complete the futures of requests, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.answer[0], []).append(job)
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, batch, error)
            except RuntimeError:  # the loop is closed, so nothing waits
                pass

    def _count(self, job: Job, change: int) -> None:
        """Count a request that begins, 1, or ends, -1 (locked)."""
        model: Computation = job.key[0]
        (self._jobs.add if change > 0 else self._jobs.discard)(job)
        self.pending += change
        self._pending_of[model] = self._pending_of.get(model, 0) + change
        if not self._pending_of[model]:
            del self._pending_of[model]
        self._complete_idle()

    def _complete_idle(self) -> None:
        """Complete the futures of :meth:`when_idle` (locked)."""
        remaining = []
        for model, future in self._idle_futures:
            if self._pending_of if model is None else model in self._pending_of:
                remaining.append((model, future))
            else:
                future.set_result(None)
        self._idle_futures = remaining

    def measure(self, rows: int, size: int, seconds: float) -> None:
        """Count a batch in the metrics."""
        instruments, name = self.instruments, self.name
        instruments.rows.add(name, by=rows)
        instruments.padding.add(name, by=size - rows)
        instruments.batch_rows.observe(rows, name)
        instruments.batch_seconds.observe(seconds, name)


def _resolve(jobs: Sequence[Job], error: BaseException | None) -> None:
    for job in jobs:
        future = job.answer[1]
        if future.done():
            continue
        if error is None:
            future.set_result(job.outputs)
        else:
            future.set_exception(error)


def _collect_outputs(job: Job) -> list[Array]:
    """Return the outputs of a job, without the batch axis if its input had none."""
    parts: list[Any] = [part for _, part in sorted(job.results.items())]
    outputs = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    return [output[0] for output in outputs] if job.rows.single else outputs
