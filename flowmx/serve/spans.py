"""OpenTelemetry's spans of requests, of the batches that compute them, and of the batches' operators.

A request's span continues the trace of its client (the header ``traceparent``). One batch answers several requests, so
each of their traces has a span of it, and those after the first link to the first, which has the operators' spans.
Where spans go is up to the program, or to ``opentelemetry-instrument``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from flowmx.engine import Operation
from flowmx.engine.runtime import engine
from flowmx.profiler.names import of_node
from flowmx.profiler.recorder import recorder
from flowmx.profiler.records import Record
from flowmx.profiler.timing import time_operation
from flowmx.serve.batching import Job, Piece

__all__ = ["Tracing"]

_FAILED = 500
"""The statuses from which on the service, and not the client, has failed."""


class Tracing:
    """Makes the spans of a service.

    Args:
        operators: whether the operations of batches, and the operators of their graphs, have spans too.
    """

    def __init__(self, operators: bool) -> None:
        self._tracer = trace.get_tracer("flowmx")
        self._operators = operators
        self._watching = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, route: str, headers: Mapping[str, str]
    ) -> Iterator[Callable[[int], None]]:
        """Trace a request; what the context returns takes the status of the answer.

        Args:
            method: such as POST.
            path: as it was asked for.
            route: the path with names in place of what varies; empty where there is none.
            headers: found whatever the case of the name, or with lower-case names.
        """
        facts = {"http.request.method": method, "url.path": path, **({"http.route": route} if route else {})}
        name, parent = f"{method} {route}".strip(), propagate.extract(headers)
        with self._tracer.start_as_current_span(name, parent, SpanKind.SERVER, facts) as span:
            yield partial(_answered, span)

    def current(self) -> contexts.Context:
        """The context that a request's batch belongs to."""
        return contexts.get_current()

    @contextlib.contextmanager
    def batch(self, name: str, pieces: Sequence[Piece], size: int) -> Iterator[None]:
        """Trace a batch, in the trace of each of its requests.

        Args:
            name: of the predictor.
            pieces: the rows.
            size: of the batch, with padding.
        """
        jobs = list(dict.fromkeys(piece.job for piece in pieces))
        rows = sum(stop - start for _, start, stop in pieces)
        spans: list[Span] = []
        for job in jobs:
            facts: dict[str, str | float] = {
                "flowmx.model": name,
                "flowmx.batch.size": size,
                "flowmx.batch.rows": rows,
                **_of_job(job),
            }
            links = [Link(each.get_span_context()) for each in spans[:1]]
            spans.append(self._tracer.start_span(f"batch of {name}", job.trace, attributes=facts, links=links))
        try:
            current = trace.use_span(spans[0], record_exception=False, set_status_on_exception=False)
            with current, self._watched(spans[0]):
                yield
        except BaseException as error:
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
        """Trace the operations that are pushed meanwhile, where a span is kept; the profiler goes before."""
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
            self._watching += change
            engine.use_watch(self._begin if self._watching else None, "spans")

    def _begin(self, op: Operation) -> None:
        if trace.get_current_span().is_recording():
            record = Record(0, op.name, op.actor.name, op.origin, "")
            time_operation(op, record, partial(self._end, contexts.get_current()))

    def _end(self, within: contexts.Context, record: Record) -> None:
        """Make the spans of an operation that has ended, and of the steps of its graph."""
        span = self._span(record.name, within, record.start, {"flowmx.actor": record.actor})
        inside = trace.set_span_in_context(span, within)
        for step in record.steps:
            operator, layer, node, _ = of_node(step.node)
            facts = {"flowmx.layer": layer, "flowmx.node": node}
            self._span(operator, inside, step.start, facts).end(_nanoseconds(step.end))
        span.end(_nanoseconds(record.end))

    def _span(self, name: str, within: contexts.Context, start: float, facts: Mapping[str, str]) -> Span:
        return self._tracer.start_span(name, within, attributes=facts, start_time=_nanoseconds(start))


def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= _FAILED:
        span.set_status(Status(StatusCode.ERROR))


def _of_job(job: Job) -> dict[str, float]:
    return {"flowmx.request.rows": job.rows.rows, "flowmx.request.waited": time.perf_counter() - job.arrived}


def _nanoseconds(at: float) -> int:
    """A time of ``perf_counter`` as one of the calendar."""
    return time.time_ns() + int((at - time.perf_counter()) * 1e9)
