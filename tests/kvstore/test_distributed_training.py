"""Distributed training: the results of one process, ends of epochs, and workers that join and leave."""

import asyncio
import functools
import itertools
import math
import os
import signal
import sys
import threading
from contextlib import nullcontext as nothing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.errors import KVStoreError
from flowmx.gluon import nn
from tests.jobs import job
from tests.waiting import wait_until

STEPS = 50
BATCH = 32
OPTIMIZERS = {
    "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}),
    "adam": ("adam", {"learning_rate": 1e-3}),
}


@functools.cache
def digits():
    """Load images of 1x8x8 and labels: 1,437 for training, 360 for testing."""
    from sklearn.datasets import load_digits  # half a second in each process that collects the tests

    result = load_digits()
    images = (result.images / 16).astype(np.float32)[:, None]
    order = np.random.default_rng(1).permutation(len(images))
    images, labels = images[order], result.target[order].astype(np.float32)
    return images[360:], labels[360:], images[:360], labels[:360]


def part(step, rank, workers, batch=BATCH):
    """Return one worker's images and labels of a batch."""
    images, labels, _, _ = digits()
    rows = np.arange(step * batch, (step + 1) * batch) % len(images)
    ours = rows[rank * batch // workers : (rank + 1) * batch // workers]
    return mx.nd.array(images[ours]), mx.nd.array(labels[ours])


# -- models ------------------------------------------------------------------------------------------------


def mlp():
    hidden = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Variable("data")), num_hidden=24, name="fc1")
    out = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="tanh"), num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(out, name="softmax")


