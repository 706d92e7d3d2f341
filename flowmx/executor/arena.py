"""Memory of internal values, shared by executors of one symbol (for several shapes, or modes), one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.devices import Device
from flowmx.engine.scheduler import Variable


class Arena:
    """A block of memory on each device, as large as the largest plan that has used it needs.

    Attributes:
        holder: whose values of a forward pass lie there (as far as pushed), for the backward pass.
    """

    def __init__(self) -> None:
        self.holder: object = None
        self._blocks: dict[Device, Any] = {}
        self._variables: dict[Device, Variable] = {}

    def variable(self, device: Device) -> Variable:
        """The variable that every operation using the workspace on a device writes, so that they run one at a time."""
        return self._variables.setdefault(device, Variable(f"workspace on {device}"))

    def block(self, device: Device, nbytes: int) -> Any:
        """A block of at least so many bytes, for the running operation."""
        block = self._blocks.get(device)
        if block is None or block.nbytes < nbytes:
            self._blocks.pop(device, None)  # the old one goes first: two would need more than either plan
            block = self._blocks[device] = device.allocate((nbytes,), np.dtype(np.uint8))
        return block

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated."""
        return sum(block.nbytes for block in self._blocks.values())
