"""Optimizers on servers: a key split over two servers is bit-identical to one in a single process."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import store as server_store
from flowmx.kvstore.server.store import Store, Value
from flowmx.optimizer.updater import Updater
from tests.jobs import job

NAME, STEPS, SIZE, CUT = "fc_weight", 12, 50, 21
RANDOM = np.random.default_rng(0)

OPTIMIZERS = {
    "sgd": lambda: mx.optimizer.SGD(learning_rate=0.1, wd=0.01),
    "momentum": lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, clip_gradient=0.5),
    "nag": lambda: mx.optimizer.NAG(learning_rate=0.1, momentum=0.9),
    "signum": lambda: mx.optimizer.Signum(learning_rate=0.01),
    "adam": lambda: mx.optimizer.Adam(learning_rate=0.01),
    "adamax": lambda: mx.optimizer.Adamax(learning_rate=0.01),
    "nadam": lambda: mx.optimizer.Nadam(learning_rate=0.01),
    "adagrad": lambda: mx.optimizer.AdaGrad(learning_rate=0.1),
    "adadelta": lambda: mx.optimizer.AdaDelta(),
    "rmsprop": lambda: mx.optimizer.RMSProp(learning_rate=0.01, centered=True),
    "ftrl": lambda: mx.optimizer.Ftrl(learning_rate=0.1),
    "a factor every 3 updates": lambda: mx.optimizer.SGD(
        learning_rate=0.1, momentum=0.9, lr_scheduler=mx.lr_scheduler.FactorScheduler(step=3, factor=0.5)
    ),
    "warmup and cosine": lambda: mx.optimizer.Adam(
        learning_rate=0.1, lr_scheduler=mx.lr_scheduler.CosineScheduler(20, 0.1, warmup_steps=4)
    ),
}  # fmt: skip


def changes_nothing(optimizer, step):
    pass


def divides_the_last_batch_by_less(optimizer, step):
    optimizer.rescale_grad = 1 / 3 if step % 4 == 3 else 1 / 8


def lowers_the_rate(optimizer, step):
    optimizer.lr = 0.1 / (1 + step)


def gradients(dtype=np.float32):
    return [RANDOM.standard_normal(SIZE).astype(dtype) for _ in range(STEPS)]


def in_one_process(optimizer, start, gradients, change, key):
    weight, updater = mx.nd.array(start, dtype=start.dtype), Updater(optimizer)
    for step, gradient in enumerate(gradients):
        change(optimizer, step)
        updater(key, mx.nd.array(gradient, dtype=gradient.dtype), weight)
    return weight.asnumpy()


async def on_two_servers(optimizer, start, gradients, change, key):
    stores, values = [Store(threads=1), Store(threads=1)], [Value(start[:CUT].copy()), Value(start[CUT:].copy())]
    for step, gradient in enumerate(gradients):
        change(optimizer, step)
        for server, (store, piece) in enumerate(zip(stores, (gradient[:CUT], gradient[CUT:]), strict=True)):
            store.use(optimizer.get_config())
            result = store.update(key, values[server], piece.copy())
            values[server] = result if isinstance(result, Value) else await result
    for store in stores:
        store.close()
    return np.concatenate([value.array for value in values])


async def compare(make, change=changes_nothing, key=NAME, dtype=np.float32):
    start, pushed = RANDOM.standard_normal(SIZE).astype(dtype), gradients(dtype)
    expected = await asyncio.to_thread(in_one_process, make(), start, pushed, change, key)
    result = await on_two_servers(make(), start, pushed, change, key)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == dtype and not np.array_equal(result, start)
    return result


@pytest.mark.parametrize("name", OPTIMIZERS)
async def test_a_split_key_is_updated_as_a_whole_one(name):
    await compare(OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["momentum", "adam", "a factor every 3 updates"])
async def test_a_changed_scale_of_gradients_keeps_the_states(name):
    await compare(OPTIMIZERS[name], divides_the_last_batch_by_less)


@pytest.mark.parametrize("name", ["momentum", "adam"])
async def test_a_changed_learning_rate_keeps_the_states(name):
    await compare(OPTIMIZERS[name], lowers_the_rate)


@pytest.mark.parametrize("kind", [mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.Adam])
async def test_weights_of_float16_have_their_copies_of_float32_on_the_servers(kind):
    await compare(lambda: kind(learning_rate=0.01, multi_precision=True), dtype=np.float16)


@pytest.mark.parametrize(("key", "name"), [(0, "fc_weight"), (1, "fc_bias"), (2, "other_weight"), ("fc_weight", "")])
async def test_factors_by_name_reach_the_servers(key, name):
    def make():
        new_optimizer = mx.optimizer.SGD(
            learning_rate=0.1, wd=0.1, param_idx2name={0: "fc_weight", 1: "fc_bias", 2: "other_weight"}
        )
        new_optimizer.set_lr_mult({"fc_weight": 0.5})
        new_optimizer.set_wd_mult({"other_weight": 3.0})
        return new_optimizer

    optimizer = make()
    assert optimizer._get_lr(key) == (0.05 if "fc_weight" in (key, name) else 0.1)
    assert optimizer._get_wd(key) == pytest.approx({"fc_bias": 0.0, "other_weight": 0.3}.get(name, 0.1))
    await compare(make, key=key)


async def test_another_optimizer_starts_over():
    store, value = Store(threads=1), Value(np.zeros(3, np.float32))
    for optimizer in (mx.optimizer.SGD(momentum=0.9), mx.optimizer.Adam()):
        store.use(optimizer.get_config())
        result = store.update(NAME, value, np.ones(3, np.float32))
        value = result if isinstance(result, Value) else await result
    assert value.updater.optimizer._index_update_count == {NAME: 1}
    store.close()


async def test_the_comparison_sees_a_momentum_that_was_lost(monkeypatch):
    monkeypatch.setattr(server_store, "_updater", lambda *arguments: Updater(mx.optimizer.create("sgd")))
    with pytest.raises(AssertionError):
        await compare(OPTIMIZERS["momentum"], divides_the_last_batch_by_less)


@mx.optimizer.register
class ByNorm(mx.optimizer.Optimizer):
    """Scales a step by the norm of the whole weight, like LARS."""

    whole_array = True

    def step(self, weight, grad, state, lr, wd, t):
        weight -= lr * nd_norm(weight) / nd_norm(grad) * grad


def nd_norm(array):
    return mx.nd.op.sqrt((array * array).sum())


def test_an_optimizer_by_norms_gets_its_arrays_whole():
    start = np.arange(1, 9, dtype=np.float32)

    def work(kv):
        kv.set_optimizer(ByNorm(learning_rate=0.5))
        kv.init("w", mx.nd.array(start))
        out = mx.nd.zeros(8)
        kv.pushpull("w", mx.nd.array(start[::-1].copy()), out)
        return out.asnumpy()

    expected = mx.nd.array(start)
    Updater(ByNorm(learning_rate=0.5))("w", mx.nd.array(2 * start[::-1]), expected)
    with settings.override(kvstore_bigarray_bound=4), job(2, 2) as cluster:
        for result in cluster.each(work):
            np.testing.assert_array_equal(result, expected.asnumpy())


def test_an_optimizer_by_norms_comes_too_late_for_arrays_that_were_split():
    def work(kv):
        kv.init("w", mx.nd.ones(8))
        with pytest.raises(KVStoreError, match="ByNorm needs whole arrays") as refused:
            kv.set_optimizer(ByNorm())
        kv._barrier()
        return str(refused.value)

    with settings.override(kvstore_bigarray_bound=4), job(2, 2) as cluster:
        assert all("call set_optimizer before init" in text for text in cluster.each(work))
