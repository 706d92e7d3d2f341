"""``BatchNorm(fix_gamma=True)`` sets gamma to 1 where MXNet 1.9.1 does, in every mode of execution."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, nd

X = np.arange(16.0).reshape(2, 2, 2, 2)
OPERATORS = {
    "BatchNorm": nd.BatchNorm,
    "BatchNorm_v1": nd.BatchNorm_v1,
    "with a ReLU": nd.contrib.BatchNormWithReLU,
    "over devices": lambda *arrays, **params: nd.contrib.SyncBatchNorm(*arrays, key="layer", **params),  # type: ignore[misc]
}
HYBRIDIZED = [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]


def given(dtype="float32"):
    return [nd.array(each, dtype=dtype) for each in ([3, 5], [0, 1], [0, 0], [1, 1])]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("mode", ["predict", "train", "global"])
def test_imperative_calls(name, mode):
    gamma, *others = given()
    before = gamma.copy()
    gamma.attach_grad()
    if mode == "predict":
        OPERATORS[name](nd.array(X), gamma, *others, fix_gamma=True)
    else:
        with autograd.record():
            outputs = OPERATORS[name](nd.array(X), gamma, *others, fix_gamma=True, use_global_stats=mode == "global")
        outputs.backward()
        assert gamma.grad.asnumpy().tolist() == [0, 0]
    assert gamma.asnumpy().tolist() == [1, 1]
    assert before.asnumpy().tolist() == [3, 5]  # a copy requested before the call has the value before it


def test_a_learned_gamma_stays():
    gamma, *others = given()
    nd.BatchNorm(nd.array(X), gamma, *others, fix_gamma=False)
    assert gamma.asnumpy().tolist() == [3, 5]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype):
    gamma, *others = given(dtype)
    nd.BatchNorm(nd.array(X, dtype=dtype), gamma, *others)
    assert gamma.asnumpy().tolist() == [1, 1]


def test_a_view_of_a_larger_array():
    whole = nd.array([3, 5, 7])
    _, *others = given()
    for _ in range(2):
        nd.BatchNorm(nd.array(X), whole[:2], *others)
        assert whole.asnumpy().tolist() == [1, 1, 7]
        whole[:] = nd.array([3, 5, 7])


def test_a_gamma_of_1_is_not_overwritten():
    gamma, *others = given()
    nd.BatchNorm(nd.array(X), gamma, *others)
    version = gamma.variable.version
    nd.BatchNorm(nd.array(X), gamma, *others)
    assert gamma.variable.version == version
    gamma[:] = 4
    nd.BatchNorm(nd.array(X), gamma, *others)
    assert gamma.asnumpy().tolist() == [1, 1]


def test_earlier_recorded_reads_use_gamma_1_as_in_mxnet():
    gamma, *others = given()
    gamma.attach_grad()
    with autograd.record():
        penalty = (gamma * gamma).sum()
        loss = nd.BatchNorm(nd.array(X), gamma, *others).sum() + penalty
    loss.backward()
    assert gamma.grad.asnumpy().tolist() == [2, 2]
    with autograd.record():
        penalty = (gamma * gamma).sum()
    gamma[:] = 2
    with pytest.raises(mx.errors.AutogradError, match="changed in place"):
        penalty.backward()


@pytest.mark.parametrize("ways", [None, *HYBRIDIZED], ids=str)
def test_layers(ways):
    for trains in (False, True):
        layer = mx.gluon.nn.BatchNorm(scale=False, in_channels=2, gamma_initializer="zeros")
        layer.initialize()
        if ways is not None:
            layer.hybridize(**ways)
        if trains:
            with autograd.record():
                layer(nd.array(X))
        else:
            layer(nd.array(X)).wait_to_read()
        unchanged = ways is not None and not trains  # MXNet's cached graphs leave it alone in prediction
        assert layer.gamma.data().asnumpy().tolist() == ([0, 0] if unchanged else [1, 1])


@pytest.mark.parametrize("trains", [False, True])
def test_executors(trains):
    symbol = mx.sym.BatchNorm(mx.sym.var("data"), name="bn")
    executor = symbol.simple_bind(mx.cpu(), data=X.shape)
    executor.arg_dict["bn_gamma"][:] = 3
    executor.forward(is_train=trains)
    assert executor.arg_dict["bn_gamma"].asnumpy().tolist() == [1, 1]
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=X.shape)
    executor.arg_dict["bn_gamma"][:] = 3
    executor.forward(is_train=trains)
    assert executor.arg_dict["bn_gamma"].asnumpy().tolist() == ([1, 1] if trains else [3, 3])


def test_explain_reports_fixed_gammas():
    executor = mx.sym.BatchNorm(mx.sym.var("data"), name="bn").simple_bind(mx.cpu(), data=X.shape)
    assert "Set to 1 before a pass (fix_gamma): bn_gamma" in executor._mode(True).plan.explain()


def test_a_computed_gamma_and_its_other_readers():
    gamma = mx.sym.var("g") * 2
    symbol = mx.sym.Group([mx.sym.BatchNorm(mx.sym.var("data"), gamma, name="bn"), gamma + 1])
    executor = symbol.simple_bind(mx.cpu(), data=X.shape, g=(2,))
    executor.arg_dict["g"][:] = 3
    executor.forward(is_train=True)
    assert executor.arg_dict["g"].asnumpy().tolist() == [3, 3]
    assert executor.outputs[1].asnumpy().tolist() == [7, 7]


def network():
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc1")
    layer = mx.sym.FullyConnected(mx.sym.BatchNorm(layer, name="bn"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


@pytest.mark.parametrize("devices", [[mx.cpu()], [mx.cpu(0), mx.cpu(1)]], ids=["one device", "two devices"])
@pytest.mark.parametrize("kvstore", [None, "local"])
def test_weight_decay_does_not_shrink_it(devices, kvstore, tmp_path):
    module = mx.mod.Module(network(), context=devices)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params(mx.init.One())
    options = {"learning_rate": 0.1, "wd": 0.01}
    module.init_optimizer(kvstore=kvstore, optimizer="sgd", optimizer_params=options)
    batch = mx.io.DataBatch([nd.array(np.arange(12).reshape(4, 3))], [nd.array([0, 1, 2, 0])])
    for _ in range(20):
        module.forward_backward(batch)
        module.update()
    at_once = module.get_params()[0]["bn_gamma"].asnumpy()
    if len(devices) == 1:  # one step of decay since the last forward pass, as in MXNet
        np.testing.assert_allclose(at_once, 0.999, rtol=1e-6)
    module.forward(batch, is_train=True)
    module.save_checkpoint(str(tmp_path / "net"), 1)
    for executor in module._exec_group.execs:
        assert executor.arg_dict["bn_gamma"].asnumpy().tolist() == [1, 1]


def test_a_module_for_prediction_leaves_it_alone():
    module = mx.mod.Module(network(), label_names=["softmax_label"])
    module.bind([("data", (4, 3))], [("softmax_label", (4,))], for_training=False)
    module.init_params(mx.init.One())
    parameters, states = module.get_params()
    parameters["bn_gamma"][:] = 3
    module.set_params(parameters, states)
    module.forward(mx.io.DataBatch([nd.ones((4, 3))], [nd.zeros(4)]))
    assert module.get_params()[0]["bn_gamma"].asnumpy().tolist() == [3, 3]


class Looping(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = mx.gluon.nn.BatchNorm(scale=False, in_channels=2, gamma_initializer="zeros")

    def hybrid_forward(self, F, x):
        return F.contrib.foreach(lambda each, states: (self.norm(each), states), x, [])[0]


@pytest.mark.parametrize("ways", [None, *HYBRIDIZED[::2]], ids=str)
def test_loops(ways):
    net = Looping()
    net.initialize()
    if ways is not None:
        net.hybridize(**ways)
    with autograd.record():
        output = net(nd.array(X[None]))
    output.backward()
    assert net.norm.gamma.data().asnumpy().tolist() == [1, 1]


def test_npx():
    gamma = mx.np.array([3.0, 5.0])
    mx.npx.batch_norm(mx.np.ones((2, 2)), gamma, mx.np.zeros(2), mx.np.zeros(2), mx.np.ones(2), fix_gamma=True)
    assert gamma.asnumpy().tolist() == [1, 1]
