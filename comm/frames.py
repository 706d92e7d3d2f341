"""Frames: one message as bytes. Pure: no I/O, no clock.

A frame is::

    4 bytes    "FMX1"
    uint32     length of the header, little-endian
    header     msgpack: a map with text keys
    the rest   the bytes of the tensors, one after the other, each little-endian in C order

The header's ``"tensors"`` lists the tensors as ``[dtype, shape]``. Between processes of one machine a frame may also
carry ``"shared"``; its tensors are then ``[dtype, shape, offset]``, lie in shared memory, and no bytes follow.
All other keys belong to the operation. ``docs/wire.md`` is the full description.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from flowmx.comm.buffers import fresh
from flowmx.comm.errors import WireError
from flowmx.comm.headers import ITEMSIZE, Spec, check_size, count_bytes, read_specs, take, unpack
from flowmx.comm.limits import Limits

__all__ = ["ITEMSIZE", "MAGIC", "Message", "Parser", "Spec", "Tensor", "check", "decode", "encode", "take"]

MAGIC = b"FMX1"
RESERVED = ("tensors", "shared")
_START = struct.Struct("<4sI")

Place = Callable[[dict[str, Any], Sequence["Spec"]], Sequence["memoryview | None"]]


class Tensor(NamedTuple):
    """A tensor on the wire.

    Attributes:
        dtype: NumPy's name of the element type, one of `ITEMSIZE`.
        shape: its sizes.
        data: the bytes, in C order, contiguous.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: Any) -> Tensor:
        """The tensor of an array; shares its memory where that is contiguous and little-endian.

        Raises:
            WireError: its dtype is none of the wire.
        """
        array = np.asarray(array)
        name = _name_of(array.dtype)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(name, array.shape, flat.data)

    def bytes(self) -> memoryview:
        """The bytes as such: `data` may be a view of anything."""
        # A memoryview with a size of 0 in its shape can not be cast.
        return self.data.cast("B") if self.data.nbytes else memoryview(b"")

    def array(self) -> np.ndarray[Any, Any]:
        """An array over the same memory."""
        if self.dtype == "bfloat16":
            import ml_dtypes  # noqa: F401 (tells NumPy of bfloat16)
        return np.frombuffer(self.data, np.uint8).view(np.dtype(self.dtype)).reshape(self.shape)


@cache  # NumPy makes a name anew each time, which takes longer than all the rest of a small tensor
def _name_of(dtype: np.dtype[Any]) -> str:
    if dtype.name not in ITEMSIZE:
        raise WireError(f"an array of {dtype} can not be sent; the wire has {', '.join(ITEMSIZE)}")
    return dtype.name


class Message(NamedTuple):
    """A header, and the tensors that came with it."""

    header: dict[str, Any]
    tensors: list[Tensor]


def encode(message: Message) -> list[bytes | memoryview]:
    """The frame of a message, in parts that are to be sent one after the other; the bytes of tensors are not copied.

    Raises:
        WireError: the header uses a reserved key or can not be packed, or a tensor's bytes do not fit its shape.
    """
    check(message)
    described = [[tensor.dtype, list(tensor.shape)] for tensor in message.tensors]
    data = [tensor.data.cast("B") for tensor in message.tensors if tensor.data.nbytes]
    return [pack({**message.header, "tensors": described}), *data]


def check(message: Message) -> None:
    """Check that a message can be sent.

    Raises:
        WireError: the header uses a reserved key, or a tensor's bytes do not fit its shape.
    """
    for key in RESERVED:
        if key in message.header:
            raise WireError(f"the header key {key!r} is the transport's own: name yours otherwise")
    for index, tensor in enumerate(message.tensors):
        if tensor.data.nbytes != (wanted := count_bytes(tensor.dtype, tensor.shape, index)):
            raise WireError(
                f"tensor {index} is {tensor.dtype} {list(tensor.shape)} of {wanted} bytes, but has {tensor.data.nbytes}"
            )


