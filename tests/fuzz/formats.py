"""A fuzzer of the formats that flowmx reads: damaged bodies and files are read, or raise the format's exception.

``python -m tests.fuzz.formats FORMAT [seconds] [seed]`` runs it by itself, for one of `FORMATS`.

Each input is read in a child process, which leaves it in a file first, so that an input that ends the process is known.
"""

import gc
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

import flowmx as mx
from flowmx.checkpoint import files as checkpoints
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.data.records.framing import RecordFormatError
from flowmx.serialization import gguf, params, safetensors
from flowmx.serialization.gguf import GGUFFormatError, GGUFTensor
from flowmx.serialization.params import ParamsFormatError
from flowmx.serialization.safetensors import SafetensorsFormatError
from flowmx.serialization.symbol_json import SymbolFormatError
from flowmx.serve import formats as bodies
from flowmx.serve.errors import InvalidInput
from flowmx.serve.inputs import Input, Inputs
from flowmx.serve.open_inference import Inference

__all__ = ["FAULTS", "FORMATS", "INPUTS", "Format", "damaged", "fuzz", "in_file", "records_of"]

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
HANG = 2.0
"""Seconds of the processor's time that one input may take."""
TIMES = 10
"""Limit of the memory that an input may take, in its own sizes and besides `SLACK`."""
SLACK = 8 << 20
"""Bytes that any input may take: scanning bounds how many lists, maps and nodes there may be."""
LEAK = 4 << 20
"""Bytes that Python and NumPy may hold at the end and did not in the steady state."""
STEADY = 0.2
NUMBERS = [
    0,
    1,
    2,
    3,
    17,
    33,
    65,
    127,
    128,
    255,
    1 << 16,
    1 << 28,
    (1 << 29) - 1,
    1 << 31,
    1 << 32,
    1 << 60,
    (1 << 63) - 1,
]
MOST = 1 << 18
"""Bytes of an input at most."""


class Format(NamedTuple):
    """A format to fuzz.

    Attributes:
        seeds: valid inputs.
        read: reads one input.
        refusals: the exceptions that a damaged input may raise.
        tokens: typical pieces of such inputs.
    """

    seeds: list[bytes]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    tokens: list[bytes]


# -- serve ---------------------------------------------------------------------------------------------

INPUTS = Inputs([Input("data", (3,))], max_rows=4)
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
JSON = [
    b"[",
    b"]",
    b"{",
    b"}",
    b"[],",
    b"{},",
    b'"a":',
    b",",
    b"1e999",
    b"-1",
    b"NaN",
    b"null",
    b'"',
    b"\\u0000",
    b"9" * 400,
]
MSGPACK = [
    b"\x90", b"\x80", b"\x91", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6",
    b"\xc9\0\0\0\1\2", b"\xd4\1\0", b"\xa1a", b"\xcf" + b"\xff" * 8, b"\xcb" + b"\x7f" * 8,
]  # fmt: skip
TENSOR = {"name": "data", "datatype": "FP32", "shape": [2, 3]}


def _body(name: str, tokens: list[bytes]) -> Format:
    form = bodies.FORMATS[f"application/{name}"]
    seeds = [
        bytes(form.write({"out": ARRAY})).replace(b"\xa7outputs", b"\xa6inputs").replace(b'"outputs"', b'"inputs"')
    ]
    return Format(seeds, lambda data: INPUTS.read(form.read(data)), (InvalidInput,), tokens)


def _inference() -> Format:
    text = json.dumps(
        {"id": "1", "inputs": [{**TENSOR, "data": ARRAY.tolist()}], "outputs": [{"name": "out"}]}
    ).encode()
    head = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": 24}}]}).encode()
    seeds = [struct.pack("<i", -1) + text, struct.pack("<i", len(head)) + head + ARRAY.tobytes()]

    def read(data: bytes) -> object:
        header = int.from_bytes(data[:4], "little", signed=True)
        return INPUTS.read(Inference("m", "1", header if header >= 0 else None).read(data[4:]))

    return Format(seeds, read, (InvalidInput,), [*JSON, b'"BYTES"', b'"INT64"', b'"binary_data_size"'])


# -- files ---------------------------------------------------------------------------------------------


def _checkpoint() -> Format:
    content = {"a": [1, 2.5, "x", None, True, (1, 2)], "b": {"c": np.arange(3), "d": b"1234"}}
    checkpoint = Checkpoint(Place(3, 5), {"w": ARRAY}, {"states": b"12345"}, content)
    seeds = [b"".join(bytes(part) for part in checkpoints.dumps(checkpoint))]

    def read(data: bytes) -> object:
        end = 20 + int.from_bytes(data[12:20], "little")  # damages the header, and updates its digest
        digest = hashlib.blake2b(data[:end], digest_size=16).digest()
        return checkpoints.loads(data[:end] + digest + data[end + 16 :])

    return Format(seeds, read, (CheckpointError,), [*MSGPACK, b"\xc7\xff\2", b"\x91", b"|O", b"<f4"])


