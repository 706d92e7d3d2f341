"""The metrics of generators, under the names that vLLM uses, so that its dashboards fit."""

from __future__ import annotations

from typing import NamedTuple, Self

from flowmx.comm.metrics import Counter, Gauge, Histogram, Metrics

__all__ = ["GeneratorMetrics"]

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_BETWEEN = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class GeneratorMetrics(NamedTuple):
    """The metrics of one registry; each has the label ``model_name``."""

    running: Gauge
    waiting: Gauge
    cache: Gauge
    prompt_tokens: Counter
    generated_tokens: Counter
    preemptions: Counter
    finished: Counter
    first_token: Histogram
    next_token: Histogram
    whole: Histogram
    adapters: Gauge

    @classmethod
    def of(cls, metrics: Metrics) -> Self:
        """Return the metrics of a registry."""
        model = ["model_name"]
        return cls(
            metrics.gauge("vllm:num_requests_running", "Requests that are being computed.", model),
            metrics.gauge("vllm:num_requests_waiting", "Requests that wait to be computed.", model),
            metrics.gauge("vllm:kv_cache_usage_perc", "Fraction of the cache's pages in use, 0 to 1.", model),
            metrics.counter("vllm:prompt_tokens_total", "Tokens of prompts.", model),
            metrics.counter("vllm:generation_tokens_total", "Generated tokens.", model),
            metrics.counter("vllm:num_preemptions_total", "Requests whose pages were released for others.", model),
            metrics.counter("vllm:request_success_total", "Finished requests.", [*model, "finished_reason"]),
            metrics.histogram("vllm:time_to_first_token_seconds", "Seconds to the first token.", model, _FIRST),
            metrics.histogram("vllm:inter_token_latency_seconds", "Seconds between tokens.", model, _BETWEEN),
            metrics.histogram("vllm:e2e_request_latency_seconds", "Seconds of whole requests.", model, _WHOLE),
            metrics.gauge("flowmx_adapter_requests", "Unfinished requests of an adapter.", [*model, "adapter"]),
        )
