"""The file format of optimizer states (``prefix-0001.states``).

MXNet pickles them, and a pickle can be any code; its files are read (:mod:`.mxnet_states`), but the format here is
another one::

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
import numpy as np

from flowmx.errors import MXNetError
from flowmx.serialization import params

MAGIC = b"FLOWMXOS"
VERSION = 1
_START = struct.Struct("<8sII")


class StatesFormatError(MXNetError, ValueError):
    """The given optimizer states are damaged, or were not written by flowmx."""


class Content(NamedTuple):
    """The content of a file of states; arrays are NumPy's.

    Attributes:
        states: from index to state.
        progress: the result of ``Optimizer.progress``.
        optimizer: the result of ``Optimizer.get_config``, or None.
    """

    states: dict[Any, Any]
    progress: dict[str, Any]
    optimizer: dict[str, Any] | None


def dumps(states: Mapping[Any, Any], progress: Mapping[str, Any], optimizer: Mapping[str, Any] | None) -> bytes:
    """The bytes of a file of states, whose arrays are anything with ``asnumpy``.

    Raises:
        TypeError: a state is neither None, an array, a number, nor a tuple or list of those.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    trees = [[index, _tree(state, arrays, index)] for index, state in states.items()]
    header: bytes = msgpack.packb({"states": trees, "progress": progress, "optimizer": optimizer})
    return _START.pack(MAGIC, VERSION, len(header)) + header + params.dumps(arrays)


def loads(data: bytes) -> Content:
    """Read what :func:`dumps` wrote.

    Raises:
        StatesFormatError: the data is something else, or damaged.
    """
    if not data.startswith(MAGIC):
        raise StatesFormatError(
            f"the optimizer states start with {data[:8]!r}, expected {MAGIC!r}, or a pickle of MXNet's: this is no "
            "file of optimizer states"
        )
    try:
        _, version, length = _START.unpack_from(data)
        if version != VERSION:
            raise StatesFormatError(
                f"optimizer states of format version {version}, expected {VERSION}: a newer flowmx wrote them"
            )
        header = msgpack.unpackb(data[_START.size : _START.size + length], strict_map_key=False, use_list=True)
        arrays = params.loads(memoryview(data)[_START.size + length :], source="optimizer states")
        listed = arrays if isinstance(arrays, list) else list(arrays.values())
        states = {index: _untree(tree, listed) for index, tree in header["states"]}
        return Content(states, header["progress"], header["optimizer"])
    except StatesFormatError:
        raise
    except Exception as error:
        raise StatesFormatError(
            f"the optimizer states are damaged ({type(error).__name__}: {error}): use an earlier file, or start anew"
        ) from error


def is_pickle(data: bytes) -> bool:
    """True where data looks like a pickle as MXNet writes it, of protocol 0 to 5."""
    return data[:1] in (b"\x80", b"(", b"}") and data[-1:] == b"."


def _tree(state: Any, arrays: list[np.ndarray[Any, Any]], index: Any) -> Any:
    if state is None:
        return None
    if isinstance(state, (tuple, list)):
        kind = "tuple" if isinstance(state, tuple) else "list"
        return [kind, [_tree(each, arrays, index) for each in state]]
    if isinstance(state, (bool, int, float)):
        return ["number", state]
    if not hasattr(state, "asnumpy"):
        raise TypeError(
            f"the optimizer state of {index!r} holds {state!r}, which can not be saved: keep arrays, numbers, None, "
            "and tuples or lists of them"
        )
    arrays.append(state.asnumpy())
    return ["array", len(arrays) - 1]


def _untree(tree: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if tree is None:
        return None
    kind, value = tree
    if kind == "array":
        return arrays[value]
    if kind == "number":
        return value
    children = [_untree(each, arrays) for each in value]
    return {"tuple": tuple, "list": list}[kind](children)
