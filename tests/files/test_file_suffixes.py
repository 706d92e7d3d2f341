"""Files of arrays under the suffixes of other formats: each has the format of its suffix, or is refused."""

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon, nd
from flowmx.serialization import numpy_files, torch
from flowmx.serialization.reading import FileFormatError

ARRAYS = {
    "weight": np.arange(6, dtype="float32").reshape(2, 3), "arg:count": np.array([1, -2], "int64"),
    "half": np.ones((1, 2), "float16"), "bytes": np.array([0, 255], "uint8"), "double": np.zeros((0, 4)),
}  # fmt: skip


def arguments(arrays):
    return {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}


def same(actual, expected):
    assert list(actual) == list(expected)
    for name, value in expected.items():
        array = actual[name]
        assert array.dtype == value.dtype and array.shape == value.shape
        assert ((array.asnumpy() if isinstance(array, nd.NDArray) else array) == value).all()


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        (".npz", b"PK\3\4"), (".NPZ", b"PK\3\4"), (".pt", b"PK\3\4"), (".pth", b"PK\3\4"), (".params", b"\x12\1"),
        (".ndarray", b"\x12\1"), (".bin", b"\x12\1"), (".weights", b"\x12\1"), ("", b"\x12\1"),
    ],
)  # fmt: skip
def test_files_have_the_format_of_their_suffix_and_are_read_back(suffix, start, tmp_path):
    path = tmp_path / f"x{suffix}"
    nd.save(str(path), arguments(ARRAYS))
    assert path.read_bytes().startswith(start)
    same(nd.load(str(path)), ARRAYS)
    same(nd.load_frombuffer(path.read_bytes()), ARRAYS)


def test_numpy_reads_what_is_written(tmp_path):
    nd.save(tmp_path / "x.npz", arguments(ARRAYS))
    with np.load(tmp_path / "x.npz") as file:
        same(dict(file), ARRAYS)
    nd.save(tmp_path / "x.npy", nd.array([[1, 2], [3, 4]]))
    assert np.load(tmp_path / "x.npy").tolist() == [[1, 2], [3, 4]]
    nd.save(tmp_path / "list.npz", [nd.ones(2), nd.zeros(1)])
    with np.load(tmp_path / "list.npz") as file:
        assert file.files == ["arr_0", "arr_1"]


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_numpy_files_are_read(write, tmp_path):
    arrays = {**ARRAYS, "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big": np.arange(3, dtype=">i4")}
    write(tmp_path / "x.npz", **arrays)
    loaded = nd.load(tmp_path / "x.npz")
    assert {name: value.asnumpy().tolist() for name, value in loaded.items()} == {
        k: v.tolist() for k, v in arrays.items()
    }
    np.save(tmp_path / "x.npy", arrays["columns"])
    assert nd.load(tmp_path / "x.npy")[0].asnumpy().tolist() == arrays["columns"].tolist()


def test_a_state_dict_is_one_for_torch(tmp_path):
    arrays = {**ARRAYS, "flags": np.array([True, False]), "brain": np.ones(2, ml_dtypes.bfloat16), "one": np.array(3.0)}
    torch.save(tmp_path / "x.pt", arrays)
    same(torch.load(tmp_path / "x.pt"), arrays)
    module = pytest.importorskip("torch")
    loaded = module.load(tmp_path / "x.pt", weights_only=True)
    assert {name: (list(t.shape), t.tolist()) for name, t in loaded.items()} == {
        name: (list(value.shape), value.tolist()) for name, value in arrays.items()
    }


def test_networks_save_their_parameters_under_these_suffixes(tmp_path):
    for suffix in (".npz", ".pt", ".safetensors"):
        net, other = gluon.nn.Dense(2, in_units=3), gluon.nn.Dense(2, in_units=3)
        net.initialize(mx.init.Uniform())
        net.save_parameters(str(tmp_path / f"net{suffix}"))
        other.load_parameters(str(tmp_path / f"net{suffix}"))
        assert (other.weight.data().asnumpy() == net.weight.data().asnumpy()).all()


@pytest.mark.parametrize(
    ("suffix", "advice"),
    [
        (".h5", ".safetensors"), (".HDF5", ".safetensors"), (".ckpt", ".safetensors"),
        (".onnx", "mx.onnx.export_model"), (".json", "Symbol.save"), (".pkl", "does not pickle arrays"),
        (".safetensor", "the suffix is .safetensors"),
    ],
)  # fmt: skip
def test_other_formats_are_refused_by_name(suffix, advice, tmp_path):
    path = tmp_path / f"x{suffix}"
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    for save in (lambda: nd.save(path, nd.ones(1)), lambda: net.save_parameters(path)):
        with pytest.raises(ValueError, match="has the suffix of another format") as caught:
            save()
        assert advice in str(caught.value) and not path.exists()
    nd.save(path, nd.ones(1), format="params")
    assert nd.load(path)[0].asnumpy().tolist() == [1]


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".h5", ".onnx", ".safetensors"])
def test_graphs_and_optimizer_states_are_not_reported_as_arrays(suffix, tmp_path):
    path = str(tmp_path / f"x{suffix}")
    with pytest.raises(
        ValueError, match=r"suffix that is not for the JSON of a symbol: name it 'net-symbol\.json', for example"
    ):
        mx.sym.var("x").save(path)
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    with pytest.raises(
        ValueError, match=r"suffix that is not for optimizer states: name it 'net\.states', for example"
    ):
        gluon.Trainer(net.collect_params(), "adam").save_states(path)
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npy", {"a": nd.ones(1)}, "one unnamed array"),
        ("x.npy", [nd.ones(1)] * 2, "one unnamed array"),
        ("x.pt", [nd.ones(1)], "needs names"),
        ("x.npz", {"a": nd.ones(1, dtype="bfloat16")}, "dtype bfloat16"),
        ("x.npz", {"a": nd.ones((2, 2)).tostype("csr")}, "a sparse array"),
        ("x.pt", {"a": nd.ones((2, 2)).tostype("csr")}, "a sparse array"),
    ],
)  # fmt: skip
def test_values_that_a_format_cannot_store_are_refused(name, data, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        nd.save(tmp_path / name, data)
    assert not (tmp_path / name).exists()


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        npy(np.ones(3))[:-1], npy(np.ones(3))[:20], npy(np.array([{}], object), allow_pickle=True),
        npy(np.ones(1)).replace(b"(1,)", b"(9,)"), npy(np.ones(1)).replace(b"(1,), }  ", b"(-1,), } "),
        npy(np.array(["a"])),
    ],
)  # fmt: skip
def test_damaged_numpy_files_are_refused(data):
    with pytest.raises(FileFormatError, match="expected"):
        nd.load_frombuffer(data)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npy", data)
    with pytest.raises(FileFormatError, match="expected"):
        numpy_files.loads_npz(archive.getvalue())
