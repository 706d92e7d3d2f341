"""mx.contrib.quantization: networks of MXNet 1.9.1, custom networks, the pass, calibration, errors."""

import io
import zipfile

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib import quantization
from flowmx.ops.quantization import entropy_threshold as calibration_of
from tests import quantized_sums
from tests.fixtures.record_quantized import ARCHIVE, OPTIONS

NAMES = [f"{name} {options}" for name, all_of_it in OPTIONS.items() for options in all_of_it]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("quantized")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(path)
    return path


@pytest.fixture(scope="module")
def recorded():
    with zipfile.ZipFile(ARCHIVE) as archive, np.load(io.BytesIO(archive.read("outputs.npz"))) as outputs:
        return dict(outputs)


def load(folder, name):
    return mx.gluon.SymbolBlock.imports(f"{folder}/{name}-symbol.json", ["data"], f"{folder}/{name}-0000.params")


@pytest.fixture
def networks(folder):
    return {name: load(folder, name) for name in OPTIONS}


def calibration(recorded):
    return mx.io.NDArrayIter(recorded["x"], batch_size=8)


# -- files of MXNet --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_networks_quantized_by_mxnet_give_its_results(folder, recorded, name, monkeypatch):
    quantized_sums.install(monkeypatch)
    expected = recorded[name]
    step = np.abs(expected).max() / 127
    outputs = load(folder, name)(mx.nd.array(recorded["x"])).asnumpy()
    exact = not name.startswith("resnet auto")
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-4 if exact else 1.25 * step)


@pytest.mark.parametrize("name", NAMES)
def test_exact_sums_are_closer_to_the_floating_point_network(folder, recorded, name):
    real = recorded[name.split()[0]]
    quantized = load(folder, name)
    quantized.hybridize()
    error = np.abs(quantized(mx.nd.array(recorded["x"])).asnumpy() - real).max()
    assert error <= 1.05 * np.abs(recorded[name] - real).max()


@pytest.mark.parametrize("name", ["resnet auto naive", "mlp int8 none"])
def test_files_are_written_as_they_were_read(folder, tmp_path, name):
    quantized = load(folder, name)
    quantized.hybridize()
    quantized(mx.nd.zeros((2, 1, 8, 8)))
    quantized.export(str(tmp_path / "again"))
    first, second = (mx.sym.load(f"{where}-symbol.json") for where in (f"{folder}/{name}", tmp_path / "again"))
    assert first.tojson() == second.tojson()
    assert first.list_auxiliary_states() == second.list_auxiliary_states()
    old, new = (mx.nd.load(f"{where}-0000.params") for where in (f"{folder}/{name}", tmp_path / "again"))
    assert {key: value.dtype for key, value in old.items()} == {key: value.dtype for key, value in new.items()}


# -- custom networks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "naive"])
@pytest.mark.parametrize("name", ["cnn", "resnet", "mlp"])
def test_quantized_networks_are_close_to_floating_point(networks, recorded, name, mode):
    quantized = quantization.quantize_net_v2(
        networks[name], calib_mode=mode, calib_data=calibration(recorded), quantize_granularity="tensor-wise"
    )
    quantized.hybridize()
    outputs, real = quantized(mx.nd.array(recorded["x"])).asnumpy(), recorded[name]
    assert np.abs(outputs - real).max() < 0.08 * np.abs(real).max()
    assert (outputs.argmax(1) == real.argmax(1)).all()
    assert {"int8"} <= {np.dtype(param.dtype).name for param in quantized.collect_params().values()} or name == "resnet"


@pytest.mark.parametrize("dtype", ["int8", "auto"])
def test_models_are_quantized_operator_by_operator(folder, recorded, dtype):
    symbol, args, aux = mx.model.load_checkpoint(f"{folder}/resnet", 0)
    model = quantization.quantize_model(
        symbol, args, aux, label_names=None, calib_mode="naive", calib_data=calibration(recorded),
        quantized_dtype=dtype, quantize_mode="full",
    )  # fmt: skip
    ops = model[0].attr_dict()
    assert "min_calib_range" in ops["requantize_res_conv0_fwd" if "requantize_res_conv0_fwd" in ops else next(
        name for name in ops if name.startswith("requantize_"))]  # fmt: skip
    module = mx.mod.Module(model[0], label_names=None)
    module.bind([("data", (16, 1, 8, 8))], for_training=False)
    module.set_params(*model[1:])
    module.forward(mx.io.DataBatch([mx.nd.array(recorded["x"])]), is_train=False)
    outputs = module.get_outputs()[0].asnumpy()
    assert (outputs.argmax(1) == recorded["resnet"].argmax(1)).mean() > 0.9


