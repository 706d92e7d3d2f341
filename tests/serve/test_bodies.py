"""Bodies and inputs of a service: each becomes a valid array, or is refused with a reason."""

import contextlib
import io
import tracemalloc

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import example, given

from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import FORMATS
from flowmx.serve.inputs import Input, Inputs

JSON, MSGPACK, NPY = (FORMATS[f"application/{name}"] for name in ("json", "msgpack", "x-npy"))


def npy(shape, descr="'<f4'", data=b"abcd" * 4, version=b"\x01\x00"):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


def packed(shape, dtype="float32", data=b""):
    return msgpack.packb({"shape": shape, "dtype": dtype, "data": data})


@pytest.mark.parametrize("form", [MSGPACK, NPY], ids=lambda form: form.type)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool", ">f4"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_written_bodies_are_read_back(form, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    # With the name that it has in a request; the length of a msgpack string stands before it.
    read = form.read(form.write({"out": array}).replace(b"\xa7outputs", b"\xa6inputs"))
    assert read.shape == shape and np.array_equal(read, array)


@pytest.mark.parametrize(
    "shape", ["(-1, -4)", "(-4,)", "(10000000000000000000000000000, 0)", "(True, 4)", "[4]", "4", "'4'"]
)
def test_an_npy_of_no_possible_shape_is_refused(shape):
    with pytest.raises(InvalidInput):
        NPY.read(npy(shape, data=b"" if ", 0" in shape else b"abcd" * 4))


@pytest.mark.parametrize(
    "descr", ["'|O'", "[('a', '<f4')]", "'V0'", "'<U1'", "'<M8[s]'", "'nothing'", "__import__('os')"]
)
def test_an_npy_of_anything_but_numbers_is_refused(descr):
    with pytest.raises(InvalidInput):
        NPY.read(npy("(4,)", descr))


@pytest.mark.parametrize(
    "body",
    [
        packed([2**63, 0]), packed([1] * 70, data=b"abcd"), packed([-1, -1], data=b"abcd"), packed([1.0], data=b"abcd"),
        packed("1", data=b"abcd"), packed([1], "object", b"abcdefgh"), packed([1], 4, b"abcd"),
        packed([1], data="abcd"),
        packed([2], data=b"abcd"), b"\x81\x90\x01", b"\xc1", b"", b"\x93",
    ],
)  # fmt: skip
def test_an_invalid_msgpack_array_is_refused(body):
    with pytest.raises(InvalidInput):
        MSGPACK.read(body)


# NumPy reads lists of fields, shapes and repeats into such texts: Python's parser, and as much memory as they ask for.
@pytest.mark.parametrize(
    "dtype",
    [",loat32", "f4,f4", "(2,)f4", "3f4", "(" * 30, "f4," * 100_000, "9" * 5000 + "f4", "V8", "V999999999", "a4", "S4",
     "M8[s]", "object", "O", "", " float32", "float32\0", "str", "complex64", "datetime64"],
)  # fmt: skip
def test_a_dtype_is_a_plain_name(dtype):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="the dtype of an array is"):
            MSGPACK.read(packed([2], dtype, b"12345678"))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(dtype) + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "dtype", ["float32", "<f4", ">f4", "f4", "f", "single", "bfloat16", "int32", "u2", "?", "bool"]
)
def test_plain_names_of_dtypes_are_read(dtype):
    assert MSGPACK.read(packed([0, 3], dtype)).dtype == np.dtype(dtype).newbyteorder("<")


@given(st.text('<>|=?,()[] 0189bfuiVSOMagx_"', max_size=12))
def test_any_text_for_a_dtype_is_one_or_refused(dtype):
    _read_or_refused(MSGPACK, packed([0, 3], dtype))


@given(st.sampled_from([JSON, MSGPACK, NPY]), st.data())
def test_damaged_bodies_are_arrays_or_refused(form, data):
    body = bytearray(form.write({"out": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    for _ in range(data.draw(st.integers(0, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    _read_or_refused(form, bytes(body[: data.draw(st.integers(0, len(body)))]))


@given(st.sampled_from([JSON, MSGPACK, NPY]), st.binary(max_size=64))
@example(JSON, b"[" * 100_000)
def test_any_bytes_are_arrays_or_refused(form, body):
    _read_or_refused(form, body)


def _read_or_refused(form, body):
    inputs = Inputs([Input("data", (3,))], max_rows=4)
    with contextlib.suppress(InvalidInput):
        rows = inputs.read(form.read(body))
        assert rows.arrays[0].shape == (rows.rows, 3) and rows.arrays[0].dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("uint8", [1, 2, 300], "has values from 1 to 300, expected 0 to 255"),
        ("uint8", [-1, 2, 3], "has values from -1 to 3, expected 0 to 255"),
        ("int32", [2**40, 0, 0], "expected -2147483648 to 2147483647"),
        ("int32", np.array([2**63, 0, 0], np.uint64), "expected -2147483648 to 2147483647"),
        ("int32", [2**70, 0, 0], "dtype object, which cannot be cast to int32"),
        ("int32", [1.5, 2, 3], "dtype float64, which cannot be cast to int32"),
        ("float32", ["1", "2", "3"], "which cannot be cast to float32"),
        ("float32", [None, 1, 2], "which cannot be cast to float32"),
        ("float32", np.zeros(3, np.complex64), "which cannot be cast to float32"),
        ("bool", [0, 1, 2], "which cannot be cast to bool"),
    ],
)
def test_values_that_the_model_cannot_accept_are_refused(dtype, value, message):
    with pytest.raises(InvalidInput, match=message):
        Inputs([Input("data", (3,), dtype)]).read(value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", [0, 1, 255]),
        ("int32", np.array([0, 1, 255], np.uint8)),
        ("int8", [True, False, True]),
        ("float16", [0, 1, 255]),
        ("float32", np.array([0, 1, 255], ">f8")),
    ],
)
def test_accepted_values_are_converted_to_the_dtype(dtype, value):
    rows = Inputs([Input("data", (3,), dtype)]).read(value)
    assert rows.single and rows.arrays[0].dtype == dtype and rows.arrays[0].tolist() == [np.asarray(value).tolist()]


def test_a_file_that_numpy_saves_is_read():
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert NPY.read(stream.getvalue()).tolist() == [[0, 1, 2], [3, 4, 5]]
