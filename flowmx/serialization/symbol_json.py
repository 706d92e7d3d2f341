"""MXNet's ``-symbol.json`` format as plain data.

`parse` reads files of MXNet 0.8 and newer into a `GraphJSON` and checks them. `upgrade` converts an old graph to the
conventions of MXNet 1.9.1. `render` writes the same bytes as MXNet 1.9.1. This module does not depend on operators: the
caller describes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from flowmx.errors import MXNetError
from flowmx.scanning import Bounds, Excess, scan_json

MXNET_VERSION = 10901  # 1.9.1, the layout of `render`
_OLDEST_VERSION = 800  # files of 0.8 have no version

# Attributes of a variable that old files have without underscores, or with the argument's name as prefix on the
# operator that reads the variable.
_HIDDEN_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
_HIDDEN_ENDINGS = tuple(f"_{key}" for key in _HIDDEN_KEYS)

_UINT32 = 1 << 32
_MAX_DEPTH = 256  # nested brackets; a subgraph takes four
_MIN_BRACKETS = 1 << 16  # brackets that are always allowed

GraphAttribute: TypeAlias = tuple[str, int | str | list[int] | list[str]]


class SymbolFormatError(MXNetError, ValueError):
    """A text is not a valid graph; the message names the node."""


class NodeEntry(NamedTuple):
    """One output of a node. MXNet increments the version when an operator changes its input in place."""

    node: int
    output: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class NodeJSON:
    """A variable (op "null") or an operator.

    Attributes:
        op: The operator's name.
        name: The node's name.
        attrs: The parameters and attributes, as text.
        inputs: The outputs of earlier nodes that it reads (the nodes of a file may be in any order).
        control_deps: Earlier nodes that it runs after.
        subgraphs: The bodies of a control-flow operator.
        num_outputs: The number of its outputs, including hidden ones. In a file without a valid node_row_ptr (before
            0.9, or edited) it is the number of outputs that are used.
    """

    op: str
    name: str
    attrs: dict[str, str] = field(default_factory=dict)
    inputs: tuple[NodeEntry, ...] = ()
    control_deps: tuple[int, ...] = ()
    subgraphs: tuple[GraphJSON, ...] = ()
    num_outputs: int = 1

    @property
    def is_variable(self) -> bool:
        """Whether the node is an input of the graph."""
        return self.op == "null"


@dataclass(frozen=True, slots=True)
class GraphJSON:
    """Nodes in topological order, the outputs (heads), and attributes of the graph with the names of their types."""

    nodes: tuple[NodeJSON, ...]
    heads: tuple[NodeEntry, ...]
    attrs: Mapping[str, GraphAttribute] = field(default_factory=dict)

    @property
    def arg_nodes(self) -> tuple[int, ...]:
        """The variables, including auxiliary states."""
        return tuple(i for i, node in enumerate(self.nodes) if node.is_variable)

    @property
    def node_row_ptr(self) -> tuple[int, ...]:
        """For each node the number of outputs of earlier nodes, then the number of all outputs."""
        return tuple(accumulate((node.num_outputs for node in self.nodes), initial=0))

    @property
    def version(self) -> int:
        """The version of MXNet that wrote the graph, 10901 for 1.9.1."""
        _, value = self.attrs.get("mxnet_version", ("int", _OLDEST_VERSION))
        return value if isinstance(value, int) else _OLDEST_VERSION


def _describe_beginning(text: str | bytes) -> str:
    """Describe the beginning of an invalid text, with a hint if it looks like a path."""
    content = text if isinstance(text, str) else text.decode("utf-8", "replace")
    hint = "; mx.sym.load(path) reads a file" if content.endswith(".json") else ""
    return f"the text begins with {content[:40]!r}{hint}"


def parse(text: str | bytes) -> GraphJSON:
    """Parse the text of a ``-symbol.json`` file of any version since 0.8.

    In the result every index is in range and every input comes from an earlier node. As in MXNet, the nodes of a file
    may be in any order, and an invalid node_row_ptr is ignored. The spelling of old versions is normalized: `attr` and
    `param` are merged into `attrs`, and inputs of two numbers get version 0. `upgrade` makes the changes that depend on
    operators.

    Raises:
        SymbolFormatError: The text is not a valid graph.
    """
    try:
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        scan_json(raw, Bounds(_MAX_DEPTH, max(_MIN_BRACKETS, len(raw) // 8), max(_MIN_BRACKETS, len(raw))))
        # MXNet does not escape control characters.
        document = json.loads(text, strict=False)
    except (RecursionError, Excess) as error:
        raise SymbolFormatError(f"the JSON is too large, or nested too deeply: {error}") from None
    except ValueError as error:
        raise SymbolFormatError(f"not JSON: {error}; {_describe_beginning(text)}") from None
    try:
        return _graph(document, "graph")
    except RecursionError:
        raise SymbolFormatError("subgraphs are nested too deeply") from None


def render(graph: GraphJSON) -> str:
    """Return the text of MXNet 1.9.1's ``tojson`` for a graph.

    The only difference: MXNet does not escape the names of attributes, and cannot read such files.
    """
    return _render_graph(graph, 0)


def upgrade(
    graph: GraphJSON,
    input_names: Callable[[NodeJSON], Sequence[str]],
    initializers: Callable[[NodeJSON], Mapping[str, str]] | None = None,
) -> GraphJSON:
    """Convert a graph of an older version to that of MXNet 1.9.1. A current graph is returned unchanged.

    - Attributes such as `lr_mult` become `__lr_mult__`; `weight_lr_mult` on an operator moves to its weight.
    - Auxiliary states, which files before 0.9 omit, become variables named after the operator.
    - Variables before 0.9.4 get the initializers (`__init__`) of their operators.
    - argmax and argmin before 0.9.5 have -1 for all axes.

    Args:
        graph: The graph.
        input_names: Returns the names of all inputs of a node, auxiliary states last; empty if unknown.
        initializers: Returns the initializers of a node's inputs by name.
    """
    if graph.version >= MXNET_VERSION:
        return graph
    nodes: list[NodeJSON] = []
    new_index: list[int] = []  # the new index of each node
    for node in graph.nodes:
        attrs = dict(node.attrs)
        inputs = [NodeEntry(new_index[source], output, version) for source, output, version in node.inputs]
        names = [] if node.is_variable else list(input_names(replace(node, attrs=_without_hidden(attrs))))
        hidden_keys = [key for key in attrs if _is_hidden(key)]
        positions = {name: position for position, name in enumerate(names)} if hidden_keys else {}
        for key in hidden_keys:
            _unhide(key, attrs, positions, inputs, nodes)
        if graph.version < 900:
            for name in names[len(inputs) :]:
                inputs.append(NodeEntry(len(nodes), 0))
                # A variable that MXNet creates for an operator gets all attributes of the operator.
                nodes.append(NodeJSON("null", f"{node.name}_{name}" if node.name else name, dict(attrs)))
        if graph.version < 904 and initializers is not None and not node.is_variable:
            _set_initializers(initializers(node), names, inputs, nodes)
        if graph.version < 905 and node.op in ("argmax", "argmin") and attrs.get("axis") == "-1":
            del attrs["axis"]
        control_deps = tuple(new_index[i] for i in node.control_deps)
        new_index.append(len(nodes))
        nodes.append(replace(node, attrs=attrs, inputs=tuple(inputs), control_deps=control_deps))
    heads = tuple(NodeEntry(new_index[node], output, version) for node, output, version in graph.heads)
    return GraphJSON(tuple(nodes), heads, {**graph.attrs, "mxnet_version": ("int", MXNET_VERSION)})


def _is_hidden(key: str) -> bool:
    return key.endswith(_HIDDEN_ENDINGS) or key in _HIDDEN_KEYS


def _without_hidden(attrs: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in attrs.items() if not _is_hidden(key)}


def _unhide(
    key: str, attrs: dict[str, str], positions: Mapping[str, int], inputs: Sequence[NodeEntry],
    nodes: Sequence[NodeJSON],
) -> None:  # fmt: skip
    """Add the underscores of a bare attribute, on this node or on the input in its name."""
    base_key = next(base_key for base_key in _HIDDEN_KEYS if key == base_key or key.endswith(f"_{base_key}"))
    if key == base_key:
        attrs[f"__{base_key}__"] = attrs.pop(key)
        return
    position = positions.get(key.removesuffix(f"_{base_key}"), len(inputs))
    if position < len(inputs) and (variable := nodes[inputs[position].node]).is_variable:
        variable.attrs[f"__{base_key}__"] = attrs.pop(key)


def _set_initializers(
    initializers: Mapping[str, str], names: Sequence[str], inputs: Sequence[NodeEntry], nodes: Sequence[NodeJSON]
) -> None:
    for name, entry in zip(names, inputs, strict=False):
        variable = nodes[entry.node]
        if name in initializers and variable.is_variable:
            variable.attrs.setdefault("__init__", initializers[name])


# Reading. `where` describes the current value in errors.


def _graph(value: object, where: str) -> GraphJSON:
    allowed = {"nodes", "arg_nodes", "heads", "node_row_ptr", "attrs"}
    fields = _object(value, where, required={"nodes", "arg_nodes", "heads"}, allowed=allowed)
    items = _list(fields["nodes"], f"{where}, nodes")
    nodes = [_node(item, f"{where}, node {i}", len(items)) for i, item in enumerate(items)]
    heads = _entries(fields["heads"], f"{where}, heads", len(nodes))
    counts = _output_counts(fields.get("node_row_ptr"), len(nodes))
    for entry in [entry for node in nodes for entry in node.inputs] + list(heads):
        counts[entry.node] = max(counts[entry.node], entry.output + 1)
    nodes = [replace(node, num_outputs=count) for node, count in zip(nodes, counts, strict=True)]
    for i in _integers(fields["arg_nodes"], f"{where}, arg_nodes"):
        if i >= len(nodes) or not nodes[i].is_variable:
            raise SymbolFormatError(f"{where}, arg_nodes: {i} is not the index of a variable")
    nodes, heads = _sort(nodes, heads, where)
    attrs = _object(fields.get("attrs", {}), f"{where}, attrs")
    graph_attrs = {key: _graph_attribute(item, f"{where}, attrs, {key!r}") for key, item in attrs.items()}
    return GraphJSON(tuple(nodes), heads, graph_attrs)


def _node(value: object, where: str, nodes: int) -> NodeJSON:
    # backward_source_id (before 0.9) is the node whose gradient this node computes.
    optional = {"attrs", "attr", "param", "control_deps", "subgraphs", "backward_source_id"}
    required = {"op", "name", "inputs"}
    fields = _object(value, where, required=required, allowed=required | optional)
    name = _string(fields["name"], f"{where}, name")
    where = f"{where} ({name!r})"
    attrs: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        for attribute, item in _object(fields.get(key, {}), f"{where}, {key}").items():
            attrs[attribute] = _string(item, f"{where}, {key}, {attribute!r}")
    control_deps = _integers(fields.get("control_deps", []), f"{where}, control_deps")
    for i in control_deps:
        if i >= nodes:
            raise SymbolFormatError(f"{where}, control_deps: {i} is not one of the {nodes} nodes")
    subgraphs = _list(fields.get("subgraphs", []), f"{where}, subgraphs")
    node = NodeJSON(
        op=_string(fields["op"], f"{where}, op"),
        name=name,
        attrs=attrs,
        inputs=_entries(fields["inputs"], f"{where}, inputs", nodes),
        control_deps=control_deps,
        subgraphs=tuple(_graph(item, f"{where}, subgraph {i}") for i, item in enumerate(subgraphs)),
    )
    if node.is_variable and node.inputs:
        raise SymbolFormatError(f"{where}: a variable (op 'null') has inputs")
    return node


def _entries(value: object, where: str, nodes: int) -> tuple[NodeEntry, ...]:
    """Read the entries of a graph of `nodes` nodes."""
    entries = []
    for i, item in enumerate(_list(value, where)):
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise SymbolFormatError(f"{where}[{i}]: expected [node, output, version], found {_describe_briefly(item)}")
        for number in item:
            if type(number) is not int or not 0 <= number < _UINT32:
                _integers(item, f"{where}[{i}]")  # raises
        if item[0] >= nodes:
            raise SymbolFormatError(f"{where}[{i}]: node {item[0]} is not one of the {nodes} nodes")
        entries.append(NodeEntry(*item))
    return tuple(entries)


def _sort(
    nodes: list[NodeJSON], heads: tuple[NodeEntry, ...], where: str
) -> tuple[list[NodeJSON], tuple[NodeEntry, ...]]:
    """Sort nodes topologically; programs that edit files write them in any order."""
    dependencies = [(*(entry.node for entry in node.inputs), *node.control_deps) for node in nodes]
    if all(i < position for position, needs in enumerate(dependencies) for i in needs):
        return nodes, heads
    try:
        order = list(TopologicalSorter(dict(enumerate(dependencies))).static_order())
    except CycleError as error:
        names = " <- ".join(repr(nodes[i].name) for i in error.args[1])
        raise SymbolFormatError(f"{where}: the nodes form a cycle: {names}") from None
    place = {i: position for position, i in enumerate(order)}

    def renumber(entries: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...]:
        return tuple(entry._replace(node=place[entry.node]) for entry in entries)

    return [
        replace(node, inputs=renumber(node.inputs), control_deps=tuple(place[i] for i in node.control_deps))
        for node in (nodes[i] for i in order)
    ], renumber(heads)


def _output_counts(value: object, nodes: int) -> list[int]:
    """Read the number of outputs of each node; 1 if the list is invalid, as MXNet ignores it."""
    ends = value if isinstance(value, list) and all(type(end) is int for end in value) else []
    counts = [end - start for start, end in pairwise(ends)]
    return counts if len(counts) == nodes and ends[0] == 0 and min(counts, default=1) > 0 else [1] * nodes


def _graph_attribute(value: object, where: str) -> GraphAttribute:
    match value:
        case ["int", int() as number] if not isinstance(number, bool):
            return "int", number
        case ["str", str() as text]:
            return "str", text
        case ["list_int", list() as items] if all(type(item) is int for item in items):
            return "list_int", items
        case ["list_str", list() as items] if all(type(item) is str for item in items):
            return "list_str", items
    raise SymbolFormatError(f"{where}: expected [type, value], found {_describe_briefly(value)}")


def _object(
    value: object, where: str, required: Iterable[str] = (), allowed: Iterable[str] | None = None
) -> dict[str, object]:
    if not isinstance(value, dict):
        raise SymbolFormatError(f"{where}: expected an object, found {_describe_briefly(value)}")
    if missing := [key for key in sorted(required) if key not in value]:
        raise SymbolFormatError(f"{where}: {missing[0]!r} is missing")
    if allowed is not None and (unknown := [key for key in value if key not in allowed]):
        raise SymbolFormatError(f"{where}: unknown field {unknown[0]!r}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise SymbolFormatError(f"{where}: expected a list, found {_describe_briefly(value)}")
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SymbolFormatError(f"{where}: expected a string, found {_describe_briefly(value)}")
    return value


def _integers(value: object, where: str) -> tuple[int, ...]:
    items = _list(value, where)
    for item in items:
        if type(item) is not int or not 0 <= item < _UINT32:
            raise SymbolFormatError(f"{where}: expected an index, found {_describe_briefly(item)}")
    return tuple(items)


def _describe_briefly(value: object) -> str:
    """Describe a value, which may be huge, in a few words."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)[:40] if isinstance(value, int | float) else f"{type(value).__name__} {str(value)[:40]!r}"


