"""Text generation (``mx.generation``): continuous batching of decode steps over a paged cache."""

from typing import TYPE_CHECKING

from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.generation.step_batch import StepBatch

__all__ = ["StepBatch"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "StepBatch": "flowmx.generation.step_batch:StepBatch",
    },
)
