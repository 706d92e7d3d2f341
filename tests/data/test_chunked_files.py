"""Large files are read and written in portions, so that a thread that loads one does not block event loops."""

import io
import zipfile

import numpy as np
import pytest

import flowmx as mx
from flowmx.serialization import numpy_files
from flowmx.serialization.archives import Archive, NewArchive, read_entry
from flowmx.serialization.numpy_files import NumPyFormatError

MB = 1 << 20


@pytest.fixture
def sizes(monkeypatch):
    """Record the size of each read of zipfile, which copies the bytes."""
    chunk_sizes = []
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, n=-1: chunk_sizes.append(n) or read(self, n))
    return chunk_sizes


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_large_arrays_survive_a_round_trip(suffix, sizes, tmp_path):
    path = str(tmp_path / f"w{suffix}")
    arrays = {
        "a": np.random.default_rng(0).random(900_000, np.float32),
        "b": np.arange(6, dtype=np.int32).reshape(2, 3),
    }
    mx.nd.save(path, {name: mx.nd.array(each, dtype=each.dtype) for name, each in arrays.items()})
    loaded = mx.nd.load(path)
    for name, each in arrays.items():
        np.testing.assert_array_equal(loaded[name].asnumpy(), each)
        assert loaded[name].asnumpy().flags.writeable
    assert len(sizes) <= 2  # a pickle, and the order of bytes


def test_arrays_are_not_copied_into_an_archive():
    x = np.arange(1000.0)
    with NewArchive() as archive:
        archive.add("x", b"head", x)
    (piece,) = (each for each in archive.pieces if len(each) == x.nbytes)
    assert np.shares_memory(np.frombuffer(piece, np.uint8), x)


def test_arrays_of_either_order_and_any_shape(tmp_path):
    x = np.arange(12.0).reshape(3, 4)
    arrays = {"c": x, "f": np.asfortranarray(x), "t": x[:, ::2], "s": np.array(2.5), "e": np.zeros((0, 3)), "b": x > 3}
    numpy_files.save_npz(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz") as archive:
        for name, each in arrays.items():
            np.testing.assert_array_equal(archive[name], each)
            assert archive[name].shape == each.shape
    for each in arrays.values():
        numpy_files.save_npy(tmp_path / "x.npy", [each])
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), each)
        np.testing.assert_array_equal(numpy_files.loads_npy((tmp_path / "x.npy").read_bytes()), each)


def test_compressed_archives_are_read(tmp_path):
    x = np.zeros(3 * MB, np.uint8)
    np.savez_compressed(tmp_path / "x.npz", x=x)
    np.testing.assert_array_equal(numpy_files.loads_npz((tmp_path / "x.npz").read_bytes())["x"], x)


def make_archive(compression):
    """Return an archive with one large entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("x.npy", np.random.default_rng(0).random(400_000).tobytes())
    return bytearray(buffer.getvalue())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_entries_are_refused(compression, sizes):
    data = make_archive(compression)
    with Archive(data) as archive:
        np.testing.assert_array_equal(
            np.frombuffer(read_entry(archive, "x.npy")), np.random.default_rng(0).random(400_000)
        )
    assert all(0 <= size <= MB for size in sizes)
    for place in (2, 30, 800_000, len(data) // 2):
        damaged = data.copy()
        damaged[place] ^= 0x5A
        with pytest.raises(NumPyFormatError):
            numpy_files.loads_npz(damaged)
    with pytest.raises(NumPyFormatError):
        numpy_files.loads_npz(data[:-1000])


def test_large_arrays_in_memory_are_copied_by_numpy(monkeypatch, tmp_path):
    """A slice of a memoryview would hold the interpreter while it is copied."""
    path = str(tmp_path / "w.params")
    mx.nd.save(path, {"w": mx.nd.ones((MB,))})
    copies, copyto = [], np.copyto
    monkeypatch.setattr(np, "copyto", lambda *value, **more: copies.append(value[0].nbytes) or copyto(*value, **more))
    loaded = mx.nd.load_frombuffer((tmp_path / "w.params").read_bytes())
    np.testing.assert_array_equal(loaded["w"].asnumpy(), 1)
    assert 4 * MB in copies
