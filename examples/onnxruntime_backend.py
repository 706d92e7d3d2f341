"""A partitioner that hands regions of a network to another runtime: onnxruntime predicts, flowmx trains.

Run ``python examples/onnxruntime_backend.py``; it needs ``pip install onnx onnxruntime``. The network is that
of ``gluon_digits.py``, hybridized with the backend from the beginning. The partitioner chooses whatever ONNX has; each
region becomes a custom operator, which exports its graph to ONNX at the first prediction for a shape and runs it in
onnxruntime. In training, for gradients, and where onnxruntime has no kernel for a dtype, flowmx runs the graph.
Parameters are inputs of the region, so that a prediction uses their current values.

After three epochs the probabilities of both runtimes agree to 1e-6; the test accuracy is 0.967.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
from digits import load
from gluon_digits import accuracy, network, train_epoch
from onnxruntime.capi import onnxruntime_pybind11_state as state

import flowmx as mx
from flowmx.contrib.onnx import ONNXError
from flowmx.gluon import Trainer

Arrays = list[mx.nd.NDArray]
Shapes = list[Any]
REFUSALS = state.NotImplemented, state.InvalidGraph, state.Fail


@mx.sym.register_partitioner("onnxruntime")
class Onnxruntime(mx.sym.Partitioner):
    """Select all operators that ONNX supports, except those that draw random numbers in training."""

    supported = {*mx.onnx.get_operator_support()} - {"Dropout"}

    def select(self, node: mx.sym.Candidate) -> bool:
        return node.op in self.supported

    def review(self, region: mx.sym.Symbol, number: int) -> bool:
        operators = set(region.get_internals().list_outputs()) - set(region.list_inputs())
        return len(operators) >= int(self.options.get("smallest", 2))

    def replace(self, region: mx.sym.Symbol, inputs: list[mx.sym.Symbol]) -> mx.sym.Symbol:
        named: dict[str, Any] = dict(zip(region.list_inputs(), inputs, strict=True))
        return mx.sym.Custom(**named, op_type="onnxruntime_region", graph=region.tojson())


@mx.operator.register("onnxruntime_region")
class RegionProp(mx.operator.CustomOpProp):
    """A region's inputs and outputs: those of its graph."""

    def __init__(self, graph: str) -> None:
        super().__init__()
        self.graph = mx.sym.load_json(graph)

    def list_arguments(self) -> list[str]:
        return self.graph.list_arguments()

    def list_auxiliary_states(self) -> list[str]:
        return self.graph.list_auxiliary_states()

    def list_outputs(self) -> list[str]:
        return self.graph.list_outputs()

    def infer_shape(self, in_shape: Shapes, /) -> Any:
        shapes = {name: shape for name, shape in zip(self.list_arguments(), in_shape, strict=True) if shape}
        return self.graph.infer_shape_partial(**shapes)

    def infer_type(self, in_type: list[Any], /) -> Any:
        dtypes = {name: each for name, each in zip(self.list_arguments(), in_type, strict=True) if each is not None}
        return self.graph.infer_type_partial(**dtypes)

    def create_operator(self, ctx: Any, in_shapes: Shapes, in_dtypes: list[Any], /) -> Region:
        return Region(self.graph)


class Region(mx.operator.CustomOp):
    """A region that runs: in onnxruntime for prediction, in flowmx for training."""

    sessions: ClassVar[dict[Any, onnxruntime.InferenceSession | None]] = {}
    """The sessions by graph, shapes and dtypes; None if onnxruntime cannot run it."""

    def __init__(self, graph: mx.sym.Symbol) -> None:
        self.graph, self.text = graph, graph.tojson()

    def forward(self, is_train: bool, req: list[str], in_data: Arrays, out_data: Arrays, aux: Arrays) -> None:
        session = None if is_train else self.session(in_data, aux)
        if session is None:
            executor = self.executor(in_data, aux, "null")
            results = executor.forward(is_train=is_train)
            for state, moved in zip(aux, executor.aux_arrays, strict=True):
                state[:] = moved
        else:
            feed = {name: array.asnumpy() for name, array in self.named(in_data, aux).items()}
            results = map(mx.nd.array, session.run(None, {each.name: feed[each.name] for each in session.get_inputs()}))
        for out, each, request in zip(out_data, results, req, strict=True):
            self.assign(out, request, each)

    def backward(
        self, req: list[str], out_grad: Arrays, in_data: Arrays, out_data: Arrays, in_grad: Arrays, aux: Arrays
    ) -> None:
        executor = self.executor(in_data, aux, "write")
        executor.forward(is_train=mx.autograd.is_training())
        executor.backward(out_grad)
        for grad, each, request in zip(in_grad, executor.grad_arrays, req, strict=True):
            self.assign(grad, request, each)

    def named(self, in_data: Arrays, aux: Arrays) -> dict[str, mx.nd.NDArray]:
        """Return the inputs by name, in the order of the graph's inputs."""
        names = [*self.graph.list_arguments(), *self.graph.list_auxiliary_states()]
        arrays = dict(zip(names, [*in_data, *aux], strict=True))
        return {name: arrays[name] for name in self.graph.list_inputs()}

    def executor(self, in_data: Arrays, aux: Arrays, request: str) -> Any:
        """Bind the graph to copies of the inputs."""
        args, states = [each.copy() for each in in_data], [each.copy() for each in aux]
        grads = [mx.nd.zeros_like(each) for each in args] if request == "write" else None
        return self.graph.bind(in_data[0].context, args, grads, request, states)

    def session(self, in_data: Arrays, aux: Arrays) -> onnxruntime.InferenceSession | None:
        """Return the graph's session in onnxruntime, created at the first call for these shapes and dtypes."""
        arrays = list(self.named(in_data, aux).values())
        shapes, dtypes = [each.shape for each in arrays], [each.dtype for each in arrays]
        key = self.text, *shapes, *dtypes
        if key not in self.sessions:
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "region.onnx")
                try:
                    mx.onnx.export_model(self.graph, {}, shapes, dtypes, path)
                    self.sessions[key] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
                except (ONNXError, *REFUSALS):
                    self.sessions[key] = None
        return self.sessions[key]


async def main(epochs: int, seed: int) -> None:
    """Train a network with flowmx, and predict with both runtimes."""
    images, labels, test_images, test_labels = load()
    mx.random.seed(seed)
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize(backend="onnxruntime")
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(images))
        loss = await train_epoch(net, trainer, images, labels, order, batch_size=64)
        print(f"epoch {epoch}: loss {loss:.4f}")
    inputs = mx.nd.array(test_images)
    correct, theirs = await accuracy(net, test_images, test_labels), net(inputs)
    net.hybridize()
    difference = (theirs.softmax() - net(inputs).softmax()).abs().max()
    await difference
    print(f"regions that onnxruntime runs: {sum(each is not None for each in Region.sessions.values())}")
    print(f"largest difference of a probability: {difference.asscalar():.1e}")
    print(f"test accuracy: {correct:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mx.run(main(options.epochs, options.seed))
