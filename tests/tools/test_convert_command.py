"""``python -m flowmx convert``: the output equals the input, and --check reports differences."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.tools.commands import convert_check, convert_formats
from flowmx.tools.commands.convert_formats import Job
from tests.fixtures import record_images


@pytest.fixture
def checkpoint(tmp_path):
    """Save a network with a loss, and return the prefix."""
    data = mx.sym.var("data")
    below = mx.sym.BatchNorm(mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="conv"), name="norm")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(below, num_hidden=3, name="fc"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (2, 1, 6, 6))], [("softmax_label", (2,))])
    module.init_params(mx.init.Normal(0.3))
    module.save_checkpoint(str(tmp_path / "net"), 3)
    return tmp_path


def convert(*arguments):
    return cli.main(["convert", *map(str, arguments)])


def test_a_model_to_onnx_and_back(checkpoint, capsys):
    pytest.importorskip("onnx")
    assert convert(checkpoint / "net", checkpoint / "net.onnx", "--shape", "1,6,6", "--check") == 0
    assert "the outputs of a random input differ by" in capsys.readouterr().out
    assert convert(checkpoint / "net.onnx", checkpoint / "back" / "net", "--check") == 0
    assert sorted(path.name for path in (checkpoint / "back").iterdir()) == ["net-0000.params", "net-symbol.json"]
    assert (
        convert(checkpoint / "net-symbol.json", checkpoint / "two.onnx", "--shape", "data=1,6,6", "--batch", "2") == 0
    )
    (_, shape), = mx.contrib.onnx.get_model_metadata(checkpoint / "two.onnx")["input_tensor_data"]  # fmt: skip
    assert shape == (2, 1, 6, 6)


def test_a_check_asks_onnxruntime_if_it_is_installed(checkpoint, capsys, monkeypatch):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    arguments = (checkpoint / "net", checkpoint / "net.onnx", "--shape", "1,6,6", "--check")
    assert convert(*arguments) == 0
    assert f"(computed by onnxruntime {onnxruntime.__version__})" in capsys.readouterr().out
    monkeypatch.setattr(convert_check, "find_spec", lambda name: None)
    assert convert(*arguments) == 0
    assert "install onnxruntime to check with it" in capsys.readouterr().out
    monkeypatch.undo()

    def write_wrong_model(model, path, write=onnx.save_model, **options):
        model.graph.node.append(onnx.helper.make_node("Unknown", [model.graph.output[0].name], ["x"]))
        write(model, path, **options)

    job = Job(checkpoint / "net", checkpoint / "wrong.onnx", (1, 6, 6))
    write_wrong_model(onnx.load(checkpoint / "net.onnx"), str(job.target))
    with pytest.raises(ValueError, match=r"onnxruntime .* cannot run .*wrong\.onnx: "):
        convert_check.check(job)


def test_a_folder_from_onnx(checkpoint):
    pytest.importorskip("onnx")
    (checkpoint / "folder").mkdir()
    assert convert(checkpoint, checkpoint / "net.onnx", "--shape", "1,6,6") == 0
    assert convert(checkpoint / "net.onnx", checkpoint / "folder", "--check") == 0
    assert (checkpoint / "folder" / "model-symbol.json").exists()


def test_arrays_in_every_format(checkpoint, capsys):
    names = [checkpoint / f"a{ending}" for ending in (".safetensors", ".npz", ".params")]
    for source, target in zip([checkpoint / "net-0003.params", *names], names, strict=False):
        assert convert(source, target, "--check") == 0
    assert capsys.readouterr().out.count("the same 8 arrays, bit by bit") == 3
    assert names[2].read_bytes() == (checkpoint / "net-0003.params").read_bytes()


def test_dtypes_and_lists(tmp_path, capsys):
    arrays = [mx.nd.array([1, 2], dtype=dtype) for dtype in ("int64", "float16", "uint8")]
    mx.nd.save(str(tmp_path / "list.params"), arrays)
    assert convert(tmp_path / "list.params", tmp_path / "list.npz", "--check") == 0
    mx.nd.save(str(tmp_path / "b.params"), {"w": mx.nd.ones(2, dtype="bfloat16")})
    assert convert(tmp_path / "b.params", tmp_path / "b.safetensors", "--check") == 0
    assert convert(tmp_path / "b.params", tmp_path / "b.npz") == 1
    assert "w is bfloat16, which .npz does not support" in capsys.readouterr().err
    assert not (tmp_path / "b.npz").exists()


def test_the_content_of_a_file_decides_not_its_name(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.arange(3.0))
    (tmp_path / "a.npz").rename(tmp_path / "a.params")
    assert convert(tmp_path / "a.params", tmp_path / "b.safetensors", "--check") == 0
    assert mx.nd.load(str(tmp_path / "b.safetensors"))["w"].dtype == np.float64


def test_an_old_symbol_is_upgraded(tmp_path, checkpoint, capsys):
    old = json.loads((checkpoint / "net-symbol.json").read_text())
    for node in old["nodes"]:
        node["param"] = node.pop("attrs", {})
        node["backward_source_id"] = -1
    old.pop("attrs", None)
    (tmp_path / "old-symbol.json").write_text(json.dumps(old))
    assert convert(tmp_path / "old-symbol.json", tmp_path / "new-symbol.json", "--check") == 0
    assert "the same 14 nodes" in capsys.readouterr().out
    new = json.loads((tmp_path / "new-symbol.json").read_text())
    assert "attrs" in new and not any("param" in node for node in new["nodes"])


def test_a_checkpoint_is_upgraded(checkpoint):
    assert convert(checkpoint / "net", checkpoint / "copy" / "other", "--shape", "1,6,6", "--check") == 0
    assert (checkpoint / "copy" / "other-0003.params").exists()


def test_optimizer_states(tmp_path):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3)))
    loss.backward()
    trainer.step(1)
    trainer.save_states(str(tmp_path / "a.states"))
    assert convert(tmp_path / "a.states", tmp_path / "mxnet.states", "--check") == 0
    assert (tmp_path / "mxnet.states").read_bytes()[:1] == b"\x80"  # a pickle
    assert convert(tmp_path / "mxnet.states", tmp_path / "b.states", "--states", "flowmx", "--check") == 0
    assert (tmp_path / "b.states").read_bytes()[:8] == b"FLOWMXOS"


# -- the check sees what is wrong ------------------------------------------------------------------------------


def test_the_check_detects_different_outputs(checkpoint):
    pytest.importorskip("onnx")
    job = Job(checkpoint / "net", checkpoint / "net.onnx", (1, 6, 6))
    convert_formats.convert(job)
    assert "differ by" in convert_check.check(job)
    for name, change in (("arg:fc_bias", 0.01), ("aux:norm_moving_mean", 0.01)):
        arrays = mx.nd.load(str(checkpoint / "net-0003.params"))
        more = mx.nd.array([0, 1, 2, 0][: arrays[name].size]) * change
        mx.nd.save(str(checkpoint / "net-0003.params"), {**arrays, name: arrays[name] + more})
        with pytest.raises(ValueError, match="the outputs of a random input differ by"):
            convert_check.check(job)
        mx.nd.save(str(checkpoint / "net-0003.params"), arrays)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": mx.nd.ones(3) * 2}, "w differs"),
        ({"w": mx.nd.ones(3, dtype="float64")}, "w differs: float32"),
        ({"v": mx.nd.ones(3)}, r"the names differ: \['v', 'w'\]"),
    ],
)
def test_the_check_detects_different_arrays(tmp_path, other, message):
    mx.nd.save(str(tmp_path / "a.params"), {"w": mx.nd.ones(3)})
    mx.nd.save(str(tmp_path / "b.params"), other)
    with pytest.raises(ValueError, match=message):
        convert_check.check(Job(tmp_path / "a.params", tmp_path / "b.params"))


def test_the_check_detects_different_symbols_and_states(tmp_path):
    data = mx.sym.var("data")
    for name, net in (
        ("a", mx.sym.broadcast_mul(data, data, name="m")),
        ("b", mx.sym.broadcast_add(data, data, name="m")),
        ("c", data * mx.sym.var("more")),
    ):
        net.save(tmp_path / f"{name}.json")
    for other, message in (("b", "the symbols differ"), ("c", "list_arguments differs")):
        with pytest.raises(ValueError, match=message):
            convert_check.check(Job(tmp_path / "a.json", tmp_path / f"{other}.json"))
    for name in ("a", "b"):
        updater = mx.optimizer.get_updater(mx.optimizer.create("adam"))
        updater(0, mx.nd.ones(2) * (1 if name == "a" else 2), mx.nd.ones(2))
        (tmp_path / f"{name}.states").write_bytes(updater.get_states(False))
    with pytest.raises(ValueError, match="the states differ"):
        convert_check.check(Job(tmp_path / "a.states", tmp_path / "b.states"))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("net.pth", "net.onnx", "expected a name that ends with .onnx, .json"),
        ("net-0003.params", "net.onnx", "net-0003.params is a file of arrays and"),
        ("net", "net.states", "the former converts only to a file of arrays or a checkpoint or an ONNX file"),
        ("none", "none.onnx", "there is no checkpoint"),
        ("net-0003.params", "net-0003.params", "would be overwritten"),
        ("none.params", "none.npz", "No such file"),
        ("net-symbol.json", "net.states", "is a symbol and"),
    ],
)
def test_unsupported_conversions(checkpoint, source, target, message, capsys):
    assert convert(checkpoint / source, checkpoint / target) == 1
    shown = capsys.readouterr().err
    assert message in shown and shown.startswith("flowmx: error: ") and shown.count("\n") == 1


@pytest.mark.parametrize("options", [["--mode", "naive"], ["--mode", "entropy", "--exclude", "fc"], ["--mode", "none"]])
def test_a_model_in_int8(checkpoint, capsys, options):
    rng = np.random.default_rng(0)
    np.savez(checkpoint / "rows.npz", data=rng.random((40, 1, 6, 6), np.float32))
    calibration = [] if "none" in options else ["--calibrate", checkpoint / "rows.npz", "--examples", "16"]
    where = checkpoint / "net", checkpoint / "small" / "net"
    assert convert(*where, "--int8", *calibration, *options, "--shape", "1,6,6", "--check") == 0
    assert "the outputs of a random input differ by" in capsys.readouterr().out
    symbol, _, _ = mx.model.load_checkpoint(str(where[1]), 3)
    layers = [each["name"] for each in json.loads(symbol.tojson())["nodes"] if "quantized_sg" in each["name"]]
    assert len(layers) == (1 if "--exclude" in options else 2)


def test_a_model_in_bfloat16(checkpoint):
    assert convert(checkpoint / "net", checkpoint / "half", "--bf16", "--shape", "1,6,6", "--check") == 0
    symbol, _, _ = mx.model.load_checkpoint(str(checkpoint / "half"), 3)
    assert "bfloat16" in symbol.tojson(remove_amp_cast=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--int8"], "--int8 needs --calibrate FILE, or --mode none"),
        (["--int8", "--calibrate", "rows.csv"], "expected .rec, .npz or .npy"),
        (["--int8", "--calibrate", "wrong.npy"], "the samples of data have shape (5,), expected (1, 6, 6)"),
        (["--int8", "--calibrate", "other.npz"], "has a, b, expected data"),
        (["--int8", "--calibrate", "images.rec"], "images are one input of 3 channels"),
    ],
)
def test_data_that_does_not_fit_is_refused(checkpoint, monkeypatch, capsys, options, message):
    monkeypatch.chdir(checkpoint)
    np.save("wrong.npy", np.zeros((3, 5), np.float32))
    np.savez("other.npz", a=np.zeros(3), b=np.zeros(3))
    expected = message if "images" not in options[-1] else "images.rec"
    assert convert("net", "small", *options, "--shape", "1,6,6") == 1
    assert expected in capsys.readouterr().err


def test_a_model_in_int8_by_images_is_served(tmp_path):
    data = mx.sym.var("data")
    below = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, no_bias=True, name="conv")
    below = mx.sym.Activation(mx.sym.BatchNorm(below, name="norm"), act_type="relu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(below, num_hidden=3, name="fc"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (2, 3, 24, 20))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(str(tmp_path / "net"), 1)
    (tmp_path / "small").mkdir()
    images = record_images.FOLDER / "small.rec"
    options = ["--int8", "--calibrate", images, "--examples", "7", "--mean", "120", "--std", "60,60,60"]
    assert convert(tmp_path / "net", tmp_path / "small", *options, "--shape", "3,24,20") == 0
    rows = np.random.default_rng(0).standard_normal((4, 3, 24, 20)).astype(np.float32)

    async def served(folder):
        async with mx.serve.Predictor(str(folder), shape=(3, 24, 20), max_batch=4) as predictor:
            return await predictor(rows)

    (tmp_path / "whole").mkdir()
    for path in tmp_path.glob("net-*"):
        path.rename(tmp_path / "whole" / path.name)
    real, small = (mx.run(served(tmp_path / name)) for name in ("whole", "small"))
    assert 0 < np.abs(real - small).max() < 0.1
