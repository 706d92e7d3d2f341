"""GGUF files: round trips, files of the package gguf's layout, and damaged files, field by field."""

import random
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from benchmarks.text_models import SMOLLM2
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.serialization import gguf
from flowmx.serialization.gguf import GGUFFormatError, GGUFTensor

WEIGHT = np.linspace(-1, 1, 3 * 32, dtype=np.float32).reshape(3, 32)
METADATA: dict[str, gguf.Value] = {
    "general.architecture": "llama", "llama.block_count": 2, "tokens": ["a", "ü"], "scores": np.array([1, 2], "f4"),
}  # fmt: skip


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(name, kind, value=b""):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name="w", shape=(32, 3), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file(entries=(), tensors=(), data=b"", version=3, counts=None, alignment=32):
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    header = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join([*entries, *tensors])
    return header + bytes(-len(header) % alignment) + data


ONE = file([entry("n", 4, struct.pack("<I", 7))], [tensor()], WEIGHT.tobytes())


def test_reads_a_file_byte_by_byte():
    for version in (2, 3):
        entries = [
            entry("u8", 0, b"\xff"), entry("i8", 1, b"\xff"), entry("bool", 7, b"\1"), entry("text", 8, text("ü")),
            entry("f32", 6, struct.pack("<f", 0.5)), entry("i64", 11, struct.pack("<q", -(2**40))),
            entry("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
            entry("numbers", 9, struct.pack("<IQ3h", 3, 3, 1, -2, 3)),
            entry("arrays", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 5, 6)),
        ]  # fmt: skip
        half = struct.pack("<4e", 1, 2, 3, 4)
        tensors = [tensor("b", (2, 2), 1, 64), tensor("a", (3,), 0, 0)]
        content = gguf.loads(file(entries, tensors, struct.pack("<3f", 5, 6, 7).ljust(64, b"\0") + half, version))
        numbers, arrays = content.metadata.pop("numbers"), content.metadata.pop("arrays")
        assert content.metadata == {"u8": 255, "i8": -1, "bool": True, "text": "ü", "f32": 0.5, "i64": -(2**40),
                                    "texts": ["a", ""]}  # fmt: skip
        assert (numbers.tolist(), numbers.dtype, arrays[0].tolist()) == ([1, -2, 3], np.int16, [5, 6])
        assert list(content.tensors) == ["b", "a"]
        assert content.tensors["b"].to_numpy().tolist() == [[1, 2], [3, 4]]
        assert content.tensors["a"].to_numpy().tolist() == [5, 6, 7]


def test_arrays_go_in_and_out(tmp_path):
    arrays = {
        "f32": WEIGHT, "f16": np.float16([[1, 2]]), "bf16": np.array([1.5], ml_dtypes.bfloat16), "f64": np.ones(3),
        "i8": np.int8([-1]), "i16": np.int16([[[7]]]), "i32": np.int32([1, 2]), "i64": np.int64([2**40]),
        "scalar": np.float32(3), "empty": np.zeros((0, 4), np.float32), ">": np.array([1, 2], ">f4"),
        "transposed": WEIGHT.T,
    }  # fmt: skip
    gguf.save(tmp_path / "file", {}, arrays)
    tensors = gguf.load(tmp_path / "file").tensors
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        values = tensors[name].to_numpy()
        assert (values.shape, values.tolist()) == (array.shape, array.tolist())
        assert values.dtype == ("float32" if name in ("f16", "bf16") else array.dtype.newbyteorder("="))
        assert values.flags.writeable
        assert tensors[name].data.ctypes.data % 32 == 0


@pytest.mark.parametrize("format", FORMATS)
def test_quantized_weights_go_in_and_out(format, tmp_path):
    weight = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
    quantized = GGUFTensor.quantize("w", weight, format)
    gguf.save(tmp_path / "file", {}, {"w": quantized, "after": np.ones(2, np.float32)})
    loaded = gguf.load(tmp_path / "file").tensors
    assert (loaded["w"].name, loaded["w"].shape, loaded["w"].format) == ("w", (3, 512), format)
    assert loaded["w"].data.shape == (3, FORMATS[format].row_bytes(512))
    np.testing.assert_array_equal(loaded["w"].to_numpy(), FORMATS[format].dequantize(quantized.data))
    np.testing.assert_allclose(loaded["w"].to_numpy(), weight, atol=0.3)
    assert loaded["after"].to_numpy().tolist() == [1, 1]


