"""Joined requests: the gradients or values of many small parts are sent as one tensor, one after the other.

Sending each small part alone costs more than its bytes, on both sides. A worker may also refer to a list of parts by a
number that it has chosen, a *group*, once it has sent the list. ``docs/wire.md`` describes the headers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.kvstore.server.prior_state import read_prior_state
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.store import Array, Slice, name_of
from flowmx.kvstore.server.wire import part_of
from flowmx.ops.registry.dtypes import DType

__all__ = ["MAX_GROUPS", "Group", "Groups", "JoinedRequest", "Layout", "compute_layout"]

MAX_GROUPS, MAX_PARTS = 4096, 1 << 20
"""Maximum number of groups of a worker, and of parts in them: they use memory until the worker has left."""


class Layout(NamedTuple):
    """Layout of the parts of a request in its tensor.

    Attributes:
        dtype: the common dtype.
        size: the number of elements of the tensor.
        starts: the start of each part in the tensor.
        stops: the end of each part in the tensor.
        shapes: the shape of each part's value.
    """

    dtype: DType
    size: int
    starts: list[int]
    stops: list[int]
    shapes: list[tuple[int, ...]]

    def slices(self, tensor: Tensor) -> list[Slice]:
        """Return the gradients in a tensor.

        Raises:
            Refused: the tensor does not have this layout.
        """
        if (tensor.dtype, tensor.shape) != (name_of(self.dtype), (self.size,)):
            raise Refused(
                f"a joined request for {len(self.starts)} parts has a tensor of {tensor.dtype} {list(tensor.shape)}; "
                f"expected {name_of(self.dtype)} [{self.size}], the gradients one after the other",
                "invalid",
            )
        array = tensor.array()
        base = array if array.flags.writeable else array.copy()  # the sum overwrites its memory
        return list(zip(repeat(base), self.starts, self.stops, self.shapes))


def compute_layout(parts: Sequence[Part], values: Sequence[Array]) -> Layout:
    """Return the layout of parts with these values.

    Raises:
        Refused: the values have different dtypes.
    """
    dtype = values[0].dtype if values else np.dtype(np.float32)
    for part, value in zip(parts, values, strict=True):
        if value.dtype != dtype:
            raise Refused(
                f"the parts of a joined request must have one dtype: key {parts[0].key!r} is {name_of(dtype)}, and key "
                f"{part.key!r} is {name_of(value.dtype)}; send them in separate requests",
                "invalid",
            )
    stops = np.cumsum([0, *(value.size for value in values)]).tolist()
    starts, stops = [start for start, _ in pairwise(stops)], stops[1:]
    return Layout(dtype, stops[-1] if stops else 0, starts, stops, [value.shape for value in values])


class Group:
    """A list of parts, and its cached layout.

    Attributes:
        parts: the parts, in order.
        homes: the homes of the parts.
        layout: the cached layout, or None.
        epoch: the epoch of the view in which the layout was computed.
    """

    __slots__ = ("epoch", "homes", "layout", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.homes = frozenset(part.home for part in parts)
        self.layout: Layout | None = None
        self.epoch = -1


class JoinedRequest(NamedTuple):
    """A decoded joined request.

    Attributes:
        group: its parts.
        numbers: the sequence number of each part, as in other requests.
        acknowledged: for each part, the highest acknowledged number of this worker's pushes.
        tensor: the gradients, if the request has any.
        before: the optimizer's state before the push of each part; empty if it depends on no other key.
    """

    group: Group
    numbers: Sequence[int]
    acknowledged: Sequence[int]
    tensor: Tensor | None
    before: Sequence[Sequence[Any]] = ()


class Groups:
    """The groups of all workers, by the numbers that the workers chose."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Group]] = {}

    def keep_only(self, workers: Collection[str]) -> None:
        """Forget the groups of all other workers."""
        self._groups = {worker: groups for worker, groups in self._groups.items() if worker in workers}

    def read(self, worker: str, message: Message, tensors: int) -> JoinedRequest:
        """Decode and check a joined request.

        Args:
            worker: the identity of the sender.
            message: the request.
            tensors: the expected number of tensors: one with gradients, or none.

        Raises:
            WireError: a field has a wrong type, or is unknown.
            Refused: the group is unknown, or fields contradict each other.
        """
        header = take(message.header, {"joined": bool}, _FIELDS)
        if len(message.tensors) != tensors:
            text = f"a joined request has {len(message.tensors)} tensors, expected {tensors}: one for all parts"
            raise Refused(text, "invalid")
        if "parts" in header:
            entries = header["parts"]
            group, default_numbers = self._add(worker, header.get("group"), entries), _numbers(entries)
        else:
            group, default_numbers = self._find(worker, header.get("group")), (0, 0)
        count = len(group.parts)
        numbers = _expand_numbers("numbers", header.get("numbers", default_numbers[0]), count)
        acknowledged = _expand_numbers("acknowledged", header.get("acknowledged", default_numbers[1]), count)
        before = [read_prior_state(state) for state in header.get("before", ())]
        if before and len(before) != count:
            raise Refused(f"the header's 'before' has {len(before)} entries for {count} parts", "invalid")
        return JoinedRequest(group, numbers, acknowledged, message.tensors[0] if tensors else None, before)

    def _find(self, worker: str, number: int | None) -> Group:
        if number is None:
            raise Refused("a joined request needs 'parts', or the 'group' of parts that were sent before", "invalid")
        group = self._groups.get(worker, {}).get(number)
        if group is None:
            text = f"{worker} has not sent group {number} to this server: send 'parts' together with 'group'"
            raise Refused(text, "unknown_group")
        return group

    def _add(self, worker: str, number: int | None, entries: list[Any]) -> Group:
        group = Group([_part(entry) for entry in entries])
        if number is not None:
            groups = self._groups.setdefault(worker, {})
            self._check(worker, number, group, {**groups, number: group})
            groups[number] = group
        return group

    def _check(self, worker: str, number: int, group: Group, groups: dict[int, Group]) -> None:
        """Check the limits of a new group.

        Raises:
            Refused: the worker has too many groups or parts.
        """
        parts = sum(len(other.parts) for other in groups.values())
        if number < 0 or len(groups) > MAX_GROUPS or parts > MAX_PARTS:
            raise Refused(
                f"group {number} of {len(group.parts)} parts: a group is an int from 0, and a worker has at most "
                f"{MAX_GROUPS} groups with {MAX_PARTS} parts; {worker} would have {len(groups)} with {parts}",
                "invalid",
            )


_FIELDS = {
    "parts": list, "group": int, "numbers": (int, list), "acknowledged": (int, list), "before": list,
    "tensors": list, "shared": list,
}  # fmt: skip


def _part(entry: object) -> Part:
    if not isinstance(entry, list) or not 3 <= len(entry) <= 5:
        text = "a part of a joined request is [key, piece, home, number, acknowledged], the last two optional; got"
        raise Refused(f"{text} {entry!r}"[:500], "invalid")
    return part_of(entry[:3])


def _numbers(entries: list[list[Any]]) -> tuple[Any, Any]:
    """Return the sequence numbers and acknowledged numbers in the entries of parts."""
    return [(*entry, 0)[3] for entry in entries], [(*entry, 0, 0)[4] for entry in entries]


def _expand_numbers(name: str, value: Any, count: int) -> list[int]:
    """Return a number for each part, from a list, or from one number for all."""
    numbers: list[int] = value if isinstance(value, list) else [value] * count
    if len(numbers) != count or not set(map(type, numbers)) <= {int} or min(numbers, default=0) < 0:
        text = (
            f"the header's {name!r} is {value!r}, expected an int from 0 for each of the {count} parts, or one for all"
        )
        raise Refused(text[:500], "invalid")
    return numbers
