"""The interface of an export converter: the node that it converts, and methods that write ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported
from flowmx.contrib.onnx.dynamic_lengths import Length, Lengths, Varying
from flowmx.contrib.onnx.graph_builder import Step, tensor_type
from flowmx.contrib.onnx.opsets import definition
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Array, DType

if TYPE_CHECKING:
    from flowmx.contrib.onnx.graph_export import GraphExport

Value = Any
"""An input of an ONNX node: the name of a value, "" for a missing input, or an array or number (a constant)."""

_BOOL = {"tensor(bool)"}


class NodeExport:
    """A node during export.

    Attributes:
        op: the operator, with its parameters as attributes.
        inputs: the names of the ONNX values that it reads.
        opset: the opset of the file.
        steps: the ONNX nodes that it is converted to.
    """

    def __init__(self, graph: GraphExport, node: Node) -> None:
        self._graph, self._node = graph, node
        self.op: Any = node.op
        self.inputs = tuple(graph.names[entry] for entry in node.inputs)
        self.opset = graph.opset
        self.steps: list[Step] = []

    # -- shapes, dtypes and content ---------------------------------------------------------------------------------

    def dims(self, index: int = 0) -> Lengths:
        """Return the lengths of an input's axes."""
        return self._graph.shapes[self._node.inputs[index]]

    def out_dims(self, index: int = 0) -> Lengths:
        """Return the lengths of an output's axes."""
        return self._graph.shapes[Entry(self._node, index)]

    def rank(self, index: int = 0) -> int:
        """Return the number of axes of an input."""
        return len(self.dims(index))

    def dtype(self, index: int = 0) -> DType:
        """Return the dtype of an input."""
        return self._graph.dtypes[self._node.inputs[index]]

    def out_dtype(self, index: int = 0) -> DType:
        """Return the dtype of an output."""
        return self._graph.dtypes[Entry(self._node, index)]

    def fixed(self, length: Length, what: str) -> int:
        """Return a length that must not vary.

        Raises:
            Unsupported: it varies.
        """
        if isinstance(length, Varying):
            raise Unsupported(f"{what} varies with the inputs, expected a fixed length: exclude it from `dynamic`")
        return length

    def source(self, index: int) -> str | None:
        """Return the name of the operator that computes an input; None for a variable."""
        op = self._node.inputs[index].node.op
        return None if op is None else op.name

    def content(self, index: int) -> Array:
        """Return the content of an input that depends only on parameters.

        Raises:
            Unsupported: it depends on an input of the model.
        """
        return self._graph.content(self._node.inputs[index])

    def range(self, index: int) -> tuple[np.float32, np.float32]:
        """Return the range whose ends are an input and the next one.

        Raises:
            Unsupported: it is measured at each call.
        """
        low, high = (self._graph.end(entry) for entry in self._node.inputs[index : index + 2])
        return low, high

    def knows_range(self, index: int) -> bool:
        """Return whether :meth:`range` is known."""
        try:
            return bool(self.range(index))
        except Unsupported:
            return False

    def uses(self, output: int) -> bool:
        """Return whether an output is used."""
        return Entry(self._node, output) in self._graph.used

    # -- writing ---------------------------------------------------------------------------------------

    def add(self, kind: str, *inputs: Value, **attributes: object) -> str:
        """Add an ONNX node with one output, and return the output's name. Attributes that are None are omitted."""
        return self.add_many(kind, 1, *inputs, **attributes)[0]

    def add_many(self, kind: str, outputs: int, *inputs: Value, **attributes: object) -> list[str]:
        """Add an ONNX node with several outputs."""
        fresh = self._graph.steps.fresh
        names = [fresh(f"{self._node.name}.{kind.lower()}") for _ in range(outputs)]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        step = Step(kind, fresh(self._node.name), [self.value(value) for value in inputs], names, attributes)
        self.steps.append(step)
        return names

    def equivalent(self, *inputs: Value) -> str:
        """Add the equivalent ONNX operator (``Operator.onnx``), converting between its bools and MXNet's numbers."""
        schema = definition(self.op.onnx, self.opset)
        if schema.inputs[0].types == _BOOL:
            inputs = tuple(
                value.astype(bool) if isinstance(value, np.ndarray) else self.cast(value, bool) for value in inputs
            )
        attributes = {name: getattr(self.op, parameter) for name, parameter in self.op.onnx_attributes.items()}
        result = self.add(self.op.onnx, *inputs[: schema.max_input], **attributes)
        return self.truth(result) if schema.outputs[0].types == _BOOL else result

    def value(self, value: Value) -> str:
        """Return the name of a value. Arrays and numbers become constants: int64, or the dtype of the first input."""
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic):
            array = array.astype(self.dtype() if array.dtype.kind == "f" else np.int64)
        return self._graph.steps.constant(array, f"{self._node.name}.constant")

    def own_constant(self, name: str, value: Array) -> str:
        """Add a constant that is not shared with other nodes."""
        name = self._graph.steps.fresh(name)
        self._graph.steps.constants[name] = value
        return name

    def number(self, value: float, index: int = 0) -> Array:
        """Return a number in the dtype of an input."""
        return np.asarray(value, self.dtype(index))

    def cast(self, value: str, dtype: object) -> str:
        """Cast a value to a different dtype."""
        return self.add("Cast", value, to=tensor_type(dtype))

    def truth(self, value: str) -> str:
        """Cast a condition to the numbers 0 and 1, as MXNet's comparisons return."""
        return self.cast(value, self.out_dtype())

    def condition(self, index: int) -> str:
        """Cast an input to a condition: whether it is not 0."""
        return self.add("Cast", self.inputs[index], to=tensor_type(bool))

    def as_int64(self, index: int) -> str:
        """Cast an input of indices to int64."""
        return self.inputs[index] if self.dtype(index) == np.int64 else self.cast(self.inputs[index], np.int64)

    def reduce(self, kind: str, value: str, axes: Sequence[int] | None, keepdims: bool = True) -> str:
        """Add a reduction. Its axes are an input since opset 18, and since 13 for sums."""
        axes = None if axes is None else [int(axis) for axis in axes]
        if kind == "ReduceSum" or self.opset >= 18:
            return self.add(kind, value, *([] if axes is None else [np.array(axes, np.int64)]), keepdims=int(keepdims))
        return self.add(kind, value, axes=axes, keepdims=int(keepdims))

    def slice(self, value: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """Slice one axis."""
        return self.add("Slice", value, [begin], [end], [axis], [step])

    def transpose(self, value: str, axes: Sequence[int]) -> str:
        """Permute the axes of a value."""
        return value if list(axes) == list(range(len(axes))) else self.add("Transpose", value, perm=list(axes))

    # -- shapes ----------------------------------------------------------------------------------------

    def reshape(self, value: str, old: Lengths, new: Lengths) -> str:
        """Reshape a value. The shape is computed in the model if more than one length varies."""
        varying = [index for index, length in enumerate(new) if isinstance(length, Varying)]
        kept_axes = [index for index in varying if index < len(old) and old[index] == new[index]]
        changed_axes = [index for index in varying if index not in kept_axes]
        if 0 in new and self.opset < 14:
            if [
                index for index, n in enumerate(new) if n == 0 and (index >= len(old) or old[index] != 0)
            ] or changed_axes:
                raise Unsupported(f"its result is empty, which needs opset 14, not {self.opset}: set opset_version")
        elif 0 in new or len(changed_axes) > 1:
            return self.add("Reshape", value, self.shape(new), allowzero=1 if 0 in new else None)
        codes = [
            0 if index in kept_axes else -1 if index in changed_axes else self.fixed(length, "")
            for index, length in enumerate(new)
        ]
        return self.add("Reshape", value, codes)

    def shape(self, dims: Lengths) -> str:
        """Return a vector of lengths. Varying ones are computed from the shapes of inputs at run time."""
        if not any(isinstance(length, Varying) for length in dims):
            return self.value(np.array(dims, np.int64))
        parts = [self.length(dim) if isinstance(dim, Varying) else self.value([dim]) for dim in dims]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def length(self, target: Varying) -> str:
        """Return a vector with a varying length.

        Raises:
            Unsupported: it is not a multiple of a length of an input of the node or the model.
        """
        candidates = [
            (times, name, axis)
            for name, dims in self._available_lengths()
            for axis, length in enumerate(dims)
            if isinstance(length, Varying) and (times := target.ratio_to(length))
        ]
        if candidates:
            times, name, axis = min(candidates, key=lambda candidate: candidate[0])
            length = self.add("Gather", self.add("Shape", name), [axis], axis=0)
            return length if times == 1 else self.add("Mul", length, [times])
        raise Unsupported(f"a varying length ({target.first} or {target.second}) is not a multiple of any input's")

    def _available_lengths(self) -> list[tuple[str, Lengths]]:
        inputs = [(name, self.dims(index)) for index, name in enumerate(self.inputs)]
        names, shapes = self._graph.names, self._graph.shapes
        return inputs + [(names[entry], shapes[entry]) for entry in self._graph.inputs if entry in names]
