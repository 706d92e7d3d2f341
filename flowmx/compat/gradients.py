"""Private helpers of ``mxnet.autograd`` that packages import."""

from __future__ import annotations

from flowmx.errors import AutogradError
from flowmx.graph.node import Entry, Node
from flowmx.name import current
from flowmx.ndarray import NDArray, recording
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry import Operator
from flowmx.symbol import Symbol

__all__ = ["get_symbol"]


def get_symbol(x: NDArray) -> Symbol:
    """The graph that an array was computed by while recording.

    Args:
        x: the array.

    Returns:
        a symbol, whose arguments are the marked variables and the arrays that nothing was recorded of.

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
        self._nodes: dict[recording.TapeNode, Node] = {}

    def node_of(self, entry: recording.Entry) -> Entry:
        """The entry of a graph that an entry of the tape stands for."""
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        waiting = [entry.node]
        while waiting:  # no recursion: tapes are long
            node = waiting[-1]
            before = [each.node for each in node.entries if each is not None]
            missing = [each for each in before if isinstance(each, recording.TapeNode) and each not in self._nodes]
            if missing:
                waiting += missing
                continue
            self._nodes.setdefault(node, self._made(node))
            waiting.pop()
        return Entry(self._nodes[entry.node], entry.index)

    def _made(self, node: recording.TapeNode) -> Node:
        op = getattr(node.gradient, "__self__", None)
        if not isinstance(op, Operator) or node.arrays is None:
            why = "was freed by a backward pass" if node.arrays is None else "is no operator that a graph could have"
            raise AutogradError(f"get_symbol: {node.name!r}, which was recorded on the way, {why}")
        inputs = []
        for entry, array in zip(node.entries, node.arrays, strict=False):
            inputs.append(self._constant(array) if entry is None else self._known(entry))
        return Node(op, current().get(None, node.name.lower().lstrip("_")), tuple(inputs), origin=node.origin)

    def _known(self, entry: recording.Entry) -> Entry:
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        return Entry(self._nodes[entry.node], entry.index)

    def _constant(self, array: BaseArray) -> Entry:
        return self._variable((array._storage, array._view, array._shape))

    def _variable(self, key: object) -> Entry:
        if key not in self._variables:
            self._variables[key] = Entry(Node(None, f"var{len(self._variables)}"), 0)
        return self._variables[key]
