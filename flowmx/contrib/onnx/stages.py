"""The import of a graph for fixed input shapes, in stages.

A stage ends at a node that needs the content of a computed value: a length, or a condition. The value is read while the
model runs, and the remaining nodes are imported with it as a constant.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.contrib.onnx.converters import ONNXError, ShapeByContent, Unsupported, ValueNeeded, need_onnx
from flowmx.contrib.onnx.graph_import import GraphImport, cannot_import, title
from flowmx.contrib.onnx.import_constants import Known, Values
from flowmx.contrib.onnx.names import Names
from flowmx.errors import MXNetError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Shape
from flowmx.symbol import Symbol

_CONDITIONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"}
"""Operators whose outputs are of type bool; flowmx computes numbers."""
_LONGEST = 1 << 16
"""The largest number of elements of a value that is read."""


class Cut(NamedTuple):
    """The end of a stage that is not the last.

    Attributes:
        names: the values to read.
        node: the node that computes the shape of its outputs from their content; None if the values become constants.
    """

    names: tuple[str, ...]
    node: Any = None


class _Alias(NamedTuple):
    """An output of a branch, and its name in the outer graph."""

    source: str
    target: str


class SharedConstants:
    """The constants that all stages share.

    Equal parameters of the same name are one parameter. Constants that do not depend on shapes are computed once.

    Attributes:
        tensors: the constants of the file.
        outputs: the names of the outputs of nodes that are not in branches; those of two branches may be equal.
        folded: the outputs of nodes that depend on constants of the file alone, by the name of the first output.
    """

    def __init__(self, model: Any) -> None:
        self.tensors = {tensor.name: Known.of_tensor(tensor) for tensor in model.graph.initializer}
        self.outputs = {name for node in model.graph.node for name in node.output}
        self.folded: dict[str, list[Known] | None] = {}
        self._digests: dict[str, bytes] = {}

    def name(self, base: str, array: Array, taken: Names, source: str) -> str:
        """Return a name that belongs to no other array, and is not taken.

        Args:
            base: the name, to which a number is appended if necessary.
            array: the content of the parameter.
            taken: the names in use in this stage.
            source: the constants of the file that determine the content; "" if it also depends on shapes.
        """
        digest = f"{array.dtype} {array.shape} {source}".encode()
        if not source:
            digest += hashlib.blake2b(array.tobytes(), digest_size=16).digest()
        name, number = base, 0
        while name in taken or self._digests.setdefault(name, digest) != digest:
            number += 1
            name = f"{base}_{number}"
        return name


class StageImport(GraphImport):
    """The import of a graph, up to the first node that needs the content of a computed value.

    Args:
        model: the model.
        input_shapes: the shape of each input.
        shared: the constants of all stages.
        constants: the content of inputs that are constants.
    """

    def __init__(
        self, model: object, input_shapes: Mapping[str, Sequence[int]], shared: SharedConstants,
        constants: Mapping[str, object] = {},
    ) -> None:  # fmt: skip
        self._shared = shared
        super().__init__(model, input_shapes, constants)
        self._arrays = {value.name for value in self.inputs}
        self._rest: deque[Any] = deque(self._graph.node)
        self._producers = {name: node for node in self._graph.node for name in node.output}

    def resume(self, arrays: Mapping[str, tuple[Shape, DType]], constants: Mapping[str, Array]) -> StageImport:
        """Return the import of the remaining nodes.

        Args:
            arrays: shapes and dtypes of the values that the next stage can read.
            constants: values that are constants from now on.
        """
        other = copy.copy(self)
        other._params, other._variables, other._shapes, other._dtypes = {}, {}, {}, {}
        other._names = Names()
        other._rest = self._rest.copy()
        other._arrays = set(arrays) - set(constants)
        other.values = {name: _detach(value) for name, value in self.values.items() if isinstance(value, Known)}
        for name, (shape, dtype) in arrays.items():
            other.values[name] = other._variable(name, shape, dtype)
        for name, array in constants.items():
            other.values[name] = Known.constant(array, name)
        return other

    def tensors(self) -> Mapping[str, Known]:
        return self._shared.tensors

    def parameter(self, name: str, array: Array, source: str = "") -> Symbol:
        array = array.astype(np.float32) if array.dtype == bool else array
        return super().parameter(self._shared.name(name, array, self._names, source), array)

    def fold(self, node: Any, inputs: Sequence[Known | None]) -> list[Known] | None:
        name = node.output[0]
        if name not in self._shared.outputs or not all(value is None or value.is_from_file for value in inputs):
            results = super().fold(node, inputs)
            for value in results or ():
                value.is_from_file = value.is_from_file and name in self._shared.outputs
            return results
        if name not in self._shared.folded:
            self._shared.folded[name] = super().fold(node, inputs)
        return self._shared.folded[name]

    def advance(self) -> Cut | None:
        """Convert nodes, and return where the next stage begins; None if all nodes are converted.

        Raises:
            ONNXError: a node cannot be converted.
        """
        while self._rest:
            node = self._rest[0]
            try:
                self._step(node)
            except ValueNeeded as error:
                if any(not isinstance(self.values.get(name), Symbol) for name in error.names):
                    raise cannot_import([f"{title(node)}: {error}"]) from None
                return Cut(error.names)
            except ShapeByContent:
                self._rest.popleft()
                return Cut(tuple(node.input), node)
            except (MXNetError, Unsupported) as error:
                raise cannot_import([f"{title(node)}: {error}"]) from error
        return None

    def _step(self, node: Any) -> None:
        """Convert the first of the remaining nodes, or replace it by the branch that it selects."""
        if isinstance(node, _Alias):
            self.values[node.target] = self.values[node.source]
        elif node.op_type == "If" and isinstance(condition := self.values[node.input[0]], Known):
            label = "then_branch" if condition.trials[0].reshape(()) else "else_branch"
            (branch,) = (attribute.g for attribute in node.attribute if attribute.name == label)
            self.enter(branch)
            self._producers |= {name: inner for inner in branch.node for name in inner.output}
            names = zip((value.name for value in branch.output), node.output, strict=True)
            self._rest.popleft()
            self._rest.extendleft(reversed([*branch.node, *(_Alias(source, target) for source, target in names)]))
            return
        else:
            self.convert(node)
        self._rest.popleft()

    def needed(self, cut: Cut | None) -> list[str]:
        """Return the names of the values that this stage must compute: the model's outputs, or those of later use.

        Raises:
            ONNXError: one is a sequence.
        """
        names = dict.fromkeys(value.name for value in self.outputs)
        if cut is not None:
            names = dict.fromkeys((*cut.names, *_read(self._rest), *names))
        if any(isinstance(self.values.get(name), Values) for name in names):
            raise ONNXError("a sequence is read after a value that is computed while the model runs: set input_shapes")
        return [name for name in names if isinstance(self.values.get(name), Symbol) and name not in self._arrays]

    def constants(self) -> dict[str, Array]:
        """Return the model's outputs that are constants."""
        values = ((value.name, self.values.get(value.name)) for value in self.outputs)
        return {name: value.trials[0] for name, value in values if isinstance(value, Known)}

    def known_array(self, name: str) -> Array | None:
        """Return the content of a constant; None for an input that is absent."""
        value = self.values[name]
        return value.trials[0] if name and isinstance(value, Known) else None

    def as_constant(self, name: str, array: Array) -> Array:
        """Return the content of a value with the dtype that it has in ONNX.

        Raises:
            ONNXError: it is too large.
        """
        if array.size > _LONGEST:
            raise ONNXError(f"the value {name!r} of shape {array.shape} would have to be a constant: set input_shapes")
        node = self._producers.get(name)
        is_cast = node is not None and node.op_type == "Cast" and node.attribute[0].i == need_onnx().TensorProto.BOOL
        return array.astype(bool) if is_cast or (node is not None and node.op_type in _CONDITIONS) else array


def _detach(value: Known) -> Known:
    """Return a known value without the symbols that it refers to."""
    detached = Known.constant(value.trials[0], value.name)
    detached.numbers, detached.is_from_file = value.numbers, value.is_from_file
    return detached


def _read(nodes: Sequence[Any] | deque[Any]) -> Iterator[str]:
    """Return the names that nodes and their subgraphs read."""
    for node in nodes:
        if isinstance(node, _Alias):
            yield node.source
            continue
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g.node)
                yield from (value.name for value in attribute.g.output)
