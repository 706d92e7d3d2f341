"""Blocks: parameters, hooks, hybrid_forward, gradients of gradients, files."""

import tempfile

import numpy as np

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.gluon import nn
from flowmx.ndarray import NDArray


class Scaled(gluon.HybridBlock):
    """A custom hybrid block with a parameter."""

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.name_scope() as scope:
            assert scope is not None
            self.dense = nn.Dense(units)
            self.scale = self.params.get("scale", shape=(1,), init="ones")

    def hybrid_forward(self, F: gluon.Operators, x: NDArray, scale: NDArray) -> NDArray:
        hidden = F.relu(self.dense(x))
        first, second = F.split(hidden, num_outputs=2, axis=1)
        return F.broadcast_mul(F.concat(first, second, dim=1), scale) + F.contrib.div_sqrt_dim(hidden)


class Sigmoid(autograd.Function):
    def forward(self, x: NDArray) -> NDArray:
        y = 1 / (1 + (-x).exp())
        self.save_for_backward(y)
        return y

    def backward(self, dy: NDArray) -> NDArray:
        (y,) = self.saved_tensors
        return dy * y * (1 - y)


def parameters(net: nn.HybridSequential) -> None:
    first, last = net[0], net[-1]
    weight = first.weight
    assert weight.data().shape == (4, 3) and weight.grad().sum().item() == 0.0 and last.name
    assert weight.list_ctx() == [mx.cpu()] and weight.lr_mult == 1.0 and weight.name.endswith("weight")
    for name, parameter in net.collect_params(".*bias").items():
        parameter.set_data(mx.nd.ones(parameter.shape or ()))
        assert name.endswith("bias") and parameter.grad_req == "write" and parameter.dtype is not None
    params = net.collect_params()
    total = sum(int(np.prod(parameter.shape or ())) for parameter in params.values())
    names = sorted(params.keys())
    chosen = params[names[0]]
    assert total == 26 and chosen.list_data()[0] is chosen.data()
    params.setattr("grad_req", "write")
    params.zero_grad()
    for child in net:
        assert child.prefix
    part = net[:1]
    assert part(mx.nd.ones((2, 3))).shape == (2, 4)


def hooks(net: nn.HybridSequential) -> None:
    shapes: list[tuple[int, ...]] = []

    def after(block: gluon.Block, inputs: tuple[NDArray, ...], output: NDArray) -> None:
        shapes.append(output.shape)
        assert block.name and inputs[0].ndim == 2

    handle = net[0].register_forward_hook(after)
    other = net.register_forward_pre_hook(lambda block, inputs: shapes.append(inputs[0].shape))
    net(mx.nd.ones((2, 3)))
    with handle:
        other.detach()
    assert shapes == [(2, 3), (2, 4)]


def gradients() -> None:
    x = mx.nd.array([1.0, 2.0])
    x.attach_grad()
    with autograd.record():
        y = (x**3).sum()
        (first,) = autograd.grad(y, [x], create_graph=True, retain_graph=True)
        only = autograd.grad(y, x, retain_graph=True)[0]
        total = first.sum() + 0 * only.sum()
    total.backward()
    assert x.grad is not None and x.grad.asnumpy().tolist() == [6.0, 12.0]
    with autograd.record(train_mode=False):
        z = Sigmoid()(x)
    z.backward()
    with autograd.pause():
        assert not autograd.is_recording() and z.detach().shape == (2,)
    with autograd.record():
        recorded = x * 2
    assert autograd.get_symbol(recorded).list_arguments()


def files(net: nn.HybridSequential, folder: str) -> None:
    net.save_parameters(f"{folder}/net.params")
    net.load_parameters(f"{folder}/net.params", allow_missing=True)
    mx.nd.save(f"{folder}/arrays", {"a": mx.nd.ones((2,))})
    loaded = mx.nd.load(f"{folder}/arrays")
    assert isinstance(loaded, dict) and loaded["a"].shape == (2,)
    net.hybridize()
    net(mx.nd.ones((1, 3)))
    symbol_file, parameter_file = net.export(f"{folder}/model")
    block = gluon.SymbolBlock.imports(symbol_file, "data", parameter_file)
    out = block(mx.nd.ones((1, 3)))
    assert out.shape == (1, 2)
    trainer = gluon.Trainer(net.collect_params(), "adam")
    trainer.save_states(f"{folder}/states")
    run = mx.checkpoint.Run(folder, net=net, trainer=trainer)
    run.save()
    assert (run.epoch, run.batch) == (0, 0)


net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=3, activation="relu"), nn.Dense(2, in_units=4))
net.initialize(mx.init.Xavier(), ctx=mx.cpu())
parameters(net)
hooks(net)
gradients()
with tempfile.TemporaryDirectory() as folder:
    files(net, folder)
scaled = Scaled(4)
scaled.initialize()
scaled.hybridize()
assert scaled(mx.nd.ones((2, 3))).shape == (2, 4)
branches = gluon.contrib.nn.HybridConcurrent(axis=1)
branches.add(nn.Dense(2), nn.Dense(3))
branches.initialize()
assert branches(mx.nd.ones((1, 3))).shape == (1, 5)
cell = gluon.rnn.LSTMCell(4)
cell.initialize()
state = cell.begin_state(batch_size=2)
output, state = cell(mx.nd.ones((2, 3)), state)
outputs, state = cell.unroll(3, mx.nd.ones((2, 3, 3)), merge_outputs=True)
assert output.shape == (2, 4) and outputs.shape == (2, 3, 4) and state[0].shape == (2, 4)
