"""Calls of ``mx.np``'s functions: arguments as the user wrote them become an operator and arrays.

:func:`call` enqueues; :func:`call_waiting` is for functions whose results depend on what the arrays hold. What calls of
one form come to is remembered, so that a loop pays for it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np

from flowmx import devices
from flowmx.engine import capture
from flowmx.engine.runtime import engine
from flowmx.errors import AutogradError, ShapeError, also_mxnet, raised_as_mxnet
from flowmx.ndarray import core
from flowmx.ndarray.core import BaseArray, Elementwise, invoke
from flowmx.ndarray.recording import state
from flowmx.numpy import parts, table
from flowmx.numpy.arguments import INDEXED, NUMBERS, names_of, normal, place_of_out, placed
from flowmx.numpy.conversion import array_class, arrays_of, face, from_host, given_dtype, wrap
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.operator import NumPyCall, function_of
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.semantics import default_float, semantics

__all__ = ["Calls", "both_modes", "call", "call_waiting", "ufunc_call"]

_KEPT = 4096
_ARRAY = object()
_known: dict[Any, tuple[Operator, Callable[[Any], Any] | None]] = {}


class _Sorter:
    """The arrays of a call, what is left of its arguments, and a key of that."""

    def __init__(self, context: devices.Context) -> None:
        self._context = context
        self.arrays: list[BaseArray] = []
        self.key: list[Any] = []

    def sort(self, value: Any) -> Any:
        """Note an argument; returns what stands for it in the form."""
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
            self.key.append((kind, repr(value)))  # 0.0 and -0.0 are equal as keys, and NaN is not
            return value
        if isinstance(value, (list, tuple)):
            self.key += (kind, len(value))
            kept = [self.sort(each) for each in value]
            return kept if isinstance(value, list) else tuple(kept)
        if isinstance(value, (type, np.dtype)):
            value = given_dtype(value)
        elif isinstance(value, slice):
            self.key.append((slice, value.start, value.stop, value.step))
            return value
        self.key.append((kind, value))
        return value


def call(
    function: str, args: Sequence[Any], kwargs: dict[str, Any], depth: int = 3, made_of: list[Any] | None = None
) -> Any:
    """Enqueue a function of NumPy's on arrays; returns an array, or as many as it returns.

    Raises:
        ValueError, TypeError: NumPy does not take such arguments.
    """
    args, kwargs, out, where = normal(function, args, kwargs)
    is_ufunc = table.ufunc(function) is not None
    context = _context_of(args, kwargs)
    if context is None:
        if out is None and where is None and _are_numbers(args[:1] if function == "unravel_index" else args):
            if function == "where":
                return args[1] if args[0] else args[2]
            if is_ufunc or (function in _OF_NUMBERS and not any(map(np.ndim, kwargs.values()))):
                return function_of(np, function)(*args, **kwargs)
        args = _with_array(function, args, kwargs)
        context = _context_of(args, kwargs) or devices.current_context()
    elif is_ufunc:
        args = [from_host(each, context) if isinstance(each, (list, tuple)) else each for each in args]
    sorter = _Sorter(context)
    form_args = [sorter.sort(each) for each in args]
    form_kwargs = {}
    for name, value in kwargs.items():
        sorter.key.append(name)
        form_kwargs[name] = sorter.sort(value)
    wide = semantics.get().dtype
    arrays = sorter.arrays
    key = (function, wide, *sorter.key, *(each._shape for each in arrays if function in _COUNTED))
    found = _known.get(key)
    if found is None:
        found = _learned(function, form_args, form_kwargs, arrays, wide)
        if len(_known) >= _KEPT:
            _known.clear()
        _known[key] = found
    if made_of is not None:
        made_of.append(found)
    op, pack = found
    for each in arrays:
        if each._storage.device.context != context:
            arrays = [bring(function, one, context) for one in arrays]
            break
    with raised_as_mxnet(ValueError, TypeError, IndexError):
        made = face(invoke(op, arrays, None, None, depth + 1))
    if pack is not None:
        made = pack(made if isinstance(made, list) else [made])
    if out is None and where is None:
        return made
    for each in out if isinstance(out, tuple) else (out,):
        if isinstance(each, BaseArray):
            parts.written(each)
    return into(function, made, out, where)


_COUNTED = ("gradient", "unstack")
"""Functions that have as many results as the shapes of what they are given say."""
_OF_NUMBERS = table.names("around clip fix flip isneginf isposinf ldexp nan_to_num round unravel_index")
"""Functions besides ufuncs that answer a number with NumPy's own, as MXNet's do."""


def _are_numbers(args: Sequence[Any]) -> bool:
    """Tell whether these are numbers alone; options that come after them may be left out."""
    return bool(args) and isinstance(args[0], NUMBERS) and all(x is None or isinstance(x, NUMBERS) for x in args)


def bring(function: str, array: BaseArray, context: devices.Context) -> BaseArray:
    """An argument on the device of the first one: itself, or a copy between CPU devices.

    Raises:
        DeviceError: one of the two is no CPU.
    """
    from flowmx.ndarray.host import bring as brought

    return brought(function, "an argument", array, context)


def _context_of(args: Sequence[Any], kwargs: dict[str, Any]) -> devices.Context | None:
    for each in args:
        if isinstance(each, BaseArray):
            return each.context
    found = arrays_of(list(args)) or arrays_of(kwargs)
    return found[0].context if found else None


def _with_array(function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call without arrays, with the first made one (all, for an elementwise function)."""
    made = list(args)
    whole = table.ufunc(function) is not None
    for index, each in enumerate(made):
        if isinstance(each, (int, float, complex, np.generic, np.ndarray, list, tuple)):
            if index == 0 and isinstance(each, (list, tuple)) and function in _OF_LISTS:
                made[index] = [from_host(one) for one in each]
            else:
                made[index] = from_host(each)
            if not whole:
                break
    if not made:
        for name, each in kwargs.items():
            if isinstance(each, (int, float, list, np.ndarray)):
                kwargs[name] = from_host(each)
                break
    return made


