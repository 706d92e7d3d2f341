"""Stochastic variance reduced gradients: updates, complete training, invalid arguments."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib.svrg_optimization import svrg_optimizer
from flowmx.contrib.svrg_optimization.svrg_module import SVRGModule
from tests.jobs import job

X = np.random.RandomState(0).uniform(-1, 1, (20, 2)).astype("float32")
Y = (X @ [[1.0], [2.0]]).astype("float32")


def data():
    return mx.io.NDArrayIter(X, Y, batch_size=5, label_name="y")


def module(**arguments):
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    return SVRGModule(mx.sym.LinearRegressionOutput(dense, mx.sym.var("y")), label_names=["y"], **arguments)


def prepare(store="local", **arguments):
    mod = module(update_freq=1, **arguments)
    mod.bind(data().provide_data, data().provide_label)
    mod.init_params(mx.init.One())
    mod.init_optimizer(store, optimizer_params={"learning_rate": 0.5})
    return mod


def gradient(weight, x, y):
    return (x @ weight.T - y).T @ x


@pytest.mark.parametrize("devices", [1, 2])
def test_an_update_uses_the_difference_of_gradients_plus_the_average(devices):
    mod = prepare(context=[mx.cpu(i) for i in range(devices)])
    mod.update_full_grads(data())
    snapshot = weight = np.ones((1, 2))
    average = gradient(snapshot, X, Y) / 4
    for start, batch in zip(range(0, 20, 5), data(), strict=True):
        mod.forward_backward(batch)
        mod.update()
        x, y = X[start : start + 5], Y[start : start + 5]
        weight = weight - 0.5 / 5 * (gradient(weight, x, y) - gradient(snapshot, x, y) + average)
    np.testing.assert_allclose(mod.get_params()[0]["fc_weight"].asnumpy(), weight, rtol=1e-4)


def test_a_partial_batch_counts_in_proportion():
    mod = prepare()
    part = mx.io.NDArrayIter(X[:8], Y[:8], batch_size=5, label_name="y")
    padded_x, padded_y = np.concatenate([X[:8], X[:2]]), np.concatenate([Y[:8], Y[:2]])
    mod.update_full_grads(part)
    expected = gradient(np.ones((1, 2)), padded_x, padded_y) / (2 - 2 / 5)
    np.testing.assert_allclose(mod._param_dict[0]["fc_weight"].asnumpy(), expected, rtol=1e-4)


async def test_fit_converges():
    mod = module(update_freq=2)
    await mod.fit(data(), num_epoch=40, eval_metric="mse", optimizer_params={"learning_rate": 0.3})
    np.testing.assert_allclose((await mod.get_params()[0]["fc_weight"]).asnumpy(), [[1, 2]], atol=1e-2)


@pytest.mark.parametrize(
    ("frequency", "error"), [(None, TypeError), ("2", TypeError), (True, TypeError), (0, ValueError)]
)
def test_update_freq_is_a_number_of_epochs(frequency, error):
    with pytest.raises(error, match="update_freq"):
        module(update_freq=frequency)


def test_data_without_a_batch():
    empty = type("Empty", (mx.io.DataIter,), {"next": lambda self: next(iter(()))})
    with pytest.raises(ValueError, match="no batch"):
        prepare().update_full_grads(empty())


def test_a_store_can_store_full_gradients_and_weights():
    names = {0: "weight", 1: "weight_full"}
    optimizer = svrg_optimizer._SVRGOptimizer("sgd", param_idx2name=names, learning_rate=1.0, momentum=0.5)
    kv = mx.kv.create("local")
    kv.set_optimizer(optimizer)
    kv.init([0, 1], [mx.nd.zeros((3,)), mx.nd.ones((3,))])
    out = [mx.nd.empty((3,)), mx.nd.empty((3,))]
    for _ in range(2):
        kv.push([0, 1], [mx.nd.ones((3,)), mx.nd.full((3,), 2)])
        kv.pull([0, 1], out)
    assert out[0].asnumpy().tolist() == [-2.5] * 3  # -1, then momentum: -1.5
    assert out[1].asnumpy().tolist() == [2] * 3
    assert optimizer.default_opt.lr == 1


def test_the_optimizer_is_that_of_a_store_with_full_gradients():
    mod = prepare()
    assert type(mod._optimizer).__name__ == "_SVRGOptimizer"
    assert mod._optimizer.default_opt.lr == 0.5


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_workers_average_full_gradients_over_all_data(momentum):
    """Two workers, each with half of every batch, train like one with the whole batch."""
    whole_x, whole_y = X[:16], Y[:16]

    def fit(store, rows, batch):
        mx.random.seed(0)
        mod = module(update_freq=2)
        data = mx.io.NDArrayIter(whole_x[rows], whole_y[rows], batch_size=batch, label_name="y")
        mod.fit(
            data, num_epoch=5, kvstore=store, eval_metric="mse", initializer=mx.init.One(),
            optimizer_params={"learning_rate": 0.2, "momentum": momentum},
        )  # fmt: skip
        return mod.get_params()[0]["fc_weight"].asnumpy()

    expected = fit(None, slice(None), 8)
    with job(2, 2) as running:
        halves = np.arange(16).reshape(4, 4)
        weights = running.each(lambda kv: fit(kv, halves[kv.rank :: 2].ravel(), 4), "dist_sync")
    for weight in weights:
        np.testing.assert_allclose(weight, expected, rtol=1e-4)


def test_full_gradients_need_a_synchronous_store():
    with job(1, 1) as running, pytest.raises(NotImplementedError, match="'dist_async' does not compute: use"):
        running.each(lambda kv: prepare(store=kv), "dist_async")
