"""safetensors files: round trips, Gluon's parameters, files of other programs, and damaged files."""

from __future__ import annotations

import json
import logging
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.serialization import formats, safetensors
from flowmx.serialization.safetensors import SafetensorsFormatError
from tests.files.test_params_format import any_array
from tests.fixtures import record_mxnet

DTYPES = ["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?", ml_dtypes.bfloat16]


def file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ONE = file({"a": entry()}, bytes(8))


def test_reads_a_file_byte_by_byte():
    content = file({"__metadata__": {"format": "pt"}, "b": entry("BF16", (1, 2), (8, 12)), "a": entry()})
    actual = safetensors.loads(content + struct.pack("<ff", 1.5, -2) + b"\x80\x3f\x00\x40")
    assert list(actual) == ["b", "a"]
    assert actual["b"].dtype == ml_dtypes.bfloat16
    assert actual["b"].astype(np.float32).tolist() == [[1, 2]]
    assert actual["a"].tolist() == [1.5, -2]


@given(st.dictionaries(st.text(max_size=5).filter(lambda name: name != "__metadata__"), any_array(), max_size=4))
def test_round_trip(arrays):
    content = safetensors.dumps(arrays)
    actual = safetensors.loads(content)
    assert actual.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape)
        assert actual[name].tobytes() == array.tobytes()
        assert actual[name].flags.writeable
    assert struct.unpack("<Q", content[:8])[0] % 8 == 0


def test_arrays_are_aligned():
    arrays = {"bytes": np.zeros(3, np.uint8), "half": np.zeros(3, np.float16), "wide": np.zeros(3)}
    header = json.loads(safetensors.dumps(arrays)[8:].split(b"}}")[0] + b"}}")
    for name, array in arrays.items():
        assert header[name]["data_offsets"][0] % array.dtype.itemsize == 0


def test_metadata_is_kept(tmp_path):
    safetensors.save(tmp_path / "file", {"a": np.ones(2)}, {"epoch": "7"})
    assert safetensors.metadata(tmp_path / "file") == {"epoch": "7"}
    assert safetensors.load(tmp_path / "file")["a"].tolist() == [1, 1]
    assert safetensors.metadata.__doc__


def test_arrays_go_in_and_out(tmp_path):
    arrays = {
        "w": mx.nd.array([[1, 2], [3, 4]]),
        "b": mx.nd.array([1.5]).astype("bfloat16"),
        "i": mx.nd.array([3], dtype="int64"),
    }
    mx.nd.save(tmp_path / "net.safetensors", arrays)
    assert (tmp_path / "net.safetensors").read_bytes()[8:9] == b"{"
    loaded = mx.nd.load(tmp_path / "net.safetensors")
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name].astype("float32").asnumpy(), array.astype("float32").asnumpy())
    again = mx.nd.load_frombuffer((tmp_path / "net.safetensors").read_bytes())
    assert again.keys() == arrays.keys()


def test_the_format_is_chosen_by_name_or_argument_and_found_by_content(tmp_path):
    array = {"a": mx.nd.array([1.0])}
    mx.nd.save(tmp_path / "one.params", array, format="safetensors")
    mx.nd.save(tmp_path / "other.safetensors", array, format="params")
    assert (tmp_path / "other.safetensors").read_bytes().startswith(b"\x12\x01")
    for path in tmp_path.iterdir():
        assert mx.nd.load(path)["a"].asscalar() == 1
    with pytest.raises(ValueError, match="format is 'onnx', expected one of 'params', 'safetensors'"):
        mx.nd.save(tmp_path / "x", array, format="onnx")


def test_gluon_saves_and_loads_safetensors(tmp_path):
    def network():
        net = mx.gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4))
        return net

    mx.random.seed(1)
    net, x = network(), mx.nd.ones((2, 3))
    net.initialize(mx.init.Normal(0.5))
    wanted = net(x).asnumpy()
    net.save_parameters(tmp_path / "net.safetensors")
    net.collect_params().save(tmp_path / "full.safetensors")
    for name in ("net", "full"):
        other = network()
        other.load_parameters(tmp_path / f"{name}.safetensors")
        np.testing.assert_array_equal(other(x).asnumpy(), wanted)
    net.hybridize()
    net(x)
    symbol, params = net.export(tmp_path / "exported")
    mx.nd.save(tmp_path / "exported.safetensors", mx.nd.load(params))
    block = mx.gluon.SymbolBlock.imports(symbol, ["data"], tmp_path / "exported.safetensors")
    np.testing.assert_allclose(block(x).asnumpy(), wanted, rtol=1e-6, atol=1e-7)  # sums of a few numbers about 0.5


