"""``mx.np.ndarray``: NumPy's array on the engine.

It has the storage, the tape and the waiting of :class:`flowmx.nd.NDArray`, and NumPy's arithmetic, indices and methods.
What operators return has the class of their first input, so that all that is built on them works with both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.ndarray import core, indexing, views
from flowmx.ndarray.array import NDArray, on_context
from flowmx.ndarray.core import BaseArray, Elementwise
from flowmx.ndarray.operators import Numbers
from flowmx.numpy import calls, conversion, table
from flowmx.numpy import parts as parts_of
from flowmx.numpy.calls import both_modes, call, registered_or_call
from flowmx.numpy.conversion import given_dtype
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.operator import NumPyCall
from flowmx.numpy.shaping import argsort as _argsort
from flowmx.numpy.shaping import reshape as _reshape
from flowmx.numpy.shaping import sort as _sort
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import lookup
from flowmx.semantics import default_float, semantics

__all__ = ["as_ndarray", "ndarray"]

_transpose, _swapaxes, _real, _imag, _squeeze, _expand_dims, _clip, _matmul = map(
    calls.Calls, ("transpose", "swapaxes", "real", "imag", "squeeze", "expand_dims", "clip", "matmul")
)
_reversed = [
    NumPyCall.create(num_args=1, function="transpose", form=encode([Slot(0)], {}), wide=wide) for wide in (False, True)
]
_FLOAT32 = re.compile(r",\s+dtype=float32")
_PLAIN = (int, np.integer, slice, type(None), type(Ellipsis))


def _binary(function: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    """The method of an arithmetic operator: the registered one where that does the same, else NumPy's function."""
    floats = registered_or_call(function)
    others = both_modes(function)
    with_number = table.REGISTERED_WITH_NUMBER.get(function)
    numbers = None if with_number is None else Numbers(with_number[swapped])
    known: dict[Any, Elementwise] = {} if numbers is None else numbers.known

    forward = _binary(function) if swapped else None
    run = calls.Calls(function)
    float32, general = FLOAT32, conversion.FLOATS

    def method(self: BaseArray, other: Any) -> Any:
        dtype = self._dtype
        if isinstance(other, BaseArray):
            if dtype is other._dtype and (dtype is float32 or dtype in general):
                return floats(self, other)
            return conversion.face(others[semantics.get().dtype](self, other))
        if numbers is not None and (other.__class__ is float or other.__class__ is int):
            if dtype is float32 or dtype in general:
                return (known.get(other) or numbers.make(other))(self)
        elif not isinstance(other, _OPERANDS):
            return NotImplemented
        return run((other, self) if swapped else (self, other), {})

    if forward is None:
        return method
    return lambda self, other: forward(other, self) if isinstance(other, BaseArray) else method(self, other)


_OPERANDS = (int, float, complex, np.generic, np.ndarray, list, tuple, BaseArray)


