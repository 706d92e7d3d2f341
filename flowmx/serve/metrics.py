"""Prometheus metrics of predictors, labelled by model."""

from __future__ import annotations

from flowmx.comm.metrics import Metrics

__all__ = ["Instruments"]

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Instruments:
    """The instruments of the predictors that share a registry.

    Args:
        metrics: the registry.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.requests = metrics.counter("flowmx_serve_requests_total", "Requests by result.", ["model", "result"])
        self.rows = metrics.counter("flowmx_serve_rows_total", "Rows computed.", ["model"])
        self.padding = metrics.counter("flowmx_serve_padding_rows_total", "Rows of padding.", ["model"])
        self.latency = metrics.histogram(
            "flowmx_serve_latency_seconds", "Seconds from a request to its reply.", ["model"], SECONDS
        )
        self.batch_rows = metrics.histogram("flowmx_serve_batch_rows", "Rows of batches.", ["model"], ROWS)
        self.batch_seconds = metrics.histogram(
            "flowmx_serve_batch_seconds", "Duration of batches in seconds.", ["model"], SECONDS
        )
        self.queued = metrics.gauge("flowmx_serve_queued_rows", "Rows in the queue.", ["model"])
        self.pending = metrics.gauge("flowmx_serve_requests_under_way", "Requests queued or running.", ["model"])
        self.version = metrics.gauge("flowmx_serve_model_version", "Number of times the model was swapped.", ["model"])
        self.sessions = metrics.gauge("flowmx_serve_sessions", "Open sessions.", ["model"])
        self.session_bytes = metrics.gauge(
            "flowmx_serve_session_bytes", "Bytes of states and waiting inputs of sessions.", ["model"]
        )
        self.closed_sessions = metrics.counter(
            "flowmx_serve_closed_sessions_total", "Sessions that were closed, by reason.", ["model", "reason"]
        )
        self.handler_counts = metrics.counter(
            "flowmx_serve_handler_total", "Counters that a handler of MMS adds to.", ["model", "name"]
        )
        self.handler_values = metrics.gauge(
            "flowmx_serve_handler_value", "Latest values that a handler of MMS added.", ["model", "name", "unit"]
        )


SHARED = Instruments(Metrics())
"""The default instruments of predictors."""
