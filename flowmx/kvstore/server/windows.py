"""Windows: values in memory that workers of the same machine may read for themselves.

A worker that wants some rows of a big value need not ask for them each time: it maps the value, reads the rows, and
finds by the window's *head* whether they are of one moment at which an answer could have been given. The head has three
numbers of 64 bits: a count, odd while the value must not be read, which grows with every change of that; the
generation, which grows when a view of the job comes, so that who is no longer of the job reads no more; and the time,
in nanoseconds of the machine's monotonic clock, until which the head holds: this process puts it off while it runs.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Mapping

import numpy as np

from flowmx import ndarray as nd
from flowmx import settings
from flowmx.comm import local
from flowmx.comm.errors import Refused
from flowmx.comm.local import Segment
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.store import Array, Value

__all__ = ["HEAD", "LEAST", "MOST", "Window", "Windows"]

HEAD = 64
"""Bytes before the value."""
LEAST = 1 << 20
"""Bytes of a value from which it is worth one."""
MOST = 64
"""Windows of a server: each is looked at whenever something happens to any part."""
POSSIBLE = local.AVAILABLE and platform.machine() in ("x86_64", "AMD64")
"""Other processors may do what is written, or read, in another order."""


class Window:
    """A copy of a value in shared memory, which may take the value's place.

    Args:
        value: that is copied; it may take a while, and must not be changed meanwhile.
    """

    def __init__(self, value: Value) -> None:
        self.segment = Segment(HEAD + value.array.nbytes)
        self.head: Array = self.segment.array[:HEAD].view(np.uint64)
        self.head[0] = 1
        self._array = self.segment.array[HEAD:].view(value.array.dtype).reshape(value.array.shape)
        self._address = self._array.ctypes.data
        np.copyto(self._array, value.array)

    def take_place(self, value: Value) -> None:
        """Let a value that was copied lie here from now on; updates are made in place."""
        value.weight = nd.from_numpy(self._array)
        value.array, value.read, value.lies = value.weight._host(), None, None

    def holds(self, value: Value) -> bool:
        """Tell whether a value lies here."""
        return value.array.ctypes.data == self._address

    def open(self, is_open: bool) -> None:
        """Let the value be read, or not any more."""
        if bool(self.head[0] & np.uint64(1)) is is_open:
            self.head[0] += np.uint64(1)


class Windows:
    """The windows of a server. Belongs to its loop.

    Args:
        slots: the server's parts.
        may_read: tells whether the value of one may be read as it is.
    """

    def __init__(self, slots: Mapping[Part, Slot], may_read: Callable[[Slot], bool]) -> None:
        self._slots = slots
        self._may_read = may_read
        self._windows: dict[Part, Window] = {}
        self._making: set[Part] = set()
        self._generation = 0
        self._lease = settings.get().kvstore_timeout / 4  # who is stopped has no windows before it is taken for gone
        self._timer: asyncio.TimerHandle | None = None

    async def find(self, part: Part) -> tuple[Segment, int]:
        """The memory of a part's window, which is made where there is none, and its generation.

        Raises:
            Refused: there can be none now.
        """
        if part not in self._windows:
            await self._make(part)
        return self._windows[part].segment, self._generation

    async def _make(self, part: Part) -> None:
        slot = self._slots[part]
        value, number = slot.value, slot.number
        if not POSSIBLE or value.array.nbytes < LEAST or len(self._windows) + len(self._making) >= MOST:
            raise Refused("the value is too small for a window, or there are too many", "no_window")
        if part in self._making:
            raise Refused("the window is being made", "no_window")
        self._making.add(part)
        try:
            window = await asyncio.get_running_loop().run_in_executor(None, Window, value)
        except OSError as error:
            raise Refused(f"there is no shared memory for it: {error.strerror}", "no_window") from None
        finally:
            self._making.discard(part)
        is_same = self._slots.get(part) is slot and slot.value is value and slot.number == number
        if not is_same or not self._may_read(slot):
            raise Refused("the value was changed while its window was made", "no_window")
        window.take_place(value)
        window.head[1] = self._generation
        self._windows[part] = window
        self._renew()
        self.settle()

    def settle(self) -> None:
        """Close what must not be read any more, before it changes, and open what may be read again."""
        if not self._windows:
            return
        for part, window in list(self._windows.items()):
            slot = self._slots.get(part)
            if slot is not None and window.holds(slot.value):
                window.open(self._may_read(slot))
            else:
                window.open(False)
                del self._windows[part]

    def forget(self) -> None:
        """Let nobody read any more who does not ask anew."""
        self._generation += 1
        for window in self._windows.values():
            window.head[1] = self._generation

    def close(self) -> None:
        """Let nobody read any more."""
        for window in self._windows.values():
            window.open(False)
        self._windows.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        until = time.monotonic_ns() + int(self._lease * 1e9)
        for window in self._windows.values():
            window.head[2] = until
        again = asyncio.get_running_loop().call_later
        self._timer = again(self._lease / 4, self._renew) if self._windows else None
