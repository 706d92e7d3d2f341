"""The stand-in for CuPy's arrays: it refuses the calls that CuPy refuses, and computes NumPy's numbers."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cupy_stand_in.arrays import NAMES, ndarray, waits, xp


def array(*shape):
    return xp.arange(float(np.prod(shape))).reshape(shape)


_SCATTERED = {"scatter_max", "scatter_min"}
HOST = np.ones((2, 3))
REFUSED = [
    ("an implicit conversion", TypeError, r"\.get\(\)", lambda a: np.asarray(a)),
    ("NumPy's array at the right", TypeError, "Unsupported type", lambda a: a + HOST),
    ("NumPy's array at the left", TypeError, "Unsupported type", lambda a: HOST * a),
    ("NumPy's array in place", TypeError, "Unsupported type", lambda a: a.__iadd__(HOST)),
    ("NumPy's array in a function", TypeError, "Unsupported type", lambda a: xp.where(a > 1, HOST, a)),
    ("NumPy's array in a list", TypeError, "Unsupported type", lambda a: xp.concatenate([a, HOST])),
    ("NumPy's array as a target", TypeError, "Unsupported type", lambda a: xp.add(a, a, out=HOST)),
    ("NumPy's array assigned", TypeError, "used for fill", lambda a: a.__setitem__(slice(None), HOST)),
    ("a list in a ufunc", TypeError, "Unsupported type", lambda a: xp.add(a, [1, 2, 3])),
    ("a function that only NumPy has", AttributeError, "geomspace", lambda a: xp.geomspace(1, 2)),
    ("a method that only NumPy has", AttributeError, "setflags", lambda a: a.setflags(write=False)),
    ("NumPy's function that CuPy lacks", TypeError, "no implementation", lambda a: np.block([a])),
    ("an argument that only NumPy takes", TypeError, "mode", lambda a: xp.take(a, xp.asarray([0]), mode="clip")),
    ("a ufunc's where", TypeError, "Wrong arguments", lambda a: xp.add(a, a, where=a > 1)),
    ("a reduction's start", TypeError, "initial", lambda a: xp.max(a, initial=0)),
    ("a method's argument", TypeError, "where", lambda a: a.sum(where=a > 1)),
    ("another way to sort", TypeError, "heapsort", lambda a: xp.sort(a, kind="heapsort")),
    ("a target of einsum", TypeError, "out", lambda a: xp.einsum("ij->i", a, out=xp.empty(2))),
    ("a ufunc's at", NotImplementedError, "multiply.at", lambda a: xp.multiply.at(a, 0, 2)),
    ("scattered sums of whole numbers", TypeError, "int64",
     lambda a: xp.add.at(xp.zeros(3, "int64"), xp.asarray([0, 0]), 1)),
    ("a ufunc's reduce", NotImplementedError, "maximum.reduce", lambda a: xp.maximum.reduce(a)),
    ("an index by __index__", TypeError, "indices", lambda a: [1, 2][xp.asarray(1)]),
    ("a hash", TypeError, "unhashable", lambda a: {a}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_as_by_cupy(error, message, call):
    with pytest.raises(error, match=message):
        call(array(2, 3))


def test_numbers_are_numpys():
    a, host = array(2, 3), np.arange(6.0).reshape(2, 3)
    for ours, theirs in [
        (a @ a.T - 1, host @ host.T - 1),
        (np.float32(2) * a**2, 2 * host**2),
        (xp.where(a > 2, a, 0), np.where(host > 2, host, 0)),
        (np.sum(a, axis=0), host.sum(axis=0)),  # NumPy's own function asks CuPy's
        (np.exp(a), np.exp(host)),
        (a[:, ::-1][a > 1], host[:, ::-1][host > 1]),
        (xp.linalg.inv(xp.eye(2) * 2), np.eye(2) / 2),
        (xp.lib.stride_tricks.as_strided(a, (2, 2), (8, 8)), np.array([[0, 1], [1, 2]])),
        (xp.concatenate([a, a]), np.concatenate([host, host])),
    ]:
        assert isinstance(ours, ndarray)
        np.testing.assert_array_equal(ours.get(), theirs)


def test_results_without_axes_stay_arrays():
    a = array(2, 3)
    for result in (a.sum(), a[0, 0], xp.max(a), a.mean() + 1, xp.allclose(a, a), next(iter(a[0]))):
        assert isinstance(result, ndarray)
        assert result.shape == ()


def test_targets_are_returned():
    a, out = array(2, 3), xp.empty(3)
    assert xp.sum(a, axis=0, out=out) is out
    assert a.sum(axis=0, out=out) is out
    assert xp.add(out, 1, out=out) is out
    assert xp.asarray(a) is a
    before = a
    a += 1
    assert a is before
    with pytest.raises(TypeError, match="same_kind"):
        xp.multiply(a, 0.5, out=xp.empty((2, 3), "int32"))


def test_waits_are_counted():
    a = array(2, 3)
    waits.clear()
    float(a[0, 0]), bool(a[0, 1]), int(a.sum()), a.get(), a.tolist(), a[a > 1], xp.nonzero(a)
    assert waits == {"float": 1, "bool": 1, "int": 1, "get": 1, "tolist": 1, "mask": 1, "nonzero": 1}
    waits.clear()
    (a * 2).sum(axis=1, keepdims=True)[xp.asarray([1])]
    assert not waits


def test_an_array_over_given_memory():
    memory = (ctypes.c_char * 64)()
    pointer = SimpleNamespace(ptr=ctypes.addressof(memory))
    a = ndarray((2, 3), "float32", pointer, (4, 8))
    a[...] = xp.arange(6, dtype="float32").reshape(2, 3)
    assert a.data is pointer
    assert a[:, 1:].data.ptr == pointer.ptr + 8
    assert np.frombuffer(memory, np.float32)[:6].tolist() == [0, 3, 1, 4, 2, 5]
    assert not a.flags.c_contiguous


def test_the_list_of_names_comes_from_the_package():
    assert NAMES["cupy"].startswith("14.")
    assert {"add", "exp", "matmul"} <= {*NAMES["modules"][""]["ufuncs"], *NAMES["modules"][""]["functions"]}
    missing = [name for name in NAMES["array"]["methods"] if not hasattr(ndarray, name)]
    assert set(missing) <= {"dump", "dumps", "tofile", "toDlpack", "mdspan", "reduced_view", "ptp", *_SCATTERED}
