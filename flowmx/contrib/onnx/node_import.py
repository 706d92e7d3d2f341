"""The interface of an import converter: the ONNX node that it converts, and methods that create symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, ValueNeeded, counterparts, need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Length, Lengths, Varying
from flowmx.contrib.onnx.import_constants import Known, Values
from flowmx.contrib.onnx.opsets import definition
from flowmx.contrib.onnx.reshape_codes import reshape_codes
from flowmx.errors import MXNetError, ShapeError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, lookup
from flowmx.symbol import Symbol
from flowmx.symbol.functions import op

if TYPE_CHECKING:
    from flowmx.contrib.onnx.graph_import import GraphImport


class NodeImport:
    """An ONNX node during import.

    Attributes:
        kind: its operator.
        name: the name of its first output in the file.
        outputs: the number of its outputs.
        opset: the opset of the file.
    """

    def __init__(self, graph: GraphImport, node: Any, name: str) -> None:
        self._graph, self._name = graph, name
        self._inputs = list(node.input)
        self._attributes = {attribute.name: attribute for attribute in node.attribute}
        self.kind: str = node.op_type
        self.name: str = node.output[0]
        self.outputs = len(node.output)
        self.opset = graph.opset

    # -- attributes and inputs ---------------------------------------------------------------------------------

    def attr(self, name: str, default: object = None) -> Any:
        """Return an attribute: a number, a string, a list or an array."""
        if name not in self._attributes:
            return default
        value = need_onnx().helper.get_attribute_value(self._attributes[name])
        if isinstance(value, bytes):
            return value.decode()
        return need_onnx().numpy_helper.to_array(value) if hasattr(value, "raw_data") else value

    def __len__(self) -> int:
        return len(self._inputs)

    def has(self, index: int) -> bool:
        """Return whether an input is present."""
        return index < len(self._inputs) and self._inputs[index] != ""

    def value(self, index: int) -> Symbol | Known | Values:
        """Return an input."""
        return self._graph.values[self._inputs[index]]

    def sequence(self, index: int) -> Values:
        """Return an input that must be a sequence.

        Raises:
            Unsupported: it is an array.
        """
        value = self.value(index)
        if not isinstance(value, Values):
            raise Unsupported(f"its input {self._inputs[index]!r} is an array, expected a sequence")
        return value

    def item(self, index: int) -> Symbol | Known:
        """Return an input that must be an array, for use as an item of a sequence.

        Raises:
            Unsupported: it is a sequence.
        """
        value = self.value(index)
        if isinstance(value, Values):
            raise Unsupported(f"its input {self._inputs[index]!r} is a sequence, expected an array")
        return value

    def branch(self, name: str) -> list[Symbol | Known | Values]:
        """Convert a subgraph in an attribute and return its outputs. It can read the values of the outer graph."""
        return self._graph.inline(self._attributes[name].g)

    def select(self, at: int, *names: str) -> list[Symbol]:
        """Compute one of two subgraphs, the first if an input is true, while the model runs.

        Raises:
            ValueNeeded: the branches have outputs of different shapes or dtypes, or one cannot be converted.
        """
        try:
            return self._graph.select(self.symbol(at), *(self._attributes[name].g for name in names))
        except (Unsupported, MXNetError) as error:
            name = self._inputs[at]
            raise ValueNeeded(f"its condition {name!r} is computed, expected a constant: {error}", name) from None

    def as_symbol(self, value: Symbol | Known) -> Symbol:
        """Return a value as a symbol."""
        return value if isinstance(value, Symbol) else self._graph.constant(value)

    def is_known(self, index: int) -> bool:
        """Return whether an input is independent of the content of the model's inputs."""
        return self.has(index) and isinstance(self.value(index), Known)

    def known_value(self, index: int) -> Known:
        """Return an input that must be known.

        Raises:
            ValueNeeded: it is computed.
        """
        value = self.value(index)
        if not isinstance(value, Known):
            name = self._inputs[index]
            raise ValueNeeded(f"its input {name!r} is computed, expected a constant", name)
        return value

    def array(self, index: int) -> Array:
        """Return an input that must be known and fixed.

        Raises:
            Unsupported: it is computed, or varies with the inputs' shapes.
        """
        constants = self.known_value(index)
        if not constants.fixed:
            raise Unsupported(f"its input {self._inputs[index]!r} varies with the inputs' shapes, expected a constant: "
                              "set input_shapes")  # fmt: skip
        return constants.trials[0]

    def ints(self, index: int, attribute: str | None = None) -> list[int] | None:
        """Return ints from an input, or from an attribute in older opsets; None if absent."""
        if self.has(index):
            return [int(number) for number in self.array(index).reshape(-1)]
        numbers = None if attribute is None else self.attr(attribute)
        return None if numbers is None else [int(number) for number in numbers]

    def is_condition(self, index: int) -> bool:
        """Return whether an input has ONNX's type bool, which is 0 and 1 in MXNet."""
        return self._graph.is_condition(self._inputs[index])

    def number(self, index: int, default: float | None = None) -> float | None:
        """Return the number in an input."""
        return float(self.array(index).reshape(())) if self.has(index) else default

    def scalar(self, index: int) -> float | None:
        """Return the number of a constant input without axes; None for other inputs."""
        value = self.value(index)
        return (
            float(value.trials[0]) if isinstance(value, Known) and not value.trials[0].shape and value.fixed else None
        )

    def symbol(self, index: int) -> Symbol:
        """Return an input as a symbol. A known input becomes a parameter."""
        return self._graph.symbol(self._inputs[index])

    def symbols(self) -> list[Symbol]:
        """Return all inputs as symbols."""
        return [self.symbol(index) for index in range(len(self))]

    def parameter(self, array: Array, name: str, source: str = "") -> Symbol:
        """Create a parameter; see :meth:`GraphImport.parameter`."""
        return self._graph.parameter(f"{self._name}_{name}", array, source)

    def source(self, *places: int) -> str:
        """Return the names of inputs, if they depend on constants of the file alone, and "" otherwise."""
        values = [self.value(at) for at in places if self.has(at)]
        sources = [value.source if isinstance(value, Known) else "" for value in values]
        return ",".join(sources) if all(sources) else ""

    def transposed(self, index: int, name: str) -> Symbol:
        """Create a parameter with a transposed constant matrix."""
        value = self.known_value(index)
        if value.numbers is not None:
            return self._graph.quantized_parameter(f"{self._name}_{name}", value.numbers.transposed(), value.source)
        return self.parameter(self.array(index).T, name, value.source)

    def single(self, index: int) -> Array | None:
        """Return the number of a constant input with one element, as a 0-d array; None for other inputs."""
        value = self.value(index) if self.has(index) else None
        array = value.trials[0] if isinstance(value, Known) and value.fixed else np.empty(0)
        return array.reshape(()) if array.size == 1 else None

    def auxiliary(self, index: int) -> Symbol:
        """Create a parameter of this node alone from a constant input."""
        return self._graph.parameter(self._inputs[index], self.array(index), self.known_value(index).source)

    def dims(self, source: int | Symbol = 0) -> Lengths:
        """Return the lengths of the axes of an input or a symbol."""
        return self._graph.dims(self.symbol(source) if isinstance(source, int) else source)

    def rank(self, source: int | Symbol = 0) -> int:
        """Return the number of axes of an input or a symbol."""
        return len(self.dims(source))

    def dtype(self, source: int | Symbol = 0) -> DType:
        """Return the dtype of an input or a symbol."""
        return self._graph.dtype(self.symbol(source) if isinstance(source, int) else source)

    def have_same_shape(self) -> bool:
        """Return whether all inputs are known to have the same shape."""
        try:
            return len({self.dims(index) for index in range(len(self))}) == 1
        except ShapeError:
            return False

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute ``axis`` as a nonnegative number."""
        axis = int(self.attr("axis", default))
        return axis if axis >= 0 else axis + (self.rank() if rank is None else rank)

    def fixed(self, length: Length, what: str) -> int:
        """Return a length that must not vary.

        Raises:
            Unsupported: it varies.
        """
        if isinstance(length, Varying):
            raise Unsupported(f"{what} varies, expected a fixed length: set input_shapes")
        return length

    # -- creating symbols ----------------------------------------------------------------------------------------

    def make(self, operator: str, /, *inputs: Symbol, **parameters: object) -> Symbol:
        """Create the symbol of an operator. Optional parameters that are None are omitted."""
        definitions = lookup(operator).parameters
        explicit = {key: value for key, value in parameters.items() if value is not None or definitions[key].required}
        return op(operator, *inputs, name=self._graph.fresh(self._name), **explicit)

    def equivalent(self) -> Symbol:
        """Create the symbol of the equivalent operator (``Operator.onnx``).

        Raises:
            Unsupported: an attribute without an equivalent parameter differs from its default.
        """
        cls, parameters = counterparts()[self.kind], {}
        for name, attribute in definition(self.kind, self.opset).attributes.items():
            value = self.attr(name, _default(attribute))
            if name in cls.onnx_attributes:
                parameters[cls.onnx_attributes[name]] = tuple(value) if isinstance(value, list) else value
            elif name != "consumed_inputs":  # it existed before opset 6, and has no effect
                self.expect(name, _default(attribute))
        return self.make(cls.name, *self.symbols(), **parameters)

    def zeros(self, dims: Sequence[Length], dtype: str = "float32") -> Symbol:
        """Create zeros in a shape that may vary with the model's inputs.

        Raises:
            Unsupported: no input has a varying length of the shape.
        """
        total: Symbol | None = None
        for index, length in enumerate(dims):
            if isinstance(length, Varying):
                shape = tuple(-1 if axis == index else 1 for axis in range(len(dims)))
                line = self.make("Reshape", self._line(length, dtype), shape=shape)
                total = line if total is None else self.make("broadcast_add", total, line)
        shape = tuple(0 if isinstance(length, Varying) or length == 1 else length for length in dims)
        if total is None:
            return self.make("_zeros", shape=tuple(dims), dtype=dtype)
        return self.make("broadcast_to", total, shape=shape) if any(shape) else total

    def _line(self, length: Varying, dtype: str) -> Symbol:
        """Create zeros along an axis of a varying length, from an input of the model."""
        source, axis = self._graph.input_with(length)
        for other in range(self.rank(source)):
            if other != axis:
                source = self.make("slice_axis", source, axis=other, begin=0, end=1)
        return self.make("Cast", self.make("zeros_like", source), dtype=dtype)

    def as_number(self, symbol: Symbol) -> Symbol:
        """Cast a condition to float32, so that conditions from values of different dtypes can be combined."""
        return symbol if self.dtype(symbol) == np.float32 else self.make("Cast", symbol, dtype="float32")

    def expect(self, name: str, *allowed: object) -> None:
        """Check that an attribute has one of the allowed values, the first of which is its default.

        Raises:
            Unsupported: it has another value.
        """
        value = self.attr(name, allowed[0])
        if value not in allowed:
            raise Unsupported(f"its attribute {name} is {value!r}, expected {' or '.join(map(repr, allowed))}")

    def reshape(self, symbol: Symbol, dims: Sequence[Length]) -> Symbol:
        """Reshape a symbol. A varying length must be equal to that of an old axis, or the only one to infer.

        Raises:
            Unsupported: more than one length must be inferred.
        """
        codes = self._codes(dims, ())
        if codes.count(-1) > 1:
            codes = self._codes(dims, self.dims(symbol))
        if codes.count(-1) <= 1:
            return self.make("Reshape", symbol, shape=tuple(codes))
        shape = reshape_codes(self.dims(symbol), tuple(dims))
        if shape is None:
            raise Unsupported("several lengths of its result vary: set input_shapes")
        return self.make("Reshape", symbol, shape=shape)

    def _codes(self, dims: Sequence[Length], before: Lengths) -> list[int]:
        return [
            (0 if index < len(before) and before[index] == length else -1)
            if isinstance(length, Varying)
            else int(length)
            for index, length in enumerate(dims)
        ]


def _default(attribute: Any) -> Any:
    """Return the default of an attribute in ONNX's schema, or None."""
    if not attribute.default_value.type:
        return None
    value = need_onnx().helper.get_attribute_value(attribute.default_value)
    if isinstance(value, float):  # parse the float32 0.2 as 0.2, not 0.20000000298
        return float(str(np.float32(value)))
    return value.decode() if isinstance(value, bytes) else value
