"""Decoding and checks of request headers. Pure; ``docs/wire.md`` describes them for other languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.comm.errors import Refused
from flowmx.comm.fields import mapping
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.kvstore import compression, rows
from flowmx.kvstore.server import modes
from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.wire import part_of
from flowmx.ops.registry.dtypes import as_dtype

__all__ = ["Item", "items_of", "mode_of", "uncompressed"]


class Item(NamedTuple):
    """One part of a request.

    Attributes:
        part: which.
        number: the sequence number of a push; for a pull, of the last push that must be in the value.
        acknowledged: the highest of the worker's pushes of the part that was acknowledged.
        packing: how a gradient was compressed, or None.
        tensor: the part's tensor, or None.
    """

    part: Part
    number: int = 0
    acknowledged: int = 0
    packing: Mapping[str, Any] | None = None
    tensor: Tensor | None = None


def items_of(message: Message, more: Mapping[str, Any] | None = None, tensors: bool | None = True) -> list[Item]:
    """The parts that a request is about.

    Each stands in the header's ``"parts"`` as ``[key, piece, home, number, acknowledged, packing]``, of which the last
    three may be missing.

    Args:
        message: the request.
        more: from the name to the type of the header's other fields.
        tensors: whether each part has a tensor; None if all may have or none.

    Raises:
        WireError: the header is not as it must be.
        Refused: the tensors are not as many as they must be.
    """
    take(message.header, {"parts": list}, {**(more or {}), "tensors": list, "shared": list})
    found = message.header["parts"]
    wanted = len(found) if tensors or (tensors is None and message.tensors) else 0
    if len(message.tensors) != wanted:
        raise Refused(f"{len(found)} parts came with {len(message.tensors)} tensors, expected {wanted}", "invalid")
    given: Sequence[Tensor | None] = message.tensors if wanted else [None] * len(found)
    return [_item(entry, tensor) for entry, tensor in zip(found, given, strict=True)]


def mode_of(config: Any) -> Mode | None:
    """The kind of consistency that a server's configuration names.

    Raises:
        ValueError: there is no such kind.
    """
    if not config or config.get("mode") is None:
        return None
    name, bound = config["mode"]
    return modes.create(name, bound)


def uncompressed(item: Item, shape: tuple[int, ...], dtype: str) -> Any:
    """The gradient of a push as an array, which is read-only where it lies in the worker's memory.

    Raises:
        Refused: it does not fit the value of this shape and dtype.
    """
    assert item.tensor is not None
    if item.packing is not None:
        return _unpacked(item, shape, dtype)
    if (item.tensor.dtype, item.tensor.shape) != (dtype, shape):
        raise Refused(
            f"key {item.part.key!r}: a gradient of {item.tensor.dtype} {list(item.tensor.shape)} was pushed to a value "
            f"of {dtype} {list(shape)}",
            "invalid",
        )
    return item.tensor.array()


def _unpacked(item: Item, shape: tuple[int, ...], dtype: str) -> Any:
    assert item.tensor is not None and item.packing is not None
    if item.packing == rows.PACKING:
        try:
            return rows.decode(item.tensor.array(), shape, as_dtype(dtype))
        except ValueError as error:
            raise Refused(f"key {item.part.key!r}: {error}", "invalid") from error
    if dtype != "float32":
        text = f"key {item.part.key!r}: compressed gradients are float32, and the value is {dtype}"
        raise Refused(text, "invalid")
    size = 1
    for length in shape:
        size *= length
    try:
        found = compression.create(item.packing).decompress(item.tensor.array(), size)
    except ValueError as error:
        raise Refused(f"key {item.part.key!r}: {error}", "invalid") from error
    return found.reshape(shape)


def _item(entry: Any, tensor: Tensor | None) -> Item:
    if not isinstance(entry, list) or not 3 <= len(entry) <= 6:
        raise Refused("a part is [key, piece, home, number, acknowledged, packing], the last three optional", "invalid")
    number, acknowledged, packing = entry[3:] + _MISSING[len(entry) - 3 :]
    if type(number) is not int or type(acknowledged) is not int or number < 0 or acknowledged < 0:
        raise Refused(
            f"a part's 'number' and 'acknowledged' are ints from 0, not {number!r} and {acknowledged!r}"[:500],
            "invalid",
        )
    if packing is not None:
        packing = mapping(packing, "packing")
    return Item(part_of(entry[:3]), number, acknowledged, packing, tensor)


_MISSING: list[Any] = [0, 0, None]
