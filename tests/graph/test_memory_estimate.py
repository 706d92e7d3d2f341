"""symbol.memory_estimate() equals the memory of the bound symbol."""

import numpy as np
import pytest

import flowmx as mx
from benchmarks.workers import networks
from flowmx.errors import ShapeError
from flowmx.graph.reports.occupancy import Occupancy
from flowmx.optimizer.footprint import Footprint
from tests.fixtures import record_visualization as small


def image_network(name):
    return lambda: networks.symbol(mx, networks.NETWORKS[name])


def language_model():
    net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=50, output_dim=8)
    net = mx.sym.RNN(net, state_size=16, num_layers=2, mode="lstm", state_outputs=True)
    net = mx.sym.FullyConnected(net[0], num_hidden=50, flatten=False)
    return mx.sym.Group([mx.sym.BlockGrad(net), mx.sym.mean(net * net)])


IMAGE = {"data": (2, 3, 224, 224)}
CASES = {
    "perceptron": (lambda: small.perceptron(mx), {"data": (4, 784)}),
    "lenet": (lambda: small.lenet(mx), {"data": (4, 1, 28, 28)}),
    "joined": (lambda: small.joined(mx), {"words": (4, 7), "vectors": (4, 16)}),
    "language model": (language_model, {"data": (7, 3)}),
    "resnet_18": (image_network("resnet_18"), IMAGE),
    "googlenet": (image_network("googlenet"), IMAGE),
}


def nbytes(arrays):
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays if array is not None)


def check_agreement(net, grad_req, shapes, **options):
    """Check that the estimate equals what simple_bind binds."""
    estimate = net.memory_estimate(mx.cpu(), grad_req=grad_req, **options, **shapes)
    executor = net.simple_bind(mx.cpu(), grad_req=grad_req, **options, **shapes)
    assert estimate.activations == executor.plan.internal_bytes()
    assert estimate.parameters + estimate.inputs == nbytes(executor.arg_arrays)
    assert estimate.auxiliary == nbytes(executor.aux_arrays)
    assert estimate.gradients == nbytes(executor.grad_arrays)
    assert estimate.outputs == nbytes(executor.outputs)
    assert estimate.heads == nbytes(executor._heads)
    assert sum(estimate.by_device.values()) == estimate.peak
    assert estimate.plan.explain(0) == executor.plan.explain(0)
    return estimate


@pytest.mark.parametrize("grad_req", ["write", "null", "add"])
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_equals_the_bound_memory(name, grad_req):
    make, shapes = CASES[name]
    estimate = check_agreement(make(), grad_req, shapes)
    plan = estimate.plan
    assert estimate.peak == sum(
        (
            estimate.parameters, estimate.auxiliary, estimate.inputs, estimate.gradients, estimate.outputs,
            estimate.heads, estimate.activations,
        )
    )  # fmt: skip
    assert estimate.optimizer_state == 0
    assert sum(layer.parameters for layer in estimate.by_layer) == estimate.parameters + estimate.auxiliary
    assert sum(layer.activations for layer in estimate.by_layer) == plan.unshared_bytes()
    peaks = sum(Occupancy(plan).peak(context)[0] for context in plan.arenas)
    assert sum(layer.at_peak for layer in estimate.by_layer) == peaks + sum(map(plan.nbytes, plan.separate))


def test_requests_and_dtypes_by_name():
    net, shapes = small.perceptron(mx), {"data": (4, 784)}
    requests = {"fc1_weight": "write", "fc2_weight": "add"}
    estimate = check_agreement(net, requests, shapes)
    assert estimate.gradients == 4 * (128 * 784 + 10 * 128)
    half = check_agreement(net, "write", shapes, type_dict={"data": "float16"})
    assert half.parameters == check_agreement(net, "write", shapes).parameters // 2


def test_several_devices():
    with mx.AttrScope(ctx_group="first"):
        one = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=64, name="one")
    with mx.AttrScope(ctx_group="second"):
        net = mx.sym.FullyConnected(one, num_hidden=10, name="two")
    groups = {"first": mx.cpu(1), "second": mx.cpu(2)}
    estimate = check_agreement(net, "write", {"data": (8, 32)}, group2ctx=groups)
    executor = net.simple_bind(mx.cpu(), group2ctx=groups, data=(8, 32))
    arrays = [*executor.arg_arrays, *executor.grad_arrays, *executor.outputs, *executor._heads]
    for context in (mx.cpu(1), mx.cpu(2)):
        state_bytes = sum(
            executor.plan.nbytes(e) for e in executor.plan.separate if executor.plan.graph.context(e.node) is context
        )
        bound = nbytes([array for array in arrays if array.context == context])
        assert estimate.by_device[context] == bound + state_bytes + executor.plan.arenas.get(context, 0)
    assert "on cpu(1)" in str(estimate)


