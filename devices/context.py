"""Names of devices: ``mx.cpu(0)``, ``mx.gpu(1)``, and the current one of a task (``with mx.cpu(1):``)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import ClassVar

from flowmx.base import ClassProperties, ClassProperty
from flowmx.errors import DeviceError, UnknownDevice


class Context(metaclass=ClassProperties):
    """The name of a device: a type and a number. Equal contexts are the same object.

    Args:
        device_type: ``"cpu"``, ``"gpu"``, ``"cpu_pinned"``, ``"cpu_shared"``, ``"sim"``, or a context.
        device_id: which of them, from 0.

    Raises:
        DeviceError: an unknown type or a negative number, or a context's type or number is to be changed.

    Example:
        >>> with mx.Context("cpu", 1):
        ...     a = mx.nd.zeros((2, 3))
        >>> a.context
        cpu(1)
    """

    devtype2str: ClassVar[dict[int, str]] = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared", 9: "sim"}
    devstr2type: ClassVar[dict[str, int]] = {name: number for number, name in devtype2str.items()}
    _known: ClassVar[dict[tuple[str, int], Context]] = {}

    default_ctx = ClassProperty(lambda owner: current_context(), lambda context: set_current_context(context))
    """The current device; MXNet's older name for `current_context`."""

    device_type: str
    device_id: int

    def __new__(cls, device_type: str | Context, device_id: int = 0) -> Context:
        if isinstance(device_type, Context):
            return device_type
        key = (device_type, device_id)
        known = cls._known.get(key)
        if known is None:
            if device_type not in cls.devstr2type:
                raise UnknownDevice(f"device type is {device_type!r}, expected one of {sorted(cls.devstr2type)}")
            if type(device_id) is not int or device_id < 0:
                raise DeviceError(f"device id is {device_id!r}, expected an int of at least 0")
            known = super().__new__(cls)
            vars(known).update(device_type=device_type, device_id=device_id)
            known = cls._known.setdefault(key, known)
        return known

    def __setattr__(self, name: str, value: object) -> None:
        # MXNet's contexts can be changed, each being an object of its own; these are everybody's.
        if not hasattr(self, name) or getattr(self, name) != value:
            raise DeviceError(f"{self!r} is one object for all that name it; make another: mx.Context(type, number)")

    @property
    def device_typeid(self) -> int:
        """MXNet's number for the device type (1: cpu, 2: gpu, ...)."""
        return self.devstr2type[self.device_type]

    @property
    def kernels(self) -> str:
        """The device type whose kernels its operators use."""
        from flowmx import devices

        return devices.kernels_of(self)

    def empty_cache(self) -> None:
        """Give the memory that the device keeps for new arrays back to the system."""
        from flowmx import devices

        devices.get(self).empty_cache()

    def __enter__(self) -> Context:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _entered.set(_entered.get()[:-1])

    def __reduce__(self) -> tuple[type[Context], tuple[str, int]]:
        return Context, (self.device_type, self.device_id)

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"


def cpu(device_id: int = 0) -> Context:
    """The CPU as a device. Each number is an actor of its own with its own queue."""
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """The GPU of that number."""
    return Context("gpu", device_id)


def sim(device_id: int = 0) -> Context:
    """The simulated device of that number: a GPU's streams, memory and errors, on a machine that has none."""
    return Context("sim", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Host memory that a GPU can copy from at full speed (the same as :func:`cpu` where there is none)."""
    return Context("cpu_pinned", device_id)


# A context is one object for everybody: what a task has entered stands in its own variable, not with the object.
_entered: ContextVar[tuple[Context, ...]] = ContextVar("flowmx_context", default=(Context("cpu", 0),))


def set_current_context(context: Context) -> None:
    """Make a device the current one of this task, outside any ``with`` block."""
    _entered.set((context,))


def current_context() -> Context:
    """The device on which arrays are made when none is named."""
    return _entered.get()[-1]
