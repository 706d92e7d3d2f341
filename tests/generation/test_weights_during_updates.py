"""Weights are read while a trainer writes them: no read is torn, and results are those of the serial order."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.generation import Generator, PagedDecoder

WEIGHTS = 50


class Counters(mx.gluon.HybridBlock):
    """A block with weights of one number each, which are all equal in each version; it returns them."""

    def __init__(self):
        super().__init__()
        for at in range(WEIGHTS):
            setattr(self, f"weight{at}", self.params.get(f"weight{at}", shape=(1,), init="zeros"))

    def hybrid_forward(self, F, x, **weights):
        return F.concat(*(x + weight for weight in weights.values()), dim=0)


def update(net, trainer, x):
    """Push a training step that adds 1 to each weight."""
    with autograd.record():
        loss = -net(x).sum()
    loss.backward()
    trainer.step(1)


@pytest.mark.parametrize("reads", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_no_read_is_torn(reads):
    net, x, updates = Counters(), mx.nd.zeros((1,)), 0
    net.initialize()
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "wd": 0.0})

    async def read(count):
        for _ in range(count):
            await mx.engine.wait_for_capacity()
            version, out = updates, net(x)  # pushed, not awaited: updates follow at once
            values = await out
            np.testing.assert_array_equal(values.asnumpy(), np.full(WEIGHTS, version, np.float32))

    async def main():
        nonlocal updates
        readers = [asyncio.create_task(read(reads // WEIGHTS // 8)) for _ in range(8)]
        while not all(each.done() for each in readers):
            await mx.engine.wait_for_capacity()
            update(net, trainer, x)
            updates += 1
            await asyncio.sleep(0)
        await asyncio.gather(*readers)

    asyncio.run(main())
    assert updates > reads // WEIGHTS // 20
    assert net.weight0.data().asscalar() == updates


def language_model():
    mx.random.seed(3)
    net = mx.gluon.model_zoo.text.LlamaLM(
        vocab_size=40, units=16, num_layers=2, num_heads=2, hidden_units=24, prefix="net_"
    )
    net.initialize(mx.init.Normal(0.3))
    return net, mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})


def train(net, trainer):
    """Push a training step."""
    tokens = mx.nd.array([[3, 1, 4, 1, 5, 9, 2, 6]], dtype="int32")
    with autograd.record():
        logits = net(tokens[:, :-1]).reshape((-1, 40))
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(logits, tokens[:, 1:].reshape((-1,)))
    loss.backward()
    trainer.step(7)


@pytest.mark.parametrize("updates", [8, pytest.param(400, marks=pytest.mark.soak)])
def test_decode_steps_between_updates_have_the_bits_of_the_serial_order(updates):
    net, trainer = language_model()
    decoder, events = PagedDecoder(net, 64, 16), []
    generator = Generator(decoder, max_sequences=4)
    step = decoder.step

    def recorded(batch):
        logits = step(batch)
        events.append((batch, logits, generator.version))
        return logits

    decoder.step = recorded

    async def main():
        async with generator:
            for round in range(updates // 4):
                running = [generator([at, round % 40], max_tokens=20, temperature=0) for at in range(1, 4)]
                readers = [asyncio.create_task(_versions(each)) for each in running]
                for _ in range(4):
                    await asyncio.sleep(0)
                    before = len(events)
                    train(net, trainer)
                    events.append(None)
                    version = await generator.swap()
                    late = [event for event in events[before:] if event is not None and event[2] < version]
                    assert len(late) <= 1
                for versions in await asyncio.gather(*readers):
                    assert versions == sorted(versions)
                    assert len(versions) == 20
            assert version == updates

    asyncio.run(main())
    again, serial_trainer = language_model()
    serial = PagedDecoder(again, 64, 16)
    for event in events:
        if event is None:
            train(again, serial_trainer)
            mx.nd.waitall()
        else:
            np.testing.assert_array_equal(serial.step(event[0]).asnumpy(), event[1].asnumpy())


async def _versions(generation):
    return [token.version async for token in generation]
