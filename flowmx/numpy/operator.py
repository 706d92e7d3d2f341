"""The operators behind ``mx.np``: NumPy functions that run as operations of the engine.

:class:`NumPyCall` runs a function whose result shapes and dtypes follow from those of its arguments. They are inferred
by calling the function once on stand-ins that take no memory, and cached. The function comes from the array namespace
of the device. :class:`NumPyPlaces` is the gradient of all functions that only move elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from operator import getitem
from typing import Any, ClassVar

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.errors import AutogradError, ShapeError
from flowmx.late_binding import late
from flowmx.numpy import binding, table
from flowmx.numpy.forms import Form as CallForm
from flowmx.ops.arrays.reshape import View
from flowmx.ops.linalg.cofactors import cofactors, cofactors_derivative
from flowmx.ops.math.binary import power
from flowmx.ops.math.leave_one_out import leave_one_out_products
from flowmx.ops.math.reduce import is_row_sum, sum_keepdims
from flowmx.ops.math.select import clip_integers
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import (
    LIGHT_BYTES,
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    family,
    lookup,
    operator,
    option,
    required,
)
from flowmx.ops.registry.parameters import literal
from flowmx.ops.registry.spec import Spec

__all__ = ["NumPyCall", "NumPyCheck", "NumPyDynamicCall", "NumPyPlaces", "NumPyRefusal", "NumPyReshape", "as_list"]

_FLOAT, _COMPLEX, _INT, _HALF = (np.dtype(scalar) for scalar in (np.float64, np.complex128, np.int64, np.float16))
_NARROW = {_FLOAT: np.dtype(np.float32), _COMPLEX: np.dtype(np.complex64)}
"""The dtypes that NumPy converts integers to, and those of MXNet."""
_SPEC_CACHE_SIZE = 2048
_WITH_OUT = frozenset(["concatenate", "dot", "stack"])
"""Functions besides ufuncs that write into ``out`` without a copy if the dtypes are equal."""
_KERNEL_DTYPES = frozenset([FLOAT32, _FLOAT])
_REDUCED = frozenset(["max", "mean", "min", "prod", "sum"])
"""Reductions with an equivalent operator of the registry for floating-point arrays."""
_SUMS = frozenset(["cumsum", "cumprod", "mean", "nansum", "prod", "std", "sum", "trace", "var"])
"""Functions that accumulate many numbers and accept the dtype of the accumulator."""
_POSITIONS = frozenset(["choose", "take", "take_along_axis", "where", "bincount"])
"""Functions with an argument whose dtype is independent of the other arguments."""
_NUMBERS: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(table.names("""
        add bitwise_and bitwise_or bitwise_xor divmod equal floor_divide fmax fmin fmod gcd greater greater_equal lcm
        left_shift less less_equal maximum minimum mod multiply not_equal pow power remainder right_shift subtract
    """), (0, 1)),
    "append": (1, "values"), "insert": (2, "values"), "pad": ("constant_values",), "where": (1, 2),
}  # fmt: skip
"""By function, the arguments that are converted to the dtype of integer arrays, as array elements."""
_OF_INTEGERS = table.names("bitwise_and bitwise_or bitwise_xor gcd lcm left_shift pad right_shift")
"""Functions of integers: they first round floating-point numbers towards zero."""
_WITH_CONSTANTS = frozenset(["append", "choose", "concatenate", "insert", "pad", "stack", "where"])
"""Functions that accept numbers in place of arrays."""


@lru_cache(4096)
def function_of(xp: Any, name: str) -> Callable[..., Any]:
    """Return a function of an array namespace by its dotted name, or one of :data:`EXTENSIONS`."""
    if name in EXTENSIONS:
        return partial(EXTENSIONS[name], xp)
    function: Callable[..., Any] = reduce(getattr, table.NUMPY1_NAMES.get(name, name).split("."), xp)
    return function


def _take(xp: Any, a: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    positions = xp.asarray(indices)
    return xp.take(a, positions if positions.dtype.kind in "iu" else positions.astype(np.int64), *args, **kwargs)


def _ldexp(xp: Any, x1: Any, x2: Any) -> Any:
    return xp.ldexp(x1, x2) if np.asarray(x2).dtype.kind in "iu" else x1 * xp.exp2(x2)


def _window(name: str) -> Callable[..., Any]:
    def window(xp: object, M: int, *args: object, dtype: DType | None = None) -> Any:
        samples = getattr(xp, name)(M, *args)
        return samples if dtype is None else samples.astype(dtype)

    return window


def _broadcast_to(xp: Any, array: Any, shape: Any) -> Any:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    lead = len(lengths) - array.ndim
    return xp.broadcast_to(array, tuple(array.shape[index - lead] if n == -2 else n for index, n in enumerate(lengths)))


def _nan_to_num(xp: Any, x: Any, copy: bool = True, *args: Any, **kwargs: Any) -> Any:
    return xp.nan_to_num(x, True, *args, **kwargs)


def _diag_indices_from(xp: Any, arr: Any) -> Any:
    return xp.stack(xp.diag_indices_from(arr))


def _add_at(xp: Any, positions: Any, numbers: Any, count: int) -> Any:
    return xp.bincount(positions.ravel(), weights=numbers.ravel(), minlength=count)[:count]


def _var(
    xp: Any, a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    **others: Any,
) -> Any:  # fmt: skip
    """Compute the variance. Sums over many rows are accumulated in blocks, like the registry's sums."""
    axes = (axis,) if isinstance(axis, int) else axis
    if others or dtype not in (None, a.dtype) or not isinstance(axes, tuple) or not is_row_sum(xp, a, axes):
        return xp.var(a, axis, dtype, ddof=ddof, keepdims=keepdims, **others)
    count = math.prod(a.shape[index] for index in axes)
    variance = sum_keepdims(xp, xp.square(a - sum_keepdims(xp, a, axes) / count), axes) / max(count - ddof, 0)
    return variance if keepdims else xp.squeeze(variance, axes)


