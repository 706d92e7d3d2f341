"""Arrays of other libraries: DLPack with bfloat16, which NumPy does not know, and JAX."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import flowmx as mx

BFLOAT16 = ml_dtypes.bfloat16


class Given:
    """An object of another library, by an array of flowmx; ``old`` ones know no versions."""

    def __init__(self, array, old=False, device=(1, 0)):
        self.array, self.old, self.device = array, old, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**options)


def dtype_in(capsule, place):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = b"dltensor" if place == 20 else b"dltensor_versioned"
    return tuple((ctypes.c_uint8 * 2).from_address(pointer(capsule, name) + place))


def test_a_capsule_of_bfloat16_says_so():
    array = mx.nd.array([1, 2], dtype=BFLOAT16)
    assert dtype_in(array.__dlpack__(), 20) == (4, 16)
    assert dtype_in(array.__dlpack__(max_version=(1, 0)), 52) == (4, 16)
    assert dtype_in(mx.nd.ones((2,)).__dlpack__(), 20) == (2, 32)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", [BFLOAT16, "float32", "int8"])
def test_memory_is_shared_both_ways(dtype, old):
    array = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
    other = mx.nd.from_dlpack(Given(array, old))
    assert other.dtype == array.dtype
    array[0, 1] = 7
    array.wait_to_read()
    np.testing.assert_array_equal(other.asnumpy(), np.array([[1, 7], [3, 4]], dtype))


def test_bare_capsules_are_consumed_once():
    capsule = mx.nd.array([1, 2], dtype=BFLOAT16).to_dlpack_for_read()
    assert mx.nd.from_dlpack(capsule).asnumpy().tolist() == [1, 2]
    with pytest.raises(BufferError, match="not a DLPack capsule, or was used before"):
        mx.nd.from_dlpack(capsule)


def test_views_of_bfloat16_keep_their_strides():
    array = mx.nd.array(np.arange(6).reshape(2, 3), dtype=BFLOAT16)
    assert mx.nd.from_dlpack(Given(array[1])).asnumpy().tolist() == [3, 4, 5]


def test_memory_of_other_devices_is_refused():
    with pytest.raises(BufferError, match=r"DLPack device \(2, 0\), expected the CPU"):
        mx.nd.from_dlpack(Given(mx.nd.ones((2,)), device=(2, 0)))
    with pytest.raises(BufferError, match="is not a DLPack capsule"):
        mx.nd.from_dlpack("text")


def test_an_object_of_jaxs_protocol(monkeypatch):
    """Without JAX: what ``jnp.asarray(x)`` calls hands the content to ``jax.numpy.asarray``."""
    module = type(mx)("jax.numpy")
    module.asarray = lambda value: ("an array of JAX", value)
    package = type(mx)("jax")
    package.numpy = module
    monkeypatch.setitem(__import__("sys").modules, "jax", package)
    monkeypatch.setitem(__import__("sys").modules, "jax.numpy", module)
    kind, value = mx.nd.array([1, 2], dtype=BFLOAT16).__jax_array__()
    assert kind == "an array of JAX"
    assert value.dtype == BFLOAT16


@pytest.mark.parametrize("dtype", [BFLOAT16, "float32", "int32"])
def test_arrays_are_exchanged_with_jax(dtype):
    jnp = pytest.importorskip("jax.numpy")
    array = mx.nd.array([[1, 2]], dtype=dtype)
    for convert in (jnp.asarray, jnp.from_dlpack):
        assert convert(array).dtype == dtype
        assert convert(array).tolist() == [[1, 2]]
    assert mx.nd.from_dlpack(jnp.asarray(array)).asnumpy().tolist() == [[1, 2]]
