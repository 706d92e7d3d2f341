"""Stochastic variance reduced gradients: the updates, by hand; training to the end; bad arguments."""

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


def module(**given):
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    return SVRGModule(mx.sym.LinearRegressionOutput(dense, mx.sym.var("y")), label_names=["y"], **given)


def ready(store="local", **given):
    made = module(update_freq=1, **given)
    made.bind(data().provide_data, data().provide_label)
    made.init_params(mx.init.One())
    made.init_optimizer(store, optimizer_params={"learning_rate": 0.5})
    return made


def gradient(weight, x, y):
    return (x @ weight.T - y).T @ x


@pytest.mark.parametrize("devices", [1, 2])
def test_an_update_takes_the_batch_s_gradient_less_that_at_the_kept_weights_plus_the_average(devices):
    made = ready(context=[mx.cpu(i) for i in range(devices)])
    made.update_full_grads(data())
    kept = weight = np.ones((1, 2))
    average = gradient(kept, X, Y) / 4
    for start, batch in zip(range(0, 20, 5), data(), strict=True):
        made.forward_backward(batch)
        made.update()
        x, y = X[start : start + 5], Y[start : start + 5]
        weight = weight - 0.5 / 5 * (gradient(weight, x, y) - gradient(kept, x, y) + average)
    np.testing.assert_allclose(made.get_params()[0]["fc_weight"].asnumpy(), weight, rtol=1e-4)


def test_a_batch_that_is_not_full_counts_for_its_part():
    made = ready()
    part = mx.io.NDArrayIter(X[:8], Y[:8], batch_size=5, label_name="y")
    padded_x, padded_y = np.concatenate([X[:8], X[:2]]), np.concatenate([Y[:8], Y[:2]])
    made.update_full_grads(part)
    expected = gradient(np.ones((1, 2)), padded_x, padded_y) / (2 - 2 / 5)
    np.testing.assert_allclose(made._param_dict[0]["fc_weight"].asnumpy(), expected, rtol=1e-4)


async def test_fit_finds_the_weights():
    made = module(update_freq=2)
    await made.fit(data(), num_epoch=40, eval_metric="mse", optimizer_params={"learning_rate": 0.3})
    np.testing.assert_allclose((await made.get_params()[0]["fc_weight"]).asnumpy(), [[1, 2]], atol=1e-2)


@pytest.mark.parametrize(("given", "error"), [(None, TypeError), ("2", TypeError), (True, TypeError), (0, ValueError)])
def test_update_freq_is_a_number_of_epochs(given, error):
    with pytest.raises(error, match="update_freq"):
        module(update_freq=given)


def test_data_without_a_batch():
    empty = type("Empty", (mx.io.DataIter,), {"next": lambda self: next(iter(()))})
    with pytest.raises(ValueError, match="no batch"):
        ready().update_full_grads(empty())


def test_a_store_may_keep_full_gradients_beside_weights():
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
    made = ready()
    assert type(made._optimizer).__name__ == "_SVRGOptimizer"
    assert made._optimizer.default_opt.lr == 0.5


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_workers_average_full_gradients_over_all_data(momentum):
    """Two workers, each with half of every batch, train as one with all of it does."""
    whole_x, whole_y = X[:16], Y[:16]

    def fit(store, rows, batch):
        mx.random.seed(0)
        made = module(update_freq=2)
        data = mx.io.NDArrayIter(whole_x[rows], whole_y[rows], batch_size=batch, label_name="y")
        made.fit(
            data, num_epoch=5, kvstore=store, eval_metric="mse", initializer=mx.init.One(),
            optimizer_params={"learning_rate": 0.2, "momentum": momentum},
        )  # fmt: skip
        return made.get_params()[0]["fc_weight"].asnumpy()

    expected = fit(None, slice(None), 8)
    with job(2, 2) as running:
        halves = np.arange(16).reshape(4, 4)
        found = running.each(lambda kv: fit(kv, halves[kv.rank :: 2].ravel(), 4), "dist_sync")
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-4)


def test_full_gradients_are_sums_over_workers_that_wait_for_each_other():
    with job(1, 1) as running, pytest.raises(NotImplementedError, match="'dist_async' does not make: use 'dist_sync'"):
        running.each(lambda kv: ready(store=kv), "dist_async")