# Writing, in the layout of MXNet's JSON writer: it ends each line of a list with ", " and puts short lists of
# numbers on one line. `depth` is the number of brackets that are open.

_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def _render_graph(graph: GraphJSON, depth: int) -> str:
    inner = depth + 1
    fields = {
        "nodes": _brackets("[]", [_render_node(node, inner + 1) for node in graph.nodes], inner),
        "arg_nodes": _render_integers(graph.arg_nodes, inner),
        "node_row_ptr": _render_integers(graph.node_row_ptr, inner),
        "heads": _render_entries(graph.heads, inner),
    }
    if graph.attrs:
        rendered = {key: _render_attribute(value, inner + 1) for key, value in graph.attrs.items()}
        fields["attrs"] = _render_object(rendered, inner, one_line=len(rendered) == 1)
    return _render_object(fields, depth)


def _render_node(node: NodeJSON, depth: int) -> str:
    inner = depth + 1
    fields = {"op": _quote(node.op), "name": _quote(node.name)}
    if node.attrs:
        attrs = {key: _quote(node.attrs[key]) for key in sorted(node.attrs)}
        fields["attrs"] = _render_object(attrs, inner, one_line=len(attrs) == 1)
    fields["inputs"] = _render_entries(node.inputs, inner)
    if node.control_deps:
        fields["control_deps"] = _render_integers(node.control_deps, inner)
    if node.subgraphs:
        bodies = [_render_graph(graph, inner + 1) for graph in node.subgraphs]
        fields["subgraphs"] = _brackets("[]", bodies, inner)
    return _render_object(fields, depth)


