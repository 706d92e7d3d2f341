"""Quantization of a floating-point graph, with the conversions in between."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from flowmx.errors import MXNetError, ParameterError
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.node_selection import select_nodes
from flowmx.ops.quantization.conversions import Dequantize, QuantizeV2, Requantize
from flowmx.ops.quantization.quantized_rnn import QuantizeAsymmetrically
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.ops.registry.traits import Quantization

__all__ = ["QuantizeOptions", "quantize"]


class QuantizeOptions(NamedTuple):
    """Options of quantization.

    Attributes:
        excluded: names of excluded nodes.
        excluded_operators: names of excluded operators.
        offline: names of the variables whose values are quantized outside the graph.
        dtype: ``int8``, ``uint8`` or ``auto``, of all values except weights, which are int8.
        everything: quantize all that can be; otherwise, operators that do not pay off alone only between others.
        by_channel: give weights a scale for each channel, if possible.
    """

    excluded: Collection[str] = ()
    excluded_operators: Collection[str] = ()
    offline: Collection[str] = ()
    dtype: str = "int8"
    everything: bool = True
    by_channel: bool = False


def quantize(entries: Sequence[Entry], options: QuantizeOptions) -> tuple[list[Entry], list[str]]:
    """Return the quantized graph, and the names of the old values whose ranges it needs.

    Raises:
        MXNetError: the quantized form does not accept a node's parameters; the message names the node.
    """
    return _Quantizer(entries, options).result


class _Quantizer:
    """One pass over a graph."""

    def __init__(self, entries: Sequence[Entry], options: QuantizeOptions) -> None:
        self._options = options
        nodes = topological(entries)
        operators = {_canonical(name) for name in options.excluded_operators}
        self._forms = select_nodes(nodes, options.excluded, operators, options.everything)
        self._new: dict[Node, Node] = {}
        """The new node of each old one, quantized or not."""
        self._old: dict[Node, Node] = {}
        """The old node of each new one with the same value."""
        self._quantized_copies: dict[Entry, Entry] = {}
        """The quantized copy of each floating-point entry of the old graph."""
        self._asymmetric_copies: dict[Entry, Entry] = {}
        """Likewise, with an asymmetric range."""
        self._real_copies: dict[Entry, Entry] = {}
        """The floating-point copy of each quantized entry of the old graph."""
        self._offline: dict[tuple[Node, int], Entry] = {}
        for node in nodes:
            form = self._forms.get(node)
            self._new[node] = new = self._copy(node) if form is None else self._quantize_node(node, form)
            self._old[new] = node
        outputs = [self._real(entry) for entry in entries]
        self.result = outputs, self._calibrated_names(outputs)

    def _entry(self, entry: Entry) -> Entry:
        return Entry(self._new[entry.node], entry.index)

    def _copy(self, node: Node) -> Node:
        inputs = tuple([self._real(entry) for entry in node.inputs])
        if inputs == node.inputs:
            return node
        return Node(node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin)

    def _real(self, entry: Entry) -> Entry:
        """Return an entry of the old graph in floating point."""
        if not self._is_quantized(entry.node):
            return self._entry(entry)
        if entry not in self._real_copies:
            ends = self._ends(entry)
            node = entry.node
            dequantize = Node(
                Dequantize.create(), f"{node.name}_dequantize", (self._entry(entry), *ends), origin=node.origin
            )
            self._real_copies[entry] = Entry(dequantize, 0)
        return self._real_copies[entry]

    def _is_quantized(self, node: Node) -> bool:
        """Return whether the outputs of a node of the old graph are quantized."""
        form = self._forms.get(node)
        return form is not None and not form.real_output

    def _ends(self, entry: Entry) -> tuple[Entry, Entry]:
        """Return the ends of the range of a quantized entry of the old graph."""
        node = self._new[entry.node]
        first = node.outputs() - 2 + 2 * entry.index
        return Entry(node, first), Entry(node, first + 1)

    def _quantize_entry(self, entry: Entry) -> tuple[Entry, Entry, Entry]:
        """Return an entry of the old graph quantized, with the ends of its range."""
        if self._is_quantized(entry.node):
            return (self._entry(entry), *self._ends(entry))
        if entry not in self._quantized_copies:
            self._quantized_copies[entry] = self._convert(entry, QuantizeV2, {"out_type": self._options.dtype})
        first = self._quantized_copies[entry].node
        if entry.node.is_variable and entry.node.name in self._options.offline:
            low, middle, high = (self._variable(first, index, end) for index, end in enumerate(("", "_min", "_max")))
            return low, middle, high
        return Entry(first, 0), Entry(first, 1), Entry(first, 2)

    def _quantize_asymmetrically(self, entry: Entry) -> tuple[Entry, Entry, Entry]:
        """Return an entry of the old graph quantized with an asymmetric range, as scale and shift."""
        if entry not in self._asymmetric_copies:
            self._asymmetric_copies[entry] = self._convert(entry, QuantizeAsymmetrically, {})
        first = self._asymmetric_copies[entry].node
        return Entry(first, 0), Entry(first, 1), Entry(first, 2)

    def _convert(self, entry: Entry, kind: type[Operator], parameters: dict[str, str]) -> Entry:
        """Return the quantized copy of an entry of the old graph."""
        source = entry.node
        name = source.name if source.is_variable else source.output_name(entry.index)
        inputs = (self._real(entry),)
        return Entry(Node(kind.create(**parameters), f"{name}_quantize", inputs, {}, parameters, source.origin), 0)

    def _variable(self, node: Node, index: int, end: str) -> Entry:
        """Return the variable that replaces an output of a conversion outside the graph."""
        if (node, index) not in self._offline:
            self._offline[node, index] = Entry(Node(None, node.name + end, origin=node.origin), 0)
        return self._offline[node, index]

    def _quantize_node(self, node: Node, form: Quantization) -> Node:
        by_channel = self._options.by_channel
        real = {*form.real, *(form.real_by_channel if by_channel else ())}
        operands: list[tuple[Entry, ...]] = []
        for position, entry in enumerate(node.inputs):
            if position in real:
                operands.append((self._real(entry),))
            else:
                operands.append(
                    self._quantize_asymmetrically(entry) if position in form.asymmetric else self._quantize_entry(entry)
                )
        inputs = [operand[0] for operand in operands] + [end for operand in operands for end in operand[1:]]
        parameters = {**node.user_parameters, **dict(form.parameters), **(dict(form.by_channel) if by_channel else {})}
        new = Node(
            _quantized_operator(node, form, parameters), f"quantized_{node.name}", tuple(inputs), node.attributes,
            parameters,
            node.origin,
        )  # fmt: skip
        assert new.op is not None
        if not new.op.traits.requantizes:
            return new
        settings = {"out_type": self._options.dtype}
        ends = tuple(Entry(new, index) for index in range(3))
        return Node(Requantize.create(**settings), f"requantize_{node.name}", ends, {}, settings, node.origin)

    def _calibrated_names(self, outputs: Sequence[Entry]) -> list[str]:
        """Return the names of the old values whose ranges the new graph needs."""
        names: dict[str, None] = {}
        for node in topological(outputs):
            which = "" if node.op is None else node.op.traits.calibrates
            if which:
                entry = Entry(node, 0) if node in self._old else node.inputs[0]
                names[self._old[entry.node].output_name(entry.index)] = None
        return list(names)


def _quantized_operator(node: Node, form: Quantization, parameters: dict[str, str]) -> Operator:
    old = node.op
    assert old is not None
    cls = lookup(form.name)
    values = {name: getattr(old, name) for name in old.attributes() if cls.takes(name)}
    bodies = {"subgraphs": old.subgraphs} if old.subgraphs else {}
    try:
        return cls.create(
            **{**values, **dict(form.parameters), **{k: v for k, v in parameters.items() if cls.takes(k)}}, **bodies
        )
    except ParameterError as error:
        raise MXNetError(f"node {node.name!r} cannot be quantized: {error}; exclude it by its name") from None


def _canonical(name: str) -> str:
    """Return the operator's canonical name, or the name itself if there is no such operator."""
    try:
        return lookup(name).name
    except AttributeError:
        return name
