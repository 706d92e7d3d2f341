"""flowmx.serialization.symbol_json against what MXNet 1.9.1 wrote, and against damaged graphs."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.serialization.symbol_json import (
    GraphJSON,
    NodeEntry,
    NodeJSON,
    SymbolFormatError,
    parse,
    render,
    upgrade,
)
from tests.fixtures import record_mxnet as recorded

SYMBOLS: dict[str, str] = json.loads((recorded.FOLDER / "symbols.json").read_text(encoding="utf-8"))
NETWORKS = {
    name: (recorded.FOLDER / f"{name}-symbol.json").read_text(encoding="utf-8") for name in recorded.INPUT_SHAPES
}
ALL = SYMBOLS | NETWORKS
VERSION = {"mxnet_version": ("int", 10901)}


def legacy_input_names(node: NodeJSON) -> list[str]:
    return ["data", "gamma", "beta", "moving_mean", "moving_var"] if node.op == "BatchNorm" else ["data"]


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_rendered_json_equals_mxnets(text: str) -> None:
    assert render(parse(text)) == text
    assert parse(text.encode()) == parse(text)


@pytest.mark.parametrize("name", NETWORKS)
def test_variables_are_arguments_and_states(name: str) -> None:
    inferred = json.loads((recorded.FOLDER / "inferred.json").read_text(encoding="utf-8"))[name]
    graph = parse(NETWORKS[name])
    variables = [graph.nodes[i].name for i in graph.arg_nodes]
    states = set(inferred["auxiliary_states"])
    assert [variable for variable in variables if variable not in states] == inferred["arguments"]
    assert [variable for variable in variables if variable in states] == inferred["auxiliary_states"]


def test_reads_every_part() -> None:
    graph = parse(SYMBOLS["scoped"])
    assert graph.attrs == VERSION
    assert graph.version == 10901
    assert graph.heads == (NodeEntry(3, 0, 0),)
    conv = graph.nodes[3]
    assert (conv.op, conv.name, conv.is_variable) == ("Convolution", "conv", False)
    assert conv.attrs["__lr_mult__"] == "3"
    assert conv.inputs == (NodeEntry(0, 0), NodeEntry(1, 0), NodeEntry(2, 0))
    norm = next(node for node in parse(SYMBOLS["group"]).nodes if node.op == "BatchNorm")
    assert norm.num_outputs == 3
    loop = next(node for node in parse(SYMBOLS["control_flow"]).nodes if node.subgraphs)
    assert loop.num_outputs == 2
    assert loop.subgraphs[0].attrs == {}
    assert parse(SYMBOLS["escapes"]).nodes[0].attrs["text"] == 'é "quoted" \\ \n\r\t \x01 /'


def test_renders_graph_attributes_and_control_dependencies() -> None:
    nodes = (NodeJSON("null", "x"), NodeJSON("relu", "y", inputs=(NodeEntry(0, 0),), control_deps=(0,)))
    attrs: dict[str, Any] = {
        "s": ("str", 'a"b'),
        "i": ("list_int", [1, 2]),
        "l": ("list_str", ["a", "b"]),
        "v": ("int", 3),
        "e": ("list_int", []),
    }
    graph = GraphJSON(nodes, (NodeEntry(1, 0),), attrs)
    assert parse(render(graph)) == graph
    assert json.loads(render(graph))["attrs"]["i"] == ["list_int", [1, 2]]


# Older versions.


def test_upgrades_a_graph_of_0_8_as_mxnet_does() -> None:
    text = json.dumps(recorded.legacy_graph())
    old = parse(text)
    assert old.version == 800
    assert old.nodes[0].attrs == {"lr_mult": "7", "weight_wd_mult": "1"}
    assert old.nodes[3].attrs["eps"] == "0.001"

    expected = parse(SYMBOLS["legacy"])
    # Operators add this when the symbol is built: initializers, and the number of outputs.
    nodes = []
    for node in expected.nodes:
        attrs = {key: value for key, value in node.attrs.items() if key != "__init__"}
        nodes.append(replace(node, attrs=attrs, num_outputs=1))
    new = upgrade(old, legacy_input_names)
    assert new == replace(expected, nodes=tuple(nodes))
    assert upgrade(new, legacy_input_names) is new


def test_operators_see_their_parameters_without_hidden_attributes() -> None:
    calls = []

    def input_names(node: NodeJSON) -> list[str]:
        calls.append(dict(node.attrs))
        return []

    graph = upgrade(parse(json.dumps(recorded.legacy_graph())), input_names)
    assert all("mult" not in key and key != "ctx_group" for attrs in calls for key in attrs)
    # The owner of this gamma_lr_mult is unknown: it stays.
    assert graph.nodes[3].attrs["gamma_lr_mult"] == "9"
    assert graph.nodes[3].attrs["__ctx_group__"] == "dev1"


def test_a_hidden_attribute_moves_only_to_a_variable() -> None:
    data = NodeJSON("null", "data")
    relu = NodeJSON("Activation", "relu", inputs=(NodeEntry(0, 0),))
    norm = NodeJSON("FullyConnected", "fc", {"data_lr_mult": "2", "nope_lr_mult": "3"}, inputs=(NodeEntry(1, 0),))
    old = GraphJSON((data, relu, norm), (NodeEntry(2, 0),), {"mxnet_version": ("int", 904)})
    new = upgrade(old, lambda node: ["data", "weight"])
    assert new.nodes == old.nodes  # 0.9 stored all inputs: none is added


def test_counts_the_outputs_that_are_used_where_the_file_does_not_say() -> None:
    graph = recorded.legacy_graph()
    graph["heads"] = [[4, 0], [3, 2]]
    assert parse(json.dumps(graph)).node_row_ptr == (0, 1, 2, 3, 6, 7)


# Damaged graphs.


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    graph = json.loads(SYMBOLS["multi_output"], strict=False)
    change(graph)
    return json.dumps(graph)


DAMAGED: dict[str, tuple[str, str]] = {
    "nothing": ("", "not JSON"),
    "not JSON": ("[", "not JSON"),
    "huge number": ("1" * 5000, "JSON|expected an object"),
    "no object": ("[]", "graph: expected an object, found a list of 0"),
    "deep": ("[" * 10_000, "10000 nested containers; at most 256"),
    "wide": ("[" + "[]," * 500_000 + "[]]", "500002 lists and maps"),
    "no nodes": ("{}", "'arg_nodes' is missing"),
    "unknown field": (changed(lambda g: g.update(more=1)), "graph: unknown field 'more'"),
    "nodes no list": (changed(lambda g: g.update(nodes={})), "graph, nodes: expected a list"),
    "no op": (changed(lambda g: g["nodes"][3].pop("op")), "node 3: 'op' is missing"),
    "unknown field of a node": (changed(lambda g: g["nodes"][3].update(x=1)), "node 3: unknown field 'x'"),
    "op no string": (
        changed(lambda g: g["nodes"][3].update(op=1)),
        r"node 3 \('conv'\), op: expected a string",
    ),
    "attr no string": (
        changed(lambda g: g["nodes"][3]["attrs"].update(kernel=[3, 3])),
        r"node 3 \('conv'\), attrs, 'kernel': expected a string, found a list of 2",
    ),
    "circle": (
        changed(lambda g: g["nodes"][3]["inputs"].append([3, 0, 0])),
        "the nodes form a cycle: 'conv' <- 'conv'",
    ),
    "no entry": (changed(lambda g: g["nodes"][3]["inputs"].append([1])), r"\('conv'\).*expected \[node"),
    "negative": (changed(lambda g: g["nodes"][3]["inputs"].append([-1, 0])), "expected an index, found -1"),
    "no integer": (
        changed(lambda g: g["nodes"][3]["inputs"].append([True, 0])),
        "expected an index, found True",
    ),
    "too big": (changed(lambda g: g["heads"].append([0, 1 << 32])), "expected an index, found 4294967296"),
    "no node": (
        changed(lambda g: g["nodes"][3]["inputs"].append([9, 0, 0])),
        r"node 3 \('conv'\), inputs\[3\]: node 9 is not one of the 5 nodes",
    ),
    "variable with inputs": (changed(lambda g: g["nodes"][1].update(inputs=[[0, 0, 0]])), "has inputs"),
    "arg_nodes": (changed(lambda g: g["arg_nodes"].append(3)), "arg_nodes: 3 is not the index of a variable"),
    "control": (changed(lambda g: g["nodes"][3].update(control_deps=[9])), "9 is not one of the 5 nodes"),
    "graph attribute": (changed(lambda g: g["attrs"].update(x=["int", "1"])), "'x': expected"),
    "graph attribute bool": (changed(lambda g: g["attrs"].update(x=["int", True])), "'x': expected"),
    "subgraph": (
        changed(lambda g: g["nodes"][3].update(subgraphs=[{}])),
        r"\('conv'\), subgraph 0: '.*missing",
    ),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_errors_name_the_fault_and_its_place(text: str, message: str) -> None:
    with pytest.raises(SymbolFormatError, match=message):
        parse(text)


def reversed_nodes(graph: Any) -> None:
    last = len(graph["nodes"]) - 1
    graph["nodes"].reverse()
    graph["arg_nodes"] = [last - i for i in graph["arg_nodes"]]
    for entries in (graph["heads"], *(node["inputs"] for node in graph["nodes"])):
        for entry in entries:
            entry[0] = last - entry[0]


EDITED: dict[str, Callable[[Any], object]] = {
    "no row pointers": lambda g: g.pop("node_row_ptr"),
    "empty row pointers": lambda g: g.update(node_row_ptr=[]),
    "one row pointer too few": lambda g: g["node_row_ptr"].pop(),
    "falling row pointers": lambda g: g.update(node_row_ptr=[0, 1, 2, 1, 4, 6]),
    "too few outputs": lambda g: g.update(node_row_ptr=[0, 1, 2, 3, 4, 5]),
    "another node": lambda g: g["nodes"].append({"op": "null", "name": "unused", "inputs": []}),
    "any order": reversed_nodes,
}


@pytest.mark.parametrize("edit", EDITED.values(), ids=EDITED)
def test_graphs_that_programs_have_edited_are_read(edit: Callable[[Any], object]) -> None:
    """Only the nodes' fields must match if fields were added or removed, as in MXNet."""
    read = mx.sym.load_json(changed(edit))
    plain = mx.sym.load_json(changed(lambda g: None))
    assert read.tojson() == plain.tojson()