def test_a_graph_is_quantized_and_calibrated_in_two_steps(folder, recorded):
    symbol, args, aux = mx.model.load_checkpoint(f"{folder}/cnn", 0)
    qsym, _, _, collector = quantization.quantize_graph(symbol, args, aux, calib_mode="naive", quantized_dtype="auto")
    executor = symbol.bind(mx.cpu(), {**args, "data": mx.nd.array(recorded["x"])}, aux_states=aux)
    executor.set_monitor_callback(collector.collect, monitor_all=True)
    executor.forward()
    qsym, qargs, _ = quantization.calib_graph(qsym, args, aux, collector, "naive", "auto")
    bound = qsym.bind(mx.cpu(), {**qargs, "data": mx.nd.array(recorded["x"])})
    outputs = bound.forward()[0].asnumpy()
    assert np.abs(outputs - recorded["cnn"]).max() < 0.05 * np.abs(recorded["cnn"]).max()


def test_thresholds_by_entropy(folder, recorded):
    symbol, args, aux = mx.model.load_checkpoint(f"{folder}/mlp", 0)
    qsym, _, _, ranges = quantization.quantize_graph(symbol, args, aux, calib_mode="entropy", quantized_dtype="auto")
    collector = quantization._LayerHistogramCollector(num_bins=801, include_layer=ranges.include_layer)
    executor = symbol.bind(mx.cpu(), {**args, "data": mx.nd.array(recorded["x"])}, aux_states=aux)
    executor.set_monitor_callback(collector.collect, monitor_all=True)
    executor.forward()
    ends = {name: histogram[-1] for name, histogram in collector.hist_dict.items()}
    assert set(ends) == set(ranges.include_layer)
    qsym, qargs, _ = quantization.calib_graph(qsym, args, aux, collector, "entropy", "auto", logger=None)
    for node, attributes in qsym.attr_dict().items():
        if node.startswith("requantize_"):
            name = f"{node.removeprefix('requantize_')}_output"
            assert 0 < float(attributes["max_calib_range"]) <= 1.01 * ends[name]
    bound = qsym.bind(mx.cpu(), {**qargs, "data": mx.nd.array(recorded["x"])})
    assert (bound.forward()[0].asnumpy().argmax(1) == recorded["mlp"].argmax(1)).mean() > 0.9


def histograms():
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(5000)
    for name, values in {
        "normal": normal, "relu": np.maximum(normal, 0), "long tails": rng.standard_t(2, 5000), "few": normal[:40],
        "steps": np.round(normal * 5) / 5, "one": np.full(9, 0.25), "one large": [*normal[:500], 1000.0],
    }.items():  # fmt: skip
        end = np.abs(values).max()
        counts, edges = np.histogram(values, bins=1001, range=(-end, end))
        for factor in (1, 0.125) if name == "normal" else (1,):
            yield pytest.param(counts.astype(np.float32) * factor, edges.astype(np.float32), id=f"{name} {factor}")
    yield pytest.param(np.zeros(1001, np.float32), np.linspace(-1, 1, 1002, dtype=np.float32), id="nothing")


