"""Parameters of Gluon's blocks: an array and a gradient on each device, allocated once the shape is known.

All functions enqueue work and return; only writing a file blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np

from flowmx import autograd, forks, initializer, symbol
from flowmx import ndarray as nd
from flowmx.devices import Context, cpu, current_context, have_numerics
from flowmx.errors import ArgumentError, MismatchError, MXNetError, NoParameterValue, StateError
from flowmx.foreign_names import PARAMETERS, raise_missing
from flowmx.initializer import InitDesc, Initializer
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import check_request
from flowmx.ndarray.creation import untouched
from flowmx.ndarray.mixed_devices import plain
from flowmx.ndarray.views import mark, variable_of
from flowmx.ops.registry.dtypes import DTypeLike, as_dtype, name_of
from flowmx.ops.registry.operators import Shape
from flowmx.overrides import is_replaced
from flowmx.semantics import semantics, with_semantics
from flowmx.symbol import Symbol

__all__ = ["Constant", "DeferredInitializationError", "Parameter"]

Contexts = Context | Sequence[Context] | None
Arrays = dict[Context, NDArray]


class DeferredInitializationError(MXNetError):
    """A parameter's array was requested before the first forward pass, which determines its shape."""


class _Deferred(NamedTuple):
    """Arguments of an initialization that is deferred until the shape is known."""

    init: Any
    contexts: list[Context]
    default: Any
    data: NDArray | None


