"""``mx.nd.NDArray``: an array on a device, computed asynchronously by the engine."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.engine import capture
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation
from flowmx.errors import ShapeError
from flowmx.ndarray import core, indexing, recording, views, writing
from flowmx.ndarray.core import BaseArray, Storage, allocate
from flowmx.ndarray.dlpack import capsule_of
from flowmx.ndarray.methods import Methods
from flowmx.ndarray.operators import Arithmetic
from flowmx.ndarray.recording import Leaf
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.serialization import params

Scalar = float | int | bool | np.generic

_scalar_types = (float, int, bool, np.generic)


class NDArray(Methods, Arithmetic):
    """An array of one element type on one device.

    Every operation on it returns at once; its content is computed by the engine. ``await array`` goes on
    when the content is there; ``asnumpy()``, ``asscalar()`` and ``wait_to_read()`` block until then.

    Made by functions such as :func:`flowmx.nd.array` and :func:`flowmx.nd.zeros`, not by its class.

    Example:
        >>> a = mx.nd.ones((2, 3))
        >>> (a * 2).asnumpy()
        array([[2., 2., 2.],
               [2., 2., 2.]], dtype=float32)
    """

    __array_priority__ = 1000.0

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def dtype(self) -> Any:
        """The element type, as NumPy's type object."""
        return self._dtype.type

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def ctx(self) -> Context:
        """The device that it lives on."""
        return self._storage.device.context

    @property
    def stype(self) -> str:
        """The storage type: ``default`` (dense); that of sparse arrays is ``csr`` or ``row_sparse``."""
        return "default"

    @property
    def writable(self) -> bool:
        """True: arrays can be written."""
        return True

    @property
    def T(self) -> NDArray:
        """The array with its axes reversed."""
        return self._call("transpose")

    @property
    def grad(self) -> Any:
        """The gradient buffer (an NDArray) that :meth:`attach_grad` made, or None."""
        leaf = views.variable_of(self)
        return None if leaf is None else leaf.grad

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d array")
        return self._shape[0]

    def __repr__(self) -> str:
        """The content (this waits for it), the shape and the device."""
        try:
            engine.wait_variable(self._storage)
        except Exception as error:
            return (
                f"<NDArray {'x'.join(map(str, self._shape))} @{self.context}, failed: {type(error).__name__}: {error}>"
            )
        return f"\n{self._host()}\n<NDArray {'x'.join(map(str, self._shape))} @{self.context}>"

    def _repr_html_(self) -> str:
        from flowmx.ndarray.notebook import html

        return html(self)

    # -- reading ---------------------------------------------------------------------------------------

    def _host(self) -> Any:
        """The content as a NumPy array that shares memory where it can (after a wait)."""
        storage = self._storage
        if storage.array is None:
            storage.ensure()
        return storage.device.to_host(self._read())

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """A copy of the content as a NumPy array; blocks until it is there.

        Inside a coroutine, ``await array`` first.
        """
        engine.wait_variable(self._storage)
        host: np.ndarray[Any, Any] = self._host()
        return host if self._storage.device.reads_are_copies else np.array(host)

    def asscalar(self) -> Any:
        """The only element, as a NumPy scalar; blocks until it is there.

        Raises:
            ValueError: the array has not exactly one element.
        """
        if self.size != 1:
            raise ValueError(f"asscalar: the array has shape {self._shape}, expected exactly one element")
        return self.asnumpy().reshape(())[()]

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self.asscalar().item()

    def tolist(self) -> Any:
        """The content as nested lists."""
        return self.asnumpy().tolist()

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        value = self.asscalar()
        if not np.issubdtype(self._dtype, np.integer):
            raise TypeError(f"only arrays of a whole-number dtype can be an index, this one is {self._dtype}")
        return int(value)

    def __bool__(self) -> bool:
        if self.size == 0:
            return False
        if self.size != 1:
            raise ValueError(
                f"the truth of an array of shape {self._shape} is ambiguous, expected one element: ask .min() (are all "
                "true?), .max() (is any?) or .sum() of it"
            )
        return bool(self.asscalar())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host = self.asnumpy()
        return host if dtype is None else host.astype(dtype)

    def __jax_array__(self) -> Any:
        """The content as an array of JAX (``jnp.asarray(x)``), which calls this; blocks until it is there."""
        import jax.numpy

        return jax.numpy.asarray(self.asnumpy())

    def __iter__(self) -> Iterator[NDArray]:
        if not self._shape:
            raise TypeError("a 0-d array can not be iterated over")
        for index in range(self._shape[0]):
            yield self[index]

    def __contains__(self, value: Any) -> bool:
        return bool((self.asnumpy() == np.asarray(value)).any())

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._storage.device.dlpack_device

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule that shares this array's memory; blocks until the content is there."""
        engine.wait_variable(self._storage)
        self._storage.ensure()
        return capsule_of(self._read(), **options)

    def to_dlpack_for_read(self) -> Any:
        """A DLPack capsule for reading (MXNet's name)."""
        return self.__dlpack__()

    def to_dlpack_for_write(self) -> Any:
        """A DLPack capsule for writing (MXNet's name); waits for pending readers too."""
        self.wait_to_write()
        return self.__dlpack__()

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.asnumpy(), "context": self.context}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if "handle" in saved:  # MXNet's pickles hold the bytes of a file; a GPU of theirs need not be here
            saved = {"data": params.loads_one(saved["handle"]), "context": devices.cpu()}
        device = devices.get(saved["context"])
        data = saved["data"]
        if device.is_asynchronous:
            self._storage = array(data, device.context, data.dtype)._storage
        else:
            self._storage = Storage(device, data.shape, data.dtype, np.ascontiguousarray(data).reshape(data.shape))
        self._shape, self._dtype = data.shape, data.dtype
        self._view = self._past = None

    def __reduce__(self) -> Any:
        return _unpickled, (), self.__getstate__()

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -- moving and converting -------------------------------------------------------------------------

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the content into another array, or into a new one on a context; returns that array.

        Raises:
            ShapeError: the other array has another shape.
        """
        if isinstance(other, Context):
            other = cast("NDArray", allocate(on_context(other), self._shape, self._dtype))
        elif not isinstance(other, NDArray):
            raise TypeError(f"copyto: target is {type(other).__name__}, expected an NDArray or a context")
        if other is self:
            return other
        if other._shape != self._shape:
            if isinstance(other._shape, SparseShape):
                _sparse("calls").copy(self, other)
                return other
            raise ShapeError(f"copyto: target has shape {other._shape}, expected {self._shape}")
        if recording.state.get().recording:
            writing.record_copy(self, other)
        copy_into(self, other)
        return other

    def copy(self) -> NDArray:
        """A copy on the same device."""
        return self._call("_copy")

    def as_in_context(self, context: Context) -> NDArray:
        """This array if it lives on ``context``, else a copy there."""
        if self.context is context:
            return self
        return self.copyto(context)

    def as_in_ctx(self, ctx: Context) -> NDArray:
        """The newer name of :meth:`as_in_context`."""
        return self.as_in_context(ctx)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """The content as another element type."""
        wanted = as_dtype(dtype)
        if not copy and wanted == self._dtype:
            return self
        return self._call("Cast", dtype=wanted)

    def as_np_ndarray(self) -> Any:
        """The same memory as an array of ``mx.np``."""
        return importlib.import_module("flowmx.numpy.arrays").as_ndarray(self)  # a higher floor, imported late

    def as_nd_ndarray(self) -> NDArray:
        """This array (kept for MXNet's scripts)."""
        return self

    def tostype(self, stype: str) -> NDArray:
        """The array in a storage type: itself, or what it has stored as ``csr`` or ``row_sparse``.

        Raises:
            ValueError: there is no such type, or the array is no matrix, which ``csr`` takes.
        """
        if stype == "default":
            return self
        if stype == "csr" and len(self._shape) != 2:
            raise ValueError(f"tostype: a csr array has 2 axes, but this array's shape is {self._shape}")
        return self._call("cast_storage", stype=stype)

    # -- autograd --------------------------------------------------------------------------------------

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Make this array a variable of autograd, with a gradient buffer of zeros.

        Args:
            grad_req: ``"write"``, ``"add"`` (backward passes accumulate) or ``"null"``.
            stype: the buffer's storage type, as ``"row_sparse"`` (default: the array's).

        Raises:
            ValueError: unknown ``grad_req``.
        """
        check_request(grad_req)
        grad = None
        if grad_req != "null":
            grad = zeros_of(stype or self.stype, self.shape, self.context, self._dtype)
        views.mark(self, None if grad is None else Leaf(grad, grad_req))

    def detach(self) -> NDArray:
        """The same memory without history: no gradient flows through it."""
        return cast("NDArray", views.detach(self))

    def backward(self, out_grad: NDArray | None = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Compute the gradients of this array with respect to the marked variables."""
        from flowmx import autograd

        autograd.backward([self], None if out_grad is None else [out_grad], retain_graph, train_mode)

    # -- indexing and shape ----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        return cast("NDArray", indexing.get(self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.put(self, key, value)

    def slice_assign(self, rhs: NDArray, begin: Shape, end: Shape, step: Shape | None = None) -> NDArray:
        """Assign an array to a slice, given as the operator ``slice`` takes it; returns the array."""
        steps = step or (None,) * len(begin)
        self[tuple(slice(b, e, s) for b, e, s in zip(begin, end, steps, strict=True))] = rhs
        return self

    def slice_assign_scalar(self, value: float, begin: Shape, end: Shape, step: Shape | None = None) -> NDArray:
        """Assign a number to a slice; returns the array."""
        return self.slice_assign(cast("NDArray", value), begin, end, step)

    def reshape(self, *shape: Any, reverse: bool = False, **kwargs: Any) -> NDArray:
        """The same content with another shape; shares memory where that is possible.

        MXNet's special codes: 0 keeps the input's axis, -1 infers one axis, -2 copies all the rest, -3
        merges two axes, -4 splits one axis into the two that follow. ``reverse`` matches from the right.
        """
        if "shape" in kwargs:
            shape = (kwargs["shape"],)
        if len(shape) == 1 and isinstance(shape[0], (tuple, list, np.ndarray)):
            shape = tuple(shape[0])
        return cast("NDArray", indexing.reshape(self, tuple(int(n) for n in shape), reverse))

    def broadcast_to(self, shape: Sequence[int]) -> NDArray:
        """Repeat axes of length 1 until the shape is ``shape``."""
        return self._call("broadcast_to", shape=tuple(shape))


