"""CuPy's arrays and functions, on NumPy: supported calls have the names, arguments and behavior of CuPy's.

``xp`` stands for the module ``cupy``, :class:`ndarray` for ``cupy.ndarray``. NumPy computes the values. As in CuPy,
the following is refused:

- names and arguments that only NumPy has (names.json, taken from the real package by record.py),
- NumPy arrays as arguments, and implicit conversions to NumPy arrays (``.get()`` converts explicitly),
- the values of arguments in ``_LIMITS``.

Results without axes are arrays, not numbers. Every wait for the device (``float(x)``, ``if x:``, ``.get()``, a boolean
mask) is counted in :data:`waits`.
"""

from __future__ import annotations

import ctypes
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

NAMES = json.loads(Path(__file__).with_name("names.json").read_text())

waits: Counter[str] = Counter()
"""The number of times that the host waited for the device, by cause."""

_TAKES_HOST = {"asarray", "array", "asanyarray", "ascontiguousarray", "asfortranarray", "set", "asnumpy"}
_WAITING = {"nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract"}
_SCATTERED = {"int32", "uint32", "uint64", "float16", "float32", "float64"}


def _refuse(condition: bool, message: str) -> None:
    if condition:
        raise TypeError(message)


_LIMITS: dict[str, Callable[..., None]] = {
    "sort": lambda source: _refuse(source.get("kind") not in (None, "stable"), f"kind {source.get('kind')!r}"),
    "argsort": lambda source: _refuse(source.get("kind") not in (None, "stable"), f"kind {source.get('kind')!r}"),
    "einsum": lambda source: _refuse(bool(source["kwargs"].keys() - {"dtype", "optimize"}), str(source.get("kwargs"))),
}
"""Values of arguments that CuPy refuses."""


_ndarray: Any = np.ndarray


