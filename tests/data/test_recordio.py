"""RecordIO: MXNet's bytes, damaged files, forks, pickling, images in records."""

import json
import os
import pickle
import struct
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.data.records import framing
from flowmx.data.records.reader import CHUNK, Source
from tests.fixtures import record_images as recorded

EXPECTED = json.loads((recorded.FOLDER / "recorded.json").read_text())
PLAIN = recorded.FOLDER / "plain.rec"


def write(path, contents):
    with mx.recordio.MXRecordIO(path, "w") as file:
        for content in contents:
            file.write(content)


def read(path):
    with mx.recordio.MXRecordIO(path, "r") as file:
        return list(iter(file.read, None))


def test_writes_mxnets_bytes(tmp_path):
    rec, idx = tmp_path / "a.rec", tmp_path / "a.idx"
    with mx.recordio.MXIndexedRecordIO(idx, rec, "w") as file:
        for number, content in enumerate(recorded.contents()):
            file.write_idx(number, content)
    assert rec.read_bytes() == PLAIN.read_bytes()
    assert idx.read_bytes() == PLAIN.with_suffix(".idx").read_bytes()


def test_reads_mxnets_file():
    assert read(PLAIN) == recorded.contents()


def test_reads_by_index_in_any_order():
    contents = recorded.contents()
    with mx.recordio.MXIndexedRecordIO(PLAIN.with_suffix(".idx"), PLAIN, "r") as file:
        assert file.keys == list(range(len(contents)))
        for number in reversed(range(len(contents))):
            assert file.read_idx(number) == contents[number]
        file.seek(3)
        assert [file.read(), file.read()] == contents[3:5]


@given(st.lists(st.lists(st.sampled_from([b"\x0a", b"\x23\xd7\xce", framing.MAGIC, b"abcd", b"z"])).map(b"".join)))
def test_written_records_are_read(tmp_path_factory, contents):
    path = tmp_path_factory.mktemp("recordio") / "a.rec"
    write(path, contents)
    assert read(path) == contents
    assert len(list(Source(path).offsets())) == len(contents)