_OF_LISTS = table.names("""
    broadcast_arrays column_stack concatenate dstack hstack lexsort linalg.multi_dot stack vstack meshgrid
""")


def _learned(
    function: str, args: list[Any], kwargs: dict[str, Any], arrays: Sequence[BaseArray], wide: bool
) -> tuple[Operator, Callable[[Any], Any] | None]:
    """The operator of a call, and what packs its results; None where it has one."""
    text = encode(args, kwargs)
    parameters = {"num_args": len(arrays), "function": function, "form": text, "wide": wide}
    op = NumPyCall.create(**parameters)
    with raised_as_mxnet(ValueError, TypeError, IndexError):
        found = op.learn([each._shape for each in arrays], [each._dtype for each in arrays])  # type: ignore[attr-defined]
    if not isinstance(found, (list, tuple)):
        if not isinstance(found, (np.ndarray, np.generic, int, float, complex)):
            raise TypeError(f"{function}: the result is {found!r}, expected an array")
        return op, None
    op = NumPyCall.create(**parameters, num_outputs=len(found))
    if not hasattr(found, "_fields"):
        return op, list if isinstance(found, list) else tuple
    kind: Any = type(found)
    return op, lambda results: kind(*results)


def into(function: str, made: Any, out: Any, where: Any) -> Any:
    """Put a result into the array given as ``out``, only where a mask is true.

    Raises:
        ShapeError: ``out`` has another shape.
        TypeError: its dtype does not hold the result.
    """
    if isinstance(out, tuple) and len(out) == 1:
        out = out[0]
    if isinstance(made, (tuple, list)):
        targets = out if out is not None else (None,) * len(made)
        return type(made)([into(function, *pair, where) for pair in zip(made, targets, strict=True)])
    if where is not None and where is not True:
        made = call("where", (where, made, made if out is None else out), {}, 4)
    if out is None:
        return made
    if not isinstance(out, BaseArray):
        raise TypeError(f"{function}: out is {type(out).__name__}, expected an array of mx.np")
    if out._shape != made._shape:
        raise ShapeError(f"{function}: out has shape {out._shape}, expected {made._shape}")
    if not np.can_cast(made._dtype, out._dtype, "same_kind"):
        raise TypeError(f"{function}: out has dtype {out._dtype}, which does not hold {made._dtype}")
    array_class()._assign(out, Ellipsis, made)
    return out


# -- functions whose results depend on what arrays hold --------------------------------------------------------


