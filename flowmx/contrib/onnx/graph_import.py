"""An ONNX graph as a symbol: what follows from constants and shapes is computed, everything else is converted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.contrib.onnx.converters import ONNXError, Unsupported, importers, need_onnx
from flowmx.contrib.onnx.import_constants import Array, Known, Numbers, Values, fold
from flowmx.contrib.onnx.lengths import Lengths, Varying, joined, trial
from flowmx.contrib.onnx.names import Names
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.errors import MXNetError, ShapeError
from flowmx.gluon import SymbolBlock
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.symbol import Symbol
from flowmx.symbol.functions import op

Params = dict[str, NDArray]
File = str | os.PathLike[str]


class GraphImport:
    """The graph of a file on its way into a symbol.

    Attributes:
        values: the symbol or constant of each value converted so far.
        opset: the file's opset.
        inputs: the names of the model's inputs.
    """

    def __init__(self, model: Any, input_shapes: Mapping[str, Sequence[int]]) -> None:
        self._graph = model.graph
        versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=1)
        self.values: dict[str, Symbol | Known | Values] = {"": Known.constant(np.zeros(0), "")}
        self._params: dict[str, Array] = {}
        self.fresh = Names().fresh
        self._variables: dict[str, Symbol] = {}
        self._shapes: dict[Entry, Lengths] = {}
        self._dtypes: dict[Entry, DType] = {}
        to_array = need_onnx().numpy_helper.to_array
        for each in self._graph.initializer:
            self.values[each.name] = Known.constant(to_array(each), each.name)
        self.inputs = [each for each in self._graph.input if each.name not in self.values]
        for each in self.inputs:
            dtype = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type))
            self.values[each.name] = self._variable(each.name, _lengths(each, input_shapes.get(each.name)), dtype)

    # -- values ----------------------------------------------------------------------------------------

    def _variable(self, wanted: str, dims: Lengths, dtype: Any) -> Symbol:
        variable = sym.Variable(self.fresh(wanted))
        entry = variable._entries[0]
        self._shapes[entry], self._dtypes[entry] = dims, as_dtype(dtype)
        return variable

    def parameter(self, wanted: str, array: Array) -> Symbol:
        """A variable with content of its own."""
        array = array.astype(np.float32) if array.dtype == bool else array
        variable = self._variable(wanted, array.shape, array.dtype)
        assert variable.name is not None
        self._params[variable.name] = array
        return variable

    def symbol(self, name: str) -> Symbol:
        """A value as a symbol; a constant becomes a parameter, the same one each time."""
        value = self.values[name]
        if isinstance(value, Symbol):
            return value
        if isinstance(value, Values):
            raise Unsupported(f"{name!r} is a sequence, expected an array")
        return self.constant(value)

    def constant(self, value: Known) -> Symbol:
        """A known value as a symbol; what does not vary becomes a parameter, the same one each time."""
        if not value.fixed:
            if value.make is None:
                raise Unsupported(f"{value.name!r} varies with the inputs' shapes: give input_shapes")
            return value.make()
        if value.name not in self._variables:
            numbers = value.numbers
            self._variables[value.name] = (
                self.parameter(value.name, value.trials[0]) if numbers is None else self.of_numbers(value.name, numbers)
            )
        return self._variables[value.name]

    def of_numbers(self, wanted: str, numbers: Numbers) -> Symbol:
        """Parameters in whole numbers as real ones."""
        whole, scale = (
            self.parameter(f"{wanted}_whole", numbers.whole),
            self.parameter(f"{wanted}_scale", numbers.scale),
        )
        return op("_dequantize_constant", whole, scale, name=self.fresh(wanted), axis=numbers.axis)

    def ruler(self, length: Varying) -> tuple[Symbol, int]:
        """An input of the model and an axis of it, which has a length that varies.

        Raises:
            Unsupported: none has.
        """
        for each in self.inputs:
            value = self.values[each.name]
            assert isinstance(value, Symbol)
            dims = self.dims(value)
            if length in dims:
                return value, dims.index(length)
        raise Unsupported("a length of its result varies, and is none of the inputs': give input_shapes")

    def dims(self, symbol: Symbol) -> Lengths:
        """The lengths of a symbol's axes.

        Raises:
            ShapeError: they contradict each other, or do not follow.
        """
        entry = symbol._entries[0]
        for node in self._unknown(entry, self._shapes):
            given = [self._shapes[each] for each in node.inputs]
            both = [self._infer_shape(node, [trial(dims, turn) for dims in given]) for turn in (0, 1)]
            for index, (first, second) in enumerate(zip(*both, strict=True)):
                self._shapes[Entry(node, index)] = joined(first, second)
        found = self._shapes[entry]
        infer.known_shape(trial(found, 0), f"{symbol.name!r}")
        return found

    @staticmethod
    def _infer_shape(node: Node, given: list[Any]) -> list[Any]:
        assert node.op is not None
        made = infer.from_inputs(node.op, given)[1]  # a state made of zeros has its batch from where it is used
        return [
            infer.known_shape(shape, node.output_name(i))
            if shape is None and i < node.visible_outputs()
            else shape or ()
            for i, shape in enumerate(made)
        ]

    def dtype(self, symbol: Symbol) -> DType:
        """The dtype of a symbol."""
        entry = symbol._entries[0]
        for node in self._unknown(entry, self._dtypes):
            assert node.op is not None
            made = node.op.infer_type([self._dtypes[each] for each in node.inputs])[1]
            self._dtypes.update({Entry(node, i): each or np.dtype("float32") for i, each in enumerate(made)})
        return self._dtypes[entry]

    @staticmethod
    def _unknown(entry: Entry, known: Mapping[Entry, Any]) -> list[Node]:
        """The nodes on the way to an entry of which nothing is known yet, in order."""
        order: dict[Node, None] = {}
        stack = [] if entry in known else [(entry.node, iter(entry.node.inputs))]
        while stack:
            node, left = stack[-1]
            for source in left:
                if source not in known and source.node not in order:
                    stack.append((source.node, iter(source.node.inputs)))
                    break
            else:
                stack.pop()
                order[node] = None
        return list(order)

    # -- nodes -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Convert every node.

        Raises:
            ONNXError: some can not be converted; names them all, those of unknown operators before any is tried.
        """
        refused = list(self._unknown_nodes(self._graph))
        if not refused:
            for node in self._graph.node:
                try:
                    self._convert(node)
                except MXNetError as error:
                    refused.append(f"{_title(node)}: {error}")
                except Unsupported as error:
                    refused.append(f"{_title(node)}: {error}")
                if refused:  # what follows would be refused for the same reason
                    break
        if refused:
            raise ONNXError("these nodes of the file can not be read:\n  " + "\n  ".join(refused))

    def inline(self, graph: Any) -> list[Symbol | Known | Values]:
        """Convert the nodes of a graph inside this one; returns its outputs.

        Raises:
            Unsupported: a node can not be converted.
        """
        if refused := list(self._unknown_nodes(graph)):
            raise Unsupported("of its branch " + ", ".join(refused))
        to_array = need_onnx().numpy_helper.to_array
        self.values.update({each.name: Known.constant(to_array(each), each.name) for each in graph.initializer})
        for node in graph.node:
            self._convert(node)
        return [self.values[each.name] for each in graph.output]

    @staticmethod
    def _unknown_nodes(graph: Any) -> Iterator[str]:
        table = importers()
        for node in graph.node:
            if node.domain not in ("", "ai.onnx") or node.op_type not in table:
                yield f"{_title(node)}: there is no converter for this operator"

    def _convert(self, node: Any) -> None:
        inputs = [self.values[name] for name in node.input]
        if all(isinstance(each, Known) for each in inputs):
            known = [each if name else None for name, each in zip(node.input, inputs, strict=True)]
            if node.op_type == "DequantizeLinear" and (numbers := _numbers(node, known)):  # type: ignore[arg-type]
                self.values[node.output[0]] = Known.of_numbers(numbers, node.output[0])
                return
            made = fold(node, known, self.opset, lambda at: self._made(node)[at])  # type: ignore[arg-type]
            if made is not None:
                self.values.update(zip(node.output, made, strict=False))
                return
        self.values.update(zip(node.output, self._made(node), strict=False))

    def _made(self, node: Any) -> Any:
        """Run the converter of a node; returns one value for each output."""
        result = importers()[node.op_type](NodeImport(self, node, self._base(node)))
        if isinstance(result, Known):
            return [result]
        if len(result) < sum(1 for name in node.output if name):
            raise Unsupported(f"its output {node.output[len(result)]!r} has no counterpart")
        return list(result)

    def _base(self, node: Any) -> str:
        name: str = node.name or node.output[0].removesuffix("_output")
        return name.replace("/", "_").strip("_") or node.op_type.lower()

    def result(self) -> tuple[Symbol, Params, Params]:
        """The symbol and its parameters."""
        outputs = []
        for each in self._graph.output:
            try:
                outputs.append(self.symbol(each.name))
            except Unsupported as error:
                raise ONNXError(f"the file's output {each.name!r} can not be read: {error}") from None
        symbol = sym.Group(outputs) if len(outputs) > 1 else outputs[0]
        auxiliary = set(symbol.list_auxiliary_states())
        parts: tuple[Params, Params] = {}, {}
        for name in symbol.list_inputs():
            if name in self._params:
                array = self._params[name]
                parts[name in auxiliary][name] = nd.array(array, dtype=array.dtype)
        return symbol, *parts


