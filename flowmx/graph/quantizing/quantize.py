"""A graph of real numbers as one of quantized ones, with what converts between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from flowmx.errors import MXNetError, ParameterError
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.marking import marked
from flowmx.ops.quantization.conversions import Dequantize, QuantizeV2, Requantize
from flowmx.ops.quantization.recurrent import QuantizeAsymmetrically
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.ops.registry.traits import Quantization

__all__ = ["Quantizing", "quantize"]


class Quantizing(NamedTuple):
    """Choices in quantizing a graph.

    Attributes:
        excluded: names of nodes that stay as they are.
        excluded_operators: names of operators whose nodes do.
        offline: names of the variables whose values are quantized outside of the graph.
        dtype: ``int8``, ``uint8`` or ``auto``, of all but weights, which are int8.
        everything: quantize all that can be; else what is not worth it by itself only between nodes that are.
        by_channel: let weights have a scale for each channel, where that is possible.
    """

    excluded: Collection[str] = ()
    excluded_operators: Collection[str] = ()
    offline: Collection[str] = ()
    dtype: str = "int8"
    everything: bool = True
    by_channel: bool = False


def quantize(entries: Sequence[Entry], how: Quantizing) -> tuple[list[Entry], list[str]]:
    """The quantized graph, and the names of the values of the old one whose ranges it wants to know.

    Raises:
        MXNetError: a node's parameters are none that its quantized form takes; names the node.
    """
    return _Quantizer(entries, how).made


class _Quantizer:
    """One walk over a graph."""

    def __init__(self, entries: Sequence[Entry], how: Quantizing) -> None:
        self._how = how
        nodes = topological(entries)
        operators = {_canonical(name) for name in how.excluded_operators}
        self._forms = marked(nodes, how.excluded, operators, how.everything)
        self._new: dict[Node, Node] = {}
        """For each old node the new one, quantized or not."""
        self._old: dict[Node, Node] = {}
        """For each new node that gives a value of the old graph, the node of that."""
        self._bytes: dict[Entry, Entry] = {}
        """For each real entry of the old graph its quantized copy."""
        self._around: dict[Entry, Entry] = {}
        """Likewise by a range that need not lie around 0."""
        self._reals: dict[Entry, Entry] = {}
        """For each quantized entry of the old graph its real copy."""
        self._offline: dict[tuple[Node, int], Entry] = {}
        for node in nodes:
            form = self._forms.get(node)
            self._new[node] = made = self._copy(node) if form is None else self._quantized(node, form)
            self._old[made] = node
        outputs = [self._real(entry) for entry in entries]
        self.made = outputs, self._calibrated(outputs)

    def _entry(self, entry: Entry) -> Entry:
        return Entry(self._new[entry.node], entry.index)

    def _copy(self, node: Node) -> Node:
        inputs = tuple([self._real(entry) for entry in node.inputs])
        if inputs == node.inputs:
            return node
        return Node(node.op, node.name, inputs, node.attributes, node.given, node.origin)

    def _real(self, entry: Entry) -> Entry:
        """An entry of the old graph as real numbers."""
        if not self._gives_bytes(entry.node):
            return self._entry(entry)
        if entry not in self._reals:
            ends = self._ends(entry)
            node = entry.node
            made = Node(Dequantize.create(), f"{node.name}_dequantize", (self._entry(entry), *ends), origin=node.origin)
            self._reals[entry] = Entry(made, 0)
        return self._reals[entry]

    def _gives_bytes(self, node: Node) -> bool:
        """True for a node of the old graph whose outputs are quantized numbers."""
        form = self._forms.get(node)
        return form is not None and not form.real_output

    def _ends(self, entry: Entry) -> tuple[Entry, Entry]:
        """The ends of the range of an entry of the old graph that is quantized."""
        node = self._new[entry.node]
        first = node.outputs() - 2 + 2 * entry.index
        return Entry(node, first), Entry(node, first + 1)

    def _as_bytes(self, entry: Entry) -> tuple[Entry, Entry, Entry]:
        """An entry of the old graph as quantized numbers, with the ends of their range."""
        if self._gives_bytes(entry.node):
            return (self._entry(entry), *self._ends(entry))
        if entry not in self._bytes:
            self._bytes[entry] = self._converted(entry, QuantizeV2, {"out_type": self._how.dtype})
        first = self._bytes[entry].node
        if entry.node.is_variable and entry.node.name in self._how.offline:
            low, middle, high = (self._variable(first, index, end) for index, end in enumerate(("", "_min", "_max")))
            return low, middle, high
        return Entry(first, 0), Entry(first, 1), Entry(first, 2)

    def _as_bytes_around(self, entry: Entry) -> tuple[Entry, Entry, Entry]:
        """The same by a range that need not lie around 0, with scale and shift."""
        if entry not in self._around:
            self._around[entry] = self._converted(entry, QuantizeAsymmetrically, {})
        first = self._around[entry].node
        return Entry(first, 0), Entry(first, 1), Entry(first, 2)

    def _converted(self, entry: Entry, kind: type[Operator], given: dict[str, str]) -> Entry:
        """A conversion of an entry of the old graph to bytes."""
        source = entry.node
        name = source.name if source.is_variable else source.output_name(entry.index)
        inputs = (self._real(entry),)
        return Entry(Node(kind.create(**given), f"{name}_quantize", inputs, {}, given, source.origin), 0)

    def _variable(self, node: Node, index: int, end: str) -> Entry:
        """The variable in the place of an output of a conversion that is done outside of the graph."""
        if (node, index) not in self._offline:
            self._offline[node, index] = Entry(Node(None, node.name + end, origin=node.origin), 0)
        return self._offline[node, index]

    def _quantized(self, node: Node, form: Quantization) -> Node:
        by_channel = self._how.by_channel
        real = {*form.real, *(form.real_by_channel if by_channel else ())}
        found: list[tuple[Entry, ...]] = []
        for at, entry in enumerate(node.inputs):
            if at in real:
                found.append((self._real(entry),))
            else:
                found.append(self._as_bytes_around(entry) if at in form.asymmetric else self._as_bytes(entry))
        inputs = [each[0] for each in found] + [end for each in found for end in each[1:]]
        given = {**node.given, **dict(form.parameters), **(dict(form.by_channel) if by_channel else {})}
        made = Node(
            _quantized_operator(node, form, given), f"quantized_{node.name}", tuple(inputs), node.attributes, given,
            node.origin,
        )  # fmt: skip
        assert made.op is not None
        if not made.op.traits.requantizes:
            return made
        settings = {"out_type": self._how.dtype}
        ends = tuple(Entry(made, index) for index in range(3))
        return Node(Requantize.create(**settings), f"requantize_{node.name}", ends, {}, settings, node.origin)

    def _calibrated(self, outputs: Sequence[Entry]) -> list[str]:
        """The names of the old values whose ranges the new graph wants to know."""
        names: dict[str, None] = {}
        for node in topological(outputs):
            wanted = "" if node.op is None else node.op.traits.calibrates
            if wanted:
                entry = Entry(node, 0) if node in self._old else node.inputs[0]
                names[self._old[entry.node].output_name(entry.index)] = None
        return list(names)


def _quantized_operator(node: Node, form: Quantization, given: dict[str, str]) -> Operator:
    old = node.op
    assert old is not None
    cls = lookup(form.name)
    values = {name: getattr(old, name) for name in old.attributes() if cls.takes(name)}
    bodies = {"subgraphs": old.subgraphs} if old.subgraphs else {}
    try:
        return cls.create(
            **{**values, **dict(form.parameters), **{k: v for k, v in given.items() if cls.takes(k)}}, **bodies
        )
    except ParameterError as error:
        raise MXNetError(f"node {node.name!r} can not be quantized: {error}; exclude it by its name") from None


def _canonical(name: str) -> str:
    """The operator's own name; the name itself where it is none's."""
    try:
        return lookup(name).name
    except AttributeError:
        return name
