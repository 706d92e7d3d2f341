"""``mx.nd.NDArray``: an array on a device, computed asynchronously by the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.engine.runtime import engine
from flowmx.errors import ShapeError
from flowmx.foreign_names import ARRAYS, raise_missing
from flowmx.late_binding import late
from flowmx.ndarray import indexing, recorded_writes, recording, views
from flowmx.ndarray.arithmetic import Arithmetic
from flowmx.ndarray.copies import copy_into
from flowmx.ndarray.core import BaseArray, Storage, allocate
from flowmx.ndarray.creation import array, on_context, zeros_of
from flowmx.ndarray.dlpack import capsule_of
from flowmx.ndarray.methods import Methods
from flowmx.ndarray.recording import Leaf
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array, Shape
from flowmx.ops.sparse.shapes import SparseShape

if TYPE_CHECKING:
    from flowmx.numpy.arrays import ndarray as np_ndarray

N = TypeVar("N", bound="NDArray")
Scalar = float | int | bool | np.generic

_scalar_types = (float, int, bool, np.generic)


class NDArray(Methods, Arithmetic):
    """An array with one element type, on one device.

    Operations return immediately; the engine computes the content. ``await array`` waits for the content without
    blocking the thread; ``asnumpy()``, ``asscalar()`` and ``wait_to_read()`` block.

    Create arrays with functions such as :func:`flowmx.nd.array` and :func:`flowmx.nd.zeros`, not with the class.

    Example:
        >>> a = mx.nd.ones((2, 3))
        >>> (a * 2).asnumpy()
        array([[2., 2., 2.],
               [2., 2., 2.]], dtype=float32)
    """

    __array_priority__ = 1000.0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError, which names the equivalent of another library's attribute."""
            raise_missing(self, name, ARRAYS)

    # -- properties ------------------------------------------------------------------------------------

    @property
    def dtype(self) -> type[np.generic]:
        """The element type, as NumPy's type object."""
        kind: type[np.generic] = self.element_type.type
        return kind

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.dims)

    @property
    def ctx(self) -> Context:
        """The context of the array's device."""
        return self.storage.device.context

    @property
    def stype(self) -> str:
        """The storage type: ``default`` for dense arrays, ``csr`` or ``row_sparse`` for sparse ones."""
        return "default"

    @property
    def writable(self) -> bool:
        """Always True: arrays can be written to."""
        return True

    @property
    def T(self) -> NDArray:
        """The array with its axes reversed."""
        return self._call("transpose")

    @property
    def grad(self) -> NDArray | None:
        """The gradient buffer that :meth:`attach_grad` created, or None."""
        leaf = views.variable_of(self)
        return None if leaf is None else cast("NDArray | None", leaf.grad)

    def __len__(self) -> int:
        if not self.dims:
            raise TypeError("len() of a 0-d array")
        return self.dims[0]

    def __repr__(self) -> str:
        """Format the content, the shape and the device; block until the content is computed."""
        try:
            engine.wait_variable(self.storage)
        except Exception as error:  # the failed operation may have raised anything
            return f"<NDArray {'x'.join(map(str, self.dims))} @{self.context}, failed: {type(error).__name__}: {error}>"
        return f"\n{self._host()}\n<NDArray {'x'.join(map(str, self.dims))} @{self.context}>"

    def _repr_html_(self) -> str:
        from flowmx.ndarray.notebook import html

        return html(self)

    # -- reading ---------------------------------------------------------------------------------------

    def _host(self) -> Any:
        """Return the content as a NumPy array, without a copy if possible. Call this only after a wait."""
        storage = self.storage
        if storage.array is None:
            storage.ensure()
        return storage.device.to_host(self.raw())

    def asnumpy(self) -> Array:
        """Copy the content into a NumPy array; block until it is computed.

        Inside a coroutine, ``await array`` first.
        """
        engine.wait_variable(self.storage)
        host: Array = self._host()
        return host if self.storage.device.reads_are_copies else np.array(host)

    def asscalar(self) -> float:
        """Return the only element as a NumPy scalar; block until it is computed.

        Raises:
            ValueError: the array does not have exactly one element.
        """
        if self.size != 1:
            raise ValueError(f"asscalar: the array has shape {self.dims}, expected exactly one element")
        element: float = self.asnumpy().reshape(-1)[0]
        return element

    def item(self) -> float:
        """Return the only element as a Python number."""
        number: float = self.asnumpy().item()
        return number

    def tolist(self) -> Any:
        """Return the content as nested lists."""
        return self.asnumpy().tolist()

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        value = self.asscalar()
        if not np.issubdtype(self.element_type, np.integer):
            raise TypeError(f"only arrays of an integer dtype can be an index, this one has dtype {self.element_type}")
        return int(value)

    def __bool__(self) -> bool:
        if self.size == 0:
            return False
        if self.size != 1:
            raise ValueError(
                f"the truth of an array of shape {self.dims} is ambiguous, expected one element: use .min() (all "
                "true), .max() (any true) or .sum()"
            )
        return bool(self.asscalar())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        host = self.asnumpy()
        return host if dtype is None else host.astype(dtype)

    def __jax_array__(self) -> Any:
        """Convert to a JAX array (``jnp.asarray(x)`` calls this); block until the content is computed."""
        import jax.numpy

        return jax.numpy.asarray(self.asnumpy())

    def __iter__(self) -> Iterator[NDArray]:
        if not self.dims:
            raise TypeError("a 0-d array cannot be iterated over")
        for index in range(self.dims[0]):
            yield self[index]

    def __contains__(self, value: Any) -> bool:
        return bool((self.asnumpy() == np.asarray(value)).any())

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.storage.device.dlpack_device

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule that shares this array's memory; block until the content is computed."""
        engine.wait_variable(self.storage)
        self.storage.ensure()
        return capsule_of(self.raw(), **options)

    def to_dlpack_for_read(self) -> Any:
        """Return a DLPack capsule for reading (MXNet's name)."""
        return self.__dlpack__()

    def to_dlpack_for_write(self) -> Any:
        """Return a DLPack capsule for writing (MXNet's name); also wait for pending readers."""
        self.wait_to_write()
        return self.__dlpack__()

    def __getstate__(self) -> dict[str, object]:
        return {"data": self.asnumpy(), "context": self.context}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if "handle" in saved:  # a pickle of MXNet: the bytes of a file; its GPU may not exist here
            saved = {"data": late("serialization.params").loads_one(saved["handle"]), "context": devices.cpu()}
        device = devices.get(saved["context"])
        data = saved["data"]
        if device.is_asynchronous:
            self.storage = array(data, device.context, data.dtype).storage
        else:
            self.storage = Storage(device, data.shape, data.dtype, np.ascontiguousarray(data).reshape(data.shape))
        self.dims, self.element_type = data.shape, data.dtype
        self.strided_view = self.history = None

    def __reduce__(self) -> Any:
        return _unpickled, (), self.__getstate__()

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -- moving and converting -------------------------------------------------------------------------

    @overload
    def copyto(self, other: Context) -> Self: ...

    @overload
    def copyto(self, other: N) -> N: ...

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the content into an array, or into a new array on a context; return the copy.

        Raises:
            ShapeError: the shapes differ.
        """
        if isinstance(other, Context):
            other = cast("NDArray", allocate(on_context(other), self.dims, self.element_type))
        elif not isinstance(other, NDArray):
            raise TypeError(f"copyto: target is {type(other).__name__}, expected an NDArray or a context")
        if other is self:
            return other
        if other.dims != self.dims:
            if isinstance(other.dims, SparseShape):
                late("ndarray.sparse.calls").copy(self, other)
                return other
            raise ShapeError(f"copyto: target has shape {other.dims}, expected {self.dims}")
        if recording.state.get().recording:
            recorded_writes.record_copy(self, other)
        copy_into(self, other)
        return other

    def copy(self) -> Self:
        """Return a copy on the same device."""
        return self._call("_copy")

    def as_in_context(self, context: Context) -> Self:
        """Return this array if it is on ``context``, else a copy there."""
        if self.context is context:
            return self
        return self.copyto(context)

    def as_in_ctx(self, ctx: Context) -> Self:
        """The newer name of :meth:`as_in_context`."""
        return self.as_in_context(ctx)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Convert to another element type."""
        target_dtype = as_dtype(dtype)
        if not copy and target_dtype == self.element_type:
            return self
        return self._call("Cast", dtype=target_dtype)

    def as_np_ndarray(self) -> np_ndarray:
        """Return an ``mx.np`` array that shares this memory."""
        array: np_ndarray = late("numpy.arrays").as_ndarray(self)
        return array

    def as_nd_ndarray(self) -> NDArray:
        """Return this array (for MXNet's scripts)."""
        return self

    def tostype(self, stype: str) -> NDArray:
        """Convert to a storage type: return this array for ``default``, else a new ``csr`` or ``row_sparse`` array.

        Raises:
            ValueError: unknown type, or ``csr`` and the array is not a matrix.
        """
        if stype == "default":
            return self
        if stype == "csr" and len(self.dims) != 2:
            raise ValueError(f"tostype: a csr array has 2 axes, but this array's shape is {self.dims}")
        return self._call("cast_storage", stype=stype)

    # -- autograd --------------------------------------------------------------------------------------

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Make this array a variable of autograd, with a gradient buffer of zeros.

        Args:
            grad_req: ``"write"``, ``"add"`` (backward passes accumulate) or ``"null"``.
            stype: the buffer's storage type, such as ``"row_sparse"`` (default: the array's).

        Raises:
            ValueError: unknown ``grad_req``.
        """
        check_request(grad_req)
        grad = None
        if grad_req != "null":
            grad = zeros_of(stype or self.stype, self.shape, self.context, self.element_type)
        views.mark(self, None if grad is None else Leaf(grad, grad_req))

    def detach(self) -> Self:
        """Return an array that shares the memory but has no history, so that no gradient flows through it."""
        return views.detach(self)

    def backward(self, out_grad: NDArray | None = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Compute the gradients of this array with respect to the marked variables."""
        late("autograd").backward([self], None if out_grad is None else [out_grad], retain_graph, train_mode)

    # -- indexing and shape ----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        return cast("NDArray", indexing.get(self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.dims and isinstance(key, slice) and key == slice(None):
            key = ()  # array[:] = value assigns an array without axes, too, as in MXNet
        indexing.put(self, key, value)

    def slice_assign(self, rhs: NDArray, begin: Shape, end: Shape, step: Shape | None = None) -> NDArray:
        """Assign an array to a slice, with the arguments of the operator ``slice``; return the array."""
        steps = step or (None,) * len(begin)
        self[tuple(slice(b, e, s) for b, e, s in zip(begin, end, steps, strict=True))] = rhs
        return self

    def slice_assign_scalar(self, value: float, begin: Shape, end: Shape, step: Shape | None = None) -> NDArray:
        """Assign a number to a slice; return the array."""
        return self.slice_assign(cast("NDArray", value), begin, end, step)

    def reshape(self, *shape: Any, reverse: bool = False, **kwargs: Any) -> NDArray:
        """Return the content in a different shape, sharing memory if possible.

        MXNet's special codes: 0 keeps the input's axis, -1 infers one axis, -2 copies all remaining axes, -3
        merges two axes, -4 splits one axis into the two lengths that follow. ``reverse`` matches from the right.
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


def dtype_of(array: BaseArray) -> DType:
    """Return the dtype object (``array.dtype`` is NumPy's type object)."""
    return array.element_type
