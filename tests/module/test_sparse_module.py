"""Modules with row_sparse parameters: trained as dense ones, with lazy updates, and rows that a store returns."""

import numpy as np
import pytest

import flowmx as mx
from tests.jobs import job

ROWS, BATCH = 30, 8


def regression(stype="row_sparse", data_stype="csr"):
    x = mx.sym.Variable("data", stype=data_stype)
    w = mx.sym.Variable("w", shape=(ROWS, 2), init=mx.init.Normal(0.1), stype=stype)
    return mx.sym.LinearRegressionOutput(mx.sym.dot(x, w), mx.sym.Variable("label"), name="out")


def data(count=32):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, ROWS)) * (rng.random((count, ROWS)) < 0.1)
    x[:, 20:] = 0
    y = x @ rng.standard_normal((ROWS, 2))
    return mx.io.NDArrayIter(mx.nd.array(x).tostype("csr"), {"label": mx.nd.array(y)}, BATCH)


def rows_of(batch):
    return {"w": batch.data[0].indices}


def train(stype, contexts=None, kvstore=None, prepare=True, optimizer="adagrad", epochs=3, data_stype="csr"):
    batches = data()
    module = mx.mod.Module(regression(stype, data_stype), ["data"], ["label"], context=contexts or mx.cpu())
    module.bind(batches.provide_data, batches.provide_label)
    start = np.random.default_rng(1).standard_normal((ROWS, 2))
    module.init_params(arg_params={"w": mx.nd.array(start)})
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1})
    for _ in range(epochs):
        batches.reset()
        for batch in batches:
            if prepare:
                module.prepare(batch, rows_of if kvstore is not None and stype != "default" else None)
            module.forward_backward(batch)
            module.update()
    return module


TWO = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "adam", "rmsprop"])
def test_training_matches_dense_parameters_on_one_device(optimizer):
    with mx.settings.override(storage_fallback_log_verbose=False):  # rmsprop warns
        by_stype = {stype: train(stype, optimizer=optimizer) for stype in ("row_sparse", "default")}
    parameters = {stype: module.get_params()[0]["w"] for stype, module in by_stype.items()}
    assert parameters["row_sparse"].stype == "row_sparse"
    if optimizer != "adam":  # lazy updates do not change the moments of other rows
        np.testing.assert_allclose(
            parameters["row_sparse"].asnumpy(), parameters["default"].asnumpy(), rtol=1e-4, atol=1e-6
        )
    np.testing.assert_allclose(parameters["row_sparse"].asnumpy()[20:], parameters["default"].asnumpy()[20:], rtol=1e-6)


@pytest.mark.parametrize("contexts", [[mx.cpu()], TWO])
def test_a_store_returns_the_rows_of_a_batch(contexts):
    parameters = train("row_sparse", contexts, mx.kv.create("local"))
    on_device = parameters._group.on_devices("w")[0]
    assert len(on_device.indices) < ROWS
    expected = train("default", contexts, mx.kv.create("local")).get_params()[0]["w"]
    np.testing.assert_allclose(parameters.get_params()[0]["w"].asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-6)


def test_devices_sum_gradients_without_an_updating_store():
    with mx.settings.override(update_on_kvstore=False):
        weight = train("row_sparse", TWO, "device", prepare=False).get_params()[0]["w"]
        expected = train("default", TWO, "device").get_params()[0]["w"]
    np.testing.assert_allclose(weight.asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-6)


def test_parameters_are_initialized_saved_and_loaded(tmp_path):
    batches = data()
    module = mx.mod.Module(regression(), ["data"], ["label"])
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params()
    w = module.get_params()[0]["w"]
    assert (w.stype, bool(w.asnumpy().any())) == ("row_sparse", True)
    module.save_checkpoint(str(tmp_path / "net"), 1)
    loaded = mx.mod.Module.load(str(tmp_path / "net"), 1, data_names=["data"], label_names=["label"])
    loaded.bind(batches.provide_data, batches.provide_label, for_training=False)
    np.testing.assert_array_equal(loaded.get_params()[0]["w"].asnumpy(), w.asnumpy())
    outputs = loaded.predict(batches)
    np.testing.assert_allclose(outputs.asnumpy(), module.predict(batches).asnumpy())


@pytest.mark.parametrize("contexts", [[mx.cpu()], TWO])
def test_fit_score_and_predict_pull_the_rows(contexts):
    batches = data()
    module = mx.mod.Module(regression(), ["data"], ["label"], context=contexts)
    module.fit(
        batches, eval_data=batches, eval_metric="mse", kvstore=mx.kv.create("local"), optimizer="adagrad",
        optimizer_params={"learning_rate": 0.5}, num_epoch=20, sparse_row_id_fn=rows_of,
    )  # fmt: skip
    ((_, error),) = module.score(batches, "mse", sparse_row_id_fn=rows_of)
    assert error < 0.3
    module.predict(batches, sparse_row_id_fn=rows_of)


def test_workers_of_a_job_share_a_row_sparse_parameter():
    def work(kv, stype="row_sparse"):
        started = train(stype, kvstore=kv, optimizer="sgd", epochs=1)
        kv._barrier()
        return started.get_params()[0]["w"].asnumpy(), started._group.on_devices("w")[0].stype

    with job(2, 1) as started:
        (first, stype), (second, _) = started.each(work)
    with job(2, 1) as started:
        (dense, _), _ = started.each(lambda kv: work(kv, "default"))
    assert stype == "row_sparse"
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, dense, rtol=1e-5, atol=1e-6)


