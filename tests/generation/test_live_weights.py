"""Weights from a KVStore, which a trainer updates elsewhere, while a generator writes."""

import asyncio
import itertools

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import KVStoreError
from flowmx.generation import Generator, PagedDecoder, WeightPuller
from tests.generation.test_generator import PROMPTS, Scripted, expected, network, numbers
from tests.jobs import job


def values(net):
    return {name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()}


def keyed(net):
    return dict(enumerate(net.collect_params().values()))


def initialize(kv, net):
    for key, parameter in keyed(net).items():
        kv.init(key, parameter.data())


def start(kv, net):
    """Set the optimizer of the servers, and the first weights."""
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    initialize(kv, net)


def move(kv, old, new):
    """Update the weights of the servers, as the trainer of another process does."""
    for key, parameter in keyed(new).items():
        kv.push(key, keyed(old)[key].data() - parameter.data())
        pulled = mx.nd.zeros_like(parameter.data())
        kv.pull(key, out=pulled)
        np.testing.assert_allclose(pulled.asnumpy(), parameter.data().asnumpy(), atol=1e-6)


@pytest.mark.parametrize("policy", ["step", "recompute", "drain"])
def test_pulled_weights_take_effect_by_the_policy(policy):
    net, old, new = network(seed=0), network(seed=0), network(seed=1)
    texts = {0: expected(old, PROMPTS[0], 8), 1: expected(new, PROMPTS[0], 8)}

    async def write(kv):
        async with Generator(PagedDecoder(net, pages=40, page_size=4), max_sequences=1) as generator:
            puller = WeightPuller(generator, kv, keyed(net))
            running = generator(PROMPTS[0], max_tokens=120, temperature=0)
            first = [await anext(running) for _ in range(3)]
            await asyncio.to_thread(kv.barrier)  # the trainer updates
            await asyncio.to_thread(kv.barrier)
            pulling = asyncio.create_task(puller.pull(policy))
            if policy != "drain":  # which waits for the running request
                await pulling
            rest = [token async for token in running]
            assert await pulling == 1
            later = await generator(PROMPTS[0], max_tokens=8, temperature=0)
            return [*first, *rest], later

    def work(kv):
        start(kv, old)
        if kv.rank == 0:
            return asyncio.run(write(kv))
        kv.barrier()
        move(kv, old, new)
        return kv.barrier()

    with job(2, 1) as cluster:
        (tokens, later), _ = cluster.each(work, "dist_async")
    versions = [token.version for token in tokens]
    assert versions == sorted(versions)
    assert set(versions) == ({0} if policy == "drain" else {0, 1})
    of_old = numbers(token for token in tokens if token.version == 0)
    assert of_old[:8] == texts[0][: len(of_old[:8])]
    assert numbers(later.tokens) == texts[1]
    assert {token.version for token in later.tokens} == {1}


def test_each_token_has_the_weights_of_one_pull():
    """Each text, written while a trainer updates the servers, equals that of the weights of one version."""
    versions = [network(seed=seed) for seed in range(4)]
    texts = [expected(each, PROMPTS[1], 5) for each in versions]
    net = network(seed=0)

    async def write(kv):
        results = []
        async with Generator(PagedDecoder(net, pages=60, page_size=4)) as generator:
            puller = WeightPuller(generator, kv, keyed(net))
            for _ in versions[1:]:
                others = [generator(prompt, max_tokens=40) for prompt in PROMPTS]
                results.append(await generator(PROMPTS[1], max_tokens=5, temperature=0))
                await asyncio.to_thread(kv.barrier)  # the trainer updates
                await asyncio.to_thread(kv.barrier)
                await puller.pull("drain")
                await asyncio.gather(*others)
            results.append(await generator(PROMPTS[1], max_tokens=5, temperature=0))
        return results

    def work(kv):
        start(kv, versions[0])
        if kv.rank == 0:
            return asyncio.run(write(kv))
        for old, new in itertools.pairwise(versions):
            kv.barrier()
            move(kv, old, new)
            kv.barrier()
        return None

    with job(2, 1) as cluster:
        results, _ = cluster.each(work, "dist_async")
    assert [[token.version for token in result.tokens] for result in results] == [[n] * 5 for n in range(4)]
    assert [numbers(result.tokens) for result in results] == texts


def test_a_store_that_fails_changes_nothing():
    net = network(seed=0)
    before = values(net)

    async def main(kv):
        async with Generator(PagedDecoder(net, pages=20, page_size=4)) as generator:
            running = generator(PROMPTS[0], max_tokens=8, temperature=0)
            with pytest.raises(KVStoreError, match="init"):
                await WeightPuller(generator, kv, {"unknown": next(iter(net.collect_params().values()))}).pull()
            with pytest.raises(ValueError, match="policy is 'now'"):
                await WeightPuller(generator, kv, keyed(net)).pull("now")
            assert generator.version == 0
            assert len((await running).tokens) == 8

    kv = mx.kv.create("local")
    initialize(kv, net)
    asyncio.run(main(kv))
    after = values(net)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    with pytest.raises(ValueError, match="parameters is empty"):
        WeightPuller(Generator(Scripted()), kv, {})