def test_types_that_flowmx_does_not_compute_with_are_still_listed_and_copied(tmp_path):
    content = file([], [tensor("w", (256, 2), 13)], bytes(range(176)) * 2)
    gguf.save(tmp_path / "copy", {}, gguf.loads(content).tensors)
    assert (tmp_path / "copy").read_bytes() == content
    weight = gguf.load(tmp_path / "copy").tensors["w"]
    assert (weight.format, weight.data.shape) == ("Q5_K", (2, 176))
    with pytest.raises(ValueError, match="tensor 'w' is in Q5_K, which is not supported; expected F32, F16"):
        weight.to_numpy()


def test_metadata_keep_their_values_and_numpy_scalars_their_types(tmp_path):
    metadata = {
        "int": 7, "negative": -7, "large": 2**40, "low": -(2**40), "float": 0.5, "bool": False, "text": "a\nü",
        "ints": [1, -2], "floats": [0.5, 2], "bools": [True, False], "texts": ["", "b"], "nothing": [],
        "u8": np.uint8(3), "f64": np.float64(0.1), "array": np.arange(3, dtype=np.int16), "lists": [["a"], [1, 2]],
    }  # fmt: skip
    gguf.save(tmp_path / "file", metadata, {})
    loaded = gguf.load(tmp_path / "file").metadata
    for name, value in metadata.items():
        if isinstance(loaded[name], np.ndarray):
            assert loaded[name].tolist() == list(value)
        elif name != "lists":
            assert loaded[name] == value
    assert loaded["lists"][0] == ["a"] and loaded["lists"][1].tolist() == [1, 2]
    assert (loaded["array"].dtype, loaded["ints"].dtype, loaded["floats"].dtype) == (np.int16, np.int32, np.float32)
    kinds = {name: gguf.dumps({"k": value}, {})[33] for name, value in metadata.items()}
    assert [kinds[name] for name in ("int", "negative", "large", "low", "float", "bool", "u8", "f64")] == [
        4, 5, 10, 11, 6, 7, 0, 12,
    ]  # fmt: skip
    gguf.save(tmp_path / "again", loaded, {})
    assert gguf.load(tmp_path / "again").metadata["f64"] == 0.1


def test_alignment_is_that_of_the_metadata(tmp_path):
    gguf.save(tmp_path / "file", {"general.alignment": 4096}, {"a": np.ones(3, np.float32), "b": np.ones(1)})
    assert (tmp_path / "file").stat().st_size == 3 * 4096
    assert gguf.load(tmp_path / "file").tensors["b"].to_numpy().tolist() == [1]
    packed = file(
        [entry("general.alignment", 4, struct.pack("<I", 1))], [tensor("a", (1,))], b"\0\0\x80\x3f", 3, None, 1
    )
    assert gguf.loads(packed).tensors["a"].to_numpy().tolist() == [1]


def test_a_file_in_use_is_replaced_and_its_tensors_stay(tmp_path):
    gguf.save(tmp_path / "file", METADATA, {"w": WEIGHT})
    before = gguf.load(tmp_path / "file")
    gguf.save(tmp_path / "file", before.metadata, {"w": before.tensors["w"], "v": WEIGHT + 1})
    np.testing.assert_array_equal(before.tensors["w"].to_numpy(), WEIGHT)
    after = gguf.load(tmp_path / "file").tensors
    np.testing.assert_array_equal(after["w"].to_numpy(), WEIGHT)
    np.testing.assert_array_equal(after["v"].to_numpy(), WEIGHT + 1)
    with pytest.raises(TypeError):
        gguf.save(tmp_path / "file", {}, {"w": np.array(["x"])})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert gguf.load(tmp_path / "file").tensors.keys() == after.keys()


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_released_files_are_closed(tmp_path):
    gguf.save(tmp_path / "file", METADATA, {"w": WEIGHT})
    before = descriptors()
    weight = gguf.load(tmp_path / "file").tensors["w"]
    assert descriptors() == before + 1
    del weight
    assert descriptors() == before


