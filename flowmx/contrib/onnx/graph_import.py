"""Conversion of an ONNX graph to a symbol. Values that depend only on constants and shapes are computed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.contrib.onnx.converters import ONNXError, Unsupported, importers, need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Lengths, Varying, combine, trial
from flowmx.contrib.onnx.import_constants import Known, Numbers, Values, fold
from flowmx.contrib.onnx.names import Names
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.contrib.onnx.opsets import definition
from flowmx.errors import MXNetError, ShapeError
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType, DTypeLike, as_dtype
from flowmx.ops.registry.operators import Array
from flowmx.serialization.atomic import read_from
from flowmx.symbol import Symbol
from flowmx.symbol.functions import op

Params = dict[str, NDArray]
File = str | os.PathLike[str]
InputShapes = Mapping[str, Sequence["int | str | None"]]
"""Shapes of inputs by name; None or a name marks a varying length."""


class GraphImport:
    """The graph of a file during import.

    Attributes:
        values: the symbol or constant of each converted value.
        opset: the opset of the file.
        inputs, outputs: the inputs and outputs of the model.
    """

    def __init__(self, model: Any, input_shapes: InputShapes, constants: Mapping[str, object] = {}) -> None:
        self._graph = model.graph
        versions = [opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=1)
        self.values: dict[str, Symbol | Known | Values] = {"": Known.constant(np.zeros(0), "")}
        self._params: dict[str, Array] = {}
        self._names = Names()
        self._variables: dict[str, Symbol] = {}
        self._shapes: dict[Entry, Lengths] = {}
        self._dtypes: dict[Entry, DType] = {}
        self.values.update(self.tensors())
        self.values.update(_input_constants(self._graph, self.values, constants))
        self.inputs = [value for value in self._graph.input if value.name not in self.values]
        self.outputs = list(self._graph.output)
        for value in self.inputs:
            dims = _lengths(value, input_shapes.get(value.name))
            self.values[value.name] = self._variable(value.name, dims, declared_dtype(value))

    def tensors(self) -> Mapping[str, Known]:
        """Return the constants of the model, by name."""
        return {tensor.name: Known.of_tensor(tensor) for tensor in self._graph.initializer}

    def fresh(self, name: str) -> str:
        """Return a name that is not taken: the given one, with a number appended if necessary."""
        return self._names.fresh(name)

    # -- values ----------------------------------------------------------------------------------------

    def _variable(self, name: str, dims: Lengths, dtype: DTypeLike) -> Symbol:
        variable = sym.Variable(self.fresh(name))
        entry = variable.entries[0]
        self._shapes[entry], self._dtypes[entry] = dims, as_dtype(dtype)
        return variable

    def parameter(self, name: str, array: Array, source: str = "") -> Symbol:
        """Create a parameter.

        Args:
            name: its name, to which a number is appended if it is taken.
            array: its content.
            source: the constants of the file that determine the content; "" if it also depends on shapes.
        """
        del source
        array = array.astype(np.float32) if array.dtype == bool else array
        variable = self._variable(name, array.shape, array.dtype)
        assert variable.name is not None
        self._params[variable.name] = array
        return variable

    def symbol(self, name: str) -> Symbol:
        """Return a value as a symbol. A constant becomes a parameter, which is shared by all uses."""
        value = self.values[name]
        if isinstance(value, Symbol):
            return value
        if isinstance(value, Values):
            raise Unsupported(f"{name!r} is a sequence, expected an array")
        return self.constant(value)

    def is_condition(self, name: str) -> bool:
        """Return whether a value has ONNX's type bool, which is 0 and 1 in MXNet."""
        producers = {output: node for node in self._graph.node for output in node.output}
        while name in producers:
            node = producers[name]
            if node.op_type == "Cast":
                return any(each.name == "to" and each.i == need_onnx().TensorProto.BOOL for each in node.attribute)
            types = definition(node.op_type, self.opset).outputs[0].types
            if len(types) == 1:
                return "tensor(bool)" in types
            name = node.input[1 if node.op_type == "Where" else 0]
        value = self.values[name]
        if isinstance(value, Known):
            return bool(value.trials[0].dtype.kind == "b")
        return any(each.name == name and declared_dtype(each).kind == "b" for each in self.inputs)

    def constant(self, value: Known) -> Symbol:
        """Return a known value as a symbol. A fixed value becomes a parameter, which is shared by all uses."""
        if not value.fixed:
            if value.make is None:
                raise Unsupported(f"{value.name!r} varies with the inputs' shapes: set input_shapes")
            return value.make()
        if value.name not in self._variables:
            numbers = value.numbers
            self._variables[value.name] = (
                self.parameter(value.name, value.trials[0], value.source)
                if numbers is None
                else self.quantized_parameter(value.name, numbers, value.source)
            )
        return self._variables[value.name]

    def quantized_parameter(self, name: str, numbers: Numbers, source: str) -> Symbol:
        """Create quantized parameters and the node that dequantizes them."""
        whole, scale = (
            self.parameter(f"{name}_whole", numbers.whole, source),
            self.parameter(f"{name}_scale", numbers.scale, source),
        )
        return op("_dequantize_constant", whole, scale, name=self.fresh(name), axis=numbers.axis)

    def input_with(self, length: Varying) -> tuple[Symbol, int]:
        """Return an input of the model with a varying length, and its axis.

        Raises:
            Unsupported: no input has that length.
        """
        for value in self.inputs:
            symbol = self.values[value.name]
            assert isinstance(symbol, Symbol)
            dims = self.dims(symbol)
            if length in dims:
                return symbol, dims.index(length)
        raise Unsupported("a length of its result varies, and no input has that length: set input_shapes")

    def dims(self, symbol: Symbol) -> Lengths:
        """Infer the lengths of a symbol's axes.

        Raises:
            ShapeError: shapes are inconsistent or unknown.
        """
        entry = symbol.entries[0]
        for node in self._unknown(entry, self._shapes):
            inputs = [self._shapes[value] for value in node.inputs]
            varies = any(isinstance(length, Varying) for dims in inputs for length in dims)
            both = [self._infer_shape(node, [trial(dims, turn) for dims in inputs]) for turn in range(1 + varies)]
            both = both if varies else both * 2
            for index, (first, second) in enumerate(zip(*both, strict=True)):
                self._shapes[Entry(node, index)] = combine(first, second)
        lengths = self._shapes[entry]
        infer.known_shape(trial(lengths, 0), f"{symbol.name!r}")
        return lengths

    @staticmethod
    def _infer_shape(node: Node, inputs: list[Any]) -> list[Any]:
        assert node.op is not None
        shapes = infer.from_inputs(node.op, inputs)[1]  # zero states get their batch size from their use
        return [
            infer.known_shape(shape, node.output_name(i))
            if shape is None and i < node.visible_outputs()
            else shape or ()
            for i, shape in enumerate(shapes)
        ]

    def dtype(self, symbol: Symbol) -> DType:
        """Infer the dtype of a symbol."""
        entry = symbol.entries[0]
        for node in self._unknown(entry, self._dtypes):
            assert node.op is not None
            dtypes = node.op.infer_type([self._dtypes[value] for value in node.inputs])[1]
            self._dtypes.update({Entry(node, i): dtype or np.dtype("float32") for i, dtype in enumerate(dtypes)})
        return self._dtypes[entry]

    @staticmethod
    def _unknown(entry: Entry, inferred: Mapping[Entry, Any]) -> list[Node]:
        """Return the nodes that an entry depends on and that are not yet inferred, in order."""
        order: dict[Node, None] = {}
        stack = [] if entry in inferred else [(entry.node, iter(entry.node.inputs))]
        while stack:
            node, sources = stack[-1]
            for source in sources:
                if source not in inferred and source.node not in order:
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
            ONNXError: nodes cannot be converted. Unknown operators are listed first, before any conversion.
        """
        self.check_operators()
        for node in self._graph.node:
            try:
                self.convert(node)
            except (MXNetError, Unsupported) as error:  # later nodes would fail for the same reason
                raise cannot_import([f"{title(node)}: {error}"]) from None

    def check_operators(self) -> None:
        """Check that every operator has a converter.

        Raises:
            ONNXError: some have none; the message lists their nodes.
        """
        if problems := list(self._unknown_nodes(self._graph)):
            raise cannot_import(problems)

    def inline(self, graph: Any) -> list[Symbol | Known | Values]:
        """Convert the nodes of a subgraph and return its outputs.

        Raises:
            Unsupported: a node cannot be converted.
        """
        self.enter(graph)
        for node in graph.node:
            self.convert(node)
        return [self.values[output.name] for output in graph.output]

    def enter(self, graph: Any) -> None:
        """Add the constants of a subgraph to the values.

        Raises:
            Unsupported: an operator of the subgraph has no converter.
        """
        if problems := list(self._unknown_nodes(graph)):
            raise Unsupported("in its branch: " + ", ".join(problems))
        to_array = need_onnx().numpy_helper.to_array  # another branch may have a constant of the same name
        self.values.update({tensor.name: Known.constant(to_array(tensor), tensor.name) for tensor in graph.initializer})

    def select(self, condition: Symbol, first: object, second: object) -> list[Symbol]:
        """Compute one of two subgraphs, the first if a condition is true.

        Raises:
            Unsupported: a node cannot be converted, or the outputs have different shapes or dtypes.
        """
        sides: list[list[Symbol]] = []
        result: list[Symbol] = sym.contrib.cond(
            condition, partial(self._branch, first, sides), partial(self._branch, second, sides)
        )
        for one, other in zip(*sides, strict=True):
            kinds = [(self.dims(symbol), self.dtype(symbol)) for symbol in (one, other)]
            if kinds[0] != kinds[1]:
                raise Unsupported(f"its branches compute arrays of {kinds[0]} and {kinds[1]}")
        return result

    def _branch(self, graph: Any, sides: list[list[Symbol]]) -> list[Symbol]:
        """Convert a subgraph whose names stay local, and append its outputs to ``sides``."""
        values, variables = self.values.copy(), self._variables.copy()
        try:
            self.inline(graph)
            sides.append([self.symbol(output.name) for output in graph.output])
        finally:
            variables |= {name: variable for name, variable in self._variables.items() if name in values}
            self.values, self._variables = values, variables
        return sides[-1]

    @staticmethod
    def _unknown_nodes(graph: Any) -> Iterator[str]:
        table = importers()
        for node in graph.node:
            if node.domain not in ("", "ai.onnx") or node.op_type not in table:
                yield f"{title(node)}: the operator has no converter"

    def convert(self, node: Any) -> None:
        """Convert a node.

        Raises:
            Unsupported, MXNetError: it cannot be converted.
        """
        inputs = [self.values[name] for name in node.input]
        constant_inputs = [value for value in inputs if isinstance(value, Known)]
        if len(constant_inputs) == len(inputs):
            constants = [value if name else None for name, value in zip(node.input, constant_inputs, strict=True)]
            if node.op_type == "DequantizeLinear" and (numbers := _numbers(node, constants)):
                result = Known.of_numbers(numbers, node.output[0])
                result.is_from_file = all(value.is_from_file for value in constant_inputs)
                self.values[node.output[0]] = result
                return
            results = self.fold(node, constants)
            if results is not None:
                self.values.update(zip(node.output, results, strict=False))
                return
        results = self._run_converter(node)  # a branch replaces the values, and restores them
        self.values.update(zip(node.output, results, strict=False))

    def fold(self, node: object, inputs: Sequence[Known | None]) -> list[Known] | None:
        """Evaluate a node on known inputs; return None if that is not possible."""
        return fold(node, inputs, self.opset, lambda at: self._run_converter(node)[at])

    def _run_converter(self, node: Any) -> Any:
        """Run the converter of a node and return one value for each output."""
        result = importers()[node.op_type](NodeImport(self, node, self._base(node)))
        if isinstance(result, Known):
            return [result]
        if len(result) < sum(1 for name in node.output if name):
            raise Unsupported(f"its output {node.output[len(result)]!r} cannot be converted")
        return list(result)

    def _base(self, node: Any) -> str:
        name: str = node.name or node.output[0].removesuffix("_output")
        return name.replace("/", "_").strip("_") or node.op_type.lower()

    def compose(self, names: Sequence[str]) -> tuple[Symbol, dict[str, Array]]:
        """Return values as one symbol, and the parameters that it reads.

        Raises:
            ONNXError: a value cannot be converted.
        """
        outputs = []
        for name in names:
            try:
                outputs.append(self.symbol(name))
            except Unsupported as error:
                raise ONNXError(f"the file's output {name!r} cannot be imported: {error}") from None
        symbol = sym.Group(outputs) if len(outputs) > 1 else outputs[0]
        return symbol, {name: self._params[name] for name in symbol.list_inputs() if name in self._params}


def _numbers(node: Any, inputs: Sequence[Known | None]) -> Numbers | None:
    """Return the quantized constant of a DequantizeLinear node, or None if an input varies."""
    arrays = [None if value is None else value.trials[0] for value in inputs]
    if not all(value is None or value.fixed for value in inputs) or arrays[0] is None or arrays[1] is None:
        return None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return Numbers.of(arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, axis)


def cannot_import(problems: Sequence[str]) -> ONNXError:
    """Return the error for nodes that cannot be converted."""
    return ONNXError("these nodes of the file cannot be imported:\n  " + "\n  ".join(problems))


def title(node: Any) -> str:
    """Return the name and the operator of a node, for messages."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{node.name or ', '.join(node.output)!r} ({kind})"


