"""Private helpers of ``mxnet.autograd`` that packages import."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.errors import AutogradError
from flowmx.graph.node import Entry, Node, topological
from flowmx.name import current
from flowmx.ndarray import NDArray, recording
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.operators import Operator
from flowmx.symbol import Symbol

__all__ = ["get_symbol"]


def get_symbol(x: NDArray) -> Symbol:
    """The graph that an array was computed by while recording.

    Args:
        x: the array.

    Returns:
        a symbol, whose arguments are the marked variables and the arrays that nothing was recorded of. It has the
        operators of a hybridized block themselves.

    Raises:
        AssertionError: ``x`` is no array (what MXNet raises).
        AutogradError: it was not recorded; or something on the way is no operator that a graph could have, such as an
            ``autograd.Function``.
    """
    if not isinstance(x, NDArray):
        raise AssertionError(f"get_symbol: expected an array, found {type(x).__name__}")
    entry = x._entry
    if entry is None:
        raise AutogradError("get_symbol: the array was not computed inside record()")
    return Symbol([_Reading().node_of(entry)])


class _Reading:
    """The tape as a graph."""

    def __init__(self) -> None:
        self._variables: dict[object, Entry] = {}
        self._made: dict[recording.TapeNode, list[Entry]] = {}

    def node_of(self, entry: recording.TapeEntry) -> Entry:
        """The entry of a graph that an entry of the tape stands for."""
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        waiting = [entry.node]
        while waiting:  # no recursion: tapes are long
            node = waiting[-1]
            before = [each.node for each in node.entries if each is not None]
            missing = [each for each in before if isinstance(each, recording.TapeNode) and each not in self._made]
            if missing:
                waiting += missing
                continue
            self._made.setdefault(node, self._outputs(node))
            waiting.pop()
        return self._made[entry.node][entry.index]

    def _outputs(self, node: recording.TapeNode) -> list[Entry]:
        """The outputs of what was recorded as one operator."""
        op, symbol = getattr(node.gradient, "__self__", None), getattr(node.gradient, "symbol", None)
        if node.arrays is None or not (isinstance(op, Operator) or symbol is not None):
            why = "was freed by a backward pass" if node.arrays is None else "is no operator that a graph could have"
            raise AutogradError(f"get_symbol: {node.name!r}, which was recorded on the way, {why}")
        inputs = []
        for entry, array in zip(node.entries, node.arrays, strict=False):
            inputs.append(self._constant(array) if entry is None else self._known(entry))
        if symbol is not None:
            return _inlined(symbol, inputs)
        label = current().get(None, node.name.lower().lstrip("_"))
        made = Node(op, label, tuple(inputs), origin=node.origin)
        return [Entry(made, index) for index in range(made.outputs())]

    def _known(self, entry: recording.TapeEntry) -> Entry:
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        return self._made[entry.node][entry.index]

    def _constant(self, array: BaseArray) -> Entry:
        return self._variable((array._storage, array._view, array._shape))

    def _variable(self, key: object) -> Entry:
        if key not in self._variables:
            self._variables[key] = Entry(Node(None, f"var{len(self._variables)}"), 0)
        return self._variables[key]


def _inlined(symbol: Symbol, inputs: Sequence[Entry]) -> list[Entry]:
    """The outputs of a symbol on these inputs in place of its variables."""
    nodes = topological(symbol._entries)
    given = dict(zip([Entry(node, 0) for node in nodes if node.is_variable], inputs, strict=False))
    made: dict[Node, Node] = {}

    def new(entry: Entry) -> Entry:
        return given.get(entry) or Entry(made[entry.node], entry.index)

    for node in nodes:
        if not node.is_variable:
            changed = tuple([new(each) for each in node.inputs])
            made[node] = Node(node.op, node.name, changed, node.attributes, node.given, node.origin)
    return [new(each) for each in symbol._entries]