def _render_entries(entries: Iterable[NodeEntry], depth: int) -> str:
    items = [_brackets("[]", [str(number) for number in entry], depth, one_line=True) for entry in entries]
    return _brackets("[]", items, depth, one_line=len(items) <= 10)


def _render_integers(numbers: Iterable[int], depth: int) -> str:
    items = [str(number) for number in numbers]
    return _brackets("[]", items, depth, one_line=len(items) <= 10)


def _render_attribute(attribute: GraphAttribute, depth: int) -> str:
    kind, value = attribute
    if isinstance(value, list):
        items = [_quote(item) if isinstance(item, str) else str(item) for item in value]
        rendered = _brackets("[]", items, depth + 1, one_line=kind == "list_int" and len(items) <= 10)
    else:
        rendered = _quote(value) if isinstance(value, str) else str(value)
    return _brackets("[]", [_quote(kind), rendered], depth, one_line=True)


def _render_object(fields: Mapping[str, str], depth: int, *, one_line: bool = False) -> str:
    items = [f"{_quote(key)}: {value}" for key, value in fields.items()]
    return _brackets("{}", items, depth, one_line=one_line)


def _brackets(pair: str, items: Sequence[str], depth: int, *, one_line: bool = False) -> str:
    if one_line or not items:
        return pair[0] + ", ".join(items) + pair[1]
    indent = "  " * (depth + 1)
    body = ", ".join(f"\n{indent}{item}" for item in items)
    return f"{pair[0]}{body}\n{'  ' * depth}{pair[1]}"


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
