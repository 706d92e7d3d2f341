"""Recurrent networks and transformers as ONNX, dynamic lengths, and unsupported models."""

import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib import onnx as mxonnx
from flowmx.errors import ShapeError
from flowmx.gluon import nn, rnn
from tests.onnx_round import check, check_file, close, predict, runtime, write


def traced(block, *inputs):
    """Return a block's symbol and parameters, for inputs called data0, data1, ..."""
    block.initialize(mx.init.Uniform(0.5))
    block(*[mx.nd.array(x) for x in inputs])
    symbol = block(*[mx.sym.var(f"data{index}") for index in range(len(inputs))])
    symbol = mx.sym.Group(symbol) if isinstance(symbol, list) else symbol
    return symbol, {name: param.data() for name, param in block.collect_params().items()}


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def words(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 20, shape).astype("float32")


class Language(mx.gluon.HybridBlock):
    """A language model: an embedding of words, recurrent layers, and the next word's scores."""

    def __init__(self, layer):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(20, 6)
            self.layer = layer
            self.scores = nn.Dense(20, flatten=False)

    def hybrid_forward(self, F, data):
        return self.scores(self.layer(self.embedding(data)))


LAYERS = {
    "lstm": lambda: rnn.LSTM(5, 2, bidirectional=True, dropout=0.3),
    "lstm, batch first": lambda: rnn.LSTM(5, layout="NTC"),
    "gru": lambda: rnn.GRU(5, 2),
    "rnn": lambda: rnn.RNN(5, 2, activation="relu", bidirectional=True),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_a_recurrent_network_varies_in_batch_and_time(layer, tmp_path):
    symbol, params = traced(Language(layer()), words(7, 3))
    path = str(tmp_path / "model.onnx")
    write(path, symbol, params, {"data0": words(7, 3)}, dynamic=True, dynamic_input_shapes=[("one", "other")])
    for shape in ((7, 3), (4, 1), (1, 8)):
        inputs = {"data0": words(*shape, seed=1)}
        check_file(path, predict(symbol, params, inputs), inputs)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_states_go_in_and_come_out(kind, tmp_path):
    names = ["data", "parameters", "state", "state_cell"][: 4 if kind == "lstm" else 3]
    variables = [mx.sym.var(name) for name in names]
    symbol = mx.sym.RNN(*variables, mode=kind, state_size=4, num_layers=2, bidirectional=True, state_outputs=True)
    shapes = dict(zip(names, symbol.infer_shape(data=(5, 3, 6))[0], strict=True))
    arrays = {name: numbers(*shape) for name, shape in shapes.items()}
    params = {"parameters": mx.nd.array(arrays.pop("parameters"))}
    check(tmp_path, symbol, params, arrays)
    dynamic = [[None if axis == 1 else n for axis, n in enumerate(arrays[name].shape)] for name in arrays]
    check(tmp_path, symbol, params, arrays, dynamic=True, dynamic_input_shapes=dynamic)


def test_cells_that_were_unrolled(tmp_path):
    cell = rnn.HybridSequentialRNNCell()
    cell.add(rnn.LSTMCell(5, input_size=4))
    cell.add(rnn.ResidualCell(rnn.GRUCell(5, input_size=5)))
    cell.initialize(mx.init.Uniform(0.5))
    outputs, states = cell.unroll(6, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    params = {name: param.data() for name, param in cell.collect_params().items()}
    symbol = mx.sym.Group([outputs, *states])
    used = {name: params[name] for name in symbol.list_inputs() if name in params}
    check(tmp_path, symbol, used, {"data": numbers(3, 6, 4)})
    check(tmp_path, symbol, used, {"data": numbers(3, 6, 4)}, dynamic=True, dynamic_input_shapes=[(None, 6, 4)])


class Attention(mx.gluon.HybridBlock):
    """A transformer's layer, with attention by the interleaved operators or by single operators."""

    def __init__(self, width, heads, interleaved):
        super().__init__()
        self.width, self.heads, self.interleaved = width, heads, interleaved
        with self.name_scope():
            self.projection = nn.Dense(3 * width, flatten=False)
            self.out = nn.Dense(width, flatten=False)
            self.first, self.second = nn.LayerNorm(), nn.LayerNorm()
            self.wide, self.narrow = nn.Dense(4 * width, flatten=False), nn.Dense(width, flatten=False)
            self.gelu, self.dropout = nn.GELU(), nn.Dropout(0.1)

    def split(self, F, x):
        """Reshape (time, batch, width) to (batch·heads, time, size)."""
        x = F.reshape(x, shape=(0, 0, self.heads, -1))
        return F.reshape(F.transpose(x, axes=(1, 2, 0, 3)), shape=(-3, 0, 0))

    def plain(self, F, x):
        queries, keys, values = (self.split(F, each) for each in F.split(x, num_outputs=3, axis=2))
        scores = F.softmax(F.contrib.div_sqrt_dim(F.batch_dot(queries, keys, transpose_b=True)))
        attended = F.reshape(F.batch_dot(scores, values), shape=(-4, -1, self.heads, 0, 0))
        return F.reshape(F.transpose(attended, axes=(2, 0, 1, 3)), shape=(0, 0, -3))

    def joined(self, F, x):
        scores = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(x, heads=self.heads))
        return F.contrib.interleaved_matmul_selfatt_valatt(x, self.dropout(scores), heads=self.heads)

    def hybrid_forward(self, F, x):
        projected = self.projection(x)
        mixed = self.joined(F, projected) if self.interleaved else self.plain(F, projected)
        x = self.first(x + self.dropout(self.out(mixed)))
        return self.second(x + self.dropout(self.narrow(self.gelu(self.wide(x)))))


class Transformer(mx.gluon.HybridBlock):
    """A transformer: an embedding of words and positions, two layers of attention, and scores."""

    def __init__(self, interleaved):
        super().__init__()
        with self.name_scope():
            self.words, self.places = nn.Embedding(20, 8), nn.Embedding(16, 8)
            self.layers = nn.HybridSequential()
            self.layers.add(*[Attention(8, 2, interleaved) for _ in range(2)])
            self.scores = nn.Dense(20, flatten=False)

    def hybrid_forward(self, F, data):
        places = self.places(F.contrib.arange_like(data, axis=1))
        x = F.broadcast_add(self.words(data), F.expand_dims(places, axis=0))
        return self.scores(self.layers(F.transpose(x, axes=(1, 0, 2))))


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "plain"])
def test_a_transformer_varies_in_batch_and_length(interleaved, opset, tmp_path):
    symbol, params = traced(Transformer(interleaved), words(3, 7))
    check(tmp_path, symbol, params, {"data0": words(3, 7)}, opset_version=opset)
    path = str(tmp_path / "model.onnx")
    names = [("batch", "length")]
    write(path, symbol, params, {"data0": words(3, 7)}, dynamic=True, dynamic_input_shapes=names, opset_version=opset)
    for shape in ((3, 7), (1, 4), (5, 16)):
        inputs = {"data0": words(*shape, seed=1)}
        check_file(path, predict(symbol, params, inputs), inputs)


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "plain"])
def test_a_transformer_with_another_batch_is_read_back(interleaved, tmp_path):
    symbol, params = traced(Transformer(interleaved), words(3, 7))
    path = str(tmp_path / "model.onnx")
    write(path, symbol, params, {"data0": words(3, 7)}, dynamic=True, dynamic_input_shapes=[("batch", 7)])
    for batch in (3, 1, 5):
        inputs = {"data0": words(batch, 7, seed=batch)}
        check_file(path, predict(symbol, params, inputs), inputs)