def test_layers():
    estimate = small.lenet(mx).memory_estimate(data=(4, 1, 28, 28))
    layers = {layer.name: layer for layer in estimate.by_layer}
    assert layers["conv1"].parameters == 4 * (20 * 1 * 5 * 5 + 20)
    assert layers["norm"].parameters == 4 * 4 * 50
    assert layers["conv1"].activations >= 4 * 4 * 20 * 24 * 24
    assert [name for name in layers if name in ("conv1", "pool1", "conv2", "flat")] == [
        "conv1",
        "pool1",
        "conv2",
        "flat",
    ]
    assert not any("backward" in name for name in layers)


def test_variables_with_a_shape_and_labels_are_inputs():
    estimate = small.perceptron(mx).memory_estimate(data=(4, 784))
    assert estimate.inputs == 4 * (4 * 784 + 4)
    assert estimate.parameters == 4 * (128 * 784 + 128 + 10 * 128)


def test_invalid_estimate_arguments_are_refused():
    net = small.perceptron(mx)
    with pytest.raises(ShapeError, match="the shape of 'data' cannot be inferred"):
        net.memory_estimate()
    with pytest.raises(ValueError, match="nonsense"):
        net.memory_estimate(data=(4, 784), optimizer="nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        net.memory_estimate(data=(4, 784), grad_req="nonsense")


# -- optimizers --------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": mx.optimizer.SGD(),
    "sgd with momentum": mx.optimizer.SGD(momentum=0.9),
    "adam": mx.optimizer.Adam(),
    "rmsprop": mx.optimizer.RMSProp(centered=True),
    "nag": mx.optimizer.NAG(momentum=0.9, multi_precision=True),
    "ftrl": mx.optimizer.Ftrl(multi_precision=True),
}


def state_nbytes(state):
    if isinstance(state, (tuple, list)):
        return sum(map(state_nbytes, state))
    return 0 if state is None else nbytes([state])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:.*accumulates in float16")
def test_optimizer_states_match_those_of_updates(name, dtype):
    optimizer, net = OPTIMIZERS[name], small.perceptron(mx)
    types = {"data": dtype}
    requests = {each: "null" if each in ("data", "softmax_label") else "write" for each in net.list_arguments()}
    estimate = net.memory_estimate(grad_req=requests, type_dict=types, optimizer=optimizer, data=(4, 784))
    executor = net.simple_bind(mx.cpu(), grad_req=requests, type_dict=types, data=(4, 784))
    update = mx.optimizer.get_updater(optimizer)
    for index, (weight, grad) in enumerate(zip(executor.arg_arrays, executor.grad_arrays, strict=True)):
        if grad is not None:
            update(index, grad, weight)
    assert estimate.optimizer_state == sum(map(state_nbytes, update.states.values()))
    assert (
        estimate.peak - estimate.optimizer_state
        == net.memory_estimate(grad_req=requests, type_dict=types, data=(4, 784)).peak
    )


def test_names_of_optimizers():
    estimate = small.perceptron(mx).memory_estimate(data=(4, 784), optimizer="adam")
    assert estimate.optimizer_state == 2 * estimate.parameters


def test_states_that_do_not_grow_with_the_weight():
    class Counting(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return (mx.nd.zeros((10,)), [mx.nd.zeros(weight.shape)], 3)

    assert Footprint(Counting()).nbytes(0, (5, 7), np.dtype("float32")) == 4 * (10 + 35)
    assert Footprint(Counting()).nbytes(0, (), np.dtype("float32")) == 4 * (10 + 1)
    assert Footprint(Counting()).nbytes(0, (0, 7), np.dtype("float32")) == 4 * 10


# -- uses --------------------------------------------------------------------------------------------------


def test_fits(monkeypatch):
    estimate = small.perceptron(mx).memory_estimate(data=(4, 784))
    assert estimate.fits(estimate.peak)
    assert not estimate.fits(estimate.peak - 1)
    device = type(mx.devices.get(mx.cpu()))
    monkeypatch.setattr(device, "memory_info", lambda self: (estimate.peak, 1 << 40))
    assert estimate.fits(mx.cpu())
    assert estimate.fits(mx.cpu(1))
    monkeypatch.setattr(device, "memory_info", lambda self: (estimate.peak - 1, 1 << 40))
    assert not estimate.fits(mx.cpu())
    assert not estimate.fits(mx.devices.get(mx.cpu(3)))


def test_an_absent_device_needs_no_allocation():
    huge = small.perceptron(mx).memory_estimate(mx.gpu(7), data=(1 << 30, 784))
    assert huge.peak > 1 << 41
    assert not huge.fits(mx.cpu())


def test_table():
    estimate = small.perceptron(mx).memory_estimate(data=(4, 784), optimizer="adam")
    text = str(estimate)
    for word in ("Training", "parameters", "optimizer state", "activations", "peak", "fc1"):
        assert word in text
    assert "relu1" in text
    short = estimate.table(1)
    assert "... and" in short
    assert "fc1 " in short
    assert "Prediction" in str(small.perceptron(mx).memory_estimate(grad_req="null", data=(4, 784)))
