"""mx.viz: tables and drawings as MXNet's, recorded in tests/fixtures; pictures of memory."""

import json
import re
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

import flowmx as mx
from flowmx.graph.reports.occupancy import alive
from flowmx.graph.reports.picture import COLORS, panels
from tests.fixtures import record_visualization as recorded

KNOWN = json.loads(recorded.FILE.read_text())


@pytest.mark.parametrize("name", recorded.CASES)
def test_tables_and_drawings_are_those_of_mxnet(name):
    actual = recorded.describe(mx, name)
    assert actual.keys() == KNOWN[name].keys()
    for key, value in actual.items():
        assert value == KNOWN[name][key], key


def perceptron():
    return recorded.perceptron(mx)


@pytest.fixture
def without_graphviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)


def test_a_table_where_mxnet_stops_with_an_error(capsys):
    vector = mx.sym.sum(mx.sym.Variable("data"), axis=1)
    scaled = mx.sym.FullyConnected(vector, num_hidden=2, flatten=False, no_bias=True, name="fc")
    mx.viz.print_summary(scaled, shape={"data": (4, 3)})  # MXNet: IndexError
    assert re.search(r"fc\(FullyConnected\) +0 +sum", capsys.readouterr().out)


@pytest.mark.parametrize("function", [mx.viz.print_summary, mx.viz.plot_network])
def test_refusals(function, without_graphviz):
    with pytest.raises(TypeError, match="symbol is int, expected a Symbol"):
        function(3)
    with pytest.raises(ValueError, match="unknown are those of data"):
        function(perceptron(), shape={})


def test_without_graphviz_a_drawing_is_text_and_svg(without_graphviz, tmp_path, monkeypatch):
    dot = mx.viz.plot_network(perceptron(), title="my net", shape={"data": (4, 784)})
    lines = dot.source.splitlines()
    assert lines[0] == 'digraph "my net" {'
    assert lines[-1] == "}"
    assert (
        '\t"fc1" [label="FullyConnected\\n128" shape="box" fixedsize="true" width="1.3" height="0.8034" ' in dot.source
    )
    assert '\t"fc1" -> "data" [dir="back" arrowtail="open" label="784"]' in lines
    assert "fc1_weight" not in dot.source
    path = dot.save(tmp_path / "net.gv")
    assert Path(path).read_text() == dot.source
    for show, name in ((dot.render, "one.svg"), (dot.view, "two")):
        path = Path(show(tmp_path / name))
        assert path.suffix == ".svg" and path.read_text() == dot._repr_svg_()
    monkeypatch.chdir(tmp_path)
    assert dot.render(view=True, cleanup=True) == "my net.svg" and Path("my net.svg").exists()


def test_without_graphviz_a_picture_has_a_box_for_each_node(without_graphviz):
    hidden, shown = (mx.viz.plot_network(perceptron(), hide_weights=each)._repr_svg_() for each in (True, False))
    boxes = [ElementTree.fromstring(each).findall(".//{*}rect") for each in (hidden, shown)]
    nodes = json.loads(perceptron().tojson())["nodes"]
    assert len(boxes[1]) == len(nodes) and len(boxes[0]) == sum(
        not each["name"].endswith(("_weight", "_bias")) for each in nodes
    )
    assert "FullyConnected" in hidden and "fc1_weight" not in hidden and "fc1_weight" in shown


def test_a_large_network_is_drawn_too(without_graphviz):
    symbol = mx.sym.var("data")
    for _ in range(300):
        symbol = mx.sym.relu(symbol)
    assert mx.viz.plot_network(symbol)._repr_svg_().count("<rect") == 301


def test_with_graphvizs_package_but_not_its_program_it_is_drawn_here(monkeypatch, tmp_path):
    package = types.ModuleType("graphviz")
    package.Digraph = type("Digraph", (mx.viz.Dot,), {})
    monkeypatch.setitem(sys.modules, "graphviz", package)
    monkeypatch.setenv("PATH", "")
    drawing = mx.viz.plot_network(perceptron())
    assert isinstance(drawing, package.Digraph)
    assert "<rect" in drawing._repr_svg_() == drawing._repr_mimebundle_()["image/svg+xml"]
    assert Path(drawing.render(tmp_path / "net")).read_text() == drawing._repr_svg_()


