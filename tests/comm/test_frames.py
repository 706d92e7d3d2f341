"""Frames: messages survive a round trip in pieces of any size; invalid input is refused with the reason."""

import random
import struct

import ml_dtypes  # noqa: F401 (bfloat16)
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx.comm.errors import TooLarge, WireError
from flowmx.comm.frames import Message, Parser, Tensor, decode, encode
from flowmx.comm.headers import ITEMSIZE, take
from flowmx.comm.limits import Limits

SMALL = Limits(header=1000, tensors=4, tensor=1000, total=2500)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
headers = st.dictionaries(st.text().filter(lambda key: key not in ("tensors", "shared")), plain, max_size=5)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def tensors(draw):
    dtype, shape = draw(st.sampled_from(sorted(ITEMSIZE))), draw(shapes)
    size = int(np.prod(shape)) * ITEMSIZE[dtype]
    return Tensor(dtype, shape, memoryview(draw(st.binary(min_size=size, max_size=size))))


messages = st.builds(Message, headers, st.lists(tensors(), max_size=4))


def frame(header, data=b""):
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return b"FMX1" + struct.pack("<I", len(packed)) + packed + data


def same(one, other):
    return one.header == other.header and [(t.dtype, t.shape, bytes(t.data)) for t in one.tensors] == [
        (t.dtype, t.shape, bytes(t.data)) for t in other.tensors
    ]


@given(messages, st.data())
def test_a_message_survives_any_division_into_pieces(message, data):
    whole = b"".join(encode(message))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert same(decode(parts), message)


def test_tensors_are_not_copied_when_they_are_encoded():
    array = np.arange(1000, dtype=np.float32)
    head, data = encode(Message({}, [Tensor.of(array)]))
    array[3] = 77
    assert np.frombuffer(data, np.float32)[3] == 77
    assert head.startswith(b"FMX1")


@pytest.mark.parametrize("dtype", sorted(ITEMSIZE))
def test_arrays_of_every_dtype_round_trip(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (tensor,) = decode(encode(Message({}, [Tensor.of(array)]))).tensors
    assert tensor.array().dtype == array.dtype
    assert np.array_equal(tensor.array(), array)
    assert np.dtype(dtype).itemsize == ITEMSIZE[dtype]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(10)[::-2],
        np.arange(3, dtype=">i4"),
        np.float32(3),
        np.zeros((0, 4)),
        np.zeros(()),
    ],
)
def test_arrays_in_any_memory_order_round_trip(array):
    (tensor,) = decode(encode(Message({}, [Tensor.of(array)]))).tensors
    assert np.array_equal(tensor.array(), array)
    assert tensor.shape == np.shape(array)