def _unpickled() -> NDArray:
    return object.__new__(NDArray)


BaseArray.public = NDArray


def check_request(grad_req: str) -> None:
    """Raise ValueError for an unknown gradient request."""
    if grad_req not in ("write", "add", "null"):
        raise ValueError(f"grad_req is {grad_req!r}, expected 'write', 'add' or 'null'")


# -- making arrays -----------------------------------------------------------------------------------------


def as_shape(shape: Any) -> Shape:
    """A shape from a number or a sequence, NumPy's arrays among them.

    Raises:
        ShapeError: a negative length, or one that is no int.
    """
    if isinstance(shape, np.ndarray):
        shape = shape.tolist()
    try:
        is_number = not isinstance(shape, (tuple, list)) and isinstance(shape, SupportsIndex)
        made = (int(shape),) if is_number else tuple([int(n) for n in shape])
    except (TypeError, ValueError):
        raise ShapeError(f"shape is {shape!r}, expected ints") from None
    if min(made, default=0) < 0:
        raise ShapeError(f"shape is {made}, expected lengths from 0")
    return made


def _sparse(module: str) -> Any:
    """A module for sparse arrays, which is imported when it is needed."""
    return importlib.import_module(f"flowmx.ndarray.sparse.{module}")


def zeros_of(stype: str, shape: Shape, ctx: Context | None, dtype: Any) -> NDArray:
    """Zeros of a storage type."""
    if stype == "default":
        return full(shape, 0, ctx, dtype)
    return cast("NDArray", _sparse("creation").zeros(stype, shape, ctx, dtype))


