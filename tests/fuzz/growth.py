"""A fuzzer for time: each parser must read or refuse large inputs of its grammar in linear time.

``python -m tests.fuzz.growth PARSER [seconds] [seed]`` runs it by itself, for one of `PARSERS`.

A grower makes an input of about a given size that has one feature in excess: depth, many keys, one key many times, long
numbers, long names, many dimensions. Random inputs put several of them into one another.
"""

import contextlib
import hashlib
import io
import json
import math
import random
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

import flowmx as mx
from flowmx.checkpoint import files as checkpoints
from flowmx.comm import request_head, websocket
from flowmx.comm.errors import CommError
from flowmx.comm.frames import Parser as FrameParser
from flowmx.comm.limits import DEFAULT
from flowmx.data import image_lists
from flowmx.data.records.index import read_index
from flowmx.optimizer import mxnet_states
from flowmx.serialization import gguf, params, safetensors, torch
from flowmx.serve import formats as bodies
from flowmx.serve.open_inference import Inference
from tests.fuzz.formats import INPUTS, in_file, records_of

__all__ = ["PARSERS", "Finding", "Parser", "check", "fuzz", "random_input"]

SECONDS_PER_MB = 1.0
"""The most processor time that an input may take, by its size."""
SLACK = 0.1
"""Seconds of processor time that any input may take."""

_TRIES = 3
_LOOP = 500_000, 0.025
"""Additions in a loop, and the seconds that they took on the machine for which the limits were chosen."""

Grower = Callable[[int], bytes]
Refusals = tuple[type[Exception], ...]


class Parser(NamedTuple):
    """A parser of untrusted requests or files.

    Attributes:
        read: reads one input.
        growers: makers of inputs of about a size in bytes, by the feature that they have in excess.
        refusals: the exceptions that refuse an input.
    """

    read: Callable[[bytes], object]
    growers: dict[str, Grower]
    refusals: Refusals


class Finding(AssertionError):
    """An input takes more time than its size allows."""


def slowness() -> float:
    """Return how many times slower this processor is now than the one for which the limits were chosen; at least 1."""
    count, expected = _LOOP
    start, total = time.process_time(), 0
    for number in range(count):
        total += number
    return max(1.0, (time.process_time() - start) / expected)


def check(name: str, feature: str, data: bytes, read: Callable[[bytes], object], refusals: Refusals) -> float:
    """Read an input, and return the processor time in seconds.

    Other programs slow a processor down for moments, so a time above the limit is measured again: the least counts.

    Raises:
        Finding: it took too long each time.
    """
    least, limit, slow = math.inf, SLACK + SECONDS_PER_MB * len(data) / 1e6, 1.0
    for _ in range(_TRIES):
        start = time.process_time()
        with contextlib.suppress(*refusals):
            read(data)
        least = min(least, time.process_time() - start)
        if least <= limit:
            return least
        slow = max(slow, slowness())
        allowed = limit * slow
        if least <= allowed:
            return least
    raise Finding(f"{name}, {feature}: {len(data)} bytes took {least:.2f} s, allowed {allowed:.2f}: {data[:80]!r}")


# -- JSON ----------------------------------------------------------------------------------------------


