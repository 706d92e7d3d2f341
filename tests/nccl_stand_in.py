"""A stand-in for CuPy's module of NCCL: it does collectives on memory that NumPy can reach, and records them.

It raises an error where NCCL would hang or write out of bounds: a group must have one part from every rank, all of the
same form, and nothing runs before the group ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

TYPES = {"INT32": 2, "INT64": 4, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8}
DTYPES = {number: np.dtype(name.lower()) for name, number in TYPES.items()}


class Call(NamedTuple):
    """A rank's call of a collective."""

    device: int
    method: str
    sent: int
    received: int
    size: int
    datatype: int
    options: tuple[int, ...]
    stream: int

    @property
    def form(self) -> tuple[Any, ...]:
        """Return the arguments that must be the same on every rank."""
        return self.method, self.size, self.datatype, self.options


def check_groups(groups: Sequence[Sequence[Call]], ranks: Sequence[int]) -> None:
    """Raise an error if ranks would deadlock: some do not take part, or call another collective."""
    for number, group in enumerate(groups):
        if [call.device for call in group] != list(ranks):
            raise AssertionError(f"group {number} has parts of {[call.device for call in group]}, not of {ranks}")
        if len({call.form for call in group}) > 1:
            raise AssertionError(f"group {number} has different collectives: {[call.form for call in group]}")


class Library:
    """The module.

    Attributes:
        groups: the calls so far, by group.
    """

    available = True
    NCCL_SUM = 0

    def __init__(self) -> None:
        for name, number in TYPES.items():
            setattr(self, f"NCCL_{name}", number)
        self.groups: list[list[Call]] = []
        self.ranks: list[list[int]] = []
        self._open = False
        library = self

        class NcclCommunicator:
            """One rank."""

            def __init__(self, device: int, ranks: list[int]) -> None:
                self.device, self.ranks = device, ranks

            @staticmethod
            def initAll(devices: list[int]) -> list[NcclCommunicator]:  # noqa: N802 - CuPy's name
                assert isinstance(devices, list), "CuPy takes a list"
                return [NcclCommunicator(device, devices) for device in devices]

            def _note(self, method: str, sent: int, received: int, count: int, datatype: int, *rest: int) -> None:
                assert library._open, f"{method} outside a group: one thread would wait for the other ranks"
                library.groups[-1].append(
                    Call(self.device, method, sent, received, count, datatype, rest[:-1], rest[-1])
                )
                library.ranks[-1] = self.ranks

            def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):  # noqa: N802
                self._note("allReduce", sendbuf, recvbuf, count, datatype, op, stream)

            def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
                self._note("reduce", sendbuf, recvbuf, count, datatype, op, root, stream)

            def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
                self._note("broadcast", sendbuff, recvbuff, count, datatype, root, stream)

        self.NcclCommunicator = NcclCommunicator

    def groupStart(self) -> None:  # noqa: N802 - CuPy's name
        """Begin a group."""
        assert not self._open, "two groups at the same time"
        self._open = True
        self.groups.append([])
        self.ranks.append([])

    def groupEnd(self) -> None:  # noqa: N802 - CuPy's name
        """Run the operations that were queued since :meth:`groupStart`."""
        self._open = False
        group = self.groups[-1]
        check_groups([group], self.ranks[-1])
        sent = [_memory(call.sent, call).copy() for call in group]
        method, options = group[0].method, group[0].options
        if method == "broadcast":
            result, targets = sent[options[0]], group
        else:
            result = sum(sent[1:], sent[0])
            targets = group if method == "allReduce" else [group[options[1]]]
        for call in targets:
            _memory(call.received, call)[...] = result


def _memory(address: int, call: Call) -> Any:
    dtype = DTYPES[call.datatype]
    memory = (ctypes.c_char * (call.size * dtype.itemsize)).from_address(address)
    return np.ndarray((call.size,), dtype, memoryview(memory))
