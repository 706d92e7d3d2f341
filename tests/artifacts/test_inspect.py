"""`flowmx inspect` names what a path is, what is missing, and a command that opens it."""

import gzip
import json
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest

import flowmx as mx
from flowmx.artifacts import input_shapes, inspect, open_artifact
from flowmx.cli import main
from flowmx.recordio import IRHeader, MXIndexedRecordIO, pack
from flowmx.serialization import gguf, safetensors


def network():
    data = mx.sym.var("data")
    layer = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="conv")
    layer = mx.sym.FullyConnected(mx.sym.Flatten(layer), num_hidden=3, name="full")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


@pytest.fixture
def checkpoint(tmp_path):
    """The prefix of a checkpoint of images of 3 x 28 x 28."""
    module = mx.mod.Module(network())
    module.bind([("data", (2, 3, 28, 28))], [("softmax_label", (2,))])
    module.init_params()
    folder = tmp_path / "model"
    folder.mkdir()
    module.save_checkpoint(str(folder / "small"), 3)
    return folder / "small"


def test_a_checkpoint_has_its_inputs_labels_and_commands(checkpoint):
    report = inspect(checkpoint)
    assert report.kind == "a checkpoint of MXNet 1.9.1"
    assert report.facts["inputs"] == "data (3, 28, 28)"
    assert report.facts["labels"].startswith("softmax_label")
    assert report.facts["operators"] == "Convolution 1, Flatten 1, FullyConnected 1, SoftmaxOutput 1"
    assert report.commands[0] == f"flowmx serve {checkpoint} --shape 3,28,28"
    assert not report.problem and not report.missing
    for name in ("small-symbol.json", "small-0003.params"):
        assert inspect(checkpoint.with_name(name)).as_dict() == report.as_dict()


@pytest.mark.parametrize(("layer", "shape"), [
    (lambda x: mx.sym.FullyConnected(x, num_hidden=2, name="f"), (7,)),
    (lambda x: mx.sym.FullyConnected(mx.sym.Dropout(x * 2 + 1), num_hidden=2, name="f"), (7,)),
    (lambda x: mx.sym.Embedding(x, input_dim=9, output_dim=2, name="f"), (None,)),
    (lambda x: mx.sym.Convolution(x, kernel=(3,), num_filter=2, name="f"), (4, None)),
    (lambda x: mx.sym.exp(x), ()),
])  # fmt: skip
def test_the_shape_of_an_input_follows_from_its_first_layer(tmp_path, layer, shape):
    symbol = layer(mx.sym.var("data"))
    weights = {
        (7,): {"f_weight": (2, 7), "f_bias": (2,)},
        (None,): {"f_weight": (9, 2)},
        (4, None): {"f_weight": (2, 4, 3), "f_bias": (2,)},
        (): {},
    }
    arrays = {name: mx.nd.zeros(sizes) for name, sizes in weights[shape].items()}
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, symbol, arrays or {"unused": mx.nd.zeros((1,))}, {})
    text = ", ".join("?" if size is None else str(size) for size in shape)
    assert inspect(tmp_path / "m").facts["inputs"] == (f"data ({text})" if shape else "data")


def test_a_symbol_without_parameters_and_parameters_without_a_network_say_what_is_missing(checkpoint):
    checkpoint.with_name("small-0003.params").rename(checkpoint.parent.parent / "other.params")
    report = inspect(checkpoint.with_name("small-symbol.json"))
    assert report.kind == "a symbol of MXNet 1.9.1"
    assert report.missing == ["the parameters: there is no file small-0000.params in the folder of small-symbol.json"]
    report = inspect(checkpoint.parent.parent / "other.params")
    assert report.kind == "parameters of a module or of an exported block"
    assert report.missing == ["the symbol: there is no file other-symbol.json"]
    assert report.facts["arrays"].startswith("4 arrays, 8,227 numbers, float32")


def test_parameters_that_are_named_after_a_network_of_the_model_zoo_name_it(tmp_path):
    mx.nd.save(str(tmp_path / "resnet18_v1-a0666292.params"), {"features.0.weight": mx.nd.zeros((2, 3))})
    report = inspect(tmp_path / "resnet18_v1-a0666292.params")
    assert report.facts["network"] == "resnet18_v1" and "get_model('resnet18_v1'" in report.commands[0]


def write_records(path):
    with MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w") as file:
        for number in range(5):
            file.write_idx(number, pack(IRHeader(0, [1.0, 2.0], number, 0), b"\xff\xd8rest"))