def test_the_package_reads_and_writes_the_same(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    arrays = {
        name: np.arange(6).reshape(2, 3).astype(name) for name in ("float32", "int8", "float64", "bool", "uint16")
    }
    package.save_file(arrays, tmp_path / "theirs", {"by": "them"})
    safetensors.save(tmp_path / "ours", arrays, {"by": "us"})
    for loaded in (safetensors.load(tmp_path / "theirs"), package.load_file(tmp_path / "ours")):
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)
    assert safetensors.metadata(tmp_path / "theirs") == {"by": "them"}


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ([np.ones(2)], TypeError, "named arrays, expected a dict, got list"),
        ({"a": np.array(["x"])}, TypeError, "array 'a': safetensors does not support dtype"),
        ({"__metadata__": np.ones(1)}, ValueError, "cannot be named __metadata__"),
    ],
)
def test_refuses_values_that_the_format_cannot_store(arrays, error, message, tmp_path):
    with pytest.raises(error, match=message):
        safetensors.save(tmp_path / "file", arrays)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="metadata 'a' is 1, expected strings"):
        safetensors.dumps({}, {"a": 1})


DAMAGED = {
    "nothing": (b"", "8 bytes of the header's length"),
    "a huge header": (struct.pack("<Q", 1 << 60) + b"{", "a header of at most 1 bytes"),
    "no JSON": (file(b"{nothing"), "a header of JSON"),
    "deep": (file(b"[" * 100_000), "a header of JSON"),
    "no object": (file(b"[]"), "an object, found list"),
    "a name twice": (file(b'{"a": 1, "a": 2}'), "a duplicate name"),
    "metadata": (file({"__metadata__": {"a": 1}}), "__metadata__ with strings"),
    "no entry": (file({"a": 1}), "array 'a' with dtype, shape and data_offsets"),
    "an unknown dtype": (file({"a": entry("F8_E4M3", (8,))}, bytes(8)), "of a dtype among BOOL, .*found 'F8_E4M3'"),
    "no shape": (file({"a": {**entry(), "shape": None}}, bytes(8)), "shape, a list of sizes"),
    "a negative size": (file({"a": entry(shape=(-2,))}, bytes(8)), "shape, a list of sizes"),
    "another size": (file({"a": entry(offsets=(0, 12))}, bytes(12)), r"in 8 bytes, found data_offsets \(0, 12\)"),
    "offsets the wrong way": (file({"a": entry(shape=(0,), offsets=(8, 0))}, bytes(8)), "data_offsets"),
    "a huge shape": (file({"a": entry(shape=(1 << 62, 1 << 62, 0), offsets=(0, 0))}), "can be addressed"),
    "an array that ends": (ONE[:-1], "8 bytes of array 'a'"),
    "more than a file": (ONE + b"!", "the end of the file, found 1 more bytes"),
    "a gap": (file({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)), "array 'b' at offset 8, found offset 9"),
    "an overlap": (file({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "array 'b' at offset 8"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_says_what_is_wrong_and_where(content, message, tmp_path):
    (tmp_path / "file").write_bytes(content)
    for read in (lambda: safetensors.loads(content), lambda: safetensors.load(tmp_path / "file")):
        with pytest.raises(SafetensorsFormatError, match=message):
            read()


@given(
    st.sampled_from([ONE, safetensors.dumps({"a": np.arange(3), "b": np.ones((2, 2), np.float16)}, {"c": "d"})]),
    st.data(),
)
def test_mutated_files_are_read_or_refused(content, data):
    index = data.draw(st.integers(0, len(content) - 1))
    piece = data.draw(st.binary(max_size=3) | st.sampled_from([b"[", b"null", b"-1", b"1e9"]))
    try:
        safetensors.loads(content[:index] + piece + content[index + data.draw(st.integers(0, 4)) :])
    except SafetensorsFormatError:
        pass


def test_files_in_neither_format_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"GIF8" + bytes(40))
    with pytest.raises(mx.MXNetError, match=r"file, byte 0: expected a \.params file"):
        mx.nd.load(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        mx.nd.load(tmp_path / "missing")
    with pytest.raises(mx.MXNetError, match="found an empty file"):
        formats.loads(b"")


def test_sparse_arrays_in_a_file_are_noted_where_they_are_made_dense(caplog):
    with caplog.at_level(logging.WARNING):
        loaded = mx.nd.load(record_mxnet.FOLDER / "sparse.params")
        assert not caplog.text and loaded["csr"].stype == "csr"
        dense = formats.load(record_mxnet.FOLDER / "sparse.params")
    np.testing.assert_array_equal(loaded["csr"].asnumpy(), record_mxnet.sparse_matrix())
    np.testing.assert_array_equal(dense["csr"], record_mxnet.sparse_matrix())
    assert "sparse.params: sparse arrays are converted to dense arrays: 'row_sparse', 'csr'" in caplog.text