def test_names_are_quoted(without_graphviz):
    odd = mx.sym.relu(mx.sym.Variable('a "b" \\ c'), name="x")
    assert '"a \\"b\\" \\\\ c"' in mx.viz.plot_network(odd).source


def test_duplicate_names_warn(without_graphviz):
    twice = mx.sym.relu(mx.sym.relu(mx.sym.Variable("data"), name="x"), name="x")
    with pytest.warns(
        RuntimeWarning, match="multiple variables with the same name in your graph, which are drawn as one: x"
    ):
        mx.viz.plot_network(twice)


# -- memory ------------------------------------------------------------------------------------------------


def bound(**shapes):
    return perceptron().simple_bind(mx.cpu(), **(shapes or {"data": (64, 784)}))


def shown(text):
    """Return the titles of a picture, and their rectangles."""
    rectangles = {}
    for each in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}rect"):
        for title in each:
            rectangles[title.text] = {key: float(each.get(key)) for key in ("x", "y", "width", "height")}
    return rectangles


def test_a_picture_shows_every_place_once():
    plan = bound().plan
    actual = shown(mx.viz.plot_memory(plan))
    steps = [title for title in actual if title.startswith("step ")]
    assert len(steps) == len(plan.steps())
    (panel,) = panels(plan)
    bars = {title: box for title, box in actual.items() if title not in steps}
    assert len(bars) == len(panel.bars) == len(plan.lives)
    assert sorted(value for bar in panel.bars for value in bar.values) == sorted(
        [entry.node.output_name(entry.index) for entry in plan.place]
        + [f"workspace of {node.name}" for node in plan.workspace]
    )
    boxes = list(bars.values())
    ends = [bar.life.last + 1 - bar.life.first for bar in panel.bars]
    wide = boxes[0]["width"] / ends[0]
    assert [box["width"] for box in boxes] == pytest.approx([wide * end for end in ends], abs=0.02)
    for one in boxes:
        for other in boxes:
            is_next_to = one["x"] + one["width"] <= other["x"] + 0.02 or other["x"] + other["width"] <= one["x"] + 0.02
            apart = one["y"] + one["height"] <= other["y"] + 0.02 or other["y"] + other["height"] <= one["y"] + 0.02
            assert one is other or is_next_to or apart


def test_live_values_and_the_bound():
    plan = bound().plan
    (panel,) = panels(plan)
    assert panel.bound == plan.lower_bound()
    counted = [sum(life.size for life in plan.lives if life.first <= t <= life.last) for t in range(len(panel.alive))]
    assert panel.alive == counted == alive(plan.lives, len(plan.steps()) + 1)
    kinds = {"forward", "gradient", *(["workspace"] if plan.workspace else [])}
    assert {bar.kind for bar in panel.bars} == kinds
    assert set(COLORS) >= {bar.kind for bar in panel.bars}


def test_a_panel_for_each_device():
    with mx.AttrScope(ctx_group="first"):
        x = mx.sym.Variable("x")
        one = mx.sym.dot(mx.sym.dot(x, x), x)
    with mx.AttrScope(ctx_group="second"):
        net = mx.sym.dot(mx.sym.dot(one, one), one)
    groups = {"first": mx.cpu(1), "second": mx.cpu(2)}
    executor = net.simple_bind(mx.cpu(), x=(5, 5), group2ctx=groups)
    by_device = {panel.device: panel for panel in panels(executor.plan)}
    assert sum(panel.size for panel in by_device.values()) == executor.plan.arena.size
    assert {"cpu(1)", "cpu(2)"} <= set(by_device)
    assert all(f"{device}: " in mx.viz.plot_memory(executor) for device in by_device)


def test_files(tmp_path):
    executor = bound()
    text = executor.plan.picture(tmp_path / "memory.svg")
    assert (tmp_path / "memory.svg").read_text() == text == mx.viz.plot_memory(executor)
    with pytest.raises(ValueError, match=r"ends in \.bmp, expected \.svg or \.png"):
        mx.viz.plot_memory(executor, tmp_path / "memory.bmp")
    with pytest.raises(TypeError, match="int was passed, expected an Executor or its plan"):
        mx.viz.plot_memory(3)


def test_png(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    mx.viz.plot_memory(bound(), tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        mx.viz.plot_memory(bound(), tmp_path / "memory.png")
