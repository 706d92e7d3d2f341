"""The file format of optimizer states (``prefix-0001.states``).

MXNet's format is a pickle, which may contain any code; its files can be read (:mod:`.mxnet_states`), but flowmx writes
a different format::

    8 bytes    "FLOWMXOS"
    uint32     format version, 1 (numbers are little-endian)
    uint32     length of the header
    header     msgpack: {"states": [[index, tree], ...], "progress": {...}, "optimizer": {...} or nil}
    the rest   the arrays, as a .params file without names

A tree is nil, ["array", position], ["number", value], ["tuple", [tree, ...]] or ["list", [tree, ...]].
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Array
from flowmx.scanning import Bounds, build_map, scan_msgpack
from flowmx.serialization import params

MAGIC = b"FLOWMXOS"
VERSION = 1
_START = struct.Struct("<8sII")
_BOUNDS = Bounds(containers=1 << 22, items=1 << 24)


class StatesFormatError(MXNetError, ValueError):
    """The optimizer states are damaged, or were not written by flowmx."""


class Content(NamedTuple):
    """The content of a file of states; its arrays are NumPy arrays.

    Attributes:
        states: states by index.
        progress: the result of ``Optimizer.progress``.
        optimizer: the result of ``Optimizer.get_config``, or None.
    """

    states: dict[Any, Any]
    progress: dict[str, Any]
    optimizer: dict[str, Any] | None


def dumps(states: Mapping[Any, Any], progress: Mapping[str, object], optimizer: Mapping[str, object] | None) -> bytes:
    """Return the bytes of a file of states; arguments and errors are those of :func:`chunks`."""
    return b"".join(chunks(states, progress, optimizer))


def chunks(
    states: Mapping[Any, Any], progress: Mapping[str, object], optimizer: Mapping[str, object] | None
) -> list[bytes | memoryview]:
    """Return the bytes of a file of states in pieces; arrays are objects with ``asnumpy``.

    Raises:
        TypeError: a state is neither None, an array, a number, nor a tuple or list of those.
    """
    arrays: list[Array] = []
    trees = [[index, _to_tree(state, arrays, index)] for index, state in states.items()]
    header: bytes = msgpack.packb({"states": trees, "progress": progress, "optimizer": optimizer})
    return [_START.pack(MAGIC, VERSION, len(header)) + header, *params.chunks(arrays)]


def loads(data: bytes | memoryview) -> Content:
    """Read the result of :func:`dumps`.

    Raises:
        StatesFormatError: the data has a different format, or is damaged.
    """
    if data[:8] != MAGIC:
        raise StatesFormatError(
            f"the optimizer states start with {bytes(data[:8])!r}, expected {MAGIC!r}, or an MXNet pickle: this "
            "is not a file of optimizer states"
        )
    try:
        _, version, length = _START.unpack_from(data)
        if version != VERSION:
            raise StatesFormatError(
                f"optimizer states of format version {version}, expected {VERSION}: a newer flowmx wrote them"
            )
        head = data[_START.size : _START.size + length]
        scan_msgpack(head, _BOUNDS)
        header = msgpack.unpackb(head, object_pairs_hook=build_map, strict_map_key=False)
        arrays = params.loads(memoryview(data)[_START.size + length :], source="optimizer states")
        sequence = arrays if isinstance(arrays, list) else list(arrays.values())
        states = {index: _from_tree(tree, sequence) for index, tree in header["states"]}
        return Content(states, header["progress"], header["optimizer"])
    except StatesFormatError:
        raise
    except Exception as error:  # damaged data may fail in any way
        raise StatesFormatError(
            f"the optimizer states are damaged ({type(error).__name__}: {error}): use an earlier file, or start again"
        ) from error


def is_pickle(data: bytes | memoryview) -> bool:
    """Return whether data looks like a pickle that MXNet writes, of protocol 0 to 5."""
    return bytes(data[:1]) in (b"\x80", b"(", b"}") and data[-1:] == b"."


def _to_tree(state: object, arrays: list[Array], index: object) -> Any:
    if state is None:
        return None
    if isinstance(state, (tuple, list)):
        kind = "tuple" if isinstance(state, tuple) else "list"
        return [kind, [_to_tree(item, arrays, index) for item in state]]
    if isinstance(state, (bool, int, float)):
        return ["number", state]
    if not hasattr(state, "asnumpy"):
        raise TypeError(
            f"the optimizer state of {index!r} holds {state!r}, which cannot be saved: keep arrays, numbers, None, "
            "and tuples or lists of them"
        )
    arrays.append(state.asnumpy())
    return ["array", len(arrays) - 1]


def _from_tree(tree: Any, arrays: list[Array]) -> Any:
    if tree is None:
        return None
    kind, value = tree
    if kind == "array":
        return arrays[value]
    if kind == "number":
        return value
    children = [_from_tree(item, arrays) for item in value]
    return {"tuple": tuple, "list": list}[kind](children)