def _numbers(node: Any, given: Sequence[Known | None]) -> Numbers | None:
    """The whole numbers that a conversion of constants makes real; None where one varies."""
    known = [None if each is None else each.trials[0] for each in given]
    if not all(each is None or each.fixed for each in given) or known[0] is None or known[1] is None:
        return None
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    return Numbers.of(known[0], known[1], known[2] if len(known) > 2 else None, axis)


def _title(node: Any) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{node.name or ', '.join(node.output)!r} ({kind})"


def _lengths(value: Any, given: Sequence[int] | None) -> Lengths:
    """The lengths of an input, two trials of those that are open: the same for the same name, or the same axis."""
    axes = value.type.tensor_type.shape.dim
    if given is not None:
        if len(given) != len(axes):
            raise ValueError(f"input_shapes: {value.name!r} has {tuple(given)}, expected {len(axes)} axes")
        return tuple(int(n) for n in given)
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else _open(axis, len(axes), dim.dim_param)
        for axis, dim in enumerate(axes)
    )


def _open(axis: int, rank: int, name: str) -> Varying:
    # Images are tried with lengths that the usual networks take; different names with different lengths.
    start = 224 if rank > 3 and axis > 1 else 6 + 2 * axis
    offset = sum(name.encode()) % 31 * 2
    return Varying(start + offset, 2 * (start + offset) + 4)