def _through_a_copy(function: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        parts_of.written_in_place(self)
        return calls.into(function, call(function, (self, other), {}), self, None)

    return method


def _in_place(function: str) -> Callable[[Any, Any], Any]:
    """The method of an operator that changes its left side."""
    registered = table.REGISTERED.get(function)
    both = None if registered is None else Elementwise(lookup(registered).create())
    float32, general = FLOAT32, conversion.FLOATS

    if both is None:
        return _through_a_copy(function)
    quick = both

    def method(self: BaseArray, other: Any) -> Any:
        if self._storage.copied_from is not None:
            parts_of.written_in_place(self)
        if isinstance(other, BaseArray):
            dtype = self._dtype
            if other._shape == self._shape and other._dtype is dtype and (dtype is float32 or dtype in general):
                return quick(self, other, self)
        elif not isinstance(other, _OPERANDS):
            return NotImplemented
        return calls.into(function, call(function, (self, other), {}), self, None)

    return method


def _unary(function: str) -> Callable[[Any], Any]:
    floats, run = registered_or_call(function), calls.Calls(function)
    float32, general = FLOAT32, conversion.FLOATS

    def method(self: Any) -> Any:
        dtype = self._dtype
        return floats(self) if dtype is float32 or dtype in general else run((self,), {})

    return method


class ndarray(NDArray):  # noqa: N801  # NumPy's and MXNet's name
    """An array with NumPy's semantics, computed asynchronously by the engine.

    Made by functions such as :func:`flowmx.np.array`; :meth:`as_nd_ndarray` gives the memory as an array of ``mx.nd``.

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
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __hash__ = object.__hash__
    __neg__, __pos__, __abs__ = _unary("negative"), _unary("positive"), _unary("absolute")
    __invert__ = _unary("invert")
    __ceil__, __floor__, __trunc__ = _unary("ceil"), _unary("floor"), _unary("trunc")

    def __round__(self, digits: int = 0) -> Any:
        return call("round", (self, digits), {})

    def __divmod__(self, other: Any) -> Any:
        return call("divmod", (self, other), {})

    def __matmul__(self, other: Any) -> Any:
        return _matmul((self, other), {})

    def __rmatmul__(self, other: Any) -> Any:
        return call("matmul", (other, self), {})

    def __imatmul__(self, other: Any) -> Any:
        parts_of.written_in_place(self)
        return calls.into("matmul", call("matmul", (self, other), {}), self, None)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def dtype(self) -> Any:
        """The element type, as NumPy's dtype object."""
        return self._dtype

    @property
    def T(self) -> Any:  # noqa: N802
        """The array with its axes reversed."""
        mode = semantics.get()
        if mode.views:
            return _transpose((self,), {})
        made = core.invoke(_reversed[mode.dtype], (self,), None, None, 3)
        made._storage.copied_from = parts_of.whose(self._storage)
        return made

    @property
    def mT(self) -> Any:  # noqa: N802
        """The array with its last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError(f"mT exchanges the last two axes; an array of shape {self.shape} has no two")
        return _swapaxes((self, -1, -2), {})

    @property
    def real(self) -> Any:
        """The real parts."""
        return self if self._dtype.kind != "c" else _real((self,), {})

    @property
    def imag(self) -> Any:
        """The imaginary parts."""
        return _imag((self,), {})

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self._dtype.itemsize

    @property
    def flat(self) -> Iterator[Any]:
        """The elements one after the other, as arrays without axes."""
        return iter(self.reshape(-1))

    @property
    def device(self) -> devices.Context:
        """The device that it lives on, by the array API standard's name."""
        return self.context

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        """This array if it lives there, else a copy (the array API standard's name of :meth:`as_in_ctx`)."""
        if stream is not None:
            raise ValueError("to_device: copies are ordered by the engine, so stream must be None")
        return self.as_in_context(devices.Context(device))

    def __repr__(self) -> str:
        """The content (this waits for it); the dtype where it is not float32, and the device where it is no CPU."""
        engine.wait_variable(self._storage)
        text = repr(self.asnumpy())
        if self._dtype == np.float32:
            text = _FLOAT32.sub("", text)
        elif "dtype=" not in text and self._dtype != np.bool_:
            text = f"{text[:-1]}, dtype={self._dtype})"
        return text if self.context.device_type == "cpu" else f"{text[:-1]}, ctx={self.context})"

    def __str__(self) -> str:
        text = str(self.asnumpy())
        return text if self.context.device_type == "cpu" or not self._shape else f"{text} @{self.context}"

    def __format__(self, spec: str) -> str:
        if not self._shape:
            return format(self.item(), spec)
        if spec:
            raise TypeError(f"format: {spec!r} is for an array without axes, this one has shape {self._shape}")
        return str(self)

    # -- reading ---------------------------------------------------------------------------------------

    def item(self, *args: Any) -> Any:
        """An element as a Python number: that at an index, or the only one."""
        return self.asnumpy().item(*args)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array of {self.size} elements is ambiguous, expected one: ask any() or all()"
            )
        return bool(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self._dtype.kind not in "iu" or self._shape:
            raise TypeError(
                f"only whole-number arrays without axes can be an index, this is {self._dtype}{self._shape}"
            )
        return int(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool(call("any", (call("equal", (self, value), {}),), {}))

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self._shape[0]))

    # -- protocols -------------------------------------------------------------------------------------

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        """The module with the functions of the array API standard.

        Raises:
            ValueError: another version of the standard was asked for than those that it follows.
        """
        from flowmx.numpy import standard

        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"__array_namespace__: the array API of {api_version!r} is not known here")
        return standard

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Run NumPy's elementwise functions on the engine: ``numpy.exp(x)`` is ``mx.np.exp(x)``."""
        if "out" in kwargs and any(not isinstance(each, BaseArray) for each in kwargs["out"]):
            return NotImplemented
        if method == "__call__" and ufunc.__name__ in table.CALLS:
            return call(ufunc.__name__, inputs, kwargs)
        if method != "__call__":
            return calls.call_waiting(getattr(ufunc, method), inputs, kwargs)
        return NotImplemented

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run NumPy's functions on the engine: ``numpy.sum(x)`` is ``mx.np.sum(x)``; others wait for what they read."""
        import flowmx.numpy as ours

        module = getattr(function, "__module__", "") or ""
        place: Any = ours
        for part in module.split(".")[1:]:
            place = getattr(place, part, None) if part in ("linalg", "fft") else None
        name = function.__name__
        found = getattr(place, name, None) if place is not None else None
        if name == "svd" and len(args) < 2:
            kwargs = {"full_matrices": True, **kwargs}  # by default NumPy's are complete, and MXNet's are not
        if found is not None:
            return found(*args, **kwargs)
        return calls.call_waiting(function, args, kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host = self.asnumpy()
        return host if dtype is None else host.astype(dtype)

    def __dlpack__(  # type: ignore[override]
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        given = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        given = {name: value for name, value in given.items() if value is not None}
        if stream is not None:
            given["stream"] = stream
        return super().__dlpack__(**given)

    def __buffer__(self, flags: int) -> memoryview:
        """The memory, where it is the host's (Python 3.12 and newer)."""
        engine.wait_variable(self._storage)
        return memoryview(self._host())

    # -- conversions -----------------------------------------------------------------------------------

    def as_np_ndarray(self) -> Any:
        """This array."""
        return self

    def as_nd_ndarray(self) -> NDArray:
        """The same memory as an array of ``mx.nd``."""
        return cast("NDArray", _with_face(self, NDArray))

    def astype(  # type: ignore[override]
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """The content as another element type."""
        wanted = given_dtype(dtype) or default_float()
        if casting != "unsafe" and not np.can_cast(self._dtype, wanted, cast("Any", casting)):
            raise TypeError(f"astype: {self._dtype} is not cast to {wanted} by the rule {casting!r}")
        if not copy and wanted == self._dtype:
            return self
        if "c" in self._dtype.kind + wanted.kind:
            return call("astype", (self, wanted), {})
        return self._call("Cast", dtype=wanted)

    def copy(self, order: str = "C") -> Any:
        """A copy on the same device."""
        if order not in ("C", "K", None):
            raise NotImplementedError("copy: arrays are kept in C order alone, so order must be 'C'")
        return self._call("_copy")

    def copyto(self, other: Any) -> Any:
        """Copy the content into another array, or into a new one on a context; returns that array."""
        if isinstance(other, devices.Context):
            made = core.allocate(on_context(other), self._shape, self._dtype, None, ndarray)
            return super().copyto(cast("NDArray", made))
        return super().copyto(other)

    def __setstate__(self, saved: dict[str, Any]) -> None:
        super().__setstate__(saved)

    def __reduce__(self) -> Any:
        return _unpickled, (), self.__getstate__()

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Make this array a variable of autograd, with a gradient buffer of zeros."""
        super().attach_grad(grad_req, stype)
        leaf = views.variable_of(self)
        if leaf is not None and leaf.grad is not None:
            conversion.face(leaf.grad)

    # -- indices and shape -----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if part.__class__ is not int and (not isinstance(part, _PLAIN) or isinstance(part, bool)):
                return _gathered(self, parts)
        offset, shape, strides = indexing._view(self, indexing._expand(self, parts))
        if views.lie_together(shape, strides, self._dtype.itemsize):
            return views.make_view(self, offset, shape, strides)
        if semantics.get().views:
            return views.make_view(self, offset, shape, strides)
        made = indexing._part(self, offset, shape, strides)
        made._storage.copied_from = parts_of.whose(self._storage)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._storage.copied_from is not None:
            parts_of.written(self)
        if (key.__class__ is int or key.__class__ is slice) and value.__class__ in _QUICK:
            indexing.put(self, key, value)
        else:
            self._assign(key, value)

    def _assign(self, key: Any, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            value = np.asarray([each.item() if isinstance(each, BaseArray) else each for each in value])  # type: ignore[attr-defined]
        elif isinstance(value, np.generic):
            value = np.asarray(value)
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) == 1 and _is_mask(parts[0]) and parts[0].shape == self._shape and _is_number(value):
            # Where the mask is true: nothing waits for it.
            value, parts = call("where", (parts[0], value, self), {}), (Ellipsis,)
        array, parts = _with_axes(self, parts)
        indexing.put(array, _indices(array, parts), value)

    def reshape(self, *shape: Any, order: str = "C", **kwargs: Any) -> Any:
        """The same content with another shape; shares memory where that is possible. -1 stands for one length."""
        if kwargs:
            shape = (kwargs.pop("newshape", None) or kwargs.pop("shape"),)
        return _reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def flatten(  # type: ignore[override]
        self, order: str = "C", **_: Any
    ) -> Any:
        """A copy with one axis."""
        return self.reshape(-1, order=order).copy()

    def ravel(self, order: str = "C") -> Any:
        """The content with one axis; shares memory where that is possible."""
        return self.reshape(-1, order=order)

    def transpose(self, *axes: Any, **_: Any) -> Any:
        """The axes in another order; reversed where none is given."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return _transpose((self, tuple(given)) if given else (self,), {})

    def sort(self, axis: Any = -1, *_: Any, **options: Any) -> Any:
        """A sorted copy, as in MXNet (NumPy's method sorts in place)."""
        return _sort(self, axis, **options)

    def argsort(self, axis: Any = -1, *_: Any, **options: Any) -> Any:
        """The positions that sort the array."""
        return _argsort(self, axis, **options)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        """The elements, those below ``min`` made that, and those above ``max`` that."""
        return _clip((self, min, max), {"out": out})

    def squeeze(self, axis: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """The array without axes of length 1 (all, or those given)."""
        return _squeeze((self,), {"axis": axis})

    def expand_dims(self, axis: Any, **_: Any) -> Any:  # type: ignore[override]
        """A new axis of length 1."""
        return _expand_dims((self, axis), {})

    def broadcast_to(self, shape: Any) -> Any:
        """Repeat axes of length 1 until the shape is ``shape``."""
        return call("broadcast_to", (self, shape), {})


def _with_face(array: BaseArray, cls: type[BaseArray]) -> BaseArray:
    """Another handle on an array's memory, of another class, with its history and gradient buffer."""
    leaf = views.variable_of(array)
    offset = 0 if array._view is None else array._view[0]
    strides = (
        array._view[1] if array._view is not None else views.contiguous_strides(array._shape, array._dtype.itemsize)
    )
    if leaf is not None or array._past is None:
        made = views.placed(array, offset, array._shape, strides)
        made._past = array._past
    else:
        made = views.make_view(array, offset, array._shape, strides)
    made.__class__ = cls
    return made


def as_ndarray(array: BaseArray) -> Any:
    """The same memory as an array of ``mx.np``."""
    return _with_face(array, ndarray)


def _with_axes(array: BaseArray, parts: tuple[Any, ...]) -> tuple[BaseArray, tuple[Any, ...]]:
    """An array with an axis for each truth value of a key, and the key with what each chooses along its axis."""
    if not any(map(_is_truth, parts)):
        return array, parts
    basic: list[Any] = []
    key: list[Any] = []
    for part in parts:
        if _is_truth(part):
            basic.append(None)
            key.append(np.zeros(int(bool(part)), np.int64))
            continue
        key.append(part)
        if part is Ellipsis:
            basic.append(part)
        elif part is not None:
            mask = np.asarray(part) if isinstance(part, list) else part
            basic += [slice(None)] * (len(mask.shape) if _is_mask(mask) else 1)
    return array[tuple(basic)], tuple(key)  # type: ignore[index]


def _is_truth(part: Any) -> bool:
    """Tell whether a part of a key is one truth value."""
    return isinstance(part, (bool, np.bool_)) or (_is_mask(part) and part.shape == ())


def _indices(array: BaseArray, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key as :mod:`flowmx.ndarray.indexing` takes it.

    Raises:
        IndexError: a mask has another shape than the axes that it stands for.
    """
    kept = [np.asarray(each) if isinstance(each, (list, range, bool, np.bool_)) else each for each in parts]
    widths = [0 if each is None else len(each.shape) if _is_mask(each) else 1 for each in kept if each is not Ellipsis]
    axis = 0
    for each in kept:
        if each is Ellipsis:
            axis += len(array._shape) - sum(widths)
        elif _is_mask(each):
            covered = array._shape[axis : axis + len(each.shape)]
            # A length of 0 fits any, as in NumPy: it chooses nothing.
            fits = [length in (0, whole) for length, whole in zip(each.shape, covered, strict=False)]
            if len(covered) != len(each.shape) or not all(fits):
                raise IndexError(
                    f"the mask has shape {tuple(each.shape)}, but the axes that it stands for are {covered}"
                )
            axis += len(each.shape)
        elif each is not None:
            axis += 1
    return tuple(kept)


def _is_mask(part: Any) -> bool:
    if isinstance(part, BaseArray):
        return part._dtype.kind == "b"
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"


def _is_number(value: Any) -> bool:
    if isinstance(value, (BaseArray, np.ndarray)):
        return value.shape == ()
    return isinstance(value, (int, float, complex))


def _gathered(array: BaseArray, parts: tuple[Any, ...]) -> Any:
    array, parts = _with_axes(array, parts)
    return indexing._gather(array, _indices(array, parts))


_QUICK = frozenset([int, float, ndarray])


def _unpickled() -> Any:
    return object.__new__(ndarray)


def _method(name: str) -> Callable[..., Any]:
    """The method of a function of ``mx.np``, whose first argument is the array."""
    run = calls.waiting(name) if name in table.WAITING else calls.Calls(table.RENAMED.get(name, name))

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run((self, *args), kwargs)

    method.__name__ = name
    method.__qualname__ = f"ndarray.{name}"
    method.__doc__ = f"As :func:`flowmx.np.{name}` of this array."
    return method


for _name in table.METHODS:
    if _name not in vars(ndarray):
        setattr(ndarray, _name, _method(_name))
