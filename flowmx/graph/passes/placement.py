"""Placement: which device each node of a graph is on, with copies where a value goes from one to another.

A node is on the device of its ``ctx_group``, as MXNet's ``group2ctx`` says; the nodes of its gradient are where it is.
"""

from __future__ import annotations

from dataclasses import replace

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.fused import CopyToDevice


def place(graph: Graph, options: Options) -> Graph:
    """Put a copy between nodes on different devices; each value is copied once to each device."""
    if not graph.groups:
        return graph
    rewriter = Rewriter(graph)
    copies: dict[tuple[Entry, object], Entry] = {}

    def at(entry: Entry, user: Node) -> Entry:
        """The replacement of an old entry, copied to the device of the node that reads it."""
        new, here, there = rewriter.new(entry), graph.context(entry.node), graph.context(user)
        if here is there:
            return new
        if (new, there) not in copies:
            label = f"{entry.node.output_name(entry.index)} to {there}"
            made = rewriter.make(CopyToDevice.create(), [new], user, label)
            rewriter.note(f"{entry.node.output_name(entry.index)} is copied from {here} to {there}")
            copies[new, there] = Entry(made, 0)
        return copies[new, there]

    for node in rewriter.nodes:
        if node.op is None:
            continue
        inputs = tuple([at(entry, node) for entry in node.inputs])
        if inputs != node.inputs:
            made = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin)
            for index in range(node.outputs()):
                rewriter.replace(Entry(node, index), Entry(made, index))
    gradients = {node: at(entry, node) for node, entry in graph.gradients.items()}
    return replace(rewriter.result(), gradients=gradients)
