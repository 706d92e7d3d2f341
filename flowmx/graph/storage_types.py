"""Storage-type inference over a graph: which values and gradients are sparse.

A value's storage type follows from those of the variables, as in calls on arrays: through the operator's sparse
implementation (its sparse kernel), or dense if it has none. Graphs without sparse values skip the inference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.errors import MXNetError, ParameterError
from flowmx.graph.gradient import Builder, Value, gradient
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.indexing import Embedding
from flowmx.ops.linalg.dot import Dot
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.second_names import CastStorage

if TYPE_CHECKING:
    from flowmx.ops.sparse.dispatch import SparseKernel

STYPES = ("default", "row_sparse", "csr")
"""The storage types, indexed by their numbers in MXNet's files."""


def storage_number(stype: str) -> int:
    """Return the number of a storage type.

    Raises:
        ParameterError: the storage type is unknown.
    """
    if stype not in STYPES:
        raise ParameterError(f"stype is {stype!r}, expected one of {', '.join(map(repr, STYPES))}")
    return STYPES.index(stype)


def declared_stype(node: Node) -> str:
    """Return the storage type from ``Variable(stype=...)``.

    Raises:
        MXNetError: the attribute is not a valid number.
    """
    number = node.attributes.get("__storage_type__", "0")
    if number not in ("0", "1", "2", "-1"):
        raise MXNetError(f"variable {node.name!r}: __storage_type__ is {number!r}, expected 0, 1 or 2")
    return STYPES[max(0, int(number))]


def may_be_sparse(nodes: Sequence[Node], stypes: Mapping[Node, str]) -> bool:
    """Return whether a value or a gradient of a graph can be sparse."""
    return any(stype != "default" for stype in stypes.values()) or any(
        node.op is not None and node.op.traits.sparse for node in nodes
    )


def makes_sparse(op: Operator) -> bool:
    """Return whether an operator makes sparse values from dense ones."""
    return op.traits.sparse and isinstance(op, (CastStorage, Dot))


def infer_storage_types(
    nodes: Sequence[Node], variables: Mapping[Node, str], shapes: Mapping[Entry, Shape]
) -> dict[Entry, str]:
    """Return the storage type of every entry.

    Args:
        nodes: the nodes of the graph, inputs before users.
        variables: storage types of variables (default: dense).
        shapes: the shape of every entry.

    Raises:
        ParameterError: an operator does not accept inputs of these storage types.
    """
    stypes: dict[Entry, str] = {}
    for node in nodes:
        if node.op is None:
            stypes[Entry(node, 0)] = variables.get(node, "default")
            continue
        kernel = sparse_kernel_of(
            node.op, [stypes[entry] for entry in node.inputs], [shapes[entry] for entry in node.inputs]
        )
        for index in range(node.outputs()):
            stypes[Entry(node, index)] = "default" if kernel is None else kernel.stypes[index]
    return stypes


def sparse_kernel_of(op: Operator, stypes: Sequence[str], shapes: Sequence[Shape]) -> SparseKernel | None:
    """Return the sparse implementation of an operator for inputs of these storage types, or None to run it dense."""
    if not op.traits.sparse and all(stype == "default" for stype in stypes):
        return None
    from flowmx.ops.sparse.dispatch import Call, find_kernel  # needed by few programs

    return find_kernel(Call(op, tuple(stypes), tuple(shapes)))


def gradient_storage_types(
    entries: Sequence[Entry],
    variables: Collection[Node],
    stypes: Mapping[Entry, str],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
) -> dict[Node, str]:
    """Return the storage types of the gradients of variables that the outputs depend on.

    Args:
        entries: the outputs.
        variables: the variables.
        stypes: the storage type of every entry.
        shapes: the shape of every entry.
        dtypes: the dtype of every entry.

    Raises:
        AutogradError: an operator on the path has no gradient.
    """
    build = _Builder(dict(shapes), dict(dtypes), dict(stypes))
    gradients = gradient(entries, [None] * len(entries), variables, build.shapes, build.dtypes, build)
    return {node: build.stypes[entry] for node, entry in gradients.items()}


_DENSE_GRADIENTS = frozenset([
    "expm1", "sin", "cos", "tan", "arcsin", "arctanh", "degrees", "radians", "sinh", "cosh", "tanh", "arcsinh",
    "elemwise_mul", "_maximum", "_minimum", "_hypot", "_power", "broadcast_mul", "broadcast_div", "norm", "clip",
    "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "make_loss",
])  # fmt: skip
"""Operators whose gradients are dense in MXNet, although their computation would make them sparse."""


def _has_dense_gradient(op: Operator) -> bool:
    return op.name in _DENSE_GRADIENTS or (isinstance(op, Embedding) and not op.traits.sparse)


class _Builder(Builder):
    """A builder that infers storage types."""

    repeats = False  # gradients depend on storage types, too

    def __init__(self, shapes: dict[Entry, Shape], dtypes: dict[Entry, DType], stypes: dict[Entry, str]) -> None:
        super().__init__(shapes, dtypes)
        self.stypes = stypes

    def apply(self, op: Operator, inputs: Sequence[Value]) -> Any:
        result = super().apply(op, inputs)
        values = result if isinstance(result, list) else [result]
        kernel = self._kernel(op, inputs)
        node = values[0].entry.node
        for index in range(node.outputs()):
            self.stypes[Entry(node, index)] = "default" if kernel is None else kernel.stypes[index]
        return result

    def ones(self, head: Value) -> Value:
        value = super().ones(head)
        self.stypes[value.entry] = self.stypes[head.entry]  # as in MXNet
        return value

    def differentiate(
        self, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value], heads: Sequence[Value]
    ) -> Sequence[Value | None]:
        kernel = self._kernel(op, inputs)
        if kernel is not None and kernel.gradient is not None:
            results = kernel.gradient(self, _Inputs(inputs, self.needed), outputs, heads)
            return [self._dense(gradient) for gradient in results] if _has_dense_gradient(op) else results
        gradients = super().differentiate(op, inputs, outputs, heads)
        dense = _has_dense_gradient(op) or (len(inputs) == 1 and heads[0].stype == "default")
        return [self._dense(gradient) for gradient in gradients] if dense else gradients

    def _dense(self, gradient: Value | None) -> Value | None:
        if gradient is None or gradient.stype == "default":
            return gradient
        value: Value = self.op("_copy", gradient)
        self.stypes[value.entry] = "default"
        return value

    def _kernel(self, op: Operator, inputs: Sequence[Value]) -> SparseKernel | None:
        return sparse_kernel_of(op, [self.stypes[value.entry] for value in inputs], [value.shape for value in inputs])

    def stype_of(self, entry: Entry) -> str:
        return self.stypes[entry]


class _Inputs(list[Value]):
    """The inputs of an operator, as gradient functions receive them from the tape."""

    def __init__(self, inputs: Sequence[Value], needed: Collection[Node]) -> None:
        super().__init__(inputs)
        self._needed = needed

    def needs_gradient(self, index: int) -> bool:
        """Return whether the gradient of an input is needed."""
        return self[index].entry.node in self._needed

    def unchecked(self, index: int) -> Value:
        """Return an input, to use only its shape and dtype."""
        return self[index]
