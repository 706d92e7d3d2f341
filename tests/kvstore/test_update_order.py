"""Schedules and shared states of optimizers: servers give the values of one process with the same order of updates."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd, settings
from flowmx.kvstore.worker import sender
from flowmx.optimizer.update_counts import Order, is_ordered, set_progress
from flowmx.optimizer.updater import Updater
from tests.jobs import job

SHAPE = (4, 3)
STEPS = 9
KEYS = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(sender, "SPLIT_AFTER", 0.1)


def factor(base_lr=0.5):
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=base_lr)


OPTIMIZERS = {
    "schedule": lambda: mx.optimizer.SGD(momentum=0.9, lr_scheduler=factor()),
    "adam": lambda: mx.optimizer.Adam(lr_scheduler=factor(0.001), begin_num_update=3),
    "nadam": lambda: mx.optimizer.Nadam(learning_rate=0.1),
    "nadam and schedule": lambda: mx.optimizer.Nadam(lr_scheduler=factor(0.001)),
    "lars": lambda: mx.optimizer.LARS(momentum=0.9, lr_scheduler=factor()),
    "lbsgd": lambda: mx.optimizer.LBSGD(momentum=0.9, warmup_strategy="linear", lr_scheduler=factor()),
    "lamb": lambda: mx.optimizer.LAMB(lr_scheduler=factor(0.001)),
    "dcasgd": lambda: mx.optimizer.DCASGD(lr_scheduler=factor()),
    "ftml": lambda: mx.optimizer.create("ftml", lr_scheduler=factor()),
}


def pushes(steps=STEPS):
    """Return the keys of each step: one in every step, one in every third, and one from the fifth on."""
    for step in range(steps):
        yield [key for key, used in zip(KEYS, (True, step % 3 == 2, step >= 4), strict=True) if used]


def gradient(step, key):
    return np.random.default_rng((step, KEYS.index(key))).normal(size=SHAPE).astype(np.float32)


def alone(make, steps=STEPS, workers=1, change=lambda optimizer, step: None, counted=1):
    optimizer = make()
    update, values = Updater(optimizer), {key: nd.ones(SHAPE) for key in KEYS}
    for step, keys in enumerate(pushes(steps)):
        change(optimizer, step)
        for key in keys:
            for _ in range(counted):
                update(key, nd.array(workers * gradient(step, key)), values[key])
    return {key: value.asnumpy() for key, value in values.items()}


def trained(kv, optimizer, steps=range(STEPS), change=lambda optimizer, step: None, together=False, rows=False):
    kv.init(KEYS, [nd.ones(SHAPE) for _ in KEYS])
    kv.set_optimizer(optimizer)
    return pushed(kv, optimizer, steps, change, together, rows)


def pushed(kv, optimizer, steps, change=lambda optimizer, step: None, together=False, rows=False):
    outs = {key: nd.zeros(SHAPE) for key in KEYS}
    for step, keys in enumerate(pushes(max(steps) + 1)):
        if step not in steps:
            continue
        change(optimizer, step)
        kv._refresh()
        grads = [nd.array(gradient(step, key)) for key in keys]
        if rows:
            grads = [grad.tostype("row_sparse") for grad in grads]
        if together:
            kv.pushpull(keys, grads, [outs[key] for key in keys])
            continue
        for key, grad in zip(keys, grads, strict=True):
            kv.push(key, grad)
            if not kv._is_synchronous:  # the order is that in which pushes arrive
                kv.pull(key, outs[key])
                outs[key].wait_to_read()
    for key, out in outs.items():
        kv.pull(key, out)
    return {key: out.asnumpy() for key, out in outs.items()}


def same(result, expected):
    for key in KEYS:
        np.testing.assert_allclose(result[key], expected[key], rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_server_gives_the_values_of_one_process(name, kind):
    make = OPTIMIZERS[name]
    with job(1, 1) as cluster:
        same(cluster.each(lambda kv: trained(kv, make()), kind)[0], alone(make))


@pytest.mark.parametrize(("servers", "bound"), [(2, 1000), (2, 1), (3, 1000)])
@pytest.mark.parametrize("name", ["schedule", "nadam and schedule"])
@pytest.mark.parametrize("together", [False, True])
def test_several_servers_and_split_keys_give_the_same(name, servers, bound, together):
    make = OPTIMIZERS[name]
    with settings.override(kvstore_bigarray_bound=bound), job(2, servers) as cluster:
        results = cluster.each(lambda kv: trained(kv, make(), together=together))
    for item in results:
        same(item, alone(make, workers=2))


def test_rows_are_updated_at_the_same_rates():
    make = OPTIMIZERS["schedule"]
    with job(2, 2) as cluster:
        for result in cluster.each(lambda kv: trained(kv, make(), rows=True)):
            same(result, alone(make, workers=2))


def test_without_copies_on_other_servers_it_is_the_same():
    make = OPTIMIZERS["nadam and schedule"]
    with settings.override(kvstore_replicas=0), job(1, 2) as cluster:
        same(cluster.each(lambda kv: trained(kv, make()))[0], alone(make))


@pytest.mark.parametrize("name", ["schedule", "nadam and schedule"])
def test_a_job_restarted_from_snapshots_continues(name, tmp_path):
    make = OPTIMIZERS[name]
    for steps in (range(5), range(5, STEPS)):
        with job(1, 2, snapshot=tmp_path) as cluster:
            results = cluster.each(lambda kv: trained(kv, make(), steps))[0]  # noqa: B023
    same(results, alone(make))


@pytest.mark.parametrize("name", ["schedule", "nadam and schedule", "adam"])
def test_saved_states_are_resumed(name, tmp_path):
    make, path = OPTIMIZERS[name], tmp_path / "states"

    def work(kv):
        optimizer = make()
        trained(kv, optimizer, range(5))
        kv.save_optimizer_states(path)
        kv.load_optimizer_states(path)
        return pushed(kv, optimizer, range(5, STEPS))

    with job(1, 2) as cluster:
        same(cluster.each(work)[0], alone(make))


def test_the_order_continues_after_a_barrier():
    make = OPTIMIZERS["nadam and schedule"]

    def work(kv):
        optimizer = make()
        trained(kv, optimizer, range(5))
        kv._barrier()
        return pushed(kv, optimizer, range(5, STEPS))

    with job(2, 2) as cluster:
        for result in cluster.each(work):
            same(result, alone(make, workers=2))


def other_rate(optimizer, step):
    if step == 4:
        optimizer.set_learning_rate(0.05)


def other_schedule(optimizer, step):
    if step == 4:
        optimizer.lr_scheduler = mx.lr_scheduler.PolyScheduler(max_update=20, base_lr=0.3)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9), other_rate),
        (lambda: mx.optimizer.Nadam(learning_rate=0.1), other_rate),
        (lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9), other_schedule),
        (lambda: mx.optimizer.SGD(momentum=0.9, lr_scheduler=factor()), other_schedule),
    ],
)
def test_rates_and_schedules_that_change_are_followed(make, change):
    with job(2, 2) as cluster:
        for result in cluster.each(lambda kv: trained(kv, make(), change=change)):
            same(result, alone(make, workers=2, change=change))


def test_a_new_optimizer_starts_over():
    def work(kv):
        trained(kv, OPTIMIZERS["schedule"](), range(5))
        out = nd.zeros(SHAPE)
        kv.set_optimizer(mx.optimizer.SGD(momentum=0.9, lr_scheduler=factor()))
        kv.pull("a", out)
        before = out.asnumpy()
        kv.pushpull("a", nd.ones(SHAPE), out)
        return before - out.asnumpy()

    with job(1, 1) as cluster:
        np.testing.assert_allclose(cluster.each(work)[0], np.full(SHAPE, 0.5), rtol=1e-5)


def test_keys_in_lockstep_need_no_order():
    order = Order(OPTIMIZERS["schedule"]().get_config(), {"a": 3, "b": 3})
    assert [order.next(key) for key in ("a", "b", "a", "b")] == [None] * 4
    assert order.next("a") is None and order.next("c") == [6]
    assert (
        not is_ordered(mx.optimizer.SGD()) and is_ordered(mx.optimizer.Nadam()) and is_ordered(OPTIMIZERS["schedule"]())
    )


def test_an_order_continues_from_counts():
    make = mx.optimizer.Nadam
    whole, later = Order(make().get_config(), {}), None
    for _ in range(3):
        whole.next("a"), whole.next("b")
    later = Order(make().get_config(), {"a": 3, "b": 3})
    result, expected = later.next("a"), whole.next("a")
    assert result[0] == expected[0]
    assert result[1] == pytest.approx(expected[1], rel=1e-12)
    optimizer = make()
    set_progress(optimizer, result)
    assert (optimizer.num_update, optimizer.m_schedule) == tuple(result)