def test_records_longer_than_a_chunk(tmp_path):
    contents = [bytes([k]) * (CHUNK * k // 2 + k) for k in range(5)] + [framing.MAGIC * (CHUNK // 2)]
    write(tmp_path / "a.rec", contents)
    assert read(tmp_path / "a.rec") == contents


def test_reset_restarts(tmp_path):
    path = tmp_path / "a.rec"
    write(path, [b"one", b"two"])
    file = mx.recordio.MXRecordIO(path, "r")
    assert file.read() == b"one"
    file.reset()
    assert [file.read(), file.read(), file.read(), file.read()] == [b"one", b"two", None, None]
    file.close()
    out = mx.recordio.MXRecordIO(path, "w")
    out.write(b"old")
    out.reset()
    out.write(b"new")
    out.close()
    assert read(path) == [b"new"]


def test_tell_returns_the_offset(tmp_path):
    with mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w") as file:
        offsets = [file.tell()]
        for number in range(3):
            file.write_idx(number, b"12345678")
            offsets.append(file.tell())
    assert offsets == [0, 16, 32, 48]


def test_a_written_file_that_is_reset_is_empty(tmp_path):
    idx, rec = tmp_path / "a.idx", tmp_path / "a.rec"
    with mx.recordio.MXIndexedRecordIO(idx, rec, "w") as file:
        file.write_idx(1, b"old")
        file.reset()
        assert (file.keys, file.idx) == ([], {})
        file.write_idx(2, b"new")
        assert (file.keys, file.idx) == ([2], {2: 0})
    with mx.recordio.MXIndexedRecordIO(idx, rec, "r") as file:
        assert file.keys == [2] and file.read_idx(2) == b"new"


def test_can_be_pickled(tmp_path):
    idx, rec = tmp_path / "a.idx", tmp_path / "a.rec"
    out = mx.recordio.MXIndexedRecordIO(idx, rec, "w")
    out.write_idx(5, b"five")
    copy = pickle.loads(pickle.dumps(out))  # closes it: opening it again would empty it
    assert not copy.is_open
    file = pickle.loads(pickle.dumps(mx.recordio.MXIndexedRecordIO(idx, rec, "r")))
    assert file.is_open and file.read_idx(5) == b"five"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_may_read_but_not_write(tmp_path):
    path, out = tmp_path / "a.rec", tmp_path / "b.rec"
    write(path, [b"one", b"two", b"three"])
    reader, writer = mx.recordio.MXRecordIO(path, "r"), mx.recordio.MXRecordIO(out, "w")
    reader.read()
    writer.write(b"parent's")
    child = os.fork()
    if child == 0:
        try:
            assert reader.read() == b"two"
            with pytest.raises(RuntimeError, match="opened by process"):
                writer.write(b"child's")
            writer.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.read() == b"two"
    reader.close()
    writer.close()
    assert read(out) == [b"parent's"]


def test_threads_share_a_source(tmp_path):
    contents = [bytes([k]) * (100 * k + 1) for k in range(200)]
    write(tmp_path / "a.rec", contents)
    source = Source(tmp_path / "a.rec")
    offsets = list(source.offsets())
    wrong = []

    def work(step):
        for k in range(step, 200, 2):
            if source.record(offsets[k])[0] != contents[k]:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- damaged files -----------------------------------------------------------------------------------------


def write_damaged(tmp_path, change):
    path = tmp_path / "a.rec"
    write(path, [b"x" * 20, b"y" * 20])
    raw = bytearray(path.read_bytes())
    path.write_bytes(change(raw))
    return path


def damage_magic(raw):
    raw[28] ^= 255
    return raw


def change_flag(raw):
    raw[28 + 7] |= 3 << 5
    return raw


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage_magic, r"a\.rec' has f52.* at offset 28"),
        (lambda raw: raw[:-3], r"ends at offset 53, inside the record at 28, which has 20 bytes .* truncated"),
        (lambda raw: raw[:31], r"ends at offset 31, inside the header of a record at 28"),
        (change_flag, r"the last part of a record at offset 28, expected the beginning"),
    ],
)
def test_names_the_offset_of_the_damage(tmp_path, change, message):
    with mx.recordio.MXRecordIO(write_damaged(tmp_path, change), "r") as file:
        assert file.read() == b"x" * 20
        with pytest.raises(mx.recordio.RecordFormatError, match=message):
            file.read()


def test_a_damaged_length_allocates_no_memory(tmp_path):
    def longer(raw):
        raw[28 + 4 : 28 + 8] = struct.pack("<I", (1 << 29) - 1)
        return raw

    with mx.recordio.MXRecordIO(write_damaged(tmp_path, longer), "r") as file:
        file.read()
        tracemalloc.start()
        try:
            with pytest.raises(mx.recordio.RecordFormatError, match="which has 536870911 bytes"):
                file.read()
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def test_refuses_invalid_calls(tmp_path):
    path = tmp_path / "a.rec"
    with pytest.raises(ValueError, match="flag is 'a', expected 'r' or 'w'"):
        mx.recordio.MXRecordIO(path, "a")
    with pytest.raises(FileNotFoundError):
        mx.recordio.MXRecordIO(tmp_path / "none.rec", "r")
    with mx.recordio.MXRecordIO(path, "w") as file:
        with pytest.raises(TypeError, match="buf is str, expected bytes"):
            file.write("text")
        with pytest.raises(mx.MXNetError, match="opened with flag 'w', and cannot be used to read"):
            file.read()
    with pytest.raises(mx.MXNetError, match="is closed"):
        file.write(b"late")
    (tmp_path / "a.idx").write_text("0\t0\nzwei\t3\n")
    with pytest.raises(ValueError, match=r"line 2 of the index .* is 'zwei\\t3'"):
        mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", path, "r")
    for offset in ("-8", "99999999999999999999"):
        (tmp_path / "a.idx").write_text(f"0\t{offset}\n")
        with pytest.raises(
            ValueError, match=rf"line 1 of the index .*a\.idx' is '0\\t{offset}', expected .* offset of 0"
        ):
            mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", path, "r")
    (tmp_path / "a.idx").write_text("0\t4096\n")
    with (
        mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", path, "r") as file,
        pytest.raises(mx.recordio.RecordFormatError, match=r"a\.rec' ends at offset 4096 or before"),
    ):
        file.read_idx(0)
    (tmp_path / "a.idx").write_text("0\t0\n1\t8\n")
    with (
        mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", path, "r") as file,
        pytest.raises(KeyError, match=r"7 is not a key of .*, which has 2 keys, from 0 to 1"),
    ):
        file.read_idx(7)