def _params() -> Format:
    seeds = [
        params.dumps({"arg:w": ARRAY, "aux:m": np.arange(4)}),
        params.dumps([ARRAY.astype("f2")]),
        params.dumps([]),
    ]
    # A csr array of (2, 3) with one value: its kind and shapes, the types and shapes of its indices, and the values.
    csr = struct.pack("<QQQIiiqi2qiiiiiqiiq", 0x112, 0, 1, 0xF993FAC9, 2, 1, 1, 2, 2, 3, 1, 0, 0, 6, 1, 3, 6, 1, 1)
    seeds.append(csr + struct.pack("<f4qQ", 1, 0, 1, 1, 2, 0))
    tokens = [struct.pack("<I", magic) for magic in (0xF993FAC8, 0xF993FAC9, 0xF993FACA, 0x112)]
    return Format(seeds, lambda data: params.loads(data, densify_limit=1 << 16), (ParamsFormatError,), tokens)


def _safetensors() -> Format:
    head = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"a": "b"}})
    seeds = [struct.pack("<Q", len(head)) + head.encode() + ARRAY.tobytes()]

    def read(data: bytes) -> object:
        return in_file(data, safetensors.load)

    return Format(seeds, read, (SafetensorsFormatError,), [*JSON, b'"BF16"', b'"shape"'])


def _gguf() -> Format:
    metadata: dict[str, gguf.Value] = {
        "general.alignment": 32, "a": "text", "b": ["c", "d"], "e": [["f"]], "g": np.arange(3), "h": 0.5,
    }  # fmt: skip
    weight = np.arange(64, dtype=np.float32).reshape(2, 32)
    seeds = [gguf.dumps(metadata, {"w": ARRAY, "q": GGUFTensor.quantize("q", weight, "Q4_1"), "v": weight})]

    def read(data: bytes) -> object:
        tensors: dict[str, GGUFTensor] = in_file(data, gguf.load).tensors
        return [int(each.data.sum()) for each in tensors.values()]

    tokens = [struct.pack("<Q", 1) + b"k", struct.pack("<IQ", 9, 1), struct.pack("<IQ", 8, 3), b"GGUF", bytes(24)]
    return Format(seeds, read, (GGUFFormatError,), tokens)


def _symbol() -> Format:
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="c"), act_type="relu")
    pooled = mx.sym.BatchNorm(mx.sym.Pooling(hidden, kernel=(2, 2), pool_type="max"), name="b")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(pooled), num_hidden=10), name="softmax")

    def read(text: bytes) -> object:
        symbol = mx.sym.load_json(text.decode())
        return symbol.list_outputs(), symbol.list_arguments(), symbol.tojson()

    tokens = [
        *JSON,
        b'"op": "Custom"',
        b'"op": "Reshape"',
        b'"shape": "("',
        b'"num_args": "99999999"',
        b'"subgraphs": ',
    ]
    return Format([net.tojson().encode()], read, (SymbolFormatError, mx.MXNetError, UnicodeDecodeError), tokens)


def _records() -> Format:
    packed = mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.0], 7, 0), b"content")
    with tempfile.NamedTemporaryFile() as file:
        with mx.recordio.MXRecordIO(file.name, "w") as out:
            for each in (packed, b"", b"abc" * 30, struct.pack("<I", 0xCED7230A) * 3):
                out.write(each)
        seed = Path(file.name).read_bytes()

    def read(data: bytes) -> object:
        return in_file(data, records_of)

    return Format([seed], read, (RecordFormatError,), [struct.pack("<I", 0xCED7230A), b"\0\0\0\x20", b"\0\0\0\x40"])


def records_of(path: str) -> int:
    count = 0
    with mx.recordio.MXRecordIO(path, "r") as file:
        while (record := file.read()) is not None:
            count += 1
            try:
                mx.recordio.unpack(record)
            except RecordFormatError:
                continue
    return count


def in_file(data: bytes, read: Callable[[str], T]) -> T:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return read(file.name)


FORMATS: dict[str, Callable[[], Format]] = {
    "json": lambda: _body("json", JSON),
    "msgpack": lambda: _body("msgpack", MSGPACK),
    "npy": lambda: _body("x-npy", [b"(", b"[", b"'", b"True", b"9" * 30, b"'<f4'", b"'|O'", b"-1", b",", b"{"]),
    "inference": _inference,
    "checkpoint": _checkpoint,
    "params": _params,
    "safetensors": _safetensors,
    "gguf": _gguf,
    "symbol": _symbol,
    "records": _records,
}
"""Makers of the formats: the process that reads one makes it."""


