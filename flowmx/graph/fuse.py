"""Fusion: neighbouring operators of a differentiated graph become one where a kernel does them in one go.

What is fused: a ReLU into the convolution, product or normalisation before it, and the two sums over a
convolution's head that are its weight's and its bias's gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence

from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.dtypes import DType
from flowmx.ops.registry import Operator, Shape, lookup

THEN_RELU = {
    "Convolution": "_relu_Convolution",
    "FullyConnected": "_relu_FullyConnected",
    "BatchNorm": "_relu_BatchNorm",
}


def fuse(
    outputs: Sequence[Entry],
    gradients: Mapping[Node, Entry],
    shapes: MutableMapping[Entry, Shape],
    dtypes: MutableMapping[Entry, DType],
) -> tuple[list[Entry], dict[Node, Entry]]:
    """The same outputs and gradients, by fewer steps.

    Args:
        outputs: what the user asked for.
        gradients: an entry for each differentiated variable.
        shapes: of every entry; those of new entries are added.
        dtypes: likewise.
    """
    return _Fusion(outputs, gradients, shapes, dtypes).result()


class _Fusion:
    """One run of the pass: nodes are made anew in order, with their inputs replaced."""

    def __init__(
        self,
        outputs: Sequence[Entry],
        gradients: Mapping[Node, Entry],
        shapes: MutableMapping[Entry, Shape],
        dtypes: MutableMapping[Entry, DType],
    ) -> None:
        self.outputs, self.gradients = outputs, gradients
        self.shapes, self.dtypes = shapes, dtypes
        wanted = [*outputs, *gradients.values()]
        self.nodes = topological(wanted)
        self.uses: dict[Entry, int] = {}
        for entry in (*wanted, *(entry for node in self.nodes for entry in node.inputs)):
            self.uses[entry] = self.uses.get(entry, 0) + 1
        self.replaced: dict[Entry, Entry] = {}
        self.biases = {
            node.inputs[0]: node
            for node in self.nodes
            if node.op is not None and node.op.name == "_backward_bias" and getattr(node.op, "axis", None) == 1
        }

    def result(self) -> tuple[list[Entry], dict[Node, Entry]]:
        relus = self._relus()
        gone = set(relus.values())
        for node in self.nodes:
            if node.op is None or node in gone or Entry(node, 0) in self.replaced:
                continue
            if node in relus:
                self._put(node, _fused(node, THEN_RELU[_name(node)]), [Entry(relus[node], 0)])
            elif _name(node) == "_backward_Convolution_weight" and node.inputs[0] in self.biases:
                bias = self.biases[node.inputs[0]]
                self._put(node, _fused(node, f"{_name(node)}_bias"), [Entry(node, 0), Entry(bias, 0)])
            else:
                self._put(node, node.op, [])
        return [self._new(entry) for entry in self.outputs], {n: self._new(e) for n, e in self.gradients.items()}

    def _relus(self) -> dict[Node, Node]:
        """Each operator that a ReLU goes into, and that ReLU."""
        found = {}
        for node in self.nodes:
            if _name(node) == "Activation" and getattr(node.op, "act_type", "") == "relu":
                source = node.inputs[0]
                if source.index == 0 and _name(source.node) in THEN_RELU and self.uses[source] == 1:
                    found[source.node] = node
        return found

    def _new(self, entry: Entry) -> Entry:
        return self.replaced.get(entry, entry)

    def _put(self, like: Node, op: Operator, stands_for: Collection[Entry]) -> None:
        """Make a node with an operator and the inputs of ``like``.

        Its first outputs replace the entries that it stands for, besides the outputs of ``like``.
        """
        inputs = tuple(self._new(entry) for entry in like.inputs)
        if op is like.op and inputs == like.inputs:
            return
        made = Node(op, like.name, inputs, like.attributes, like.given, like.origin)
        for index in range(like.outputs()):
            self._replace(Entry(like, index), Entry(made, index))
        for index, entry in enumerate(stands_for):
            self._replace(entry, Entry(made, index))

    def _replace(self, old: Entry, new: Entry) -> None:
        self.replaced[old] = new
        self.shapes[new], self.dtypes[new] = self.shapes[old], self.dtypes[old]


def _name(node: Node) -> str:
    return "" if node.op is None else node.op.name


def _fused(node: Node, name: str) -> Operator:
    """An operator with the parameters of a node's operator."""
    op = node.op
    assert op is not None
    return lookup(name).create(**{each: getattr(op, each) for each in op.attributes()})
