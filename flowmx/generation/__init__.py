"""Text generation (``mx.generation``): continuous batching of decode steps over a paged cache."""

from typing import TYPE_CHECKING

from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.generation.paged_decoder import PagedDecoder
    from flowmx.generation.step_batch import StepBatch

__all__ = ["PagedDecoder", "StepBatch"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "PagedDecoder": "flowmx.generation.paged_decoder:PagedDecoder",
        "StepBatch": "flowmx.generation.step_batch:StepBatch",
    },
)
