"""Size limits of untrusted data are checked before any object is built from it."""

import contextlib
import json
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx import scanning
from flowmx.scanning import Bounds, Excess, build_map, scan_json, scan_msgpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def measure(value):
    """Depth, containers and items of a value, as Bounds count them."""
    if not isinstance(value, list | dict):
        return Bounds(0, 0, 0)
    parts = list(value.values()) if isinstance(value, dict) else value
    inner = [measure(each) for each in parts]
    return Bounds(
        1 + max((each.depth for each in inner), default=0),
        1 + sum(each.containers for each in inner),
        len(parts) * (2 if isinstance(value, dict) else 1) + sum(each.items for each in inner),
    )


@given(VALUES)
def test_data_within_the_bounds_passes_and_other_data_is_refused(value):
    size = measure(value)
    raw = msgpack.packb(value)
    scan_msgpack(raw, size)
    for name in size._fields:
        if getattr(size, name):
            with pytest.raises(Excess, match="at most"):
                scan_msgpack(raw, size._replace(**{name: getattr(size, name) - 1}))


@given(st.binary(max_size=200))
def test_any_bytes_are_scanned(raw):
    for scan in (scan_msgpack, scan_json):
        with contextlib.suppress(Excess):
            scan(raw, Bounds(4, 8, 64))


@given(st.recursive(st.none() | st.integers() | st.text(st.characters(exclude_characters="[]{},")), st.lists))
def test_json_is_measured_like_msgpack(value):
    size = measure(value)
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    scan_json(raw, size._replace(items=10**6))
    for name in ("depth", "containers"):
        if getattr(size, name) > 1:
            with pytest.raises(Excess):
                scan_json(raw, Bounds(depth=0, items=10**6) if name == "depth" else Bounds(containers=0))


def test_brackets_in_strings_do_not_nest():
    scan_json(json.dumps(["[" * 100, '"\\[['] * 40).encode(), Bounds(depth=1))


@given(st.recursive(st.text('"\\\\[]{}a', max_size=9), lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_strings_and_escapes_do_not_nest(value):
    most = measure(value).depth
    raw = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_BLOCK", 3)
        scan_json(raw, Bounds(most))
        if most:
            with pytest.raises(Excess, match=f"there are {most} nested containers|at most {most - 1} are allowed"):
                scan_json(raw, Bounds(most - 1))


@pytest.mark.parametrize("part", [b'"a":', b'"', b'\\"', b"\\\\", b"[],", b'[""],', b'"\\""'])
def test_a_scan_of_json_takes_little_more_than_the_text(part):
    raw = b"[" * 65 + part * ((4 << 20) // len(part))
    tracemalloc.start()
    try:
        with pytest.raises(Excess):
            scan_json(raw, Bounds())
        assert tracemalloc.get_traced_memory()[1] < 2 * len(raw) + (4 << 20)
    finally:
        tracemalloc.stop()


def test_extensions_of_msgpack_in_msgpack_count_as_deeper():
    raw = b"\x90"
    for _ in range(10):
        raw = msgpack.packb(msgpack.ExtType(2, b"\x91" + raw))
    scan_msgpack(raw, Bounds(depth=21), {2})
    scan_msgpack(raw, Bounds(depth=0), {3})
    with pytest.raises(Excess, match="20 nested containers"):
        scan_msgpack(raw, Bounds(depth=19), {2})


@pytest.mark.parametrize(
    "raw",
    [
        b"\xdd" + struct.pack(">I", 60_000_000) + b"\x90" * 60_000_000,
        b"\xdf" + struct.pack(">I", 2**32 - 1),
        b"\x91" * 10_000_000,
        b"\xdc\xff\xff" * 1_000_000,
    ],
    ids=["wide", "claim", "deep", "claims"],
)
def test_a_scan_builds_nothing(raw):
    tracemalloc.start()
    try:
        with pytest.raises(Excess):
            scan_msgpack(raw, Bounds())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_integer_keys_of_more_than_61_bits_are_refused():
    assert build_map([("a", 1), (2**61 - 2, 2), (-5, 3)]) == {"a": 1, 2**61 - 2: 2, -5: 3}
    for key in (2**61 - 1, 2**64 - 1, 1 - 2**61):
        with pytest.raises(Excess, match="an integer of more than 61 bits as a key"):
            build_map([(0, 1), (key, 2)])