def write_rows(path):
    path.write_text("1 3:2.5 7:1\n0 1:4\n")


def write_idx(path):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(12))


FILES = {
    "images.rec": (write_records, "a RecordIO file", {"records": "5", "labels": "2 numbers in each record",
                                                      "content": "JPEG images", "index": "images.idx"}),
    "images.lst": (lambda path: path.write_text("0\t1.0\ta.jpg\n1\t0.0\tb.jpg\n"), "a list of images for im2rec",
                   {"lines": "2", "labels": "1 in the first line"}),
    "rows.txt": (write_rows, "rows of LibSVM's format", {"rows": "2"}),
    "table.csv": (lambda path: path.write_text("1,2,3\n4,5,6\n"), "rows of comma-separated values",
                  {"rows": "2", "columns": "3"}),
    "train-labels.gz": (write_idx, "an IDX file, the format of MNIST", {"shape": "(3, 4)"}),
    "weights.safetensors": (lambda path: safetensors.save(path, {"w": np.zeros((2, 3), np.float32)}), "arrays",
                            {"names": "w (2, 3)"}),
    "weights.npz": (lambda path: np.savez(path, w=np.zeros((2, 3))), "arrays", {"names": "w (2, 3)"}),
    "model.gguf": (lambda path: gguf.save(path, {"general.architecture": "llama", "general.name": "Tiny"},
                                          {"w": np.zeros((2, 32), np.float32)}),
                   "a GGUF file of llama.cpp", {"model": "Tiny (llama)", "tensors": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_are_recognized_by_their_content(tmp_path, name):
    write, kind, facts = FILES[name]
    write(tmp_path / name)
    report = inspect(tmp_path / name)
    assert report.kind == kind and not report.problem
    assert facts.items() <= report.facts.items()
    assert report.commands
    if not name.endswith(".csv"):
        (tmp_path / name).rename(tmp_path / "renamed")
        assert inspect(tmp_path / "renamed").kind == kind


@pytest.mark.parametrize("config", ['{"model_type": "bert", "architectures": ["BertModel"]}', '{"model_type": 3}', "{"])
def test_a_folder_of_transformers_names_its_model(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    safetensors.save(tmp_path / "model.safetensors", {"w": np.zeros((2, 3), np.float32)})
    report = inspect(tmp_path)
    assert report.kind == "a model of Hugging Face's Transformers"
    if "bert" in config:
        assert report.facts["model"] == "BertModel (bert)" and not report.problem
    else:
        assert report.problem


@pytest.mark.parametrize("kind", ["mxnet", "flowmx"])
def test_optimizer_states_are_described(tmp_path, kind):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3))).sum()
    loss.backward()
    trainer.step(1)
    path = tmp_path / "t.states"
    trainer.save_states(str(path))
    if kind == "mxnet":
        assert main(["convert", str(path), str(tmp_path / "m.states")]) == 0
        path = tmp_path / "m.states"
    report = inspect(path)
    assert report.kind.startswith("optimizer states of") and report.facts["states"] == "of 2 parameters"


class Trap:
    def __reduce__(self):
        return print, ("executed",)


def test_a_pickle_is_named_but_not_opened(tmp_path, capsys):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"net": Trap()}))
    report = inspect(tmp_path / "model.pkl")
    assert report.kind == "a Python pickle" and report.facts["modules"] == "builtins"
    assert "runs its code" in report.problem and "executed" not in capsys.readouterr().out


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, file in files.items():
            archive.add(file, name)
    return path


def test_an_archive_is_served_and_converted_as_the_model_in_it(checkpoint, tmp_path):
    files = {f"small{end}": checkpoint.with_name(f"small{end}") for end in ("-symbol.json", "-0003.params")}
    path = tar(tmp_path / "model.tar.gz", files)
    report = inspect(path)
    assert report.kind == "an archive: a folder with a checkpoint of MXNet 1.9.1"
    assert report.commands == [f"flowmx serve {path} --shape 3,28,28"]
    assert_same_prediction(path, checkpoint)
    assert main(["convert", str(path), str(tmp_path / "written")]) == 0
    assert_same_prediction(tmp_path / "written", checkpoint)


