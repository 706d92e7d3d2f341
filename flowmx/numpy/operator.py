"""The operators behind ``mx.np``: a function of NumPy's, run as an operation of the engine.

:class:`NumPyCall` is any function of arrays whose results' shapes and dtypes follow from those of its arguments. They
are learned by calling the function once on stand-ins without memory of their own, and remembered. The function is that
of the device's own array namespace. :class:`NumPyPlaces` is the gradient of all functions that only move elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from operator import getitem
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import AutogradError, ShapeError
from flowmx.numpy import binding, table
from flowmx.numpy.forms import Form as CallForm
from flowmx.ops.arrays.shape import View
from flowmx.ops.math.reduce import added, is_of_rows
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    LIGHT_BYTES,
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    Spec,
    family,
    kernel_for,
    lookup,
    operator,
    option,
    required,
)
from flowmx.ops.registry.parameters import literal

__all__ = ["NumPyCall", "NumPyCheck", "NumPyPlaces", "NumPyRefusal", "NumPyReshape", "NumPyWaiting", "results_of"]

_FLOAT, _COMPLEX, _INT, _HALF = (np.dtype(each) for each in (np.float64, np.complex128, np.int64, np.float16))
_NARROW = {_FLOAT: np.dtype(np.float32), _COMPLEX: np.dtype(np.complex64)}
"""The dtypes that NumPy makes of whole numbers, and those of MXNet."""
_SPECS = 512
_INTO = frozenset(["concatenate", "dot", "stack"])
"""Functions besides ufuncs that write into ``out`` without a copy, where that has the dtype of what they are given."""
_QUICK = frozenset([FLOAT32, _FLOAT])
_REDUCED = frozenset(["max", "mean", "min", "prod", "sum"])
"""Functions that an operator of the registry is, for floating arrays and these arguments."""
_SUMS = frozenset(["cumsum", "cumprod", "mean", "nansum", "prod", "std", "sum", "trace", "var"])
"""Functions that add up, or multiply, many numbers, and take a dtype to do it in."""
_POSITIONS = frozenset(["choose", "take", "take_along_axis", "where", "bincount"])
"""Functions with an argument whose dtype says nothing of the others'."""
_WITH_CONSTANTS = frozenset(["append", "choose", "concatenate", "insert", "pad", "stack", "where"])
"""Functions whose arguments may be numbers in place of arrays."""


@lru_cache(4096)
def function_of(xp: Any, name: str) -> Callable[..., Any]:
    """A function of an array namespace, by its name with dots, or one of :data:`OWN`."""
    if name in OWN:
        return partial(OWN[name], xp)
    found: Callable[..., Any] = reduce(getattr, table.FORMER.get(name, name).split("."), xp)
    return found


