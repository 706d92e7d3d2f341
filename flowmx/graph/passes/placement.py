"""Placement: assign a device to each node of a graph, with copies where a value passes between devices.

A node is on the device of its ``ctx_group`` in ``group2ctx``, as in MXNet; so are the nodes of its gradient.
"""

from __future__ import annotations

from dataclasses import replace

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.fused_layers import CopyToDevice


def place(graph: Graph, options: Options) -> Graph:
    """Insert copies between nodes on different devices; each value is copied once to each device."""
    if not graph.groups:
        return graph
    rewriter = Rewriter(graph)
    copies: dict[tuple[Entry, object], Entry] = {}

    def on_device_of(entry: Entry, user: Node) -> Entry:
        """Return the replacement of an old entry, copied to the device of the node that reads it."""
        new, source_device, target_device = rewriter.new(entry), graph.context(entry.node), graph.context(user)
        if source_device is target_device:
            return new
        if (new, target_device) not in copies:
            label = f"{entry.node.output_name(entry.index)} to {target_device}"
            copy = rewriter.make(CopyToDevice.create(), [new], user, label)
            rewriter.note(f"{entry.node.output_name(entry.index)} is copied from {source_device} to {target_device}")
            copies[new, target_device] = Entry(copy, 0)
        return copies[new, target_device]

    for node in rewriter.nodes:
        if node.op is None:
            continue
        inputs = tuple([on_device_of(entry, node) for entry in node.inputs])
        if inputs != node.inputs:
            placed = Node(node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin)
            for index in range(node.outputs()):
                rewriter.replace(Entry(node, index), Entry(placed, index))
    gradients = {node: on_device_of(entry, node) for node, entry in graph.gradients.items()}
    return replace(rewriter.result(), gradients=gradients)