# -- files ---------------------------------------------------------------------------------------------------


def load(path: File) -> Any:
    """The model in a file.

    Raises:
        OSError: it can not be read.
        ONNXError: it is no ONNX model.
    """
    onnx = need_onnx()
    Path(path).open("rb").close()  # the same errors as for any other file
    try:
        model = onnx.load_model(os.fspath(path))
        onnx.checker.check_model(model)
    except OSError:
        raise
    except Exception as error:  # protobuf's and the checker's own kinds
        raise ONNXError(f"{os.fspath(path)} is no valid ONNX model: {error}") from None
    return model


def read_model(
    path: File, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Symbol, Params, Params, list[str]]:
    """The symbol, the parameters, the auxiliary states and the names of the inputs of a file.

    Raises:
        ONNXError: nodes can not be converted.
        ValueError: ``input_shapes`` does not fit the inputs.
    """
    graph = GraphImport(load(path), input_shapes or {})
    names = [each.name for each in graph.inputs]
    unknown = [name for name in input_shapes or {} if name not in names]
    if unknown:
        raise ValueError(f"input_shapes: there is no input {unknown[0]!r}, expected one of {names}")
    try:
        graph.run()
    except ShapeError as error:
        raise ONNXError(f"the shapes of {os.fspath(path)} do not fit: {error}") from None
    return *graph.result(), names


def as_block(path: File, ctx: Any, input_shapes: Mapping[str, Sequence[int]] | None = None) -> SymbolBlock:
    """A file as a Gluon block with its parameters on ``ctx``."""
    symbol, arguments, auxiliary, names = read_model(path, input_shapes)
    block = SymbolBlock(symbol, [sym.var(name) for name in names])
    for name, parameter in block.collect_params().items():
        array = {**arguments, **auxiliary}[name]
        parameter.cast(array.dtype)
        parameter._load_init(array, ctx)
    return block


def metadata(path: File) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Names and shapes of a file's inputs and outputs."""
    graph = load(path).graph
    constants = {each.name for each in graph.initializer}

    def described(values: Any) -> list[tuple[str, tuple[int, ...]]]:
        shapes = {each.name: tuple(dim.dim_value for dim in each.type.tensor_type.shape.dim) for each in values}
        return [(name, shape) for name, shape in shapes.items() if name not in constants]

    return {"input_tensor_data": described(graph.input), "output_tensor_data": described(graph.output)}
