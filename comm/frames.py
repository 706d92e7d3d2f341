"""Frames: one message as bytes. This module does no I/O and reads no clock.

A frame is::

    4 bytes    "FMX1"
    uint32     length of the header, little-endian
    header     msgpack: a map with text keys
    the rest   the bytes of the tensors, concatenated, each little-endian in C order

The header's ``"tensors"`` lists the tensors as ``[dtype, shape]``. Between processes of one machine the header may also
contain ``"shared"``; its tensors are then ``[dtype, shape, offset]``, lie in shared memory, and no bytes follow. All
other keys belong to the operation. ``docs/wire.md`` is the full description.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from flowmx.comm.buffers import allocate
from flowmx.comm.errors import WireError
from flowmx.comm.headers import ITEMSIZE, Spec, check_size, count_bytes, read_specs, take, unpack
from flowmx.comm.limits import Limits

__all__ = ["ITEMSIZE", "MAGIC", "Message", "Parser", "Spec", "Tensor", "check", "decode", "encode", "take", "view"]

MAGIC = b"FMX1"
RESERVED = ("tensors", "shared")
_START = struct.Struct("<4sI")

FindDestinations = Callable[[dict[str, Any], Sequence["Spec"]], Sequence["memoryview | None"]]


class Tensor(NamedTuple):
    """A tensor on the wire.

    Attributes:
        dtype: NumPy's name of the element type, one of `ITEMSIZE`.
        shape: its sizes.
        data: the bytes, contiguous in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: object) -> Tensor:
        """Return the tensor of an array; it shares the memory if that is contiguous and little-endian.

        Raises:
            WireError: the wire format does not support its dtype.
        """
        array = np.asarray(array)
        name = _name_of(array.dtype)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(name, array.shape, flat.data)

    def bytes(self) -> memoryview:
        """Return `data` as bytes."""
        # A memoryview with a 0 in its shape cannot be cast.
        return self.data.cast("B") if self.data.nbytes else memoryview(b"")

    def array(self) -> np.ndarray[Any, Any]:
        """Return an array over the same memory."""
        if self.dtype == "bfloat16":
            import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
        return np.frombuffer(self.data, np.uint8).view(np.dtype(self.dtype)).reshape(self.shape)


@cache  # NumPy builds the name each time, which takes longer than the rest for a small tensor
def _name_of(dtype: np.dtype[Any]) -> str:
    if dtype.name not in ITEMSIZE:
        raise WireError(f"an array of {dtype} cannot be sent; the wire format has {', '.join(ITEMSIZE)}")
    return dtype.name


class Message(NamedTuple):
    """A header and tensors."""

    header: dict[str, Any]
    tensors: list[Tensor]


def encode(message: Message) -> list[bytes | memoryview]:
    """Return the frame of a message, in parts to be sent in this order; the bytes of tensors are not copied.

    Raises:
        WireError: the header uses a reserved key or cannot be packed, or a tensor's bytes do not fit its shape.
    """
    check(message)
    entries = [[tensor.dtype, list(tensor.shape)] for tensor in message.tensors]
    data = [tensor.data.cast("B") for tensor in message.tensors if tensor.data.nbytes]
    return [pack({**message.header, "tensors": entries}), *data]


def check(message: Message) -> None:
    """Check that a message can be sent.

    Raises:
        WireError: the header uses a reserved key, or a tensor's bytes do not fit its shape.
    """
    for key in RESERVED:
        if key in message.header:
            raise WireError(f"the header key {key!r} is reserved for the transport: use another name")
    for index, tensor in enumerate(message.tensors):
        if tensor.data.nbytes != (expected := count_bytes(tensor.dtype, tensor.shape, index)):
            raise WireError(
                f"tensor {index} is {tensor.dtype} {list(tensor.shape)} of {expected} bytes, but has "
                f"{tensor.data.nbytes}"
            )


