"""The trainer: updates by an optimizer, over devices; saved and loaded states."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.gluon import nn
from flowmx.settings import SettingError

BOTH = [mx.cpu(0), mx.cpu(1)]


def network(ctx=None, prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(4, activation="tanh", in_units=3), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Constant(0.1), ctx=ctx)
    net.hybridize()
    return net


def batches(count):
    random = np.random.default_rng(5)
    return [(random.normal(size=(4, 3)), random.normal(size=(4, 2))) for _ in range(count)]


def train(net, trainer, batch, ctx):
    data, label = (gluon.utils.split_and_load(part, ctx) for part in batch)
    with mx.autograd.record():
        losses = [gluon.loss.L2Loss()(net(x), y) for x, y in zip(data, label, strict=True)]
    mx.autograd.backward(losses)
    trainer.step(4)


def values(net):
    return [param.list_data()[0].asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("on_kvstore", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_devices_train_like_one(optimizer, on_kvstore):
    nets = network([mx.cpu(0)]), network(BOTH)
    for net in nets:
        ctx, schedule = net[0].weight.list_ctx(), mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        options = {"learning_rate": 0.1, "wd": 0.01, "lr_scheduler": schedule}
        trainer = gluon.Trainer(net.collect_params(), optimizer, options, update_on_kvstore=on_kvstore)
        for batch in batches(3):
            train(net, trainer, batch, ctx)
        assert trainer.optimizer.num_update == 3 and trainer.learning_rate == 0.05
    for one, other in zip(values(nets[0]), values(nets[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for param in nets[1].collect_params().values():
        first, second = param.list_data()
        assert np.array_equal(first.asnumpy(), second.asnumpy())


def test_updates_by_the_formula_with_multipliers():
    weight = gluon.Parameter("w", shape=2, init="ones", lr_mult=2.0, wd_mult=0.5)
    weight.initialize()
    trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.1, "wd": 0.2})
    with mx.autograd.record():
        loss = (weight.data() * mx.nd.array([1, 3])).sum()
    loss.backward()
    trainer.step(2)
    np.testing.assert_allclose(weight.data().asnumpy(), 1 - 0.2 * (np.array([1, 3]) / 2 + 0.1), rtol=1e-6)


def test_gradients_can_be_changed_between_sum_and_update():
    net = network(BOTH)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    before = values(net)
    for ctx in BOTH:
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 3), ctx=ctx)).sum()
        loss.backward()
    trainer.allreduce_grads()
    for ctx in BOTH:
        grads = [param.grad(ctx) for param in net.collect_params().values()]
        norm = gluon.utils.clip_global_norm(grads, 0.5)
        assert norm > 0.5
    trainer.update(1)
    moved = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(before, values(net), strict=True)))
    np.testing.assert_allclose(moved, 0.5, rtol=1e-4)


def test_stale_gradients_are_refused_or_skipped():
    net = network()
    other = gluon.Parameter("other_weight", shape=1, init="ones")
    other.initialize()
    params = [*net.collect_params().values(), other]
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.1, "wd": 1.0})
    batch = batches(1)[0]
    with pytest.raises(UserWarning, match="has reached parameter 'other_weight'"):
        train(net, trainer, batch, [mx.cpu()])
    with pytest.raises(UserWarning, match="has reached parameter 'other_weight'"):
        trainer.step(1)
    other.zero_grad()
    before = values(net)
    trainer.step(1, ignore_stale_grad=True)
    assert other.data().asscalar() == 1
    assert not np.array_equal(before[0], values(net)[0])
    before = values(net)
    trainer.step(1, ignore_stale_grad=True)
    assert np.array_equal(before[0], values(net)[0])


def test_frozen_parameters_do_not_change():
    net = network()
    net[0].weight.grad_req = "null"
    before = values(net)
    train(net, gluon.Trainer(net.collect_params(), "sgd"), batches(1)[0], [mx.cpu()])
    assert [np.array_equal(a, b) for a, b in zip(before, values(net), strict=True)] == [True, False, False, False]


@pytest.mark.parametrize("ctx", [[mx.cpu(0)], BOTH])
def test_resumes_from_saved_states(tmp_path, ctx):
    first, *rest = batches(3)
    net = network(ctx)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    train(net, trainer, first, ctx)
    trainer.save_states(tmp_path / "states")
    net.save_parameters(tmp_path / "net.params")
    second = network(ctx)
    second.load_parameters(tmp_path / "net.params")
    resumed = gluon.Trainer(second.collect_params(), "sgd")
    resumed.load_states(tmp_path / "states")
    assert resumed.learning_rate == 0.1
    for batch in rest:
        train(net, trainer, batch, ctx)
        train(second, resumed, batch, ctx)
    for one, other in zip(values(net), values(second), strict=True):
        assert np.array_equal(one, other)


def test_the_learning_rate_can_be_set():
    trainer = gluon.Trainer(network().collect_params(), "sgd", {"learning_rate": 0.5})
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == trainer.optimizer.learning_rate == 0.25


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda: (3, "sgd"), TypeError, "params is int"),
        (lambda: ([3], "sgd"), TypeError, "params holds int, expected Parameters: pass net"),
        (lambda: (network().collect_params(), "wrong"), ValueError, "unknown optimizer 'wrong'"),
        (
            lambda: (network().collect_params(), mx.optimizer.SGD(), {"wd": 1}),
            ValueError,
            "optimizer_params are not allowed",
        ),
        (lambda: (network().collect_params(), "sgd", None, "dist_sync"), SettingError, "belongs to no job"),
        (lambda: ([gluon.Parameter("lost")], "sgd"), RuntimeError, "'lost' is not initialized"),
    ],
)
def test_refuses_arguments(arguments, error, message):
    args = arguments()
    with pytest.raises(error, match=message):
        gluon.Trainer(*args)


def test_refuses_parameters_on_different_devices():
    params = [*network(prefix="a_").collect_params().values(), *network(BOTH, "b_").collect_params().values()]
    with pytest.raises(ValueError, match="expected the same devices for all"):
        gluon.Trainer(params, "sgd")


def test_refuses_parameters_with_deferred_initialization():
    net = nn.Dense(2, use_bias=False)
    net.initialize()
    with pytest.raises(gluon.DeferredInitializationError):
        gluon.Trainer(net.collect_params(), "sgd").step(1)


# -- batches -----------------------------------------------------------------------------------------------


def test_splits_batches_over_devices():
    parts = gluon.utils.split_and_load(np.arange(10).reshape(5, 2), BOTH, even_split=False)
    assert [part.context for part in parts] == BOTH
    assert [part.shape for part in parts] == [(3, 2), (2, 2)]
    (single,) = gluon.utils.split_and_load(np.arange(3), [mx.cpu(1)])
    assert single.context is mx.cpu(1)
    columns = gluon.utils.split_data(mx.nd.ones((2, 6)), 3, batch_axis=1)
    assert [part.shape for part in columns] == [(2, 2)] * 3


@pytest.mark.parametrize(("slices", "even"), [(2, True), (6, False)])
def test_refuses_to_split(slices, even):
    with pytest.raises(ValueError, match="cannot be split into"):
        gluon.utils.split_data(mx.nd.ones((5, 2)), slices, even_split=even)


def test_clips_norms():
    arrays = [mx.nd.array([3]), mx.nd.array([4])]
    assert gluon.utils.clip_global_norm(arrays, 1) == 5
    np.testing.assert_allclose([array.asscalar() for array in arrays], [0.6, 0.8], rtol=1e-6)
    assert gluon.utils.clip_global_norm(arrays, 7, check_isfinite=False).shape == (1,)
    np.testing.assert_allclose(arrays[0].asscalar(), 0.6, rtol=1e-6)
    with pytest.warns(UserWarning, match="the norm is nan"):
        gluon.utils.clip_global_norm([mx.nd.array([np.nan])], 1)
    with pytest.raises(ValueError, match="arrays is empty"):
        gluon.utils.clip_global_norm([], 1)


@pytest.mark.parametrize("kvstore", [None, "device"])
def test_subclasses_may_replace_sums_and_updates(kvstore):
    """Steps call ``_allreduce_grads`` and ``_update``, which distributed trainers replace."""
    calls = []

    class Custom(gluon.Trainer):
        def _allreduce_grads(self):
            calls.append("sum")
            for param in self._params:
                for grad in param.list_grad():
                    grad *= 10

        def _update(self, ignore_stale_grad=False):
            calls.append(("update", ignore_stale_grad))
            super()._update(ignore_stale_grad)

    net = gluon.nn.Dense(1, use_bias=False, in_units=1)
    net.initialize(mx.init.One())
    trainer = Custom(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore, update_on_kvstore=False)
    for step in (lambda: trainer.step(1), lambda: (trainer.allreduce_grads(), trainer.update(1, True))):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1))).sum()
        loss.backward()
        step()
    assert calls == ["sum", ("update", False), "sum", ("update", True)]
    np.testing.assert_allclose(net.weight.data().asnumpy(), [[-1.0]], rtol=1e-6)


def test_gradients_of_a_failed_step_are_not_used_twice():
    class Failing(gluon.Trainer):
        def _allreduce_grads(self):
            raise ConnectionError("a peer is gone")

    net = gluon.nn.Dense(1, use_bias=False, in_units=1)
    net.initialize(mx.init.One())
    trainer = Failing(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 1))).sum()
    loss.backward()
    with pytest.raises(ConnectionError, match="a peer is gone"):
        trainer.step(1)
    trainer._update()
    with pytest.raises(UserWarning, match="no backward pass has reached"):
        trainer._update()  # the gradients are already used
    np.testing.assert_allclose(net.weight.data().asnumpy(), [[0.9]], rtol=1e-6)
