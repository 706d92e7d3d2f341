"""flowmx.serialization.params with files written by MXNet 1.9.1, and with damaged files."""

import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import flowmx as mx
from flowmx.serialization import params
from flowmx.serialization.params import V1_MAGIC, V2_MAGIC, V3_MAGIC, ParamsFormatError
from tests.fixtures import record_mxnet as recorded

FOLDER = recorded.FOLDER
FILES = sorted(FOLDER.glob("*.params"))
SMALL_FILES = [path.read_bytes() for path in FILES if path.stat().st_size < 10_000]
CPU = struct.pack("<ii", 1, 0)
GPU = struct.pack("<ii", 2, 3)

Array = npt.NDArray[Any]


def list_file(*arrays: bytes, names: tuple[bytes, ...] = ()) -> bytes:
    parts = [struct.pack("<QQQ", 0x112, 0, len(arrays)), *arrays, struct.pack("<Q", len(names))]
    return b"".join([*parts, *(struct.pack("<Q", len(name)) + name for name in names)])


def dims(*shape: int) -> bytes:
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


def dense(magic: int, shape: tuple[int, ...], flag: int, data: bytes, storage: int = 0) -> bytes:
    return struct.pack("<Ii", magic, storage) + dims(*shape) + CPU + struct.pack("<i", flag) + data


def assert_same(actual: Any, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()
    assert actual.flags.writeable
    assert actual.flags.aligned
    assert actual.flags.c_contiguous


def named(source: bytes | Path) -> dict[str, Array]:
    loaded = params.loads(source) if isinstance(source, bytes) else params.load(source)
    assert isinstance(loaded, dict)
    return loaded


def listed(source: bytes | Path) -> list[Array]:
    loaded = params.loads(source) if isinstance(source, bytes) else params.load(source)
    assert isinstance(loaded, list)
    return loaded


# What MXNet wrote.


@pytest.mark.parametrize(("file", "expected"), [("dict", recorded.dense_arrays()), ("numpy", recorded.numpy_arrays())])
def test_reads_named_arrays(file: str, expected: dict[str, Array]) -> None:
    actual = named(FOLDER / f"{file}.params")
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert_same(actual[name], array)


def test_reads_a_list() -> None:
    for actual, expected in zip(listed(FOLDER / "list.params"), recorded.dense_arrays().values(), strict=True):
        assert_same(actual, expected)


def test_an_empty_dict_is_saved_as_an_empty_list() -> None:
    assert listed(FOLDER / "empty.params") == []
    assert params.dumps({}) == params.dumps([]) == (FOLDER / "empty.params").read_bytes()


def test_reads_bfloat16() -> None:
    expected = np.array(recorded.BFLOAT16_VALUES, dtype=ml_dtypes.bfloat16)
    assert_same(named(FOLDER / "bfloat16.params")["b"], expected)


def test_sparse_arrays_come_back_dense() -> None:
    actual = named(FOLDER / "sparse.params")
    for kind in ("row_sparse", "csr"):
        assert_same(actual[kind], recorded.sparse_matrix())
        assert_same(actual[f"empty {kind}"], np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "sparse"], ids=lambda path: path.stem)
def test_writes_what_mxnet_wrote(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    assert params.dumps(params.loads(content)) == content
    params.save(tmp_path / "copy", params.load(path))
    assert (tmp_path / "copy").read_bytes() == content


def test_writes_the_arrays_that_mxnet_was_given() -> None:
    arrays = recorded.dense_arrays()
    assert params.dumps(arrays) == (FOLDER / "dict.params").read_bytes()
    assert params.dumps(list(arrays.values())) == (FOLDER / "list.params").read_bytes()
    assert params.dumps(recorded.numpy_arrays()) == (FOLDER / "numpy.params").read_bytes()


# Older versions.

VALUES = np.array([[1.5, 2], [3, -4]], np.float64)


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    "shape",
    [struct.pack("<I", V1_MAGIC) + dims(2, 2), struct.pack("<3I", 2, 2, 2)],
    ids=["V1", "unversioned"],
)
def test_reads_older_versions(shape: bytes, device: bytes) -> None:
    array = shape + device + struct.pack("<i", 1) + VALUES.tobytes()
    actual = named(list_file(array, array, names=(b"arg:w", b"aux:v")))
    assert list(actual) == ["arg:w", "aux:v"]
    assert_same(actual["arg:w"], VALUES)
    assert_same(actual["aux:v"], VALUES)


