"""Windows: values in shared memory that workers on the same machine can read directly.

A worker that needs some rows of a big value does not request them each time. It maps the value, reads the rows, and
checks with the window's *head* that they are a consistent state, with which the server could have answered. The head
has three 64-bit numbers:

* A count, which is incremented when the value becomes readable or unreadable. It is odd while reading is forbidden.
* The generation, which is incremented with every view of the job, so that nodes that have left the job stop reading.
* The time until which the head is valid, in nanoseconds of the machine's monotonic clock. The server process extends it
  while it runs.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Mapping

import numpy as np

from flowmx import ndarray as nd
from flowmx import settings
from flowmx.comm import shared_memory
from flowmx.comm.errors import Refused
from flowmx.comm.shared_memory import Segment
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.store import Array, Value

__all__ = ["HEAD", "MAX_WINDOWS", "MIN_BYTES", "Window", "Windows"]

HEAD = 64
"""The size of the head in bytes; the value follows."""
MIN_BYTES = 1 << 20
"""Minimum size of a value with a window, in bytes."""
MAX_WINDOWS = 64
"""Maximum number of windows of a server, which checks all of them whenever a part changes."""
SUPPORTED = shared_memory.AVAILABLE and platform.machine() in ("x86_64", "AMD64")
"""Whether windows are supported: processors of other architectures may reorder reads and writes."""


class Window:
    """A copy of a value in shared memory, which can replace the value's array.

    Args:
        value: the value to copy; it must not change during the copy.
    """

    def __init__(self, value: Value) -> None:
        self.segment = Segment(HEAD + value.array.nbytes)
        self.head: Array = self.segment.array[:HEAD].view(np.uint64)
        self.head[0] = 1
        self._array = self.segment.array[HEAD:].view(value.array.dtype).reshape(value.array.shape)
        self._address = self._array.ctypes.data
        np.copyto(self._array, value.array)

    def replace_array(self, value: Value) -> None:
        """Replace the value's array by this copy, so that later updates happen in this memory."""
        value.weight = nd.from_numpy(self._array)
        value.array, value.view, value.flat = value.weight._host(), None, None

    def contains(self, value: Value) -> bool:
        """Return whether a value is in this memory."""
        return value.array.ctypes.data == self._address

    def set_open(self, is_open: bool) -> None:
        """Mark the value as readable or unreadable."""
        if bool(self.head[0] & np.uint64(1)) is is_open:
            self.head[0] += np.uint64(1)


class Windows:
    """The windows of a server. The object belongs to the server's event loop.

    Args:
        slots: the server's parts.
        may_read: returns whether the value of a part may be read now.
    """

    def __init__(self, slots: Mapping[Part, Slot], may_read: Callable[[Slot], bool]) -> None:
        self._slots = slots
        self._may_read = may_read
        self._windows: dict[Part, Window] = {}
        self._pending: set[Part] = set()
        self._generation = 0
        self._lease = (
            settings.get().kvstore_timeout / 4
        )  # the lease of a stopped process expires before the process is declared lost
        self._timer: asyncio.TimerHandle | None = None

    async def find(self, part: Part) -> tuple[Segment, int]:
        """Return the memory of a part's window, created if needed, and its generation.

        Raises:
            Refused: the part cannot have a window now.
        """
        if part not in self._windows:
            await self._make(part)
        return self._windows[part].segment, self._generation

    async def _make(self, part: Part) -> None:
        slot = self._slots[part]
        value, number = slot.value, slot.number
        if not SUPPORTED or value.array.nbytes < MIN_BYTES or len(self._windows) + len(self._pending) >= MAX_WINDOWS:
            raise Refused("the value is too small for a window, or the server has too many windows", "no_window")
        if part in self._pending:
            raise Refused("the window is being made", "no_window")
        self._pending.add(part)
        try:
            window = await asyncio.get_running_loop().run_in_executor(None, Window, value)
        except OSError as error:
            raise Refused(f"no shared memory for the window: {error.strerror}", "no_window") from None
        finally:
            self._pending.discard(part)
        is_same = self._slots.get(part) is slot and slot.value is value and slot.number == number
        if not is_same or not self._may_read(slot):
            raise Refused("the value changed while its window was made", "no_window")
        window.replace_array(value)
        window.head[1] = self._generation
        self._windows[part] = window
        self._renew()
        self.refresh()

    def refresh(self) -> None:
        """Close the windows of values that are about to change, and open those of readable values."""
        if not self._windows:
            return
        for part, window in list(self._windows.items()):
            slot = self._slots.get(part)
            if slot is not None and window.contains(slot.value):
                window.set_open(self._may_read(slot))
            else:
                window.set_open(False)
                del self._windows[part]

    def invalidate(self) -> None:
        """Invalidate all windows: readers must request them again."""
        self._generation += 1
        for window in self._windows.values():
            window.head[1] = self._generation

    def close(self) -> None:
        """Forbid all reads, and drop the windows."""
        for window in self._windows.values():
            window.set_open(False)
        self._windows.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        valid_until = time.monotonic_ns() + int(self._lease * 1e9)
        for window in self._windows.values():
            window.head[2] = valid_until
        call_later = asyncio.get_running_loop().call_later
        self._timer = call_later(self._lease / 4, self._renew) if self._windows else None
