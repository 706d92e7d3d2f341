"""Files of other programs are named; arrays in pickles and of TVM are read without running code."""

import bz2
import gzip
import json
import lzma
import pickle
import struct

import numpy as np
import pytest

import flowmx as mx
from flowmx.artifacts import inspect
from flowmx.cli import main
from flowmx.serialization import formats


def array_of_tvm(array):
    """Return an array as TVM writes it."""
    kind = {"f": 2, "i": 0, "u": 1}[array.dtype.kind]
    head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim, kind, 8 * array.itemsize, 1)
    return head + struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes) + array.tobytes()


def parameters_of_tvm(arrays):
    names = b"".join(struct.pack("<Q", len(name)) + name.encode() for name in arrays)
    count = struct.pack("<Q", len(arrays))
    content = b"".join(map(array_of_tvm, arrays.values()))
    return struct.pack("<QQ", 0xF7E58D4F05049CB7, 0) + count + names + count + content


ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, -2], np.int8)}


def test_parameters_of_tvm_are_read_and_converted(tmp_path):
    path = tmp_path / "deploy.params"
    path.write_bytes(parameters_of_tvm(ARRAYS))
    assert inspect(path).kind == "parameters of a graph that TVM compiled"
    assert main(["convert", str(path), str(tmp_path / "x.npz"), "--check"]) == 0
    loaded = formats.load(path)
    assert all(loaded[name].dtype == array.dtype and (loaded[name] == array).all() for name, array in ARRAYS.items())


@pytest.mark.parametrize("at", [9, 20, 30, 60, 80, 120])
def test_damaged_parameters_of_tvm_are_refused(tmp_path, at):
    content = bytearray(parameters_of_tvm(ARRAYS))
    path = tmp_path / "deploy.params"
    for damaged in (content[:at], content[:at] + b"\xff" * 8 + content[at + 8 :]):
        path.write_bytes(damaged)
        assert inspect(path).as_text()


class Trap:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_arrays_of_a_pickle_are_read_without_running_it(tmp_path, capsys, protocol):
    model = {"layers": [ARRAYS["w"], np.asfortranarray(ARRAYS["w"])], "trap": Trap(), "big": np.ones(2, ">f8")}
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(model, protocol))
    arrays = formats.load(path)
    assert list(arrays) == ["layers.0", "layers.1", "big"]
    assert (arrays["layers.1"] == ARRAYS["w"]).all() and arrays["big"].tolist() == [1, 1]
    report = inspect(path)
    assert report.facts["arrays"].startswith("3 arrays") and not report.problem
    assert main(["convert", str(path), str(tmp_path / "x.npz"), "--check"]) == 0
    assert "executed" not in capsys.readouterr().out


def test_arrays_that_mxnet_pickled_are_read(tmp_path):
    content = mx.nd.array(ARRAYS["w"])
    handle = mx.serialization.params.dumps([content.asnumpy()])[24:-8]
    record = mx.serialization.plain_pickle.ObjectRecord(
        mx.serialization.plain_pickle.Name("mxnet.ndarray.ndarray", "NDArray"), (), {"handle": handle}
    )
    (tmp_path / "x.pkl").write_bytes(mx.serialization.plain_pickle.dumps({"w": record}))
    assert (formats.load(tmp_path / "x.pkl")["w"] == ARRAYS["w"]).all()


def test_a_pickle_that_repeats_its_parts_is_refused(tmp_path):
    part = [np.zeros(1000)] * 100
    for _ in range(6):
        part = [part] * 100
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(part, 4))
    assert inspect(tmp_path / "bomb.pkl").problem


KINDS = {
    "xgboost-model": (b"binf" + bytes(100), "a model of XGBoost", "decision trees"),
    "old-xgboost": (bytes(40) + b"\0binary:logistic", "a model of XGBoost", "decision trees"),
    "model.txt": (b"tree\nversion=v3\n", "a model of LightGBM", "decision trees"),
    "model.bin": (
        b"\xba\x16\x4f\x2f" + bytes(60),
        "word vectors or a classifier of fastText or BlazingText",
        "fasttext",
    ),
    "big.params": (b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS", "git lfs pull"),
    "x.params": (b"<!DOCTYPE html><html>", "a web page", "the download failed"),
    "lib.so": (b"\x7fELF" + bytes(60), "a program or library", "machine code"),
    "net.param": (b"7767517\n1 1\n", "a network of ncnn", "ONNX"),
    "saved_model.pb": (b"\x08\x01\x12\x04", "a graph of TensorFlow", "tf2onnx"),
    "x.rda": (gzip.compress(b"RDX2\nX\n"), "an archive: a folder with an R data file", "mx.model.save()"),
}


@pytest.mark.parametrize("name", KINDS)
def test_files_of_other_programs_are_named_with_a_way_out(tmp_path, name):
    content, kind, advice = KINDS[name]
    (tmp_path / name).write_bytes(content)
    report = inspect(tmp_path / name)
    assert report.kind == kind and advice in report.problem


DOCUMENTS = {
    "model-shapes.json": ([{"name": "data", "shape": [1, 3, 8, 8]}], "the shapes of a model's inputs"),
    "adapter_config.json": ({"peft_type": "LORA"}, "the settings of a LoRA adapter"),
    "trace.json": ({"traceEvents": []}, "a profile"),
    "hyperparams.json": ({"num_classes": "3"}, "the settings of a training by SageMaker"),
    "transform.json": ({"__kind__": "instance", "class": "Chain"}, "a part of a predictor of GluonTS"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_json_files_name_what_they_belong_to(tmp_path, name):
    content, kind = DOCUMENTS[name]
    (tmp_path / name).write_text(json.dumps(content))
    report = inspect(tmp_path / name)
    assert report.kind == kind and report.commands and not report.problem


@pytest.mark.parametrize("text", ["{}", "[]", '{"a": 1}', "[" * 100_000, '{"a":' * 100_000, "{"])
def test_other_json_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert "no model that flowmx knows" in inspect(tmp_path / "x.json").problem


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_described_by_its_content(tmp_path, compress):
    mx.nd.save(str(tmp_path / "w.params"), {"w": mx.nd.ones((2, 3))})
    content = (tmp_path / "w.params").read_bytes()
    (tmp_path / "w.params.z").write_bytes(compress(content))
    assert inspect(tmp_path / "w.params.z").parts[0].facts["names"] == "w (2, 3)"
    assert main(["convert", str(tmp_path / "w.params.z"), str(tmp_path / "w.npz"), "--check"]) == 0
    (tmp_path / "w.params.z").write_bytes(compress(b"x" * (100 << 20)))
    assert "expected at most 200 times as many" in inspect(tmp_path / "w.params.z").problem
    (tmp_path / "w.params.z").write_bytes(compress(content)[:-20])
    assert inspect(tmp_path / "w.params.z").problem