@pytest.mark.parametrize(
    "array",
    [
        struct.pack("<I", 0),
        struct.pack("<I", V1_MAGIC) + dims(),
        struct.pack("<Ii", V2_MAGIC, 0) + dims(),
        struct.pack("<Iii", V2_MAGIC, 0, -1),
        struct.pack("<Iii", V3_MAGIC, 0, -1),
        struct.pack("<Ii", V3_MAGIC, 0) + dims(2, -1),
    ],
)
def test_an_array_without_a_shape_is_empty(array: bytes) -> None:
    one = dense(V2_MAGIC, (1,), 3, b"\7")
    actual = listed(list_file(array, one))
    assert_same(actual[0], np.empty(0, np.float32))
    assert_same(actual[1], np.array([7], np.uint8))


# Writing.


def test_scalars_need_numpy_shapes() -> None:
    content = params.dumps([1.5])
    assert struct.pack("<I", V3_MAGIC) in content
    assert_same(listed(content)[0], np.array(1.5))
    with pytest.raises(ValueError, match="np_shape"):
        params.dumps([1.5], np_shape=False)
    assert struct.pack("<I", V3_MAGIC) in params.dumps([[1.5]], np_shape=True)


def test_one_array_is_a_list_of_one() -> None:
    assert params.dumps(VALUES) == params.dumps([VALUES])


@pytest.mark.parametrize("array", [VALUES.T, VALUES[::-1], VALUES.astype(">f8"), VALUES.tolist()])
def test_writes_any_memory_layout(array: npt.ArrayLike) -> None:
    assert_same(listed(params.dumps([array]))[0], np.ascontiguousarray(array, dtype=np.float64))


@pytest.mark.parametrize("array", [np.zeros(2, complex), np.array(["text"]), np.array([None])])
def test_refuses_dtypes_that_mxnet_lacks(array: Array, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'w'.*does not support dtype"):
        params.save(tmp_path / "file", {"w": array})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    params.save(path, {"w": VALUES})
    with pytest.raises(TypeError):
        params.save(path, {"w": VALUES, "v": np.array([None])})
    assert_same(named(path)["w"], VALUES)
    assert list(tmp_path.iterdir()) == [path]


def test_saving_over_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    params.save(tmp_path / "link", [VALUES])
    assert (tmp_path / "link").is_symlink()
    assert_same(listed(tmp_path / "file")[0], VALUES)


DTYPES = ["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?", ml_dtypes.bfloat16]


@st.composite
def any_array(draw: st.DrawFn) -> Array:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))
    if dtype == np.bool_:
        return draw(hnp.arrays(dtype, shape))
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)


@given(st.lists(any_array(), max_size=4) | st.dictionaries(st.text(max_size=5), any_array(), min_size=1, max_size=4))
def test_round_trip(arrays: list[Array] | dict[str, Array]) -> None:
    content = params.dumps(arrays)
    actual = params.loads(memoryview(bytearray(content)))
    if isinstance(arrays, dict):
        assert isinstance(actual, dict)
        assert list(actual) == list(arrays)
        actual, arrays = list(actual.values()), list(arrays.values())
    assert isinstance(actual, list)
    for got, expected in zip(actual, arrays, strict=True):
        assert_same(got, expected)


# Damaged files.