# -- lengths that vary -------------------------------------------------------------------------------------


def convolutions():
    """Return a network that takes images of any size, and its parameters."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.MaxPool2D(), nn.GlobalAvgPool2D(), nn.Dense(3))
    return traced(net, numbers(1, 3, 8, 8))


def test_by_default_every_axis_that_can_vary_is_dynamic(tmp_path):
    symbol, params = convolutions()
    path = str(tmp_path / "model.onnx")
    write(path, symbol, params, {"data0": numbers(1, 3, 8, 8)}, dynamic=True)
    assert mxonnx.get_model_metadata(path)["input_tensor_data"] == [("data0", (0, 3, 0, 0))]
    for shape in ((1, 3, 8, 8), (4, 3, 6, 10)):
        inputs = {"data0": numbers(*shape)}
        check_file(path, predict(symbol, params, inputs), inputs)


def test_names_of_lengths_are_in_the_file(tmp_path):
    import onnx

    symbol, params = convolutions()
    path = str(tmp_path / "model.onnx")
    write(path, symbol, params, {"data0": numbers(1, 3, 8, 8)}, dynamic=True, dynamic_input_shapes=[("n", 3, None, 8)])
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [(dim.dim_param, dim.dim_value) for dim in dims] == [("n", 0), ("", 3), ("", 0), ("", 8)]


def test_a_length_that_a_layer_fixes_cannot_vary(tmp_path):
    symbol = mx.sym.Reshape(mx.sym.var("data"), shape=(2, 6))
    inputs = {"data": numbers(2, 3, 2)}
    with pytest.raises(ShapeError, match=r"does not support the dynamic axes.*reshape"):
        write(str(tmp_path / "m.onnx"), symbol, {}, inputs, dynamic=True, dynamic_input_shapes=[(None, 3, 2)])
    path = str(tmp_path / "model.onnx")
    write(path, symbol, {}, inputs, dynamic=True)
    assert mxonnx.get_model_metadata(path)["input_tensor_data"] == [("data", (2, 3, 2))]


def test_a_file_with_dynamic_axes_can_be_imported_with_fixed_lengths(tmp_path):
    symbol = mx.sym.slice_like(mx.sym.var("a"), mx.sym.var("b"))
    inputs = {"a": numbers(9, 3), "b": numbers(4, 3)}
    path = str(tmp_path / "model.onnx")
    write(path, symbol, {}, inputs, dynamic=True, dynamic_input_shapes=[(9, 3), (None, 3)])
    with pytest.raises(mxonnx.ONNXError, match=r"Slice.*varies.*set input_shapes"):
        mxonnx.import_model(path)
    back = mxonnx.import_model(path, input_shapes={"b": (4, 3)})[0]
    close(predict(back, {}, {"a": inputs["a"]})[0], predict(symbol, {}, inputs)[0], "the output of what was read back")
    with pytest.raises(ValueError, match="there is no input 'c'"):
        mxonnx.import_model(path, input_shapes={"c": (4, 3)})


def test_broadcasts_over_dynamic_axes_round_trip(tmp_path):
    a, b = mx.sym.var("a"), mx.sym.var("b")
    spread = mx.sym.broadcast_like(a, b)
    symbol = mx.sym.Group([spread, mx.sym.Concat(b, mx.sym.zeros_like(b) + 2, dim=1)])
    path = str(tmp_path / "model.onnx")
    names = [(1, 3), ("rows", 3)]
    write(path, symbol, {}, {"a": numbers(1, 3), "b": numbers(4, 3)}, dynamic=True, dynamic_input_shapes=names)
    for rows in (4, 1, 7):
        inputs = {"a": numbers(1, 3), "b": numbers(rows, 3)}
        check_file(path, predict(symbol, {}, inputs), inputs)


# -- arguments and refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["files", "objects", "pair", "prefixed"])
def test_symbols_and_parameters_come_in_many_forms(form, tmp_path):
    symbol, params = convolutions()
    names = symbol.list_auxiliary_states()
    parts = {k: v for k, v in params.items() if k not in names}, {k: params[k] for k in names}
    prefixed = {f"arg:{k}": v for k, v in parts[0].items()} | {f"aux:{k}": v for k, v in parts[1].items()}
    sources = {"objects": (symbol, params), "pair": (symbol, list(parts)), "prefixed": (symbol, prefixed)}
    if form == "files":
        mx.model.save_checkpoint(str(tmp_path / "net"), 3, symbol, *parts)
        sources["files"] = (str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0003.params"))
    path = str(tmp_path / "model.onnx")
    assert (
        mx.onnx.export_model(*sources[form], input_shape=[(2, 3, 8, 8)], input_type="float32", onnx_file_path=path)
        == path
    )
    inputs = {"data0": numbers(2, 3, 8, 8)}
    check_file(path, predict(symbol, params, inputs), inputs)


def test_a_file_can_contain_all_shapes_and_the_log_lists_the_nodes(tmp_path, caplog):
    import onnx

    symbol, params = convolutions()
    path, inputs = str(tmp_path / "model.onnx"), {"data0": numbers(2, 3, 8, 8)}
    with caplog.at_level("INFO"):
        write(path, symbol, params, inputs, run_shape_inference=True, verbose=True)
    assert "opset 13" in caplog.text and "(2, 3, 8, 8)" in caplog.text
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(path).graph.value_info]
    assert [2, 4, 8, 8] in shapes and [2, 4, 4, 4] in shapes
    check_file(path, predict(symbol, params, inputs), inputs)


def test_every_unsupported_node_is_named_and_nothing_is_written(tmp_path):
    data = mx.sym.var("data")
    symbol = mx.sym.Group([mx.sym.gammaln(data, name="first"), mx.sym.topk(mx.sym.erfinv(data, name="second"),
                           ret_typ="mask", name="third")])  # fmt: skip
    path = tmp_path / "model.onnx"
    with pytest.raises(mxonnx.ONNXError) as error:
        write(str(path), symbol, {}, {"data": numbers(2, 3)})
    for part in (
        "'first' (gammaln): the operator has no converter",
        "'second' (erfinv)",
        "'third' (topk): its ret_typ is 'mask'",
    ):
        assert part in str(error.value)
    assert not path.exists()


def test_wrong_arguments_are_reported(tmp_path):
    symbol, params = convolutions()
    path, shape = str(tmp_path / "model.onnx"), (1, 3, 8, 8)

    def export(*args, **options):
        return mxonnx.export_model(*args, onnx_file_path=path, **options)

    for call, error, message in (
        (lambda: export(symbol, params), ValueError, "in_shapes is missing"),
        (lambda: export(symbol, params, [shape, shape]), ValueError, "has 2 entries.*data0"),
        (lambda: export(symbol, params, [shape], ["float32"] * 2), ValueError, "in_types has 2"),
        (lambda: export(symbol, params, [(None, 3, 8, 8)]), ValueError, "dynamic_input_shapes"),
        (lambda: export(symbol, params, [shape], dynamic=True, dynamic_input_shapes=[(None, 3)]), ValueError, "4 axes"),
        (lambda: export(symbol, params, [shape], dynamic=True, dynamic_input_shapes=[(2, 3, 8, 8)]), ValueError, "2"),
        (lambda: export(symbol, params, [(1, 5, 8, 8)]), ShapeError, "conv"),
        (lambda: export(symbol, 3, [shape]), TypeError, "params is int"),
        (lambda: export(3, params, [shape]), TypeError, "sym is int"),
        (lambda: export(symbol, {"w": 3}, [shape]), TypeError, "parameter 'w' is int"),
        (lambda: export(symbol, params, [shape], opset_version=9), ValueError, "13 to"),
        (lambda: mxonnx.import_model(str(tmp_path / "none.onnx")), FileNotFoundError, "none"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(mxonnx.ONNXError, match="is not a valid ONNX model"):
        mxonnx.import_to_gluon(str(tmp_path / "text.onnx"), mx.cpu())


def test_without_the_package_a_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (lambda: mxonnx.export_model(mx.sym.var("x"), {}, [(1,)]), lambda: mxonnx.import_model("a.onnx")):
        with pytest.raises(ImportError, match="pip install onnx"):
            call()


def test_labels_are_not_inputs_and_an_output_may_be_an_input(tmp_path):
    data = mx.sym.var("data")
    symbol = mx.sym.Group([mx.sym.SoftmaxOutput(data, mx.sym.var("label"), name="softmax"), data, mx.sym.relu(data)])
    inputs = {"data": numbers(2, 3)}
    path = str(tmp_path / "model.onnx")
    write(path, symbol, {}, inputs)
    assert [name for name, _ in mxonnx.get_model_metadata(path)["input_tensor_data"]] == ["data"]
    assert mxonnx.get_model_metadata(path)["output_tensor_data"][0] == ("softmax_output", (2, 3))
    result = runtime(path, inputs)
    close(result[1], inputs["data"], "the input")
    close(result[2], np.maximum(inputs["data"], 0), "its relu")


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_other_dtypes(dtype, tmp_path):
    a, b = mx.sym.var("a"), mx.sym.var("b")
    inputs = {name: (numbers(2, 3, seed=seed) * 4).astype(dtype) for seed, name in enumerate("ab")}
    check(tmp_path, mx.sym.transpose((a + b) * a - 2), {}, inputs)
