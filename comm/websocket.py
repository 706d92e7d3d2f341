"""WebSocket frames (RFC 6455) for streams: unfragmented binary messages, pings and the close. This module does no I/O.

aiohttp performs the handshake. Its reader passes each message through a queue to a task; with it, a small call took 90
to 100 microseconds of processor time on each side, without it 75. Therefore the protocol parses frames itself.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import NamedTuple

import numpy as np

from flowmx.comm.errors import TooLarge, WireError

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "FrameHead", "accept_key", "frame_head", "read_head", "unmask"]

BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
NO_MASK = bytes(4)
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_CONTROL = 125
"""Maximum size in bytes of a ping, a pong or a close frame."""


class FrameHead(NamedTuple):
    """The head of a frame: its opcode, the bytes of its payload, the payload's mask, and the bytes of the head."""

    opcode: int
    length: int
    mask: bytes
    size: int


def accept_key(key: str) -> str:
    """Return the Sec-WebSocket-Accept value for a Sec-WebSocket-Key."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID).digest()).decode()


def frame_head(opcode: int, length: int, *, masked: bool) -> bytes:
    """Return the head of a frame; a client's mask is zero, so that the payload follows unchanged."""
    bit = masked << 7
    if length < 126:
        head = bytes((0x80 | opcode, bit | length))
    elif length < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, bit | 126, length)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, bit | 127, length)
    return head + NO_MASK if masked else head


def read_head(data: memoryview, *, masked: bool, max_length: int) -> FrameHead | None:
    """Parse the head of a frame; return None if more bytes are needed.

    Args:
        data: the received bytes, from the start of the frame.
        masked: whether the frame must have a mask: a client's must, a service's must not.
        max_length: maximum size of the payload in bytes.

    Raises:
        WireError: the head is invalid, or of a kind that streams do not use.
        TooLarge: the payload is too long.
    """
    if len(data) < 2:
        return None
    opcode, length = data[0] & 0x0F, data[1] & 0x7F
    if data[0] & 0xF0 != 0x80 or opcode not in (BINARY, CLOSE, PING, PONG):
        raise WireError(
            f"a stream takes unfragmented binary WebSocket messages, and this frame begins with {data[0]:#04x}"
        )
    if bool(data[1] & 0x80) is not masked:
        raise WireError(f"a frame of {'a client has a' if masked else 'a service has no'} mask")
    if length > _MAX_CONTROL and opcode != BINARY:
        raise WireError(f"a ping, pong or close has at most {_MAX_CONTROL} bytes")
    wide = {126: 2, 127: 8}.get(length, 0)
    size = 2 + wide + 4 * masked
    if len(data) < size:
        return None
    if wide:
        length = int.from_bytes(data[2 : 2 + wide], "big")
    if length > max_length:
        raise TooLarge(f"a message of a stream has at most {max_length} bytes, and this one has {length}")
    return FrameHead(opcode, length, bytes(data[size - 4 : size]) if masked else NO_MASK, size)


def unmask(payload: memoryview, mask: bytes) -> memoryview:
    """Return a payload without its mask."""
    if mask == NO_MASK or not payload:
        return payload
    plain = np.frombuffer(payload, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), len(payload))
    return plain.data
