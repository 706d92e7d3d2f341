"""Values given as a dtype: what MXNet accepts, and messages for numbers and for dtypes of other libraries."""

import re

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd


class TorchDtype:
    """Looks like PyTorch's torch.float16."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


def parameter(dtype):
    param = mx.gluon.Parameter("w", shape=(2,), dtype=dtype)
    param.initialize()
    return param.data()


def cast_block(dtype):
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    net.cast(dtype)
    return net.weight.data()


def symbol(dtype):
    return mx.sym.Cast(mx.sym.var("x"), dtype=dtype).bind(mx.cpu(), {"x": nd.ones(2)}).forward()[0]


CALLS = {
    "nd.array": lambda dtype: nd.array([1, 2], dtype=dtype), "nd.zeros": lambda dtype: nd.zeros(2, dtype=dtype),
    "nd.full": lambda dtype: nd.full(2, 1, dtype=dtype), "nd.arange": lambda dtype: nd.arange(2, dtype=dtype),
    "astype": lambda dtype: nd.ones(2).astype(dtype), "cast": lambda dtype: nd.cast(nd.ones(2), dtype=dtype),
    "random": lambda dtype: nd.random.uniform(shape=2, dtype=dtype), "np.array": lambda dtype: mx.np.array([1], dtype),
    "np.zeros": lambda dtype: mx.np.zeros(2, dtype), "np.astype": lambda dtype: mx.np.ones(2).astype(dtype),
    "np.sum": lambda dtype: mx.np.sum(mx.np.ones(2), dtype=dtype),
    "sparse": lambda dtype: nd.sparse.zeros("csr", (2, 2), dtype=dtype),
    "Parameter": parameter, "block.cast": cast_block, "symbol": symbol,
    "transform": lambda dtype: mx.gluon.data.vision.transforms.Cast(dtype)(nd.ones(2)),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_python_and_numpy_types_names_and_arrays_are_accepted_as_in_mxnet(call):
    kinds = {
        float: "float64", np.float16: "float16", np.dtype("float32"): "float32", "double": "float64", "half": "float16",
        "f4": "float32",
    }  # fmt: skip
    for value, expected in kinds.items():
        assert np.dtype(CALLS[call](value).dtype).name == expected
    for array in (nd.ones(2, dtype="float16"), np.ones(2, "float16"), mx.np.ones(2, "float16")):
        assert np.dtype(CALLS[call](array).dtype).name == "float16"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("value", "text", "advice"),
    [
        (1, "1", "a number is no dtype, and 1 is that of float64 in MXNet's files: use 'float64'"),
        (99, "99", "a number is no dtype: is it meant for a different argument?"),
        (1.0, "1.0", "a number is no dtype"),
        (True, "True", "a number is no dtype"),
        (TorchDtype("float16"), "torch.float16", "use 'float16'"),
        (TorchDtype("long"), "torch.long", "use 'int64'"),
        ("torch.float32", "'torch.float32'", "use 'float32'"),
        ("tf.int32", "'tf.int32'", "use 'int32'"),
    ],
)
def test_numbers_and_dtypes_of_other_libraries_are_explained(call, value, text, advice):
    """MXNet's calls refuse numbers, too: "Cannot interpret '1' as a data type"."""
    with pytest.raises((TypeError, ValueError), match=rf"dtype is {re.escape(text)}, .*; {re.escape(advice)}"):
        CALLS[call](value)


def test_files_have_numbers():
    x = mx.sym.var("x", dtype="float16")
    assert x.attr("__dtype__") == "2"
    restored = mx.sym.load_json((x * 2).tojson())
    assert restored.infer_type()[1] == [np.float16]
