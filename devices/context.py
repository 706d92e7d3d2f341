"""Names of devices: ``mx.cpu(0)``, ``mx.gpu(1)``, and the current one of a task (``with mx.cpu(1):``)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import ClassVar, cast

from flowmx.base import ClassProperties, ClassProperty
from flowmx.errors import DeviceError, UnknownDevice
from flowmx.late_binding import late
from flowmx.scopes import Entries, Value, assign

_default: Value[Context] = Value(cast("Context", None))
_current: ContextVar[Value[Context]] = ContextVar("flowmx_context", default=_default)


class Context(metaclass=ClassProperties):
    """The name of a device: a type and a number. Equal contexts are the same object.

    Args:
        device_type: ``"cpu"``, ``"gpu"``, ``"cpu_pinned"``, ``"cpu_shared"``, ``"sim"``, or a context.
        device_id: the device's number, from 0.

    Raises:
        DeviceError: the type is unknown, the number is negative, or an attribute of a context is assigned.

    Example:
        >>> with mx.Context("cpu", 1):
        ...     a = mx.nd.zeros((2, 3))
        >>> a.context
        cpu(1)
    """

    devtype2str: ClassVar[dict[int, str]] = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared", 9: "sim"}
    devstr2type: ClassVar[dict[str, int]] = {name: number for number, name in devtype2str.items()}
    _contexts: ClassVar[dict[tuple[str, int], Context]] = {}

    default_ctx = ClassProperty(lambda owner: current_context(), lambda context: set_current_context(context))
    """The current device; MXNet's older name for `current_context`."""

    device_type: str
    device_id: int
    _entries: Entries[Value[Context]]

    def __new__(cls, device_type: str | Context, device_id: int = 0) -> Context:
        if isinstance(device_type, Context):
            return device_type
        key = (device_type, device_id)
        context = cls._contexts.get(key)
        if context is None:
            if device_type not in cls.devstr2type:
                kind: object = device_type
                hint = "; a shape is one argument: ones((2, 3))" if isinstance(kind, int) else ""
                raise UnknownDevice(f"device type is {device_type!r}, expected one of {sorted(cls.devstr2type)}{hint}")
            if type(device_id) is not int or device_id < 0:
                raise DeviceError(f"device id is {device_id!r}, expected a non-negative int")
            context = super().__new__(cls)
            vars(context).update(device_type=device_type, device_id=device_id, _entries=Entries(_current))
            context = cls._contexts.setdefault(key, context)
        return context

    def __setattr__(self, name: str, value: object) -> None:
        # MXNet's contexts are mutable, separate objects; flowmx's are shared.
        if not hasattr(self, name) or getattr(self, name) != value:
            raise DeviceError(
                f"{self!r} is shared and cannot be changed; create a new context: mx.Context(type, number)"
            )

    @property
    def device_typeid(self) -> int:
        """MXNet's number for the device type (1: cpu, 2: gpu, ...)."""
        return self.devstr2type[self.device_type]

    @property
    def kernels(self) -> str:
        """The device type whose kernels its operators use."""
        kernels: str = late("devices").kernels_of(self)
        return kernels

    def empty_cache(self) -> None:
        """Return the device's cached memory to the system."""
        late("devices").get(self).empty_cache()

    def __enter__(self) -> Context:
        self._entries.enter(Value(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._entries.leave()

    def __reduce__(self) -> tuple[type[Context], tuple[str, int]]:
        return Context, (self.device_type, self.device_id)

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"


_default.value = Context("cpu", 0)


_FIRST_CUSTOM_TYPE = 64
"""The number of the first device type from outside flowmx; MXNet's and flowmx's are smaller."""


def add_device_type(device_type: str) -> None:
    """Make a device type known to :class:`Context`, under the next free number."""
    if device_type not in Context.devstr2type:
        number = max(_FIRST_CUSTOM_TYPE, 1 + max(Context.devtype2str))
        Context.devtype2str[number], Context.devstr2type[device_type] = device_type, number


def cpu(device_id: int = 0) -> Context:
    """Return the CPU as a device. Each number is a separate actor with its own queue."""
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """Return the GPU with this number as a device."""
    return Context("gpu", device_id)


def sim(device_id: int = 0) -> Context:
    """Return a simulated device, which has the streams, memory and errors of a GPU."""
    return Context("sim", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Return host memory from which a GPU can copy at full speed (the same as :func:`cpu` without a GPU)."""
    return Context("cpu_pinned", device_id)


def set_current_context(context: Context) -> None:
    """Set the current device of this task, outside any ``with`` block."""
    assign(_current, Value(context))


def current_context() -> Context:
    """Return the default device of new arrays."""
    return _current.get().value