@pytest.mark.parametrize(("counts", "edges"), list(histograms()))
@pytest.mark.parametrize("levels", [63, 127])
def test_thresholds_by_entropy_match_an_exhaustive_search(counts, edges, levels):
    middle = len(counts) // 2
    before = np.concatenate([[0], np.cumsum(counts, dtype=np.float64)]).astype(np.float32)
    tried = [
        calibration_of._divergence(counts, middle - each, middle + each + 1, levels, before)
        for each in range(levels // 2, middle + 1)
    ]
    best = int(np.argmin(tried))
    threshold, divergence = mx.nd.contrib.calibrate_entropy(
        mx.nd.array(counts), mx.nd.array(edges), num_quantized_bins=levels
    )
    assert threshold.asscalar() == edges[middle + levels // 2 + best + 1]
    assert divergence.asscalar() == tried[best]


def test_excluded_layers_stay_in_floating_point(networks, recorded):
    net = networks["cnn"]
    names = [node["name"] for node in _nodes(net) if node["op"] == "Convolution"]
    quantized = quantization.quantize_net_v2(net, data_shapes=[("data", (2, 1, 8, 8))], exclude_layers=names[:1])
    assert _ops(quantized).count("_sg_mkldnn_conv") == 2
    assert sum(node.get("attrs", {}).get("quantized") == "true" for node in _nodes(quantized)) == 1
    quantized = quantization.quantize_net_v2(
        net, data_shapes=[("data", (2, 1, 8, 8))], exclude_operators=["_sg_mkldnn_conv", "Pooling"]
    )
    assert not any(node.get("attrs", {}).get("quantized") == "true" for node in _nodes(quantized))
    matched = quantization.quantize_net_v2(net, data_shapes=[("data", (2, 1, 8, 8))], exclude_layers_match=["conv"])
    assert sum(node.get("attrs", {}).get("quantized") == "true" for node in _nodes(matched)) == 0


def _nodes(block):
    import json

    return json.loads(block._traced.symbol.tojson())["nodes"]


def _ops(block):
    return [node["op"] for node in _nodes(block)]


def test_smart_mode_skips_layers_without_quantized_neighbors():
    data = mx.sym.var("data")
    pooled = mx.sym.Pooling(data, kernel=(2, 2), name="before")
    convolved = mx.sym.Convolution(pooled, kernel=(1, 1), num_filter=2, name="conv")
    for mode, expected in (("full", 1), ("smart", 0)):
        quantized, _ = quantization._quantize_symbol(convolved, mx.cpu(), quantize_mode=mode)
        assert quantized.tojson().count("_contrib_quantized_pooling") == expected


def test_fused_layers_take_their_ranges_at_once(networks, recorded):
    quantized = quantization.quantize_net_v2(networks["resnet"], calib_mode="naive", calib_data=calibration(recorded))
    ops = _ops(quantized)
    assert "_contrib_requantize" not in ops and "BatchNorm" not in ops and "_contrib_quantized_elemwise_add" not in ops
    assert ops.count("_sg_mkldnn_conv") == 6


def test_sums_are_exact_where_float32_is_not():
    rng = np.random.default_rng(0)
    data, weight = rng.integers(200, 256, (2, 600, 3, 3)), rng.integers(100, 128, (2, 600, 3, 3))
    ends = [mx.nd.array([each]) for each in (0.0, 1.0, -1.0, 1.0)]
    sums = mx.nd.contrib.quantized_conv(
        mx.nd.array(data, dtype="uint8"), mx.nd.array(weight, dtype="int8"), *ends, kernel=(3, 3), num_filter=2,
        no_bias=True,
    )[0].asnumpy()  # fmt: skip
    np.testing.assert_array_equal(sums[:, :, 0, 0], np.tensordot(data, weight, ([1, 2, 3], [1, 2, 3])))


# -- calibration, errors ---------------------------------------------------------------------------------------


def test_histograms_grow_with_their_values():
    first = np.linspace(-1, 1, 101)
    counts, edges = np.histogram(first, bins=11, range=(-1, 1))
    histogram = quantization.combine_histogram((counts, edges, -1, 1, 1), np.array([0.5, 3.0]), 0.5, 3.0, 3.0)
    assert histogram[0].sum() == 103 and len(histogram[0]) % 2 == 1
    assert histogram[2:4] == (-1, 3.0) and histogram[4] >= 3
    again = quantization.combine_histogram(histogram, np.array([0.0]), 0.0, 0.0, 0.0)
    assert again[0].sum() == 104 and again[4] == histogram[4]


def test_loaders_serve_as_data(networks, recorded):
    loader = mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(recorded["x"], np.zeros(16, np.float32)), batch_size=8, num_workers=0
    )
    quantized = quantization.quantize_net_v2(
        networks["mlp"], calib_mode="naive", calib_data=loader, num_calib_examples=8
    )
    outputs = quantized(mx.nd.array(recorded["x"])).asnumpy()
    assert (outputs.argmax(1) == recorded["mlp"].argmax(1)).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"calib_mode": "best"}, "calib_mode is 'best', expected 'none', 'naive', 'entropy'"),
        ({"quantized_dtype": "int4"}, "quantized_dtype is 'int4', expected 'int8' or 'uint8' or 'auto'"),
        ({"quantize_mode": "most"}, "quantize_mode is 'most', expected 'full' or 'smart'"),
        ({"calib_mode": "naive"}, "calib_data is missing, expected a DataIter or DataLoader"),
        ({"ctx": [mx.cpu()]}, "expected one device"),
        ({"exclude_operators": "Pooling"}, "excluded_operators is 'Pooling', expected a list of names"),
    ],
)
def test_wrong_options_are_refused(networks, given, message):
    with pytest.raises(ValueError, match=message):
        quantization.quantize_net_v2(networks["mlp"], data_shapes=[("data", (2, 1, 8, 8))], **given)


