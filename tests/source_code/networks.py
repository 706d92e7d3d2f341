"""Networks that the tests of source code write, with random parameters."""

import numpy as np

import flowmx as mx
from flowmx.contrib.onnx.dynamic_lengths import Varying
from flowmx.source_code import to_torch

BATCH = Varying(2, 4)


def parameters(symbol, shapes, seed=0):
    """Random parameters and states of a symbol by name."""
    rng = np.random.default_rng(seed)
    arguments, _, states = symbol.infer_shape(**shapes)
    arrays = {}
    for name, shape in zip(symbol.list_arguments(), arguments, strict=True):
        if name not in shapes and not name.endswith("label"):
            scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
            arrays[name] = mx.nd.array(rng.normal(1.0 if name.endswith("gamma") else 0.0, scale, shape))
    for name, shape in zip(symbol.list_auxiliary_states(), states, strict=True):
        arrays[name] = mx.nd.array(rng.uniform(0.5, 1, shape))
    return arrays


def lengths(shapes):
    """The lengths of inputs, of which the first varies."""
    return {name: (BATCH, *shape[1:]) if shape else () for name, shape in shapes.items()}


def source_of(symbol, shapes, arrays=None, types=None, **options):
    """The source code of a symbol for inputs of these shapes, with a batch size of 2."""
    arrays = parameters(symbol, shapes) if arrays is None else arrays
    return to_torch(symbol, arrays, lengths(shapes), types, **options)


def zoo(name, size, classes=10):
    """A network of the model zoo as a symbol, and the shapes of its inputs."""
    net = mx.gluon.model_zoo.vision.get_model(name, classes=classes)
    return net(mx.sym.var("data")), {"data": (2, 3, size, size)}


def small_network():
    """A residual network in MXNet's symbol style."""

    def unit(x, name):
        y = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name=f"{name}_conv")
        y = mx.sym.Activation(mx.sym.BatchNorm(y, fix_gamma=False, name=f"{name}_bn"), act_type="relu")
        return mx.sym.elemwise_add(y, x, name=f"{name}_plus")

    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="conv0")
    for index in range(3):
        x = unit(x, f"unit{index + 1}")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", pooling_convention="full")
    x = mx.sym.FullyConnected(mx.sym.Dropout(x, p=0.2, name="drop"), num_hidden=5, name="fc1")
    return mx.sym.SoftmaxOutput(x, name="softmax")