def sparse(
    storage: int,
    stored: tuple[int, ...],
    shape: tuple[int, ...],
    *index_shapes: int,
    data: bytes,
    kind: int = 6,
) -> bytes:
    indices = b"".join(struct.pack("<i", kind) + dims(size) for size in index_shapes)
    head = struct.pack("<Ii", V2_MAGIC, storage) + dims(*stored) + dims(*shape) + CPU
    return head + struct.pack("<i", 3) + indices + data


def int64s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


HUGE = 1 << 62
ONE = dense(V2_MAGIC, (1,), 3, b"\7")

DAMAGED = {
    "nothing": (b"", 0, "an empty file"),
    "a zip file": (b"PK\3\4" + bytes(30), 0, r"a \.params file"),
    "a list that ends": (struct.pack("<QQ", 0x112, 0), 16, "number of arrays"),
    "a huge number of arrays": (struct.pack("<QQQ", 0x112, 0, HUGE), 16, "at most 0 arrays"),
    "a million empty arrays": (list_file(*[bytes(4)] * 1_000_000), 16, "at most 125000 arrays in 4000008 bytes"),
    "an unknown magic": (list_file(struct.pack("<I", 0xDEADBEEF)), 24, "0xdeadbeef"),
    "an unknown storage": (list_file(struct.pack("<Ii", V2_MAGIC, 9)), 28, "storage type"),
    "too many dimensions": (list_file(struct.pack("<Iii", V2_MAGIC, 0, 33)), 32, "at most 32 dimensions"),
    "a negative dim": (list_file(dense(V2_MAGIC, (3, -5), 0, b"")), 32, "negative"),
    "an unknown dtype": (list_file(dense(V2_MAGIC, (1,), 13, b"\0")), 52, r"type flag in 0\.\.12, found 13"),
    "a huge array": (list_file(dense(V2_MAGIC, (HUGE // 8,), 0, b"\0" * 8)), 56, "the end of the file"),
    "a huge shape": (list_file(dense(V2_MAGIC, (HUGE, HUGE), 0, b"\0" * 8)), 64, "can be addressed"),
    "a huge empty array": (list_file(dense(V2_MAGIC, (0, HUGE, HUGE), 0, b"")), 72, "can be addressed"),
    "an array that ends": (list_file(dense(V2_MAGIC, (3,), 0, b""))[:-8], 56, "12 bytes of array 0"),
    "too few names": (list_file(ONE, ONE, names=(b"a",)), 90, "0 names or 2"),
    "a huge name": (list_file(ONE)[:-8] + struct.pack("<QQ", 1, HUGE), 73, "name 0"),
    "a name in another encoding": (list_file(ONE, names=(b"\xff",)), 65, "UTF-8"),
    "a name twice": (list_file(ONE, ONE, names=(b"a", b"a")), 107, "'a' twice"),
    "more than a file": (list_file(ONE) + b"!", 65, "1 more bytes"),
    "rows without values": (
        list_file(sparse(1, (1, 2), (4, 2), 2, data=bytes(18))),
        100,
        "row_sparse array 0",
    ),
    "rows of a scalar": (
        list_file(struct.pack("<Ii", V3_MAGIC, 1) + sparse(1, (1,), (), 1, data=bytes(9))[8:]),
        76,
        "row_sparse",
    ),
    "a row outside": (list_file(sparse(1, (1, 2), (4, 2), 1, data=b"ab" + int64s(4))), 100, "below 4"),
    "a row before": (list_file(sparse(1, (1, 2), (4, 2), 1, data=b"ab" + int64s(-1))), 100, "below 4"),
    "rows counted in halves": (
        list_file(sparse(1, (1, 2), (4, 2), 1, data=b"ab" + bytes(8), kind=1)),
        100,
        "row",
    ),
    "huge rows": (
        list_file(sparse(1, (1, 2), (HUGE // 4, 2), 1, data=b"ab" + int64s(0))),
        110,
        "densify_limit",
    ),
    "stored values without a shape": (list_file(struct.pack("<Iii", V2_MAGIC, 1, -1)), 32, "unknown dimensions"),
    "a csr of one dimension": (list_file(sparse(2, (1,), (4,), 5, 1, data=bytes(49))), 100, "csr array 0"),
    "pointers that fall": (
        list_file(sparse(2, (1,), (2, 2), 3, 1, data=b"a" + int64s(0, 2, 1, 0))),
        108,
        "ascending row pointers",
    ),
    "a column outside": (
        list_file(sparse(2, (1,), (2, 2), 3, 1, data=b"a" + int64s(0, 0, 1, 2))),
        108,
        "below 2",
    ),
    "a huge csr": (list_file(sparse(2, (0,), (HUGE // 4, 2), 0, 0, data=b"")), 108, "densify_limit"),
}


@pytest.mark.parametrize(("content", "offset", "message"), DAMAGED.values(), ids=DAMAGED)
def test_says_what_is_wrong_and_where(content: bytes, offset: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.params"
    path.write_bytes(content)
    sources: list[tuple[str, Callable[[], object]]] = [
        ("<bytes>", lambda: params.loads(content)),
        (str(path), lambda: params.load(path)),
    ]
    for source, read in sources:
        with pytest.raises(ParamsFormatError, match=message) as caught:
            read()
        assert str(caught.value).startswith(f"{source}, byte ")
        assert (caught.value.source, caught.value.offset) == (source, offset)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="has no devices as files")
@pytest.mark.parametrize("load", [mx.nd.load, mx.sym.load, params.load])
def test_a_device_is_not_a_file(load: Callable[[str], object]) -> None:
    with pytest.raises(OSError, match="is a device, expected a file or a pipe: '/dev/zero'"):
        load("/dev/zero")


def test_an_error_can_be_pickled() -> None:
    error = ParamsFormatError("file", 3, "this", "that")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "file, byte 3: expected this, found that"
    assert copy.offset == 3


def test_a_byte_that_is_no_bool_reads_as_true() -> None:
    (actual,) = listed(list_file(dense(V2_MAGIC, (3,), 7, b"\0\1\xff")))
    assert_same(actual, np.array([False, True, True]))


def test_reads_indices_of_any_integer_type() -> None:
    rows = sparse(1, (1, 2), (2, 2), 1, data=b"ab" + int64s(1), kind=11)
    cells = sparse(2, (1,), (2, 2), 3, 1, data=b"a" + int64s(0, 0, 1, 1), kind=11)
    actual = listed(list_file(rows, cells))
    assert actual[0].tolist() == [[0, 0], [97, 98]]
    assert actual[1].tolist() == [[0, 0], [0, 97]]


def read_damaged(content: bytes) -> None:
    """Read possibly damaged data, with memory in proportion to its size."""
    tracemalloc.start()
    try:
        params.loads(content, densify_limit=1 << 16)
    except ParamsFormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200 * len(content) + (1 << 18)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes(content: bytes, starts_well: bool) -> None:
    read_damaged(struct.pack("<QQQ", 0x112, 0, 1) + content if starts_well else content)


@given(st.sampled_from(SMALL_FILES), st.data())
def test_truncated_files(content: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ParamsFormatError):
        params.loads(content[:end])


NUMBERS = st.sampled_from([0, 1, 2, 3, 255, 33, -1, -2, 1 << 31, 1 << 32, HUGE, (1 << 63) - 1])


@given(st.sampled_from([*SMALL_FILES, list_file(ONE)]), st.data())
@example(list_file(ONE), None)
def test_mutated_files(content: bytes, data: st.DataObject | None) -> None:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3)) if data else 0):
        assert data is not None
        index = data.draw(st.integers(0, len(content) - 1))
        number = data.draw(NUMBERS)
        size = data.draw(st.sampled_from([1, 4, 8]))
        changed[index : index + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    read_damaged(bytes(changed))