def _take(xp: Any, a: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    positions = xp.asarray(indices)
    return xp.take(a, positions if positions.dtype.kind in "iu" else positions.astype(np.int64), *args, **kwargs)


def _ldexp(xp: Any, x1: Any, x2: Any) -> Any:
    return xp.ldexp(x1, x2) if np.asarray(x2).dtype.kind in "iu" else x1 * xp.exp2(x2)


def _window(name: str) -> Callable[..., Any]:
    def window(xp: Any, M: int, *args: Any, dtype: DType | None = None) -> Any:
        made = getattr(xp, name)(M, *args)
        return made if dtype is None else made.astype(dtype)

    return window


def _broadcast_to(xp: Any, array: Any, shape: Any) -> Any:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    lead = len(lengths) - array.ndim
    return xp.broadcast_to(array, tuple(array.shape[at - lead] if n == -2 else n for at, n in enumerate(lengths)))


def _nan_to_num(xp: Any, x: Any, copy: bool = True, *args: Any, **kwargs: Any) -> Any:
    return xp.nan_to_num(x, True, *args, **kwargs)


def _diagonal_places(xp: Any, arr: Any) -> Any:
    return xp.stack(xp.diag_indices_from(arr))


def _added_at(xp: Any, positions: Any, numbers: Any, count: int) -> Any:
    return xp.bincount(positions.ravel(), weights=numbers.ravel(), minlength=count)[:count]


def _var(
    xp: Any, a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    **others: Any,
) -> Any:  # fmt: skip
    """The variance; what is summed over many rows is added in blocks, as the registry's sums are."""
    axes = (axis,) if isinstance(axis, int) else axis
    if others or dtype not in (None, a.dtype) or not isinstance(axes, tuple) or not is_of_rows(xp, a, axes):
        return xp.var(a, axis, dtype, ddof=ddof, keepdims=keepdims, **others)
    count = math.prod(a.shape[at] for at in axes)
    found = added(xp, xp.square(a - added(xp, a, axes) / count), axes) / max(count - ddof, 0)
    return found if keepdims else xp.squeeze(found, axes)


def _std(xp: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    return xp.sqrt(_var(xp, a, *args, **kwargs))


def _average(xp: Any, a: Any, axis: Any = None, weights: Any = None, returned: bool = False, **others: Any) -> Any:
    axes = (axis,) if isinstance(axis, int) else axis
    if others or returned or weights is not None or not isinstance(axes, tuple) or not is_of_rows(xp, a, axes):
        return xp.average(a, axis, weights, returned, **others)
    return xp.squeeze(added(xp, a, axes), axes) / math.prod(a.shape[at] for at in axes)


OWN: dict[str, Callable[..., Any]] = {
    "average": _average,
    "std": _std,
    "var": _var,
    "added_at": _added_at,
    "broadcast_to": _broadcast_to,
    "diag_indices_from": _diagonal_places,
    "nan_to_num": _nan_to_num,
    "getitem": lambda xp, a, key: getitem(a, key),
    "take": _take,
    "unique_values": lambda xp, x: xp.unique(x, equal_nan=False),  # NumPy's own does not sort, others' does
    "ldexp": _ldexp,
    **{name: _window(name) for name in ("bartlett", "blackman", "hamming", "hanning", "kaiser")},
}
"""Functions that NumPy does not have, or that take more here, of the namespace and their arguments: positions and
exponents may be floating, as MXNet's are; windows have a dtype; -2 keeps a length; many rows are added in blocks."""


def _kept_in(given: DType, made: DType) -> DType:
    """The dtype in which numbers are added up: with as many digits as there are on both sides, float32 at least."""
    if made.kind != "f":
        return made
    return np.result_type(made, np.float32, *([given] if given.kind == "f" else []))


def _multiplied(one: Any, other: Any) -> list[Any]:
    """The shapes of a product's operands, the length over which it sums completed by the other's."""
    if not one or not other:
        return [one, other]
    at = max(0, len(other) - 2)
    if other[at] == -1:
        other = (*other[:at], one[-1], *other[at + 1 :])
    elif one[-1] == -1:
        one = (*one[:-1], other[at])
    return [one, other]


def results_of(found: Any) -> list[Any]:
    """The results of a function as a list, also where it is one."""
    return list(found) if isinstance(found, (list, tuple)) else [found]


def stand_in(shape: Shape, dtype: DType, square: bool = False) -> np.ndarray[Any, Any]:
    """An array of a shape that takes up next to no memory: ones, zeros for ints, or unit matrices."""
    if square and len(shape) >= 2:
        return np.broadcast_to(np.eye(*shape[-2:], dtype=dtype), shape)
    one = np.zeros((), dtype) if dtype.kind in "iu" else np.ones((), dtype)
    return np.broadcast_to(one, shape)


@family
class _Calling(Operator):
    """Operators with a function and the form of its call."""

    variadic = "num_args"
    num_args: int = required("Number of arrays.", low=0)
    function: str = required("NumPy's function.")
    form: str = required("The arguments, as text.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", CallForm(self.form))

    call: ClassVar[Any] = None


@operator("_np_call")
class NumPyCall(_Calling, hidden=True, typed_by_shapes=True):
    """Call a function of NumPy's on arrays."""

    num_outputs: int = option(1, "Number of results.")
    wide: bool = option(False, "Let whole numbers become float64 where they become floating, as in NumPy.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function in table.WITHOUT_GRADIENT:
            self.with_traits(no_gradient=True)

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_outputs))

    def learn(self, shapes: Sequence[Shape], dtypes: Sequence[DType]) -> Any:
        """The function's results for arrays like these, on stand-ins."""
        ufunc = table.ufunc(self.function)
        with np.errstate(all="ignore"):
            if ufunc is not None and ufunc.signature is None and not self.call.kwargs:
                args, _ = self.call.fill([np.ones((), dtype) for dtype in dtypes])
                shape = np.broadcast_shapes(*shapes)
                found = ufunc(*args)
                made = [np.broadcast_to(each, shape) for each in results_of(found)]
                return tuple(made) if isinstance(found, tuple) else made[0]
            square = self.function.startswith("linalg.")
            stand_ins = [stand_in(shape, dtype, square) for shape, dtype in zip(shapes, dtypes, strict=True)]
            args, kwargs = self.call.fill(stand_ins)
            try:
                return function_of(np, self.function)(*args, **kwargs)
            except np.linalg.LinAlgError:  # unit matrices are of no use to it
                draw = np.random.default_rng(0).random
                args, kwargs = self.call.fill([draw(each.shape).astype(each.dtype) for each in stand_ins])
                return function_of(np, self.function)(*args, **kwargs)

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        key = (shapes, dtypes)
        known = self._specs.get(key)
        if known is not None:
            return known
        results = [np.asarray(each) for each in results_of(self.learn(shapes, dtypes))]
        made = Spec([each.shape for each in results], [self.settled(each.dtype, dtypes) for each in results], False)
        # Functions that move elements give gradients of truth values, too, as MXNet's do.
        has_none = all(each.kind == "b" for each in made.dtypes) and self.function not in table.MOVING
        has_none |= self.traits.no_gradient
        made.gradient = None if has_none else self.gradient
        made.is_plain = True
        moved = sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        made.weight = moved + made.nbytes
        is_heavy = self.function.startswith("linalg.") and self._twin(shapes) is None
        made.light = made.weight <= LIGHT_BYTES and not is_heavy
        if len(self._specs) >= _SPECS:
            self._specs.clear()
        self._specs[key] = made
        return made

    def settled(self, dtype: DType, given: Sequence[DType]) -> DType:
        """The dtype of a result, by MXNet's rule: float64 comes from float64 alone, or where it was asked for."""
        if self.wide or dtype not in _NARROW or self.function == "astype" or self.call.kwargs.get("dtype") is not None:
            return dtype
        if _FLOAT in given or _COMPLEX in given:
            return dtype
        floats = [each for each in given if each.kind == "f"]
        if dtype == _FLOAT and floats:  # MXNet: whole numbers widen no floating ones
            return max(floats, key=lambda each: each.itemsize)
        return _NARROW[dtype]

    def infer_shape(self, shapes: list[Any]) -> Any:
        if self.function in ("dot", "matmul") and len(shapes) == 2:
            shapes = _multiplied(*shapes)
        if any(shape is None or -1 in shape for shape in shapes):
            return shapes, [None] * self.num_outputs
        # Shapes do not depend on dtypes, but some functions take only whole numbers, or masks.
        count, refused = self.num_args, ""
        floats, whole = (FLOAT32,) * count, (_INT,) * count
        for dtypes in (floats, (*floats[:1], *whole[1:]), (*whole[:1], *floats[1:]), whole):
            try:
                return shapes, list(self.spec(tuple(shapes), dtypes).shapes)
            except (ValueError, IndexError, TypeError) as error:
                refused = refused or str(error)
        raise ShapeError(f"{self.function}: {refused}")

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        if any(dtype is None for dtype in dtypes):
            known = [dtype for dtype in dtypes if dtype is not None]
            if len(set(known)) != 1 or self.function in _POSITIONS:
                return dtypes, [None] * self.num_outputs
            return known * len(dtypes), list(self._results_of(tuple(known * len(dtypes))))
        return dtypes, list(self._results_of(tuple(dtypes)))  # type: ignore[arg-type]

    def _results_of(self, dtypes: tuple[DType, ...]) -> list[DType]:
        """The results' dtypes, where shapes are not known: those of the first shapes that the function takes."""
        for shape in ((2, 2, 2, 2), (2, 2), (2, 2, 2), (1, 1, 1, 1), (1, 1), (2,), (1,), ()):
            try:
                found = self.spec((shape,) * len(dtypes), dtypes).dtypes
            except (ValueError, TypeError, IndexError, np.linalg.LinAlgError):
                continue
            if len(found) == self.num_outputs:
                return found
        return [self.settled(np.result_type(*dtypes), dtypes) if dtypes else FLOAT32] * self.num_outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        args, kwargs = self.call.fill(inputs)
        function = function_of(run.xp, self.function)
        if self._adds_up(outputs[0].dtype):
            kwargs = {**kwargs, "dtype": _kept_in(inputs[0].dtype, outputs[0].dtype)}
        if len(outputs) == 1 and "dtype" not in kwargs:
            out = outputs[0]
            alike = self.function in _INTO and all(each.dtype == out.dtype for each in inputs)
            if alike or table.ufunc(self.function) is not None:
                function(*args, out=out, **kwargs)
                return
        for result, out in zip(results_of(function(*args, **kwargs)), outputs, strict=True):
            if result.shape != out.shape:  # it would be broadcast
                raise ShapeError(f"{self.function}: the result has shape {result.shape}, expected {out.shape}")
            out[...] = result

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        """The forward of the registry's operator that does the same, where that has one with less to decide."""
        if xp is not np or not given:
            return None
        alike = all(dtype is made[0][1] and shape and 0 not in shape for shape, dtype in given)
        twin = self._twin([shape for shape, _ in given]) if alike and made[0][1] in _QUICK else None
        if twin is None:
            return (
                None
                if self._adds_up(made[0][1])
                else binding.bind(self.function, function_of(xp, self.function), self.call, given, made)
            )
        fast = kernel_for("cpu", twin.name)
        bind = getattr(fast, "bind", None)
        bound: Bound | None = twin.bound(xp, given, made) if bind is None else bind(twin, given, made)
        if bound is None:
            return twin.forward if fast is None else partial(fast, twin)
        return bound

    def _adds_up(self, made: DType) -> bool:
        """Tell whether numbers are added up in another dtype than the result's."""
        return self.function in _SUMS and (made is _HALF or "dtype" in self.call.kwargs)

    def _twin(self, shapes: Sequence[Shape]) -> Operator | None:
        """The registry's operator that does the same on floating arrays; None where there is none, or it is another."""
        args, kwargs, ndim = self.call.args, self.call.kwargs, len(shapes[0])
        if self.function in ("dot", "matmul") and self.call.flat and [len(each) for each in shapes] == [2, 2]:
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

    def as_ufunc(self, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        if self.num_outputs != 1 or self.call.kwargs or table.ufunc(self.function) is None:
            return None
        function, args = function_of(xp, self.function), self.call.args
        if getattr(function, "signature", None) is not None:
            return None
        if self.call.flat:
            return (function, None) if [each.number for each in args] == list(range(len(args))) else None
        if self.num_args != 1 or len(args) != 2:
            return None
        if isinstance(args[1], (bool, int, float, complex)):
            return function, args[1]
        number = args[0]
        return (lambda x, _, out: function(number, x, out=out)), number

    def gradient(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> Any:
        from flowmx.numpy import gradients

        return gradients.of(self, F, inputs, outputs, heads)


@operator("_np_places")
class NumPyPlaces(_Calling, hidden=True):
    """Add each element of a gradient to where the element of the result came from.

    The function only moves elements: called on the numbers of an input's elements, it tells where each went. The inputs
    are the gradient of the result, and the arrays of the call that are positions or masks.
    """

    shapes: str = required("The shapes of the call's arrays as text, with the number of an input for positions.")
    place: int = required("The array whose gradient it is.")
    num_heads: int = option(1, "Number of results of the call.")

    given: ClassVar[Any] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "given", literal(self.shapes))

    def infer_shape(self, shapes: list[Any]) -> Any:
        return shapes, [self.given[self.place]]

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        whence = self._moved(xp, inputs, xp.arange(1, out.size + 1))
        if self.function in _WITH_CONSTANTS:  # numbers that stand among the arguments come from no array
            whence = whence - self._moved(xp, inputs, xp.zeros(out.size, np.int64))
        whence = whence.astype(np.int64, copy=False)
        weights = xp.concatenate([each.ravel() for each in inputs[: self.num_heads]])
        if weights.dtype.kind == "c":
            found = _added(xp, whence, weights.real, out.size) + 1j * _added(xp, whence, weights.imag, out.size)
        else:
            found = _added(xp, whence, weights, out.size)
        out[...] = found[1:].reshape(out.shape)

    def _moved(self, xp: Any, inputs: Sequence[Array], numbers: Array) -> Array:
        """The results of the call, one after the other, with numbers for the elements of the array."""
        arrays = []
        for index, each in enumerate(self.given):
            if isinstance(each, int):
                arrays.append(inputs[each])
            else:
                arrays.append(numbers.reshape(each) if index == self.place else xp.zeros(each, np.int64))
        args, kwargs = self.call.fill(arrays)
        results = results_of(function_of(xp, self.function)(*args, **kwargs))
        return xp.concatenate([each.ravel() for each in results])

    def gradient(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> Any:
        from flowmx.numpy import gradients

        return gradients.of_places(self, F, inputs, heads)


def _added(xp: Any, whence: Array, weights: Array, size: int) -> Array:
    return xp.bincount(whence, weights=weights.astype(np.float64), minlength=size + 1)


@operator("_np_waiting")
class NumPyWaiting(_Calling, hidden=True, dynamic=True, no_gradient=True):
    """Call a function of NumPy's whose results' shapes follow from what its arrays hold."""

    num_outputs: int = option(1, "Number of results.")

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_outputs))

    def infer_shape(self, shapes: list[Any]) -> Any:
        return shapes, [None] * self.num_outputs

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [None] * self.num_outputs

    def at_once(self, F: Any, inputs: Sequence[Any]) -> Any:
        from flowmx.numpy.calls import call_waiting

        args, kwargs = self.call.fill([each.as_np_ndarray() for each in inputs])
        found = call_waiting(self.function, args, kwargs)
        return found if isinstance(found, (list, tuple)) and len(found) > 1 else results_of(found)[0]


@operator("_np_refused")
class NumPyRefusal(Operator, hidden=True, no_gradient=True):
    """Raise that there is no gradient, where a backward pass asks for it.

    Raises:
        AutogradError: always.
    """

    message: str = required("The message.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise AutogradError(self.message)


@operator("_npx_reshape")
class NumPyReshape(View, hidden=True, in_place=((0, 0),), view=True):
    """Give an array another shape by the codes of ``npx.reshape``."""

    arguments = ("a",)
    newshape: Shape = required("Lengths, or codes.")
    reverse: bool = option(False, "Match the codes from the right.")
    order: str = option("C", "The order of elements.")

    def infer_shape(self, shapes: list[Any]) -> Any:
        (shape,) = shapes
        if shape is None or -1 in shape:
            return shapes, [None]
        lengths = reshaped(self.newshape, shape, self.reverse)
        return shapes, [np.broadcast_to(np.zeros((), bool), shape).reshape(lengths).shape]


@operator("_npx_constraint_check")
class NumPyCheck(Operator, hidden=True, no_gradient=True):
    """Tell that all elements are true.

    Raises:
        ValueError: one is not, with the message given.
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


def reshaped(newshape: Sequence[int], old: Shape, reverse: bool = False) -> tuple[int, ...]:
    """The lengths that the codes of ``npx.reshape`` stand for; -1 stays.

    Raises:
        ShapeError: the codes do not fit the shape.
    """
    codes = list(newshape)
    if reverse:
        return tuple(_lengths(_backwards(codes), old[::-1], codes)[::-1])
    return tuple(_lengths(codes, old, codes))


def _backwards(codes: Sequence[int]) -> list[int]:
    """The codes from right to left, a split still before its two lengths."""
    found: list[int] = []
    at = 0
    while at < len(codes):
        width = 3 if codes[at] == -6 else 1
        group = list(codes[at : at + width])
        found = [group[0], *group[:0:-1], *found]
        at += width
    return found


def _lengths(codes: Sequence[int], shape: Sequence[int], given: Sequence[int]) -> list[int]:
    made: list[int] = []
    axis, at = 0, 0
    try:
        while at < len(codes):
            code = codes[at]
            if code == -2:
                made.append(shape[axis])
                axis += 1
            elif code == -3:
                if shape[axis] != 1:
                    raise ShapeError(f"reshape: -3 leaves out an axis of length 1, not one of {shape[axis]}")
                axis += 1
            elif code == -4:
                made += shape[axis:]
                axis = len(shape)
            elif code == -5:
                made.append(shape[axis] * shape[axis + 1])
                axis += 2
            elif code == -6:
                one, other = codes[at + 1 : at + 3]
                one = shape[axis] // other if one == -1 else one
                other = shape[axis] // one if other == -1 else other
                made += (one, other)
                axis, at = axis + 1, at + 2
            else:
                made.append(code)
                axis += 1
            at += 1
    except IndexError:
        raise ShapeError(f"reshape: {tuple(given)} asks for more axes than the array's {len(shape)}") from None
    return made
