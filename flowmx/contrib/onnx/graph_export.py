"""Conversion of a symbol to an ONNX graph, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import ONNXError, Unsupported, exporters, need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Lengths, Shapes, Varying
from flowmx.contrib.onnx.graph_builder import Steps, describe_names, tensor_type
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.known_ranges import Ends, known_bounds
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array, DType
from flowmx.symbol import Symbol

Params = Mapping[str, NDArray]


class GraphExport:
    """The graph during export.

    Attributes:
        shapes: the lengths of every entry's axes.
        dtypes: the dtype of every entry.
        names: the name of the ONNX value of an entry.
        used: the entries that are read.
        inputs: the entries of the model's inputs.
        steps: the converted nodes.
        opset: the opset of the file.
    """

    def __init__(self, symbol: Symbol, params: Params, shapes: Shapes, types: Mapping[Node, DType], opset: int) -> None:
        self._params, self.shapes, self.opset = params, shapes, opset
        self._outputs = [(output.list_outputs()[0], output.entries[0]) for output in symbol]
        self._nodes = topological(symbol.entries)
        dtypes = {node: params[node.name].dtype for node in self._nodes if node.is_variable and node.name in params}
        self.dtypes = infer.infer_types(self._nodes, {**{n: np.dtype(t) for n, t in dtypes.items()}, **types})
        self.used = {entry for node in self._nodes for entry in node.inputs} | set(symbol.entries)
        self.inputs = [Entry(node, 0) for node in types]
        self.names: dict[Entry, str] = {}
        self.steps = Steps()
        self._symbol = symbol

    def run(self) -> None:
        """Convert every node.

        Raises:
            ONNXError: nodes cannot be converted; the message lists all of them.
        """
        problems = []
        for node in self._nodes:
            if node.op is None:
                self._enter_variable(node)
                continue
            self.names.update({Entry(node, i): "" for i in range(node.outputs())})
            try:
                self._write(node)
            except Unsupported as error:
                problems.append(f"{node.name!r} ({node.op.name}): {error}")
        if problems:
            raise ONNXError("these nodes cannot be exported to ONNX:\n  " + "\n  ".join(problems))

    def _enter_variable(self, node: Node) -> None:
        name = self.names[Entry(node, 0)] = self.steps.fresh(node.name)
        if node.name in self._params:
            self.steps.constants[name] = self._params[node.name].asnumpy()

    def _write(self, node: Node) -> None:
        assert node.op is not None
        converter = exporters().get(node.op.name)
        if converter is None:
            raise Unsupported("the operator has no converter")
        site = NodeExport(self, node)
        result = converter(site)
        values = [result] if isinstance(result, str) else list(result)
        for index in range(len(values), node.outputs()):
            if Entry(node, index) in self.used:
                raise Unsupported(f"its output {node.op.outputs()[index]!r} cannot be converted")
        own_names = {name for step in site.steps for name in step.outputs}
        for index, value in enumerate(values):
            self.names[Entry(node, index)] = value
            if value in own_names and values.index(value) == index:
                name = self.names[Entry(node, index)] = self.steps.fresh(node.output_name(index))
                for step in site.steps:
                    step.rename(value, name)
        self.steps.steps += site.steps

    def content(self, entry: Entry) -> Array:
        """Compute an entry that depends only on parameters.

        Raises:
            Unsupported: it depends on an input.
        """
        symbol = Symbol([entry])
        missing = [name for name in symbol.list_inputs() if name not in self._params]
        if missing:
            raise Unsupported(f"its input {symbol.list_outputs()[0]!r} depends on {missing[0]!r}, expected parameters")
        if entry.node.is_variable:
            return self._params[entry.node.name].asnumpy()
        values = {name: self._params[name] for name in symbol.list_arguments()}
        auxiliary = {name: self._params[name] for name in symbol.list_auxiliary_states()}
        (array,) = symbol.bind(None, values, grad_req="null", aux_states=auxiliary).forward()
        content: Array = array.asnumpy()
        return content

    @cached_property
    def _ends(self) -> Ends:
        return known_bounds(self._nodes, self.dtypes)

    def end(self, entry: Entry) -> np.float32:
        """Return the value of an entry that is the end of a range.

        Raises:
            Unsupported: it is measured at each call.
        """
        end = self._ends.get(entry)
        try:
            return np.float32(self.content(entry).reshape(-1)[0]) if end is None else end
        except Unsupported:
            raise Unsupported(
                "its range is computed in each call: quantize with calib_mode 'naive' or 'entropy'"
            ) from None

    # -- the file --------------------------------------------------------------------------------------

    def model(self, name: str, inputs: Mapping[Entry, Sequence[str | None]]) -> Any:
        """Create and check the model.

        Args:
            name: the name of the graph.
            inputs: the names of dynamic axes, by input and axis.

        Raises:
            ONNXError: it is too large for one file, or invalid.
        """
        onnx = need_onnx()
        results = self._results()
        self.steps.prune(results)
        size = sum(value.nbytes for value in self.steps.constants.values())
        if size >= 1 << 31:
            raise ONNXError(f"the parameters take {size} bytes, expected less than 2 GiB, the limit of an ONNX file")
        graph = onnx.helper.make_graph(
            self.steps.nodes(), name,
            [self._value_info(self.names[entry], entry, names) for entry, names in inputs.items()],
            [self._value_info(value, entry, ()) for value, (_, entry) in zip(results, self._outputs, strict=True)],
            self.steps.initializers(),
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        oldest = onnx.helper.find_min_ir_version_for(opsets)
        model = onnx.helper.make_model(graph, producer_name="flowmx", opset_imports=opsets, ir_version=oldest)
        _check(onnx, model)
        return model

    def _results(self) -> list[str]:
        """Return the names of the outputs. An output that is also an input, or a duplicate, gets an Identity node."""
        results: list[str] = []
        for name, entry in self._outputs:
            value = self.names[entry]
            is_computed = any(value in step.outputs for step in self.steps.steps)
            if not is_computed or value in results:
                value = self.steps.fresh(name if not is_computed else f"{name}_again")
                self.steps.steps.append(_identity(self.names[entry], value))
            results.append(value)
        return results

    def _value_info(self, value: str, entry: Entry, names: Sequence[str | None]) -> Any:
        dims = [
            (names[axis] if names else None) if isinstance(length, Varying) else length
            for axis, length in enumerate(self.shapes[entry])
        ]
        return need_onnx().helper.make_tensor_value_info(value, tensor_type(self.dtypes[entry]), dims)


def _identity(value: str, name: str) -> Any:
    from flowmx.contrib.onnx.graph_builder import Step

    return Step("Identity", name, [value], [name], {})


def _check(onnx: Any, model: Any) -> None:
    errors = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
    try:
        onnx.checker.check_model(model, full_check=model.ByteSize() < 1 << 26)
    except errors as error:
        raise ONNXError(f"the exported model is invalid: {error}") from None


def unbound(symbol: Symbol, params: Params) -> list[Node]:
    """Return the variables that are inputs of the model: neither parameters nor only labels of output layers."""
    is_input: dict[Node, bool] = {}
    for node in topological(symbol.entries):
        for index, entry in enumerate(node.inputs):
            is_label = node.op is not None and node.op.traits.is_loss and index > 0
            is_input[entry.node] = is_input.get(entry.node, False) or not is_label
    variables = [node for node in topological(symbol.entries) if node.is_variable and node.name not in params]
    return [node for node in variables if is_input.get(node, True)]


def match_inputs(nodes: Sequence[Node], shapes: Sequence[object], what: str) -> dict[Node, Any]:
    """Return a dict from each input to its element of ``shapes``.

    Raises:
        ValueError: the lengths differ.
    """
    if len(shapes) != len(nodes):
        names = describe_names([node.name for node in nodes])
        raise ValueError(f"{what} has {len(shapes)} entries, expected one for each of the inputs: {names or 'none'}")
    return dict(zip(nodes, shapes, strict=True))


__all__ = ["GraphExport", "Lengths", "match_inputs", "unbound"]
