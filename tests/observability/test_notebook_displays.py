"""Notebook displays of arrays, symbols, blocks, plans and trainings; nothing waits, and all text is escaped."""

import io
import math
import sys
import threading
import types
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

import flowmx as mx
from flowmx import markup
from flowmx.devices.sim import simulated
from flowmx.visualization import svg

HOSTILE = "<script>alert('x')</script>\"&"


class Reader(HTMLParser):
    """The tags and the text of a page; fails where tags are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.cells, self.opened = set(), "", [], []
        self.feed(page)
        assert not self.opened

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.opened.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.opened and self.opened[-1] in ("td", "th"):
            self.cells[-1] += data


def shown(value):
    actual = Reader(value._repr_html_())
    assert not actual.tags & {"script", "img", "iframe", "a", "link"}
    return actual


# -- arrays --------------------------------------------------------------------------------------------------


def test_a_small_array():
    array = mx.nd.array([[1, 2.5], [-3, 1e9]])
    array.wait_to_read()
    actual = shown(array)
    assert "NDArray 2x2 float32 @cpu(0)" in actual.text
    assert actual.cells == ["1", "2.5", "-3", "1e+09"]


def test_a_large_array_shows_its_corners():
    array = mx.nd.arange(24000).reshape((2, 100, 120))
    array.wait_to_read()
    actual = shown(array)
    assert len(actual.cells) == 7 * 9 and actual.cells[:9] == [
        "0", "1", "2", "3", "…", "116", "117", "118", "119",
    ]  # fmt: skip
    assert actual.cells[-1] == "11999" and "[0, :, :]" in actual.text and "⋮" in actual.cells


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8", "int64", "float64", "bool"])
def test_every_dtype(dtype):
    array = mx.nd.ones((3,), dtype=dtype)
    array.wait_to_read()
    actual = shown(array)
    assert actual.cells == ["True" if dtype == "bool" else "1"] * 3 and dtype in actual.text


def test_scalars_and_empty_arrays():
    for array, cells in ((mx.nd.array(7).reshape(()), ["7"]), (mx.nd.zeros((0, 3)), [])):
        array.wait_to_read()
        assert shown(array).cells == cells


def test_a_pending_array_is_not_waited_for():
    go = threading.Event()
    array = mx.nd.ones((2,))
    mx.engine.push(lambda: go.wait(30), writes=[array.variable])
    try:
        assert "pending" in shown(array).text
        assert "pending" in shown(array + 1).text
    finally:
        go.set()
    array.wait_to_read()
    assert shown(array).cells == ["1", "1"]


def test_a_failed_array_says_why():
    array = mx.nd.ones((2,))

    def fail():
        raise KeyError(HOSTILE)

    mx.engine.push(fail, writes=[array.variable])
    with pytest.raises(KeyError):
        array.wait_to_read()
    assert "failed: KeyError: " in shown(array).text and "<script>" in shown(array).text


def test_an_array_on_another_device():
    with simulated("a10"):
        small, large = mx.nd.ones((2,), ctx=mx.sim(0)), mx.nd.zeros((1024, 1024), ctx=mx.sim(0))
        mx.nd.waitall()
        assert shown(small).cells == ["1", "1"]
        actual = shown(large)
    assert "@sim(0)" in actual.text and not actual.cells


# -- networks ------------------------------------------------------------------------------------------------


def network(name="conv"):
    data = mx.sym.var("data")
    below = mx.sym.Activation(mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name=name), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(below + below * 2, num_hidden=3, name="fc"), name="softmax")


def test_a_symbol():
    actual = shown(network())
    assert "<Symbol softmax>: 6 operators, 6 variables" in actual.text
    row = actual.cells.index("conv")
    assert actual.cells[row : row + 4] == [
        "conv",
        "Convolution",
        "kernel=(3, 3), num_filter=4",
        "data, conv_weight, conv_bias",
    ]
    assert "svg" in actual.tags and "Convolution" in actual.text


def test_names_are_escaped():
    actual = shown(network(HOSTILE))
    assert HOSTILE in actual.text


def test_the_drawing_is_xml_and_has_a_box_for_each_layer():
    drawn = svg.network(network(HOSTILE))
    root = ElementTree.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f".//{name}rect")
    assert len(boxes) == 8  # six operators, the data, the label; no weights
    places = [(float(box.get("x")), float(box.get("y"))) for box in boxes]
    assert len(set(places)) == len(places)
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 <= x <= width - 150 and 0 <= y <= height - 40 for x, y in places)
    assert len(root.findall(f"{name}path")) == 8


def test_a_large_network_has_only_a_table():
    below = mx.sym.var("data")
    for _ in range(svg.MAX_BOXES):
        below = below + 1
    actual = shown(below)
    assert "svg" not in actual.tags
    assert any(cell.startswith("... 8") for cell in actual.cells)


def test_a_variable_and_a_group():
    assert "0 operators, 1 variables" in shown(mx.sym.var("x")).text
    assert "group" in shown(mx.sym.Group([mx.sym.var("x") + 1, mx.sym.var("y")])).text


def test_a_block():
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(4, 3, in_channels=1), mx.gluon.nn.Dense(10))
    actual = shown(net)
    assert "HybridSequential net: 50 parameters and those of 1 arrays whose shapes are not known yet" in actual.text
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((1, 1, 4, 4)))
    actual = shown(net)
    assert "HybridSequential net: 210 parameters, hybridized" in actual.text
    assert "  1" in actual.cells and "weight 10x16, bias 10" in actual.cells and "170" in actual.cells


def test_a_hostile_block():
    assert "&lt;b&gt;" in mx.gluon.nn.Dense(2, prefix="<b>_")._repr_html_()


# -- tables, plans, trainings --------------------------------------------------------------------------------


def test_the_profilers_table():
    mx.profiler.set_state("run")
    (mx.nd.ones((2, 2)) * 3).wait_to_read()
    mx.profiler.set_state("stop")
    table = mx.profiler.dumps(reset=True)
    assert isinstance(table, str) and table.startswith("Name")
    actual = shown(table)
    assert actual.cells[:3] == ["Name", "Count", "Total (ms)"] and any("mul" in cell for cell in actual.cells)


def test_a_plan():
    net = mx.gluon.nn.Dense(8)

    def train():
        net.initialize(ctx=mx.gpu(0))
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
        for _ in range(2):
            with mx.autograd.record():
                loss = net(mx.nd.ones((4, 3), ctx=mx.gpu(0))).sum()
            loss.backward()
            trainer.step(4)

    actual = shown(mx.plan.run(train, "a10"))
    assert "gpu(0): " in actual.text and "a step takes" in actual.text


def fit(curves, **options):
    rows = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    data = mx.io.NDArrayIter(rows, (rows[:, 0] > 0).astype(np.float32), 8)
    mx.mod.Module(net).fit(
        data, eval_data=mx.io.NDArrayIter(rows, (rows[:, 0] > 0).astype(np.float32), 8), num_epoch=3,
        eval_metric=["acc", "ce"], batch_end_callback=curves.batch, eval_end_callback=curves.evaluation, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("batches", "points"), [(4, 12), (None, 3)])
def test_curves_of_a_training(batches, points, tmp_path):
    curves = mx.viz.Curves(batches)
    assert "no points yet" in shown(curves).text
    fit(curves)
    assert {name: {k: len(p) for k, p in c.items()} for name, c in curves.values.items()} == {
        name: {"train": points, "validation": 3} for name in ("accuracy", "cross-entropy")
    }
    assert curves.values["accuracy"]["train"][-1][0] == 3
    curves.log(HOSTILE, 1.0, 3, HOSTILE)
    assert HOSTILE in shown(curves).text
    curves.save(tmp_path / "curves.svg")
    root = ElementTree.fromstring((tmp_path / "curves.svg").read_text())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 5


def test_long_curves_are_thinned_and_keep_their_end():
    curves = mx.viz.Curves()
    for i in range(10_001):
        curves.log("loss", i, i)
    (line,) = ElementTree.fromstring(curves.svg()).iter("{http://www.w3.org/2000/svg}polyline")
    places = line.get("points").split()
    assert 300 < len(places) <= 401 and places[-1] == "448.0,36.0"


def test_values_that_are_not_finite_are_no_points():
    curves = mx.viz.Curves()
    for i, value in enumerate([1.0, math.nan, math.inf, 2.0]):
        curves.log("loss", value, i)
    assert curves.values["loss"]["train"] == [(0, 1), (3, 2)]


def test_curves_are_live_in_a_notebook(monkeypatch):
    events = []
    handle = types.SimpleNamespace(update=lambda value, raw: events.append("updated"))

    def display(value, raw, display_id):
        assert "<svg" in value["text/html"]
        events.append("shown")
        return handle

    shell = types.SimpleNamespace(execution_count=1)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    curves = mx.viz.Curves()
    fit(curves)
    assert events == ["shown", "updated", "updated"]
    curves._ipython_display_()  # the last line of the same cell: the curves appear once
    assert events[3:] == ["updated"]
    shell.execution_count = 2
    curves._ipython_display_()
    curves.show()
    assert events[4:] == ["shown", "updated"]


def test_earlier_names_of_callbacks_and_scopes_remain():
    assert mx.viz.Curves.evaluated is mx.viz.Curves.evaluation
    assert mx.contrib.tracking.Tracker.evaluated is mx.contrib.tracking.Tracker.evaluation
    assert mx.checkpoint.using is mx.checkpoint.scope


def test_labels_of_curves_do_not_overlap():
    curves = mx.viz.Curves()
    for name in ("loss", "a metric with a name that is longer than the plot is wide " * 2):
        for number, curve in enumerate(["train", "validation", "a second validation set", "test", "x" * 90]):
            for epoch in range(3):
                curves.log(name, -1.2345678e-5 * (number + epoch), epoch, curve)
    boxes, root = [], ElementTree.fromstring(curves.svg())
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        offset = float(group.get("transform").split(",")[1].rstrip(")"))
        for text in group.iter("{http://www.w3.org/2000/svg}text"):
            width, x = 6 * len(text.text), float(text.get("x"))
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
            boxes.append((left, offset + float(text.get("y")) - 10, left + width, offset + float(text.get("y"))))
    assert len(boxes) == 20
    assert all(box[0] >= 0 and box[2] <= 460 and box[3] <= float(root.get("height")) for box in boxes)
    for index, one in enumerate(boxes):
        for other in boxes[:index]:
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)


def test_progress_is_live_in_a_notebook(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = mx.callback.ProgressBar(total=2, length=4)
    for batch in (0, 1):
        bar(types.SimpleNamespace(nbatch=batch))
    assert stream.getvalue() == "\r[==--] 50%\r[====] 100%\n"


def test_long_tables_are_shortened():
    rows = [[i] for i in range(100)]
    actual = markup.shorten(rows, 10)
    assert len(actual) == 10 and actual[0] == [0] and actual[-1] == [99] and actual[6] == ["... 91 more ..."]
    assert markup.shorten(rows[:10], 10) == rows[:10]