def on_context(ctx: Context | None) -> devices.Device:
    """The device of a context (None: the current one)."""
    return devices.get(devices.current_context() if ctx is None else Context(ctx))


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array whose content is not set; of a sparse storage type it is zeros."""
    if stype not in (None, "default"):
        return cast("NDArray", _sparse("creation").empty(stype, shape, ctx, dtype))
    device, dtype = on_context(ctx), as_dtype(dtype)
    shape = as_shape(shape)
    return cast("NDArray", allocate(device, shape, dtype, device.allocate(shape, dtype)))


def _fill(target: BaseArray, value: Any) -> None:
    target._written()[...] = value


def _fill_each(targets: Iterable[BaseArray]) -> None:
    for each in targets:
        _fill(each, 0)


def unfilled(shape: Any, ctx: Context | None, dtype: Any) -> NDArray:
    """An array for :func:`fill_with_zeros`."""
    return cast("NDArray", allocate(on_context(ctx), as_shape(shape), as_dtype(dtype)))


def fill_with_zeros(arrays: Iterable[NDArray]) -> None:
    """Fill new arrays: small ones, of which a network has many, by one operation for each device."""
    small: dict[devices.Device, list[NDArray]] = {}
    for each in arrays:
        size, device = each.size * each._dtype.itemsize, each._storage.device
        if size < _SMALL:
            small.setdefault(device, []).append(each)
        else:
            core.push_on(device, _fill, (each, 0), (), (each._storage,), _FILLED[0], False, size, 3)
    for device, some in small.items():
        size = sum(each.size * each._dtype.itemsize for each in some)
        storages = tuple([each._storage for each in some])
        core.push_on(device, _fill_each, (some,), (), storages, _FILLED[0], size < _SMALL, size, 3)


def full(shape: Any, val: Any, ctx: Context | None = None, dtype: Any = None, out: NDArray | None = None) -> NDArray:
    """An array filled with one number."""
    device, kind, shape = on_context(ctx), as_dtype(dtype), as_shape(shape)
    made = cast("NDArray", allocate(device, shape, kind)) if out is None else out
    if out is not None and recording.state.get().recording:
        writing.record_constant(out, "full")
    size = made.size * kind.itemsize
    name = _FILLED.get(val, "full") if val.__class__ is int else "full"
    core.push_on(device, _fill, (made, val), (), (made._storage,), name, size < _SMALL, size, 3)
    return made


_SMALL = 1 << 16
"""Bytes below which an array is filled at once, by the thread that makes it."""
_FILLED = {0: "_zeros", 1: "_ones"}


def untouched(shape: Shape, dtype: Any) -> NDArray:
    """Zeros of the CPU that take up no memory until something is written into them."""
    kind = as_dtype(dtype)
    return cast("NDArray", allocate(devices.get(devices.cpu()), shape, kind, np.zeros(shape, kind)))


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array with the content of a NumPy array, nested lists, a number, or another array.

    The default dtype is the source's for arrays of ours, else float32, as in MXNet.
    """
    if _is_sparse(source_array):
        return cast("NDArray", _sparse("creation").array(source_array, ctx, dtype))
    if isinstance(source_array, NDArray):
        kind = source_array._dtype if dtype is None else as_dtype(dtype)
        core.warn_of_crossing(source_array._storage.device, devices.get(devices.cpu()), "array()", depth=2)
        source_array = source_array.asnumpy()
    elif dtype is None:
        kind = as_dtype(None)
    else:
        kind = as_dtype(dtype)
    try:
        data = np.array(np.asarray(source_array) if dtype is None else source_array, dtype=kind, order="C")
    except (ValueError, TypeError) as error:
        raise _no_numbers(source_array, kind, error) from None
    device = on_context(ctx)
    if not device.is_asynchronous:
        return cast("NDArray", allocate(device, data.shape, kind, data))
    made = cast("NDArray", allocate(device, data.shape, kind))
    copy_into(allocate(devices.get(devices.cpu()), data.shape, kind, data), made)
    return made


