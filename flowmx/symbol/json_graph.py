"""Conversion of graphs to and from MXNet's JSON format, whose syntax is in ``serialization/symbol_json.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowmx.engine import Origin
from flowmx.errors import MXNetError, ParameterError
from flowmx.graph.node import Entry, Node, input_versions, topological
from flowmx.graph.subgraph import Body
from flowmx.ops.registry.operators import Operator, find, lookup
from flowmx.semantics import semantics
from flowmx.serialization import symbol_json
from flowmx.symbol.initial_values import default_initializers

_MAX_OUTPUTS = 1 << 16


def to_json(entries: Sequence[Entry]) -> str:
    """Return a graph as JSON text."""
    return symbol_json.render(_to_plain(entries))


def _to_plain(entries: Sequence[Entry]) -> symbol_json.GraphJSON:
    nodes = topological(entries)
    position = {node: index for index, node in enumerate(nodes)}
    versions, final = input_versions(nodes)
    plain = symbol_json.NodeEntry
    attrs = {"is_np_shape": ("int", 1)} if semantics.get().shape else {}
    return symbol_json.GraphJSON(
        tuple(
            symbol_json.NodeJSON(
                "null" if node.op is None else node.op.name,
                node.name,
                {**node.user_parameters, **node.attributes},
                tuple(
                    plain(position[entry.node], entry.index, version)
                    for entry, version in zip(node.inputs, versions.get(node, ()), strict=True)
                ),
                subgraphs=tuple(
                    replace(_to_plain(body.entries), attrs={}) for body in (node.op.subgraphs if node.op else ())
                ),
                num_outputs=1 if node.op is None else node.op.json_output_count(),
            )
            for node in nodes
        ),
        tuple(plain(position[entry.node], entry.index, final.get(entry.node, 0)) for entry in entries),
        {**attrs, "mxnet_version": ("int", symbol_json.MXNET_VERSION)},
    )


def entries_from_json(text: str | bytes, origin: Origin) -> list[Entry]:
    """Return the outputs of the graph in a JSON text.

    Args:
        text: the JSON.
        origin: the line that loads it, for messages.

    Raises:
        SymbolFormatError: the text is not a graph.
        MXNetError: an operator is unknown, or its parameters are invalid; the message names the node.
    """
    plain = symbol_json.upgrade(symbol_json.parse(text), _input_names, lambda node: _default_initializers(node.op))
    return _from_plain(plain, origin)


def _from_plain(graph: symbol_json.GraphJSON, origin: Origin) -> list[Entry]:
    nodes: list[Node] = []
    for plain in graph.nodes:
        inputs = tuple(_entry(nodes, e) for e in plain.inputs)
        if plain.is_variable:
            nodes.append(Node(None, plain.name, attributes=plain.attrs, origin=origin))
            continue
        attributes = {k: v for k, v in plain.attrs.items() if k.startswith("__") and k.endswith("__")}
        user_attributes = {k: v for k, v in plain.attrs.items() if k not in attributes}
        try:
            cls = lookup(plain.op)
            _check_counts(cls, plain)
            parameters = {k: v for k, v in user_attributes.items() if cls.takes(k)}
            attributes |= {k: v for k, v in user_attributes.items() if not cls.takes(k)}
            bodies = tuple(Body(_from_plain(subgraph, origin)) for subgraph in plain.subgraphs)
            op = cls.create(**parameters, **({"subgraphs": bodies} if bodies else {}))
        except (AttributeError, ParameterError) as error:
            raise MXNetError(f"node {plain.name!r} of the loaded symbol: {error}") from None
        expected = len(op.inputs()) + len(op.auxiliary)
        if len(inputs) != expected:
            raise MXNetError(f"node {plain.name!r} ({plain.op}) has {len(inputs)} inputs, expected {expected}")
        versions = tuple(e.version for e in plain.inputs)
        nodes.append(Node(op, plain.name, inputs, attributes, parameters, origin, versions))
    return [_entry(nodes, e) for e in graph.heads]


def _check_counts(cls: type[Operator], plain: symbol_json.NodeJSON) -> None:
    """Reject numbers of inputs and outputs that would exhaust memory, before their names are created."""
    size, extra = cls.inputs_counted
    count = _number(plain.attrs.get(cls.variadic, ""))
    if count is not None and count * size + extra > len(plain.inputs):
        raise MXNetError(
            f"node {plain.name!r} ({plain.op}) has {len(plain.inputs)} inputs, expected {count * size + extra} since "
            f"{cls.variadic} is {count}"
        )
    outputs = _number(plain.attrs.get("num_outputs", ""))
    if outputs is not None and outputs > _MAX_OUTPUTS:
        raise MXNetError(f"node {plain.name!r} ({plain.op}) has {outputs} outputs, expected at most {_MAX_OUTPUTS}")


def _number(text: str) -> int | None:
    """Return a short decimal number in a file, or None for other text."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def _entry(nodes: Sequence[Node], plain: symbol_json.NodeEntry) -> Entry:
    node = nodes[plain.node]
    count = 1 if node.op is None else len(node.op.outputs())
    if plain.output >= count:
        raise MXNetError(f"output {plain.output} of node {node.name!r} of the loaded symbol is read; it has {count}")
    return Entry(node, plain.output)


def _input_names(plain: symbol_json.NodeJSON) -> Sequence[str]:
    cls = find(plain.op)
    if cls is None:
        return ()
    _check_counts(cls, plain)
    try:
        op = cls.create(**{k: v for k, v in plain.attrs.items() if cls.takes(k) and not k.startswith("__")})
    except ParameterError:
        return ()
    return (*op.inputs(), *op.auxiliary)


def _default_initializers(name: str) -> Mapping[str, str]:
    cls = find(name)
    return {} if cls is None else default_initializers(cls.name)