# -- images in records -------------------------------------------------------------------------------------


def test_packs_mxnets_bytes():
    packed = [mx.recordio.pack(mx.recordio.IRHeader(*header), b"xyz").hex() for header in recorded.HEADERS]
    assert packed == EXPECTED["packed"]


def test_unpacks_packed_records():
    for header in recorded.HEADERS:
        unpacked, rest = mx.recordio.unpack(mx.recordio.pack(header, b"rest"))
        assert rest == b"rest" and unpacked[2:] == header[2:]
        assert np.array_equal(np.ravel(unpacked.label), np.ravel(np.float32(header[1])))
        assert unpacked.flag == (0 if np.ndim(header[1]) == 0 else len(header[1]))


def test_refuses_records_that_are_too_short():
    with pytest.raises(mx.recordio.RecordFormatError, match="has 5 bytes, expected a header of 24"):
        mx.recordio.unpack(b"short")
    with pytest.raises(mx.recordio.RecordFormatError, match="9 labels follow, but the record has 24 bytes"):
        mx.recordio.unpack(struct.pack("<IfQQ", 9, 0, 0, 0))
    with pytest.raises(ValueError, match="cannot be written"):
        mx.recordio.pack((0, 1.0, -1, 0), b"")


@pytest.mark.parametrize(("fmt", "quality", "tolerance"), [(".png", 9, 0), (".jpg", 100, 6), (".png", 95, 0)])
@pytest.mark.parametrize("channels", [1, 3])
def test_packs_images(fmt, quality, tolerance, channels):
    y, x = np.mgrid[:30, :40]
    image = np.stack([x * 4, y * 5, x + y][:channels], 2).astype(np.uint8)
    packed = mx.recordio.pack_img((0, 2, 1, 0), image if channels > 1 else image[:, :, 0], quality, fmt)
    header, back = mx.recordio.unpack_img(packed)
    assert header.label == 2
    assert np.abs(back.astype(int) - (image if channels > 1 else image[:, :, 0])).max() <= tolerance
    _, gray = mx.recordio.unpack_img(packed, 0)
    assert gray.shape == (30, 40)


def test_refuses_invalid_images():
    with pytest.raises(ValueError, match=r"format is '.bmp', expected '.jpg' or '.png'"):
        mx.recordio.pack_img((0, 0, 0, 0), np.zeros((2, 2, 3), np.uint8), img_fmt=".bmp")
    with pytest.raises(ValueError, match=r"shape \(2, 2, 3\) and dtype float64, expected uint8"):
        mx.recordio.pack_img((0, 0, 0, 0), np.zeros((2, 2, 3)))
    with pytest.raises(ValueError, match="quality is 200"):
        mx.recordio.pack_img((0, 0, 0, 0), np.zeros((2, 2, 3), np.uint8), 200)
    with pytest.raises(ValueError, match="cannot be decoded as an image"):
        mx.recordio.unpack_img(mx.recordio.pack((0, 0, 0, 0), b"no image at all"))
