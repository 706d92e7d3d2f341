"""Decoding and checks of request headers, which ``docs/wire.md`` describes. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.comm.errors import Refused
from flowmx.comm.fields import mapping
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.kvstore import compression, row_sparse_wire
from flowmx.kvstore.server import modes
from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.prior_state import read_prior_state
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.wire import part_of
from flowmx.kvstore.shards import Range
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.shape_limits import ShapeError, read_shape

__all__ = ["Item", "decode_gradient", "items_of", "mode_of", "ranges_of"]


class Item(NamedTuple):
    """One part of a request.

    Attributes:
        part: the part.
        number: the sequence number of a push; for a pull, of the last push that must be in the value.
        acknowledged: the highest acknowledged number of the worker's pushes of the part.
        packing: the compression of the gradient, or None.
        tensor: the part's tensor, or None.
        before: the optimizer's state before the push, where it depends on other keys.
    """

    part: Part
    number: int = 0
    acknowledged: int = 0
    packing: Mapping[str, Any] | None = None
    tensor: Tensor | None = None
    before: Sequence[Any] = ()


def items_of(message: Message, more: Mapping[str, object] | None = None, tensors: bool | None = True) -> list[Item]:
    """Decode the parts of a request.

    An entry of the header's ``"parts"`` is ``[key, piece, home, number, acknowledged, packing, before]``; the last four
    are optional.

    Args:
        message: the request.
        more: the names and types of the header's other fields.
        tensors: whether each part has a tensor; None if either all or none have one.

    Raises:
        WireError: the header is invalid.
        Refused: the number of tensors is wrong.
    """
    take(message.header, {"parts": list}, {**(more or {}), "tensors": list, "shared": list})
    entries = message.header["parts"]
    expected = len(entries) if tensors or (tensors is None and message.tensors) else 0
    if len(message.tensors) != expected:
        raise Refused(
            f"a request for {len(entries)} parts has {len(message.tensors)} tensors, expected {expected}", "invalid"
        )
    message_tensors: Sequence[Tensor | None] = message.tensors if expected else [None] * len(entries)
    return [_item(entry, tensor) for entry, tensor in zip(entries, message_tensors, strict=True)]


def ranges_of(message: Message, items: Sequence[Item]) -> dict[Part, Range]:
    """Decode the range of each part in its key, ``[start, stop, shape of the key]`` in the header's ``"ranges"``.

    Raises:
        Refused: the number of ranges differs from that of parts, or a range is invalid.
    """
    entries = message.header.get("ranges", [])
    if entries and len(entries) != len(items):
        raise Refused(f"a request for {len(items)} parts has {len(entries)} ranges, expected one for each", "invalid")
    return {item.part: _range(entry) for item, entry in zip(items, entries, strict=False)}


def _range(entry: object) -> Range:
    text = f"a range is {entry!r}, expected [start, stop, shape]"[:300]
    if not isinstance(entry, list) or len(entry) != 3:
        raise Refused(text, "invalid")
    start, stop, shape = entry
    try:
        span = Range(start, stop, read_shape(shape))
    except ShapeError as error:
        raise Refused(f"{text}: the shape {error}", "invalid") from error
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= span.total:
        raise Refused(text, "invalid")
    return span


def mode_of(config: Any) -> Mode | None:
    """Return the consistency mode of a server's configuration, or None if it has none.

    Raises:
        ValueError: the mode is unknown.
    """
    if not config or config.get("mode") is None:
        return None
    name, bound = config["mode"]
    return modes.create(name, bound)


def decode_gradient(item: Item, shape: tuple[int, ...], dtype: str) -> Any:
    """Decode the gradient of a push; the array is read-only if it is in the worker's memory.

    Raises:
        Refused: the gradient does not match the value's shape and dtype.
    """
    assert item.tensor is not None
    if item.packing is not None:
        return _decompress(item, shape, dtype)
    if (item.tensor.dtype, item.tensor.shape) != (dtype, shape):
        raise Refused(
            f"key {item.part.key!r}: the gradient is {item.tensor.dtype} {list(item.tensor.shape)}, and the value is "
            f"{dtype} {list(shape)}",
            "invalid",
        )
    return item.tensor.array()


def _decompress(item: Item, shape: tuple[int, ...], dtype: str) -> Any:
    assert item.tensor is not None and item.packing is not None
    if item.packing == row_sparse_wire.PACKING:
        try:
            return row_sparse_wire.decode(item.tensor.array(), shape, as_dtype(dtype))
        except ValueError as error:
            raise Refused(f"key {item.part.key!r}: {error}", "invalid") from error
    if dtype != "float32":
        text = f"key {item.part.key!r}: compressed gradients must be float32, and the value is {dtype}"
        raise Refused(text, "invalid")
    size = 1
    for length in shape:
        size *= length
    try:
        gradient = compression.create(item.packing).decompress(item.tensor.array(), size)
    except ValueError as error:
        raise Refused(f"key {item.part.key!r}: {error}", "invalid") from error
    return gradient.reshape(shape)


def _item(entry: object, tensor: Tensor | None) -> Item:
    if not isinstance(entry, list) or not 3 <= len(entry) <= 7:
        text = "a part is [key, piece, home, number, acknowledged, packing, before], the last four optional"
        raise Refused(text, "invalid")
    number, acknowledged, packing, before = entry[3:] + _DEFAULTS[len(entry) - 3 :]
    if type(number) is not int or type(acknowledged) is not int or number < 0 or acknowledged < 0:
        raise Refused(
            f"a part's 'number' and 'acknowledged' are {number!r} and {acknowledged!r}, expected ints from 0"[:500],
            "invalid",
        )
    if packing is not None:
        packing = mapping(packing, "packing")
    return Item(part_of(entry[:3]), number, acknowledged, packing, tensor, read_prior_state(before))


_DEFAULTS: list[Any] = [0, 0, None, None]
