"""The section of a generator in flight reports, which the dashboard shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flowmx.generation.adapter_registry import AdapterRegistry
from flowmx.generation.metrics import GeneratorMetrics
from flowmx.generation.scheduling import Scheduler
from flowmx.observability import flight

__all__ = ["register", "report"]


def register(
    name: str, counts: GeneratorMetrics, scheduler: Scheduler, adapters: AdapterRegistry
) -> Callable[[], None]:
    """Register a generator's report with the flight recorder; return the function that removes it."""
    title, function = f"generating {name}", partial(report, name, counts, scheduler, adapters)
    flight.describe(title, function)
    return partial(flight.forget, title, function)


def report(name: str, counts: GeneratorMetrics, scheduler: Scheduler, adapters: AdapterRegistry) -> dict[str, Any]:
    """Return the report of a generator; see :func:`flowmx.observability.flight.describe`."""
    return {
        "generator": name, "running": scheduler.running, "waiting": scheduler.waiting, "limit": scheduler.max_requests,
        "pages": scheduler.pool.used, "page_count": scheduler.pool.count, "preemptions": scheduler.preemptions,
        "tokens": counts.generated_tokens.value(name), "prompt_tokens": counts.prompt_tokens.value(name),
        "first_token": {"bounds": list(counts.first_token.bounds), "counts": counts.first_token.counts(name)},
        "adapters": adapters.uses(),
    }  # fmt: skip