def pack(header: Mapping[str, Any]) -> bytes:
    """The start of a frame: everything but the bytes of its tensors.

    Raises:
        WireError: the header holds what msgpack has no form for.
    """
    try:
        packed: bytes = msgpack.packb(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a header takes text, numbers, bytes, lists and maps: {error}") from None
    return _START.pack(MAGIC, len(packed)) + packed


class Parser:
    """An incremental parser of frames, which writes the bytes of tensors to their destinations.

    Args:
        limits: what is allowed.
        place: called with the header and the specs of the tensors, once they are known; returns where the bytes of each
            tensor go, or None for memory of the parser's own.

    Attributes:
        header: None until all of it is there; with the key "tensors", and "shared" where there is one.
        specs: the tensors that the header announces.
        head: the bytes of the frame before the tensors.
        tensors: those whose bytes are all there.
        total: bytes of the whole frame; known with the header.
    """

    def __init__(self, limits: Limits, place: Place | None = None) -> None:
        self.limits = limits
        self.header: dict[str, Any] | None = None
        self.specs: list[Spec] = []
        self.head = bytearray()
        self.tensors: list[Tensor] = []
        self.total = 0
        self._place = place
        self._buffers: list[memoryview] = []
        self._filled = 0  # bytes of the tensor that is coming in

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            WireError: they are no frame, or none within the limits. The parser is of no use afterwards.
        """
        rest = memoryview(data).cast("B")
        if self.header is None:
            rest = self._feed_head(rest)
        while rest:
            rest = self._feed_tensor(rest)

    def finish(self) -> Message:
        """The message, when there are no more bytes.

        Tensors in shared memory are left out: the caller, which has that memory, adds them.

        Raises:
            WireError: the frame is not complete.
        """
        if self.header is None:
            raise WireError(f"the frame ends after {len(self.head)} bytes, before the end of its header")
        missing = len(self._buffers) - len(self.tensors)
        if missing:
            index, wanted = len(self.tensors), self.specs[len(self.tensors)].nbytes
            raise WireError(f"the frame ends after {self._filled} of the {wanted} bytes of tensor {index}")
        return Message({key: value for key, value in self.header.items() if key not in RESERVED}, self.tensors)

    def _feed_head(self, data: memoryview) -> memoryview:
        data = self._fill_head(_START.size, data)
        if len(self.head) < _START.size:
            return data
        magic, length = _START.unpack_from(self.head)
        if magic != MAGIC:
            raise WireError(f"a frame begins with {MAGIC!r}, and this begins with {bytes(magic)!r}")
        check_size(length, self.limits.header, "the header", "header")
        data = self._fill_head(_START.size + length, data)
        if len(self.head) == _START.size + length:
            self._read_header()
        return data

    def _fill_head(self, size: int, data: memoryview) -> memoryview:
        count = max(size - len(self.head), 0)
        self.head += data[:count]
        return data[count:]

    def _read_header(self) -> None:
        header = unpack(memoryview(self.head)[_START.size :], self.limits.bounds)
        shared = "shared" in header
        self.specs = read_specs(header, shared, self.limits)
        self.total = len(self.head) + sum(spec.nbytes for spec in self.specs)
        check_size(self.total, self.limits.total, "the message", "total")
        if not shared:
            places = self._place(header, self.specs) if self._place is not None else ()
            self._buffers = destinations(self.specs, places)
        self.header = header
        self._take_complete()

    def _feed_tensor(self, data: memoryview) -> memoryview:
        if len(self.tensors) == len(self._buffers):
            raise WireError(f"{len(data)} bytes follow the end of the frame")
        buffer = self._buffers[len(self.tensors)]
        count = min(len(data), len(buffer) - self._filled)
        buffer[self._filled : self._filled + count] = data[:count]
        self._filled += count
        self._take_complete()
        return data[count:]

    def _take_complete(self) -> None:
        while (index := len(self.tensors)) < len(self._buffers) and self._filled == len(self._buffers[index]):
            spec = self.specs[index]
            self.tensors.append(Tensor(spec.dtype, spec.shape, self._buffers[index]))
            self._filled = 0


def decode(frame: Iterable[bytes | memoryview], limits: Limits | None = None, place: Place | None = None) -> Message:
    """Decode a complete frame.

    Raises:
        WireError: as in `Parser`.
    """
    parser = Parser(limits or Limits(), place)
    for part in frame:
        parser.feed(part)
    return parser.finish()


def destinations(specs: Sequence[Spec], places: Sequence[memoryview | None]) -> list[memoryview]:
    """Bytes to write each tensor into: the memory that was given for it, or else fresh memory.

    Raises:
        WireError: there are more or fewer places than tensors, or one is read-only, in pieces or of another size.
    """
    if not places:
        return [fresh(spec.nbytes) for spec in specs]
    if len(places) != len(specs):
        raise WireError(f"the message has {len(specs)} tensors, where {len(places)} are expected")
    return [
        fresh(spec.nbytes) if place is None else _destination(index, spec, place)
        for index, (spec, place) in enumerate(zip(specs, places, strict=True))
    ]


def _destination(index: int, spec: Spec, place: memoryview) -> memoryview:
    if place.readonly or not place.c_contiguous or place.nbytes != spec.nbytes:
        state = "read-only" if place.readonly else f"{place.nbytes} bytes" + " in pieces" * (not place.c_contiguous)
        raise WireError(
            f"tensor {index} is {spec.dtype} {list(spec.shape)} of {spec.nbytes} bytes; its destination is {state}"
        )
    # A memoryview with a size of 0 in its shape can not be cast.
    return place.cast("B") if place.nbytes else memoryview(bytearray())
