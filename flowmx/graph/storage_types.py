"""Storage-type inference over a graph: which values and which gradients are sparse.

A value's storage type follows from those of the variables as it does in calls on arrays: by the way that an operator
has on these, or dense where it has none. A graph with nothing sparse in it is never looked at closely.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.errors import MXNetError, ParameterError
from flowmx.graph.gradient import Builder, Value, gradient
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.indexing import Embedding
from flowmx.ops.linalg.matrix import Dot
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.second_names import CastStorage

if TYPE_CHECKING:
    from flowmx.ops.sparse.ways import Way

STYPES = ("default", "row_sparse", "csr")
"""The storage types, at the numbers that MXNet's files give them."""


def storage_number(stype: str) -> int:
    """The number of a storage type.

    Raises:
        ParameterError: there is no such.
    """
    if stype not in STYPES:
        raise ParameterError(f"stype is {stype!r}, expected one of {', '.join(map(repr, STYPES))}")
    return STYPES.index(stype)


def declared(node: Node) -> str:
    """The storage type that ``Variable(stype=...)`` gave.

    Raises:
        MXNetError: the attribute is none of the known numbers.
    """
    number = node.attributes.get("__storage_type__", "0")
    if number not in ("0", "1", "2", "-1"):
        raise MXNetError(f"variable {node.name!r}: __storage_type__ is {number!r}, expected 0, 1 or 2")
    return STYPES[max(0, int(number))]


def may_be_sparse(nodes: Sequence[Node], known: Mapping[Node, str]) -> bool:
    """Tell whether a value or a gradient of a graph can be sparse at all."""
    return any(stype != "default" for stype in known.values()) or any(
        node.op is not None and node.op.traits.sparse for node in nodes
    )


def makes_sparse(op: Operator) -> bool:
    """Tell whether an operator makes sparse values of dense ones."""
    return op.traits.sparse and isinstance(op, (CastStorage, Dot))


def infer_storage_types(
    nodes: Sequence[Node], known: Mapping[Node, str], shapes: Mapping[Entry, Shape]
) -> dict[Entry, str]:
    """The storage type of every entry.

    Args:
        nodes: of the graph, each after its inputs.
        known: of variables; others are dense.
        shapes: of every entry.

    Raises:
        ParameterError: an operator refuses inputs of these storage types.
    """
    stypes: dict[Entry, str] = {}
    for node in nodes:
        if node.op is None:
            stypes[Entry(node, 0)] = known.get(node, "default")
            continue
        found = way_of(node.op, [stypes[each] for each in node.inputs], [shapes[each] for each in node.inputs])
        for index in range(node.outputs()):
            stypes[Entry(node, index)] = "default" if found is None else found.stypes[index]
    return stypes


def way_of(op: Operator, stypes: Sequence[str], shapes: Sequence[Shape]) -> Way | None:
    """The way of an operator on inputs of these storage types; None where none is sparse, or there is no way."""
    if not op.traits.sparse and all(each == "default" for each in stypes):
        return None
    from flowmx.ops.sparse.ways import Call, find  # which few programs need

    return find(Call(op, tuple(stypes), tuple(shapes)))


def gradient_storage_types(
    entries: Sequence[Entry],
    wanted: Collection[Node],
    stypes: Mapping[Entry, str],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
) -> dict[Node, str]:
    """The storage types of the gradients of variables on which the outputs depend.

    Args:
        entries: the outputs.
        wanted: the variables.
        stypes: of every entry.
        shapes: likewise.
        dtypes: likewise.

    Raises:
        AutogradError: an operator on the way has no gradient.
    """
    build = _Builder(dict(shapes), dict(dtypes), dict(stypes))
    found = gradient(entries, [None] * len(entries), wanted, build.shapes, build.dtypes, build)
    return {node: build.stypes[entry] for node, entry in found.items()}


_DENSE_GRADIENTS = frozenset([
    "expm1", "sin", "cos", "tan", "arcsin", "arctanh", "degrees", "radians", "sinh", "cosh", "tanh", "arcsinh",
    "elemwise_mul", "_maximum", "_minimum", "_hypot", "_power", "broadcast_mul", "broadcast_div", "norm", "clip",
    "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "make_loss",
])  # fmt: skip
"""Operators whose gradients are dense in MXNet, where ways would leave them sparse."""


def _has_dense_gradient(op: Operator) -> bool:
    return op.name in _DENSE_GRADIENTS or (isinstance(op, Embedding) and not op.traits.sparse)


class _Builder(Builder):
    """A builder that infers storage types."""

    repeats = False  # what a gradient does depends on them, too

    def __init__(self, shapes: dict[Entry, Shape], dtypes: dict[Entry, DType], stypes: dict[Entry, str]) -> None:
        super().__init__(shapes, dtypes)
        self.stypes = stypes

    def apply(self, op: Operator, inputs: Sequence[Value]) -> Any:
        made = super().apply(op, inputs)
        values = made if isinstance(made, list) else [made]
        way = self._way(op, inputs)
        node = values[0].entry.node
        for index in range(node.outputs()):
            self.stypes[Entry(node, index)] = "default" if way is None else way.stypes[index]
        return made

    def ones(self, head: Value) -> Value:
        made = super().ones(head)
        self.stypes[made.entry] = self.stypes[head.entry]  # as MXNet infers it
        return made

    def differentiate(
        self, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value], heads: Sequence[Value]
    ) -> Sequence[Value | None]:
        way = self._way(op, inputs)
        if way is not None and way.gradient is not None:
            results = way.gradient(self, _Inputs(inputs, self.needed), outputs, heads)
            return [self._dense(each) for each in results] if _has_dense_gradient(op) else results
        found = super().differentiate(op, inputs, outputs, heads)
        dense = _has_dense_gradient(op) or (len(inputs) == 1 and heads[0].stype == "default")
        return [self._dense(each) for each in found] if dense else found

    def _dense(self, gradient: Value | None) -> Value | None:
        if gradient is None or gradient.stype == "default":
            return gradient
        made: Value = self.op("_copy", gradient)
        self.stypes[made.entry] = "default"
        return made

    def _way(self, op: Operator, inputs: Sequence[Value]) -> Way | None:
        return way_of(op, [self.stypes[each.entry] for each in inputs], [each.shape for each in inputs])

    def stype_of(self, entry: Entry) -> str:
        return self.stypes[entry]


class _Inputs(list[Value]):
    """The inputs of an operator, as gradients get them from the tape."""

    def __init__(self, inputs: Sequence[Value], needed: Collection[Node]) -> None:
        super().__init__(inputs)
        self._needed = needed

    def wanted(self, index: int) -> bool:
        """Tell whether the gradient of an input is needed."""
        return self[index].entry.node in self._needed

    def unchecked(self, index: int) -> Value:
        """An input of which only the shape and dtype will be looked at."""
        return self[index]