def declared_dtype(value: Any) -> DType:
    """Return the dtype of an input or output."""
    dtype: DType = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return dtype


def trial_shapes(model: Any, excluded: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return a shape for each input that is not excluded, with arbitrary lengths where the file leaves them open."""
    constants = {tensor.name for tensor in model.graph.initializer} | set(excluded)
    inputs = [value for value in model.graph.input if value.name not in constants]
    return {value.name: trial(_lengths(value, None), 0) for value in inputs}


def _input_constants(graph: Any, tensors: Mapping[str, object], constants: Mapping[str, object]) -> dict[str, Known]:
    """Return the values of inputs that are constants.

    Raises:
        ValueError: there is no such input, or its shape or dtype differs.
    """
    inputs = {value.name: value for value in graph.input if value.name not in tensors}
    values = {}
    for name, content in constants.items():
        if name not in inputs:
            raise ValueError(f"constants: there is no input {name!r}, expected some of {list(inputs)}")
        array, dtype = np.asarray(content), declared_dtype(inputs[name])
        dims = inputs[name].type.tensor_type.shape.dim
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
        fits = len(sizes) == array.ndim and all(
            size in (None, length) for size, length in zip(sizes, array.shape, strict=True)
        )
        if not fits or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(f"constants: {name!r} is {array.dtype} {array.shape}, expected {dtype} {tuple(sizes)}")
        values[name] = Known.constant(array.astype(dtype), name)
    return values


def _lengths(value: Any, shape: Sequence[int | str | None] | None) -> Lengths:
    """Return the lengths of an input. Unknown ones vary: equally for the same name, or for the same axis."""
    axes = value.type.tensor_type.shape.dim
    if shape is not None:
        if len(shape) != len(axes):
            raise ValueError(f"input_shapes: {value.name!r} has {tuple(shape)}, expected {len(axes)} axes")
        return tuple(
            _trial_lengths(0, 1, size)  # equal on all axes
            if isinstance(size, str)
            else _trial_lengths(axis, len(axes), "")
            if size is None
            else int(size)
            for axis, size in enumerate(shape)
        )
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else _trial_lengths(axis, len(axes), dim.dim_param)
        for axis, dim in enumerate(axes)
    )


def _trial_lengths(axis: int, rank: int, name: str) -> Varying:
    # Sizes of images are those that common networks accept. Different names have different lengths.
    start = 224 if rank > 3 and axis > 1 else 6 + 2 * axis
    offset = sum(name.encode()) % 31 * 2
    return Varying(start + offset, 2 * (start + offset) + 4)


# -- files ---------------------------------------------------------------------------------------------------


def load(path: File) -> Any:
    """Load and check a model.

    Raises:
        OSError: the file cannot be read.
        ONNXError: it is not an ONNX model.
    """
    onnx = need_onnx()

    def parse(file: BinaryIO) -> Any:
        model = onnx.load_model(file)
        onnx.checker.check_model(model)
        return model

    try:
        return read_from(path, parse)
    except OSError:
        raise
    except Exception as error:  # protobuf and the checker have several exception classes
        raise ONNXError(f"{os.fspath(path)} is not a valid ONNX model: {error}") from None


def read_model(
    path: File, input_shapes: InputShapes | None = None, constants: Mapping[str, object] | None = None
) -> tuple[Symbol, Params, Params, list[str]]:
    """Import a file. Return the symbol, the parameters, the auxiliary states and the names of the inputs.

    Raises:
        ONNXError: nodes cannot be converted.
        ValueError: ``input_shapes`` or ``constants`` do not fit the inputs.
    """
    graph = GraphImport(load(path), input_shapes or {}, constants or {})
    names = [value.name for value in graph.inputs]
    unknown = [name for name in input_shapes or {} if name not in names]
    if unknown:
        raise ValueError(f"input_shapes: there is no input {unknown[0]!r}, expected one of {names}")
    try:
        graph.run()
    except ShapeError as error:
        raise ONNXError(f"the shapes of {os.fspath(path)} do not fit: {error}") from None
    symbol, arrays = graph.compose([output.name for output in graph.outputs])
    auxiliary = set(symbol.list_auxiliary_states())
    parts: tuple[Params, Params] = {}, {}
    for name, array in arrays.items():
        parts[name in auxiliary][name] = nd.array(array, dtype=array.dtype)
    return symbol, *parts, names


def metadata(path: File) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return the names and shapes of a file's inputs and outputs."""
    graph = load(path).graph
    constants = {tensor.name for tensor in graph.initializer}

    def describe(values: Any) -> list[tuple[str, tuple[int, ...]]]:
        shapes = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}
        return [(name, shape) for name, shape in shapes.items() if name not in constants]

    return {"input_tensor_data": describe(graph.input), "output_tensor_data": describe(graph.output)}
