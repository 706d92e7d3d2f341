"""Calls of ``mx.np``'s functions: user arguments become an operator and its input arrays.

:func:`call` enqueues an operation. :func:`call_waiting` is for functions whose result shapes depend on the content of
arrays. The operator of a call form is cached, so that a loop resolves it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np

from flowmx import devices
from flowmx.bounded_tables import make_room
from flowmx.engine import capture
from flowmx.engine.runtime import engine
from flowmx.errors import AutogradError, ShapeError, as_mxnet_error, raised_as_mxnet
from flowmx.late_binding import late
from flowmx.ndarray import core
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.fast_calls import FastCall
from flowmx.ndarray.recording import state
from flowmx.numpy import table, view_semantics
from flowmx.numpy.arguments import INDEXED, NUMBERS, move_to_positions, names_of, normalize, position_of_out
from flowmx.numpy.conversion import array_class, arrays_of, from_host, parse_dtype, to_np, wrap
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.operator import NumPyCall, function_of
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.semantics import default_float, semantics

__all__ = ["Calls", "both_modes", "call", "call_waiting", "ufunc_call"]

_CACHE_SIZE = 4096
_ARRAY = object()
_operators: dict[Any, tuple[Operator, Callable[[Any], Any] | None]] = {}


class ArgumentSplitter:
    """Split the arguments of a call into arrays and a form; ``key`` identifies the form."""

    def __init__(self, context: devices.Context) -> None:
        self._context = context
        self.arrays: list[BaseArray] = []
        self.key: list[Any] = []

    def split(self, value: object) -> Any:
        """Add an argument and return its representation in the form."""
        kind = value.__class__
        if isinstance(value, np.ndarray):
            value = wrap(np.array(value), self._context)
        if isinstance(value, BaseArray):
            self.arrays.append(value)
            self.key.append(_ARRAY)
            return Slot(len(self.arrays) - 1)
        if isinstance(value, np.generic):
            value = value.item()
            kind = value.__class__
        if kind is float or kind is complex:
            self.key.append((kind, repr(value)))  # as keys 0.0 equals -0.0, and NaN differs from itself
            return value
        if isinstance(value, (list, tuple)):
            self.key += (kind, len(value))
            items = [self.split(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, (type, np.dtype)):
            value = parse_dtype(value)
        elif isinstance(value, slice):
            self.key.append((slice, value.start, value.stop, value.step))
            return value
        self.key.append((kind, value))
        return value


def call(
    function: str, args: Sequence[object], kwargs: dict[str, Any], depth: int = 3, operators: list[Any] | None = None
) -> Any:
    """Enqueue a NumPy function on arrays. Return one array, or a list or tuple as NumPy does.

    Args:
        function: the name of the function.
        args: its arguments.
        kwargs: its keyword arguments.
        depth: the number of stack frames between user code and the engine.
        operators: a list to which the operator of the call and the function that packs its results are appended.

    Raises:
        ValueError, TypeError: NumPy rejects the arguments.
    """
    args, kwargs, out, where = normalize(function, args, kwargs)
    is_ufunc = table.ufunc(function) is not None
    context = _context_of(args, kwargs)
    if context is None:
        if out is None and where is None and _are_numbers(args[:1] if function == "unravel_index" else args):
            if function == "where":
                return args[1] if args[0] else args[2]
            if is_ufunc or (function in _SCALAR_FUNCTIONS and not any(map(np.ndim, kwargs.values()))):
                return function_of(np, function)(*args, **kwargs)
        args = _with_array(function, args, kwargs)
        context = _context_of(args, kwargs) or devices.current_context()
    elif is_ufunc:
        args = [from_host(arg, context) if isinstance(arg, (list, tuple)) else arg for arg in args]
    splitter = ArgumentSplitter(context)
    form_args = [splitter.split(arg) for arg in args]
    form_kwargs = {}
    for name, value in kwargs.items():
        splitter.key.append(name)
        form_kwargs[name] = splitter.split(value)
    wide = semantics.get().dtype
    arrays = splitter.arrays
    key = (function, wide, *splitter.key, *(array.dims for array in arrays if function in _COUNTED_BY_SHAPE))
    entry = _operators.get(key)
    if entry is None:
        entry = _create_operator(function, form_args, form_kwargs, arrays, wide)
        make_room(_operators, _CACHE_SIZE)
        _operators[key] = entry
    if operators is not None:
        operators.append(entry)
    op, pack = entry
    for array in arrays:
        if array.storage.device.context != context:
            arrays = [to_context(function, argument, context) for argument in arrays]
            break
    with raised_as_mxnet(ValueError, TypeError, IndexError):
        results = to_np(invoke(op, arrays, None, None, depth + 1))
    if pack is not None:
        results = pack(results if isinstance(results, list) else [results])
    if out is None and where is None:
        return results
    for target in out if isinstance(out, tuple) else (out,):
        if isinstance(target, BaseArray):
            view_semantics.warn_lost_write(target)
    return write_into(function, results, out, where)


_COUNTED_BY_SHAPE = ("gradient", "unstack")
"""Functions whose number of results depends on the shapes of their arguments."""
_SCALAR_FUNCTIONS = table.names("around clip fix flip isneginf isposinf ldexp nan_to_num round unravel_index")
"""Functions besides ufuncs that return a NumPy scalar for a number, as in MXNet."""


def _are_numbers(args: Sequence[object]) -> bool:
    """Return whether all arguments are numbers, or None after the first."""
    return bool(args) and isinstance(args[0], NUMBERS) and all(x is None or isinstance(x, NUMBERS) for x in args)


def to_context(function: str, array: BaseArray, context: devices.Context) -> BaseArray:
    """Return an argument on the device of the first argument: itself, or a copy between CPU devices.

    Raises:
        DeviceError: one of the two devices is not a CPU.
    """
    moved: BaseArray = late("ndarray.mixed_devices").copy_to_device_of_call(function, "an argument", array, context)
    return moved


def _context_of(args: Sequence[object], kwargs: Mapping[str, object]) -> devices.Context | None:
    for arg in args:
        if isinstance(arg, BaseArray):
            return arg.context
    arrays = arrays_of(list(args)) or arrays_of(kwargs)
    return arrays[0].context if arrays else None


def _with_array(function: str, args: Sequence[object], kwargs: dict[str, Any]) -> list[Any]:
    """Convert the first argument of a call without arrays to an array, or all arguments of an elementwise function."""
    converted = list(args)
    is_elementwise = table.ufunc(function) is not None
    for index, arg in enumerate(converted):
        if isinstance(arg, (int, float, complex, np.generic, np.ndarray, list, tuple)):
            if index == 0 and isinstance(arg, (list, tuple)) and function in _LIST_FUNCTIONS:
                converted[index] = [from_host(item) for item in arg]
            else:
                converted[index] = from_host(arg)
            if not is_elementwise:
                break
    if not converted:
        for name, value in kwargs.items():
            if isinstance(value, (int, float, list, np.ndarray)):
                kwargs[name] = from_host(value)
                break
    return converted


_LIST_FUNCTIONS = table.names("""
    broadcast_arrays column_stack concatenate dstack hstack lexsort linalg.multi_dot stack vstack meshgrid