def test_calibration_passes_only_the_inputs_that_a_block_takes(networks):
    shapes = [("data", (2, 1, 8, 8)), ("softmax_label", (2,)), ("weight", (2,))]
    net = mx.gluon.nn.HybridSequential()
    net.add(networks["mlp"], mx.gluon.nn.Dense(3))
    net[1].initialize()
    assert quantization.quantize_net_v2(net, data_shapes=shapes)(mx.nd.ones((2, 1, 8, 8))).shape == (2, 3)
    with pytest.raises(TypeError, match="positional"):
        quantization.quantize_net_v2(mx.gluon.nn.HybridLambda(lambda F, one, two, three, four: one), data_shapes=shapes)


def test_a_shape_without_a_name_is_refused(networks):
    with pytest.raises(TypeError, match=r"data_shapes has \(2, 1, 8, 8\), expected a DataDesc"):
        quantization.quantize_net_v2(networks["mlp"], data_shapes=[(2, 1, 8, 8)])


def test_batch_norm_without_a_range_suggests_a_fix():
    inputs = [mx.nd.ones((1, 2), dtype="int8"), *[mx.nd.ones((2,))] * 4, mx.nd.array([-1.0]), mx.nd.array([1.0])]
    with pytest.raises(mx.base.MXNetError, match="exclude the operator BatchNorm"):
        mx.nd.contrib.quantized_batch_norm(*inputs)[0].asnumpy()


def test_joined_inputs_share_one_range():
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    data = mx.sym.var("data")
    branches = [
        mx.sym.Activation(mx.sym.Convolution(data, kernel=(1, 1), num_filter=4, name=f"conv{index}"), act_type="relu")
        for index in range(4)
    ]
    pooled = mx.sym.Pooling(branches[2], kernel=(3, 3), pad=(1, 1), name="pooled")
    joined = mx.sym.Concat(mx.sym.Concat(*branches[:2], dim=1), pooled, dim=1)
    symbol = mx.sym.Group([mx.sym.FullyConnected(joined, num_hidden=2, name="fc"), branches[3]])
    x = rng.standard_normal((4, 3, 6, 6)).astype(np.float32)
    shapes, _, _ = symbol.infer_shape(data=x.shape)
    params = {
        name: mx.nd.array(rng.standard_normal(shape) * (1 + 3 * ("conv1" in name)))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True) if name != "data"
    }  # fmt: skip
    quantized, args, _ = quantization.quantize_model_mkldnn(
        symbol, params, {}, label_names=None, calib_mode="naive", calib_data=mx.io.NDArrayIter(x, batch_size=4),
        quantize_mode="full", quantized_dtype="auto",
    )  # fmt: skip
    ends = [
        (attributes["min_calib_range"], attributes["max_calib_range"])
        for name, attributes in quantized.attr_dict().items()
        if "sg_mkldnn_conv" in name and "max_calib_range" in attributes
    ]  # fmt: skip
    assert len(ends) == 4 and sorted(map(ends.count, ends)) == [1, 3, 3, 3]
    real, outputs = (
        each.bind(mx.cpu(), {**held, "data": mx.nd.array(x)}).forward()[0].asnumpy()
        for each, held in ((symbol, params), (quantized, args))
    )
    assert np.abs(real - outputs).max() < 0.05 * np.abs(real).max()