def lenet():
    conv1 = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=8, pad=(1, 1), name="conv1")
    pool1 = mx.sym.Pooling(mx.sym.Activation(conv1, act_type="tanh"), pool_type="max", kernel=(2, 2), stride=(2, 2))
    conv2 = mx.sym.Convolution(pool1, kernel=(3, 3), num_filter=16, name="conv2")
    fc1 = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Activation(conv2, act_type="tanh")), num_hidden=32, name="fc1")
    fc2 = mx.sym.FullyConnected(mx.sym.Activation(fc1, act_type="tanh"), num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(fc2, name="softmax")


MODELS = {"mlp": mlp, "lenet": lenet}


def first_values(symbol):
    """Return the initial parameters, equal in every run."""
    random = np.random.default_rng(2)
    shapes = zip(symbol.list_arguments(), symbol.infer_shape(data=(BATCH, 1, 8, 8))[0], strict=True)
    drawn = {name: random.normal(0, 0.15, shape).astype(np.float32) for name, shape in shapes}
    return {name: mx.nd.array(array) for name, array in drawn.items() if name not in ("data", "softmax_label")}


def bound(symbol, size, context=None):
    mod = mx.mod.Module(symbol, context=context)
    mod.bind([("data", (size, 1, 8, 8))], [("softmax_label", (size,))])
    mod.init_params(arg_params=first_values(symbol))
    return mod


def numbers(params):
    return {name: array.asnumpy() for name, array in params.items()}


def by_module(kv, rank, workers, model, optimizer, context=None, steps=STEPS):
    mod = bound(MODELS[model](), BATCH // workers, context)
    mod.init_optimizer(kv, *OPTIMIZERS[optimizer])
    for step in range(steps):
        data, label = part(step, rank, workers)
        mod.forward_backward(mx.io.DataBatch([data], [label]))
        mod.update()
        mod.get_outputs()[0].wait_to_read()
    return numbers(mod.get_params()[0])


def network(model, context=None):
    """Make the same models in Gluon, with the same initial values."""
    values = list(first_values(MODELS[model]()).values())
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        if model == "lenet":
            net.add(nn.Conv2D(8, 3, padding=1, activation="tanh", in_channels=1), nn.MaxPool2D())
            net.add(nn.Conv2D(16, 3, activation="tanh", in_channels=8), nn.Flatten())
            net.add(nn.Dense(32, activation="tanh", in_units=64))
        else:
            net.add(nn.Flatten(), nn.Dense(24, activation="tanh", in_units=64))
        net.add(nn.Dense(10, in_units=values[-2].shape[1]))
    net.hybridize()
    net.initialize(ctx=context)
    for param, value in zip(net.collect_params().values(), values, strict=True):
        param.set_data(value)
    return net


def backward(net, data, label):
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(data), label)
    loss.backward()
    loss.wait_to_read()  # workers of one process share how far they may run ahead


def by_trainer(kv, rank, workers, model, optimizer, steps=STEPS, **arguments):
    net = network(model)
    trainer = gluon.Trainer(net.collect_params(), *OPTIMIZERS[optimizer], kvstore=kv, **arguments)
    for step in range(steps):
        backward(net, *part(step, rank, workers))
        trainer.step(BATCH)
    return {param.name: param.data().asnumpy() for param in net.collect_params().values()}


WAYS: dict[str, Any] = {"module": by_module, "trainer": by_trainer}


def farthest(result, expected):
    assert result.keys() == expected.keys()
    return max(np.abs(result[name] - expected[name]).max() for name in expected)


# -- results -----------------------------------------------------------------------------------------------


QUICK = [("module", "mlp", "momentum"), ("trainer", "mlp", "adam"), ("module", "lenet", "momentum")]
CASES = [
    *((*case, 20) for case in QUICK),
    *(pytest.param(*case, 50, marks=pytest.mark.soak) for case in itertools.product(WAYS, MODELS, OPTIMIZERS)),
]


@pytest.mark.parametrize(("way", "model", "optimizer", "steps"), CASES)
def test_after_some_steps_the_parameters_are_those_of_one_process(way, model, optimizer, steps):
    expected = WAYS[way](None, 0, 1, model, optimizer, steps=steps)
    for workers in (1, 2, 4):
        with job(workers, 2) as cluster:
            results = cluster.each(lambda kv: WAYS[way](kv, kv.rank, workers, model, optimizer, steps=steps))  # noqa: B023
        for item in results:
            assert farthest(item, expected) <= (0 if workers == 1 else 1e-6)
            assert farthest(item, results[0]) == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_gradients_are_added_in_the_same_order_the_bits_are_those_of_one_process(optimizer):
    devices = [mx.cpu(0), mx.cpu(1)]
    alone = by_module("local", 0, 1, "mlp", optimizer, devices)
    with job(2, 2) as cluster:
        for result in cluster.each(lambda kv: by_module(kv, kv.rank, 2, "mlp", optimizer)):
            assert farthest(result, alone) == 0


def test_each_of_several_workers_may_have_several_devices():
    expected = by_module(None, 0, 1, "mlp", "momentum", steps=20)
    with job(2, 2) as cluster:
        for result in cluster.each(
            lambda kv: by_module(kv, kv.rank, 2, "mlp", "momentum", [mx.cpu(0), mx.cpu(1)], steps=20)
        ):
            assert farthest(result, expected) <= 1e-6


@pytest.mark.parametrize("on_kvstore", [True, False])
def test_a_trainer_may_update_in_the_store_or_by_itself(on_kvstore):
    expected = by_trainer(None, 0, 1, "mlp", "momentum", steps=10)
    with job(2, 1) as cluster:
        for result in cluster.each(
            lambda kv: by_trainer(kv, kv.rank, 2, "mlp", "momentum", steps=10, update_on_kvstore=on_kvstore)
        ):
            assert farthest(result, expected) <= 1e-6


def changing(kv, rank, workers):
    """Train with a decreasing learning rate, changing batch sizes, and multipliers of parameters."""
    net = network("mlp")
    net.collect_params(".*bias").setattr("lr_mult", 2.0)
    trainer = gluon.Trainer(net.collect_params(), *OPTIMIZERS["momentum"], kvstore=kv)
    for step in range(12):
        size = BATCH // (1 + step % 2)
        backward(net, *part(step, rank, workers, size))
        trainer.set_learning_rate(0.1 / (1 + step // 4))
        trainer.step(size)
    return {param.name: param.data().asnumpy() for param in net.collect_params().values()}


def test_servers_follow_the_learning_rate_the_batch_size_and_multipliers():
    expected = changing(None, 0, 1)
    with job(2, 2) as cluster:
        for result in cluster.each(lambda kv: changing(kv, kv.rank, 2)):
            assert farthest(result, expected) <= 1e-6


def test_sums_without_updates_are_possible():
    def work(kv):
        net = network("mlp")
        trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=kv, update_on_kvstore=False)
        backward(net, *part(0, kv.rank, 2))
        own = [param.grad().asnumpy() for param in net.collect_params().values()]
        trainer.allreduce_grads()
        return own, [param.grad().asnumpy() for param in net.collect_params().values()]

    with job(2, 1) as cluster:
        (first, total), (second, _) = cluster.each(work)
    for one, other, both in zip(first, second, total, strict=True):
        assert np.array_equal(one + other, both)


class ByModule:
    """Train the small network with momentum in a store, step by step."""

    def __init__(self, kv, values):
        self.mod = bound(mlp(), BATCH // 2)
        self.mod.set_params({name: mx.nd.array(value) for name, value in values.items()}, {}, allow_missing=True)
        self.mod.init_optimizer(kv, *OPTIMIZERS["momentum"])
        self.save, self.load = self.mod.save_optimizer_states, self.mod.load_optimizer_states

    def step(self, number, rank):
        data, label = part(number, rank, 2)
        self.mod.forward_backward(mx.io.DataBatch([data], [label]))
        self.mod.update()

    def values(self):
        return numbers(self.mod.get_params()[0])


class ByTrainer:
    """Train the same network in Gluon."""

    def __init__(self, kv, values):
        self.net = network("mlp")
        for name, value in values.items():
            self.net.collect_params()[name].set_data(mx.nd.array(value))
        self.trainer = gluon.Trainer(self.net.collect_params(), *OPTIMIZERS["momentum"], kvstore=kv)
        self.save, self.load = self.trainer.save_states, self.trainer.load_states

    def step(self, number, rank):
        backward(self.net, *part(number, rank, 2))
        self.trainer.step(BATCH)

    def values(self):
        return {param.name: param.data().asnumpy() for param in self.net.collect_params().values()}


@pytest.mark.parametrize("kind", [ByModule, ByTrainer])
def test_states_of_the_servers_optimizer_are_saved_and_loaded(kind, tmp_path):
    def before(kv):
        instance = kind(kv, {})
        for number in range(3):
            instance.step(number, kv.rank)
        if kv.rank == 0:
            instance.save(str(tmp_path / "states"))
        kv._barrier()
        start = instance.values()
        instance.step(3, kv.rank)
        return start, instance.values()

    def after(kv):
        instance = kind(kv, start)
        instance.load(str(tmp_path / "states"))
        instance.step(3, kv.rank)
        return instance.values()

    with job(2, 2) as first:
        start, expected = first.each(before)[0]
    with job(2, 2) as second:
        for result in second.each(after):
            assert farthest(result, expected) == 0


# -- fit ---------------------------------------------------------------------------------------------------


def batches(rank=0, workers=1, batch=BATCH, count=None):
    """Return a number of batches of a worker's part of the training data."""
    images, labels, _, _ = digits()
    ours = slice(rank, None if count is None else rank + count * batch * workers, workers)
    return mx.io.NDArrayIter(images[ours], labels[ours], batch, last_batch_handle="discard")


def fit(kv, data, epochs, **more):
    """Train the small network; return the module."""
    symbol = mlp()
    mod = mx.mod.Module(symbol)
    params = {"arg_params": first_values(symbol), "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9}}
    mx.run(mod.fit(data, kvstore=kv, num_epoch=epochs, **{**params, **more}))
    return mod


def accuracy(mod):
    _, _, images, labels = digits()
    test = mx.io.NDArrayIter(images, labels, 60)
    return mx.run(mod.score(test, "acc"))[0][1]


@functools.cache
def alone(epochs):
    return accuracy(fit(None, batches(), epochs))


def test_fit_waits_for_all_workers_at_each_epoch_end_with_uneven_data():
    counts = [5, 4]
    log = {}

    def work(kv):
        def keep(epoch, symbol, arg_params, aux_params):
            log[kv.rank, epoch] = numbers(arg_params)

        mod = fit(kv, batches(kv.rank, 2, count=counts[kv.rank]), 3, epoch_end_callback=keep)
        return kv.step, numbers(mod.get_params()[0])

    with job(2, 2) as cluster:
        (steps, first), (_, second) = cluster.each(work)
    assert steps == 3 * max(counts)
    assert farthest(first, second) == 0
    for epoch in range(3):
        assert farthest(log[0, epoch], log[1, epoch]) == 0


def test_a_trainer_waits_at_barriers_with_uneven_data():
    counts = [5, 3]

    def work(kv):
        net = network("mlp")
        trainer = gluon.Trainer(net.collect_params(), "adam", kvstore=kv)
        for _ in range(2):
            for step in range(counts[kv.rank]):
                backward(net, *part(step, kv.rank, 2))
                trainer.step(BATCH)
            asyncio.run(trainer.barrier())
        return kv.step, {param.name: param.data().asnumpy() for param in net.collect_params().values()}

    with job(2, 2) as cluster:
        (steps, first), (_, second) = cluster.each(work)
    assert steps == 2 * max(counts)
    assert farthest(first, second) == 0


def test_uneven_data_is_an_error_if_workers_update():
    def work(kv):
        with pytest.raises(KVStoreError, match="had 1 batches fewer than others") if kv.rank else nothing():
            fit(kv, batches(kv.rank, 2, count=3 - kv.rank), 1)

    with mx.engine.using(update_on_kvstore=False), job(2, 1) as cluster:
        cluster.each(work)


def script(name, prefix):
    """Train as MXNet's example/image-classification, with a store by name or as an object."""
    kv = mx.kvstore.create(name) if isinstance(name, str) else name
    images, labels, test_images, test_labels = digits()
    batch = 64 // kv.num_workers
    train = mx.io.NDArrayIter(
        images[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers], batch, last_batch_handle="discard"
    )
    steps = len(images) // 64
    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[steps, 2 * steps], factor=0.5)
    model = mx.mod.Module(mlp(), context=mx.cpu())
    mx.run(
        model.fit(
            train, begin_epoch=0, num_epoch=3, eval_data=mx.io.NDArrayIter(test_images, test_labels, 60),
            eval_metric=["accuracy", mx.metric.create("top_k_accuracy", top_k=5)], kvstore=kv, optimizer="sgd",
            optimizer_params={"learning_rate": 0.2, "wd": 1e-4, "momentum": 0.9, "lr_scheduler": schedule},
            initializer=mx.init.Xavier(), arg_params=first_values(mlp()), allow_missing=True,
            batch_end_callback=[mx.callback.Speedometer(batch, 10)],
            epoch_end_callback=mx.callback.do_checkpoint(f"{prefix}-{kv.rank}"),
        )
    )  # fmt: skip
    return numbers(model.get_params()[0])


def test_an_mxnet_script_trains_distributed_as_on_one_machine(tmp_path):
    expected = script("local", str(tmp_path / "alone"))
    with job(2, 2) as cluster:
        results = cluster.each(lambda kv: script(kv, str(tmp_path / "job")))
    assert farthest(results[0], results[1]) == 0
    assert farthest(results[0], expected) <= 1e-6
    saved = [mx.nd.load(str(tmp_path / f"job-{rank}-0003.params")) for rank in (0, 1)]
    for name, array in saved[0].items():
        assert np.array_equal(array.asnumpy(), saved[1][name].asnumpy())


def test_code_for_servers_is_refused():
    def work(kv):
        with pytest.raises(KVStoreError, match="run no code from workers"):
            kv._send_command_to_servers(0, "")
        return kv.type, kv.is_capable("optimizer"), kv.get_num_dead_node(), repr(kv)

    with job(2, 1) as cluster:
        assert cluster.each(work, "dist")[1][:3] == ("dist", True, 0)


# -- workers that come and go ------------------------------------------------------------------------------


class Crash(Exception):
    """Ends a worker in the middle of training."""


def at(epoch, batch, do):
    """Return a callback after a batch."""

    def callback(param):
        if (param.epoch, param.nbatch) == (epoch, batch):
            do()

    return callback


def fail():
    raise Crash("out of memory")


def test_a_worker_leaving_midway_does_not_block_the_others():
    def work(kv):
        stop = at(1, 2, fail) if kv.rank else None
        with pytest.raises(Crash) if kv.rank else nothing():
            mod = fit(kv, batches(kv.rank, 2), 3, batch_end_callback=stop)
        return None if kv.rank else (kv.step, accuracy(mod))

    with job(2, 2, policy="elastic") as cluster:
        (steps, reached), _ = cluster.each(work)
    assert steps == 3 * len(list(batches(0, 2)))
    assert reached > 0.9


def test_a_lost_worker_that_rejoins_resumes_where_the_others_are():
    came, log = threading.Event(), []
    per_epoch = len(list(batches(0, 2)))

    def first(kv):
        return fit(kv, batches(0, 2), 4, batch_end_callback=at(2, 3, lambda: came.wait(30))), kv.step

    def lost(kv):
        fit(kv, batches(1, 2), 4, batch_end_callback=at(1, 5, fail))

    def again(kv):
        def look(param):
            log.append((param.epoch, param.nbatch))
            came.set()

        mod = fit(kv, batches(1, 2), 4, batch_end_callback=look)
        return numbers(mod.get_params()[0])

    with job(2, 2, policy="elastic") as cluster:
        survivor = cluster.begin(first, rank=0)
        with pytest.raises(Crash):
            cluster.begin(lost, rank=1).result(60)
        second = cluster.begin(again, rank=1).result(60)
        mod, steps = survivor.result(60)
    assert steps == 4 * per_epoch
    epoch, batch = log[0]
    assert (1, 5) <= (epoch, batch) <= (2, 4), "it begins where the survivor is"
    assert log[-1] == (3, per_epoch - 1)
    assert farthest(second, numbers(mod.get_params()[0])) == 0
    assert accuracy(mod) > 0.9


def test_the_others_wait_for_a_late_worker_at_its_first_epoch_end():
    came, ended, log = threading.Event(), threading.Event(), []
    per_epoch = len(list(batches(0, 2)))

    def first(kv):
        wait = at(1, 3, lambda: came.wait(30))
        fit(kv, batches(0, 2), 3, batch_end_callback=wait, epoch_end_callback=lambda epoch, *_: epoch and ended.set())

    def lost(kv):
        fit(kv, batches(1, 2), 3, batch_end_callback=at(1, 1, fail))

    def again(kv):
        def look(param):
            log.append((param.epoch, param.nbatch))
            came.set()
            if log[-1] == (1, per_epoch - 1):
                wait_until(lambda: ended.is_set() or cluster.is_waiting(0, "kvstore"))

        fit(kv, batches(1, 2), 3, batch_end_callback=look)

    with job(2, 1, policy="elastic") as cluster:
        survivor = cluster.begin(first, rank=0)
        with pytest.raises(Crash):
            cluster.begin(lost, rank=1).result(60)
        cluster.begin(again, rank=1).result(60)
        survivor.result(60)
    assert log[0][0] == 1
    assert log[-1] == (2, per_epoch - 1)


def test_a_worker_cannot_join_late_if_the_workers_update():
    began, refused = threading.Event(), threading.Event()

    def first(kv):
        fit(kv, batches(0, 2), 1, batch_end_callback=at(0, 1, lambda: (began.set(), refused.wait(30))))

    def lost(kv):
        fit(kv, batches(1, 2), 1, batch_end_callback=at(0, 1, fail))

    def again(kv):
        fit(kv, batches(1, 2), 1)

    with mx.engine.using(update_on_kvstore=False), job(2, 1, policy="elastic") as cluster:
        survivor = cluster.begin(first, rank=0)
        with pytest.raises(Crash):
            cluster.begin(lost, rank=1).result(60)
        began.wait(30)
        with pytest.raises(KVStoreError, match="can join late only if the kvstore updates them"):
            cluster.begin(again, rank=1).result(60)
        with pytest.raises(KVStoreError):
            mx.nd.waitall()  # the other keys are refused as well
        refused.set()
        survivor.result(60)


def test_a_restarted_job_resumes_from_its_snapshots(tmp_path):
    log = []

    def look(param):
        log.append((param.epoch, param.nbatch))

    def stopped(kv):
        with pytest.raises(Crash):
            fit(kv, batches(kv.rank, 2), 4, batch_end_callback=at(1, 5, fail))
        kv._barrier()  # so that both leave cleanly

    def again(kv):
        mod = fit(kv, batches(kv.rank, 2), 4, batch_end_callback=look if kv.rank else None)
        return kv.step, numbers(mod.get_params()[0])

    def whole(kv):
        return numbers(fit(kv, batches(kv.rank, 2), 4).get_params()[0])

    with job(2, 2) as cluster:
        expected = cluster.each(whole)[0]
    with job(2, 2, snapshot=tmp_path) as cluster:
        cluster.each(stopped)
    with job(2, 2, snapshot=tmp_path) as cluster:
        (steps, results), _ = cluster.each(again)
    per_epoch = len(list(batches(0, 2)))
    assert steps == 4 * per_epoch
    assert (log[0], log[-1]) == ((1, 6), (3, per_epoch - 1))
    assert farthest(results, expected) == 0


def test_a_late_worker_learns_which_fit_the_others_are_in():
    came = threading.Event()

    def program(kv, *callbacks):
        log = []
        for number, callback in enumerate(callbacks):
            count = lambda param, number=number: log.append((number, param.epoch))  # noqa: E731
            fit(kv, batches(kv.rank, 2), 2, batch_end_callback=[count, callback])
        return log

    def nothing_else(param):
        pass

    with job(2, 1, policy="elastic") as cluster:
        survivor = cluster.begin(lambda kv: program(kv, nothing_else, at(1, 1, lambda: came.wait(30))), rank=0)
        with pytest.raises(Crash):
            cluster.begin(lambda kv: program(kv, at(0, 1, fail)), rank=1).result(60)
        late = cluster.begin(lambda kv: program(kv, lambda param: came.set(), lambda param: came.set()), rank=1)
        log = late.result(60)
        everything = survivor.result(60)
    assert len(log) < len(everything), "what the others have done is not done again"
    assert log[-1] == everything[-1] == (1, 1)


PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
import flowmx as mx
from tests.kvstore.test_distributed_training import accuracy, at, batches, fit

kv = mx.kv.create("dist_sync")
print("started", flush=True)
killed, fifo = {killed!r}, {fifo!r}
steps = []

def look(param):
    steps.append((param.epoch, param.nbatch))
    print("at", param.epoch, param.nbatch, flush=True)
    if kv.rank == 1 and os.path.exists(killed) and len(steps) == 1:
        open(fifo, "w").close()
    if kv.rank == 0 and steps[-1] == (2, 0):
        open(fifo).close()  # waits for worker 1

mod = fit(kv, batches(kv.rank, 2), 4, batch_end_callback=look)
print("accuracy", accuracy(mod), "steps", kv.step, flush=True)
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")
async def test_a_killed_worker_process_is_restarted_and_resumes(tmp_path):
    program, killed, fifo = (tmp_path / name for name in ("train.py", "killed", "fifo"))
    os.mkfifo(fifo)
    root = str(Path(__file__).parent.parent.parent)
    program.write_text(PROGRAM.format(root=root, killed=str(killed), fifo=str(fifo)))
    lines = []

    def on_line(name, line):
        lines.append((name, line))
        if (name, line) == ("worker 1", "at 1 5"):
            killed.touch()
            launcher._children["worker 1"].signal(signal.SIGKILL)

    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = {**inherited, "FLOWMX_KVSTORE_HEARTBEAT": "0.2"}
    launcher = Launcher(Plan([sys.executable, str(program)], 2, 2, "elastic", environ=environ), on_line)
    assert await launcher.run() == 0, lines
    words = {rank: [line.split() for name, line in lines if name == f"worker {rank}"] for rank in (0, 1)}
    again = words[1][1 + words[1].index(["started"], 1) :]
    assert (1, 5) <= tuple(map(int, again[0][1:])) <= (2, 1), "the second process begins where the job is"
    assert any("worker 1 is restarted" in line for name, line in lines if name == "launch")
    per_epoch = len(list(batches(0, 2)))
    for rank in (0, 1):
        word, reached, _, steps = words[rank][-1]
        assert word == "accuracy"
        assert float(reached) > 0.9
        assert int(steps) == 4 * per_epoch


# -- other kinds of stores ---------------------------------------------------------------------------------


def reached_by(name, params=None, epochs=6, workers=2, **options):
    """Return the accuracy after some epochs, and the statistics of the servers."""

    def work(kv):
        mod = fit(kv, batches(kv.rank, workers), epochs, **(params or {}))
        kv._barrier()
        return accuracy(mod), kv.stats()

    with job(workers, 2) as cluster:
        return cluster.each(work, name, **options)[0]


@functools.cache
def synchronous(learning_rate, momentum=0.0, epochs=6):
    """Return the reference accuracy: that of one process, equal to that of two synchronous workers."""
    params = {"optimizer_params": {"learning_rate": learning_rate, "momentum": momentum}}
    return accuracy(fit(None, batches(batch=2 * BATCH), epochs, **params))


ASYNC = {"optimizer_params": {"learning_rate": 0.05, "momentum": 0.9}}


@pytest.mark.parametrize("bound", [pytest.param(None, marks=pytest.mark.soak), 4])
def test_asynchronous_training_is_within_a_point_of_synchronous(bound):
    options = {} if bound is None else {"max_staleness": bound}
    # Until the accuracy is constant: before that, it depends by two points on which worker was faster.
    expected = synchronous(0.1, 0.9, 10) - 0.01
    for _ in range(3):
        result, stats = reached_by("dist_async", ASYNC, 10, **options)
        assert 0 <= stats["largest_lag"] <= (math.inf if bound is None else bound)
        if result > expected:
            return
    pytest.fail(f"none of 3 runs came within a point of {expected + 0.01}")


COMPRESSIONS = [
    {"type": "2bit", "threshold": 0.5},
    pytest.param({"type": "fp16"}, marks=pytest.mark.soak),
    pytest.param({"type": "bf16"}, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("params", COMPRESSIONS)
def test_compressed_gradients_train_as_well(params):
    # Without momentum: residuals of two bits are applied late, and momentum amplifies that.
    plain = {"optimizer_params": {"learning_rate": 0.3}}

    def work(kv):
        kv.set_gradient_compression(params)
        return accuracy(fit(kv, batches(kv.rank, 2), 6, **plain))

    with job(2, 2) as cluster:
        assert cluster.each(work)[0] > synchronous(0.3) - 0.02


def test_updates_by_workers_are_refused_without_sums():
    def work(kv):
        with pytest.raises(ValueError, match="update_on_kvstore is False, but the workers of a kvstore 'dist_async'"):
            gluon.Trainer(network("mlp").collect_params(), "sgd", kvstore=kv, update_on_kvstore=False)

    with job(1, 1) as cluster:
        cluster.each(work, "dist_async")