""")


def _create_operator(
    function: str, args: Sequence[object], kwargs: Mapping[str, object], arrays: Sequence[BaseArray], wide: bool
) -> tuple[Operator, Callable[[Any], Any] | None]:
    """Return the operator of a call, and the function that packs its results (None for a single result)."""
    text = encode(args, kwargs)
    parameters = {"num_args": len(arrays), "function": function, "form": text, "wide": wide}
    op: Any = NumPyCall.create(**parameters)
    with raised_as_mxnet(ValueError, TypeError, IndexError):
        results = op.infer_results([array.dims for array in arrays], [array.element_type for array in arrays])
    if not isinstance(results, (list, tuple)):
        if not isinstance(results, (np.ndarray, np.generic, int, float, complex)):
            raise TypeError(f"{function}: the result is {results!r}, expected an array")
        return op, None
    op = NumPyCall.create(**parameters, num_outputs=len(results))
    if not hasattr(results, "_fields"):
        return op, list if isinstance(results, list) else tuple
    kind: Any = type(results)
    return op, lambda arrays: kind(*arrays)


def write_into(function: str, result: Any, out: Any, where: Any) -> Any:
    """Write a result into the array ``out``, only where a mask is true.

    Raises:
        ShapeError: ``out`` has a different shape.
        TypeError: the dtype of ``out`` cannot represent the result.
    """
    if isinstance(out, tuple) and len(out) == 1:
        out = out[0]
    if isinstance(result, (tuple, list)):
        targets = out if out is not None else (None,) * len(result)
        return type(result)([write_into(function, *pair, where) for pair in zip(result, targets, strict=True)])
    if where is not None and where is not True:
        result = call("where", (where, result, result if out is None else out), {}, 4)
    if out is None:
        return result
    if not isinstance(out, BaseArray):
        raise TypeError(f"{function}: out is {type(out).__name__}, expected an array of mx.np")
    if out.dims != result.dims:
        raise ShapeError(f"{function}: out has shape {out.dims}, expected {result.dims}")
    if not np.can_cast(result.element_type, out.element_type, "same_kind"):
        raise TypeError(f"{function}: out has dtype {out.element_type}, which cannot hold {result.element_type}")
    array_class()._assign(out, Ellipsis, result)
    return out


# -- functions whose result shapes depend on content --------------------------------------------------------


def call_waiting(function: Callable[..., Any] | str, args: Any, kwargs: dict[str, Any], refuse: bool = True) -> Any:
    """Run a NumPy function as an operation of the engine, wait for it, and return arrays of ``mx.np``.

    Args:
        function: the function, or its name in the array namespace of the device.
        args: its arguments.
        kwargs: its keyword arguments.
        refuse: record on the tape that the call has no gradient, if it has none.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "function")
    out = kwargs.pop("out", None)
    arrays = arrays_of(list(args)) + arrays_of(kwargs)
    if not arrays:
        args, kwargs = [_host_default(arg) for arg in args], dict(kwargs)
    context = arrays[0].context if arrays else devices.current_context()
    arrays = [to_context(name, array, context) for array in arrays]
    device = devices.get(context)
    target = function_of(device.xp, function) if isinstance(function, str) else function
    outcome: list[object] = []

    def to_host(value: object) -> Any:
        if isinstance(value, BaseArray):
            return value.raw()
        if isinstance(value, (list, tuple)):
            return type(value)([to_host(item) for item in value])
        return parse_dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    def run() -> None:
        with np.errstate(all="ignore"):
            outcome.append(target(*to_host(list(args)), **{key: to_host(value) for key, value in kwargs.items()}))

    done = core.allocate(device, (), np.dtype(bool))
    reads = tuple([array.storage for array in arrays])
    core.push_on(device, run, (), reads, (done.storage,), name, depth=3, detached=_calls_back([args, kwargs]))
    engine.wait_variable(done.storage)
    dtypes = {array.element_type for array in arrays}
    result = _to_arrays(outcome[0], device, dtypes)
    if refuse and state.get().recording:
        entries = [array for array in arrays if array.tape_entry is not None]
        results = [array for array in arrays_of(result) if array.element_type.kind in "fc"]
        if entries and results:
            gradients = late("numpy.gradients")
            rule = gradients.blocking_gradient(name, args, kwargs, entries) if isinstance(function, str) else None
            core.record(name, rule or refusal(name, function), entries, results, len(results), capture(3))
    if name == "diag_indices_from":  # the operator returns one array, as in MXNet
        result = tuple(result)
    return result if out is None else write_into(name, result, out, None)