def test_bytes_are_received_into_their_destination():
    first, second = np.arange(4.0), np.arange(3, dtype=np.int32)
    target = np.zeros(4)
    calls = []

    def place(header, specs):
        calls.append((header["key"], [spec.shape for spec in specs]))
        return [target.view(np.uint8).data, None]

    message = decode(encode(Message({"key": 7}, [Tensor.of(first), Tensor.of(second)])), find_destinations=place)
    assert calls == [(7, [(4,), (3,)])]
    assert np.array_equal(target, first)
    assert message.tensors[0].data.obj is target.base or np.shares_memory(message.tensors[0].array(), target)
    assert np.array_equal(message.tensors[1].array(), second)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([memoryview(bytearray(31))], "of 32 bytes; its destination is 31 bytes"),
        ([memoryview(bytes(32))], "read-only"),
        ([memoryview(bytearray(64))[::2]], "not contiguous"),
        ([None, None], "1 tensors, but there are 2"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(places, text):
    with pytest.raises(WireError, match=text):
        decode(encode(Message({}, [Tensor.of(np.arange(4.0))])), find_destinations=lambda *_: places)


NESTED: list[object] = []
for _ in range(20):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends after 0 bytes, before the end of its header"),
        (b"FMX1\x05", "ends after 5 bytes"),
        (b"GET / HTTP/1.1", "begins with b'FMX1', and this begins with b'GET '"),
        (frame({"tensors": [["float32", [2]]]}, bytes(7)), "7 of the 8 bytes of tensor 0"),
        (frame({"tensors": [["float32", [2]]]}, bytes(9)), "1 bytes follow the end"),
        (frame({}, b"x"), "1 bytes follow the end"),
        (frame(b"\xc1"), "not valid msgpack"),
        (frame(b"\x81\xa1a"), "not valid msgpack"),
        (frame(b"\x80\x80"), "not valid msgpack"),
        (frame([1]), r"the header is \[1\], and must be a map"),
        (frame({1: 2}), "not valid msgpack|must be text"),
        (frame({b"a": 2}), "must be text"),
        (frame({"a": {b"b": 2}}), "must be text"),
        (frame(b"\x82\xa1a\x01\xa1a\x02"), "the key 'a' twice"),
        (frame(b"\x81\xa1a\x82\xa1b\x01\xa1b\x02"), "the key 'b' twice"),
        (frame({"a": msgpack.ExtType(5, b"xy")}), "extension of type 5"),
        (frame({"a": msgpack.Timestamp(5, 5)}), "Timestamp"),
        (frame({"a": NESTED}), "at most 16 are allowed"),
        (frame(b"\x81\xa1a" + b"\x91" * 900 + b"\xc0"), "msgpack|nested"),
        (frame(b"\x81\xa1a\xdd\xff\xff\xff\xff"), "4294967297 elements"),
        (frame(b"\x81\xa1a\xa2\xff\xfe"), "not valid msgpack"),
        (frame({"tensors": 5}), "must be a list"),
        (frame({"tensors": [5]}), "is described by 5"),
        (frame({"tensors": [["float32"]]}), r"must be \[dtype, shape\]"),
        (frame({"tensors": [["float32", [1], 0]]}), r"must be \[dtype, shape\]"),
        (frame({"tensors": [["float32", [-1]]]}), "the size -1, expected integers from 0"),
        (frame({"tensors": [["float32", [True]]]}), "the size True, expected integers from 0"),
        (frame({"tensors": [["float32", [1.0]]]}), "the size 1.0, expected integers from 0"),
        (frame({"tensors": [["float32", 4]]}), "is 4, expected a list of sizes"),
        (frame({"tensors": [["object", [1]]]}), "has the dtype 'object'"),
        (frame({"tensors": [[["x"], [1]]]}), "has the dtype"),
        (frame({"tensors": [["int8", [1] * 33]]}), "33 dimensions"),
        (frame({"shared": [1, 2, 3], "tensors": [["int8", [1]]]}), r"\[dtype, shape, offset\]"),
        (
            frame({"shared": [1, 2, 3], "tensors": [["int8", [1], -1]]}),
            "the offset -1, and must have an integer",
        ),
        (frame({"shared": [1, 2, 3], "tensors": [["int8", [1], 0]]}, b"x"), "1 bytes follow"),
    ],
)
def test_invalid_frames_are_refused_with_the_reason(data, text):
    for chunks in ([data], [data[i : i + 1] for i in range(len(data))]):
        with pytest.raises(WireError, match=text):
            decode(chunks, SMALL)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"FMX1" + struct.pack("<I", 1001), r"the header has 1001 bytes; at most 1000 .*Limits.header"),
        (b"FMX1\xff\xff\xff\xff", "at most 1000"),
        (frame({"tensors": [["int8", [1]]] * 5}), r"5 tensors; at most 4 .*Limits.tensors"),
        (frame({"tensors": [["int8", [1001]]]}), r"tensor 0 has 1001 bytes; at most 1000 .*Limits.tensor"),
        (frame({"tensors": [["int8", [1000]]] * 3}), r"Limits.total"),
        (frame({"tensors": [["int8", [2**62, 2**62]]]}), "less than 2.*63 bytes"),
        (frame({"tensors": [["int8", [2**62, 0, 2**62]]]}), "less than 2.*63 bytes"),
    ],
)
def test_limits_are_checked_before_the_bytes_arrive(data, text):
    with pytest.raises(TooLarge, match=text):
        Parser(SMALL).feed(data)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message({"tensors": 1}, []), "is reserved for the transport"),
        (Message({"shared": 1}, []), "is reserved for the transport"),
        (Message({"a": object()}, []), "a header takes"),
        (Message({"a": 1 << 64}, []), "a header takes"),
        (Message({}, [Tensor("int8", (3,), memoryview(b"ab"))]), "of 3 bytes, but has 2"),
        (Message({}, [Tensor("int7", (3,), memoryview(b"abc"))]), "dtype 'int7'"),
    ],
)
def test_unsupported_messages_are_refused(message, text):
    with pytest.raises(WireError, match=text):
        encode(message)