def test_mx_nd_load_reads_the_tensors_as_arrays(tmp_path):
    gguf.save(tmp_path / "net.gguf", METADATA, {"w": GGUFTensor.quantize("w", WEIGHT, "Q8_0"), "n": np.int32([1])})
    loaded = mx.nd.load(tmp_path / "net.gguf")
    np.testing.assert_allclose(loaded["w"].asnumpy(), WEIGHT, atol=0.01)
    assert loaded["n"].dtype == np.int32
    assert mx.nd.load_frombuffer((tmp_path / "net.gguf").read_bytes()).keys() == loaded.keys()
    with pytest.raises(ValueError, match=r"flowmx\.serialization\.gguf\.save"):
        mx.nd.save(tmp_path / "net.gguf", loaded)


@pytest.mark.parametrize(
    ("metadata", "tensors", "error", "message"),
    [
        ({}, {"a": np.array(["x"])}, TypeError, "tensor 'a': GGUF does not support dtype <U1"),
        ({}, {"a": np.array([1], "u1")}, TypeError, "tensor 'a': GGUF does not support dtype uint8"),
        ({}, {"a": np.ones((1,) * 5)}, ValueError, "tensor 'a' has shape .*, expected at most 4 dimensions"),
        ({}, {"a": GGUFTensor("a", (4,), "Q9", np.zeros(4, np.uint8))}, ValueError, "has format 'Q9', expected one of"),
        ({}, {"a": GGUFTensor("a", (4,), "F32", np.zeros(4, np.uint8))}, ValueError, "4 bytes of uint8, expected 16"),
        ({"a": None}, {}, TypeError, "metadata 'a' is of type object"),
        ({"a": 2**64}, {}, ValueError, "metadata 'a' is 18446744073709551616, expected an integer of 64 bits"),
        ({"a": ["x", 1]}, {}, TypeError, "metadata 'a' is a list of several types"),
        ({"a": [1, "x"]}, {}, TypeError, "metadata 'a' is of type <U"),
        ({"a": np.ones((2, 2))}, {}, TypeError, "shape \\(2, 2\\), expected one dimension"),
        ({1: 2}, {}, TypeError, "1 is a name or value of type int, expected a str"),
        ({"general.alignment": 24}, {}, ValueError, "general.alignment is 24, expected a power of two"),
    ],
)
def test_refuses_values_that_the_format_cannot_store(metadata, tensors, error, message, tmp_path):
    with pytest.raises(error, match=message):
        gguf.save(tmp_path / "file", metadata, tensors)
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_quantize_what_a_format_cannot_hold():
    with pytest.raises(ValueError, match="tensor 'w': format is 'Q9', expected one of F32, F16"):
        GGUFTensor.quantize("w", WEIGHT, "Q9")
    with pytest.raises(ValueError, match="tensor 'w': a row of 32 values cannot be stored as Q4_K"):
        GGUFTensor.quantize("w", WEIGHT, "Q4_K")


