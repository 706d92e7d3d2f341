"""Result of planning, as values; ``text.py`` formats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KEPT = ("weights", "gradients", "optimizer", "kvstore")
"""Roles whose memory does not depend on the batch size."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """One device of a plan.

    Attributes:
        name: as the program names it, such as ``gpu(0)``.
        memory: bytes that arrays may take.
        peak: the most bytes that were in use at one time.
        roles: the bytes at the peak, by what they were used as.
        holders: who held most of them: what it was allocated for, and the bytes.
        utilisation: by stream, the part of a step's time in which it worked.
        exceeded: what was asked for when the memory was full first; None: it never was.
    """

    name: str
    memory: int
    peak: int
    roles: Mapping[str, int]
    holders: Sequence[tuple[str, int]]
    utilisation: Mapping[str, float]
    exceeded: str | None

    @property
    def growth(self) -> float | None:
        """Factor by which the batch could grow, if all memory but :data:`KEPT` grows with it; None if not known."""
        kept = sum(self.roles.get(role, 0) for role in KEPT)
        grows = self.peak - kept
        return (self.memory - kept) / grows if kept and grows > 0 else None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Time and memory of a program on devices of a kind.

    Attributes:
        device: the kind.
        devices: each of them, in their order.
        steps: how many steps were made.
        counted_by: what counts as a step.
        seconds: of a step, in the devices' time; None where no step was made.
        bound_by: the kind of work that most of a step's time goes to; "" where no step was made.
        shares: by kind of work, the part of a step's time, on the way through it on which nothing could have waited
            longer: all of it, and nothing twice.
        operators: the operators that take most of a step, with the seconds.
        launches: what the host launches in a step.
        layers: the number of layers of compiled graphs by the precision in which they multiply.
        slices: the regions of these that run in slices of the batch, since the whole of it does not fit, and how.
    """

    device: str
    devices: Sequence[DevicePlan]
    steps: int
    counted_by: str
    seconds: float | None
    bound_by: str
    shares: Mapping[str, float]
    operators: Sequence[tuple[str, float]]
    launches: float
    layers: Mapping[str, int]
    slices: Sequence[str]

    @property
    def fits(self) -> bool:
        """True if the memory of every device was enough."""
        return all(each.exceeded is None for each in self.devices)

    @property
    def is_empty(self) -> bool:
        """True if the program put nothing on any device."""
        return not any(each.peak for each in self.devices)

    @property
    def growth(self) -> float | None:
        """Factor by which the batch could grow on the fullest device; None if not known."""
        found = [each.growth for each in self.devices if each.growth is not None]
        return min(found, default=None)

    def as_dict(self) -> dict[str, Any]:
        """All of it, made of values that JSON can hold."""
        return {**asdict(self), "fits": self.fits, "growth": self.growth}

    def _repr_html_(self) -> str:
        from flowmx.tools.plan.notebook import html

        return html(self)

    def text(self) -> str:
        """All of it in words."""
        from flowmx.tools.plan.text import render

        return render(self)