def _calls_back(value: object) -> bool:
    """Return whether arguments contain a user function, such as that of ``apply_along_axis``."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_calls_back, value))
    return callable(value) and not isinstance(value, (type, np.dtype))


def _host_default(value: object) -> Any:
    if isinstance(value, list) or (isinstance(value, tuple) and value and isinstance(value[0], float)):
        content = np.asarray(value)
        return content.astype(default_float()) if content.dtype == np.float64 else content
    return value


def _to_arrays(value: object, device: devices.Device, dtypes: set[DType]) -> Any:
    if isinstance(value, (list, tuple)):
        items = [_to_arrays(item, device, dtypes) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, device.xp.ndarray) and not isinstance(value, np.ndarray):
        return value
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
    wide = np.dtype(np.float64) in dtypes or np.dtype(np.complex128) in dtypes or semantics.get().dtype
    dtype = value.dtype if wide else np.dtype(narrow.get(value.dtype, value.dtype))
    if isinstance(value, np.ndarray) and device.xp is not np:
        return wrap(value.astype(dtype), device.context)
    content = device.xp.array(value, dtype=dtype, order="C")
    return core.allocate(device, content.shape, dtype, content, array_class())


def refusal(name: str, function: object = None) -> Callable[..., NoReturn]:
    """Return a gradient function that raises an error."""

    def gradient(F: object, inputs: object, outputs: object, heads: object) -> NoReturn:
        raise AutogradError(
            f"backward: mx.np.{name} has no gradient; detach() its argument if none is intended, or use functions that "
            "have one (docs/numpy.md lists them)"
        )

    return gradient


# -- elementwise functions: the fast path -----------------------------------------------------------------------


@cache
def ufunc_call(function: str, wide: bool) -> FastCall:
    """Return the fast call of an elementwise function of arrays, with MXNet's or NumPy's (wide) default dtypes."""
    ufunc = table.ufunc(function)
    assert ufunc is not None
    text = encode([Slot(index) for index in range(ufunc.nin)], {})
    return FastCall(NumPyCall.create(num_args=ufunc.nin, function=function, form=text, wide=wide))


def both_modes(function: str) -> tuple[FastCall, FastCall]:
    """Return the fast calls of an elementwise function with MXNet's and with NumPy's default dtypes."""
    return ufunc_call(function, False), ufunc_call(function, True)


def registered_or_call(function: str) -> FastCall:
    """Return the fast call of an elementwise function of floating-point arrays of the same dtype."""
    operator = table.REGISTERED.get(function)
    return ufunc_call(function, False) if operator is None else operator_call(operator)


def make_waiting_call(name: str) -> Callable[[Any, dict[str, Any]], Any]:
    """Return :func:`call_waiting` with a fixed function name."""
    return lambda args, kwargs: call_waiting(name, args, kwargs)


def _has_integer_positions(args: tuple[object, ...], arrays: list[BaseArray]) -> bool:
    return len(args) > 1 and isinstance(args[1], BaseArray) and args[1].element_type.kind != "f"


_READY: dict[str, Callable[[tuple[Any, ...], list[BaseArray]], bool]] = {
    **dict.fromkeys(table.SHAPE_ARGUMENTS, lambda args, arrays: len(arrays) == 1 and args[0] is arrays[0]),
    **dict.fromkeys(INDEXED, _has_integer_positions),
    **dict.fromkeys(_COUNTED_BY_SHAPE, lambda args, arrays: False),
    "nan_to_num": lambda args, arrays: len(args) == 1,
    "where": lambda args, arrays: isinstance(args[0], BaseArray) and args[0].element_type.kind == "b",
}
"""Functions with argument conversions, and a predicate for the calls that need none."""
_CONVERTED_KEYWORDS = frozenset(["out", "where", "order", "ctx", "device", "copy"])


class Calls:
    """Calls of one function, with a cache of operators by the form of the arguments."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._cache: dict[Any, Any] = {}
        ufunc = table.ufunc(function)
        self._max_args = ufunc.nin if ufunc is not None else position_of_out(function)
        self._is_ready = _READY.get(function) if ufunc is None else None
        self._shares = function in view_semantics.SHARING

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Enqueue a call with the user's arguments.

        Under ``mx.util.np_views()`` the functions that return views in NumPy return views.
        """
        cls = array_class()
        mode = semantics.get()
        if self._shares and mode.views and args and isinstance(args[0], BaseArray):
            view = view_semantics.view_of(self._function, args, kwargs)
            if view is not None:
                return view
        arrays: list[Any] = []
        key: list[Any] = [mode.dtype]
        for value in args:
            kind = value.__class__
            if kind is cls:
                arrays.append(value)
                key.append(_ARRAY)
            elif kind is int or kind is str or value is None:
                key.append(value)
            elif not _add_to_key(value, kind, cls, arrays, key):
                return self._call_general(args, kwargs)
        for name, value in kwargs.items():
            if value is not None and name in _CONVERTED_KEYWORDS:
                return self._call_general(args, kwargs)
            key.append(name)
            kind = value.__class__
            if kind is int or kind is str or value is None:
                key.append(value)
            elif kind is bool:
                key.append((bool, value))
            elif kind is cls or not _add_to_key(value, kind, cls, arrays, key):
                return self._call_general(args, kwargs)
        if (
            not arrays
            or len(args) > self._max_args
            or (self._is_ready is not None and not self._is_ready(args, arrays))
        ):
            return self._call_general(args, kwargs)
        form = tuple(key)
        entry = self._cache.get(form)
        if entry is None:
            return self._call_general(args, kwargs, form)
        op, pack = entry
        try:
            result = invoke(op, arrays, None, None, 4)
        except (ValueError, TypeError, IndexError) as error:
            raise as_mxnet_error(error) from None
        if pack is not None:
            result = pack(result if result.__class__ is list else [result])
        if self._shares:
            if pack is None:
                result.storage.copied_from = view_semantics.origin_of(arrays[0].storage)
            else:
                view_semantics.mark_copies(result, arrays[0])
        return result

    def _call_general(self, args: tuple[object, ...], kwargs: dict[str, Any], key: object = None) -> Any:
        """Enqueue a call without the cache, and cache its operator if there is a key."""
        positional = list(args)
        if kwargs:
            positional = list(move_to_positions(names_of(self._function), args, kwargs := dict(kwargs)))
        operators: list[Any] = []
        result = call(self._function, positional, kwargs, 5, operators)
        if key is not None:
            make_room(self._cache, _CACHE_SIZE)
            self._cache[key] = operators[0]
        if self._shares and positional and isinstance(positional[0], BaseArray):
            view_semantics.mark_copies(result, positional[0])
        return result


def _add_to_key(value: Any, kind: type[Any], cls: type[Any], arrays: Sequence[object], key: list[Any]) -> bool:
    """Add an argument other than an array, integer or string to a cache key. Return False if the call is not cacheable.

    Values that compare equal but differ, such as 1 and 1.0, get different keys. Zeros and NaN are not cacheable.
    """
    if kind is list or kind is tuple:
        for item in value:
            if item.__class__ is not cls:
                break
        else:
            arrays += value
            key.append((kind, len(value)))
            return bool(value)
        key.append(value)
        return kind is tuple and all(item.__class__ is int for item in value)
    if kind is float:
        key.append((float, value))
        return bool(value) and value == value
    key.append((kind, value))
    return kind is bool or kind is type or isinstance(value, np.dtype)


@cache
def operator_call(name: str) -> FastCall:
    """Return the fast call of an elementwise operator of the registry."""
    return FastCall(lookup(name).create())
