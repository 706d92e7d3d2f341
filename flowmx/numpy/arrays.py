"""``mx.np.ndarray``: NumPy's array on the engine.

It has the storage, recording and waiting of :class:`flowmx.nd.NDArray`, and NumPy's arithmetic, indexing and methods.
Operators return arrays of the class of their first input, so code built on them works with both classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.late_binding import late
from flowmx.ndarray import core, indexing, views
from flowmx.ndarray.arithmetic import Numbers
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import B, BaseArray
from flowmx.ndarray.creation import on_context
from flowmx.ndarray.fast_calls import FastCall
from flowmx.numpy import calls, conversion, shaping, table, view_semantics
from flowmx.numpy.calls import both_modes, call, registered_or_call
from flowmx.numpy.conversion import parse_dtype
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.methods import Methods
from flowmx.numpy.operator import NumPyCall
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array, lookup
from flowmx.semantics import default_float, semantics

__all__ = ["as_ndarray", "ndarray"]

_call_one: Callable[..., ndarray] = call
_write_into: Callable[..., ndarray] = calls.write_into
_argsort: Callable[..., ndarray] = shaping.argsort
_reshape: Callable[..., ndarray] = shaping.reshape
_sort: Callable[..., ndarray] = shaping.sort
_one_array: Iterator[Callable[[tuple[Any, ...], dict[str, Any]], ndarray]] = map(
    calls.Calls, ("transpose", "swapaxes", "real", "imag", "squeeze", "expand_dims", "clip", "matmul")
)
_transpose, _swapaxes, _real, _imag, _squeeze, _expand_dims, _clip, _matmul = _one_array
_transpose_all = [
    NumPyCall.create(num_args=1, function="transpose", form=encode([Slot(0)], {}), wide=wide) for wide in (False, True)
]
_FLOAT32 = re.compile(r",\s+dtype=float32")
_PLAIN = (int, np.integer, slice, type(None), type(Ellipsis))


def _binary(function: str, swapped: bool = False) -> Callable[[Any, Any], ndarray]:
    """Create an arithmetic method from the registry's operator if it is equivalent, else from NumPy's function."""
    floats = registered_or_call(function)
    others = both_modes(function)
    with_number = table.REGISTERED_WITH_NUMBER.get(function)
    numbers = None if with_number is None else Numbers(with_number[swapped])
    bound_calls: dict[Any, FastCall] = {} if numbers is None else numbers.bound

    forward = _binary(function) if swapped else None
    run = calls.Calls(function)
    float32, general = FLOAT32, conversion.FLOATS

    def method(self: BaseArray, other: Any) -> Any:
        dtype = self.element_type
        if isinstance(other, BaseArray):
            if dtype is other.element_type and (dtype is float32 or dtype in general):
                return floats(self, other)
            return conversion.to_np(others[semantics.get().dtype](self, other))
        if numbers is not None and (other.__class__ is float or other.__class__ is int):
            if dtype is float32 or dtype in general:
                return (bound_calls.get(other) or numbers.bind(other))(self)
        elif not isinstance(other, _OPERANDS):
            return NotImplemented
        return run((other, self) if swapped else (self, other), {})

    if forward is None:
        return method
    return lambda self, other: forward(other, self) if isinstance(other, BaseArray) else method(self, other)


_OPERANDS = (int, float, complex, np.generic, np.ndarray, list, tuple, BaseArray)


def _in_place_by_copy(function: str) -> Callable[[Any, Any], ndarray]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        view_semantics.warn_lost_in_place(self)
        return calls.write_into(function, call(function, (self, other), {}), self, None)

    return method


def _in_place(function: str) -> Callable[[Any, Any], ndarray]:
    """Create the method of an in-place operator."""
    registered = table.REGISTERED.get(function)
    if registered is None:
        return _in_place_by_copy(function)
    fast = FastCall(lookup(registered).create())
    float32, general = FLOAT32, conversion.FLOATS

    def method(self: BaseArray, other: Any) -> Any:
        if self.storage.copied_from is not None:
            view_semantics.warn_lost_in_place(self)
        if isinstance(other, BaseArray):
            dtype = self.element_type
            if other.dims == self.dims and other.element_type is dtype and (dtype is float32 or dtype in general):
                return fast(self, other, self)
        elif not isinstance(other, _OPERANDS):
            return NotImplemented
        return calls.write_into(function, call(function, (self, other), {}), self, None)

    return method


def _unary(function: str) -> Callable[[Any], ndarray]:
    floats, run = registered_or_call(function), calls.Calls(function)
    float32, general = FLOAT32, conversion.FLOATS

    def method(self: Any) -> Any:
        dtype = self.element_type
        return floats(self) if dtype is float32 or dtype in general else run((self,), {})

    return method


class ndarray(Methods, NDArray):  # type: ignore[misc]  # noqa: N801  # NumPy's and MXNet's name; NumPy's signatures
    """An array with NumPy's semantics, computed asynchronously by the engine.

    Functions such as :func:`flowmx.np.array` create it. :meth:`as_nd_ndarray` returns the memory as an ``mx.nd`` array.

    Example:
        >>> x = mx.np.ones((2, 3))
        >>> x.sum(axis=1)
        array([3., 3.])
    """

    # -- arithmetic ------------------------------------------------------------------------------------

    __add__, __radd__ = _binary("add"), _binary("add", swapped=True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", swapped=True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", swapped=True)
    __truediv__, __rtruediv__ = _binary("true_divide"), _binary("true_divide", swapped=True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", swapped=True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", swapped=True)
    __pow__, __rpow__ = _binary("power"), _binary("power", swapped=True)
    __and__, __rand__ = _binary("bitwise_and"), _binary("bitwise_and", swapped=True)
    __or__, __ror__ = _binary("bitwise_or"), _binary("bitwise_or", swapped=True)
    __xor__, __rxor__ = _binary("bitwise_xor"), _binary("bitwise_xor", swapped=True)
    __lshift__, __rlshift__ = _binary("left_shift"), _binary("left_shift", swapped=True)
    __rshift__, __rrshift__ = _binary("right_shift"), _binary("right_shift", swapped=True)
    __iadd__, __isub__, __imul__ = _in_place("add"), _in_place("subtract"), _in_place("multiply")
    __itruediv__, __ifloordiv__ = _in_place("true_divide"), _in_place("floor_divide")
    __imod__, __ipow__ = _in_place("remainder"), _in_place("power")
    __iand__, __ior__, __ixor__ = _in_place("bitwise_and"), _in_place("bitwise_or"), _in_place("bitwise_xor")
    __ilshift__, __irshift__ = _in_place("left_shift"), _in_place("right_shift")
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __hash__ = object.__hash__
    __neg__, __pos__, __abs__ = _unary("negative"), _unary("positive"), _unary("absolute")
    __invert__ = _unary("invert")
    __ceil__, __floor__, __trunc__ = _unary("ceil"), _unary("floor"), _unary("trunc")

    def __round__(self, digits: int = 0) -> ndarray:
        return _call_one("round", (self, digits), {})

    def __divmod__(self, other: Any) -> tuple[ndarray, ndarray]:
        quotient, remainder = call("divmod", (self, other), {})
        return quotient, remainder

    def __matmul__(self, other: Any) -> ndarray:
        return _matmul((self, other), {})

    def __rmatmul__(self, other: Any) -> ndarray:
        return _call_one("matmul", (other, self), {})

    def __imatmul__(self, other: Any) -> ndarray:
        view_semantics.warn_lost_in_place(self)
        return _write_into("matmul", call("matmul", (self, other), {}), self, None)

    # -- attributes ------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[np.generic]:  # type: ignore[override]
        """The element type, as NumPy's dtype object."""
        return self.element_type

    @property
    def T(self) -> ndarray:  # noqa: N802
        """The array with its axes reversed."""
        mode = semantics.get()
        if mode.views:
            return _transpose((self,), {})
        array: ndarray = core.invoke(_transpose_all[mode.dtype], (self,), None, None, 3)
        array.storage.copied_from = view_semantics.origin_of(self.storage)
        return array

    @property
    def mT(self) -> ndarray:  # noqa: N802
        """The array with its last two axes swapped."""
        if self.ndim < 2:
            raise ValueError(f"mT swaps the last two axes, but the array has shape {self.shape}")
        return _swapaxes((self, -1, -2), {})

    @property
    def real(self) -> ndarray:
        """The real parts."""
        return self if self.element_type.kind != "c" else _real((self,), {})

    @property
    def imag(self) -> ndarray:
        """The imaginary parts."""
        return _imag((self,), {})

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return self.element_type.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self.element_type.itemsize

    @property
    def flat(self) -> Iterator[ndarray]:
        """An iterator over the elements, as 0-d arrays."""
        return iter(self.reshape(-1))

    @property
    def device(self) -> devices.Context:
        """The device of the array (the array API standard's name of :attr:`context`)."""
        return self.context

    def to_device(self, device: Any, /, *, stream: Any = None) -> ndarray:
        """Return the array on a device: itself or a copy (the array API standard's name of :meth:`as_in_ctx`)."""
        if stream is not None:
            raise ValueError("to_device: the engine orders copies, so stream must be None")
        return self.as_in_context(devices.Context(device))

    def __repr__(self) -> str:
        """Wait for the content and format it, with the dtype unless it is float32 and the device unless it is a CPU."""
        engine.wait_variable(self.storage)
        text = repr(self.asnumpy())
        if self.element_type == np.float32:
            text = _FLOAT32.sub("", text)
        elif "dtype=" not in text and self.element_type != np.bool_:
            text = f"{text[:-1]}, dtype={self.element_type})"
        return text if self.context.device_type == "cpu" else f"{text[:-1]}, ctx={self.context})"

    def __str__(self) -> str:
        text = str(self.asnumpy())
        return text if self.context.device_type == "cpu" or not self.dims else f"{text} @{self.context}"

    def __format__(self, spec: str) -> str:
        if not self.dims:
            return format(self.item(), spec)
        if spec:
            raise TypeError(f"format: {spec!r} needs a 0-d array, got shape {self.dims}")
        return str(self)

    # -- reading ---------------------------------------------------------------------------------------

    def item(self, *args: int) -> float:
        """Return an element as a Python number: the one at an index, or the only one."""
        number: float = self.asnumpy().item(*args)
        return number

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array of {self.size} elements is ambiguous, expected one; use any() or all()"
            )
        return bool(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.element_type.kind not in "iu" or self.dims:
            raise TypeError(f"only 0-d integer arrays can be an index, got {self.element_type}{self.dims}")
        return int(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool(call("any", (call("equal", (self, value), {}),), {}))

    def __iter__(self) -> Iterator[ndarray]:
        if not self.dims:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self.dims[0]))

    # -- protocols -------------------------------------------------------------------------------------

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        """Return the module with the functions of the array API standard.

        Raises:
            ValueError: unsupported version of the standard.
        """
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"__array_namespace__: array API {api_version!r} is not supported")
        return late("numpy.standard")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Run NumPy's elementwise functions on the engine: ``numpy.exp(x)`` is ``mx.np.exp(x)``."""
        if "out" in kwargs and any(not isinstance(out, BaseArray) for out in kwargs["out"]):
            return NotImplemented
        if method == "__call__" and ufunc.__name__ in table.CALLS:
            return call(ufunc.__name__, inputs, kwargs)
        if method != "__call__":
            return calls.call_waiting(getattr(ufunc, method), inputs, kwargs)
        return NotImplemented

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run NumPy's functions on the engine: ``numpy.sum(x)`` is ``mx.np.sum(x)``. Others wait."""
        module = getattr(function, "__module__", "") or ""
        namespace: Any = late("numpy")
        for part in module.split(".")[1:]:
            namespace = getattr(namespace, part, None) if part in ("linalg", "fft") else None
        name = function.__name__
        counterpart = getattr(namespace, name, None) if namespace is not None else None
        if name == "svd" and len(args) < 2:
            kwargs = {"full_matrices": True, **kwargs}  # NumPy's default; MXNet's is False
        if counterpart is not None:
            return counterpart(*args, **kwargs)
        return calls.call_waiting(function, args, kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        host = self.asnumpy()
        return host if dtype is None else host.astype(dtype)

    def __dlpack__(  # type: ignore[override]
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        options = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        options = {name: value for name, value in options.items() if value is not None}
        if stream is not None:
            options["stream"] = stream
        return super().__dlpack__(**options)

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory of a host array (Python 3.12 and newer)."""
        engine.wait_variable(self.storage)
        return memoryview(self._host())

    # -- conversions -----------------------------------------------------------------------------------

    def as_np_ndarray(self) -> ndarray:
        """Return this array."""
        return self

    def as_nd_ndarray(self) -> NDArray:
        """Return the same memory as an array of ``mx.nd``."""
        return _as_class(self, NDArray)

    def astype(  # type: ignore[override]
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> ndarray:
        """Cast the elements to a different dtype."""
        target = parse_dtype(dtype) or default_float()
        if casting != "unsafe" and not np.can_cast(self.element_type, target, cast("Any", casting)):
            raise TypeError(f"astype: cannot cast {self.element_type} to {target} with casting={casting!r}")
        if not copy and target == self.element_type:
            return self
        if "c" in self.element_type.kind + target.kind:
            return _call_one("astype", (self, target), {})
        return self._call("Cast", dtype=target)

    def copy(self, order: str = "C") -> ndarray:
        """Return a copy on the same device."""
        if order not in ("C", "K", None):
            raise NotImplementedError("copy: arrays are stored in C order only, so order must be 'C'")
        return self._call("_copy")

    def copyto(self, other: Any) -> Any:
        """Copy the content into another array, or into a new array on a context. Return that array."""
        if isinstance(other, devices.Context):
            array = core.allocate(on_context(other), self.dims, self.element_type, None, ndarray)
            return super().copyto(cast("NDArray", array))
        return super().copyto(other)

    def __setstate__(self, saved: dict[str, Any]) -> None:
        super().__setstate__(saved)

    def __reduce__(self) -> Any:
        return _unpickled, (), self.__getstate__()

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Allocate a gradient buffer of zeros, so that backward passes compute this array's gradient."""
        super().attach_grad(grad_req, stype)
        leaf = views.variable_of(self)
        if leaf is not None and leaf.grad is not None:
            conversion.to_np(leaf.grad)

    # -- indexing and shape -----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> ndarray:
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if part.__class__ is not int and (not isinstance(part, _PLAIN) or isinstance(part, bool)):
                return _gather(self, parts)
        offset, shape, strides = indexing._view(self, indexing._expand(self, parts))
        if views.are_contiguous(shape, strides, self.element_type.itemsize):
            return views.make_view(self, offset, shape, strides)
        if semantics.get().views:
            return views.make_view(self, offset, shape, strides)
        copy = indexing._part(self, offset, shape, strides)
        copy.storage.copied_from = view_semantics.origin_of(self.storage)
        return copy

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.storage.copied_from is not None:
            view_semantics.warn_lost_write(self)
        if (key.__class__ is int or key.__class__ is slice) and value.__class__ in _SIMPLE_VALUES:
            indexing.put(self, key, value)
        else:
            self._assign(key, value)

    def _assign(self, key: Any, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            value = np.asarray([item.item() if isinstance(item, BaseArray) else item for item in value])
        elif isinstance(value, np.generic):
            value = np.asarray(value)
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) == 1 and _is_mask(parts[0]) and parts[0].shape == self.dims and _is_number(value):
            # Select with the mask as an operation, so that nothing waits for it.
            value, parts = call("where", (parts[0], value, self), {}), (Ellipsis,)
        array, parts = _replace_booleans(self, parts)
        indexing.put(array, _indices(array, parts), value)

    def reshape(self, *shape: Any, order: str = "C", **kwargs: Any) -> ndarray:
        """Return an array of the same content in a different shape, sharing memory if possible; -1 infers a length."""
        if kwargs:
            shape = (kwargs.pop("newshape", None) or kwargs.pop("shape"),)
        return _reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def flatten(  # type: ignore[override]
        self, order: str = "C", **_: Any
    ) -> ndarray:
        """Return a flattened copy."""
        return self.reshape(-1, order=order).copy()

    def ravel(self, order: str = "C") -> ndarray:
        """Flatten the array; the result shares memory if possible."""
        return self.reshape(-1, order=order)

    def transpose(self, *axes: Any, **_: Any) -> ndarray:
        """Permute the axes, or reverse them if no order is given."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return _transpose((self, tuple(order)) if order else (self,), {})

    def sort(self, axis: Any = -1, *_: Any, **options: Any) -> ndarray:
        """Return a sorted copy, as in MXNet (NumPy's method sorts in place)."""
        return _sort(self, axis, **options)

    def argsort(self, axis: Any = -1, *_: Any, **options: Any) -> ndarray:
        """Return the positions that sort the array."""
        return _argsort(self, axis, **options)

    def clip(  # type: ignore[override]  # as MXNet's method
        self, min: Any = None, max: Any = None, out: Any = None
    ) -> ndarray:
        """Return the elements limited to the range from ``min`` to ``max``."""
        return _clip((self, min, max), {"out": out})

    def squeeze(self, axis: Any = None, **_: Any) -> ndarray:  # type: ignore[override]
        """Remove axes of length 1: all, or those in ``axis``."""
        return _squeeze((self,), {"axis": axis})

    def expand_dims(self, axis: Any, **_: Any) -> ndarray:  # type: ignore[override]
        """Insert an axis of length 1."""
        return _expand_dims((self, axis), {})

    def broadcast_to(self, shape: Any) -> ndarray:
        """Broadcast to ``shape``."""
        return _call_one("broadcast_to", (self, shape), {})


def _as_class(array: BaseArray, cls: type[B]) -> B:
    """Return another handle on an array's memory, of another class, with its history and gradient buffer."""
    leaf = views.variable_of(array)
    offset = 0 if array.strided_view is None else array.strided_view[0]
    strides = (
        array.strided_view[1]
        if array.strided_view is not None
        else views.contiguous_strides(array.dims, array.element_type.itemsize)
    )
    if leaf is not None or array.history is None:
        handle = views.view_of(array, offset, array.dims, strides)
        handle.history = array.history
    else:
        handle = views.make_view(array, offset, array.dims, strides)
    handle.__class__ = cls
    return cast("B", handle)


def as_ndarray(array: BaseArray) -> ndarray:
    """Return the same memory as an array of ``mx.np``."""
    return _as_class(array, ndarray)


def _replace_booleans(array: ndarray, parts: tuple[Any, ...]) -> tuple[ndarray, tuple[Any, ...]]:
    """Replace the booleans of a key by index arrays along new axes. Return the array with these axes, and the key."""
    if not any(map(_is_boolean, parts)):
        return array, parts
    basic: list[object] = []
    key: list[object] = []
    for part in parts:
        if _is_boolean(part):
            basic.append(None)
            key.append(np.zeros(int(bool(part)), np.int64))
            continue
        key.append(part)
        if part is Ellipsis:
            basic.append(part)
        elif part is not None:
            mask = np.asarray(part) if isinstance(part, list) else part
            basic += [slice(None)] * (len(mask.shape) if _is_mask(mask) else 1)
    return array[tuple(basic)], tuple(key)


def _is_boolean(part: Any) -> bool:
    """Return whether a part of a key is a single boolean."""
    return isinstance(part, (bool, np.bool_)) or (_is_mask(part) and part.shape == ())


def _indices(array: BaseArray, parts: tuple[Any, ...]) -> tuple[object, ...]:
    """Convert a key to the form that :mod:`flowmx.ndarray.indexing` accepts.

    Raises:
        IndexError: the shape of a mask differs from the axes that it indexes.
    """
    indices = [np.asarray(part) if isinstance(part, (list, range, bool, np.bool_)) else part for part in parts]
    widths = [
        0 if index is None else len(index.shape) if _is_mask(index) else 1 for index in indices if index is not Ellipsis
    ]
    axis = 0
    for index in indices:
        if index is Ellipsis:
            axis += len(array.dims) - sum(widths)
        elif _is_mask(index):
            lengths = array.dims[axis : axis + len(index.shape)]
            # A length of 0 fits any axis, as in NumPy, and selects nothing.
            fits = [length in (0, whole) for length, whole in zip(index.shape, lengths, strict=False)]
            if len(lengths) != len(index.shape) or not all(fits):
                raise IndexError(f"the mask has shape {tuple(index.shape)}, but it indexes axes of shape {lengths}")
            axis += len(index.shape)
        elif index is not None:
            axis += 1
    return tuple(indices)


def _is_mask(part: Any) -> bool:
    if isinstance(part, BaseArray):
        return part.element_type.kind == "b"
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"


def _is_number(value: Any) -> bool:
    if isinstance(value, (BaseArray, np.ndarray)):
        return value.shape == ()
    return isinstance(value, (int, float, complex))


def _gather(array: ndarray, parts: tuple[Any, ...]) -> ndarray:
    array, parts = _replace_booleans(array, parts)
    return indexing._gather(array, _indices(array, parts))


_SIMPLE_VALUES = frozenset([int, float, ndarray])


def _unpickled() -> Any:
    return object.__new__(ndarray)