def test_an_output_of_a_missing_node_is_refused() -> None:
    text = changed(lambda g: g["heads"].append([4, 2, 0]))
    with pytest.raises(mx.MXNetError, match="output 2 of node 'slice' of the loaded symbol is read; it has 2"):
        mx.sym.load_json(text)


@pytest.mark.parametrize("depth", [400, 5000])  # one for Python's limit, one for that of its JSON reader
def test_deep_subgraphs_are_refused(depth: int) -> None:
    head = '{"nodes": [{"op": "f", "name": "f", "inputs": [], "subgraphs": ['
    tail = ']}], "arg_nodes": [], "heads": []}'
    with pytest.raises(SymbolFormatError, match="nested too deeply"):
        parse(head * depth + tail * depth)


def parse_damaged(text: str | bytes) -> None:
    try:
        graph = parse(text)
    except SymbolFormatError:
        return
    new = upgrade(graph, legacy_input_names)
    assert parse(render(new)) == new


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 33) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.text(max_size=50) | st.binary(max_size=50) | JSON.map(json.dumps))
def test_random_text(text: str | bytes) -> None:
    parse_damaged(text)


@given(st.sampled_from([text.encode() for text in ALL.values()]), st.data())
def test_truncated_text(text: bytes, data: st.DataObject) -> None:
    with pytest.raises(SymbolFormatError):
        parse(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.sampled_from([text.encode() for text in ALL.values()]), st.data())
