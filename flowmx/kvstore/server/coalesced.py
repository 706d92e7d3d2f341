"""Joined requests: many small parts whose gradients, or values, travel as one tensor, one after the other.

A part that travels alone costs more than its bytes, on both sides. So a worker may also name a list of parts by a
number of its own, a *group*, once it has sent the list. ``docs/wire.md`` describes the headers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.store import Array, Slice, name_of
from flowmx.kvstore.server.wire import part_of

__all__ = ["MOST_GROUPS", "Group", "Groups", "Joined", "Layout", "lay_out"]

MOST_GROUPS, MOST_PARTS = 4096, 1 << 20
"""Groups of a worker, and the parts in them: they stay in memory for as long as the worker does."""


class Layout(NamedTuple):
    """Layout of the parts of a request in its tensor.

    Attributes:
        dtype: of all of them.
        size: elements of the tensor.
        starts: of each part, where it begins.
        stops: of each part, where it ends.
        shapes: of each part, its value's.
    """

    dtype: np.dtype[Any]
    size: int
    starts: list[int]
    stops: list[int]
    shapes: list[tuple[int, ...]]

    def slices(self, tensor: Tensor) -> list[Slice]:
        """The gradients in a tensor.

        Raises:
            Refused: it is not of this layout.
        """
        if (tensor.dtype, tensor.shape) != (name_of(self.dtype), (self.size,)):
            raise Refused(
                f"a joined request for {len(self.starts)} parts came with {tensor.dtype} {list(tensor.shape)}; "
                f"expected {name_of(self.dtype)} [{self.size}], their gradients one after the other",
                "invalid",
            )
        found = tensor.array()
        base = found if found.flags.writeable else found.copy()  # the sum is made in its memory
        return list(zip(repeat(base), self.starts, self.stops, self.shapes))


def lay_out(parts: Sequence[Part], values: Sequence[Array]) -> Layout:
    """The layout of parts that have these values.

    Raises:
        Refused: they are of more than one dtype.
    """
    dtype = values[0].dtype if values else np.dtype(np.float32)
    for part, value in zip(parts, values, strict=True):
        if value.dtype != dtype:
            raise Refused(
                f"the parts of a joined request have one dtype: key {parts[0].key!r} is {name_of(dtype)}, and key "
                f"{part.key!r} is {name_of(value.dtype)}; send them in requests of their own",
                "invalid",
            )
    stops = np.cumsum([0, *(value.size for value in values)]).tolist()
    starts, stops = [start for start, _ in pairwise(stops)], stops[1:]
    return Layout(dtype, stops[-1] if stops else 0, starts, stops, [value.shape for value in values])


class Group:
    """A list of parts, and its cached layout.

    Attributes:
        parts: in their order.
        homes: theirs.
        layout: once it is known.
        epoch: of the view that it is known in.
    """

    __slots__ = ("epoch", "homes", "layout", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.homes = frozenset(part.home for part in parts)
        self.layout: Layout | None = None
        self.epoch = -1


class Joined(NamedTuple):
    """A decoded joined request.

    Attributes:
        group: its parts.
        numbers: of each, the sequence number, as in other requests.
        acknowledged: of each, the highest number of this worker's pushes that was acknowledged.
        tensor: the gradients, where there are any.
    """

    group: Group
    numbers: Sequence[int]
    acknowledged: Sequence[int]
    tensor: Tensor | None


class Groups:
    """Lists of parts, by the numbers that workers gave them."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, Group]] = {}

    def keep(self, workers: Collection[str]) -> None:
        """Forget the groups of all workers but these."""
        self._known = {worker: groups for worker, groups in self._known.items() if worker in workers}

    def read(self, worker: str, message: Message, tensors: int) -> Joined:
        """Decode and check a joined request.

        Args:
            worker: who sent it.
            message: the request.
            tensors: how many it has: one with gradients, or none.

        Raises:
            WireError: a field has another type than it must have, or there is one too many.
            Refused: the group is not known, or something does not fit.
        """
        header = take(message.header, {"joined": bool}, _FIELDS)
        if len(message.tensors) != tensors:
            text = f"a joined request came with {len(message.tensors)} tensors, expected {tensors}: one for all parts"
            raise Refused(text, "invalid")
        if "parts" in header:
            entries = header["parts"]
            group, own = self._made(worker, header.get("group"), entries), _numbers(entries)
        else:
            group, own = self._named(worker, header.get("group")), (0, 0)
        count = len(group.parts)
        numbers = _for_all("numbers", header.get("numbers", own[0]), count)
        acknowledged = _for_all("acknowledged", header.get("acknowledged", own[1]), count)
        return Joined(group, numbers, acknowledged, message.tensors[0] if tensors else None)

    def _named(self, worker: str, number: int | None) -> Group:
        if number is None:
            raise Refused("a joined request has 'parts', or the 'group' of parts that were sent before", "invalid")
        found = self._known.get(worker, {}).get(number)
        if found is None:
            text = f"{worker} has sent no parts as group {number} here: send them with 'parts', and 'group' too"
            raise Refused(text, "unknown_group")
        return found

    def _made(self, worker: str, number: int | None, entries: list[Any]) -> Group:
        group = Group([_part(entry) for entry in entries])
        if number is not None:
            known = self._known.setdefault(worker, {})
            self._check(worker, number, group, {**known, number: group})
            known[number] = group
        return group

    def _check(self, worker: str, number: int, group: Group, known: dict[int, Group]) -> None:
        """Refuse a group that takes too much memory.

        Raises:
            Refused: it does.
        """
        parts = sum(len(each.parts) for each in known.values())
        if number < 0 or len(known) > MOST_GROUPS or parts > MOST_PARTS:
            raise Refused(
                f"group {number} of {len(group.parts)} parts: a group is an int from 0, and a worker has at most "
                f"{MOST_GROUPS} of them here, with {MOST_PARTS} parts; {worker} would have {len(known)} with {parts}",
                "invalid",
            )


_FIELDS = {
    "parts": list, "group": int, "numbers": (int, list), "acknowledged": (int, list), "tensors": list, "shared": list,
}  # fmt: skip


def _part(entry: Any) -> Part:
    if not isinstance(entry, list) or not 3 <= len(entry) <= 5:
        text = "a part of a joined request is [key, piece, home, number, acknowledged], the last two optional, not"
        raise Refused(f"{text} {entry!r}"[:500], "invalid")
    return part_of(entry[:3])


def _numbers(entries: list[list[Any]]) -> tuple[Any, Any]:
    """Sequence numbers and acknowledged numbers from the entries of parts."""
    return [(*entry, 0)[3] for entry in entries], [(*entry, 0, 0)[4] for entry in entries]


def _for_all(name: str, given: Any, count: int) -> list[int]:
    """A number for each part, from a list of them or from one for all."""
    found: list[int] = given if isinstance(given, list) else [given] * count
    if len(found) != count or not set(map(type, found)) <= {int} or min(found, default=0) < 0:
        text = f"the header's {name!r} is an int from 0 for each of the {count} parts, or one for all, not {given!r}"
        raise Refused(text[:500], "invalid")
    return found
