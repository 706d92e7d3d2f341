"""Checkpoints in MXNet's files."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn
from tests.fixtures import record_training as recorded


def test_reads_mxnet_s_checkpoint():
    symbol, args, aux = mx.model.load_checkpoint(recorded.CHECKPOINT, recorded.EPOCH)
    assert symbol.list_arguments() == recorded.network(mx.sym).list_arguments()
    assert set(args) == set(recorded.first_params()[0])
    assert set(aux) == {"bn_moving_mean", "bn_moving_var"}
    assert args["fc1_weight"].shape == (6, 5)


def test_writes_the_same_files_as_mxnet(tmp_path):
    symbol, args, aux = mx.model.load_checkpoint(recorded.CHECKPOINT, recorded.EPOCH)
    prefix = str(tmp_path / "net")
    mx.model.save_checkpoint(prefix, 12, symbol, args, aux)
    loaded = mx.model.load_checkpoint(prefix, 12)
    assert loaded[0].tojson() == symbol.tojson()
    for actual, expected in zip(loaded[1:], (args, aux), strict=True):
        assert {name: array.asnumpy().tolist() for name, array in actual.items()} == {
            name: array.asnumpy().tolist() for name, array in expected.items()
        }
    content = (tmp_path / "net-0012.params").read_bytes()
    assert len(content) == len((recorded.FOLDER / "mlp-0003.params").read_bytes())


def test_without_a_symbol_only_parameters_are_saved(tmp_path):
    mx.model.save_checkpoint(str(tmp_path / "net"), 1, None, {"w": mx.nd.array([1.0])}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["net-0001.params"]


def test_refuses_files_other_than_checkpoints(tmp_path, caplog):
    mx.nd.save(str(tmp_path / "a-0001.params"), {"weight": mx.nd.array([1.0])})
    with pytest.raises(ValueError, match="an array named 'weight', expected a checkpoint's"):
        mx.model.load_params(str(tmp_path / "a"), 1)
    mx.nd.save(str(tmp_path / "b-0001.params"), [mx.nd.array(np.zeros(2))])
    with pytest.raises(ValueError, match="without names"):
        mx.model.load_params(str(tmp_path / "b"), 1)
    mx.nd.save(str(tmp_path / "c-0001.params"), {})
    assert mx.model.load_params(str(tmp_path / "c"), 1) == ({}, {})
    assert "is empty" in caplog.text
    with pytest.raises(FileNotFoundError):
        mx.model.load_params(str(tmp_path / "missing"), 1)


EMPTY = {
    "Block.load_parameters": lambda path: nn.Dense(2).load_parameters(path, allow_missing=True),
    "ParameterDict.load": lambda path: nn.Dense(2).collect_params().load(path, allow_missing=True),
    "initializer.Load": lambda path: mx.init.Load(path),
    "load_checkpoint": lambda path: mx.model.load_params(path.removesuffix("-0001.params"), 1),
    "onnx": lambda path: mx.onnx.export_model(
        mx.sym.var("data") * 2, path, [(1,)], "float32", path.replace(".params", ".onnx")
    ),
}


@pytest.mark.parametrize("read", EMPTY.values(), ids=EMPTY)
def test_a_file_without_arrays_needs_no_names(read, tmp_path):
    path = str(tmp_path / "empty-0001.params")
    mx.nd.save(path, {})
    read(path)


@pytest.mark.parametrize("read", EMPTY.values(), ids=EMPTY)
def test_arrays_without_names_are_refused_if_names_are_needed(read, tmp_path):
    path = str(tmp_path / "list-0001.params")
    mx.nd.save(path, [mx.nd.ones(2)])
    with pytest.raises(ValueError, match="without names"):
        read(path)