def test_an_archive_of_sagemaker_within_an_archive_is_opened(checkpoint, tmp_path):
    with zipfile.ZipFile(tmp_path / "model_algo-1", "w") as archive:
        archive.write(checkpoint.with_name("small-symbol.json"), "symbol.json")
        archive.write(checkpoint.with_name("small-0003.params"), "params")
    path = tar(tmp_path / "model.tar.gz", {"model_algo-1": tmp_path / "model_algo-1"})
    report = inspect(path)
    assert report.kind == "an archive: a model of a built-in algorithm of SageMaker"
    assert report.parts[0].parts[0].facts["inputs"] == "data (3, 28, 28)"
    assert_same_prediction(path, checkpoint)


def test_shapes_that_a_file_declares_need_not_be_given(checkpoint):
    declaration = [{"name": "data", "shape": [1, 3, 28, 28]}]
    checkpoint.with_name("model-shapes.json").write_text(json.dumps(declaration))
    assert_same_prediction(checkpoint.parent, checkpoint, shape=None)


def assert_same_prediction(path, prefix, shape=(3, 28, 28)):
    image = np.random.RandomState(0).rand(3, 28, 28).astype(np.float32)

    async def outputs():
        results = []
        for model, sizes in ((path, shape), (prefix, (3, 28, 28))):
            async with mx.serve.Predictor(model, shape=sizes, max_batch=1) as predictor:
                results.append(await predictor(image))
        return results

    first, second = mx.run(outputs())
    np.testing.assert_array_equal(first, second)


def entry(name, **fields):
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


HOSTILE = {
    "a path outside": (entry("../outside"), "is outside the archive's folder"),
    "an absolute path": (entry("/tmp/outside"), "is outside the archive's folder"),
    "a symbolic link": (entry("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link or a device"),
    "a hard link": (entry("link", type=tarfile.LNKTYPE, linkname="../../x"), "is a link or a device"),
    "a device": (entry("null", type=tarfile.CHRTYPE), "is a link or a device"),
}


def test_names_with_a_colon_are_unpacked(tmp_path):
    path = tmp_path / "model.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(entry("2020-01-01T10:00.txt"))
    assert ("outside" in inspect(path).problem) == (os.name == "nt")


def test_a_zip_file_of_an_unknown_version_is_refused(tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "x")
    content = bytearray(path.read_bytes())
    content[content.rfind(b"PK\1\2") + 6] = 151
    path.write_bytes(content)
    assert "is damaged, or not an archive" in inspect(path).problem


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "m.params").touch()
    assert inspect(tmp_path / "m.params").kind == "an empty file"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_entries_are_refused(tmp_path, name):
    info, message = HOSTILE[name]
    path = tmp_path / "model.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(info)
    with pytest.raises(mx.MXNetError, match=message):
        open_artifact(path)
    report = inspect(path)
    assert message in report.problem
    assert main(["inspect", str(path)]) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["model.tar.gz"]


def test_a_bomb_is_refused_before_it_is_written(tmp_path):
    path = tmp_path / "model.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(entry("zeros", size=1 << 28).tobuf())
        for _ in range(1 << 6):
            file.write(bytes(1 << 20))
    assert "expected at most 200 times as many" in inspect(path).problem


def test_an_archive_in_an_archive_without_end_is_described(tmp_path):
    path = tar(tmp_path / "0.tar", {}, "w")
    for depth in range(1, 8):
        path = tar(tmp_path / f"{depth}.tar", {path.name: path}, "w")
    assert inspect(path).kind.startswith("an archive")


@pytest.mark.parametrize("content", [b"", b"\0", b"hello\n", b"{}", b"PK\3\4", b"\x1f\x8b", b"\x80\4", b"GGUF",
                                     struct.pack("<Q", 0x112), b"\n\xce\xd7#", b"{\"nodes\": []}"])  # fmt: skip
@pytest.mark.parametrize("name", ["file", "m-symbol.json", "m-0000.params", "m.onnx", "m.rec", "m.states", "m.tar.gz"])
def test_damaged_and_unknown_files_have_a_problem_and_no_traceback(tmp_path, content, name, capsys):
    (tmp_path / name).write_bytes(content)
    status = main(["inspect", str(tmp_path / name)])
    captured = capsys.readouterr()
    assert status in (0, 1) and "traceback" not in captured.err.lower()
    assert main(["inspect", str(tmp_path)]) in (0, 1)
    assert "traceback" not in capsys.readouterr().err.lower()


