"""``mxnet.autograd.get_symbol``: converts the recorded tape of an array to a symbol."""

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
    """Return the recorded graph that computed an array.

    Args:
        x: the array.

    Returns:
        a symbol, whose arguments are the marked variables and the arrays without a recorded history. The operators of
        hybridized blocks are inlined.

    Raises:
        AssertionError: ``x`` is not an array (MXNet's exception).
        AutogradError: the array was not recorded, or its history includes an operation that is not a graph operator,
            such as an ``autograd.Function``.
    """
    if not isinstance(x, NDArray):
        raise AssertionError(f"get_symbol: expected an array, found {type(x).__name__}")
    entry = x.tape_entry
    if entry is None:
        raise AutogradError("get_symbol: the array was not computed inside record()")
    return Symbol([_TapeReader().node_of(entry)])


class _TapeReader:
    """Converts the tape to graph nodes."""

    def __init__(self) -> None:
        self._variables: dict[object, Entry] = {}
        self._converted: dict[recording.TapeNode, list[Entry]] = {}

    def node_of(self, entry: recording.TapeEntry) -> Entry:
        """Return the graph entry of a tape entry."""
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        waiting = [entry.node]
        while waiting:  # iterative, because tapes are long
            node = waiting[-1]
            sources = [source.node for source in node.entries if source is not None]
            missing = [each for each in sources if isinstance(each, recording.TapeNode) and each not in self._converted]
            if missing:
                waiting += missing
                continue
            self._converted.setdefault(node, self._outputs(node))
            waiting.pop()
        return self._converted[entry.node][entry.index]

    def _outputs(self, node: recording.TapeNode) -> list[Entry]:
        """Return the graph entries of the outputs of a tape node."""
        op, symbol = getattr(node.gradient, "__self__", None), getattr(node.gradient, "symbol", None)
        if node.arrays is None or not (isinstance(op, Operator) or symbol is not None):
            reason = "was freed by a backward pass" if node.arrays is None else "is not a graph operator"
            raise AutogradError(f"get_symbol: {node.name!r}, in the history of the array, {reason}")
        inputs = []
        for entry, array in zip(node.entries, node.arrays, strict=False):
            inputs.append(self._constant(array) if entry is None else self._input(entry))
        if symbol is not None:
            return _inline(symbol, inputs)
        label = current().get(None, node.name.lower().lstrip("_"))
        operator = Node(op, label, tuple(inputs), origin=node.origin)
        return [Entry(operator, index) for index in range(operator.outputs())]

    def _input(self, entry: recording.TapeEntry) -> Entry:
        if isinstance(entry.node, recording.Leaf):
            return self._variable(entry.node)
        return self._converted[entry.node][entry.index]

    def _constant(self, array: BaseArray) -> Entry:
        return self._variable((array.storage, array.strided_view, array.dims))

    def _variable(self, key: object) -> Entry:
        if key not in self._variables:
            self._variables[key] = Entry(Node(None, f"var{len(self._variables)}"), 0)
        return self._variables[key]


def _inline(symbol: Symbol, inputs: Sequence[Entry]) -> list[Entry]:
    """Return the outputs of a symbol with its variables replaced by inputs."""
    nodes = topological(symbol.entries)
    replacements = dict(zip([Entry(node, 0) for node in nodes if node.is_variable], inputs, strict=False))
    copies: dict[Node, Node] = {}

    def new(entry: Entry) -> Entry:
        return replacements.get(entry) or Entry(copies[entry.node], entry.index)

    for node in nodes:
        if not node.is_variable:
            new_inputs = tuple([new(entry) for entry in node.inputs])
            copies[node] = Node(node.op, node.name, new_inputs, node.attributes, node.user_parameters, node.origin)
    return [new(entry) for entry in symbol.entries]