def _is_sparse(source: Any) -> bool:
    """Tell whether something is a sparse array, of ours or of SciPy's."""
    if isinstance(source, NDArray):
        return isinstance(source._shape, SparseShape)
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(source))


def _no_numbers(source: Any, kind: DType, error: Exception) -> Exception:
    """The error of a source that is no array of numbers: says what was given."""
    shown = " ".join(repr(source).split())
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    why = "its rows have different lengths" if "inhomogeneous" in str(error) else str(error)
    return type(error)(f"array: {type(source).__name__} {shown} is no array of {kind.name}: {why}")


def copy_into(source: BaseArray, target: BaseArray, priority: int = 0) -> None:
    """Enqueue a copy, between devices on the target's copy actor, converting the dtype. It is not recorded."""
    notes = recording.state.get().notes
    if notes is not None:
        notes.refuse()
    here, there = source._storage.device, target._storage.device
    actor = there.compute if here is there else there.copy_actor(here)
    reads = (source._storage, target._storage) if target._view is not None else (source._storage,)
    light = math.prod(source._shape) * source._dtype.itemsize < 1 << 16
    op = Operation(_copy, (there, source, target), reads, (target._storage,), actor, "copy", capture(), 0, light)
    if priority:
        op.priority = priority
    engine.enqueue(op)


def _copy(device: devices.Device, source: BaseArray, target: BaseArray) -> None:
    here = source._storage.device
    if here.is_asynchronous and not device.is_asynchronous:
        here.copy_out(source._read(), target._written())
    else:
        device.copy(source._read(), target._written())


def dtype_of(array: BaseArray) -> DType:
    """The dtype object (``array.dtype`` is NumPy's type object)."""
    return array._dtype
