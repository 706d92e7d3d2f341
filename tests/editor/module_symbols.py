"""Symbols, executors and modules, as in programs for MXNet's older interface."""

import tempfile

import numpy as np

import flowmx as mx
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol


def network() -> Symbol:
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="hidden"), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="output"), name="softmax")


def symbols() -> None:
    net = network()
    arguments, outputs, auxiliary = net.infer_shape(data=(4, 5))
    assert arguments is not None and arguments[0] == (4, 5) and outputs == [(4, 3)] and auxiliary == []
    names = net.list_arguments()
    inner = net.get_internals()
    hidden = inner["hidden_output"]
    group = mx.sym.Group([hidden, mx.sym.BlockGrad(net)])
    assert len(group) == 2 and names[0] == "data" and group[0].name == "hidden"
    text = net.tojson()
    again = mx.sym.load_json(text)
    assert again.list_outputs() == ["softmax_output"] and again.attr("name") is None
    assert net.attr_dict()["hidden"]["num_hidden"] == "8"
    parts = mx.sym.split(mx.sym.var("x"), num_outputs=2)
    left, right = parts[0], parts[1]
    total = (left + 2 * right) ** 2 / 3
    assert total.list_arguments() == ["x"] and total.infer_type(x="float32") is not None
    root = mx.sym.linalg.potrf(mx.sym.var("a"))
    noise = mx.sym.random.uniform(shape=(2, 2)) + mx.sym.random.normal_like(root)
    looped, states = mx.sym.contrib.foreach(lambda x, s: (x + s, x + s), mx.sym.var("x"), mx.sym.var("s"))
    assert len(noise.list_arguments()) == 1 and looped.list_outputs() and states.list_outputs()
    for output in group:
        assert output.name


def executors() -> NDArray:
    executor = network().simple_bind(mx.cpu(), data=(4, 5))
    executor.arg_dict["hidden_weight"][:] = 0.1
    outputs = executor.forward(is_train=True, data=mx.nd.ones((4, 5)))
    executor.backward()
    gradient = executor.grad_dict["hidden_weight"]
    assert gradient is not None and gradient.shape == (8, 5) and executor.outputs[0].shape == (4, 3)
    evaluated = (mx.sym.var("a") * 2).eval(ctx=mx.cpu(), a=mx.nd.ones((2,)))
    assert evaluated[0].sum().item() == 4.0
    return outputs[0]


def modules(folder: str) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 5)).astype("float32")
    labels = (rows[:, 0] > 0).astype("float32")
    train = mx.io.NDArrayIter(rows, labels, batch_size=4, shuffle=True)
    mod = mx.mod.Module(network(), context=mx.cpu())
    mod.fit(
        train, num_epoch=2, optimizer_params={"learning_rate": 0.1}, batch_end_callback=mx.callback.Speedometer(4, 1)
    )
    name, value = mod.score(train, "acc")[0]
    predicted = mod.predict(train)
    assert name == "accuracy" and 0 <= value <= 1 and predicted.shape == (12, 3)
    train.reset()
    for batch in train:
        mod.forward(batch, is_train=True)
        mod.backward()
        mod.update()
        outputs = mod.get_outputs()
        assert outputs[0].shape == (4, 3) and batch.data and batch.data[0].shape == (4, 5) and batch.pad == 0
    arguments, auxiliary = mod.get_params()
    assert arguments["hidden_weight"].shape == (8, 5) and not auxiliary
    mod.save_checkpoint(f"{folder}/model", 1)
    symbol, weights, states = mx.model.load_checkpoint(f"{folder}/model", 1)
    assert symbol.list_outputs() == ["softmax_output"] and len(weights) == 4 and not states
    other = mx.mod.Module.load(f"{folder}/model", 1)
    other.bind(data_shapes=train.provide_data, label_shapes=train.provide_label, for_training=False)
    assert other.binded and other.data_names == ["data"]
    metric = mx.metric.Accuracy()
    mod.update_metric(metric, [mx.nd.array(labels[:4])])
    assert metric.get()[0] == "accuracy"
    block = mx.gluon.SymbolBlock.imports(
        f"{folder}/model-symbol.json", ["data", "softmax_label"], f"{folder}/model-0001.params"
    )
    scores = block(mx.nd.ones((1, 5)), mx.nd.zeros((1,)))
    assert scores.shape == (1, 3)


def operators() -> None:
    x = mx.nd.array([[3.0, 1.0, 2.0]])
    order, best = x.argsort(), x.topk(k=2, ret_typ="both")
    values, places = best
    parts = mx.nd.split(x, num_outputs=3, axis=1)
    assert order.shape == (*values.shape[:1], 3) and places.shape == (1, 2) and parts[2].item() == 2.0
    a, b = mx.nd.contrib.foreach(lambda row, total: (row + total, row + total), mx.nd.ones((3, 2)), mx.nd.zeros((2,)))
    assert a.shape == (3, 2) and b.sum().item() == 6.0
    chosen = mx.nd.contrib.cond(x.sum() > 3, lambda: x * 2, lambda: x)
    mean, variance = mx.nd.moments(chosen, axes=(0, 1))
    product = mx.nd.linalg.gemm2(x, x, transpose_b=True)
    drawn = mx.nd.random.multinomial(mx.nd.array([0.5, 0.5]), shape=3)
    assert mean.item() == 4.0 and variance.item() > 0 and product.item() == 14.0 and drawn.shape == (3,)
    sparse = mx.nd.sparse.csr_matrix(([1.0, 2.0], [0, 1], [0, 1, 2]), shape=(2, 3))
    dense = sparse.tostype("default")
    rows = mx.nd.ones((3, 2)).tostype("row_sparse")
    assert mx.nd.sparse.dot(sparse, dense.T).shape == (2, 2) and rows.stype == "row_sparse"


symbols()
assert executors().shape == (4, 3)
with tempfile.TemporaryDirectory() as folder:
    modules(folder)
operators()