def _std(xp: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    return xp.sqrt(_var(xp, a, *args, **kwargs))


def _average(xp: Any, a: Any, axis: Any = None, weights: Any = None, returned: bool = False, **others: Any) -> Any:
    axes = (axis,) if isinstance(axis, int) else axis
    if others or returned or weights is not None or not isinstance(axes, tuple) or not is_row_sum(xp, a, axes):
        return xp.average(a, axis, weights, returned, **others)
    return xp.squeeze(sum_keepdims(xp, a, axes), axes) / math.prod(a.shape[index] for index in axes)


def _power(xp: Any, x1: Any, x2: Any, out: Any = None, **kwargs: Any) -> Any:
    dtype = np.result_type(x1, x2)
    if kwargs or dtype.kind not in "iu" or not (hasattr(x1, "shape") or hasattr(x2, "shape")):
        return xp.power(x1, x2, out, **kwargs)
    result = xp.empty(np.broadcast_shapes(np.shape(x1), np.shape(x2)), dtype) if out is None else out
    power(xp, x1, x2, result)
    return result


def _clip(xp: Any, a: Any, a_min: Any = None, a_max: Any = None, **kwargs: Any) -> Any:
    integral = all(isinstance(bound, (int, np.integer)) for bound in (a_min, a_max) if bound is not None)
    if kwargs or not integral or not hasattr(a, "dtype") or a.dtype.kind not in "iu":
        return xp.clip(a, a_min, a_max, **kwargs)
    result = xp.empty_like(a)
    clip_integers(xp, a, -math.inf if a_min is None else a_min, math.inf if a_max is None else a_max, result)
    return result


def _finite_only(name: str) -> Callable[..., Any]:
    """Wrap a function of NumPy's ``linalg`` that never returns for some matrices with infinities, to reject them."""

    def call(xp: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
        if not bool(xp.isfinite(a).all()):
            raise np.linalg.LinAlgError(f"linalg.{name}: the matrix contains infinity or NaN")
        return getattr(xp.linalg, name)(a, *args, **kwargs)

    return call


def _eig(xp: Any, a: Array) -> Any:
    values, vectors = result = xp.linalg.eig(a)
    return type(result)(values.real, vectors.real) if _are_real(xp, a, values) else result


def _eigvals(xp: Any, a: Array) -> Array:
    values: Array = xp.linalg.eigvals(a)
    return values.real if _are_real(xp, a, values) else values


def _are_real(xp: Any, a: Array, values: Array) -> bool:
    """Return whether a real matrix has real eigenvalues, which NumPy 2.5 and newer return as complex numbers."""
    return a.dtype.kind != "c" and values.dtype.kind == "c" and not xp.any(values.imag)


EXTENSIONS: dict[str, Callable[..., Any]] = {
    "linalg.eig": _eig,
    "linalg.eigvals": _eigvals,
    "average": _average,
    "std": _std,
    "var": _var,
    "added_at": _add_at,
    "cofactors": cofactors,
    "cofactors_along": cofactors_derivative,
    "products_of_others": leave_one_out_products,
    "broadcast_to": _broadcast_to,
    "diag_indices_from": _diag_indices_from,
    "nan_to_num": _nan_to_num,
    "getitem": lambda xp, a, key: getitem(a, key),
    "take": _take,
    "unique_values": lambda xp, x: xp.unique(x, equal_nan=False),  # NumPy's unique_values does not sort
    "ldexp": _ldexp,
    "power": _power,
    "clip": _clip,
    **{f"linalg.{name}": _finite_only(name) for name in ("lstsq", "pinv", "svd")},
    **{name: _window(name) for name in ("bartlett", "blackman", "hamming", "hanning", "kaiser")},
}
"""Functions that NumPy does not have, or that accept more here, called with the namespace and their arguments.
Positions and exponents may be floating point, as in MXNet; windows have a dtype; -2 keeps a length; sums over many rows
are accumulated in blocks."""


def _accumulator_dtype(source: DType, result: DType) -> DType:
    """Return the dtype for accumulating: the wider of source and result, at least float32."""
    if result.kind != "f":
        return result
    return np.result_type(result, np.float32, *([source] if source.kind == "f" else []))


def _complete_product_shapes(one: Any, other: Any) -> list[Any]:
    """Complete the shapes of a product's operands: the contracted lengths are equal."""
    if not one or not other:
        return [one, other]
    index = max(0, len(other) - 2)
    if other[index] == -1:
        other = (*other[:index], one[-1], *other[index + 1 :])
    elif one[-1] == -1:
        one = (*one[:-1], other[index])
    return [one, other]


def as_list(results: object) -> list[Any]:
    """Return the results of a function as a list, also a single result."""
    return list(results) if isinstance(results, (list, tuple)) else [results]


def stand_in(shape: Shape, dtype: DType, square: bool = False) -> Array:
    """Return an array of a shape that takes almost no memory: ones, zeros for integers, or identity matrices."""
    if square and len(shape) >= 2:
        return np.broadcast_to(np.eye(*shape[-2:], dtype=dtype), shape)
    one = np.zeros((), dtype) if dtype.kind in "iu" else np.ones((), dtype)
    return np.broadcast_to(one, shape)


@family
class CallOperator(Operator):
    """An operator with a NumPy function and the form of its call."""

    variadic = "num_args"
    num_args: int = required("Number of arrays.", low=0)
    function: str = required("NumPy's function.")
    form: str = required("The arguments, as text.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", CallForm(self.form))

    call: ClassVar[Any] = None


@operator("_np_call")
class NumPyCall(CallOperator, hidden=True, typed_by_shapes=True):
    """Call a NumPy function on arrays."""

    num_outputs: int = option(1, "Number of results.")
    wide: bool = option(False, "Convert integers to float64, as NumPy, where MXNet converts them to float32.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "wraps", self.function in _NUMBERS and not self.call.flat)
        if self.function in table.WITHOUT_GRADIENT:
            self.with_traits(no_gradient=True)

    wraps: ClassVar[bool] = False
    """Whether numbers in the call are converted to the dtype of its arrays."""

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_outputs))

    def make_call(self, dtypes: Sequence[DType]) -> CallForm:
        """Return the call for arrays of these dtypes: its numbers wrap into an integer dtype."""
        form: CallForm = self.call
        return (
            form.convert_numbers(dtypes, _NUMBERS[self.function], self.function in _OF_INTEGERS) if self.wraps else form
        )

    def infer_results(self, shapes: Sequence[Shape], dtypes: Sequence[DType]) -> Any:
        """Return the results of the function for stand-ins of these shapes and dtypes."""
        ufunc, call = table.ufunc(self.function), self.make_call(dtypes)
        with np.errstate(all="ignore"):
            if ufunc is not None and ufunc.signature is None and not call.kwargs:
                args, _ = call.fill([np.ones((), dtype) for dtype in dtypes])
                shape = np.broadcast_shapes(*shapes)
                scalars = function_of(np, self.function)(*args)
                results = [np.broadcast_to(scalar, shape) for scalar in as_list(scalars)]
                return tuple(results) if isinstance(scalars, tuple) else results[0]
            square = self.function.startswith("linalg.")
            stand_ins = [stand_in(shape, dtype, square) for shape, dtype in zip(shapes, dtypes, strict=True)]
            args, kwargs = call.fill(stand_ins)
            try:
                return function_of(np, self.function)(*args, **kwargs)
            except np.linalg.LinAlgError:  # some functions reject identity matrices
                draw = np.random.default_rng(0).random
                args, kwargs = self.call.fill([draw(array.shape).astype(array.dtype) for array in stand_ins])
                return function_of(np, self.function)(*args, **kwargs)

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        key = (shapes, dtypes)
        spec = self._specs.get(key)
        if spec is not None:
            return spec
        results = [np.asarray(result) for result in as_list(self.infer_results(shapes, dtypes))]
        spec = Spec(
            [result.shape for result in results], [self.result_dtype(result.dtype, dtypes) for result in results], False
        )
        # Functions that move elements have gradients for booleans, too, as in MXNet.
        has_none = all(dtype.kind == "b" for dtype in spec.dtypes) and self.function not in table.MOVING
        has_none |= self.traits.no_gradient
        spec.gradient = None if has_none else self.gradient
        spec.is_plain = True
        moved = sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        spec.weight = moved + spec.nbytes
        is_heavy = self.function.startswith("linalg.") and self._equivalent(shapes) is None
        spec.light = spec.weight <= LIGHT_BYTES and not is_heavy
        make_room(self._specs, _SPEC_CACHE_SIZE)
        self._specs[key] = spec
        return spec

    def result_dtype(self, dtype: DType, inputs: Sequence[DType]) -> DType:
        """Convert NumPy's result dtype to MXNet's: float64 only results from float64 arrays or an explicit dtype."""
        if self.wide or dtype not in _NARROW or self.function == "astype" or self.call.kwargs.get("dtype") is not None:
            return dtype
        if _FLOAT in inputs or _COMPLEX in inputs:
            return dtype
        floats = [source for source in inputs if source.kind == "f"]
        if dtype == _FLOAT and floats:  # in MXNet integers do not widen floating-point dtypes
            return max(floats, key=lambda source: source.itemsize)
        return _NARROW[dtype]

    def infer_shape(self, shapes: list[Any]) -> Any:
        if self.function in ("dot", "matmul") and len(shapes) == 2:
            shapes = _complete_product_shapes(*shapes)
        if any(shape is None or -1 in shape for shape in shapes):
            return shapes, [None] * self.num_outputs
        # Shapes do not depend on dtypes, but some functions accept only integers or masks.
        count, message = self.num_args, ""
        floats, whole = (FLOAT32,) * count, (_INT,) * count
        for dtypes in (floats, (*floats[:1], *whole[1:]), (*whole[:1], *floats[1:]), whole):
            try:
                return shapes, list(self.spec(tuple(shapes), dtypes).shapes)
            except (ValueError, IndexError, TypeError) as error:
                message = message or str(error)
        raise ShapeError(f"{self.function}: {message}")

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        common = [dtype for dtype in dtypes if dtype is not None]
        if len(common) < len(dtypes):
            if len(set(common)) != 1 or self.function in _POSITIONS:
                return dtypes, [None] * self.num_outputs
            return common * len(dtypes), list(self._result_dtypes(tuple(common * len(dtypes))))
        return dtypes, list(self._result_dtypes(tuple(common)))

    def _result_dtypes(self, dtypes: tuple[DType, ...]) -> list[DType]:
        """Return the result dtypes for unknown shapes: those for the first example shape that the function accepts."""
        for shape in ((2, 2, 2, 2), (2, 2), (2, 2, 2), (1, 1, 1, 1), (1, 1), (2,), (1,), ()):
            try:
                results = self.spec((shape,) * len(dtypes), dtypes).dtypes
            except (ValueError, TypeError, IndexError, np.linalg.LinAlgError):
                continue
            if len(results) == self.num_outputs:
                return results
        return [self.result_dtype(np.result_type(*dtypes), dtypes) if dtypes else FLOAT32] * self.num_outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        call = self.make_call([value.dtype for value in inputs]) if self.wraps else self.call
        args, kwargs = call.fill(inputs)
        function = function_of(run.xp, self.function)
        if self._accumulates_wider(outputs[0].dtype):
            kwargs = {**kwargs, "dtype": _accumulator_dtype(inputs[0].dtype, outputs[0].dtype)}
        if len(outputs) == 1 and "dtype" not in kwargs:
            out = outputs[0]
            has_out_dtype = self.function in _WITH_OUT and all(value.dtype == out.dtype for value in inputs)
            if has_out_dtype or table.ufunc(self.function) is not None:
                function(*args, out=out, **kwargs)
                return
        for result, out in zip(as_list(function(*args, **kwargs)), outputs, strict=True):
            if result.shape != out.shape:  # assignment would broadcast it
                raise ShapeError(f"{self.function}: the result has shape {result.shape}, expected {out.shape}")
            out[...] = result

    def bound(self, xp: object, inputs: Sequence[Form], outputs: Sequence[Form]) -> Bound | None:
        """Return the bound forward of the equivalent operator of the registry, or of the NumPy call."""
        if xp is not np or not inputs:
            return None
        is_uniform = all(dtype is outputs[0][1] and shape and 0 not in shape for shape, dtype in inputs)
        equivalent = (
            self._equivalent([shape for shape, _ in inputs]) if is_uniform and outputs[0][1] in _KERNEL_DTYPES else None
        )
        if equivalent is None:
            return (
                None
                if self._accumulates_wider(outputs[0][1])
                else binding.bind(
                    self.function,
                    function_of(xp, self.function),
                    self.make_call([dtype for _, dtype in inputs]),
                    inputs,
                    outputs,
                )
            )
        kernel = kernel_for("cpu", equivalent.name)
        bind = None if kernel is None else kernel.bind
        bound = equivalent.bound(xp, inputs, outputs) if bind is None else bind(equivalent, inputs, outputs)
        if bound is None:
            return equivalent.forward if kernel is None else partial(kernel.compute, equivalent)
        return bound

    def _accumulates_wider(self, result: DType) -> bool:
        """Return whether numbers are accumulated in a wider dtype than the result's."""
        return self.function in _SUMS and (result is _HALF or "dtype" in self.call.kwargs)

    def _equivalent(self, shapes: Sequence[Shape]) -> Operator | None:
        """Return the equivalent operator of the registry for floating-point arrays, or None."""
        args, kwargs, ndim = self.call.args, self.call.kwargs, len(shapes[0])
        if self.function in ("dot", "matmul") and self.call.flat and [len(shape) for shape in shapes] == [2, 2]:
            return lookup("dot").create()
        if self.function == "stack" and len(args) <= 2 and not kwargs.keys() - {"axis"}:
            axis = args[1] if len(args) == 2 else kwargs.get("axis", 0)
            return lookup("stack").create(num_args=self.num_args, axis=axis)
        if self.function in _REDUCED and len(args) <= 2 and not kwargs.keys() - {"axis", "keepdims"}:
            axis = args[1] if len(args) == 2 else kwargs.get("axis")
            axes = tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
            return lookup(self.function).create(axis=axes, keepdims=bool(kwargs.get("keepdims"))) if axes else None
        if self.function == "linalg.norm" and len(args) == 1 and not kwargs and ndim <= 2:
            return lookup("norm").create(axis=tuple(range(ndim)))
        if self.function == "transpose" and len(args) <= 2 and not kwargs.keys() - {"axes"}:
            axes = args[1] if len(args) == 2 else kwargs.get("axes")
            return lookup("transpose").create(axes=tuple(range(ndim))[::-1] if axes is None else axes)
        if self.function == "concatenate" and len(args) <= 2 and not kwargs.keys() - {"axis"}:
            axis = args[1] if len(args) == 2 else kwargs.get("axis", 0)
            return None if axis is None else lookup("Concat").create(num_args=self.num_args, dim=axis)
        return None

    def as_ufunc(self, xp: object, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        if self.num_outputs != 1 or self.call.kwargs or table.ufunc(self.function) is None:
            return None
        function, args = function_of(xp, self.function), self.make_call([dtype] * self.num_args).args
        if getattr(function, "signature", None) is not None:
            return None
        if self.call.flat:
            return (function, None) if [arg.number for arg in args] == list(range(len(args))) else None
        if self.num_args != 1 or len(args) != 2:
            return None
        if isinstance(args[1], (bool, int, float, complex, np.generic)):
            return function, args[1]
        number = args[0]
        return (lambda x, _, out: function(number, x, out=out)), number

    def gradient(self, F: object, inputs: object, outputs: object, heads: object) -> Any:
        return late("numpy.gradients").call_gradients(self, F, inputs, outputs, heads)


@operator("_np_places")
class NumPyPlaces(CallOperator, hidden=True):
    """Add each element of a gradient to the input element that it was moved from.

    The function only moves elements: called on the element numbers of an input, it returns where they went. The inputs
    are the gradient of the result, and the arrays of the call that are positions or masks.
    """

    shapes: str = required("For each array of the call its shape, or the number of an input for positions, as text.")
    place: int = required("The array whose gradient it is.")
    num_heads: int = option(1, "Number of results of the call.")

    sources: ClassVar[Any] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sources", literal(self.shapes))

    def infer_shape(self, shapes: list[Any]) -> Any:
        return shapes, [self.sources[self.place]]

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        origins = self._move(xp, inputs, xp.arange(1, out.size + 1))
        if self.function in _WITH_CONSTANTS:  # constants among the arguments do not come from an array
            origins = origins - self._move(xp, inputs, xp.zeros(out.size, np.int64))
        origins = origins.astype(np.int64, copy=False)
        weights = xp.concatenate([value.ravel() for value in inputs[: self.num_heads]])
        if weights.dtype.kind == "c":
            totals = _sum_by_origin(xp, origins, weights.real, out.size) + 1j * _sum_by_origin(
                xp, origins, weights.imag, out.size
            )
        else:
            totals = _sum_by_origin(xp, origins, weights, out.size)
        out[...] = totals[1:].reshape(out.shape)

    def _move(self, xp: Any, inputs: Sequence[Array], numbers: Array) -> Array:
        """Return the concatenated results of the call for an array whose elements are ``numbers``."""
        arrays = []
        for index, source in enumerate(self.sources):
            if isinstance(source, int):
                arrays.append(inputs[source])
            else:
                arrays.append(numbers.reshape(source) if index == self.place else xp.zeros(source, np.int64))
        args, kwargs = self.call.fill(arrays)
        results = as_list(function_of(xp, self.function)(*args, **kwargs))
        value: Array = xp.concatenate([result.ravel() for result in results])
        return value

    def gradient(self, F: object, inputs: object, outputs: object, heads: object) -> Any:
        return late("numpy.gradients").places_gradient(self, F, inputs, heads)


def _sum_by_origin(xp: Any, origins: Array, weights: Array, size: int) -> Array:
    result: Array = xp.bincount(origins, weights=weights.astype(np.float64), minlength=size + 1)
    return result


@operator("_np_waiting")
class NumPyDynamicCall(CallOperator, hidden=True, dynamic=True, no_gradient=True):
    """Call a NumPy function whose result shapes depend on the content of its arrays."""

    num_outputs: int = option(1, "Number of results.")

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_outputs))

    def infer_shape(self, shapes: list[Any]) -> Any:
        return shapes, [None] * self.num_outputs

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [None] * self.num_outputs

    def compute_eagerly(self, F: object, inputs: Sequence[Any]) -> Any:
        args, kwargs = self.call.fill([value.as_np_ndarray() for value in inputs])
        results = late("numpy.calls").call_waiting(self.function, args, kwargs)
        return results if isinstance(results, (list, tuple)) and len(results) > 1 else as_list(results)[0]