def pack(header: Mapping[str, object]) -> bytes:
    """Return the start of a frame: everything except the bytes of its tensors.

    Raises:
        WireError: the header contains a value that msgpack cannot encode.
    """
    try:
        packed: bytes = msgpack.packb(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a header takes text, numbers, bytes, lists and maps: {error}") from None
    return _START.pack(MAGIC, len(packed)) + packed


class Parser:
    """An incremental parser of frames, which writes the bytes of tensors to their destinations.

    Args:
        limits: limits on the message.
        find_destinations: called with the header and the specs of the tensors; returns a buffer for each tensor, or
            None for new memory.

    Attributes:
        header: None until it is complete; with the keys "tensors" and "shared" (if any).
        specs: the tensors that the header lists.
        head: the bytes of the frame before the tensors.
        tensors: the complete tensors.
        total: the size of the whole frame in bytes, set with the header.
    """

    def __init__(self, limits: Limits, find_destinations: FindDestinations | None = None) -> None:
        self.limits = limits
        self.header: dict[str, Any] | None = None
        self.specs: list[Spec] = []
        self.head = bytearray()
        self.tensors: list[Tensor] = []
        self.total = 0
        self._find_destinations = find_destinations
        self._buffers: list[memoryview] = []
        self._filled = 0  # received bytes of the current tensor

    def feed(self, data: bytes | memoryview) -> None:
        """Parse the next bytes.

        Raises:
            WireError: they are not a valid frame, or exceed the limits. The parser cannot be used afterwards.
        """
        rest = memoryview(data).cast("B")
        if self.header is None:
            rest = self._feed_head(rest)
        while rest:
            rest = self._feed_tensor(rest)

    def finish(self) -> Message:
        """Return the message after the last bytes.

        It has no tensors in shared memory: the caller, which has that memory, adds them.

        Raises:
            WireError: the frame is incomplete.
        """
        if self.header is None:
            raise WireError(f"the frame ends after {len(self.head)} bytes, before the end of its header")
        missing = len(self._buffers) - len(self.tensors)
        if missing:
            index, expected = len(self.tensors), self.specs[len(self.tensors)].nbytes
            raise WireError(f"the frame ends after {self._filled} of the {expected} bytes of tensor {index}")
        return Message({key: value for key, value in self.header.items() if key not in RESERVED}, self.tensors)

    def _feed_head(self, data: memoryview) -> memoryview:
        data = self._fill_head(_START.size, data)
        if len(self.head) < _START.size:
            return data
        magic, length = _START.unpack_from(self.head)
        _check_start(magic, length, self.limits)
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
            targets = self._find_destinations(header, self.specs) if self._find_destinations is not None else ()
            self._buffers = destinations(self.specs, targets)
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


def _check_start(magic: bytes, length: int, limits: Limits) -> None:
    if magic != MAGIC:
        raise WireError(f"a frame begins with {MAGIC!r}, and this begins with {bytes(magic)!r}")
    check_size(length, limits.header, "the header", "header")


def decode(
    frame: Iterable[bytes | memoryview], limits: Limits | None = None, find_destinations: FindDestinations | None = None
) -> Message:
    """Decode a complete frame.

    Raises:
        WireError: as in `Parser`.
    """
    parser = Parser(limits or Limits(), find_destinations)
    for part in frame:
        parser.feed(part)
    return parser.finish()


def view(frame: memoryview, limits: Limits | None = None) -> Message:
    """Decode a complete frame without copying its tensors, which are views of it.

    Raises:
        WireError: as in `Parser`.
    """
    limits = limits or Limits()
    magic, length = _START.unpack_from(frame) if len(frame) >= _START.size else (bytes(frame), 0)
    _check_start(magic, length, limits)
    end = _START.size + length
    header = unpack(frame[_START.size : end], limits.bounds)
    specs = read_specs(header, False, limits)
    if (total := end + sum(spec.nbytes for spec in specs)) != len(frame):
        raise WireError(f"a frame of {len(frame)} bytes, expected {total}")
    tensors = []
    for spec in specs:
        tensors.append(Tensor(spec.dtype, spec.shape, frame[end : end + spec.nbytes]))
        end += spec.nbytes
    return Message({key: value for key, value in header.items() if key not in RESERVED}, tensors)


def destinations(specs: Sequence[Spec], targets: Sequence[memoryview | None]) -> list[memoryview]:
    """Return the buffer for each tensor: its target, or new memory.

    Raises:
        WireError: the numbers of targets and tensors differ, or a target is read-only, not contiguous or of the wrong
            size.
    """
    if not targets:
        return [allocate(spec.nbytes) for spec in specs]
    if len(targets) != len(specs):
        raise WireError(f"the message has {len(specs)} tensors, but there are {len(targets)} targets")
    return [
        allocate(spec.nbytes) if target is None else _destination(index, spec, target)
        for index, (spec, target) in enumerate(zip(specs, targets, strict=True))
    ]


def _destination(index: int, spec: Spec, target: memoryview) -> memoryview:
    if target.readonly or not target.c_contiguous or target.nbytes != spec.nbytes:
        layout = "" if target.c_contiguous else ", not contiguous"
        state = "read-only" if target.readonly else f"{target.nbytes} bytes{layout}"
        raise WireError(
            f"tensor {index} is {spec.dtype} {list(spec.shape)} of {spec.nbytes} bytes; its destination is {state}"
        )
    # A memoryview with a 0 in its shape cannot be cast.
    return target.cast("B") if target.nbytes else memoryview(bytearray())
