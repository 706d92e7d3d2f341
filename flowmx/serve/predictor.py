"""Predictors: models whose predictions are awaited."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from flowmx import settings
from flowmx.comm.metrics import Metrics
from flowmx.devices import Context, cpu
from flowmx.ndarray import NDArray
from flowmx.serve import measures, report
from flowmx.serve.batching import Job, Pace, Queue, sizes_up_to
from flowmx.serve.errors import InvalidInput, Overloaded, Unavailable
from flowmx.serve.inputs import Array, Input, Inputs, Rows, Shapes
from flowmx.serve.loading import Source, load
from flowmx.serve.model import Model
from flowmx.serve.runner import Runner
from flowmx.serve.tracing import tracing

__all__ = ["Predictor"]

_COMPILED = 16
"""Graphs that a cached graph keeps compiled."""


class Predictor:
    """A model that any number of tasks, on any event loop, await predictions of; their rows share batches.

    Args:
        model: a Gluon block (hybridized here, unless it is already), a symbol with ``params``, the prefix of a
            checkpoint, a folder that holds one, or an ONNX file.
        shape: of one row, without the batch axis; of several inputs, a dict by name in the order of the model's. None
            stands for a length that varies (see ``lengths``). An ONNX file says it itself.
        dtype: of the inputs (default float32), or a dict by name.
        params: the parameters of a symbol: arrays by name, or a file.
        epoch: which of a checkpoint's parameters (default: the latest).
        max_batch: most rows of a batch. Batches of its powers of two are compiled beforehand.
        sizes: other sizes of batches to compile.
        max_latency: seconds that a row may wait for company while the engine has nothing to do.
        queue: most rows that wait; more are refused with :class:`Overloaded` (default: twice ``max_batch``).
        lengths: the lengths that axes of None are padded to, with zeros. Outputs stay as the model gives them.
        finite: refuse NaN and infinities.
        ctx: the device that the model's parameters are on.
        name: in messages and metrics.
        metrics: where to count (default: with all other predictors of the process).

    Raises:
        ValueError: the arguments contradict each other, or say too little of the inputs.
        OSError: a file can not be read.

    Example:
        >>> async with mx.serve.Predictor(net, shape=(3, 32, 32), max_batch=16) as predictor:
        ...     scores = await predictor(image)
    """

    def __init__(
        self, model: Any, shape: Shapes | None = None, *, dtype: Any = None, params: Any = None,
        epoch: int | None = None, max_batch: int = 32, sizes: Sequence[int] | None = None, max_latency: float = 0.002,
        queue: int | None = None, lengths: Sequence[int] = (), finite: bool = False, ctx: Context | None = None,
        name: str = "model", metrics: Metrics | None = None,
    ) -> None:  # fmt: skip
        sizes = _sizes(max_batch, sizes)
        limit = 2 * sizes[-1] if queue is None else queue
        if limit < 1 or max_latency < 0:
            raise ValueError(f"queue is {limit} and max_latency {max_latency}, expected at least 1 row and 0 seconds")
        self.name = name
        self._measures = measures.SHARED if metrics is None else measures.Measures(metrics)
        self._known = {"shape": shape, "dtype": dtype}
        self._ctx = cpu() if ctx is None else ctx
        self._numbers = itertools.count()
        source = load(model, shape, dtype, params, epoch)
        inputs = Inputs(source.inputs, lengths, limit, finite)
        graphs = len(sizes) * len(inputs.shapes())
        if graphs > _COMPILED:
            raise ValueError(
                f"{len(sizes)} sizes of batches for each of {len(inputs.shapes())} lengths are {graphs} graphs, and "
                f"{_COMPILED} stay compiled: name fewer lengths, or sizes=(1, {sizes[-1]})"
            )
        self._runner = Runner(
            self._model(source, inputs), Queue(limit), Pace(sizes, max_latency), self._measures, name,
            settings.get().cpu_worker_nthreads, tracing(),
        )  # fmt: skip
        self._swapping = threading.RLock()
        weakref.finalize(self, self._runner.stop)
        weakref.finalize(self, report.speak(self._runner))

    # -- predictions -----------------------------------------------------------------------------------

    async def __call__(self, x: Any) -> Any:
        """Predict.

        The first call warms the model up; so does :meth:`ready`, ahead of it. Cancelling takes the rows out of the
        queue that have not started.

        Args:
            x: one row, or several with a batch axis: an array (NumPy's or flowmx's) or nested lists; of several inputs,
                a dict by name. It must stay as it is until the answer is there.

        Returns:
            NumPy arrays, one or a list of several outputs; without a batch axis where ``x`` had none.

        Raises:
            InvalidInput: ``x`` does not fit the model.
            Overloaded: the queue is full.
            Unavailable: the predictor is draining.
        """
        return await self.predict(self.read(await _on_host(x)))

    def read(self, x: Any) -> Rows:
        """Check an input, on whichever thread; :meth:`predict` takes what it returns.

        Args:
            x: as for a call, without flowmx's arrays.

        Raises:
            InvalidInput: ``x`` does not fit the model.
        """
        try:
            return self.inputs.read(x)
        except InvalidInput:
            self._count("invalid")
            raise

    async def predict(self, rows: Rows) -> Any:
        """Predict for what :meth:`read` returned, as a call does.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the predictor is draining.
        """
        runner = self._runner
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Array]] = loop.create_future()
        trace = runner.tracing.current() if runner.tracing else None
        job = Job(rows, (runner.model, rows.shapes), time.perf_counter(), (loop, future), trace)
        try:
            runner.submit(job)
        except (Overloaded, Unavailable) as error:
            self._count("refused" if isinstance(error, Overloaded) else "unavailable")
            raise
        runner.start()
        return await self._outcome(job, future)

    async def _outcome(self, job: Job, future: asyncio.Future[list[Array]]) -> Any:
        try:
            outputs = await future
        except asyncio.CancelledError:
            self._runner.drop(job)
            self._count("cancelled")
            raise
        except BaseException:
            self._count("failed")
            raise
        self._count("answered")
        return outputs[0] if len(outputs) == 1 else outputs

    def _count(self, result: str) -> None:
        self._measures.requests.add(self.name, result)
        self._measures.queued.set(self._runner.queue.rows, self.name)
        self._measures.pending.set(self._runner.pending, self.name)

    # -- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to warm the model up; returns at once."""
        self._runner.start()

    async def ready(self) -> Predictor:
        """Warm up: compile the model for every size of batches, and run each; returns the predictor.

        Raises:
            Exception: what went wrong.
        """
        self.start()
        await asyncio.shield(asyncio.wrap_future(self._runner.warm))
        return self

    @property
    def is_ready(self) -> bool:
        """True once it is warm and takes requests."""
        warm = self._runner.warm
        return warm.done() and warm.exception() is None and self._runner.accepting

    async def swap(self, model: Any, *, params: Any = None, epoch: int | None = None) -> None:
        """Put another model in the place of this one, of the same inputs; loses no request.

        The new model is loaded and warmed while the old one answers. Requests that came before it was warm are
        answered by the old one, which is then released.

        Args:
            model: as for :class:`Predictor`.
            params: likewise.
            epoch: likewise.

        Raises:
            Exception: the new model can not be loaded or run; the old one stays.
        """
        await self.ready()
        settled = await asyncio.to_thread(self._swap, model, params, epoch)
        await asyncio.shield(asyncio.wrap_future(settled))
        # Graphs refer to themselves, and those of a model that was compiled count as old, which the collector looks
        # through once in hours: megabytes for each swap.
        await asyncio.to_thread(gc.collect)

    def _swap(self, model: Any, params: Any, epoch: int | None) -> Future[None]:
        with self._swapping:
            source = load(model, self._known["shape"], self._known["dtype"], params, epoch)
            inputs = self._runner.model.inputs
            if source.inputs != inputs.specs:
                given, expected = (", ".join(f"{s.name} {s}" for s in each) for each in (source.inputs, inputs.specs))
                raise ValueError(f"the new model takes {given}, and the predictor {expected}: make another predictor")
            fresh = self._model(source, inputs)
            return self._runner.settled(self._runner.swap(fresh, fresh.warm(self._runner.pace.sizes)))

    def _model(self, source: Source, inputs: Inputs) -> Model:
        return Model(source, inputs, self._ctx, next(self._numbers))

    def refuse(self) -> None:
        """Take no further requests; those that wait are answered."""
        self._runner.refuse()

    async def drain(self) -> None:
        """Take no further requests, answer those that wait, and end."""
        self.refuse()
        await asyncio.shield(asyncio.wrap_future(self._runner.settled()))
        self._runner.stop()
        await asyncio.to_thread(self._runner.join)

    async def __aenter__(self) -> Predictor:
        return await self.ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of times that the model was swapped."""
        return self._runner.model.version

    @property
    def inputs(self) -> Inputs:
        """Specification of a request's inputs."""
        return self._runner.model.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, once it is warm."""
        return self._runner.model.outputs

    @property
    def results(self) -> tuple[Input, ...]:
        """Shape of a row and dtype of each output, once it is warm."""
        return self._runner.model.results

    @property
    def metrics(self) -> Metrics:
        """The registry of its metrics."""
        return self._measures.metrics

    def check_room(self) -> None:
        """Refuse at once where a request of one row would be refused, before its body is read.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the predictor is draining, or its model could not be made ready.
        """
        runner = self._runner
        if not runner.accepting:
            self._count("unavailable")
            raise Unavailable(f"{self.name} takes no requests: it is draining, or its model could not be made ready")
        if not runner.queue.has_room(1):
            self._count("refused")
            raise runner.overloaded(1)

    def described(self) -> dict[str, Any]:
        """Description of the predictor, JSON-compatible."""
        runner = self._runner
        return {
            "name": self.name, "ready": self.is_ready, "version": self.version, "inputs": self.inputs.described(),
            "outputs": list(self.outputs), "batch_sizes": list(runner.pace.sizes), "queue": runner.queue.limit,
            "max_latency": runner.pace.max_latency,
        }  # fmt: skip

    def __repr__(self) -> str:
        inputs = ", ".join(f"{each.name} {each}" for each in self.inputs.specs)
        return f"<Predictor {self.name!r} of {inputs}, batches of {', '.join(map(str, self._runner.pace.sizes))}>"


def _sizes(max_batch: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    found = sizes_up_to(max_batch) if sizes is None else tuple(sorted(set(sizes)))
    if not found or found[0] < 1:
        raise ValueError(f"max_batch is {max_batch} and sizes {sizes}, expected sizes of at least 1 row")
    return found


async def _on_host(x: Any) -> Any:
    """The input with its NDArrays as NumPy arrays, awaited."""
    if isinstance(x, NDArray):
        await x
        return x.asnumpy()
    if isinstance(x, Mapping):
        return {name: await _on_host(each) for name, each in x.items()}
    return x
