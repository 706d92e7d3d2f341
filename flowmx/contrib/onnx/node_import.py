"""The interface of an import converter: the ONNX node that it reads, and methods that make symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, counterparts, definition, need_onnx
from flowmx.contrib.onnx.import_constants import Array, Known, Values
from flowmx.contrib.onnx.lengths import Length, Lengths, Varying
from flowmx.contrib.onnx.reshape_codes import reshape_codes
from flowmx.errors import ShapeError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import lookup
from flowmx.symbol import Symbol
from flowmx.symbol.functions import op

if TYPE_CHECKING:
    from flowmx.contrib.onnx.graph_import import GraphImport


class NodeImport:
    """An ONNX node under import.

    Attributes:
        kind: its operator.
        name: the name of its first output in the file.
        outputs: the number of its outputs.
        opset: the file's opset.
    """

    def __init__(self, graph: GraphImport, node: Any, name: str) -> None:
        self._graph, self._name = graph, name
        self._inputs = list(node.input)
        self._attributes = {each.name: each for each in node.attribute}
        self.kind: str = node.op_type
        self.name: str = node.output[0]
        self.outputs = len(node.output)
        self.opset = graph.opset

    # -- what is known ---------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, text, a list or an array."""
        if name not in self._attributes:
            return default
        value = need_onnx().helper.get_attribute_value(self._attributes[name])
        if isinstance(value, bytes):
            return value.decode()
        return need_onnx().numpy_helper.to_array(value) if hasattr(value, "raw_data") else value

    def __len__(self) -> int:
        return len(self._inputs)

    def has(self, at: int) -> bool:
        """True where an input is given."""
        return at < len(self._inputs) and self._inputs[at] != ""

    def value(self, at: int) -> Symbol | Known | Values:
        """An input."""
        return self._graph.values[self._inputs[at]]

    def sequence(self, at: int) -> Values:
        """An input that must be a sequence.

        Raises:
            Unsupported: it is an array.
        """
        value = self.value(at)
        if not isinstance(value, Values):
            raise Unsupported(f"its input {self._inputs[at]!r} is an array, expected a sequence")
        return value

    def item(self, at: int) -> Symbol | Known:
        """An input that must be an array, as it stands in a sequence.

        Raises:
            Unsupported: it is a sequence itself.
        """
        value = self.value(at)
        if isinstance(value, Values):
            raise Unsupported(f"its input {self._inputs[at]!r} is a sequence, expected an array")
        return value

    def branch(self, name: str) -> list[Symbol | Known | Values]:
        """The outputs of a graph that is an attribute; it sees the values around it."""
        return self._graph.inline(self._attributes[name].g)

    def as_symbol(self, value: Symbol | Known) -> Symbol:
        """A value as a symbol."""
        return value if isinstance(value, Symbol) else self._graph.constant(value)

    def is_known(self, at: int) -> bool:
        """True where an input is a constant, independent of the model's inputs."""
        return self.has(at) and isinstance(self.value(at), Known)

    def known(self, at: int) -> Known:
        """An input that must be known.

        Raises:
            Unsupported: it is computed.
        """
        value = self.value(at)
        if not isinstance(value, Known):
            raise Unsupported(f"its input {self._inputs[at]!r} is computed, expected a constant")
        return value

    def array(self, at: int) -> Array:
        """An input that must be known and fixed.

        Raises:
            Unsupported: it is computed, or varies with the inputs' shapes.
        """
        known = self.known(at)
        if not known.fixed:
            raise Unsupported(f"its input {self._inputs[at]!r} varies with the inputs' shapes, expected a constant: "
                              "give input_shapes")  # fmt: skip
        return known.trials[0]

    def ints(self, at: int, attribute: str | None = None) -> list[int] | None:
        """Ints from an input, or from an attribute in older opsets; None where they are not given."""
        if self.has(at):
            return [int(each) for each in self.array(at).reshape(-1)]
        given = None if attribute is None else self.attr(attribute)
        return None if given is None else [int(each) for each in given]

    def number(self, at: int, default: float | None = None) -> float | None:
        """A number that is an input."""
        return float(self.array(at).reshape(())) if self.has(at) else default

    def scalar(self, at: int) -> float | None:
        """The number that an input is, without axes; None for anything else."""
        value = self.value(at)
        return (
            float(value.trials[0]) if isinstance(value, Known) and not value.trials[0].shape and value.fixed else None
        )

    def symbol(self, at: int) -> Symbol:
        """An input as a symbol; what is known becomes a parameter."""
        return self._graph.symbol(self._inputs[at])

    def symbols(self) -> list[Symbol]:
        """All inputs as symbols."""
        return [self.symbol(at) for at in range(len(self))]

    def parameter(self, array: Array, name: str) -> Symbol:
        """A new parameter."""
        return self._graph.parameter(f"{self._name}_{name}", array)

    def turned(self, at: int, name: str) -> Symbol:
        """A constant matrix with its axes swapped, as a new parameter."""
        numbers = self.known(at).numbers
        if numbers is not None:
            return self._graph.of_numbers(f"{self._name}_{name}", numbers.turned())
        return self.parameter(self.array(at).T.copy(), name)

    def single(self, at: int) -> Array | None:
        """The one number that a constant input is, as an array without axes; None for anything else."""
        value = self.value(at) if self.has(at) else None
        known = value.trials[0] if isinstance(value, Known) and value.fixed else np.empty(0)
        return known.reshape(()) if known.size == 1 else None

    def auxiliary(self, at: int) -> Symbol:
        """A constant input as a parameter of this node alone."""
        return self._graph.parameter(self._inputs[at], self.array(at))

    def dims(self, given: int | Symbol = 0) -> Lengths:
        """The lengths of the axes of an input, or of a symbol."""
        return self._graph.dims(self.symbol(given) if isinstance(given, int) else given)

    def rank(self, given: int | Symbol = 0) -> int:
        """The number of axes of an input."""
        return len(self.dims(given))

    def dtype(self, given: int | Symbol = 0) -> DType:
        """The dtype of an input, or of a symbol."""
        return self._graph.dtype(self.symbol(given) if isinstance(given, int) else given)

    def alike(self) -> bool:
        """True where all inputs are known to have the same shape."""
        try:
            return len({self.dims(at) for at in range(len(self))}) == 1
        except ShapeError:
            return False

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, counted from the front."""
        axis = int(self.attr("axis", default))
        return axis if axis >= 0 else axis + (self.rank() if rank is None else rank)

    def fixed(self, length: Length, what: str) -> int:
        """A length that must not vary.

        Raises:
            Unsupported: it does.
        """
        if isinstance(length, Varying):
            raise Unsupported(f"{what} varies, expected a fixed length: give input_shapes")
        return length

    # -- making ----------------------------------------------------------------------------------------

    def make(self, operator: str, /, *inputs: Symbol, **parameters: Any) -> Symbol:
        """A symbol of an operator; parameters that are None are left out, where they need not be given."""
        known = lookup(operator).parameters
        given = {key: value for key, value in parameters.items() if value is not None or known[key].required}
        return op(operator, *inputs, name=self._graph.fresh(self._name), **given)

    def same(self) -> Symbol:
        """A symbol of the operator that names this one of ONNX (``Operator.onnx``).

        Raises:
            Unsupported: it has an attribute that is no parameter there, and differs from its default.
        """
        cls, parameters = counterparts()[self.kind], {}
        for name, attribute in definition(self.kind, self.opset).attributes.items():
            value = self.attr(name, _default(attribute))
            if name in cls.onnx_attributes:
                parameters[cls.onnx_attributes[name]] = tuple(value) if isinstance(value, list) else value
            elif name != "consumed_inputs":  # which counted before opset 6, and changes nothing
                self.expect(name, _default(attribute))
        return self.make(cls.name, *self.symbols(), **parameters)

    def zeros(self, dims: Sequence[Length], dtype: str = "float32") -> Symbol:
        """Zeros in a shape that varies as the model's inputs do: made from what these have on such an axis.

        Raises:
            Unsupported: no input has such a length.
        """
        total: Symbol | None = None
        for at, length in enumerate(dims):
            if isinstance(length, Varying):
                shape = tuple(-1 if axis == at else 1 for axis in range(len(dims)))
                line = self.make("Reshape", self._line(length, dtype), shape=shape)
                total = line if total is None else self.make("broadcast_add", total, line)
        shape = tuple(0 if isinstance(length, Varying) or length == 1 else length for length in dims)
        if total is None:
            return self.make("_zeros", shape=tuple(dims), dtype=dtype)
        return self.make("broadcast_to", total, shape=shape) if any(shape) else total

    def _line(self, length: Varying, dtype: str) -> Symbol:
        """Zeros along an axis of that length of an input of the model."""
        made, axis = self._graph.ruler(length)
        for other in range(self.rank(made)):
            if other != axis:
                made = self.make("slice_axis", made, axis=other, begin=0, end=1)
        return self.make("Cast", self.make("zeros_like", made), dtype=dtype)

    def as_number(self, symbol: Symbol) -> Symbol:
        """A condition in float32, so that conditions from values of different dtypes meet."""
        return symbol if self.dtype(symbol) == np.float32 else self.make("Cast", symbol, dtype="float32")

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse an attribute with another value than these, the first of which is its default.

        Raises:
            Unsupported: it has another.
        """
        value = self.attr(name, allowed[0])
        if value not in allowed:
            raise Unsupported(f"its attribute {name} is {value!r}, expected {' or '.join(map(repr, allowed))}")

    def reshape(self, symbol: Symbol, dims: Sequence[Length]) -> Symbol:
        """A symbol in a new shape: a length that varies is that of an axis before, or the only one left.

        Raises:
            Unsupported: more than one is left.
        """
        codes = self._codes(dims, ())
        if codes.count(-1) > 1:
            codes = self._codes(dims, self.dims(symbol))
        if codes.count(-1) <= 1:
            return self.make("Reshape", symbol, shape=tuple(codes))
        found = reshape_codes(self.dims(symbol), tuple(dims))
        if found is None:
            raise Unsupported("several lengths of its result vary: give input_shapes")
        return self.make("Reshape", symbol, shape=found)

    def _codes(self, dims: Sequence[Length], before: Lengths) -> list[int]:
        return [
            (0 if at < len(before) and before[at] == length else -1) if isinstance(length, Varying) else int(length)
            for at, length in enumerate(dims)
        ]


def _default(attribute: Any) -> Any:
    """The default of an attribute, by ONNX's definition of it; None where it has none."""
    if not attribute.default_value.type:
        return None
    value = need_onnx().helper.get_attribute_value(attribute.default_value)
    if isinstance(value, float):  # a float32: 0.2, not 0.20000000298
        return float(str(np.float32(value)))
    return value.decode() if isinstance(value, bytes) else value