@operator("_np_refused")
class NumPyRefusal(Operator, hidden=True, no_gradient=True):
    """Raise an error in the backward pass, for a function without a gradient.

    Raises:
        AutogradError: always.
    """

    message: str = required("The message.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise AutogradError(self.message)


@operator("_npx_reshape")
class NumPyReshape(View, hidden=True, in_place=((0, 0),), view=True):
    """Change the shape of an array by the codes of ``npx.reshape``."""

    arguments = ("a",)
    newshape: Shape = required("Lengths, or codes.")
    reverse: bool = option(False, "Match the codes from the right.")
    order: str = option("C", "The order of elements.")

    def infer_shape(self, shapes: list[Any]) -> Any:
        (shape,) = shapes
        if shape is None or -1 in shape:
            return shapes, [None]
        lengths = resolve_codes(self.newshape, shape, self.reverse)
        return shapes, [np.broadcast_to(np.zeros((), bool), shape).reshape(lengths).shape]


@operator("_npx_constraint_check")
class NumPyCheck(Operator, hidden=True, no_gradient=True):
    """Check that all elements are true.

    Raises:
        ValueError: an element is false; the message is ``msg``.
    """

    arguments = ("input",)
    msg: str = option("Constraint violated.", "The message.")

    def infer_shape(self, shapes: list[Any]) -> Any:
        return shapes, [()]

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [np.dtype(bool)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not run.xp.all(inputs[0]):
            raise ValueError(self.msg)
        outputs[0][...] = True


def resolve_codes(newshape: Sequence[int], old: Shape, reverse: bool = False) -> tuple[int, ...]:
    """Resolve the codes of ``npx.reshape`` to lengths; -1 stays.

    Raises:
        ShapeError: the codes do not fit the shape.
    """
    codes = list(newshape)
    if reverse:
        return tuple(_lengths(_reverse_codes(codes), old[::-1], codes)[::-1])
    return tuple(_lengths(codes, old, codes))


def _reverse_codes(codes: Sequence[int]) -> list[int]:
    """Reverse the codes; a split code stays before its two lengths."""
    reverse: list[int] = []
    index = 0
    while index < len(codes):
        width = 3 if codes[index] == -6 else 1
        group = list(codes[index : index + width])
        reverse = [group[0], *group[:0:-1], *reverse]
        index += width
    return reverse


def _lengths(codes: Sequence[int], shape: Sequence[int], newshape: Sequence[int]) -> list[int]:
    lengths: list[int] = []
    axis, index = 0, 0
    try:
        while index < len(codes):
            code = codes[index]
            if code == -2:
                lengths.append(shape[axis])
                axis += 1
            elif code == -3:
                if shape[axis] != 1:
                    raise ShapeError(f"reshape: -3 removes an axis of length 1, got length {shape[axis]}")
                axis += 1
            elif code == -4:
                lengths += shape[axis:]
                axis = len(shape)
            elif code == -5:
                lengths.append(shape[axis] * shape[axis + 1])
                axis += 2
            elif code == -6:
                one, other = codes[index + 1 : index + 3]
                one = shape[axis] // other if one == -1 else one
                other = shape[axis] // one if other == -1 else other
                lengths += (one, other)
                axis, index = axis + 1, index + 2
            else:
                lengths.append(code)
                axis += 1
            index += 1
    except IndexError:
        raise ShapeError(f"reshape: {tuple(newshape)} needs more axes than the {len(shape)} of the array") from None
    return lengths
