"""Text generation (``mx.generation``): continuous batching of decode steps over a paged cache."""

from typing import TYPE_CHECKING

from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.generation.generation import Generation
    from flowmx.generation.generator import Generator
    from flowmx.generation.paged_decoder import PagedDecoder
    from flowmx.generation.results import Completion, Token, TokenLogprob, Usage
    from flowmx.generation.sampling import Sampling
    from flowmx.generation.step_batch import StepBatch

__all__ = [
    "Completion", "Generation", "Generator", "PagedDecoder", "Sampling", "StepBatch", "Token", "TokenLogprob", "Usage",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Completion": "flowmx.generation.results:Completion",
        "Generation": "flowmx.generation.generation:Generation",
        "Generator": "flowmx.generation.generator:Generator",
        "PagedDecoder": "flowmx.generation.paged_decoder:PagedDecoder",
        "Sampling": "flowmx.generation.sampling:Sampling",
        "StepBatch": "flowmx.generation.step_batch:StepBatch",
        "Token": "flowmx.generation.results:Token",
        "TokenLogprob": "flowmx.generation.results:TokenLogprob",
        "Usage": "flowmx.generation.results:Usage",
    },
)