class ndarray:  # noqa: N801 - CuPy's name
    """An array of the device.

    Args:
        shape: its shape.
        dtype: its element type.
        memptr: where its memory begins (anything with ``ptr``, an address); fresh memory where None.
        strides: in bytes.
        order: "C" or "F".
    """

    __slots__ = ("__weakref__", "_host", "_memory")
    dtype: Any
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        buffer = None
        if memptr is not None:
            lengths = (shape,) if isinstance(shape, int) else tuple(shape)
            reach = _reach(lengths, strides, np.dtype(dtype).itemsize)
            buffer = (ctypes.c_char * max(reach, 1)).from_address(memptr.ptr)
        self._host: Any = _ndarray(shape, dtype, buffer, 0, strides, order)
        self._memory = memptr

    # -- conversions: to NumPy only by get ------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` instead.")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        own = getattr(xp, function.__name__, None)
        if own is None or method not in ("__call__", "at", "reduce", "accumulate", "reduceat", "outer"):
            return NotImplemented
        call = own if method == "__call__" else getattr(own, method)
        return call(*inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        place: Any = xp
        for part in function.__module__.split(".")[1:]:
            place = getattr(place, part, None)
        own = getattr(place, function.__name__, None)
        return NotImplemented if own is None else own(*args, **kwargs)

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """Return a copy in the host's memory."""
        waits["get"] += 1
        if out is None:
            return self._host.copy(order)
        out[...] = self._host
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy from the host's memory."""
        _refuse(not isinstance(arr, np.ndarray), "Only numpy.ndarray can be set to cupy.ndarray")
        _refuse(arr.dtype != self.dtype or arr.shape != self.shape, f"{arr.dtype} {arr.shape}")
        self._host[...] = arr

    def item(self) -> Any:
        waits["item"] += 1
        return self._host.item()

    def tolist(self) -> Any:
        waits["tolist"] += 1
        return self._host.tolist()

    def __float__(self) -> float:
        waits["float"] += 1
        return float(self._host)

    def __int__(self) -> int:
        waits["int"] += 1
        return int(self._host)

    def __complex__(self) -> complex:
        waits["complex"] += 1
        return complex(self._host)

    def __bool__(self) -> bool:
        waits["bool"] += 1
        return bool(self._host)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """The start of its memory: an object with ``ptr``."""
        own = self._memory
        address = self._host.ctypes.data
        return own if own is not None and own.ptr == address else SimpleNamespace(ptr=address, mem=own, device_id=0)

    @property
    def flags(self) -> Any:
        flags = self._host.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata,
            forc=flags.c_contiguous or flags.f_contiguous, fnc=flags.f_contiguous and not flags.c_contiguous,
        )  # fmt: skip

    @property
    def base(self) -> Any:
        return None if self._host.base is None else wrap(self._host.base)

    @property
    def shape(self) -> Any:
        return self._host.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._host.shape = shape

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        return wrap(self._host.view() if dtype is None else self._host.view(dtype))

    def fill(self, value: Any) -> None:
        if isinstance(value, ndarray):
            self._host[...] = value._host
            return
        _refuse(not np.isscalar(value), f"{type(value)} cannot be used for fill")
        self._host.fill(value)

    def scatter_add(self, slices: Any, value: Any) -> None:
        xp.add.at(self, slices, value)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[Any]:
        return (wrap(row) for row in self._host)

    def __repr__(self) -> str:
        return f"on the device: {self._host!r}"

    def __getitem__(self, key: Any) -> Any:
        return wrap(self._host[_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse(not (isinstance(value, ndarray) or np.isscalar(value)), f"{type(value)} cannot be used for fill")
        self._host[_index(key)] = _unwrap(value)


def _reach(shape: tuple[int, ...], strides: Any, itemsize: int) -> int:
    """The number of bytes that an array spans."""
    if strides is None:
        return int(np.prod(shape, dtype=np.int64)) * itemsize
    return itemsize + sum([(length - 1) * int(stride) for length, stride in zip(shape, strides, strict=True) if length])


def wrap(result: Any) -> Any:
    """Wrap a result of NumPy: arrays and scalars become arrays of the device, also within tuples and lists."""
    if isinstance(result, (np.ndarray, np.generic)):
        array = object.__new__(ndarray)
        array._host, array._memory = np.asarray(result), None
        return array
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(wrap, result))
    if isinstance(result, (tuple, list)):
        return type(result)(map(wrap, result))
    return result


def _unwrap(value: Any) -> Any:
    """Convert an argument for NumPy's function."""
    if isinstance(value, ndarray):
        return value._host
    _refuse(isinstance(value, np.ndarray), f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_unwrap, value))
    return value


def _index(key: Any) -> Any:
    """Convert an index; CuPy copies NumPy arrays in an index to the device."""
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if isinstance(part, (list, np.ndarray)):
            waits["index of the host"] += 1
        elif isinstance(part, ndarray) and part.dtype == np.bool_:
            waits["mask"] += 1
    unwrapped = tuple([part._host if isinstance(part, ndarray) else part for part in parts])
    return unwrapped if isinstance(key, tuple) else unwrapped[0]


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _flat(value)
        else:
            yield value