def call_waiting(function: Callable[..., Any] | str, args: Any, kwargs: dict[str, Any], refuse: bool = True) -> Any:
    """Run a function of NumPy's as an operation of the engine, and wait for it; its results are arrays of ours.

    Args:
        function: the function, or its name in the device's array namespace.
        args: its arguments.
        kwargs: those by keyword.
        refuse: whether the tape is told, so that backward passes refuse to go through it.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "function")
    out = kwargs.pop("out", None)
    arrays = arrays_of(list(args)) + arrays_of(kwargs)
    if not arrays:
        args, kwargs = [_host_default(each) for each in args], dict(kwargs)
    context = arrays[0].context if arrays else devices.current_context()
    arrays = [bring(name, each, context) for each in arrays]
    device = devices.get(context)
    called = function_of(device.xp, function) if isinstance(function, str) else function
    found: list[Any] = []

    def filled(value: Any) -> Any:
        if isinstance(value, BaseArray):
            return value._read()
        if isinstance(value, (list, tuple)):
            return type(value)([filled(each) for each in value])
        return given_dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    def run() -> None:
        with np.errstate(all="ignore"):
            found.append(called(*filled(list(args)), **{key: filled(value) for key, value in kwargs.items()}))

    done = core.allocate(device, (), np.dtype(bool))
    reads = tuple([each._storage for each in arrays])
    core.push_on(device, run, (), reads, (done._storage,), name, depth=3)
    engine.wait_variable(done._storage)
    given = {each._dtype for each in arrays}
    made = _packed(found[0], device, given)
    if refuse and state.get().recording:
        entries = [each for each in arrays if each._entry is not None]
        results = [each for each in arrays_of(made) if each._dtype.kind in "fc"]
        if entries and results:
            from flowmx.numpy import gradients  # which needs this module

            known = gradients.of_waiting(name, args, kwargs, entries) if isinstance(function, str) else None
            core.record(name, known or refusal(name, function), entries, results, len(results), capture(3))
    if name == "diag_indices_from":  # one array as an operator, as in MXNet
        made = tuple(made)
    return made if out is None else into(name, made, out, None)


def _host_default(value: Any) -> Any:
    if isinstance(value, list) or (isinstance(value, tuple) and value and isinstance(value[0], float)):
        content = np.asarray(value)
        return content.astype(default_float()) if content.dtype == np.float64 else content
    return value


def _packed(value: Any, device: devices.Device, given: set[DType]) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [_packed(each, device, given) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, device.xp.ndarray) and not isinstance(value, np.ndarray):
        return value
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
    wide = np.dtype(np.float64) in given or np.dtype(np.complex128) in given or semantics.get().dtype
    dtype = value.dtype if wide else np.dtype(narrow.get(value.dtype, value.dtype))
    if isinstance(value, np.ndarray) and device.xp is not np:
        return wrap(value.astype(dtype), device.context)
    content = device.xp.array(value, dtype=dtype, order="C")
    return core.allocate(device, content.shape, dtype, content, array_class())


def refusal(name: str, function: Any = None) -> Callable[..., NoReturn]:
    """A gradient that says that there is none."""

    def gradient(F: Any, inputs: Any, outputs: Any, heads: Any) -> NoReturn:
        raise AutogradError(
            f"backward: mx.np.{name} has no gradient here; detach() its argument where none is meant, or write it with "
            "functions that have one (docs/numpy.md lists them)"
        )

    return gradient


# -- elementwise functions, the quick way -----------------------------------------------------------------------


@cache
def ufunc_call(function: str, wide: bool) -> Elementwise:
    """An elementwise function of arrays alone, ready to be called again and again, in a mode of default dtypes."""
    found = table.ufunc(function)
    assert found is not None
    text = encode([Slot(index) for index in range(found.nin)], {})
    return Elementwise(NumPyCall.create(num_args=found.nin, function=function, form=text, wide=wide))


def both_modes(function: str) -> tuple[Elementwise, Elementwise]:
    """An elementwise function in both modes of default dtypes, MXNet's and NumPy's."""
    return ufunc_call(function, False), ufunc_call(function, True)


def registered_or_call(function: str) -> Elementwise:
    """An elementwise function of floating arrays of one dtype: the registry's operator where there is one."""
    operator = table.REGISTERED.get(function)
    return ufunc_call(function, False) if operator is None else registered(operator)


def waiting(name: str) -> Callable[[Any, dict[str, Any]], Any]:
    """A function whose results depend on what arrays hold, of its arguments."""
    return lambda args, kwargs: call_waiting(name, args, kwargs)