def test_trainers_of_a_job_share_a_row_sparse_parameter(tmp_path):
    def work(kv):
        params = mx.gluon.ParameterDict()
        weight = params.get("w", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
        params.initialize(init="ones")
        trainer = mx.gluon.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=kv)
        with mx.autograd.record():
            rows = weight.row_sparse_data(mx.nd.array([kv.rank, 2]))
            loss = rows * (kv.rank + 1)
        loss.backward()
        trainer.step(1)
        params.save(str(tmp_path / f"{kv.rank}.params"))
        with pytest.raises(RuntimeError, match="'w' is stored on servers"):
            params.load(str(tmp_path / f"{kv.rank}.params"))
        wrong = mx.gluon.Parameter("v", shape=(4, 2), stype="row_sparse")
        wrong.initialize()
        trainer = mx.gluon.Trainer([wrong], "sgd", kvstore=kv, update_on_kvstore=False)
        with pytest.raises(ValueError, match="update_on_kvstore is False"):
            trainer.step(1, ignore_stale_grad=True)
        return weight.row_sparse_data(mx.nd.arange(4)).asnumpy()

    with job(2, 1) as started:
        first, second = started.each(work)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, mx.nd.load(str(tmp_path / "1.params"))["w"].asnumpy())
    assert first[:, 0].tolist() == [1 - 3] * 4  # the gradient of an output is dense


def test_wrong_rows_are_refused():
    module = train("row_sparse", kvstore=mx.kv.create("local"))
    batch = next(iter(data()))
    with pytest.raises(ValueError, match="'other'"):
        module.prepare(batch, lambda _: {"other": mx.nd.array([1])})
    with pytest.raises(TypeError, match="dict"):
        module.prepare(batch, lambda _: [1])
    module.prepare(batch, lambda _: {"w": mx.nd.array([ROWS])})
    with pytest.raises(IndexError, match="row id 30"):
        module._group.on_devices("w")[0].wait_to_read()
    with pytest.warns(UserWarning, match="need not be called"):
        train("row_sparse").prepare(batch, rows_of)


def test_a_dense_parameter_with_a_sparse_gradient_is_updated_lazily():
    tokens, weight = mx.sym.Variable("data"), mx.sym.Variable("w", shape=(ROWS, 2), init=mx.init.One())
    net = mx.sym.Embedding(tokens, weight, input_dim=ROWS, output_dim=2, sparse_grad=True)
    net = mx.sym.LinearRegressionOutput(mx.sym.sum(net, axis=1), mx.sym.Variable("label"))
    module = mx.mod.Module(net, ["data"], ["label"])
    module.bind([("data", (4, 3))], [("label", (4, 2))])
    module.init_params()
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "wd": 0.5})
    module.forward_backward(mx.io.DataBatch([mx.nd.array([[1, 2, 3]] * 4)], [mx.nd.zeros((4, 2))]))
    module.update()
    changed = (module.get_params()[0]["w"].asnumpy() != 1).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [1, 2, 3]


def test_buckets_share_row_sparse_parameters():
    def graph(length):
        net = mx.sym.contrib.SparseEmbedding(
            mx.sym.Variable("data"),
            mx.sym.Variable("w", stype="row_sparse", init=mx.init.One()),
            input_dim=ROWS,
            output_dim=2,
        )
        net = mx.sym.LinearRegressionOutput(mx.sym.sum(net, axis=1), mx.sym.Variable("label"))
        return net, ["data"], ["label"]

    module = mx.mod.BucketingModule(graph, 5)
    module.bind([("data", (2, 5))], [("label", (2, 2))])
    module.init_params()
    module.init_optimizer(mx.kv.create("local"), "sgd", {"learning_rate": 0.1})
    for length in (5, 3, 5):
        tokens = mx.nd.array(np.arange(2 * length).reshape(2, length) + length)
        batch = mx.io.DataBatch([tokens], [mx.nd.zeros((2, 2))], bucket_key=length,
                                provide_data=[("data", (2, length))], provide_label=[("label", (2, 2))])  # fmt: skip
        module.prepare(batch, lambda batch: {"w": batch.data[0]})
        module.forward_backward(batch)
        module.update()
    changed = (module.get_params()[0]["w"].asnumpy() != 1).any(axis=1)
    assert np.flatnonzero(changed).tolist() == list(range(3, 15))


def test_gluon_has_one_trainer_for_a_sparse_parameter_and_no_sparse_symbol_blocks():
    weight = mx.gluon.Parameter("w", shape=(4, 2), stype="row_sparse")
    weight.initialize()
    mx.gluon.Trainer([weight], "sgd")
    with pytest.raises(RuntimeError, match="already has a Trainer"):
        mx.gluon.Trainer([weight], "sgd")
    with pytest.raises(AssertionError, match="'w' is row_sparse"):
        mx.gluon.SymbolBlock(regression(), mx.sym.var("data"))
    parts = mx.gluon.utils.split_and_load(mx.nd.ones((4, 2)).tostype("csr"), TWO)
    assert [(array.stype, array.context) for array in parts] == [("csr", ctx) for ctx in TWO]
