"""Sessions and text generation on GPUs, on the stand-in for CuPy, whose work may run late."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx.generation import Generator, PagedDecoder
from flowmx.serve import Predictor
from tests.cupy_stand_in.standing import standing
from tests.generation.test_generator import PROMPTS, numbers

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")


@pytest.fixture(params=[None, 1], ids=["at launch", "late"])
def gpu(request):
    with standing(1, streams=2, seed=request.param):
        yield mx.gpu(0)


def cell(ctx):
    net = mx.gluon.rnn.GRUCell(5, input_size=3)
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5), ctx=mx.cpu())
    net.collect_params().reset_ctx(ctx)
    return net


async def outputs(ctx, xs):
    """Return the results of several sessions at once, whose states are on the host."""
    async with Predictor(cell(ctx), (3,), states=True, max_batch=4, ctx=ctx) as predictor:

        async def client(rows):
            async with predictor.session() as session:
                return [y async for y in session.stream(rows)]

        return np.array(await asyncio.gather(*map(client, xs)))


async def test_sessions_have_the_results_of_a_cpu(gpu):
    xs = np.random.default_rng(0).normal(size=(5, 6, 3)).astype(np.float32)
    np.testing.assert_allclose(await outputs(gpu, xs), await outputs(mx.cpu(), xs), rtol=1e-5, atol=1e-6)


async def texts(net, ctx):
    net.collect_params().reset_ctx(ctx)
    async with Generator(PagedDecoder(net, pages=40, page_size=4), prefill_tokens=6) as generator:
        running = [generator(each, max_tokens=5, temperature=0) for each in PROMPTS]
        return [numbers(completion.tokens) for completion in await asyncio.gather(*running)]


async def test_texts_have_the_tokens_of_a_cpu(gpu):
    from tests.generation.test_generator import network

    net = network()
    expected = await texts(net, mx.cpu())
    assert await texts(net, gpu) == expected
