"""Frames of WebSocket (RFC 6455), as far as streams use them: whole binary messages, pings and the end. Pure.

aiohttp makes the handshake. Its reader hands each message through a queue to a task: with that a small call took 90 to
100 microseconds of each side's processor time, and without it 75. So the frames are read here, where they come in.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import NamedTuple

import numpy as np

from flowmx.comm.errors import TooLarge, WireError

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "Head", "accept", "frame_head", "read_head", "unmasked"]

BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
NO_MASK = bytes(4)
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTROL = 125
"""Most bytes of a ping, a pong or a close."""


class Head(NamedTuple):
    """The head of a frame: what it is, the bytes of its payload, the mask of those, and the head's own bytes."""

    opcode: int
    length: int
    mask: bytes
    size: int


def accept(key: str) -> str:
    """The value of Sec-WebSocket-Accept that answers a Sec-WebSocket-Key."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID).digest()).decode()


def frame_head(opcode: int, length: int, *, masked: bool) -> bytes:
    """The head of a frame whose payload follows as it is: a client's has a mask that changes nothing."""
    bit = masked << 7
    if length < 126:
        head = bytes((0x80 | opcode, bit | length))
    elif length < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, bit | 126, length)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, bit | 127, length)
    return head + NO_MASK if masked else head


def read_head(data: memoryview, *, masked: bool, most: int) -> Head | None:
    """Read the head of a frame; None where more bytes are needed for it.

    Args:
        data: from its first byte on.
        masked: whether it must have a mask: a client's must, a service's must not.
        most: bytes that its payload may have.

    Raises:
        WireError: it is none, or of a kind that streams have not.
    """
    if len(data) < 2:
        return None
    opcode, length = data[0] & 0x0F, data[1] & 0x7F
    if data[0] & 0xF0 != 0x80 or opcode not in (BINARY, CLOSE, PING, PONG):
        raise WireError(f"a stream takes whole binary messages of WebSocket, and this frame begins with {data[0]:#04x}")
    if bool(data[1] & 0x80) is not masked:
        raise WireError(f"a frame of {'a client has a' if masked else 'a service has no'} mask")
    if length > _CONTROL and opcode != BINARY:
        raise WireError(f"a ping, pong or close has at most {_CONTROL} bytes")
    wide = {126: 2, 127: 8}.get(length, 0)
    size = 2 + wide + 4 * masked
    if len(data) < size:
        return None
    if wide:
        length = int.from_bytes(data[2 : 2 + wide], "big")
    if length > most:
        raise TooLarge(f"a message of a stream has at most {most} bytes, and this has {length}")
    return Head(opcode, length, bytes(data[size - 4 : size]) if masked else NO_MASK, size)


def unmasked(payload: memoryview, mask: bytes) -> memoryview:
    """A payload without its mask."""
    if mask == NO_MASK or not payload:
        return payload
    found = np.frombuffer(payload, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), len(payload))
    return found.data
