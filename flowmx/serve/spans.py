"""OpenTelemetry spans of requests, of batches, and of the batches' operators.

A request's span continues the trace of its client (the header ``traceparent``). If the service is mounted in a
framework that has created a span for the request, it is a child of that span. One batch answers several requests, so
each of their traces has a span of the batch. The first of these spans has the operators' spans; the others link to it.
The program, or ``opentelemetry-instrument``, configures the exporter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from flowmx import forks
from flowmx.engine import Operation
from flowmx.engine.runtime import engine
from flowmx.profiler.names import of_node
from flowmx.profiler.recorder import recorder
from flowmx.profiler.records import Record
from flowmx.profiler.timing import time_operation

__all__ = ["Tracing"]

_SERVER_ERROR = 500
"""The smallest status that reports an error of the service."""


class Traced(Protocol):
    """A request in a batch: its trace, its time of arrival, and the number of its rows."""

    @property
    def trace(self) -> Any: ...

    @property
    def arrival(self) -> float: ...

    @property
    def row_count(self) -> int: ...


class Tracing:
    """Creates the spans of a service.

    Args:
        operators: whether to create spans of operations and of the operators in their graphs too.
    """

    def __init__(self, operators: bool) -> None:
        self._tracer = trace.get_tracer("flowmx")
        self._operators = operators
        self._watchers = 0
        self._lock = forks.lock()

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, route: str, headers: Mapping[str, str]
    ) -> Iterator[Callable[[int], None]]:
        """Trace a request. The context's value is called with the status of the response.

        Args:
            method: such as POST.
            path: path of the request.
            route: template of the path; empty if no route matches.
            headers: a case-insensitive mapping, or one with lower-case names.
        """
        attributes = {"http.request.method": method, "url.path": path, **({"http.route": route} if route else {})}
        name, (parent, kind) = f"{method} {route}".strip(), _parent(headers)
        with self._tracer.start_as_current_span(name, parent, kind, attributes) as span:
            yield partial(_set_status, span)

    def current(self) -> contexts.Context:
        """Return the context to which a request's batch belongs."""
        return contexts.get_current()

    @contextlib.contextmanager
    def batch(self, name: str, jobs: Sequence[Traced], rows: int, size: int) -> Iterator[None]:
        """Trace a batch in the trace of each of its requests.

        Args:
            name: name of the predictor.
            jobs: the requests.
            rows: the number of their rows in the batch.
            size: size of the batch, with padding.
        """
        spans: list[Span] = []
        for job in jobs:
            attributes: dict[str, str | float] = {
                "flowmx.model": name,
                "flowmx.batch.size": size,
                "flowmx.batch.rows": rows,
                **_of_job(job),
            }
            links = [Link(span.get_span_context()) for span in spans[:1]]
            spans.append(self._tracer.start_span(f"batch of {name}", job.trace, attributes=attributes, links=links))
        try:
            current = trace.use_span(spans[0], record_exception=False, set_status_on_exception=False)
            with current, self._watched(spans[0]):
                yield
        except BaseException as error:  # cancellation is recorded too
            for span in spans:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise
        finally:
            for span in spans:
                span.end()

    # -- operators -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self, span: Span) -> Iterator[None]:
        """Trace the operations pushed within the context, if the span is recorded and the profiler is not running."""
        if not self._operators or not span.is_recording() or recorder.running:
            yield
            return
        self._watch(1)
        try:
            yield
        finally:
            self._watch(-1)

    def _watch(self, change: int) -> None:
        with self._lock:
            self._watchers += change
            engine.use_watch(self._begin if self._watchers else None, "spans")

    def _begin(self, op: Operation) -> None:
        if trace.get_current_span().is_recording():
            record = Record(0, op.name, op.actor.name, op.origin, "")
            time_operation(op, record, partial(self._end, contexts.get_current()))

    def _end(self, within: contexts.Context, record: Record) -> None:
        """Create the spans of a completed operation and of the steps of its graph."""
        span = self._span(record.name, within, record.start, {"flowmx.actor": record.actor})
        span_context = trace.set_span_in_context(span, within)
        for step in record.steps:
            operator, layer, node, _ = of_node(step.node)
            attributes = {"flowmx.layer": layer, "flowmx.node": node}
            self._span(operator, span_context, step.start, attributes).end(_nanoseconds(step.end))
        span.end(_nanoseconds(record.end))

    def _span(self, name: str, within: contexts.Context, start: float, attributes: Mapping[str, str]) -> Span:
        return self._tracer.start_span(name, within, attributes=attributes, start_time=_nanoseconds(start))


def _parent(headers: Mapping[str, str]) -> tuple[contexts.Context, SpanKind]:
    """Return the parent context and kind of a request's span: a framework's span precedes the client's."""
    remote = propagate.extract(headers)
    current, client = (trace.get_current_span(context).get_span_context() for context in (None, remote))
    if current.is_valid and client.trace_id in (0, current.trace_id):
        return contexts.get_current(), SpanKind.INTERNAL  # the framework's span has kind SERVER
    return remote, SpanKind.SERVER


def _set_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def _of_job(job: Traced) -> dict[str, float]:
    return {"flowmx.request.rows": job.row_count, "flowmx.request.waited": time.perf_counter() - job.arrival}


def _nanoseconds(at: float) -> int:
    """Convert a time of ``perf_counter`` to nanoseconds since the epoch."""
    return time.time_ns() + int((at - time.perf_counter()) * 1e9)