def _faulty(read: Callable[[bytes], object]) -> Callable[[], Format]:
    return lambda: Format([b"1234"], read, (ValueError,), [b"5"])


def _hang(data: bytes) -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[], Format]] = {
    "death": _faulty(lambda data: os._exit(3)),
    "hang": _faulty(_hang),
    "memory": _faulty(lambda data: bytearray(2 * SLACK + TIMES * len(data))),
    "leak": _faulty(lambda data: _LEAKED.append(bytes(1 << 16))),
    "exception": _faulty(lambda data: {b"": 0}[b"none"]),
}
"""Formats whose readers do what none may, to try the fuzzer itself."""
_LEAKED: list[bytes] = []


# -- one process ---------------------------------------------------------------------------------------


def damaged(draw: random.Random, form: Format) -> bytes:
    """Damage a valid input in one to six places."""
    data = bytearray(draw.choice(form.seeds))
    for _ in range(draw.randint(1, 6)):
        at = draw.randint(0, len(data))
        match draw.randrange(8):
            case 0 | 1 if at < len(data):
                data[at] = draw.randrange(256)
            case 2 | 3:
                size = draw.choice([1, 2, 4, 8])
                number = draw.choice(NUMBERS) + draw.choice([0, 0, 1, -1])
                data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, draw.choice(["little", "big"]))
            case 4:
                del data[at : at + draw.choice([1, 4, 8, 50])]
            case 5:
                data[at:at] = draw.choice(form.tokens)
            case 6:
                times = draw.choice([2, 30, 100, 2000, 40_000])
                data[at:at] = draw.choice(form.tokens) * times
            case 7:
                other = draw.choice(form.seeds)
                start = draw.randrange(len(other))
                data[at:at] = other[start : start + draw.choice([4, 30, 1000])]
    return bytes(data[:MOST])


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _child(name: str, seconds: float, seed: int, rest: str) -> None:
    """Read damaged inputs; SIGPROF ends the process when one takes too long, in C code too."""
    form, draw = (FORMATS | FAULTS)[name](), random.Random(seed)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    count, refused, longest, most, base = 0, 0, 0.0, 0.0, 0
    start = time.monotonic()
    tracemalloc.start()
    with Path(rest).open("r+b", buffering=0) as last:
        while (spent := time.monotonic() - start) < seconds:
            data = damaged(draw, form)
            last.seek(0)
            last.write(struct.pack("<Q", len(data)) + data)
            tracemalloc.reset_peak()
            before, began = tracemalloc.get_traced_memory()[0], time.process_time()
            signal.setitimer(signal.ITIMER_PROF, HANG)
            try:
                form.read(data)
            except form.refusals:
                refused += 1
            signal.setitimer(signal.ITIMER_PROF, 0)
            count, longest = count + 1, max(longest, time.process_time() - began)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak <= TIMES * len(data) + SLACK, f"{len(data)} bytes took {peak}"
            most = max(most, peak)
            if not base and spent > STEADY * seconds:
                base = _held()
    growth = _held() - base if base else 0
    assert growth <= LEAK, f"the process grew by {growth >> 20} MiB over {count} inputs"
    figures = {
        "inputs": count,
        "refused": refused,
        "longest_s": longest,
        "most_mb": most / 1e6,
        "growth_mb": growth / 1e6,
    }
    print(json.dumps(figures))


def fuzz(name: str, seconds: float, seed: int | None = None) -> dict[str, float]:
    """Fuzz one of `FORMATS` for some time.

    Returns:
        The numbers of inputs that were read and refused, the longest time in seconds, and the memory in MB.

    Raises:
        AssertionError: an input ended the process, took too long or too much, or raised another exception than those
            that refuse: it says which, with the seed and the input.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "tests.fuzz.formats", "--child", name, str(seconds), str(seed), file.name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * seconds + 120)
        if not done.returncode:
            figures: dict[str, float] = json.loads(done.stdout)
            return figures
        (size,) = struct.unpack("<Q", file.read(8))
        data = file.read(size)
    saved = Path(tempfile.gettempdir()) / f"flowmx-fuzz-{name}-{seed}"
    saved.write_bytes(data)
    raise AssertionError(
        f"{name}, seed {seed}: status {done.returncode}; the input has {size} bytes and is kept as {saved}: "
        f"{data[:300]!r}\n{done.stderr[-3000:]}"
    )


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        _child(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        chosen = int(sys.argv[3]) if len(sys.argv) > 3 else None
        print(fuzz(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0, chosen))
