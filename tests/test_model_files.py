"""Checkpoints in MXNet's files."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn
from tests.fixtures import record_training as recorded


def test_reads_what_mxnet_saved():
    symbol, args, aux = mx.model.load_checkpoint(recorded.CHECKPOINT, recorded.EPOCH)
    assert symbol.list_arguments() == recorded.network(mx.sym).list_arguments()
    assert set(args) == set(recorded.first_params()[0])
    assert set(aux) == {"bn_moving_mean", "bn_moving_var"}
    assert args["fc1_weight"].shape == (6, 5)


def test_writes_what_mxnet_would(tmp_path):
    symbol, args, aux = mx.model.load_checkpoint(recorded.CHECKPOINT, recorded.EPOCH)
    prefix = str(tmp_path / "net")
    mx.model.save_checkpoint(prefix, 12, symbol, args, aux)
    again = mx.model.load_checkpoint(prefix, 12)
    assert again[0].tojson() == symbol.tojson()
    for found, wanted in zip(again[1:], (args, aux), strict=True):
        assert {name: array.asnumpy().tolist() for name, array in found.items()} == {
            name: array.asnumpy().tolist() for name, array in wanted.items()
        }
    written = (tmp_path / "net-0012.params").read_bytes()
    assert len(written) == len((recorded.FOLDER / "mlp-0003.params").read_bytes())


def test_no_symbol_saves_the_parameters_alone(tmp_path):
    mx.model.save_checkpoint(str(tmp_path / "net"), 1, None, {"w": mx.nd.array([1.0])}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["net-0001.params"]


def test_refuses_files_that_are_no_checkpoint(tmp_path, caplog):
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
def test_a_file_without_arrays_has_no_names_that_could_be_missed(read, tmp_path):
    path = str(tmp_path / "empty-0001.params")
    mx.nd.save(path, {})
    read(path)


@pytest.mark.parametrize("read", EMPTY.values(), ids=EMPTY)
def test_arrays_without_names_are_refused_where_names_are_needed(read, tmp_path):
    path = str(tmp_path / "list-0001.params")
    mx.nd.save(path, [mx.nd.ones(2)])
    with pytest.raises(ValueError, match="without names"):
        read(path)
