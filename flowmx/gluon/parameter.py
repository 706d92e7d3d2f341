"""Parameters of Gluon's blocks: an array on each device that it is used on, with gradients, made when shapes are known.

Everything here enqueues work and returns; only files are written after a wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, NoReturn

import numpy as np

from flowmx import autograd, initializer, symbol
from flowmx import ndarray as nd
from flowmx.devices import Context, cpu, current_context, have_numerics
from flowmx.errors import ArgumentError, MismatchError, MXNetError, NoParameterValue, StateError
from flowmx.initializer import InitDesc, Initializer
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import check_request, untouched
from flowmx.ndarray.host import plain
from flowmx.ndarray.views import mark, variable_of
from flowmx.ops.registry.dtypes import as_dtype, name_of
from flowmx.ops.registry.operators import Shape
from flowmx.semantics import dress, semantics
from flowmx.symbol import Symbol

__all__ = ["Constant", "DeferredInitializationError", "Parameter"]

Contexts = Context | Sequence[Context] | None
Arrays = dict[Context, NDArray]


def __getattr__(name: str) -> Any:
    """Scripts look for ParameterDict here too; its module needs this one."""
    if name == "ParameterDict":
        from flowmx.gluon.parameter_dict import ParameterDict

        return ParameterDict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class DeferredInitializationError(MXNetError):
    """A parameter was asked for that will be made at the first forward pass, when its shape is known."""


class _Deferred(NamedTuple):
    """Arguments of an initialization that is deferred until the shape is known."""

    init: Any
    contexts: list[Context]
    default: Any
    data: NDArray | None


class Parameter:
    """A weight of a block: one array for each device, and one for its gradient.

    Args:
        name: its full name.
        grad_req: ``"write"``, ``"add"`` (backward passes accumulate until :meth:`zero_grad`) or ``"null"``.
        shape: its shape; 0 or -1 stands for an unknown length.
        dtype: its element type.
        lr_mult: multiplies the learning rate.
        wd_mult: multiplies the weight decay.
        init: its own initializer, an instance or a name; without one the initializer of the model counts.
        allow_deferred_init: let initialization wait until the shape is known.
        differentiable: False where it never has a gradient (a running mean).
        stype: its storage type; one that is ``"row_sparse"`` is read with :meth:`row_sparse_data`.
        grad_stype: its gradient's; with ``"row_sparse"`` an update may look only at the rows that a batch has used.

    Raises:
        ValueError: an unknown ``grad_req`` or storage type.

    Example:
        >>> weight = mx.gluon.Parameter("fc_weight", shape=(64, 100), init=mx.init.Xavier())
        >>> weight.initialize(ctx=mx.cpu())
        >>> out = mx.nd.FullyConnected(x, weight.data(), no_bias=True, num_hidden=64)
    """

    _trainer: Any = None
    """The trainer that was made with a sparse parameter."""

    def __init__(
        self, name: str, grad_req: str = "write", shape: int | Sequence[int] | None = None, dtype: Any = np.float32,
        lr_mult: float = 1.0, wd_mult: float = 1.0, init: Any = None, allow_deferred_init: bool = False,
        differentiable: bool = True, stype: str = "default", grad_stype: str = "default",
    ) -> None:  # fmt: skip
        for what, given in (("stype", stype), ("grad_stype", grad_stype)):
            if given not in _STYPES:
                raise ArgumentError(f"Parameter {name!r}: {what} is {given!r}, expected one of {', '.join(_STYPES)}")
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
        self._used: dict[Context, int] = {}
        """The version of each gradient that an update has used last."""
        self._deferred: _Deferred | None = None
        self._var: Symbol | None = None
        self.grad_req = grad_req

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_trainer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._used = {}
        if self._arrays is not None and self._grads is not None:  # copies of arrays are no variables of autograd
            autograd.mark_variables(list(self._arrays.values()), list(self._grads.values()), self._grad_req)
            self._used = {ctx: grad.variable.version for ctx, grad in self._grads.items()}  # not those of zeros

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={self.dtype})"

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def grad_req(self) -> str:
        """The gradient request: ``"write"``, ``"add"`` or ``"null"``; setting ``"null"`` frees the gradient's memory.

        Raises:
            ValueError: set to something unknown.
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
            self._attach()

    @property
    def dtype(self) -> Any:
        """The element type; setting it is :meth:`cast`."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    @property
    def shape(self) -> Shape | None:
        """The shape, with 0 for a length that is not known yet, -1 within `mx.np_shape`; None where nothing is known.

        Raises:
            ShapeError: set to one that contradicts what is known.
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
            raise MismatchError(f"parameter {self.name!r}: shape {new} was given, expected one that fits {old}")
        if new != old:
            self._shape, self._var = new, None

    def var(self) -> Symbol:
        """The symbol that stands for it in a graph."""
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
        """Its array on a device: that of ``ctx``, or the only one, or the one on the current device.

        Raises:
            DeferredInitializationError: its shape is not known yet.
            RuntimeError: it is not initialized, or not on that device.
        """
        arrays = self._arrays
        if self._stype != "default":
            self._refuse_sparse("data", "row_sparse_data")
        found = None if arrays is None or ctx is None else arrays.get(ctx)
        return self._array_on(arrays, ctx) if found is None else found

    def list_data(self) -> list[NDArray]:
        """Its arrays, in the order of :meth:`list_ctx`."""
        self._refuse_sparse("list_data", "list_row_sparse_data")
        return self._copies()

    def _copies(self) -> list[NDArray]:
        """Its arrays, whatever their storage type."""
        return list(self._made(self._arrays).values())

    def _refuse_sparse(self, call: str, instead: str) -> None:
        if self._stype != "default":
            raise RuntimeError(
                f"parameter {self.name!r} is {self._stype}, so it has no {call}(): say with {instead}() which rows"
            )

    def _set_trainer(self, trainer: Any) -> None:
        """Tell the parameter of its trainer (None: it has none).

        Raises:
            StateError: it is sparse and has another one.
        """
        if self._stype != "default" and trainer is not None and self._trainer not in (None, trainer):
            raise StateError(
                f"Trainer: the {self._stype} parameter {self.name!r} has a Trainer already, and can have but one"
            )
        self._trainer = trainer

    def row_sparse_data(self, row_id: NDArray) -> NDArray:
        """The rows with these numbers of a row_sparse parameter, on the device of ``row_id``; it gets their gradient.

        Raises:
            RuntimeError: it is dense, is not initialized, or no trainer was made with it.
        """
        self._expect_rows("row_sparse_data", "data")
        return self._rows(self._array_on(self._arrays, row_id.context), row_id)

    def list_row_sparse_data(self, row_id: NDArray) -> list[NDArray]:
        """As :meth:`row_sparse_data`, of its arrays on all devices."""
        self._expect_rows("list_row_sparse_data", "list_data")
        return [self._rows(array, row_id) for array in self._copies()]

    def _expect_rows(self, call: str, instead: str) -> None:
        if self._stype != "row_sparse":
            raise RuntimeError(f"parameter {self.name!r} is {self._stype}, so {call}() is not for it: use {instead}()")
        self._made(self._arrays)
        if self._trainer is None:
            raise RuntimeError(f"parameter {self.name!r}: make a Trainer with it before {call}()")

    def _rows(self, array: NDArray, row_id: NDArray) -> NDArray:
        with autograd.pause():
            pulled = self._trainer._rows_of(self, row_id.as_in_context(array.context))
            rows: NDArray = nd.sparse.distinct_rows(array, row_id) if pulled is None else pulled
        leaf = variable_of(array)
        if leaf is not None:
            mark(rows, leaf)
        return rows

    def grad(self, ctx: Context | None = None) -> NDArray:
        """Its gradient on a device, which backward passes write.

        Raises:
            RuntimeError: as for :meth:`data`, or its ``grad_req`` is ``"null"``.
        """
        self._expect_gradient()
        return self._array_on(self._grads, ctx)

    def list_grad(self) -> list[NDArray]:
        """Its gradients, in the order of :meth:`list_ctx`."""
        self._expect_gradient()
        return list(self._made(self._grads).values())

    def list_ctx(self) -> list[Context]:
        """The devices that it is, or will be, on.

        Raises:
            RuntimeError: it is not initialized.
        """
        return list(self._deferred.contexts) if self._deferred else list(self._made(self._arrays))

    def _array_on(self, arrays: Arrays | None, ctx: Context | None) -> NDArray:
        found = None if arrays is None or ctx is None else arrays.get(ctx)
        if found is not None:
            return found
        arrays = self._made(arrays)
        if ctx is None and len(arrays) == 1:
            return next(iter(arrays.values()))
        ctx = current_context() if ctx is None else ctx
        found = arrays.get(ctx, arrays.get(plain(ctx)))
        if found is None:
            raise RuntimeError(
                f"parameter {self.name!r} is not on {ctx}, only on {list(arrays)}: initialize it there too "
                "(initialize(ctx=[...])), or move it with reset_ctx"
            )
        return found

    def _made(self, arrays: Arrays | None) -> Arrays:
        if arrays is None:
            self._refuse()
        return arrays

    def _refuse(self) -> NoReturn:
        if self._deferred:
            raise DeferredInitializationError(
                f"parameter {self.name!r} has shape {self._shape}, so it will be made at the first forward pass: pass "
                "one batch through the network before, or give the layers in_units, in_channels and the like"
            )
        raise NoParameterValue(
            f"parameter {self.name!r} is not initialized: call initialize() of the block, or of what its "
            "collect_params() returns (params leaves out those of its children)"
        )

    def _expect_gradient(self) -> None:
        if self._arrays is not None and self._grads is None:
            raise RuntimeError(f"parameter {self.name!r} has no gradient, since its grad_req is 'null'")

    # -- initialization --------------------------------------------------------------------------------

    def initialize(
        self, init: Any = None, ctx: Contexts = None, default_init: Any = None, force_reinit: bool = False
    ) -> None:
        """Make its arrays, or, where its shape is not known yet, have them made at the first forward pass.

        Args:
            init: the initializer (default: its own, else ``default_init``).
            ctx: the device or devices (default: the current one). Each gets a copy of the same values.
            default_init: for a parameter without an initializer of its own (default: ``Uniform()``).
            force_reinit: make it anew where it is initialized already.

        Raises:
            ValueError: its shape is not known, and may not come later.
        """
        if self._arrays is not None and not force_reinit:
            warnings.warn(
                f"parameter {self.name!r} is initialized already, so nothing was done: pass force_reinit=True to "
                "initialize it anew",
                stacklevel=2,
            )
            return
        default_init = initializer.Uniform() if default_init is None else default_init
        if init is None:
            init = default_init if self.init is None else self.init
        known = _is_known(self._shape)
        if not known and not self._allow_deferred_init:
            raise ValueError(
                f"parameter {self.name!r} can not be initialized with shape {self._shape}: give it a known shape, or "
                "make it with allow_deferred_init=True"
            )
        self._arrays = self._grads = None
        self._deferred = _Deferred(init, _as_contexts(ctx), default_init, None)
        if known:
            self._finish_deferred_init()

    def _finish_deferred_init(self) -> None:
        """Make the arrays, now that the shape is known."""
        if self._deferred is None:
            return
        init, contexts, default, data = self._deferred
        if not _is_known(self._shape):
            raise ValueError(
                f"parameter {self.name!r} can not be initialized with shape {self._shape}: give the layer in_units, "
                "in_channels or the like"
            )
        self._deferred = None
        with autograd.pause():
            if data is None:
                self._place(self._initial(init, default, contexts), contexts, owned=True)
            else:
                self._place(data, contexts)

    def _initial(self, init: Any, default: Any, contexts: Sequence[Context]) -> NDArray:
        """Its first value, on the CPU; nothing is drawn for devices that do not compute."""
        if not have_numerics(contexts):
            return untouched(self._shape or (), self._dtype)
        data = nd.zeros(self._shape or (), cpu(), self._dtype)
        self._fill(data, init, default)
        return data

    def _fill(self, data: NDArray, init: Any, default: Any) -> None:
        by_name = not isinstance(default, (str, Initializer))
        if by_name and init is default:
            default(InitDesc(self.name), data)  # mx.init.Mixed and Load choose by the name
            return
        attributes: dict[str, Any] = {"__init__": init}
        initializer.create(init if by_name else default)(InitDesc(self.name, attributes), data)

    def _place(self, data: NDArray, contexts: Sequence[Context], owned: bool = False) -> None:
        """Put a value on devices; an ``owned`` one, which nothing else references, may be used without a copy."""
        if self._stype == "default":
            self._arrays = {ctx: dress(data if owned and ctx is data.context else data.copyto(ctx)) for ctx in contexts}
        else:
            if self._stype == "row_sparse" and data.stype == "default":
                data = nd.sparse.with_all_rows(data if owned else data.copy())
            data = data.tostype(self._stype) if data.stype != self._stype else data
            self._arrays = {ctx: data.copyto(ctx) for ctx in contexts}
        self._attach()

    def _attach(self) -> None:
        """Make the arrays variables of autograd, or no longer."""
        assert self._arrays is not None
        self._used = {}
        if self._grad_req == "null":
            self._grads = None
            self._arrays = {ctx: array.detach() for ctx, array in self._arrays.items()}
            return
        self._grads = {ctx: self._zeros(array, ctx) for ctx, array in self._arrays.items()}
        if self._grad_stype != "default":  # their zeros are there without an operation
            self._used = {ctx: grad.variable.version for ctx, grad in self._grads.items()}
        autograd.mark_variables(list(self._arrays.values()), list(self._grads.values()), self._grad_req)

    def _zeros(self, array: NDArray, ctx: Context) -> NDArray:
        made = nd.zeros(array.shape, ctx, array.dtype, self._grad_stype)
        return dress(made) if self._grad_stype == "default" else made

    def _load_init(self, data: NDArray, ctx: Contexts, cast_dtype: bool = False, dtype_source: str = "current") -> None:
        """Take a loaded value; ``dtype_source`` says whose dtype stays where they differ and may be cast."""
        if self._shape is not None and not _fits(self._shape, data.shape):
            raise MismatchError(f"parameter {self.name!r} was loaded with shape {data.shape}, expected {self._shape}")
        data = self._with_dtype(data, cast_dtype, dtype_source)
        self.shape = data.shape
        contexts = None if ctx is None else _as_contexts(ctx)
        if self._arrays is None and self._deferred is None:
            self._place(data, contexts or [cpu()])
            return
        if contexts is not None and set(contexts) != set(self.list_ctx()):
            raise ValueError(
                f"parameter {self.name!r} can not be loaded on {contexts}: it was initialized on {self.list_ctx()}"
            )
        if self._arrays is not None:
            self.set_data(data)
        elif self._deferred is not None:
            self._place(data, self._deferred.contexts)
            self._deferred = None

    def _with_dtype(self, data: NDArray, cast_dtype: bool, dtype_source: str) -> NDArray:
        if dtype_source not in ("current", "saved"):
            raise ValueError(f"load: dtype_source is {dtype_source!r}, expected 'current' or 'saved'")
        if as_dtype(self._dtype) == data._dtype:
            return data
        if not cast_dtype:
            raise ValueError(
                f"parameter {self.name!r} was loaded with dtype {name_of(data._dtype)}, expected "
                f"{name_of(as_dtype(self._dtype))}: pass cast_dtype=True to cast it"
            )
        if dtype_source == "current":
            return data.astype(self._dtype)
        self.cast(data.dtype)
        return data

    # -- changing --------------------------------------------------------------------------------------

    def set_data(self, data: Any) -> None:
        """Set its value on all devices.

        Raises:
            ShapeError: the value has another shape.
            RuntimeError: it is not initialized, or is row_sparse and servers keep it already.
        """
        if self._arrays is None and self._deferred is None:
            self._refuse()
        if self._trainer is not None and self._trainer._has_given(self):
            raise StateError(
                f"parameter {self.name!r} is kept by servers, which have updated it by what was pushed: set or load it "
                "before its first row_sparse_data() or step()"
            )
        self.shape = data.shape
        if self._arrays is None:
            assert self._deferred is not None
            value = data if isinstance(data, NDArray) else nd.array(data, cpu(), self._dtype)
            self._deferred = self._deferred._replace(data=value)
            return
        is_constant = not isinstance(data, NDArray) or data._entry is None
        # Inside record() it stays the variable that it is; its new content was not computed there.
        with autograd.pause() if self._grads is not None and is_constant else nullcontext():
            for ctx, array in self._arrays.items():
                array[:] = data.as_in_context(ctx) if isinstance(data, NDArray) else data

    def zero_grad(self) -> None:
        """Fill its gradients with zeros, where it has some."""
        for ctx, grad in (self._grads or {}).items():
            fresh = self._is_fresh(ctx)
            grad[:] = 0
            if not fresh:
                self._mark_used(ctx)

    def cast(self, dtype: Any) -> None:
        """Change the element type of its arrays and gradients."""
        as_dtype(dtype)
        self._dtype, self._var = dtype, None
        if self._arrays is None:
            return
        with autograd.pause():
            self._arrays = {ctx: array.astype(dtype) for ctx, array in self._arrays.items()}
            if self._grads is None:
                return
            self._grads = {ctx: grad.astype(dtype) for ctx, grad in self._grads.items()}
            self._used = {}
        autograd.mark_variables(list(self._arrays.values()), list(self._grads.values()), self._grad_req)

    def reset_ctx(self, ctx: Contexts) -> None:
        """Move it to other devices (default: the current one).

        Raises:
            ValueError: it is not initialized.
        """
        contexts = _as_contexts(ctx)
        if self._deferred is not None:
            self._deferred = self._deferred._replace(contexts=contexts)
            return
        if self._arrays is None:
            raise ValueError(f"parameter {self.name!r} is not initialized, so it can not be moved: call initialize()")
        with autograd.pause():
            self._place(self._reduce(), contexts)

    def _reduce(self) -> NDArray:
        """Its value on the CPU: the mean over the devices, or what servers keep."""
        if self._stype == "row_sparse" and self._trainer is not None:
            with autograd.pause():
                pulled: NDArray | None = self._trainer._rows_of(
                    self, nd.arange(len(self._copies()[0]), dtype="int64", ctx=cpu())
                )
            if pulled is not None:
                return pulled
        arrays = [array.detach().as_in_context(cpu()) for array in self._copies()]
        return arrays[0] if len(arrays) == 1 else nd.add_n(*arrays) / len(arrays)

    # -- what a trainer asks ---------------------------------------------------------------------------

    def _is_fresh(self, ctx: Context) -> bool:
        """True where a backward pass has written the gradient since an update last used it."""
        assert self._grads is not None
        return self._grads[ctx]._storage.version != self._used.get(ctx, _AS_MADE)

    def _mark_used(self, ctx: Context) -> None:
        assert self._grads is not None
        self._used[ctx] = self._grads[ctx]._storage.version


_STYPES = ("default", "row_sparse", "csr")
_AS_MADE = 1
"""The version of a gradient that was only filled with zeros."""


class Constant(Parameter):
    """A parameter that training leaves as it is; :meth:`set_data` changes it.

    Args:
        name: its full name.
        value: an array, or what makes one.

    Example:
        >>> self.scale = self.params.get_constant("scale", [[1, 2], [3, 4]])
    """

    def __init__(self, name: str, value: Any) -> None:
        self.value = value if isinstance(value, NDArray) else nd.array(value)
        super().__init__(name, "null", self.value.shape, self.value.dtype, init=_Copied(self.value))

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


class _Copied(Initializer):
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


def _fits(known: Shape, given: Shape) -> bool:
    """True where two shapes have the same rank and agree on every length that both know (> 0)."""
    return len(known) == len(given) and all(a == b or a <= 0 or b <= 0 for a, b in zip(known, given, strict=True))