def test_arrays_of_other_dtypes_are_refused():
    with pytest.raises(WireError, match="complex64 cannot be sent; the wire format has bool"):
        Tensor.of(np.zeros(2, np.complex64))


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({}, "has no 'key'; it takes id, node, incarnation, rank, key"),
        ({"key": 1, "kye": 2}, "has 'kye', which is unknown"),
        ({"key": 1.5}, "'key' is 1.5, and must be int or str"),
        ({"key": True}, "'key' is True"),
        ({"key": 1, "rank": "2"}, "'rank' is '2', and must be int"),
        ({"key": 1, "id": 5}, "'id' is 5, and must be str"),
    ],
)
def test_the_fields_of_an_operation_are_checked(header, text):
    with pytest.raises(WireError, match=text):
        take(header, {"key": (int, str)}, {"rank": int})


def test_valid_fields_pass():
    header = {"key": "w", "rank": 3, "id": "x", "incarnation": 2}
    assert take(header, {"key": (int, str)}, {"rank": int}) == header


def _mutated(whole: bytes, source: random.Random) -> bytes:
    """A frame with a few bytes changed, removed or repeated, the start more often than the rest."""
    data = bytearray(whole)
    for _ in range(source.randint(1, 4)):
        at = min(int(source.expovariate(0.05)), len(data) - 1) if data else 0
        action = source.randrange(4)
        if action == 0 and data:
            data[at] = source.randrange(256)
        elif action == 1:
            del data[at : at + source.randint(1, 8)]
        elif action == 2:
            data[at:at] = data[at : at + source.randint(1, 16)]
        else:
            data[at:at] = source.randbytes(source.randint(1, 4))
    return bytes(data)


def _random_header(source: random.Random) -> dict[str, object]:
    """A header that is nearly valid: each part of it may be wrong in a different way."""

    def size():
        return source.choice([0, 1, 2, 3, 300, 2**31, 2**62, -1, 1.0, "2", None, True])

    def entry():
        shape = [size() for _ in range(source.randrange(4))]
        entry = [source.choice([*ITEMSIZE, "object", "", 3, None]), shape]
        return source.choice([entry, entry, entry, [*entry, size()], entry[:1], {}, 5])

    header: dict[str, object] = {"id": "x", "key": source.choice([1, "w", None, [1, {"a": b""}]])}
    header["tensors"] = source.choice([[entry() for _ in range(source.randrange(6))], 5, "no"])
    if source.random() < 0.2:
        header["shared"] = [size() for _ in range(source.randrange(6))]
    return header


@pytest.mark.parametrize("count", [3000, pytest.param(3_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_damaged_frames_end_in_an_error_of_the_wire_or_in_a_message_that_can_be_sent_again(count):
    source = random.Random(count)
    arrays = [Tensor.of(np.arange(4.0)), Tensor.of(np.zeros((0, 2), np.float32)), Tensor.of(np.arange(5, dtype="u1"))]
    whole = b"".join(encode(Message({"id": "x", "key": [1, "w"], "more": {"a": None, "b": b"c"}}, arrays)))
    outcomes = {"message": 0, "error": 0}
    for number in range(count):
        if number % 2:
            data = _mutated(whole, source)
        else:
            data = frame(_random_header(source), bytes(source.choice([0, 1, 8, 300])))
        cut = source.randrange(len(data) + 1)
        try:
            message = decode([data[:cut], data[cut:]], SMALL)
        except WireError:
            outcomes["error"] += 1
            continue
        outcomes["message"] += 1
        assert sum(tensor.data.nbytes for tensor in message.tensors) <= SMALL.total
        assert same(decode(encode(message), SMALL), message) or "nan" in repr(message.header)
    assert min(outcomes.values()) > 0
