"""Text generation (``mx.generation``): continuous batching of decode steps over a paged cache."""

from typing import TYPE_CHECKING

from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.generation.beam_search import BeamSearchSampler, BeamSearchScorer, SequenceSampler
    from flowmx.generation.chat_template import ChatTemplate
    from flowmx.generation.generation import Generation
    from flowmx.generation.generator import Generator
    from flowmx.generation.live_weights import WeightPuller
    from flowmx.generation.loading import is_text_model, load
    from flowmx.generation.paged_decoder import PagedDecoder
    from flowmx.generation.results import Completion, Token, TokenLogprob, Usage
    from flowmx.generation.sampling import Sampling
    from flowmx.generation.schemas import Schema, SchemaError
    from flowmx.generation.step_batch import StepBatch
    from flowmx.generation.template_budget import ChatTemplateError
    from flowmx.generation.tokenizer import Tokenizer

__all__ = [
    "BeamSearchSampler", "BeamSearchScorer", "ChatTemplate", "ChatTemplateError", "Completion", "Generation",
    "Generator", "PagedDecoder", "Sampling", "Schema", "SchemaError", "SequenceSampler", "StepBatch", "Token",
    "TokenLogprob", "Tokenizer", "Usage", "WeightPuller", "is_text_model", "load",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "BeamSearchSampler": "flowmx.generation.beam_search:BeamSearchSampler",
        "BeamSearchScorer": "flowmx.generation.beam_search:BeamSearchScorer",
        "ChatTemplate": "flowmx.generation.chat_template:ChatTemplate",
        "ChatTemplateError": "flowmx.generation.template_budget:ChatTemplateError",
        "Completion": "flowmx.generation.results:Completion",
        "Generation": "flowmx.generation.generation:Generation",
        "Generator": "flowmx.generation.generator:Generator",
        "PagedDecoder": "flowmx.generation.paged_decoder:PagedDecoder",
        "Sampling": "flowmx.generation.sampling:Sampling",
        "Schema": "flowmx.generation.schemas:Schema",
        "SchemaError": "flowmx.generation.schemas:SchemaError",
        "SequenceSampler": "flowmx.generation.beam_search:SequenceSampler",
        "StepBatch": "flowmx.generation.step_batch:StepBatch",
        "Token": "flowmx.generation.results:Token",
        "TokenLogprob": "flowmx.generation.results:TokenLogprob",
        "Tokenizer": "flowmx.generation.tokenizer:Tokenizer",
        "Usage": "flowmx.generation.results:Usage",
        "WeightPuller": "flowmx.generation.live_weights:WeightPuller",
        "is_text_model": "flowmx.generation.loading:is_text_model",
        "load": "flowmx.generation.loading:load",
    },
)
