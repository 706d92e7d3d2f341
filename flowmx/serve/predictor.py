"""Predictors: models with awaitable predictions."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from numbers import Real
from types import TracebackType
from typing import Any, NamedTuple

import numpy.typing as npt

from flowmx import forks, settings
from flowmx.comm.metrics import Metrics
from flowmx.comm.offload import LARGE, offload
from flowmx.devices import Context, cpu
from flowmx.event_loops import AsyncContext, running_loop
from flowmx.keywords import ChecksKeywords
from flowmx.renaming import warn_renamed
from flowmx.serve import flight_report
from flowmx.serve import metrics as serve_metrics
from flowmx.serve.batching import Job, Pace, Queue, sizes_up_to
from flowmx.serve.budget import Budget
from flowmx.serve.compiled_model import Model
from flowmx.serve.errors import InvalidInput, Overloaded, Unavailable
from flowmx.serve.hooks import Decode, Encode, Hooks, check_hook
from flowmx.serve.host_arrays import ModelInput, on_host
from flowmx.serve.images import ImageReader, ImageTransform
from flowmx.serve.inputs import Array, Input, Inputs, Rows, Shapes
from flowmx.serve.mms import Handler, HandlerModel, Requests
from flowmx.serve.model_archives import has_code
from flowmx.serve.model_loading import load
from flowmx.serve.replies import Refusal, Reply
from flowmx.serve.runner import Computation, Runner
from flowmx.serve.sessions.core import SessionLimits
from flowmx.serve.sessions.runner import SessionRunner
from flowmx.serve.sessions.session import Session
from flowmx.serve.sessions.stateful_loading import States, load_stateful
from flowmx.serve.sessions.stateful_model import StatefulModel
from flowmx.serve.tracing import tracing

__all__ = ["Predictor"]

_log = logging.getLogger("flowmx.serve")
_MAX_BATCH = 32
_HANDLER_QUEUE = 100
"""Default number of queued requests of a handler, as in Multi Model Server."""


class Predictor(ChecksKeywords, AsyncContext):
    """A model whose predictions are awaited by any number of tasks on any event loop, and computed in shared batches.

    Args:
        model: a Gluon block (hybridized here unless it is already), a symbol with ``params``, the prefix of a
            checkpoint, a folder with one model, an ONNX file, a :class:`Handler`, a model archive (``.mar``), or
            a folder or archive with a script of SageMaker, ``code/inference.py``, which is run.
        shape: shape of one row, without the batch axis; for several inputs, a dict by name in the model's order. None
            marks a variable length (see ``lengths``). ONNX files declare their shapes.
        dtype: dtype of the inputs (default float32), or a dict by name.
        params: the parameters of a symbol: arrays by name, or a file.
        epoch: epoch of the checkpoint (default: the latest).
        max_batch: maximum batch size (default: 32, or 1 for a handler). Batches of the powers of two up to it are
            compiled in advance.
        sizes: the batch sizes to compile, instead of powers of two.
        max_latency: seconds that a row may be delayed for a larger batch while the engine is idle.
        max_queue: maximum number of queued rows; more are refused with :class:`Overloaded` (default: twice
            ``max_batch``, or 100 for a handler).
        lengths: the lengths to which variable axes are padded with zeros. Outputs are not cropped.
        finite: whether to refuse NaN and infinities.
        ctx: the device of the model's parameters.
        name: name of the model in messages and metrics.
        metrics: the registry of its metrics (default: one that all predictors of the process share).
        decode: a function, or coroutine function, of the body of an HTTP request (the value of JSON, else bytes) and
            its content type. It returns the input, as for a call. Functions run on a thread. A ValueError refuses the
            request.
        encode: a function, or coroutine function, of the result of a call. It returns the HTTP response: a
            JSON-compatible value that may contain arrays, bytes, or (bytes, content type).
        image: accept JPEG and PNG bodies, and transform them with this function of an image (height, width, channels),
            an NDArray of uint8, such as a ``Compose`` of ``gluon.data.vision.transforms``. Or a dict of options:
            ``resize``, the length of the shorter side before the centre is cropped (default: the image is resized to
            the input's size), ``mean`` and ``std`` for values from 0 to 1, and ``max_pixels``.
        budget: computing time that it shares with other predictors.
        weight: its part of that time, relative to the weights of the others.
        states: the states of a model for sessions (see :meth:`session`). A Gluon block is called as
            ``block(x, *states)`` and returns ``(y, *next_states)``: pass a list, or a dict by name, of their shapes or
            :class:`State`, or True for a recurrent cell or layer. For an ONNX file, pass a dict of the outputs with the
            next values by input, or True if their names tell; for a symbol, a dict of :class:`State`.
        sessions: limits on sessions: a dict of ``sessions`` (maximum number, 16384), ``nbytes`` (maximum size of all
            states and waiting inputs, 1 GiB), ``calls`` (maximum number of unfinished calls of a session, 64) and
            ``idle`` (seconds without a call after which a session is closed, 300).
        constants: the content of inputs of an ONNX file that are always the same, by name.
        queue: the former name of ``max_queue``.

    Raises:
        ValueError: the arguments are contradictory, or the inputs are underspecified.
        TypeError: a hook or transform is not callable.
        OSError: a file cannot be read.

    Example:
        >>> async with mx.serve.Predictor(net, shape=(3, 32, 32), max_batch=16) as predictor:
        ...     scores = await predictor(image)
    """

    def __init__(
        self, model: Any, shape: Shapes | None = None, *, dtype: Any = None, params: Any = None,
        epoch: int | None = None, max_batch: int | None = None, sizes: Sequence[int] | None = None,
        max_latency: float = 0.002, max_queue: int | None = None, lengths: Sequence[int] = (), finite: bool = False,
        ctx: Context | None = None,
        name: str = "model", metrics: Metrics | None = None, decode: Decode | None = None,
        encode: Encode | None = None, image: ImageTransform | bool | None = None, budget: Budget | None = None,
        weight: float = 1.0, states: States = False, sessions: Mapping[str, float] | None = None,
        constants: Mapping[str, Any] | None = None, queue: int | None = None,
    ) -> None:  # fmt: skip
        if queue is not None:
            warn_renamed("queue=", "max_queue=")
            max_queue = queue
        _check_numbers(max_batch=max_batch, max_latency=max_latency, max_queue=max_queue)
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget is a {type(budget).__name__}, expected mx.serve.Budget(), which predictors share")
        check_hook("decode", decode, "body, content_type")
        check_hook("encode", encode, "result")
        model = _opened(model)
        is_handler = isinstance(model, Handler)
        if is_handler and (shape, dtype, params, decode, encode, image) != (None,) * 6:
            raise ValueError(
                "shape, dtype, params, decode, encode and image are for models, and this is a handler, which reads "
                "bodies and loads its model itself: leave them out, or name the model's files without their code"
            )
        sizes = tuple(range(1, (max_batch or 1) + 1)) if is_handler else _sizes(max_batch, sizes)
        limit = max_queue if max_queue is not None else _HANDLER_QUEUE if is_handler else 2 * sizes[-1]
        if limit < 1 or max_latency < 0:
            raise ValueError(
                f"max_queue is {limit} and max_latency {max_latency}, expected at least 1 sample and 0 seconds"
            )
        self.name = name
        self._instruments = serve_metrics.SHARED if metrics is None else serve_metrics.Instruments(metrics)
        self._options = _ModelOptions(
            shape, dtype, lengths, limit, finite, cpu() if ctx is None else ctx, sizes[-1], states, constants
        )
        computation = self._load(model, params, epoch, 0)
        transform = {} if image is True else None if image is False else image
        reader = None if transform is None else ImageReader(computation.inputs.specs, transform)
        self.hooks = model.hooks if is_handler else Hooks(decode, encode, reader)
        self._runner = Runner(
            computation, Queue(limit), Pace(sizes, max_latency), self._instruments, name,
            1 if is_handler else settings.get().cpu_worker_nthreads, tracing(), _turns(budget, weight),
        )  # fmt: skip
        self._sessions = _session_runner(self._runner, sessions)
        self._swapping = forks.lock()
        weakref.finalize(self, self._runner.stop)
        if self._sessions is not None:
            weakref.finalize(self, self._sessions.stop)
        weakref.finalize(self, flight_report.register(self._runner, self._sessions))

    # -- predictions -----------------------------------------------------------------------------------

    async def __call__(self, x: ModelInput) -> npt.NDArray[Any]:
        """Predict.

        The first call warms up the model, unless :meth:`ready` has done so. Cancelling withdraws the rows that have not
        started.

        Args:
            x: one row, or several with a batch axis: an array (NumPy's or flowmx's) or nested lists; for several
                inputs, a dict by name. It must not change until the result is available.

        Returns:
            a NumPy array, or a list of arrays for several outputs; without a batch axis if ``x`` has none.

        Raises:
            InvalidInput: ``x`` does not match the model.
            Overloaded: the queue is full.
            Unavailable: the predictor is draining.
        """
        result: npt.NDArray[Any] = await self.predict(self.read(await on_host(x)))
        return result

    def read(self, x: Any) -> Rows:
        """Validate an input for :meth:`predict`; callable from any thread.

        Args:
            x: as for a call, except flowmx's arrays.

        Raises:
            InvalidInput: ``x`` does not match the model.
        """
        try:
            return self.inputs.read(x)
        except InvalidInput:
            self._count("invalid")
            raise

    async def read_decoded(self, x: Any) -> Rows:
        """Validate an input that a ``decode`` hook returned, on a thread.

        Args:
            x: as for a call.

        Raises:
            InvalidInput: ``x`` does not match the model.
        """
        return await offload(LARGE, self.read, await on_host(x))

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count a body as a queued sample while it waits for a ``decode`` hook, or is in it.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the predictor is draining.
        """
        with ExitStack() as stack:
            with self._counting_refusals():
                stack.enter_context(self._runner.decoding())
            yield

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except (Overloaded, Unavailable) as error:
            self._count("refused" if isinstance(error, Overloaded) else "unavailable")
            raise

    def count_refused_body(self, is_invalid: bool) -> None:
        """Count a request whose ``decode`` hook refused the body, or failed."""
        self._count("invalid" if is_invalid else "failed")

    async def predict(self, rows: Rows, finish: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
        """Predict for rows that :meth:`read` returned.

        Args:
            rows: the rows.
            finish: a coroutine function that turns the result into the response. A request counts as answered after it.

        Returns:
            the result, or the response.

        Raises:
            InvalidInput: axes that the model combines have different lengths.
            Overloaded: the queue is full.
            Unavailable: the predictor is draining.
        """
        runner = self._runner
        loop = running_loop()
        await self._check_lengths(rows)
        future: asyncio.Future[list[Array]] = loop.create_future()
        trace = runner.tracing.current() if runner.tracing else None
        job = Job(rows, (runner.model, rows.shapes), time.perf_counter(), (loop, future), trace)
        with self._counting_refusals():
            runner.submit(job)
        runner.begin()
        return await self._outcome(job, future, finish)

    async def _check_lengths(self, rows: Rows) -> None:
        """Refuse different lengths of axes that the model combines, which is known once it is warm."""
        inputs = self.inputs
        if isinstance(inputs, Requests) or len(set(inputs.row_lengths(rows))) < 2:
            return
        if inputs.groups is None:
            self._runner.begin()
            await self._warm()
        try:
            inputs.check_lengths(rows)
        except InvalidInput:
            self._count("invalid")
            raise

    async def _outcome(
        self, job: Job, future: asyncio.Future[list[Array]], finish: Callable[[Any], Awaitable[Any]] | None
    ) -> Any:
        try:
            outputs = await future
            result = outputs[0] if len(outputs) == 1 else outputs
            response = result if finish is None else await finish(result)
        except asyncio.CancelledError:
            self._runner.drop(job)
            self._count("cancelled")
            raise
        except Refusal as refusal:
            self._count(_result_of(refusal.reply))
            raise
        except BaseException:  # cancelled requests count too
            self._count("failed")
            raise
        self._count(_result_of(response) if isinstance(response, Reply) else "answered")
        return response

    def _count(self, result: str) -> None:
        self._instruments.requests.add(self.name, result)
        self._instruments.queued.set(self._runner.queue.rows, self.name)
        self._instruments.pending.set(self._runner.pending, self.name)

    # -- sessions --------------------------------------------------------------------------------------

    def session(self, name: Hashable = None, *, idle: float | None = None) -> Session:
        """Open a session, whose calls run in order, each with the states that the one before has left.

        Args:
            name: its name in messages, which no other open session has (default: a number).
            idle: seconds without a call after which it is closed (default: that of ``sessions``).

        Raises:
            Overloaded: the limits on sessions or bytes are reached.
            Unavailable: the predictor is draining, or its model failed to warm up.
            TypeError: the model has no states.
            ValueError: an open session has this name, or ``idle`` is not positive.

        Example:
            >>> async with predictor.session() as session:
            ...     async for y in session.stream(microphone):
            ...         print(y)
        """
        sessions = self._require_sessions()
        if idle is not None and not idle > 0:
            raise ValueError(f"idle is {idle}, expected seconds above 0")
        with self._counting_refusals():
            return Session(self._runner, sessions, sessions.open(name, idle), self)

    def lasting_session(self, name: Hashable, is_new: bool) -> Session:
        """Return a named session. It stays open when the object is deleted.

        Args:
            name: its name.
            is_new: whether to open it, in place of an open one of this name.

        Raises:
            InvalidInput: it is not open.
            Overloaded, Unavailable, TypeError: as for :meth:`session`.
        """
        sessions = self._require_sessions()
        entry = sessions.find(name)
        if is_new:
            if entry is not None:
                sessions.close(entry, "was started again")
            with self._counting_refusals():
                entry = sessions.open(name)
        if entry is None:
            self._count("invalid")
            raise InvalidInput(f"{name} is not open: it has not started, has ended, or had no call for too long")
        return Session(self._runner, sessions, entry, self, is_lasting=True)

    def _require_sessions(self) -> SessionRunner:
        if self._sessions is None:
            raise TypeError(f"{self.name} has no states, expected a predictor with states=... for sessions")
        return self._sessions

    @property
    def has_sessions(self) -> bool:
        """Whether the model has states, so that :meth:`session` opens sessions."""
        return self._sessions is not None

    # -- lifecycle -------------------------------------------------------------------------------------

    def start(self) -> Awaitable[Predictor]:
        """Start to warm up and accept requests, also after :meth:`drain`; returns immediately.

        Returns:
            an awaitable that waits until the model is warm, as :meth:`ready` does.
        """
        self._runner.open()
        return _Warm(self)

    async def ready(self) -> Predictor:
        """Warm up: compile and run the model for every batch size; return the predictor.

        A drained predictor accepts requests again.

        Raises:
            Exception: the model failed.
        """
        running_loop()
        self._runner.open()
        return await self._warm()

    async def _warm(self) -> Predictor:
        running_loop()
        await asyncio.shield(asyncio.wrap_future(self._runner.warm))
        return self

    @property
    def is_ready(self) -> bool:
        """Whether the predictor is warm and accepts requests."""
        warm = self._runner.warm
        return warm.done() and warm.exception() is None and self._runner.accepting

    async def swap(self, model: Any, *, params: Any = None, epoch: int | None = None) -> None:
        """Replace the model by another one with the same inputs, without losing requests.

        The new model is loaded and warmed up while the old one answers. Requests that arrive before it is warm are
        answered by the old model, which is then released.

        Args:
            model: as for :class:`Predictor`.
            params: as for :class:`Predictor`.
            epoch: as for :class:`Predictor`.

        Raises:
            Unavailable: the predictor was drained.
            Exception: the new model failed to load or run; the old one stays.
        """
        self._runner.begin()
        if not self._runner.accepting:
            raise Unavailable(f"{self.name} is drained: call start() before swap()")
        await self._warm()
        released = await asyncio.to_thread(self._swap, model, params, epoch)
        await asyncio.shield(asyncio.wrap_future(released))

    def _swap(self, model: Any, params: Any, epoch: int | None) -> Future[None]:
        with self._swapping:
            model = _opened(model)
            if (model.hooks if isinstance(model, Handler) else None) != (self.hooks if self.hooks.reads_head else None):
                raise ValueError("a handler and a model do not replace each other: create another predictor")
            new = self._load(model, params, epoch, self.version + 1)
            if new.inputs.specs != self.inputs.specs:
                inputs, expected = (
                    ", ".join(f"{spec.name} {spec}" for spec in each.specs) for each in (new.inputs, self.inputs)
                )
                raise ValueError(
                    f"the new model has the inputs {inputs}, expected {expected}: create another predictor"
                )
            if isinstance(new, StatefulModel):
                new.check_same_states(self._runner.model)
            seconds = new.warm(self._runner.pace.sizes)
            self._check_outputs(new)
            return self._runner.when_idle(self._runner.swap(new, seconds))

    def _check_outputs(self, new: Computation) -> None:
        """Refuse a model with another number of outputs, and log a change of their shapes."""
        specs, expected = new.results, self._runner.model.results
        if len(specs) != len(expected):
            raise ValueError(
                f"the number of the new model's outputs is {len(specs)}, expected {len(expected)}: create another "
                "predictor"
            )
        if [spec.shape for spec in specs] != [spec.shape for spec in expected]:
            listing, previous = (", ".join(map(str, each)) for each in (specs, expected))
            _log.warning("%s: the new model returns %s, instead of %s", self.name, listing, previous)

    def _load(self, model: Any, params: Any, epoch: int | None, number: int) -> Computation:
        """Load a model, or prepare a handler, which is not warm yet."""
        options = self._options
        if isinstance(model, Handler):
            return HandlerModel(model, self.name, options.max_batch, self._instruments, number)
        if options.states is not False:
            return self._load_stateful(model, params, epoch, number)
        source = load(model, options.shape, options.dtype, params, epoch, options.constants)
        inputs = Inputs(source.inputs, options.lengths, options.max_rows, options.finite)
        return Model(source, inputs, options.ctx, number)

    def _load_stateful(self, model: Any, params: Any, epoch: int | None, number: int) -> StatefulModel:
        options = self._options
        stateful = load_stateful(model, options.states, options.shape, options.dtype, params, epoch, options.constants)
        inputs = Inputs(stateful.source.inputs, options.lengths, options.max_rows, options.finite)
        return StatefulModel(stateful, inputs, options.ctx, number)

    def refuse(self) -> None:
        """Refuse further requests; queued ones are answered."""
        self._runner.refuse()

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (late requests get an error)
        """Refuse further requests, answer the queued ones, close all sessions, and stop. :meth:`start` starts again.

        Args:
            timeout: seconds after which the remaining requests fail with :class:`Unavailable`, and the remaining calls
                of sessions with :class:`SessionClosed` (default: there is no limit).
        """
        running_loop()
        _check_numbers(timeout=timeout)
        self.refuse()
        end = None if timeout is None else time.monotonic() + timeout
        idle = [self._runner.when_idle(), *(() if self._sessions is None else (self._sessions.when_idle(),))]
        _, late = await asyncio.wait(list(map(asyncio.wrap_future, idle)), timeout=timeout)
        if late:
            self._runner.abandon(f"was not answered within the {timeout:g} s that {self.name} had to drain")
        if self._sessions is not None:
            self._sessions.close_all(f"was closed because {self.name} was drained", "drained")
            await asyncio.to_thread(_join, self._sessions.stop(), end)
        if not self._runner.accepting:  # it was not started again meanwhile
            await asyncio.to_thread(_join, self._runner.stop(), end)

    async def __aenter__(self) -> Predictor:
        return await self.ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    # -- properties ------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of times that the model was replaced; a failed :meth:`swap` does not count."""
        return self._runner.model.version

    @property
    def inputs(self) -> Inputs | Requests:
        """Specifications of the inputs."""
        return self._runner.model.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; known once the model is warm."""
        return self._runner.model.outputs

    @property
    def results(self) -> tuple[Input, ...]:
        """Specifications of the outputs; known once the model is warm."""
        return self._runner.model.results

    @property
    def metrics(self) -> Metrics:
        """The registry of its metrics."""
        return self._instruments.metrics

    def check_room(self) -> None:
        """Raise if a request of one row would be refused; called before its body is read.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the predictor is draining, or its model failed to warm up.
        """
        runner = self._runner
        if not runner.accepting:
            self._count("unavailable")
            raise Unavailable(f"{self.name} accepts no requests: it is draining, or its model failed to warm up")
        if not runner.queue.has_room(1) or not runner.queue.has_room_to_decode():
            self._count("refused")
            raise runner.overloaded(1)

    def describe(self) -> dict[str, object]:
        """Return a JSON-compatible description of the predictor."""
        runner = self._runner
        return {
            "name": self.name, "ready": self.is_ready, "version": self.version, "inputs": self.inputs.describe(),
            "outputs": list(self.outputs), "batch_sizes": list(runner.pace.sizes), "queue": runner.queue.limit,
            "max_latency": runner.pace.max_latency, **self._describe_sessions(),
        }  # fmt: skip

    def _describe_sessions(self) -> dict[str, Any]:
        model = self._runner.model
        if self._sessions is None or not isinstance(model, StatefulModel):
            return {}
        sessions = {"open": self._sessions.sessions, "bytes": self._sessions.nbytes, **self._sessions.limits._asdict()}
        return {"states": [spec.describe() for spec in model.states], "sessions": sessions}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name} {spec}" for spec in self.inputs.specs) or "requests"
        return f"<Predictor {self.name!r} of {inputs}, batches of {', '.join(map(str, self._runner.pace.sizes))}>"


class _ModelOptions(NamedTuple):
    """The options of a predictor that apply to each of its models; see :class:`Predictor`."""

    shape: Shapes | None
    dtype: Any
    lengths: Sequence[int]
    max_rows: int
    finite: bool
    ctx: Context
    max_batch: int
    states: States
    constants: Mapping[str, Any] | None


class _Warm:
    """An awaitable that waits until a predictor is warm. It need not be awaited."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def __await__(self) -> Generator[Any, None, Predictor]:
        return self._predictor._warm().__await__()


def _check_numbers(**values: object) -> None:
    """Raise TypeError for arguments that are neither numbers nor None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Real):
            raise TypeError(f"{name} is {value!r}, expected a number")


def _join(threads: Sequence[threading.Thread], end: float | None) -> None:
    """Wait until threads have ended, at most until some time; those that still compute end after their batch."""
    for thread in threads:
        thread.join(None if end is None else max(0.0, end - time.monotonic()))


def _turns(budget: Budget | None, weight: float) -> Callable[[], AbstractContextManager[None]]:
    """Return the function whose context holds a slot of the budget."""
    share = (budget or Budget()).share(weight)  # check the weight in any case
    return nullcontext if budget is None else partial(budget.turn, share)


def _session_runner(runner: Runner, limits: Mapping[str, float] | None) -> SessionRunner | None:
    """Return the runner of sessions, or None if the model has no states."""
    model, options = runner.model, dict(limits or {})
    unknown = [name for name in options if name not in SessionLimits._fields]
    if unknown or any(not value > 0 for value in options.values()):
        raise ValueError(f"sessions is {options}, expected positive numbers for {', '.join(SessionLimits._fields)}")
    if isinstance(model, StatefulModel):
        whole = {name: value if name == "idle" else int(value) for name, value in options.items()}
        return SessionRunner(runner, model.states, SessionLimits(**whole))  # type: ignore[arg-type]
    if options:
        raise ValueError("sessions are limits for a model with states, expected states=... too")
    return None


def _result_of(reply: Reply) -> str:
    """Return the result of a request in the metrics."""
    return "answered" if reply.status < 400 else "invalid" if reply.status < 500 else "failed"


def _sizes(max_batch: int | None, sizes: Sequence[int] | None) -> tuple[int, ...]:
    max_batch = _MAX_BATCH if max_batch is None else max_batch
    result = sizes_up_to(max_batch) if sizes is None else tuple(sorted(set(sizes)))
    if not result or result[0] < 1:
        raise ValueError(f"max_batch is {max_batch} and sizes {sizes}, expected sizes of at least 1 sample")
    return result


def _opened(model: Any) -> Any:
    """Return the handler of a model with code; any other model is returned as it is."""
    return Handler(model) if isinstance(model, (str, os.PathLike)) and has_code(model) else model