def _times(piece: bytes, size: int, start: bytes = b"", end: bytes = b"") -> bytes:
    return start + piece * (size // len(piece)) + end


def _joined(pieces: Callable[[int], str], size: int) -> bytes:
    """Return numbered pieces, joined with commas, of at least this size in bytes."""
    parts, length, at = [], 0, 0
    while length < size:
        parts.append(pieces(at))
        length, at = length + len(parts[-1]) + 1, at + 1
    return ",".join(parts).encode()


JSON_VALUES: dict[str, Grower] = {
    "depth": lambda n: b"[" * (n // 2) + b"]" * (n // 2),
    "depth of objects": lambda n: b'{"a":' * (n // 6) + b"1" + b"}" * (n // 6),
    "open brackets": lambda n: b"[" * n,
    "brackets in text": lambda n: b'"' + b"[" * n + b'"',
    "quotes": lambda n: _times(b'\\"', n, b'"', b'"'),
    "backslashes": lambda n: _times(b"\\\\", n, b'"', b'"'),
    "escapes": lambda n: _times(b"\\ud800", n, b'"', b'"'),
    "long text": lambda n: b'"' + b"x" * n + b'"',
    "a long number": lambda n: b"9" * n,
    "long numbers": lambda n: b"[" + _joined(lambda _: "9" * 4000, n) + b"]",
    "a long fraction": lambda n: b"0." + b"1" * n,
    "a long exponent": lambda n: b"1e" + b"9" * n,
    "many numbers": lambda n: b"[" + _joined(lambda at: str(at), n) + b"]",
    "many fractions": lambda n: b"[" + _joined(lambda at: f"{at}.123456789e-5", n) + b"]",
    "many lists": lambda n: b"[" + _joined(lambda _: "[]", n) + b"]",
    "rows": lambda n: b"[" + _joined(lambda _: "[1,2,3]", n) + b"]",
    "ragged rows": lambda n: b"[" + _joined(lambda at: str([0] * (at % 7)), n) + b"]",
    "many keys": lambda n: b"{" + _joined(lambda at: f'"k{at}":1', n) + b"}",
    "one key": lambda n: b"{" + _joined(lambda _: '"k":1', n) + b"}",
    "long keys": lambda n: b"{" + _joined(lambda at: f'"{"k" * 1000}{at}":1', n) + b"}",
    "spaces": lambda n: b" " * n + b"1",
    "sizes": lambda n: b"[" + _joined(lambda _: str(2**63 - 1), n) + b"]",
    "constants": lambda n: b"[" + _joined(lambda _: "NaN", n) + b"]",
}
"""JSON values with something in excess."""


def _json_in(*frames: bytes) -> dict[str, Grower]:
    """Return growers that insert each excessive value into each frame at ``@``."""

    def grow(frame: bytes, value: Grower) -> Grower:
        return lambda n: frame.replace(b"@", value(n))

    return {
        f"{name} in {frame.decode()[:60]}": grow(frame, value)
        for frame in frames
        for name, value in JSON_VALUES.items()
    }


def _serve_json() -> Parser:
    read = bodies.FORMATS["application/json"].read
    return Parser(lambda data: INPUTS.read(read(data)), _json_in(b"@", b'{"inputs":@}', b'{"inputs":{"data":@}}'), _ANY)


def _inference() -> Parser:
    tensor = b'{"name":"data","datatype":"FP32","shape":[1,3],"data":[1,2,3]}'
    growers = _json_in(
        b'{"inputs":[{"name":"data","datatype":"FP32","shape":@,"data":[1]}]}',
        b'{"inputs":[{"name":"data","datatype":"FP32","shape":[1,3],"data":@}]}',
        b'{"inputs":[{"name":@,"datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}',
        b'{"inputs":[{"name":"data","datatype":@,"shape":[1,3],"data":[1,2,3]}]}',
        b'{"inputs":@}',
        b'{"inputs":[' + tensor + b'],"outputs":@}',
        b'{"inputs":[' + tensor + b'],"parameters":@}',
        b'{"inputs":[' + tensor + b'],"id":@}',
    )
    growers["many tensors"] = lambda n: (
        b'{"inputs":[' + _joined(lambda at: f'{{"name":"t{at}","datatype":"FP32","shape":[1],"data":[1]}}', n) + b"]}"
    )
    growers["many outputs"] = lambda n: (
        b'{"inputs":[' + tensor + b'],"outputs":[' + _joined(lambda at: f'{{"name":"t{at}"}}', n) + b"]}"
    )
    return Parser(lambda data: INPUTS.read(Inference("m", "1").read(data)), growers, _ANY)


def _symbol() -> Parser:
    def graph(node: Callable[[int], str], heads: str = "[[0,0,0]]") -> Grower:
        def grow(n: int) -> bytes:
            nodes = _joined(node, n)
            return b'{"nodes":[' + nodes + b'],"arg_nodes":[0],"heads":' + heads.encode() + b"}"

        return grow

    def variable(at: int) -> str:
        return f'{{"op":"null","name":"v{at}","inputs":[]}}'

    def chained(op: str, attrs: str = "{}") -> Callable[[int], str]:
        return lambda at: (
            variable(0) if not at else f'{{"op":"{op}","name":"n{at}","attrs":{attrs},"inputs":[[{at - 1},0,0]]}}'
        )

    def doubled(at: int) -> str:
        pair = f"[[{at - 1},0,0],[{at - 1},0,0]]"
        return variable(0) if not at else f'{{"op":"elemwise_add","name":"n{at}","inputs":{pair}}}'

    def one(attrs: str) -> bytes:
        node = f'{{"op":"Reshape","name":"r","attrs":{attrs},"inputs":[[0,0,0]]}}'
        return b'{"nodes":[' + f"{variable(0)},{node}".encode() + b'],"arg_nodes":[0],"heads":[[1,0,0]]}'

    def concat(count: int, attrs: str, inputs: str) -> bytes:
        attrs = attrs[:-1] + ("," if len(attrs) > 2 else "") + f'"num_args":"{count}"' + "}"
        node = f'{{"op":"Concat","name":"c","attrs":{attrs},"inputs":{inputs}}}'
        return b'{"nodes":[' + f"{variable(0)},{node}".encode() + b'],"arg_nodes":[0],"heads":[[1,0,0]]}'

    def read(data: bytes) -> object:
        symbol = mx.sym.load_json(data.decode())
        return symbol.list_arguments(), symbol.tojson()

    growers = {
        **_json_in(b"@", b'{"nodes":@}',
                   b'{"nodes":[{"op":"null","name":"a","inputs":@}],"arg_nodes":[0],"heads":[[0,0,0]]}',
                   b'{"nodes":[{"op":"null","name":"a","attrs":@,"inputs":[]}],"arg_nodes":[0],"heads":[[0,0,0]]}',
                   b'{"nodes":[{"op":"null","name":@,"inputs":[]}],"arg_nodes":[0],"heads":[[0,0,0]]}',
                   b'{"nodes":[{"op":"null","name":"a","inputs":[]}],"arg_nodes":[0],"heads":@}',
                   b'{"nodes":[{"op":"null","name":"a","inputs":[]}],"arg_nodes":@,"heads":[[0,0,0]]}'),
        "many variables": graph(variable),
        "one name": graph(lambda at: variable(0)),
        "a chain": graph(chained("relu")),
        "sums of the same": graph(doubled),
        "unknown operators": graph(chained("Nothing")),
        "a chain backwards": graph(lambda at: f'{{"op":"relu","name":"n{at}","inputs":[[{at + 1},0,0]]}}'),
        "many arguments of an old version": lambda n: concat(n // 2, "{}", "[]"),
        "attributes of arguments": lambda n: concat(
            n // 20, "{" + _joined(lambda at: f'"arg{at}_lr_mult":"1"', n).decode() + "}", "[]"
        ),
        "attributes of an input": lambda n: concat(
            1, "{" + _joined(lambda at: f'"arg0_{"x" * (at % 50)}{at}_lr_mult":"1"', n).decode() + "}", "[[0,0,0]]"
        ),
        "attributes of new variables": lambda n: concat(
            n // 60, "{" + _joined(lambda at: f'"attribute{at}":"1"', n).decode() + "}", "[]"
        ),
        "attributes of read arguments": lambda n: concat(
            n // 30, "{" + _joined(lambda at: f'"arg{at}_lr_mult":"1"', n // 2).decode() + "}",
            "[" + _joined(lambda at: "[0,0,0]", n // 30 * 8).decode() + "]",
        ),
        "a huge number of outputs": lambda n: one(
            '{"num_outputs":"999999999","axis":"0"}').replace(b"Reshape", b"SliceChannel"),
        "a huge number of arguments": lambda n: concat(10**9, "{" + f'"x":"{"1" * n}"' + "}", "[]"),
        "long operators": lambda n: graph(lambda at: f'{{"op":"{"Relu" * 1000}","name":"n{at}","inputs":[]}}')(n),
        "unknown parameters": lambda n: one("{" + _joined(lambda at: f'"shap{at}":"1"', n).decode() + "}"),
        "long shapes": lambda n: one('{"shape":"(' + "1," * (n // 2) + ')"}'),
        "long sizes": lambda n: one('{"shape":"(' + "9" * n + ',)"}'),
        "deep attributes": lambda n: one('{"shape":"' + "(" * n + '"}'),
        "minus signs": lambda n: one('{"shape":"' + "-" * n + '1"}'),
        "many hidden attributes": lambda n: one("{" + _joined(lambda at: f'"__a{at}__":"1"', n).decode() + "}"),
        "many heads": lambda n: graph(variable, "[" + _joined(lambda _: "[0,0,0]", n).decode() + "]")(100),
    }  # fmt: skip
    return Parser(read, growers, (*_ANY, RecursionError))


def _safetensors() -> Parser:
    def framed(grow: Grower) -> Grower:
        def made(n: int) -> bytes:
            head = grow(n)
            return struct.pack("<Q", len(head)) + head

        return made

    frames = (
        b"@", b'{"w":@}', b'{"__metadata__":@}', b'{"w":{"dtype":"F32","shape":@,"data_offsets":[0,4]}}',
        b'{"w":{"dtype":@,"shape":[1],"data_offsets":[0,4]}}', b'{"w":{"dtype":"F32","shape":[1],"data_offsets":@}}',
    )  # fmt: skip
    growers = {name: framed(grow) for name, grow in _json_in(*frames).items()}
    entry = '"w{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    growers["many arrays"] = framed(lambda n: b"{" + _joined(entry.format, n) + b"}")
    return Parser(safetensors.loads, growers, _ANY)


def _gguf() -> Parser:
    def entries(count: int, *pieces: bytes) -> bytes:
        return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + b"".join(pieces)

    def one(kind: int, content: bytes) -> bytes:
        return entries(1, struct.pack("<QcI", 1, b"k", kind), content)

    def tensors(n: int, *, offset: int) -> bytes:
        count = n // 60
        infos = (struct.pack("<Q8sIQIQ", 8, b"%08d" % at, 1, 1, 0, offset * at) for at in range(count))
        return b"GGUF" + struct.pack("<IQQ", 3, count, 0) + b"".join(infos) + bytes(32 * count)

    growers: dict[str, Grower] = {
        "many entries": lambda n: entries(
            n // 21, *(struct.pack("<Q8sIB", 8, b"%08d" % at, 0, 7) for at in range(n // 21))
        ),
        "one name": lambda n: entries(n // 14, struct.pack("<QcIB", 1, b"k", 0, 7) * (n // 14)),
        "a long name": lambda n: entries(1, struct.pack("<Q", n), b"k" * n),
        "a long text": lambda n: one(8, struct.pack("<Q", n) + b"x" * n),
        "no UTF-8": lambda n: one(8, struct.pack("<Q", n) + b"\xff" * n),
        "empty texts": lambda n: one(9, struct.pack("<IQ", 8, n // 8) + bytes(n)),
        "short texts": lambda n: one(9, struct.pack("<IQ", 8, n // 10) + struct.pack("<Q2s", 2, b"ab") * (n // 10)),
        "numbers": lambda n: one(9, struct.pack("<IQ", 7, n) + b"\7" * n),
        "depth": lambda n: one(9, struct.pack("<IQ", 9, 1) * (n // 12)),
        "many arrays": lambda n: one(9, struct.pack("<IQ", 9, n // 12) + struct.pack("<IQ", 0, 0) * (n // 12)),
        "many tensors": lambda n: tensors(n, offset=32),
        "tensors at one place": lambda n: tensors(n, offset=0),
    }
    return Parser(gguf.loads, growers, _ANY)


# -- msgpack -------------------------------------------------------------------------------------------


def _map(count: int, pairs: bytes) -> bytes:
    return b"\xdf" + struct.pack(">I", count) + pairs


def _list(count: int, items: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + items


def _text(text: str) -> bytes:
    packed: bytes = msgpack.packb(text)
    return packed


MSGPACK_VALUES: dict[str, Grower] = {
    "depth": lambda n: b"\x91" * n + b"\xc0",
    "depth of maps": lambda n: b"\x81\xa1a" * (n // 3) + b"\xc0",
    "many numbers": lambda n: _list(n, b"\x01" * n),
    "many large numbers": lambda n: _list(n // 9, (b"\xcf" + b"\x7f" * 8) * (n // 9)),
    "many lists": lambda n: _list(n, b"\x90" * n),
    "one key": lambda n: _map(n // 3, b"\xa1k\x01" * (n // 3)),
    "many keys": lambda n: _map(n // 7, b"".join(_text(f"{at:05x}") + b"\x01" for at in range(n // 7))),
    "a key twice": lambda n: _map(
        n // 7 + 1,
        b"".join(_text(f"{at:05x}") + b"\x01" for at in range(n // 7)) + _text(f"{n // 7 - 1:05x}") + b"\x01",
    ),
    "long text": lambda n: _text("x" * n),
    "bytes": lambda n: msgpack.packb(b"x" * n),
    "many texts": lambda n: _list(n // 2, b"\xa1a" * (n // 2)),
    "extensions": lambda n: _list(n // 3, b"\xd4\x05a" * (n // 3)),
    "claims": lambda n: b"\xdd\xff\xff\xff\xff" * (n // 5),
    "sizes": lambda n: _list(n // 9, (b"\xcf" + b"\x7f" + b"\xff" * 7) * (n // 9)),
    "keys of one hash": lambda n: _map(
        n // 10, b"".join(b"\xcf" + struct.pack(">Q", at % 7 * (2**61 - 1)) + b"\x01" for at in range(n // 10))
    ),
    "mixed widths": lambda n: _list(n // 6 * 3, b"\x01\xcc\x02\xcd\x01\x02" * (n // 6)),
}
"""msgpack's values with something in excess."""


def _packed_in(*frames: bytes) -> dict[str, Grower]:
    def grow(frame: bytes, value: Grower) -> Grower:
        return lambda n: frame.replace(b"@@@@", value(n))

    return {
        f"{name} in {frame!r:.60}": grow(frame, value) for frame in frames for name, value in MSGPACK_VALUES.items()
    }


def _serve_msgpack() -> Parser:
    read = bodies.FORMATS["application/msgpack"].read
    array = b"\x83\xa5shape@@@@\xa5dtype\xa7float32\xa4data\xc4\x00"
    growers = _packed_in(
        b"@@@@", b"\x81\xa6inputs@@@@", array, array.replace(b"@@@@", b"\x91\x00").replace(b"\xc4\x00", b"@@@@")
    )
    return Parser(lambda data: INPUTS.read(read(data)), growers, _ANY)


def _frames() -> Parser:
    def framed(grow: Grower) -> Grower:
        def made(n: int) -> bytes:
            head = grow(n)
            return b"FMX1" + struct.pack("<I", len(head)) + head

        return made

    def read(data: bytes) -> object:
        parser = FrameParser(DEFAULT)
        for at in range(0, len(data), 1 << 14):
            parser.feed(memoryview(data)[at : at + (1 << 14)])
        return parser.finish()

    frames = (
        b"@@@@", b"\x81\xa7tensors@@@@", b"\x82\xa1a@@@@\xa7tensors\x90", b"\x81\xa7tensors\x91\x92\xa7float32@@@@",
        b"\x81\xa7tensors\x91\x92@@@@\x91\x01", b"\x82\xa6shared@@@@\xa7tensors\x90",
    )  # fmt: skip
    growers = {name: framed(grow) for name, grow in _packed_in(*frames).items()}
    tensor = b"\x92\xa5uint8\x91\x00"
    growers["many tensors"] = framed(
        lambda n: b"\x81\xa7tensors" + _list(n // len(tensor), tensor * (n // len(tensor)))
    )
    return Parser(read, growers, _ANY)


def _checkpoint() -> Parser:
    def framed(grow: Grower) -> Grower:
        def made(n: int) -> bytes:
            head = grow(n)
            data = struct.pack("<8sIQ", b"FLOWMXCP", 2, len(head)) + head
            return data + hashlib.blake2b(data, digest_size=16).digest()

        return made

    start = b"\x85\xa5place\x92\x00\x00\xa7workers\x01\xa6arrays\x90\xa5blobs\x90\xa7content"
    arrays = b"\x85\xa5place\x92\x00\x00\xa7workers\x01\xa7content\x80\xa5blobs\x90\xa6arrays@@@@"
    shape = arrays.replace(b"@@@@", b"\x91\x94\xa1w\xa7float32@@@@\xc4\x10" + bytes(16))
    growers = {
        name: framed(grow)
        for name, grow in _packed_in(b"@@@@", start + b"@@@@", start + b"\x81\xa1a@@@@", arrays, shape).items()
    }
    return Parser(checkpoints.loads, growers, _ANY)


# -- files ---------------------------------------------------------------------------------------------


def _npy() -> Parser:
    read = bodies.FORMATS["application/x-npy"].read

    def framed(shape: Callable[[int], str], version: int = 2) -> Grower:
        def made(n: int) -> bytes:
            head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape(n)}, }}\n".encode()
            return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I" if version > 1 else "<H", len(head)) + head

        return made

    growers = {
        "many sizes": framed(lambda n: "(" + "1," * (n // 2) + ")"),
        "a long size": framed(lambda n: f"({'9' * n},)"),
        "depth": framed(lambda n: "(" * n),
        "within the header's bound": framed(lambda n: "(" + "9223372036854775807," * 190 + ")", version=1),
        "minus signs": framed(lambda n: "-" * min(n, 3800) + "1"),
        "a long body": lambda n: framed(lambda _: f"({n // 4},)", version=1)(n) + bytes(n // 4 * 4),
    }
    return Parser(lambda data: INPUTS.read(read(data)), growers, _ANY)


def _params() -> Parser:
    def listed(count: int, array: bytes, names: bytes = b"") -> bytes:
        return struct.pack("<QQQ", 0x112, 0, count) + array * count + (names or struct.pack("<Q", 0))

    empty = struct.pack("<Iiiqiiqi", 0xF993FAC9, 0, 1, 0, 1, 0, 0, 0)
    scalar = struct.pack("<Iiiqiii4s", 0xF993FAC9, 0, 1, 1, 1, 0, 0, b"abcd")

    def named(n: int, name: bytes) -> bytes:
        count = n // (len(name) + 8 + len(scalar))
        names = struct.pack("<Q", count) + (struct.pack("<Q", len(name)) + name) * count
        return listed(count, scalar, names)

    growers = {
        "many empty arrays": lambda n: listed(n // len(empty), empty),
        "many arrays": lambda n: listed(n // len(scalar), scalar),
        "one name": lambda n: named(n, b"arg:w"),
        "long names": lambda n: named(n, b"w" * 1000),
        "many dimensions": lambda n: listed(
            1, struct.pack("<Iii", 0xF993FAC9, 0, n // 8) + struct.pack("<q", 1) * (n // 8)
        ),
        "magic numbers": lambda n: struct.pack("<Q", 0x112) * (n // 8),
        "zeros": lambda n: struct.pack("<QQQ", 0x112, 0, n) + bytes(n),
    }
    return Parser(lambda data: params.loads(data, densify_limit=1 << 16), growers, _ANY)


def _records() -> Parser:
    magic = struct.pack("<I", 0xCED7230A)
    growers = {
        "empty records": lambda n: (magic + bytes(4)) * (n // 8),
        "magic numbers": lambda n: magic * (n // 4),
        "parts": lambda n: (magic + struct.pack("<I", 1 << 29)) + (magic + struct.pack("<I", 2 << 29)) * (n // 8),
        "one record": lambda n: magic + struct.pack("<I", n // 4 * 4) + magic * (n // 4),
        "many labels": lambda n: magic + struct.pack("<II", n // 4 * 4 + 24, n // 4) + bytes(20 + n // 4 * 4),
    }
    return Parser(lambda data: in_file(data, records_of), growers, _ANY)


def _index() -> Parser:
    growers = {
        "many lines": lambda n: b"1\t2\n" * (n // 4),
        "a long number": lambda n: b"9" * n + b"\t1\n",
        "a long offset": lambda n: b"1\t" + b"9" * n,
        "tabs": lambda n: b"\t" * n,
        "numbers of the longest kind": lambda n: (b"9" * 4000 + b"\t1\n") * (n // 4003),
        "blank lines": lambda n: b"\n" * n,
    }
    return Parser(lambda data: in_file(data, read_index), growers, _ANY)


def _lists() -> Parser:
    growers = {
        "many lines": lambda n: b"1\t2\tp\n" * (n // 6),
        "many labels": lambda n: b"1\t" + b"2\t" * (n // 2) + b"p\n",
        "bad lines": lambda n: b"x\n" * (n // 2),
        "a long line": lambda n: b"x" * n,
        "a long number": lambda n: b"9" * n + b"\t1\tp\n",
    }
    return Parser(lambda data: in_file(data, lambda path: list(image_lists.read(path))), growers, _ANY)


def _libsvm() -> Parser:
    def read(path: str) -> object:
        return mx.io.LibSVMIter(path, (10,), batch_size=1)

    growers = {
        "many lines": lambda n: b"1 1:2\n" * (n // 6),
        "many pairs": lambda n: b"1" + b" 1:2" * (n // 4),
        "colons": lambda n: b"1 " + b":" * n,
        "a long index": lambda n: b"1 " + b"9" * n + b":1",
        "comments": lambda n: b"#" * n,
        "long numbers": lambda n: (b"1 1:" + b"9" * 3000 + b"\n") * (n // 3005),
    }
    return Parser(lambda data: in_file(data, read), growers, _ANY)


def _csv() -> Parser:
    growers = {
        "many lines": lambda n: b"1,2\n" * (n // 4),
        "many columns": lambda n: b"1," * (n // 2),
        "a long number": lambda n: b"1" * n + b",2\n",
        "commas": lambda n: b"," * n,
        "quotes": lambda n: b'"' * n,
    }
    return Parser(lambda data: in_file(data, lambda path: mx.io.CSVIter(path, (2,))), growers, _ANY)


def _torch() -> Parser:
    def zipped(pickled: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("m/data.pkl", pickled)
            archive.writestr("m/data/0", b"\0" * 16)
        return file.getvalue()

    def many_files(n: int) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for at in range(n // 120):
                archive.writestr(f"m/data/{at}", b"")
            archive.writestr("m/data.pkl", b"\x80\x02}.")
        return file.getvalue()

    storage = (
        b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
    )  # a persistent id  # fmt: skip
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n"
    growers: dict[str, Grower] = {
        "depth": lambda n: zipped(b"\x80\x02" + b"]" * n + b"a" * (n - 1) + b"."),
        "marks": lambda n: zipped(b"\x80\x02" + b"(" * n + b"."),
        "many numbers": lambda n: zipped(b"\x80\x02(" + b"K\x01" * (n // 2) + b"t."),
        "a long number": lambda n: zipped(b"\x80\x02\x8b" + struct.pack("<i", n) + b"\x7f" * n + b"."),
        "digits": lambda n: zipped(b"I" + b"9" * n + b"\n."),
        "digits of a long": lambda n: zipped(b"L" + b"9" * n + b"L\n."),
        "many dimensions": lambda n: zipped(
            b"\x80\x02" + tensor + storage + b"K\x00(" + b"K\x01" * (n // 2) + b"t(" + b"K\x01" * (n // 2) + b"ttR."
        ),
        "huge sizes": lambda n: zipped(
            b"\x80\x02" + tensor + storage + b"K\x00(\x8b" + struct.pack("<i", n) + b"\x7f" * n + b"t(K\x01tR."
        ),
        "many entries": lambda n: zipped(
            b"\x80\x02}(" + b"".join(f"X\x06\0\0\0{at:06d}N".encode() for at in range(n // 12)) + b"u."
        ),
        "memo": lambda n: zipped(b"\x80\x02}" + b"".join(b"r" + struct.pack("<I", at) for at in range(n // 5)) + b"."),
        "doubled lists": lambda n: zipped(b"\x80\x02]" + b"q\0h\0h\0\x86" * (n // 7) + b"."),
        "many files": many_files,
    }  # fmt: skip
    return Parser(torch.loads, growers, _ANY)


def _states() -> Parser:
    growers: dict[str, Grower] = {
        "depth": lambda n: b"\x80\x02" + b"]" * n + b"a" * (n - 1) + b".",
        "marks": lambda n: b"\x80\x02" + b"(" * n + b".",
        "marks and numbers": lambda n: b"\x80\x02" + b"(" * (n // 2) + b"K\x01" * (n // 4) + b"t" * 1000 + b".",
        "tuples of tuples": lambda n: b"\x80\x02" + b"(" * (n // 2) + b"t" * (n // 2) + b".",
        "a long number": lambda n: b"\x80\x02\x8b" + struct.pack("<i", n) + b"\x7f" * n + b".",
        "digits": lambda n: b"I" + b"9" * n + b"\n.",
        "digits of a long": lambda n: b"L" + b"9" * n + b"L\n.",
        "many entries": lambda n: b"\x80\x02}(" + b"".join(
            f"X\x06\0\0\0{at:06d}N".encode() for at in range(n // 12)) + b"u.",
        "memo": lambda n: b"\x80\x02}" + b"".join(b"r" + struct.pack("<I", at) for at in range(n // 5)) + b".",
        "keys of one hash": lambda n: b"\x80\x02}(" + b"".join(
            b"\x8a\x0c" + (at * (2**61 - 1)).to_bytes(12, "little") + b"N" for at in range(n // 15)) + b"u.",
        "doubled tuples": lambda n: b"\x80\x02)" + b"q\0h\0h\0\x86" * min(n // 7, 60) + b".",
        "names": lambda n: b"\x80\x02" + b"ca\nb\n" * (n // 5) + b".",
        "calls": lambda n: b"\x80\x02ca\nb\n" + b")R" * (n // 2) + b".",
        "append to itself": lambda n: b"\x80\x02]q\0" + b"h\0a" * (n // 3) + b".",
        "pops": lambda n: b"\x80\x02" + b"N0" * (n // 2) + b".",
        "opcodes": lambda n: b"\x80\x02" + b"N" * n + b".",
    }  # fmt: skip
    return Parser(mxnet_states.loads, growers, _ANY)


def _onnx() -> Parser:
    from onnx import TensorProto, helper

    def model(nodes: list[Any], initial: Sequence[Any] = (), inputs: int = 1) -> bytes:
        values = [helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, [1, 3]) for at in range(inputs)]
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", values, [out], initializer=initial)
        serialized: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
        return serialized

    def chain(count: int, kind: str) -> list[Any]:
        names = ["x0", *(f"n{at}" for at in range(count - 1)), "y"]
        return [helper.make_node(kind, [names[at]], [names[at + 1]]) for at in range(count)]

    def tensor(dims: list[int]) -> object:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, raw_data=b"")
        tensor.dims.extend(dims)
        return tensor

    add = helper.make_node("Add", ["x0", "w"], ["y"])

    growers = {
        "a chain": lambda n: model(chain(n // 30, "Relu")),
        "identities": lambda n: model(chain(n // 30, "Identity")),
        "unknown": lambda n: model(chain(n // 30, "Nothing")),
        "many dimensions": lambda n: model([add], [tensor([2**62] * (n // 9))]),
        "many sizes of one": lambda n: model([add], [tensor([1] * n)]),
        "many inputs": lambda n: model([helper.make_node("Relu", ["x0"], ["y"])], inputs=n // 30),
        "many constants": lambda n: model(
            [helper.make_node("Relu", ["x0"], ["y"])],
            [TensorProto(name=f"w{at}", data_type=1, dims=[1], raw_data=b"abcd") for at in range(n // 20)],
        ),
        "a long attribute": lambda n: model([helper.make_node("Transpose", ["x0"], ["y"], perm=list(range(n // 3)))]),
        "one name": lambda n: model([helper.make_node("Relu", ["x0"], ["y"])] * (n // 16)),
        "a sum of many": lambda n: model([helper.make_node("Sum", ["x0"] * (n // 4), ["y"])]),
    }
    return Parser(lambda data: in_file(data, mx.contrib.onnx.import_model), growers, _ANY)


# -- HTTP ----------------------------------------------------------------------------------------------


def _heads() -> Parser:
    growers = {
        "many headers": lambda n: b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * (n // 5) + b"\r\n",
        "a long path": lambda n: b"GET /" + b"a" * n + b" HTTP/1.1\r\n\r\n",
        "a long header": lambda n: b"GET / HTTP/1.1\r\na:" + b"b" * n + b"\r\n\r\n",
        "spaces": lambda n: b"GET / HTTP/1.1\r\na:" + b" " * n + b"\r\n\r\n",
        "lengths": lambda n: b"POST / HTTP/1.1\r\n" + b"content-length: 1\r\n" * (n // 19) + b"\r\n",
        "authorizations": lambda n: b"POST / HTTP/1.1\r\n" + b"authorization:\t\t\r\n" * (n // 18) + b"\r\n",
        "line ends": lambda n: b"\r\n" * (n // 2),
        "no end": lambda n: b"GET / HTTP/1.1\r\n" + b"a" * n,
        "method": lambda n: b"A" * n,
    }
    return Parser(lambda data: (request_head.classify(data), request_head.parse_head(data)), growers, ())


def _websocket() -> Parser:
    def read(data: bytes) -> object:
        rest, count = memoryview(data), 0
        while rest:
            head = websocket.read_head(rest, masked=True, max_length=1 << 20)
            if head is None or head.size + head.length > len(rest):
                return count
            websocket.unmask(rest[head.size : head.size + head.length], head.mask)
            rest, count = rest[head.size + head.length :], count + 1
        return count

    growers = {
        "empty messages": lambda n: b"\x82\x80abcd" * (n // 6),
        "pings": lambda n: b"\x89\x80abcd" * (n // 6),
        "one message": lambda n: b"\x82\xff" + struct.pack(">Q", n) + b"abcd" + bytes(n),
        "small messages": lambda n: b"\x82\x81abcde" * (n // 7),
    }
    return Parser(read, growers, _ANY)


_ANY = (ValueError, TypeError, mx.MXNetError, CommError, OverflowError, MemoryError)
"""A parser's other tests say which exception refuses what. Here only the time counts."""

PARSERS: dict[str, Callable[[], Parser]] = {
    "serve json": _serve_json,
    "serve msgpack": _serve_msgpack,
    "serve npy": _npy,
    "inference": _inference,
    "frames": _frames,
    "heads": _heads,
    "websocket": _websocket,
    "checkpoint": _checkpoint,
    "params": _params,
    "safetensors": _safetensors,
    "gguf": _gguf,
    "symbol": _symbol,
    "torch": _torch,
    "states": _states,
    "onnx": _onnx,
    "records": _records,
    "index": _index,
    "lists": _lists,
    "libsvm": _libsvm,
    "csv": _csv,
}


# -- random inputs -------------------------------------------------------------------------------------


def random_input(draw: random.Random, parser: Parser) -> tuple[str, bytes]:
    """Draw an input of 10 KB to 1 MB, at times with a part of it repeated or with another one inside."""
    feature = draw.choice(list(parser.growers))
    size = int(10 ** draw.uniform(4, 6))
    data = parser.growers[feature](size)
    match draw.randrange(4):
        case 0 if data:
            at = draw.randrange(len(data))
            piece = data[at : at + draw.choice([1, 4, 40])]
            data = (data[:at] + piece * (size // max(len(piece), 1)) + data[at:])[: 1 << 20]
        case 1:
            other, at = draw.choice(list(parser.growers.values()))(size // 2), draw.randrange(len(data) + 1)
            data = data[:at] + other + data[at:]
    return feature, data[: 1 << 20]


def _inputs(draw: random.Random, parser: Parser, seconds: float) -> Iterator[tuple[str, bytes]]:
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        yield random_input(draw, parser)


def fuzz(name: str, seconds: float, seed: int | None = None) -> dict[str, float]:
    """Fuzz one of `PARSERS` for time.

    Returns:
        The number of inputs, and the longest time in seconds per MB.

    Raises:
        Finding: an input took too long.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    draw, parser = random.Random(seed), PARSERS[name]()
    count, most = 0, 0.0
    for feature, data in _inputs(draw, parser, seconds):
        took = check(f"{name}, seed {seed}", feature, data, parser.read, parser.refusals)
        count, most = count + 1, max(most, took / max(len(data), 1 << 16) * 1e6)
    return {"inputs": count, "most_s_per_mb": most}


if __name__ == "__main__":
    chosen = int(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(fuzz(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0, chosen)))