class _Function:
    """A function of CuPy, computed by NumPy's function of the same name."""

    def __init__(self, name: str, parameters: str | None, function: Callable[..., Any]) -> None:
        self.__name__ = name
        self._function = function
        self._signature = None if parameters is None else _signature(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__
        if self._signature is not None:
            arguments = self._signature.bind(*args, **kwargs).arguments
            if name in _LIMITS:
                _LIMITS[name]({"kwargs": {}, **arguments})
        kwargs.pop("blocking", None)
        if name in _WAITING:
            waits[name] += 1
        read = _shallow if name in _TAKES_HOST else _unwrap
        result = self._function(*read(args), **{key: read(value) for key, value in kwargs.items()})
        return self._wrap(result, args, kwargs)

    def _wrap(self, result: Any, args: Any, kwargs: Any) -> Any:
        if self.__name__ == "asnumpy":
            return result.copy()
        if self.__name__ in ("allclose", "array_equal", "array_equiv"):
            result = np.asarray(result)
        for value in _flat((*args, *kwargs.values())):
            if isinstance(value, ndarray) and value._host is result:
                return value
        return wrap(result)


def _shallow(value: Any) -> Any:
    """Convert an argument of a function that accepts the host's arrays."""
    return type(value)(map(_shallow, value)) if isinstance(value, (tuple, list)) else getattr(value, "_host", value)


def _signature(parameters: str) -> inspect.Signature:
    """Return the signature that record.py wrote in short form."""
    kinds = inspect.Parameter
    entries: list[inspect.Parameter] = []
    kind: Any = kinds.POSITIONAL_OR_KEYWORD
    for part in filter(None, parameters.split(", ")):
        name = part.strip("*=")
        if part.startswith("**"):
            entries.append(kinds(name, kinds.VAR_KEYWORD))
        elif part.startswith("*"):
            kind = kinds.KEYWORD_ONLY
            entries += [kinds(name, kinds.VAR_POSITIONAL)] if name else []
        else:
            entries.append(kinds(name, kind, default=None if part.endswith("=") else kinds.empty))
    return inspect.Signature(entries)


class ufunc:  # noqa: N801 - CuPy's name
    """A universal function: arrays and scalars, with ``out``, ``dtype`` and ``casting`` and nothing else."""

    def __init__(self, name: str, nin: int, nout: int) -> None:
        self.name = self.__name__ = name
        self.nin, self.nout, self.nargs = nin, nout, nin + nout
        self._function: Any = getattr(np, name)

    def __call__(
        self, *args: Any, out: Any = None, dtype: Any = None, casting: Any = "same_kind", **kwargs: Any
    ) -> Any:
        _refuse(bool(kwargs), f"Wrong arguments {kwargs}")
        _refuse(not self.nin <= len(args) <= self.nargs, f"Wrong number of arguments for {self.name!r}: {len(args)}")
        for value in args[: self.nin]:
            _refuse(not (isinstance(value, ndarray) or np.isscalar(value)), f"Unsupported type {type(value)}")
        targets = args[self.nin :] or (out if isinstance(out, tuple) else (out,) if out is not None else ())
        for value in targets:
            _refuse(not isinstance(value, (ndarray, type(None))), f"Unsupported type {type(value)}")
        results = self._compute(_unwrap(args[: self.nin]), _unwrap(targets), dtype, casting)
        pairs = [
            target if target is not None else wrap(result)
            for result, target in zip(results, targets or (None,) * self.nout, strict=True)
        ]
        return pairs[0] if self.nout == 1 else tuple(pairs)

    def _compute(self, args: Any, targets: Any, dtype: Any, casting: Any) -> tuple[Any, ...]:
        if isinstance(self._function, np.ufunc):
            with np.errstate(all="ignore"):
                out = {"out": targets} if targets else {}
                results = self._function(*args, **out, dtype=dtype, casting=casting)
        else:  # not a ufunc in NumPy, such as sinc
            results = self._function(*args)
            if targets:
                np.copyto(targets[0], results, casting=casting)
        return results if isinstance(results, tuple) else (results,)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        if self.name not in ("add", "maximum", "minimum"):
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        simple = not any(
            isinstance(part, (ndarray, list)) for part in (indices if type(indices) is tuple else [indices])
        )
        _refuse(not simple and a.dtype.name not in _SCATTERED, f"scatter_add does not support {a.dtype}")
        self._function.at(a._host, _index(indices), _unwrap(b))

    def _only(self, method: str, names: tuple[str, ...]) -> Any:
        if self.name not in names:
            raise NotImplementedError(f"`{self.name}.{method}` is not supported yet")
        return getattr(self._function, method)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        reduce = self._only("reduce", ("add", "multiply"))
        result = wrap(reduce(array._host, axis, dtype, None if out is None else out._host, keepdims))
        return result if out is None else out

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        result = self._only("accumulate", ("add", "multiply"))(array._host, axis, dtype, getattr(out, "_host", None))
        return wrap(result) if out is None else out

    def reduceat(self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        sums = self._only("reduceat", ("add",))(array._host, _unwrap(indices), axis, dtype, getattr(out, "_host", None))
        return wrap(sums) if out is None else out

    def outer(self, A: Any, B: Any, **kwargs: Any) -> Any:
        return self(A.reshape(A.shape + (1,) * B.ndim), B, **kwargs)


class Namespace:
    """A module of CuPy, with functions computed by NumPy; names that CuPy lacks raise AttributeError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        attribute = self._find(name)
        if attribute is None:
            raise AttributeError(f"module 'cupy{self._path and '.'}{self._path}' has no attribute {name!r} (stand-in)")
        setattr(self, name, attribute)
        return attribute

    def _find(self, name: str) -> Any:
        below = f"{self._path}.{name}".lstrip(".")
        if any(path == below or path.startswith(f"{below}.") for path in NAMES["modules"]):
            return Namespace(below)
        table = NAMES["modules"].get(self._path, {"functions": {}, "ufuncs": {}, "values": []})
        theirs: Any = np
        for part in filter(None, self._path.split(".")):
            theirs = getattr(theirs, part)
        if name in table["ufuncs"] and hasattr(theirs, name):
            return ufunc(name, **table["ufuncs"][name])
        if name in table["functions"] and (hasattr(theirs, name) or name in _OWN):
            return _Function(name, table["functions"][name], _OWN.get(name) or getattr(theirs, name))
        return getattr(theirs, name, None) if name in table["values"] else None


def _as_strided(x: Any, shape: Any = None, strides: Any = None) -> Any:
    return np.lib.stride_tricks.as_strided(x, shape, strides)


_OWN: dict[str, Any] = {"asnumpy": np.asarray, "as_strided": _as_strided}

xp: Any = Namespace("")
xp.ndarray, xp.ufunc = ndarray, ufunc


def _attribute(name: str) -> property:
    return property(lambda self: wrap(getattr(self._host, name)))


def _method(name: str) -> Callable[..., Any]:
    signature = _signature(NAMES["array"]["methods"][name])

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if name in _LIMITS:
            _LIMITS[name](arguments)
        if name in _WAITING:
            waits[name] += 1
        out = arguments.get("out")
        result = getattr(self._host, name)(*_unwrap(args), **{key: _unwrap(value) for key, value in kwargs.items()})
        return out if out is not None else self if result is self._host else wrap(result)

    call.__name__ = name
    return call


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_COMPARED = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def _complete() -> None:
    """Add the other attributes of CuPy's arrays, from the recorded list."""
    for name in NAMES["array"]["attributes"]:
        if name not in ("flat", "cstruct", "device") and not hasattr(ndarray, name):
            setattr(ndarray, name, _attribute(name))
    for name in NAMES["array"]["methods"]:
        if not hasattr(ndarray, name) and hasattr(np.ndarray, name) and name not in ("dump", "dumps", "tofile"):
            setattr(ndarray, name, _method(name))
    for name, by in (_BINARY | _COMPARED).items():
        setattr(ndarray, f"__{name}__", lambda self, other, by=by: getattr(xp, by)(self, other))
    for name, by in _BINARY.items():
        setattr(ndarray, f"__r{name}__", lambda self, other, by=by: getattr(xp, by)(other, self))
        setattr(ndarray, f"__i{name}__", lambda self, other, by=by: getattr(xp, by)(self, other, out=self))
    for name, by in _UNARY.items():
        setattr(ndarray, f"__{name}__", lambda self, by=by: getattr(xp, by)(self))
    setattr(ndarray, "__matmul__", lambda self, other: xp.matmul(self, other))  # noqa: B010
    setattr(ndarray, "__divmod__", lambda self, other: xp.divmod(self, other))  # noqa: B010


_complete()