HUGE = (1 << 64) - 1
DAMAGED = {
    "nothing": (b"", "a GGUF file, which starts with b'GGUF', found b''"),
    "another format": (b"PK\3\4" + bytes(40), "starts with b'GGUF'"),
    "an older format": (b"tjgg" + bytes(40), "b'tjgg' of an older format: convert the original model again"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 2 or 3, found 1"),
    "version 4": (file(version=4), "version 2 or 3, found 4"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(40), "found a big-endian file: convert it to little-endian"),
    "no counts": (ONE[:12], "8 bytes of the number of tensors"),
    "too many tensors": (file(counts=(HUGE, 0)), "at most 0 tensors, found 18446744073709551615"),
    "too many entries": (file(counts=(0, HUGE)), "at most 0 metadata entries"),
    "the longest name": (file(counts=(0, 1), entries=[struct.pack("<Q", HUGE)], data=bytes(40)), "the name of a metad"),
    "a name twice": (file([entry("n", 7, b"\1")] * 2), "another name for each metadata entry, found 'n' twice"),
    "a name not in UTF-8": (file([entry(b"\xff", 7, b"\1")], data=bytes(9)), "metadata entry in UTF-8, found b'.*xff"),
    "an unknown type": (file([entry("n", 13, bytes(40))]), "metadata 'n' of a type from 0 to 12, found 13"),
    "a long text": (file([entry("n", 8, struct.pack("<Q", 1 << 60))], data=bytes(9)), "bytes of metadata 'n'"),
    "an unknown array": (file([entry("n", 9, struct.pack("<IQ", 77, 1))]), "metadata 'n' of a type from 0 to 12"),
    "a long array": (file([entry("n", 9, struct.pack("<IQ", 0, HUGE))], data=bytes(9)), "at most .* numbers in meta"),
    "many texts": (file([entry("n", 9, struct.pack("<IQ", 8, 1 << 40))], data=bytes(90)), "texts in metadata 'n', fou"),
    "texts that end": (file([entry("n", 9, struct.pack("<IQ", 8, 9) + text("x" * 80))], data=b""), "bytes of"),
    "deep arrays": (file([entry("n", 9, struct.pack("<IQ", 9, 1) * 9 + bytes(20))]), "at most 4 levels of arrays"),
    "wide arrays": (file([entry("n", 9, struct.pack("<IQ", 9, 70_000))], data=bytes(1 << 20)), "at most 8192 arrays"),
    "alignment 0": (file([entry("general.alignment", 4, bytes(4))]), "general.alignment, a power of two, found 0"),
    "alignment 24": (file([entry("general.alignment", 4, b"\x18\0\0\0")]), "a power of two, found 24"),
    "alignment text": (file([entry("general.alignment", 8, text("32"))]), "a power of two, found '32'"),
    "no tensor": (file(counts=(1, 0), data=bytes(3)) + bytes(8), "the end of the file|found 1"),
    "a tensor twice": (file([], [tensor(), tensor(offset=384)], bytes(768)), "another name for each tensor, found 'w'"),
    "five dimensions": (file([], [tensor(shape=(1,) * 5)], bytes(32)), "tensor 'w' of at most 4 dimensions, found 5"),
    "a million dimensions": (file([], [text("w") + struct.pack("<I", 1 << 30)], bytes(90)), "4 dimensions, found 107"),
    "an overflow": (file([], [tensor(shape=(1 << 32, 1 << 32))], bytes(32)), "of a size that can be addressed"),
    "a huge size": (file([], [tensor(shape=(HUGE,))], bytes(32)), "of a size that can be addressed"),
    "an unknown tensor type": (file([], [tensor(kind=99)], bytes(384)), "'w' of a type among F32, .*, found type 99"),
    "a removed type": (file([], [tensor(kind=4)], bytes(384)), "found type 4"),
    "part of a block": (file([], [tensor(shape=(48, 2), kind=3)], bytes(384)), "of Q4_1 with rows of a multiple of 32"),
    "an odd offset": (file([], [tensor(offset=8)], bytes(512)), "at a multiple of 32 bytes, found offset 8"),
    "a far offset": (file([], [tensor(offset=1 << 62)], bytes(512)), "inside the file"),
    "the end": (ONE[:-1], "tensor 'w', 384 bytes at 96, inside the file, found a file of 479 bytes"),
    "an overlap": (file([], [tensor("a", offset=352), tensor("b")], bytes(999)), "after tensor 'b', from offset 384"),
    "one place": (file([], [tensor("a"), tensor("b")], bytes(999)), "'b' after tensor 'a', from offset 384 on"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_says_what_is_wrong_and_where(content, message, tmp_path):
    (tmp_path / "file").write_bytes(content)
    for read in (lambda: gguf.loads(content), lambda: gguf.load(tmp_path / "file")):
        with pytest.raises(GGUFFormatError, match=message):
            read()


CONTENT = gguf.dumps({**METADATA, "deep": [["x"]], "f": 0.5}, {
    "w": GGUFTensor.quantize("w", WEIGHT, "Q4_1"), "v": WEIGHT, "s": np.ones((2, 2, 2, 2), np.float16)})  # fmt: skip
NUMBERS = [0, 1, 2, 7, 9, 13, 31, 255, 1 << 16, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, HUGE]


@pytest.mark.parametrize("size", [1, 4, 8])
def test_every_field_may_be_damaged(size):
    """Each byte, 32-bit and 64-bit field of the header takes extreme values: the file is read or refused."""
    draw, refused = random.Random(size), 0
    header = len(CONTENT) - sum(-(-each.data.nbytes // 32) * 32 for each in gguf.loads(CONTENT).tensors.values())
    for at in range(header):
        for number in draw.sample(NUMBERS, 6):
            damaged = CONTENT[:at] + (number % (1 << 8 * size)).to_bytes(size, "little") + CONTENT[at + size :]
            try:
                content = gguf.loads(damaged)
            except GGUFFormatError:
                refused += 1
            else:
                assert sum(each.data.nbytes for each in content.tensors.values()) <= len(damaged)
    assert refused > header


@given(st.sampled_from([ONE, CONTENT]), st.data())
def test_cut_and_filled_files_are_read_or_refused(content, data):
    index = data.draw(st.integers(0, len(content) - 1))
    piece = data.draw(st.binary(max_size=3))
    try:
        gguf.loads(content[:index] + piece + content[index + data.draw(st.integers(0, 400)) :])
    except GGUFFormatError:
        pass


def _parts(folder, count=3, **change):
    """Write a split file with a tensor in each part; return the parts."""
    paths = [folder / f"net-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
    for number, path in enumerate(paths):
        split = {"split.no": np.uint16(number), "split.count": np.uint16(count), "split.tensors.count": np.int32(count)}
        names = {"general.name": "whole"} if number == 0 else {}
        gguf.save(path, names | split | (change if number == 1 else {}), {f"t{number}": np.full(3, number, np.float32)})
    return paths


def test_the_parts_of_a_split_file_are_joined(tmp_path):
    first, second, third = _parts(tmp_path)
    file = gguf.load(first)
    assert file.metadata["general.name"] == "whole"
    assert [tensor.to_numpy().tolist() for tensor in file.tensors.values()] == [[at] * 3 for at in (0.0, 1.0, 2.0)]
    with pytest.raises(ValueError, match=r"not the first part: pass .*net-00001-of-00003\.gguf"):
        gguf.load(second)
    third.unlink()
    with pytest.raises(FileNotFoundError, match="net-00003-of-00003"):
        gguf.load(first)
    first.rename(tmp_path / "other.gguf")
    with pytest.raises(ValueError, match=r"is part 0 \(from 0\) of 3, expected the name NAME-NUMBER-of-00003"):
        gguf.load(tmp_path / "other.gguf")


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    first, *_ = _parts(tmp_path, **{"split.no": np.uint16(2)})
    with pytest.raises(ValueError, match=r"00002-of-00003\.gguf is not part 1"):
        gguf.load(first)
    first, second, _ = _parts(tmp_path)
    split = gguf.loads(second.read_bytes()).metadata
    gguf.save(second, split, {"t0": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="'t0' is also in an earlier part"):
        gguf.load(first)
    gguf.save(second, split, {})
    with pytest.raises(ValueError, match="the parts have 2 tensors, expected 3"):
        gguf.load(first)


def test_missing_files_and_pipes(tmp_path):
    with pytest.raises(FileNotFoundError):
        gguf.load(tmp_path / "missing")
    with pytest.raises(OSError, match="is a device"):
        gguf.load("/dev/zero")
    with pytest.raises(IsADirectoryError):
        gguf.load(tmp_path)


@pytest.mark.skipif(not SMOLLM2.exists(), reason="`make models` fetches SmolLM2")
def test_reads_a_real_model_and_writes_the_same_bytes(tmp_path):
    content = gguf.load(SMOLLM2)
    assert content.metadata["general.architecture"] == "llama" and content.metadata["llama.block_count"] == 30
    assert len(content.metadata["tokenizer.ggml.tokens"]) == 49152
    weight = content.tensors["blk.0.ffn_down.weight"]
    assert (len(content.tensors), weight.shape, weight.format) == (272, (576, 1536), "Q4_1")
    assert 0.01 < weight.to_numpy().std() < 1
    gguf.save(tmp_path / "copy", *content)
    assert (tmp_path / "copy").read_bytes() == SMOLLM2.read_bytes()


def test_sizes_agree_with_the_block_formats():
    layouts = {layout.name: layout for layout in gguf._LAYOUTS.values()}
    for name, form in FORMATS.items():
        assert (layouts[name].values, layouts[name].nbytes) == (form.values, form.nbytes)