def test_mutated_text(text: bytes, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text) - 1))
    piece = data.draw(st.binary(max_size=4) | st.sampled_from([b"[", b"]", b'"', b"99", b"-1", b"1e9", b"null"]))
    parse_damaged(text[:index] + piece + text[index + data.draw(st.integers(0, 4)) :])


@given(st.sampled_from([*ALL.values(), json.dumps(recorded.legacy_graph())]), st.data())
def test_mutated_values(text: str, data: st.DataObject) -> None:
    graph = json.loads(text, strict=False)
    parent: Any = graph
    while True:
        key = data.draw(st.sampled_from(range(len(parent)) if isinstance(parent, list) else sorted(parent)))
        child = parent[key]
        if not isinstance(child, dict | list) or not child or data.draw(st.integers(0, 4)) == 0:
            break
        parent = child
    if data.draw(st.booleans()):
        parent[key] = data.draw(JSON)
    else:
        del parent[key]
    parse_damaged(json.dumps(graph))


@pytest.mark.parametrize(
    "text", ["[]," * 40_000, "(" * 16_000, "-" * 16_000 + "1", "1+" * 8000 + "1", "not " * 4000 + "1", "(1," * 9000]
)
def test_input_that_needs_unbounded_memory_is_refused(text):
    pooled = mx.sym.Pooling(mx.sym.Variable("data"), kernel=(2, 2), pool_type="max", name="p")
    raw = pooled.tojson().replace("(2, 2)", text)
    tracemalloc.start()
    try:
        with pytest.raises(
            mx.MXNetError, match="node 'p' of the loaded symbol: Pooling: parameter kernel is"
        ) as caught:
            mx.sym.load_json(raw)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(raw) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("dtype", [",loat32", "f4,f4", "(2,)f4", "f4," * 100_000])
def test_a_dtype_of_a_file_is_a_plain_name(dtype):
    cast = mx.sym.Cast(mx.sym.Variable("data"), dtype="float32", name="c")
    with pytest.raises(mx.MXNetError, match="node 'c' of the loaded symbol: Cast: parameter dtype is"):
        mx.sym.load_json(cast.tojson().replace("float32", dtype))