def test_a_path_without_anything_is_refused(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err


def test_the_report_is_printed_as_json(checkpoint, capsys):
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["inputs"] == "data (3, 28, 28)"


def test_small_images_are_found_by_the_parameters(tmp_path):
    symbol = mx.sym.FullyConnected(mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=2, name="c"),
                                   num_hidden=2, name="f")  # fmt: skip
    arrays = {"c_weight": (2, 3, 3, 3), "c_bias": (2,), "f_weight": (2, 2 * 22 * 22), "f_bias": (2,)}
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, symbol, {k: mx.nd.zeros(s) for k, s in arrays.items()}, {})
    assert inspect(tmp_path / "m").facts["inputs"] == "data (3, 24, 24)"


def test_operators_of_a_fork_of_mxnet_are_named(checkpoint):
    file = checkpoint.with_name("small-symbol.json")
    file.write_text(file.read_text().replace('"Convolution"', '"QConvolution"'))
    assert inspect(file).problem.startswith("MXNet 1.9.1 does not have the operators QConvolution")


@pytest.mark.parametrize("declared", ["(0L, 3L, 24L, 24L)", "(0, 3, 24, 24)", "(0, 3, ", "24", "('a', 'b')"])
def test_shapes_that_python_2_wrote_are_read(tmp_path, declared):
    symbol = mx.sym.exp(mx.sym.var("data", attr={"__shape__": declared}))
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, symbol, {"unused": mx.nd.zeros((1,))}, {})
    text = "data (3, 24, 24)" if declared.startswith("(0") and declared.endswith(")") else "data"
    assert inspect(tmp_path / "m").facts["inputs"] == text


def test_the_settings_of_a_repository_declare_the_shape_and_a_guess_is_called_one(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(2))
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros((1, 3, 32, 32)))
    net.export(str(tmp_path / "m"))
    report = inspect(tmp_path / "m")
    assert report.facts["inputs"] == "data (3, 224, 224)" and "other sizes fit too" in report.facts["sizes"]
    (tmp_path / "model.toml").write_text("shape = [3, 32, 32]")
    report = inspect(tmp_path / "m")
    assert report.facts["inputs"] == "data (3, 32, 32)" and "sizes" not in report.facts


@pytest.mark.parametrize("text", ["3", "{}", "[1]", '{"inputs": 3}', "[[]]", '[{"name": 1}]', "{"])
def test_damaged_declarations_of_shapes_are_ignored(checkpoint, text):
    for name in ("model-shapes.json", "signature.json", "model.toml"):
        checkpoint.with_name(name).write_text(text)
    assert inspect(checkpoint).facts["inputs"] == "data (3, 28, 28)"


def test_the_shape_of_another_model_in_the_folder_is_ignored(checkpoint):
    declaration = [{"name": "data", "shape": [1, 3, 224, 224]}]
    checkpoint.with_name("model-shapes.json").write_text(json.dumps(declaration))
    assert inspect(checkpoint).facts["inputs"] == "data (3, 28, 28)"


def test_the_model_of_an_archive_with_a_handler_is_converted(checkpoint, tmp_path):
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        for end in ("-symbol.json", "-0003.params"):
            archive.write(checkpoint.with_name(f"small{end}"), f"small{end}")
        archive.writestr("service.py", "raise SystemExit('executed')")
        archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"handler": "service:handle"}}')
    assert f"flowmx serve {tmp_path / 'm.mar'}" in inspect(tmp_path / "m.mar").commands
    assert main(["convert", str(tmp_path / "m.mar"), str(tmp_path / "written")]) == 0
    assert_same_prediction(tmp_path / "written", checkpoint)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert inspect(tmp_path / "pipe").problem == "it is a pipe, a socket or a device"
    assert inspect(tmp_path).parts[0].kind == "neither a file nor a folder"


def test_a_hostile_graph_is_described_with_bounded_work(tmp_path, monkeypatch):
    layer, tries = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=2, name="c"), []
    for _ in range(2000):
        layer = mx.sym.relu(layer)
    layer = mx.sym.FullyConnected(layer, num_hidden=2, name="f")
    arrays = {"c_weight": (2, 3, 3, 3), "c_bias": (2,), "f_weight": (2, 7), "f_bias": (2,)}
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, layer, {k: mx.nd.zeros(s) for k, s in arrays.items()}, {})
    monkeypatch.setattr(input_shapes, "_fits", lambda *arguments: tries.append(1))
    assert inspect(tmp_path / "m").facts["inputs"] == "data (3, ?, ?)"
    assert len(tries) <= 100
