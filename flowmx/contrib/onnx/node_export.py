"""The interface of an export converter: the node that it converts, and methods that write ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, definition
from flowmx.contrib.onnx.lengths import Length, Lengths, Varying
from flowmx.contrib.onnx.steps import Step, tensor_type
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import DType

if TYPE_CHECKING:
    from flowmx.contrib.onnx.graph_export import GraphExport

Value = Any
"""An input of an ONNX node: the name of a value, "" for none, or an array (or number) that becomes a constant."""

_BOOL = {"tensor(bool)"}


class NodeExport:
    """A node under export.

    Attributes:
        op: the operator, with its parameters as attributes.
        inputs: the ONNX values that it reads.
        opset: the opset that is written.
    """

    def __init__(self, graph: GraphExport, node: Node) -> None:
        self._graph, self._node = graph, node
        self.op: Any = node.op
        self.inputs = tuple(graph.names[entry] for entry in node.inputs)
        self.opset = graph.opset
        self.made: list[Step] = []

    # -- what is known ---------------------------------------------------------------------------------

    def dims(self, at: int = 0) -> Lengths:
        """The lengths of an input's axes."""
        return self._graph.shapes[self._node.inputs[at]]

    def out_dims(self, at: int = 0) -> Lengths:
        """The lengths of an output's axes."""
        return self._graph.shapes[Entry(self._node, at)]

    def rank(self, at: int = 0) -> int:
        """The number of axes of an input."""
        return len(self.dims(at))

    def dtype(self, at: int = 0) -> DType:
        """The dtype of an input."""
        return self._graph.dtypes[self._node.inputs[at]]

    def out_dtype(self, at: int = 0) -> DType:
        """The dtype of an output."""
        return self._graph.dtypes[Entry(self._node, at)]

    def fixed(self, length: Length, what: str) -> int:
        """A length that must not vary.

        Raises:
            Unsupported: it does.
        """
        if isinstance(length, Varying):
            raise Unsupported(f"{what} varies with the inputs, expected a fixed length: leave it out of `dynamic`")
        return length

    def source(self, at: int) -> str | None:
        """The name of the operator that makes an input; None for a variable."""
        op = self._node.inputs[at].node.op
        return None if op is None else op.name

    def content(self, at: int) -> np.ndarray[Any, Any]:
        """The content of an input that depends on parameters alone.

        Raises:
            Unsupported: it depends on an input of the model.
        """
        return self._graph.content(self._node.inputs[at])

    def range(self, at: int) -> tuple[np.float32, np.float32]:
        """The range whose ends are an input and the next one.

        Raises:
            Unsupported: it is found at each call.
        """
        low, high = (self._graph.end(entry) for entry in self._node.inputs[at : at + 2])
        return low, high

    def knows_range(self, at: int) -> bool:
        """True where :meth:`range` is known."""
        try:
            return bool(self.range(at))
        except Unsupported:
            return False

    def uses(self, output: int) -> bool:
        """True where an output is used."""
        return Entry(self._node, output) in self._graph.used

    # -- writing ---------------------------------------------------------------------------------------

    def add(self, kind: str, *inputs: Value, **attributes: Any) -> str:
        """Write an ONNX node with one output; attributes that are None are left out. Returns the output's name."""
        return self.add_many(kind, 1, *inputs, **attributes)[0]

    def add_many(self, kind: str, outputs: int, *inputs: Value, **attributes: Any) -> list[str]:
        """Write an ONNX node with several outputs."""
        steps = self._graph.steps
        names = [steps.fresh(f"{self._node.name}.{kind.lower()}") for _ in range(outputs)]
        given = {key: value for key, value in attributes.items() if value is not None}
        step = Step(kind, steps.fresh(self._node.name), [self.value(each) for each in inputs], names, given)
        self.made.append(step)
        return names

    def same(self, *inputs: Value) -> str:
        """Write the operator of ONNX that this one names (``Operator.onnx``); what is a bool there is a number here."""
        known = definition(self.op.onnx, self.opset)
        if known.inputs[0].types == _BOOL:
            inputs = tuple(
                each.astype(bool) if isinstance(each, np.ndarray) else self.cast(each, bool) for each in inputs
            )
        attributes = {name: getattr(self.op, parameter) for name, parameter in self.op.onnx_attributes.items()}
        made = self.add(self.op.onnx, *inputs[: known.max_input], **attributes)
        return self.truth(made) if known.outputs[0].types == _BOOL else made

    def value(self, given: Value) -> str:
        """The name of a value; arrays and numbers become constants, whole ones of int64, others as the first input."""
        if isinstance(given, str):
            return given
        array = np.asarray(given)
        if not isinstance(given, np.ndarray | np.generic):
            array = array.astype(self.dtype() if array.dtype.kind == "f" else np.int64)
        return self._graph.steps.constant(array, f"{self._node.name}.constant")

    def own(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """A constant that no other node shares."""
        name = self._graph.steps.fresh(name)
        self._graph.steps.constants[name] = value
        return name

    def number(self, given: float, at: int = 0) -> np.ndarray[Any, Any]:
        """A number in the dtype of an input."""
        return np.asarray(given, self.dtype(at))

    def cast(self, value: str, dtype: Any) -> str:
        """The value in another dtype."""
        return self.add("Cast", value, to=tensor_type(dtype))

    def truth(self, value: str) -> str:
        """A condition as the numbers 0 and 1, which MXNet's comparisons give."""
        return self.cast(value, self.out_dtype())

    def condition(self, at: int) -> str:
        """An input as a condition: whether it is not 0."""
        return self.add("Cast", self.inputs[at], to=tensor_type(bool))

    def whole(self, at: int) -> str:
        """An input of indices as int64."""
        return self.inputs[at] if self.dtype(at) == np.int64 else self.cast(self.inputs[at], np.int64)

    def reduce(self, kind: str, value: str, axes: Sequence[int] | None, keepdims: bool = True) -> str:
        """A reduction; the axes are an input since opset 18, and since 13 for sums."""
        given = None if axes is None else [int(axis) for axis in axes]
        if kind == "ReduceSum" or self.opset >= 18:
            return self.add(
                kind, value, *([] if given is None else [np.array(given, np.int64)]), keepdims=int(keepdims)
            )
        return self.add(kind, value, axes=given, keepdims=int(keepdims))

    def slice(self, value: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """A part of one axis."""
        return self.add("Slice", value, [begin], [end], [axis], [step])

    def transpose(self, value: str, axes: Sequence[int]) -> str:
        """The value with its axes in another order."""
        return value if list(axes) == list(range(len(axes))) else self.add("Transpose", value, perm=list(axes))

    # -- shapes ----------------------------------------------------------------------------------------

    def reshape(self, value: str, old: Lengths, new: Lengths) -> str:
        """The value in a new shape, which is computed in the file where more than one length varies."""
        varying = [at for at, length in enumerate(new) if isinstance(length, Varying)]
        kept = [at for at in varying if at < len(old) and old[at] == new[at]]
        left = [at for at in varying if at not in kept]
        if 0 in new and self.opset < 14:
            if [at for at, n in enumerate(new) if n == 0 and (at >= len(old) or old[at] != 0)] or left:
                raise Unsupported(f"its result is empty, which needs opset 14, not {self.opset}: give opset_version")
        elif 0 in new or len(left) > 1:
            return self.add("Reshape", value, self.shape(new), allowzero=1 if 0 in new else None)
        codes = [0 if at in kept else -1 if at in left else self.fixed(length, "") for at, length in enumerate(new)]
        return self.add("Reshape", value, codes)

    def shape(self, dims: Lengths) -> str:
        """A vector of lengths; those that vary are taken from the shapes of inputs when the file is run."""
        if not any(isinstance(length, Varying) for length in dims):
            return self.value(np.array(dims, np.int64))
        parts = [self.length(each) if isinstance(each, Varying) else self.value([each]) for each in dims]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def length(self, wanted: Varying) -> str:
        """A vector with a length that varies.

        Raises:
            Unsupported: it is no multiple of a length of an input of the node or the model.
        """
        found = [
            (times, name, axis)
            for name, dims in self._measures()
            for axis, length in enumerate(dims)
            if isinstance(length, Varying) and (times := wanted.times(length))
        ]
        if found:
            times, name, axis = min(found, key=lambda each: each[0])
            length = self.add("Gather", self.add("Shape", name), [axis], axis=0)
            return length if times == 1 else self.add("Mul", length, [times])
        raise Unsupported(f"a length that varies ({wanted.first} or {wanted.second}) is no multiple of any input's")

    def _measures(self) -> list[tuple[str, Lengths]]:
        own = [(name, self.dims(at)) for at, name in enumerate(self.inputs)]
        return own + [(self._graph.names[entry], self._graph.shapes[entry]) for entry in self._graph.inputs]
