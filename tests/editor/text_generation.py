"""Generation: decoders, generators, streams, beam search, live training."""

import flowmx as mx
from flowmx import gluon
from flowmx.generation import BeamSearchSampler, BeamSearchScorer, Generator, PagedDecoder, Token
from flowmx.ndarray import NDArray


def language_model() -> gluon.model_zoo.text.LlamaLM:
    net = gluon.model_zoo.text.LlamaLM(vocab_size=20, units=8, num_layers=1, num_heads=2, hidden_units=8)
    net.initialize(mx.init.Normal(0.02))
    return net


async def stream(net: gluon.model_zoo.text.LlamaLM) -> list[int]:
    numbers: list[int] = []
    async with Generator(PagedDecoder(net, pages=8, page_size=4)) as generator:
        request = generator([1, 2, 3], max_tokens=4, temperature=0.0, logprobs=1)
        async for token in request:
            numbers.append(token.number)
            assert token.logprob is not None and token.version >= 0
        completion = await generator([1, 2], max_tokens=3, seed=1, top_p=0.9)
        version = await generator.swap()
        usage = completion.usage
        assert completion.finish_reason == "length" and usage.completion_tokens == 3 and version == 1
        tokens: tuple[Token, ...] = completion.tokens
        assert len(tokens) == 3 and len(generator) == 0 and generator.tokens([1, 2]) == [1, 2]
    return numbers


def beams() -> NDArray:
    table = mx.nd.log_softmax(mx.nd.array([[0, 5, 1], [1, 0, 5], [0, 0, 0]]))

    def decode(tokens: NDArray, states: NDArray) -> tuple[NDArray, NDArray]:
        return table.take(tokens), states

    sampler = BeamSearchSampler(2, decode, eos_id=2, scorer=BeamSearchScorer(alpha=1.0, K=5), max_length=10)
    samples, scores, lengths = sampler(mx.nd.array([0, 1]), mx.nd.zeros((2, 1)))
    assert scores.shape == lengths.shape
    return samples[:, 0]


assert len(mx.run(stream(language_model()))) == 4
assert beams().shape[0] == 2
