"""Repeated updates of weights are one native call, bit-identical to updates one by one."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, nd, settings
from flowmx.gluon import nn
from flowmx.ops.kernels.llvm import native_run
from flowmx.optimizer import grouped_updates, native_updates
from flowmx.optimizer.fused_optimizer import FusedOptimizer
from tests.native_runs import eager_native_runs

pytestmark = pytest.mark.skipif(not native_run.prepare(), reason="native runs are not possible here")


@pytest.fixture(autouse=True)
def eagerly():
    with eager_native_runs():
        yield


@pytest.fixture
def runs(monkeypatch):
    """The results of native calls: whether each updated all weights."""
    results = []

    class Observed(native_updates.NativeUpdates):
        def run(self, *arguments):
            results.append(super().run(*arguments) and self._native is not None)
            return results[-1] or bool(self._updates and self._native is None)

    monkeypatch.setattr(grouped_updates, "NativeUpdates", Observed)
    return results


class Training:
    """A small network with its trainer."""

    def __init__(self, optimizer, **options):
        mx.random.seed(2)
        self.net = nn.Sequential()
        self.net.add(nn.Dense(5, in_units=4), nn.Dense(300, in_units=5), nn.Dense(1, in_units=300))
        self.net.initialize(mx.init.Xavier())
        self.params = self.net.collect_params()
        options = {"learning_rate": 0.05, **options} if isinstance(optimizer, str) else {}
        self.trainer = mx.gluon.Trainer(self.params, optimizer, options)
        self.x = nd.array(np.random.default_rng(1).standard_normal((3, 4)))

    def step(self, batch=1):
        with autograd.record():
            loss = (self.net(self.x) - 1).square().mean()
        loss.backward()
        self.trainer.step(batch)

    def values(self):
        return [each.data().asnumpy() for each in self.params.values()]


def trained(optimizer, change=None, **options):
    training = Training(optimizer, **options)
    for number in range(8):
        if number == 4 and change is not None:
            change(training)
        training.step()
    return training.values()


def assert_same(change, optimizer, **options):
    results = trained(optimizer, change, **options)
    with settings.override(native_runs=False):
        for one, other in zip(results, trained(optimizer, change, **options), strict=True):
            np.testing.assert_array_equal(one, other)


OPTIMIZERS = {
    "sgd": {}, "sgd with momentum": {"momentum": 0.9, "wd": 0.01}, "nag": {"momentum": 0.9}, "adam": {"wd": 0.01},
    "adamw": {}, "rmsprop": {"centered": True}, "ftrl": {}, "signum": {}, "adagrad": {}, "lamb": {}, "lars": {},
    "nadam": {}, "dcasgd": {}, "adamax": {},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_give_the_same_bits(name):
    assert_same(None, name.partition(" ")[0], **OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["sgd", "sgd with momentum", "nag", "adam"])
def test_updates_are_native(name, runs):
    trained(name.partition(" ")[0], **OPTIMIZERS[name])
    assert runs[1:] == [True] * len(runs[1:]) and len(runs) > 5


CHANGES = {
    "the learning rate": lambda training: training.trainer.set_learning_rate(0.02),
    "factors of rates": lambda training: setattr(next(iter(training.params.values())), "lr_mult", 0.1),
    "decay": lambda training: setattr(training.trainer.optimizer, "wd", 0.1),
    "clipping": lambda training: setattr(training.trainer.optimizer, "clip_gradient", 0.01),
    "a weight": lambda training: next(iter(training.params.values())).set_data(nd.ones((5, 4))),
    "a frozen weight": lambda training: setattr(next(iter(training.params.values())), "grad_req", "null"),
    "gradients that are added": lambda training: training.params.setattr("grad_req", "add"),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_take_effect(change, optimizer, runs):
    assert_same(CHANGES[change], optimizer)
    assert any(runs)


def test_the_batch_size_may_change():
    def trained():
        training = Training("adam")
        for batch in (1, 1, 1, 4, 4, 2, 1):
            training.step(batch)
        return training.values()

    results = trained()
    with settings.override(native_runs=False):
        for one, other in zip(results, trained(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_gradient_that_others_hold_keeps_its_memory():
    training = Training("sgd")
    for _ in range(4):
        training.step()
    weight = next(iter(training.params.values()))
    held = weight.grad().asnumpy()
    copy = held.copy()
    for _ in range(3):
        training.step()
    np.testing.assert_array_equal(held, copy)


def test_an_optimizer_with_another_call_computes_its_parameters():
    class ByIndex(mx.optimizer.SGD):
        def call(self, index, state, lr, wd, t):
            return super().call(index, state, lr * (index + 1), wd, t)

    def changes(optimizer):
        training = Training(optimizer)
        before = [each.data().asnumpy() for each in training.trainer._params]
        training.step()
        return [one - each.data().asnumpy() for one, each in zip(before, training.trainer._params, strict=True)]

    by_index, plain = changes(ByIndex(learning_rate=0.05)), changes("sgd")
    for number, (one, other) in enumerate(zip(by_index, plain, strict=True), 1):
        np.testing.assert_allclose(one, number * other, 1e-2, 1e-6)


def test_weights_that_failed_are_not_updated():
    training = Training("sgd")
    for _ in range(4):
        training.step()
    weight = next(iter(training.params.values()))

    def fails():
        raise ValueError("late")

    mx.engine.push(fails, reads=[], writes=[weight.grad()])
    training.trainer.step(1, ignore_stale_grad=True)
    with pytest.raises(ValueError, match="late"):
        weight.data().asnumpy()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", mx.optimizer.SGD(momentum=0.9)])
def test_a_repeated_step_is_checked_once(optimizer, monkeypatch):
    pushes = []
    real = FusedOptimizer._push_each
    monkeypatch.setattr(FusedOptimizer, "_push_each", lambda self, *rest: (pushes.append(1), real(self, *rest)))
    training = Training(optimizer)
    for batch in (1, 1, 2, 3):
        training.step(batch)
    assert len(pushes) == 1
    training.trainer.set_learning_rate(0.01)
    training.step()
    assert len(pushes) == 1
    next(iter(training.params.values())).lr_mult = 2
    training.step()
    assert len(pushes) == 2  # the rates differ
    for param in training.params.values():
        param.lr_mult = 1
    training.step()
    training.step()
    assert len(pushes) == 3


def test_a_new_gradient_or_weight_is_used():
    training = Training("sgd")
    for _ in range(3):
        training.step()
    param = next(iter(training.params.values()))
    before = param.data().asnumpy()
    param.set_data(nd.zeros(before.shape))
    param.grad_req = "null"
    param.grad_req = "write"  # makes another gradient
    training.step()
    grad = param.grad().asnumpy()
    assert np.any(grad)
    np.testing.assert_array_equal(param.data().asnumpy(), np.float32(-0.05) * grad)