class Parameter:
    """A weight of a block: an array and a gradient for each device.

    Args:
        name: the full name.
        grad_req: ``"write"``, ``"add"`` (backward passes accumulate until :meth:`zero_grad`) or ``"null"``.
        shape: the shape; 0 or -1 stands for an unknown length.
        dtype: the element type.
        lr_mult: a factor of the learning rate.
        wd_mult: a factor of the weight decay.
        init: the initializer, an instance or a name (default: the model's).
        allow_deferred_init: allow initialization to be deferred until the shape is known.
        differentiable: False for a parameter that never has a gradient (a running mean).
        stype: the storage type; a ``"row_sparse"`` parameter is read with :meth:`row_sparse_data`.
        grad_stype: the gradient's storage type; with ``"row_sparse"`` an update may change only the rows of the batch.

    Raises:
        ValueError: ``grad_req`` or a storage type is unknown.

    Example:
        >>> weight = mx.gluon.Parameter("fc_weight", shape=(64, 100), init=mx.init.Xavier())
        >>> weight.initialize(ctx=mx.cpu())
        >>> out = mx.nd.FullyConnected(x, weight.data(), no_bias=True, num_hidden=64)
    """

    may_be_unused = False
    """Whether a graph may leave it out without a warning."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError, which names the equivalent of another library's attribute."""
            raise_missing(self, name, PARAMETERS)

    _trainer: Any = None
    """The trainer, for a sparse parameter only."""

    def __init__(
        self, name: str, grad_req: str = "write", shape: int | Sequence[int] | None = None,
        dtype: DTypeLike = np.float32, lr_mult: float = 1.0, wd_mult: float = 1.0, init: Any = None,
        allow_deferred_init: bool = False, differentiable: bool = True, stype: str = "default",
        grad_stype: str = "default",
    ) -> None:  # fmt: skip
        for key, storage in (("stype", stype), ("grad_stype", grad_stype)):
            if storage not in _STYPES:
                raise ArgumentError(f"Parameter {name!r}: {key} is {storage!r}, expected one of {', '.join(_STYPES)}")
        self._stype, self._grad_stype = stype, grad_stype
        as_dtype(dtype)
        self.name = name
        self.lr_mult = lr_mult
        self.wd_mult = wd_mult
        self.init = init
        self._dtype = dtype
        self._shape: Shape | None = None if shape is None else _as_tuple(shape)
        self._allow_deferred_init = allow_deferred_init
        self._differentiable = differentiable
        self._grad_req = "null"
        self._arrays: Arrays | None = None
        self._grads: Arrays | None = None
        self._used_versions: dict[Context, int] = {}
        """The version of each gradient at its last use by an update."""
        self._deferred: _Deferred | None = None
        self._var: Symbol | None = None
        self._init_lock = forks.lock()
        self.grad_req = grad_req

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_trainer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._used_versions = {}
        if self._arrays is not None and self._grads is not None:  # copies of arrays are not variables of autograd
            autograd.mark_variables(list(self._arrays.values()), list(self._grads.values()), self._grad_req)
            # The new variables do not have the initial version.
            self._used_versions = {ctx: grad.variable.version for ctx, grad in self._grads.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={self.dtype})"

    # -- attributes ------------------------------------------------------------------------------------

    @property
    def grad_req(self) -> str:
        """The gradient request: ``"write"``, ``"add"`` or ``"null"``; setting ``"null"`` frees the gradient's memory.

        Raises:
            ValueError: the new value is unknown.
        """
        return self._grad_req

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        check_request(req)
        req = req if self._differentiable else "null"
        if req == self._grad_req:
            return
        self._grad_req = req
        if self._arrays is not None:
            self._init_grad()

    @property
    def dtype(self) -> np.dtype[Any] | type[np.generic] | str:
        """The element type; assigning to it calls :meth:`cast`."""
        return cast("np.dtype[Any] | type[np.generic] | str", self._dtype)

    @dtype.setter
    def dtype(self, dtype: DTypeLike) -> None:
        self.cast(dtype)

    @property
    def shape(self) -> Shape | None:
        """The shape; an unknown length is 0, or -1 within `mx.np_shape`; None if nothing is known.

        Raises:
            ShapeError: the new shape contradicts the known lengths.
        """
        shape = self._shape
        if shape is None or all(n > 0 for n in shape):
            return shape
        unknown = -1 if semantics.get().shape else 0
        return tuple(n if n > 0 else unknown for n in shape)

    @shape.setter
    def shape(self, new_shape: Sequence[int]) -> None:
        old, new = self._shape, _as_tuple(new_shape)
        if old is not None and not _fits(old, new):
            raise MismatchError(f"parameter {self.name!r}: shape {new} does not match {old}")
        if new != old:
            self._shape, self._var = new, None

    def var(self) -> Symbol:
        """Return the symbol of this parameter in graphs."""
        if self._var is None:
            self._var = symbol.Variable(
                self.name, shape=None if self._shape is None else tuple(max(0, n) for n in self._shape),
                dtype=self._dtype, lr_mult=self.lr_mult, wd_mult=self.wd_mult, init=self._init_text(),
                stype=None if self._stype == "default" else self._stype,
            )  # fmt: skip
        return self._var

    def _init_text(self) -> str | None:
        return self.init if self.init is None or isinstance(self.init, str) else self.init.dumps()

    # -- reading ---------------------------------------------------------------------------------------

    def data(self, ctx: Context | None = None) -> NDArray:
        """Return the array on a device: ``ctx``, or the only device, or the current one.

        Raises:
            DeferredInitializationError: the shape is not known yet.
            RuntimeError: the parameter is not initialized, or not on that device.
        """
        arrays = self._arrays
        if self._stype != "default":
            self._refuse_sparse("data", "row_sparse_data")
        array = None if arrays is None or ctx is None else arrays.get(ctx)
        return self._array_on(arrays, ctx) if array is None else array

    def replace_arrays(self, arrays: dict[Context, NDArray] | None) -> None:
        """Replace the arrays of all devices; None makes the parameter uninitialized."""
        self._arrays = arrays

    def replace_grads(self, grads: dict[Context, NDArray] | None) -> None:
        """Replace the gradients of all devices; None removes them."""
        self._grads = grads

    def defer(self, deferred: Sequence[Any]) -> None:
        """Defer initialization with (initializer, contexts, default initializer, data); empty cancels it."""
        self._deferred = _Deferred(deferred[0], list(deferred[1]), *deferred[2:]) if deferred else None

    def list_data(self) -> list[NDArray]:
        """Return the arrays, in the order of :meth:`list_ctx`."""
        self._refuse_sparse("list_data", "list_row_sparse_data")
        return self._copies()

    def _copies(self) -> list[NDArray]:
        """Return the arrays of any storage type."""
        return list(self._require(self._arrays).values())

    def _refuse_sparse(self, call: str, instead: str) -> None:
        if self._stype != "default":
            raise RuntimeError(
                f"parameter {self.name!r} is {self._stype}, so it has no {call}(): select rows with {instead}()"
            )

    def _set_trainer(self, trainer: Any) -> None:
        """Set the parameter's trainer, or None.

        Raises:
            StateError: the parameter is sparse and has another trainer.
        """
        if self._stype != "default" and trainer is not None and self._trainer not in (None, trainer):
            raise StateError(
                f"Trainer: the {self._stype} parameter {self.name!r} already has a Trainer, and can have only one"
            )
        if self._stype != "default":
            self._trainer = trainer

    def row_sparse_data(self, row_id: NDArray) -> NDArray:
        """Return rows of a row_sparse parameter, on the device of ``row_id``; backward passes write their gradient.

        Raises:
            RuntimeError: the parameter is dense, is not initialized, or has no trainer.
        """
        self._expect_rows("row_sparse_data", "data")
        return self._rows(self._array_on(self._arrays, row_id.context), row_id)

    def list_row_sparse_data(self, row_id: NDArray) -> list[NDArray]:
        """Return rows of the arrays on all devices; see :meth:`row_sparse_data`."""
        self._expect_rows("list_row_sparse_data", "list_data")
        return [self._rows(array, row_id) for array in self._copies()]

    def _expect_rows(self, call: str, instead: str) -> None:
        if self._stype != "row_sparse":
            raise RuntimeError(f"parameter {self.name!r} is {self._stype}, so it has no {call}(): use {instead}()")
        self._require(self._arrays)
        if self._trainer is None:
            raise RuntimeError(f"parameter {self.name!r}: create a Trainer with it before {call}()")

    def _rows(self, array: NDArray, row_id: NDArray) -> NDArray:
        with autograd.pause():
            pulled = self._trainer._pull_rows(self, row_id.as_in_context(array.context))
            rows: NDArray = nd.sparse.distinct_rows(array, row_id) if pulled is None else pulled
        leaf = variable_of(array)
        if leaf is not None:
            mark(rows, leaf)
        return rows

    def grad(self, ctx: Context | None = None) -> NDArray:
        """Return the gradient on a device, which backward passes write.

        Raises:
            RuntimeError: as for :meth:`data`, or ``grad_req`` is ``"null"``.
        """
        self._expect_gradient()
        return self._array_on(self._grads, ctx)

    def list_grad(self) -> list[NDArray]:
        """Return the gradients, in the order of :meth:`list_ctx`."""
        self._expect_gradient()
        return list(self._require(self._grads).values())

    def list_ctx(self) -> list[Context]:
        """Return the devices of the arrays, or of their deferred initialization.

        Raises:
            RuntimeError: the parameter is not initialized.
        """
        return list(self._deferred.contexts) if self._deferred else list(self._require(self._arrays))

    def _array_on(self, arrays: Arrays | None, ctx: Context | None) -> NDArray:
        array = None if arrays is None or ctx is None else arrays.get(ctx)
        if array is not None:
            return array
        arrays = self._require(arrays)
        if ctx is None and len(arrays) == 1:
            return next(iter(arrays.values()))
        ctx = current_context() if ctx is None else ctx
        array = arrays.get(ctx, arrays.get(plain(ctx)))
        if array is None:
            raise RuntimeError(
                f"parameter {self.name!r} is not on {ctx}, only on {list(arrays)}: initialize it there too "
                "(initialize(ctx=[...])), or move it with reset_ctx"
            )
        return array

    def _require(self, arrays: Arrays | None) -> Arrays:
        if arrays is None:
            self._raise_uninitialized()
        return arrays

    def _raise_uninitialized(self) -> NoReturn:
        if self._deferred or self._arrays is not None:  # another thread may have initialized it by now
            raise DeferredInitializationError(
                f"parameter {self.name!r} has shape {self._shape}, so it is initialized at the first forward pass: "
                "pass one batch through the network before, or pass in_units, in_channels or the like to the layers"
            )
        raise NoParameterValue(
            f"parameter {self.name!r} is not initialized: call initialize() of the block, or of its collect_params(), "
            "which includes children. If that was done, the block does not have this parameter: create it with "
            f"self.params.get({self.name!r}, shape=...), or call its own initialize()"
        )

    def _expect_gradient(self) -> None:
        if self._arrays is not None and self._grads is None:
            raise RuntimeError(f"parameter {self.name!r} has no gradient, because its grad_req is 'null'")

    # -- initialization --------------------------------------------------------------------------------

    def initialize(
        self, init: object = None, ctx: Contexts = None, default_init: object = None, force_reinit: bool = False
    ) -> None:
        """Initialize the arrays; if the shape is not known yet, defer initialization to the first forward pass.

        Args:
            init: the initializer (default: the parameter's, else ``default_init``).
            ctx: the device or devices (default: the current one). All get the same values.
            default_init: used for a parameter without an initializer (default: ``Uniform()``).
            force_reinit: initialize again if the parameter is initialized.

        Raises:
            ValueError: the shape is unknown, and initialization may not be deferred.
        """
        if self._arrays is not None and not force_reinit:
            warnings.warn(
                f"parameter {self.name!r} is already initialized, so nothing was done: pass force_reinit=True to "
                "initialize it again",
                stacklevel=2,
            )
            return
        default_init = initializer.Uniform() if default_init is None else default_init
        if init is None:
            init = default_init if self.init is None else self.init
        is_known = _is_known(self._shape)
        if not is_known and not self._allow_deferred_init:
            raise ValueError(
                f"parameter {self.name!r} cannot be initialized with shape {self._shape}: pass a known shape, or "
                "create it with allow_deferred_init=True"
            )
        self._deferred = _Deferred(init, _as_contexts(ctx), default_init, None)
        self._arrays = self._grads = None
        if is_known:
            self._finish_deferred_init()

    def _finish_deferred_init(self) -> None:
        """Allocate the arrays, once the shape is known; the first thread does so, and others wait."""
        with self._init_lock:
            if self._deferred is None:
                return
            init, contexts, default, data = self._deferred
            if not _is_known(self._shape):
                raise ValueError(
                    f"parameter {self.name!r} cannot be initialized with shape {self._shape}: pass "
                    "in_units, in_channels or the like to the layer"
                )
            with autograd.pause():
                if data is not None:
                    self._init_impl(data, contexts)
                elif is_replaced(self, "_init_impl", _init_impl):
                    self._init_impl(self._initial(init, default, contexts), contexts)
                else:
                    self._copy_to_devices(self._initial(init, default, contexts), contexts, owned=True)
            self._deferred = None  # last: another thread raises if it sees neither this nor arrays

    def _initial(self, init: object, default: object, contexts: Sequence[Context]) -> NDArray:
        """Return the initial value, on the CPU; devices that do not compute get no random numbers."""
        if not have_numerics(contexts):
            return untouched(self._shape or (), self._dtype)
        data = nd.zeros(self._shape or (), cpu(), self._dtype)
        self._fill(data, init, default)
        return data

    def _fill(self, data: NDArray, init: Any, default: Any) -> None:
        by_name = not isinstance(default, (str, Initializer))
        if by_name and init is default:
            default(InitDesc(self.name), data)  # mx.init.Mixed and Load select by name
            return
        attributes: dict[str, Any] = {"__init__": init}
        initializer.create(init if by_name else default)(InitDesc(self.name, attributes), data)

    def _init_impl(self, data: NDArray, ctx_list: Sequence[Context]) -> None:
        """Set arrays and gradients from the initial value; other packages override it to change that value."""
        self._copy_to_devices(data, ctx_list)

    def _copy_to_devices(self, data: NDArray, contexts: Sequence[Context], owned: bool = False) -> None:
        """Copy a value to devices; if nothing else refers to it (``owned``), it may be used without a copy."""
        if self._stype == "default":
            arrays = {
                ctx: with_semantics(data if owned and ctx is data.context else data.copyto(ctx)) for ctx in contexts
            }
        else:
            if self._stype == "row_sparse" and data.stype == "default":
                data = nd.sparse.with_all_rows(data if owned else data.copy())
            data = data.tostype(self._stype) if data.stype != self._stype else data
            arrays = {ctx: data.copyto(ctx) for ctx in contexts}
        if is_replaced(self, "_init_grad", _init_grad):
            self._arrays = arrays
            self._init_grad()
        else:
            self._attach(arrays)

    def _init_grad(self) -> None:
        """Mark the arrays as variables of autograd, or unmark them; other packages override it."""
        assert self._arrays is not None
        self._attach(self._arrays)

    def _attach(self, arrays: Arrays) -> None:
        """Set the arrays, as variables of autograd if they have gradients.

        ``_arrays`` is set last, so that other threads never read arrays without gradients.
        """
        self._used_versions = {}
        if self._grad_req == "null":
            self._grads = None
            self._arrays = {ctx: array.detach() for ctx, array in arrays.items()}
            return
        grads = {ctx: self._zeros(array, ctx) for ctx, array in arrays.items()}
        if self._grad_stype != "default":  # sparse zeros need no operation
            self._used_versions = {ctx: grad.variable.version for ctx, grad in grads.items()}
        autograd.mark_variables(list(arrays.values()), list(grads.values()), self._grad_req)
        self._grads, self._arrays = grads, arrays

    def _zeros(self, array: NDArray, ctx: Context) -> NDArray:
        zeros = nd.zeros(array.shape, ctx, array.dtype, self._grad_stype)
        return with_semantics(zeros) if self._grad_stype == "default" else zeros

    def _load_init(self, data: NDArray, ctx: Contexts, cast_dtype: bool = False, dtype_source: str = "current") -> None:
        """Set a loaded value; if casting is allowed, ``dtype_source`` selects the dtype to keep."""
        if self._shape is not None and not _fits(self._shape, data.shape):
            raise MismatchError(f"parameter {self.name!r} was loaded with shape {data.shape}, expected {self._shape}")
        data = self._with_dtype(data, cast_dtype, dtype_source)
        self.shape = data.shape
        contexts = None if ctx is None else _as_contexts(ctx)
        if self._arrays is None and self._deferred is None:
            self._init_impl(data, contexts or [cpu()])
            return
        if contexts is not None and set(contexts) != set(self.list_ctx()):
            raise ValueError(
                f"parameter {self.name!r} cannot be loaded on {contexts}: it was initialized on {self.list_ctx()}"
            )
        if self._arrays is not None:
            self.set_data(data)
        elif self._deferred is not None:
            self._init_impl(data, self._deferred.contexts)
            self._deferred = None

    def _with_dtype(self, data: NDArray, cast_dtype: bool, dtype_source: str) -> NDArray:
        if dtype_source not in ("current", "saved"):
            raise ValueError(f"load: dtype_source is {dtype_source!r}, expected 'current' or 'saved'")
        if as_dtype(self._dtype) == data.element_type:
            return data
        if not cast_dtype:
            raise ValueError(
                f"parameter {self.name!r} was loaded with dtype {name_of(data.element_type)}, expected "
                f"{name_of(as_dtype(self._dtype))}: pass cast_dtype=True to cast it"
            )
        if dtype_source == "current":
            return data.astype(self._dtype)
        self.cast(data.dtype)
        return data

    # -- changes ---------------------------------------------------------------------------------------

    def set_data(self, data: Any) -> None:
        """Set the value on all devices.

        Raises:
            ShapeError: the value has a different shape.
            RuntimeError: the parameter is not initialized, or is row_sparse and already stored on servers.
        """
        if self._arrays is None and self._deferred is None:
            self._raise_uninitialized()
        if self._trainer is not None and self._trainer._is_on_servers(self):
            raise StateError(
                f"parameter {self.name!r} is stored on servers, which may have updated it: set or load it "
                "before its first row_sparse_data() or step()"
            )
        self.shape = data.shape
        if self._arrays is None:
            assert self._deferred is not None
            value = data if isinstance(data, NDArray) else nd.array(data, cpu(), self._dtype)
            self._deferred = self._deferred._replace(data=value)
            return
        is_constant = not isinstance(data, NDArray) or data.tape_entry is None
        # Inside record() the array remains a variable; the new value was not computed there.
        with autograd.pause() if self._grads is not None and is_constant else nullcontext():
            for ctx, array in self._arrays.items():
                array[:] = data.as_in_context(ctx) if isinstance(data, NDArray) else data

    def zero_grad(self) -> None:
        """Fill the gradients with zeros."""
        if self._grads is None:
            return
        for ctx, grad in zip(self._grads, self.list_grad(), strict=True):
            is_fresh = self._is_fresh(ctx)
            grad[:] = 0
            if not is_fresh:
                self._mark_used(ctx)

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the arrays and gradients."""
        as_dtype(dtype)
        self._dtype, self._var = dtype, None
        if self._arrays is None:
            return
        with autograd.pause():
            self._arrays = {ctx: array.astype(dtype) for ctx, array in self._arrays.items()}
            if self._grads is None:
                return
            self._grads = {ctx: grad.astype(dtype) for ctx, grad in self._grads.items()}
            self._used_versions = {}
        autograd.mark_variables(list(self._arrays.values()), list(self._grads.values()), self._grad_req)

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move the parameter to other devices (default: the current one).

        Raises:
            ValueError: the parameter is not initialized.
        """
        contexts = _as_contexts(ctx)
        if self._deferred is not None:
            self._deferred = self._deferred._replace(contexts=contexts)
            return
        if self._arrays is None:
            raise ValueError(f"parameter {self.name!r} is not initialized, so it cannot be moved: call initialize()")
        with autograd.pause():
            self._init_impl(self._reduce(), contexts)

    def _reduce(self) -> NDArray:
        """Return the value on the CPU: the mean over the devices, or the value on servers."""
        if self._stype == "row_sparse" and self._trainer is not None:
            with autograd.pause():
                pulled: NDArray | None = self._trainer._pull_rows(
                    self, nd.arange(len(self._copies()[0]), dtype="int64", ctx=cpu())
                )
            if pulled is not None:
                return pulled
        copies = self._copies() if self._stype != "default" else self.list_data()
        if len(copies) == 1:
            array = copies[0] if self._stype != "default" else self.data()
            return array.detach().as_in_context(cpu())
        return nd.add_n(*(array.detach().as_in_context(cpu()) for array in copies)) / len(copies)

    # -- for trainers ----------------------------------------------------------------------------------

    def _is_fresh(self, ctx: Context) -> bool:
        """Return whether a backward pass has written the gradient since its last use by an update."""
        assert self._grads is not None
        return self._grads[ctx].storage.version != self._used_versions.get(ctx, _INITIAL_VERSION)

    def _mark_used(self, ctx: Context) -> None:
        assert self._grads is not None
        self._used_versions[ctx] = self._grads[ctx].storage.version