def _no_floats(args: tuple[Any, ...], arrays: list[BaseArray]) -> bool:
    return len(args) > 1 and isinstance(args[1], BaseArray) and args[1]._dtype.kind != "f"


_READY: dict[str, Callable[[tuple[Any, ...], list[BaseArray]], bool]] = {
    **dict.fromkeys(table.SHAPED, lambda args, arrays: len(arrays) == 1 and args[0] is arrays[0]),
    **dict.fromkeys(INDEXED, _no_floats),
    **dict.fromkeys(_COUNTED, lambda args, arrays: False),
    "nan_to_num": lambda args, arrays: len(args) == 1,
    "where": lambda args, arrays: isinstance(args[0], BaseArray) and args[0]._dtype.kind == "b",
}
"""Functions whose arguments are looked at before each call, unless this says that there is nothing to see."""
_LOOKED_AT = frozenset(["out", "where", "order", "ctx", "device", "copy"])


class Calls:
    """The operators that calls of one function come to, by everything about their arguments but the arrays."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._known: dict[Any, Any] = {}
        ufunc = table.ufunc(function)
        self._most = ufunc.nin if ufunc is not None else place_of_out(function)
        self._is_ready = _READY.get(function) if ufunc is None else None
        self._shares = function in parts.SHARING

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Enqueue a call, with arguments as the user wrote them.

        A function whose results share memory with its argument in NumPy gives views where the task wants that.
        """
        cls = array_class()
        mode = semantics.get()
        if self._shares and mode.views and args and isinstance(args[0], BaseArray):
            found = parts.view_of(self._function, args, kwargs)
            if found is not None:
                return found
        arrays: list[Any] = []
        key: list[Any] = [mode.dtype]
        for value in args:
            kind = value.__class__
            if kind is cls:
                arrays.append(value)
                key.append(_ARRAY)
            elif kind is int or kind is str or value is None:
                key.append(value)
            elif not _keyed(value, kind, cls, arrays, key):
                return self._sorted_out(args, kwargs)
        for name, value in kwargs.items():
            if value is not None and name in _LOOKED_AT:
                return self._sorted_out(args, kwargs)
            key.append(name)
            kind = value.__class__
            if kind is int or kind is str or value is None:
                key.append(value)
            elif kind is bool:
                key.append((bool, value))
            elif kind is cls or not _keyed(value, kind, cls, arrays, key):
                return self._sorted_out(args, kwargs)
        if not arrays or len(args) > self._most or (self._is_ready is not None and not self._is_ready(args, arrays)):
            return self._sorted_out(args, kwargs)
        whole = tuple(key)
        known = self._known.get(whole)
        if known is None:
            return self._sorted_out(args, kwargs, whole)
        op, pack = known
        try:
            made = invoke(op, arrays, None, None, 4)
        except (ValueError, TypeError, IndexError) as error:
            raise also_mxnet(error) from None
        if pack is not None:
            made = pack(made if made.__class__ is list else [made])
        if self._shares:
            if pack is None:
                made._storage.copied_from = parts.whose(arrays[0]._storage)
            else:
                parts.remember(made, arrays[0])
        return made

    def _sorted_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any = None) -> Any:
        """Enqueue a call the long way, and remember what it comes to under a key."""
        given = list(args)
        if kwargs:
            given = list(placed(names_of(self._function), args, kwargs := dict(kwargs)))
        learned: list[Any] = []
        made = call(self._function, given, kwargs, 5, learned)
        if key is not None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = learned[0]
        if self._shares and given and isinstance(given[0], BaseArray):
            parts.remember(made, given[0])
        return made


def _keyed(value: Any, kind: type[Any], cls: type[Any], arrays: list[Any], key: list[Any]) -> bool:
    """Note an argument that is no array, int or text; False where calls with such ones are not remembered.

    Numbers that are equal as keys and not the same are told apart, or, zeros and NaN, not remembered.
    """
    if kind is list or kind is tuple:
        for each in value:
            if each.__class__ is not cls:
                break
        else:
            arrays += value
            key.append((kind, len(value)))
            return bool(value)
        key.append(value)
        return kind is tuple and all(each.__class__ is int for each in value)
    if kind is float:
        key.append((float, value))
        return bool(value) and value == value
    key.append((kind, value))
    return kind is bool or kind is type or isinstance(value, np.dtype)


@cache
def registered(name: str) -> Elementwise:
    """An elementwise operator of the registry, ready to be called again and again."""
    return Elementwise(lookup(name).create())
