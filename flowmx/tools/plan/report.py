"""The result of planning; ``text_report.py`` formats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

FIXED_ROLES = ("weights", "gradients", "optimizer", "kvstore")
"""Roles whose memory does not depend on the batch size."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """One device of a plan.

    Attributes:
        name: its name, such as ``gpu(0)``.
        memory: bytes available to arrays.
        peak: peak of the bytes in use.
        roles: bytes at the peak, by role.
        holders: the largest allocations at the peak: purpose and bytes.
        utilization: fraction of the step time in which a stream is busy, by stream.
        exceeded: the first out-of-memory message; None: the memory was sufficient.
    """

    name: str
    memory: int
    peak: int
    roles: Mapping[str, int]
    holders: Sequence[tuple[str, int]]
    utilization: Mapping[str, float]
    exceeded: str | None

    @property
    def growth(self) -> float | None:
        """Factor by which the batch could grow, if all except :data:`FIXED_ROLES` scales with it; None if unknown."""
        fixed = sum(self.roles.get(role, 0) for role in FIXED_ROLES)
        scaling = self.peak - fixed
        return (self.memory - fixed) / scaling if fixed and scaling > 0 else None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predicted time and memory of a program on devices of one kind.

    Attributes:
        device: the kind of device.
        devices: the plans of the devices, in order.
        steps: number of recorded steps.
        counted_by: the kind of event that counts as a step.
        seconds: time of a step; None without steps.
        bound_by: the kind of work with the largest share of a step; "" without steps.
        shares: fraction of a step's critical path by kind of work.
        operators: the slowest operators of a step, with their seconds.
        launches: number of launches per step.
        layers: number of layers of compiled graphs by precision.
        slices: descriptions of the graph regions that run in slices, because the whole batch does not fit.
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
        """Whether the memory of every device is sufficient."""
        return all(device.exceeded is None for device in self.devices)

    @property
    def is_empty(self) -> bool:
        """Whether the program used no device."""
        return not any(device.peak for device in self.devices)

    @property
    def growth(self) -> float | None:
        """Factor by which the batch could grow on the fullest device; None if unknown."""
        factors = [device.growth for device in self.devices if device.growth is not None]
        return min(factors, default=None)

    def as_dict(self) -> dict[str, object]:
        """Return the plan as JSON-compatible values."""
        return {**asdict(self), "fits": self.fits, "growth": self.growth}

    def _repr_html_(self) -> str:
        from flowmx.tools.plan.notebook import html

        return html(self)

    def text(self) -> str:
        """Return the plan as a text report."""
        from flowmx.tools.plan.text_report import render

        return render(self)
