"""A symbol as an ONNX graph: every node by its converter, or all the reasons why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import ONNXError, Unsupported, exporters, need_onnx
from flowmx.contrib.onnx.lengths import Lengths, Shapes, Varying
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.steps import Steps, described, tensor_type
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.known import Ends, known_ends
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import DType
from flowmx.symbol import Symbol

Params = Mapping[str, NDArray]


class GraphExport:
    """The graph on its way into a file.

    Attributes:
        shapes: the lengths of every entry's axes.
        dtypes: the dtype of every entry.
        names: the ONNX value that holds an entry.
        used: the entries that something reads.
        inputs: the entries of the model's inputs.
        steps: the nodes written so far.
        opset: the opset that is written.
    """

    def __init__(self, symbol: Symbol, params: Params, shapes: Shapes, types: Mapping[Node, DType], opset: int) -> None:
        self._params, self.shapes, self.opset = params, shapes, opset
        self._outputs = [(each.list_outputs()[0], each._entries[0]) for each in symbol]
        self._nodes = topological(symbol._entries)
        known = {node: params[node.name].dtype for node in self._nodes if node.is_variable and node.name in params}
        self.dtypes = infer.infer_types(self._nodes, {**{n: np.dtype(t) for n, t in known.items()}, **types})
        self.used = {entry for node in self._nodes for entry in node.inputs} | set(symbol._entries)
        self.inputs = [Entry(node, 0) for node in types]
        self.names: dict[Entry, str] = {}
        self.steps = Steps()
        self._symbol = symbol

    def run(self) -> None:
        """Write every node.

        Raises:
            ONNXError: some can not be written; names them all.
        """
        refused = []
        for node in self._nodes:
            if node.op is None:
                self._enter_variable(node)
                continue
            self.names.update({Entry(node, i): "" for i in range(node.outputs())})
            try:
                self._write(node)
            except Unsupported as error:
                refused.append(f"{node.name!r} ({node.op.name}): {error}")
        if refused:
            raise ONNXError("these nodes can not be written as ONNX:\n  " + "\n  ".join(refused))

    def _enter_variable(self, node: Node) -> None:
        name = self.names[Entry(node, 0)] = self.steps.fresh(node.name)
        if node.name in self._params:
            self.steps.constants[name] = self._params[node.name].asnumpy()

    def _write(self, node: Node) -> None:
        assert node.op is not None
        converter = exporters().get(node.op.name)
        if converter is None:
            raise Unsupported("there is no converter for this operator")
        site = NodeExport(self, node)
        made = converter(site)
        values = [made] if isinstance(made, str) else list(made)
        for index in range(len(values), node.outputs()):
            if Entry(node, index) in self.used:
                raise Unsupported(f"its output {node.op.outputs()[index]!r} has no counterpart")
        own = {name for step in site.made for name in step.outputs}
        for index, value in enumerate(values):
            self.names[Entry(node, index)] = value
            if value in own and values.index(value) == index:
                name = self.names[Entry(node, index)] = self.steps.fresh(node.output_name(index))
                for step in site.made:
                    step.rename(value, name)
        self.steps.steps += site.made

    def content(self, entry: Entry) -> np.ndarray[Any, Any]:
        """Compute an entry that depends on parameters alone.

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
        made: np.ndarray[Any, Any] = array.asnumpy()
        return made

    @cached_property
    def _ends(self) -> Ends:
        return known_ends(self._nodes, self.dtypes)

    def end(self, entry: Entry) -> np.float32:
        """The number of an entry that is the end of a range.

        Raises:
            Unsupported: it is found at each call.
        """
        known = self._ends.get(entry)
        try:
            return np.float32(self.content(entry).reshape(-1)[0]) if known is None else known
        except Unsupported:
            raise Unsupported(
                "its range is found at each call: quantize with calib_mode 'naive' or 'entropy'"
            ) from None

    # -- the file --------------------------------------------------------------------------------------

    def model(self, name: str, inputs: Mapping[Entry, Sequence[str | None]]) -> Any:
        """The model, checked.

        Args:
            name: of the graph.
            inputs: names for the lengths that vary, by input and axis.

        Raises:
            ONNXError: it is too large for one file, or not valid.
        """
        onnx = need_onnx()
        results = self._results()
        self.steps.prune(results)
        size = sum(value.nbytes for value in self.steps.constants.values())
        if size >= 1 << 31:
            raise ONNXError(f"the parameters take {size} bytes, expected less than 2 GiB, the limit of an ONNX file")
        graph = onnx.helper.make_graph(
            self.steps.nodes(), name,
            [self._described(self.names[entry], entry, names) for entry, names in inputs.items()],
            [self._described(value, entry, ()) for value, (_, entry) in zip(results, self._outputs, strict=True)],
            self.steps.initializers(),
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        oldest = onnx.helper.find_min_ir_version_for(opsets)
        model = onnx.helper.make_model(graph, producer_name="flowmx", opset_imports=opsets, ir_version=oldest)
        _check(onnx, model)
        return model

    def _results(self) -> list[str]:
        """The names of the outputs; what is an input too, or asked for twice, is passed on under one of its own."""
        found: list[str] = []
        for name, entry in self._outputs:
            value = self.names[entry]
            own = any(value in step.outputs for step in self.steps.steps)
            if not own or value in found:
                value = self.steps.fresh(name if not own else f"{name}_again")
                self.steps.steps.append(_pass_on(self.names[entry], value))
            found.append(value)
        return found

    def _described(self, value: str, entry: Entry, names: Sequence[str | None]) -> Any:
        dims = [
            (names[axis] if names else None) if isinstance(length, Varying) else length
            for axis, length in enumerate(self.shapes[entry])
        ]
        return need_onnx().helper.make_tensor_value_info(value, tensor_type(self.dtypes[entry]), dims)


def _pass_on(value: str, name: str) -> Any:
    from flowmx.contrib.onnx.steps import Step

    return Step("Identity", name, [value], [name], {})


def _check(onnx: Any, model: Any) -> None:
    errors = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
    try:
        onnx.checker.check_model(model, full_check=model.ByteSize() < 1 << 26)
    except errors as error:
        raise ONNXError(f"ONNX does not accept what would be written: {error}") from None


def unbound(symbol: Symbol, params: Params) -> list[Node]:
    """The variables that are inputs of the model: no parameters, and not only labels of output layers."""
    read: dict[Node, bool] = {}
    for node in topological(symbol._entries):
        for at, entry in enumerate(node.inputs):
            label = node.op is not None and node.op.traits.is_loss and at > 0
            read[entry.node] = read.get(entry.node, False) or not label
    found = [node for node in topological(symbol._entries) if node.is_variable and node.name not in params]
    return [node for node in found if read.get(node, True)]


def matched(nodes: Sequence[Node], shapes: Sequence[Any], what: str) -> dict[Node, Any]:
    """One of ``shapes`` for each input.

    Raises:
        ValueError: there are more or fewer.
    """
    if len(shapes) != len(nodes):
        names = described([node.name for node in nodes])
        raise ValueError(f"{what} has {len(shapes)} entries, expected one for each of the inputs: {names or 'none'}")
    return dict(zip(nodes, shapes, strict=True))


__all__ = ["GraphExport", "Lengths", "matched", "unbound"]
