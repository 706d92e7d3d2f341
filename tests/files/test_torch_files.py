"""PyTorch files: those that `tests/fixtures/record_torch.py` wrote with PyTorch, and malicious ones."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib.torch import load_state_dict
from flowmx.errors import MismatchError
from flowmx.gluon import nn, rnn
from flowmx.serialization.torch import TorchFormatError, loads

FILES = Path(__file__).parent.parent / "fixtures" / "torch"
EXPECTED = np.load(FILES / "expected.npz")
NAMES = ("bfloat16", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


class Recurrent(mx.gluon.Block):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.layers = kind(3, num_layers=2, bidirectional=True)
        self.norm = nn.LayerNorm()
        self.out = nn.Dense(2, flatten=False)

    def forward(self, x):
        return self.out(self.norm(self.layers(self.words(x))))


def convolutional():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2DTranspose(3, 2, activation="relu"),
        nn.Dense(5, activation="relu"), nn.Dense(3, use_bias=False),
    )  # fmt: skip
    return net


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
@pytest.mark.parametrize(
    ("name", "make", "data"),
    [
        ("convolutional", convolutional, "image"),
        ("lstm", lambda: Recurrent(rnn.LSTM), "words"),
        ("gru", lambda: Recurrent(rnn.GRU), "words"),
    ],
)
def test_a_network_gives_what_pytorch_gave(name, make, data, ending):
    net = make()
    load_state_dict(net, FILES / f"{name}.{ending}")
    actual = net(mx.nd.array(EXPECTED[data])).asnumpy()
    np.testing.assert_allclose(actual, EXPECTED[name], rtol=1e-5, atol=1e-6)


def test_both_formats_hold_the_same():
    one, other = (mx.nd.load(FILES / f"lstm.{ending}") for ending in ("pt", "safetensors"))
    assert one.keys() == other.keys()
    assert all((one[name].asnumpy() == other[name].asnumpy()).all() for name in one)


def test_every_dtype_and_dicts_in_dicts():
    loaded = mx.nd.load(FILES / "dtypes.pt")
    assert list(loaded) == ["net.w", "net.p", *NAMES]
    assert loaded["net.w"].asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    for name in NAMES:
        assert np.dtype(loaded[name].dtype).name == name
        assert loaded[name].astype("float32").asnumpy().tolist() == ([1, 0, 1] if name == "bool" else [1, 0, 2])
    again = mx.nd.load_frombuffer((FILES / "dtypes.pt").read_bytes())
    assert again.keys() == loaded.keys()


def test_parameters_of_the_same_names_are_loaded_as_they_are(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(2))
    state = {name: value for name, value in mx.nd.load(FILES / "lstm.pt").items() if name.startswith("out")}
    load_state_dict(net, state, names={"out": "0"})
    other = nn.HybridSequential()
    other.register_child(nn.Dense(2, in_units=6), "out")
    other.load_parameters(FILES / "lstm.pt", ignore_extra=True)
    assert (other._children["out"].weight.data().asnumpy() == net[0].weight.data().asnumpy()).all()


def test_mismatches_are_reported_layer_by_layer():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 5, in_channels=2), nn.BatchNorm(in_channels=4), nn.Conv2DTranspose(3, 2, use_bias=False))
    net.initialize()
    before = net[1].gamma.data().asnumpy()
    with pytest.raises(MismatchError) as caught:
        load_state_dict(net, FILES / "convolutional.pt")
    lines = str(caught.value).splitlines()
    assert "'0' (weight (4, 2, 3, 3), bias (4,)) and Conv2D '0': 'weight' has shape" in lines[1]
    assert lines[1].endswith("expected (4, 2, 5, 5)")
    assert lines[2].endswith("and Conv2DTranspose '2': 'bias' is only in the state dict")
    assert lines[3] == "  '6' (weight (5, 75), bias (5,)): the network has no layer for it"
    assert "names=" in lines[-1] and len(lines) == 6
    assert (net[1].gamma.data().asnumpy() == before).all()
    with pytest.raises(KeyError, match="names has 'fc', and the state dict has 0, 1"):
        load_state_dict(net, FILES / "convolutional.pt", names={"fc": "0"})


# -- attacks ---------------------------------------------------------------------------------------------------


def archive(content, storages=None, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("archive/data.pkl", content)
        for name, data in (storages or {}).items():
            file.writestr(f"archive/data/{name}", data)
    return buffer.getvalue()


def archive_of_text():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("word/document.xml", "<a/>")
    return buffer.getvalue()


class Harm:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_a_module_is_refused_by_name():
    with pytest.raises(
        TorchFormatError, match=r"module.pt.*torch.nn.modules.linear.Linear, which is not called.*state"
    ):
        mx.nd.load(FILES / "module.pt")


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (Harm(os.system, "true"), "posix.system|nt.system"),
        (Harm(eval, "1"), "builtins.eval"),
        (Harm(getattr, "a", "b"), "builtins.getattr"),
        (Harm(np.empty, 3), "numpy.*empty"),
    ],
)
def test_only_functions_that_build_tensors_are_called(harm, name):
    with pytest.raises(TorchFormatError, match=name):
        loads(archive(pickle.dumps({"a": harm})))


def test_truncated_and_damaged_files_raise_one_error():
    content = (FILES / "gru.pt").read_bytes()
    generator = np.random.default_rng(0)
    damaged = [content[:size] for size in range(0, len(content), 97)]
    for _ in range(300):
        copy = bytearray(content)
        for index in generator.integers(0, len(copy), 3):
            copy[index] ^= 1 << generator.integers(8)
        damaged.append(bytes(copy))
    for each in damaged:
        with contextlib.suppress(TorchFormatError):  # no other error is raised, and no warning
            loads(each)


def test_another_zip_file_is_reported():
    with pytest.raises(TorchFormatError, match=r"expected a file of torch.save, with one data.pkl"):
        loads(archive_of_text())


def test_compressed_files_and_lists_are_refused():
    with pytest.raises(TorchFormatError, match=r"is compressed, which torch.save never does"):
        loads(archive(pickle.dumps({}) + bytes(10**6), compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(TorchFormatError, match=r"expected a dict of tensors .*found list"):
        loads(archive(pickle.dumps([1])))


def test_a_large_declared_size_does_not_exhaust_memory():
    assert loads(archive(b"\x80\x02}r" + (2**31 - 1).to_bytes(4, "little") + b".")) == {}


DOUBLED = b")" + b"q\x00h\x00\x86" * 100
"""A tuple of 2**100 tuples, which cannot be hashed, compared or printed in finite time."""
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"


@pytest.mark.parametrize(
    "content",
    [
        b"}" + DOUBLED + b"Ns.",
        b"}(" + DOUBLED + b"Nu.",
        b"(" + DOUBLED + b"Nd.",
        DOUBLED + b"Q.",
        b"(X\x07\0\0\0storage" + DOUBLED + b"NNNtQ.",
        TENSOR + b"(" + STORAGE + b"K\x00" + DOUBLED + b"(K\x01ttR.",
        TENSOR + b"(" + STORAGE + b"K\x00(K\x04t" + DOUBLED + b"tR.",
        TENSOR + b"(" + STORAGE + DOUBLED + b"(K\x04t(K\x01ttR.",
        TENSOR + b"(" + DOUBLED + b"K\x00(K\x04t(K\x01ttR.",
        DOUBLED + b"Nb.",
        DOUBLED + b")R.",
        DOUBLED + b".",
    ],
)
def test_a_value_of_exponential_size_is_never_traversed(content):
    with pytest.raises(TorchFormatError):
        loads(archive(b"\x80\x02" + content, {"0": bytes(16)}))


def test_a_hand_made_tensor_is_read():
    data = TENSOR + b"(" + STORAGE + b"K\x00(K\x04t(K\x01t\x89NtR"
    arrays = loads(archive(b"\x80\x02}X\x01\0\0\0w" + data + b"s.", {"0": np.arange(4, dtype="f4").tobytes()}))
    assert arrays["w"].tolist() == [0, 1, 2, 3]


def test_repeated_references_do_not_exhaust_memory():
    nested = {}
    for _ in range(15):
        nested = {str(i): nested for i in range(10)}
    with pytest.raises(TorchFormatError, match="more tensors than a file of this size can have"):
        loads(archive(pickle.dumps(nested)))


class _Pair(mx.gluon.Block):
    def __init__(self):
        super().__init__()
        self.key = nn.Dense(2, in_units=2)
        self.value = nn.Dense(2, in_units=2)

    def forward(self, x):
        return self.value(self.key(x))


def _state(*paths):
    return {f"{path}.{name}": np.ones(shape) for path in paths for name, shape in (("weight", (2, 2)), ("bias", (2,)))}


def test_layers_distinguished_only_by_order_are_named():
    hint = r"'v' as 'key', 'k' as 'value'\. If that is wrong, name them"
    with pytest.warns(UserWarning, match=hint):
        load_state_dict(_Pair(), _state("v", "k"))
    load_state_dict(_Pair(), _state("v", "k"), names={"v": "value", "k": "key"})
    load_state_dict(_Pair(), _state("value", "key"))


def test_numbered_layers_of_the_same_shape_are_matched_in_order():
    net = nn.Sequential()
    net.add(nn.Dense(2), nn.Dense(2))
    load_state_dict(net, _state("layers.0", "layers.3"))