_init_impl, _init_grad = Parameter._init_impl, Parameter._init_grad
_STYPES = ("default", "row_sparse", "csr")
_INITIAL_VERSION = 1
"""The version of a gradient that has only been filled with zeros."""


class Constant(Parameter):
    """A parameter that training does not change; :meth:`set_data` does.

    Args:
        name: the full name.
        value: an array, or an argument of ``mx.nd.array``.

    Example:
        >>> self.scale = self.params.get_constant("scale", [[1, 2], [3, 4]])
    """

    def __init__(self, name: str, value: Any) -> None:
        self.value = value if isinstance(value, NDArray) else nd.array(value)
        super().__init__(name, "null", self.value.shape, self.value.dtype, init=_CopyInitializer(self.value))

    def _init_text(self) -> str | None:
        return None

    @property
    def grad_req(self) -> str:
        """Always ``"null"``; another value is ignored with a warning."""
        return "null"

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        if req != "null":
            warnings.warn(f"constant {self.name!r} has no gradient: grad_req={req!r} was ignored", stacklevel=2)


class _CopyInitializer(Initializer):
    """The initializer of a constant."""

    def __init__(self, value: NDArray) -> None:
        super().__init__()
        self._value = value

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        self._value.astype(arr.dtype, copy=False).copyto(arr)


def _as_tuple(shape: int | Sequence[int]) -> Shape:
    return (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)


def _as_contexts(ctx: Contexts) -> list[Context]:
    if ctx is None:
        return [current_context()]
    return [ctx] if isinstance(ctx, Context) else list(ctx)


def _is_known(shape: Shape | None) -> bool:
    return shape is not None and all(n > 0 for n in shape)


def _fits(shape: Shape, other: Shape) -> bool:
    """Return whether two shapes have the same rank, and equal lengths wherever both are known (> 0)."""
    return len(shape) == len(other) and all(a == b or a <= 0 or b <= 0 for a, b in zip(shape, other, strict=True))
